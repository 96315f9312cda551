"""Public benchmarks that `measure --tools` runs, as executables on PATH that print what the real ones do.

Tests: api/measuring_tools.py, reporting/tools.py.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import paleo_lite as pl
from paleo_lite.calibration.store import read_calibration
from paleo_lite.cli import main
from paleo_lite.errors import BadValue
from paleo_lite.measurement.tools import ABSENT, DONE, NO_TIME, USERS, ToolCommand, ToolTarget, plan, run_commands
from paleo_lite.reporting.tools import ToolReport

LLAMA_ROW = {
    "build_commit": "abc1234", "build_number": 6000, "cpu_info": "AMD Ryzen 9 7950X",
    "gpu_info": "NVIDIA GeForce RTX 3090", "backends": "CUDA", "model_filename": "llama-2-7b.Q4_0.gguf",
    "model_type": "llama 7B Q4_0", "model_size": 3825065984, "model_n_params": 6738415616, "n_batch": 2048,
    "n_ubatch": 512, "n_threads": 16, "type_k": "f16", "type_v": "f16", "n_gpu_layers": 99,
    "test_time": "2026-11-01T12:00:00Z", "n_prompt": 0, "n_gen": 128, "n_depth": 0, "avg_ns": 1_000_000_000,
    "stddev_ns": 1, "avg_ts": 128.0, "stddev_ts": 0.1, "samples_ns": [1_000_000_000], "samples_ts": [128.0],
}  # fmt: skip
VLLM_RUN = {
    "date": "20261101-120000", "backend": "vllm", "model_id": "meta-llama/Llama-3.1-8B-Instruct",
    "tokenizer_id": "meta-llama/Llama-3.1-8B-Instruct", "num_prompts": 48, "request_rate": "inf",
    "max_concurrency": 8, "duration": 20.0, "completed": 48, "total_input_tokens": 49152,
    "total_output_tokens": 12288, "request_throughput": 2.4, "output_throughput": 614.4,
    "total_token_throughput": 3072.0, "mean_ttft_ms": 60.0, "mean_tpot_ms": 12.0, "mean_e2el_ms": 3120.0,
}  # fmt: skip


@pytest.fixture
def network(tmp_path: Path) -> str:
    """Return the path of a file that stands for a network."""
    path = tmp_path / "llama-2-7b.Q4_0.gguf"
    path.write_bytes(b"GGUF")
    return str(path)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that is the only one on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def add(folder: Path, name: str, script: str) -> None:
    """Add an executable."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_llama_bench_is_run_and_learned_from(programs: Path, network: str, tmp_path: Path) -> None:
    add(programs, "llama-bench", f"echo '{json.dumps(LLAMA_ROW)}'")
    found = pl.measure(
        tools="llama-bench", model=network, results=tmp_path / "results", gpu="rtx3090",
        calibration_out=tmp_path / "mine.toml",
    )  # fmt: skip
    assert isinstance(found, ToolReport)
    assert [row["outcome"] for row in found.rows] == [DONE, DONE, DONE]
    assert found.rows[0]["command"] == (f"llama-bench -m {network} -p 512 -n 128 -o jsonl > llama-bench-1.jsonl")
    assert found.calibration is not None
    assert found.calibration.kinds == ["local"]
    assert found.calibration.observations[0].measured == pytest.approx(1 / 128)
    assert read_calibration(tmp_path / "mine.toml").device == "rtx3090"
    assert json.loads((tmp_path / "results" / "llama-bench-1.jsonl").read_text()) == LLAMA_ROW
    assert "3 of 3 commands measured" in str(found)


def test_earlier_results_are_kept_unless_they_are_forced(programs: Path, network: str, tmp_path: Path) -> None:
    add(programs, "llama-bench", f"echo '{json.dumps(LLAMA_ROW)}'")
    asked: dict[str, Any] = {"tools": "llama-bench", "model": network, "gpu": "rtx3090"}
    (tmp_path / "llama-bench-1.jsonl").write_text("mine")
    with pytest.raises(BadValue, match=r"llama-bench-1.jsonl already exists"):
        pl.measure(**asked, results=tmp_path)
    assert (tmp_path / "llama-bench-1.jsonl").read_text() == "mine"
    pl.measure(**asked, results=tmp_path, force=True)
    assert json.loads((tmp_path / "llama-bench-1.jsonl").read_text()) == LLAMA_ROW


def test_a_running_server_is_asked_by_its_users(programs: Path, tmp_path: Path) -> None:
    """The real one writes its file itself, into the folder and under the name that it is given."""
    script = f'''
while [ $# -gt 0 ]; do
  case "$1" in
    --result-dir) folder="$2" ;;
    --result-filename) file="$2" ;;
    --base-url) [ "$2" = http://localhost:8000 ] || exit 3 ;;
  esac
  shift
done
echo '{json.dumps(VLLM_RUN)}' > "$folder/$file"'''
    add(programs, "vllm", script)
    found = pl.measure(
        tools="vllm", model="meta-llama/Llama-3.1-8B-Instruct", address="http://localhost:8000", gpu="h100-sxm",
        tensor=1, results=tmp_path / "results",
    )  # fmt: skip
    assert isinstance(found, ToolReport)
    assert [row["outcome"] for row in found.rows] == [DONE] * len(USERS)
    assert found.calibration is not None
    assert found.calibration.kinds == ["server"]
    assert found.calibration.devices == ["h100-sxm"]


def test_what_is_not_installed_is_printed(programs: Path, network: str, tmp_path: Path) -> None:
    add(programs, "all_reduce_perf", "echo '# nothing measured'; echo 'no device' >&2; exit 2")
    words = ["measure", "--tools", "nccl-tests,llama-bench", "--workers", "8", "--model", network, "--gpu", "h100-sxm"]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(main, [*words, "--results", str(tmp_path / "results")])
    assert result.exit_code == 1, result.output  # nothing was measured
    assert result.stderr.count(ABSENT) == 0  # the table says it
    assert not (tmp_path / "results").exists()
    said = result.stdout
    assert "0 of 5 commands measured" in said
    assert "alltoall_perf -b 8K -e 256M -f 8 -g 8 > alltoall_perf.log" in said
    assert "failed with 2: no device" in said
    assert ABSENT in said
    assert "calibrate from their files: `paleo-lite calibrate FILE... -o mine.toml`" in said


def test_nothing_is_learned_from_a_file_without_rows(programs: Path, network: str, tmp_path: Path) -> None:
    add(programs, "llama-bench", "echo '{}'")
    found = pl.measure(tools="llama-bench", model=network, results=tmp_path / "results")
    assert isinstance(found, ToolReport)
    assert found.calibration is None
    assert found.notes[0].startswith("nothing was learned: ")


def test_the_budget_ends_commands(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(programs, "slow", "exit 0")
    command = ToolCommand("slow", ("slow",), "slow.log")
    assert [run.outcome for run in run_commands([command], tmp_path, 0.0)] == [NO_TIME]

    def late(self: Any, **options: Any) -> Any:
        if "timeout" in options:
            raise subprocess.TimeoutExpired("slow", options["timeout"])
        return b"", b""

    monkeypatch.setattr(subprocess.Popen, "communicate", late)
    (run,) = run_commands([command], tmp_path, 60.0)
    assert run.outcome == NO_TIME
    assert not (tmp_path / "slow.log").exists()


def test_children_end_with_their_program(programs: Path, tmp_path: Path) -> None:
    """A child that keeps the output open would be waited for."""
    add(programs, "parent", "/bin/sleep 600 & /bin/sleep 600")
    (run,) = run_commands([ToolCommand("parent", ("parent",), "parent.log")], tmp_path, 0.5)
    assert run.outcome == NO_TIME


def test_programs_that_break_their_word(programs: Path, tmp_path: Path) -> None:
    add(programs, "silent", "exit 0")
    writes = ToolCommand("silent", ("silent",), "silent.json", writes_file=True)
    (tmp_path / "silent.json").write_text("of an earlier run")
    assert next(run_commands([writes], tmp_path, 60.0)).outcome == "did not write silent.json"
    (programs / "broken").write_bytes(b"\x7fELF")
    (programs / "broken").chmod(0o755)
    broken = ToolCommand("broken", ("broken",), "broken.log")
    assert next(run_commands([broken], tmp_path, 60.0)).outcome.startswith("cannot be started (")


@pytest.mark.parametrize("options, said", [
    ({"tools": "llama-bench"}, "`--tools llama-bench` needs `--model`: the GGUF file"),
    ({"tools": "llama-bench", "model": "missing.gguf"}, "that llama-bench runs: missing.gguf is no file"),
    ({"tools": "nccl-tests"}, "`--tools nccl-tests` needs `--workers`"),
    ({"tools": "nccl-tests", "workers": 1}, "`--workers` must be an integer >= 2"),
    ({"tools": "vllm", "model": "m"}, "`--tools vllm` needs `--address`"),
    ({"tools": "vllm", "model": "m", "address": "file:///etc/passwd"}, "must begin with http:// or https://"),
    ({"tools": "llama-bench", "model": "-o"}, "must not be empty or begin with a dash"),
    ({"tools": "llama-bench", "model": "m", "quick": True}, "`--quick` is for steps that torch runs"),
    ({"tools": "llama-bench", "model": "m", "minutes": 0}, "`--minutes` must be > 0"),
    ({"model": "m"}, "`--model` is for public benchmarks: name them with `--tools`"),
])  # fmt: skip
def test_options_that_do_not_go_together(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=said):
        pl.measure(results=tmp_path / "results", **options) if "tools" in options else pl.measure(**options)
    assert not (tmp_path / "results").exists()


def test_the_commands_of_a_plan_have_files_of_their_own(tmp_path: Path) -> None:
    commands = plan(["llama-bench", "nccl-tests", "vllm"], ToolTarget("m", "http://localhost:1", 8), tmp_path)
    assert len({command.file for command in commands}) == len(commands)
    assert all(command.file not in command.words or command.writes_file for command in commands)

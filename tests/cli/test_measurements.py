"""``paleo-lite measurements`` as people use it.

Tests: reporting/measurements.py, cli/measurements.py.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from paleo_lite.cli import main
from result_samples import NCCL, SAMPLES, VLLM_SERVE


def run(*arguments: Any, width: int = 100) -> Result:
    words = [str(argument) for argument in arguments]
    return CliRunner(env={"COLUMNS": str(width)}).invoke(main, ["measurements", *words], prog_name="paleo-lite")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bench.json").write_text(VLLM_SERVE)
    (tmp_path / "nccl.log").write_text(NCCL)
    return tmp_path


def test_one_file_has_its_rows_guesses_and_missing_facts(folder: Path) -> None:
    text = run(folder / "bench.json").stdout
    for line in (
        "bench.json: vLLM bench serve",
        "mean concurrency",
        "H100 (a guess: `gpu` in the file)",
    ):
        assert line in text
    assert "note: The precision is not in the file: give `--precision bf16`" in text
    assert "The precision" not in run(folder / "bench.json", "--precision", "fp8").stdout


def test_json(folder: Path) -> None:
    answer = json.loads(run(folder, "--jobs", 1, "--format", "json").stdout)
    first, second = answer["files"]
    assert answer["failed"] == [] and (first["tool"], second["tool"]) == ("vLLM bench serve", "nccl-tests")
    (row,) = first["measurements"]
    assert row["kind"] == "server" and row["tpot_s"] == pytest.approx(0.02) and row["requests"] == 100
    assert set(first) == {"file", "format", "tool", "version", "measurements", "configuration", "guessed", "missing",
                          "doubts"}  # fmt: skip


def test_of_many_unreadable_files_some_are_named(folder: Path) -> None:
    for number in range(30):
        (folder / f"notes-{number}.txt").write_text("nothing of the kind\n")
    asked = run(folder, "--keep-going", "--jobs", 1)
    assert asked.exit_code == 1 and asked.stderr.count("not a result file") == 20
    assert asked.stderr.endswith("paleo-lite: 10 more could not be read: `--format json` lists them\n")
    listed = run(folder, "--keep-going", "--jobs", 1, "--format", "json")
    assert len(json.loads(listed.stdout)["failed"]) == 30


def test_csv_has_the_rows_of_all_files(folder: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(run(folder, "--jobs", 1, "--format", "csv").stdout)))
    assert [row["kind"] for row in rows] == ["server", "collective", "collective"]
    assert rows[2]["bus_bytes_per_s"] == "214750000000.0" and rows[0]["bus_bytes_per_s"] == ""


@pytest.mark.parametrize("width", [80, 200])
def test_many_files_have_a_summary(tmp_path: Path, width: int) -> None:
    for number, sample in enumerate(SAMPLES):
        (tmp_path / f"{number}.txt").write_text(sample.text, "utf-8")
    text = run(tmp_path, "--jobs", 1, width=width).stdout
    assert f"Measurements of {len(SAMPLES)} result files" in text
    assert all(sample.format.split("-")[0][:4].lower() in text.lower() for sample in SAMPLES[:2])
    assert max(map(len, text.split("\n\n")[1].splitlines())) <= width
    heading = text.split("\n\n")[1].splitlines()[1]
    assert "not recorded" in heading and heading.endswith("doubts")  # what the summary is for
    assert "note: The rows and the doubts of a file are shown where it is given alone" in text


@pytest.mark.parametrize("style", ["table", "markdown"])
def test_every_kind_of_row_is_shown(tmp_path: Path, style: str) -> None:
    for kind in {sample.kind for sample in SAMPLES}:
        sample = next(sample for sample in SAMPLES if sample.kind == kind)
        path = tmp_path / "file.txt"
        path.write_text(sample.text, "utf-8")
        result = run(path, "--format", style)
        assert result.exit_code == 0 and len(result.stdout) > 100


def test_failures_are_reported_and_the_others_read(folder: Path) -> None:
    (folder / "notes.txt").write_text("nothing")
    stopped = run(folder, "--jobs", 1)
    assert stopped.exit_code == 1 and "notes.txt: not a result file" in stopped.stderr
    went_on = run(folder, "--jobs", 1, "--keep-going")
    assert went_on.exit_code == 1 and "Measurements of 2 result files" in went_on.stdout


def test_rows_beyond_the_top_are_counted(folder: Path) -> None:
    assert "Collectives, the first 1 of 2" in run(folder / "nccl.log", "--top", 1).stdout


def test_rows_that_differ_in_their_format_differ_on_a_narrow_terminal(tmp_path: Path) -> None:
    kernels = next(sample.text for sample in SAMPLES if sample.format == "ggml-operators")
    product = next(line for line in kernels.splitlines(keepends=True) if "MUL_MAT" in line)
    path = tmp_path / "operators.txt"
    path.write_text(kernels + "".join(product.replace("bf16", name) for name in ("q4_0", "q8_0")))
    table, _, _ = run(path, width=80).stdout.partition("note:")
    formats = [line.split()[2] for line in table.splitlines() if line.startswith("MUL_MAT")]
    assert formats == ["bf16", "q4_0", "q8_0"]
    assert max(map(len, table.splitlines()[1:])) <= 80  # without the title, which names the file

"""Rows that several files have in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paleo_lite.result_files.detect import read_result, read_results
from paleo_lite.result_files.repeated import leave_out_repeated_rows
from result_samples import VLLM_SERVE


def write(path: Path, *ttft_ms: float, **changes: Any) -> Path:
    """Write a file of vLLM's benchmark with a run for each time to the first token."""
    runs = [json.loads(VLLM_SERVE) | {"mean_ttft_ms": time_ms, **changes} for time_ms in ttft_ms]
    path.write_text("".join(json.dumps(run) + "\n" for run in runs))
    return path


def test_copies_count_once(tmp_path: Path) -> None:
    """A copy under another name, and the same rows in a file with others; a label is not the measurement's."""
    first = write(tmp_path / "first.json", 100.5, 200.5)
    copy = tmp_path / "copy.json"
    copy.write_bytes(first.read_bytes())
    longer = write(tmp_path / "longer.json", 100.5, 300.5, 200.5, label="night")
    files = [read_result(path) for path in (first, copy, longer)]
    assert leave_out_repeated_rows(files) == [
        f"{copy}: all of its 2 rows are also in {first}, counted once",
        f"{longer}: 2 of its 3 rows are also in {first}, counted once",
    ]
    assert [[row.values["ttft_s"] for row in findings.readings] for findings in files] == [
        [0.1005, 0.2005], [], [0.3005],
    ]  # fmt: skip


def test_single_rows_may_be_alike_by_chance(tmp_path: Path) -> None:
    paths = write(tmp_path / "a.json", 1, 2, 3), write(tmp_path / "b.json", 3, 4, 5)
    files = [read_result(path) for path in paths]
    assert leave_out_repeated_rows(files) == []
    assert [len(findings.readings) for findings in files] == [3, 3]


def test_files_that_are_shown_are_doubted(tmp_path: Path) -> None:
    paths = write(tmp_path / "a.json", 1), write(tmp_path / "b.json", 1)
    shown = read_results(paths)
    said = f"its only row is also in {paths[0]}: they are one measurement"
    assert [said in findings.doubts for findings in shown.files] == [False, True]
    assert [len(findings.readings) for findings in shown.files] == [1, 1]

"""JSON as tools write it, and as broken disks and killed processes leave it."""

from __future__ import annotations

from pathlib import Path

import pytest

from paleo_lite.errors import BadFile
from paleo_lite.result_files.detect import read_result
from paleo_lite.result_files.findings import Findings
from paleo_lite.result_files.json_text import read_documents


def documents(text: str, folder: Path) -> tuple[list[dict[str, object]], list[str]]:
    path = folder / "file.json"
    path.write_text(text, "utf-8")
    findings = Findings(path, "", "")
    return list(read_documents(path, findings)), findings.doubts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1}', [{"a": 1}]),
        ('\ufeff[{"a": 1}, {"a": 2}]', [{"a": 1}, {"a": 2}]),
        ('{"a": 1}\n{"a": 2}\n', [{"a": 1}, {"a": 2}]),
        ('{\n"a": 1\n}\n{\n"a": 2\n}', [{"a": 1}, {"a": 2}]),
        ('{"a": [1, 2,], "b": "x,}",}', [{"a": [1, 2], "b": "x,}"}]),
        ('{"a": Infinity}', [{"a": float("inf")}]),
        ('WARNING: [rank 0] starting\n{"a": 1}', [{"a": 1}]),
    ],
)
def test_variants(text: str, expected: list[object], tmp_path: Path) -> None:
    assert documents(text, tmp_path) == (expected, [])


def test_a_cut_end_is_read_and_said(tmp_path: Path) -> None:
    found, doubts = documents('{"a": 1, "b": {"c": [1, 2], "d": "half of a te', tmp_path)
    assert found == [{"a": 1, "b": {"c": [1, 2]}}] and "damaged" in doubts[0]


def test_a_cut_last_line_is_said(tmp_path: Path) -> None:
    found, doubts = documents('{"a": 1}\n{"a": 2}\n{"a": 3', tmp_path)
    assert found == [{"a": 1}, {"a": 2}] and doubts == ["1 line could not be read as JSON (a cut file?)"]


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text('{"load_summary": 1, "successes": ' + '{"a":' * 100_000)
    with pytest.raises(BadFile, match="nested too deeply"):
        read_result(path)


def test_long_lines_of_objects(tmp_path: Path) -> None:
    line = '{"itls": [' + ", ".join(["0.01"] * 300_000) + "]}"
    found, doubts = documents(f'{{"a": 1}}\n{{"a": 2}}\n{line}\n', tmp_path)
    assert doubts == [] and len(found) == 3 and len(found[2]["itls"]) == 300_000  # type: ignore[arg-type]


def test_a_key_with_two_values_is_said(tmp_path: Path) -> None:
    """JSON leaves open which of them holds; the last one is taken, and equal ones say the same."""
    found, doubts = documents('{"a": 1, "a": 2, "b": {"c": 3, "c": 3}}\n{"a": 1}\n', tmp_path)
    assert found[0] == {"a": 2, "b": {"c": 3}} and doubts == ["a stands twice in an object: the last value is taken"]

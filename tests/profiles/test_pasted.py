"""Tables of profilers pasted into Markdown and HTML; the rows are of published issues."""

from __future__ import annotations

import pytest

from paleo_lite.profiles.detect import open_profile
from paleo_lite.profiles.pasted import as_printed, is_pasted

MARKDOWN = """\
My training is slow:

Name | Self CPU | CPU total | Self CUDA | CUDA total | # of Calls
-- | -- | -- | -- | -- | --
aten::convolution_backward | 5.875s | 8.119s | 75.444s | 75.752s | 4890
`aten::copy_` | 276.372ms | 940.697ms | 1.949s | 1.949s | 48548

Any ideas?
"""
PIPES = MARKDOWN.replace("\n-- |", "\n| :-- |").replace("\naten", "\n| aten").replace("\nName", "\n| Name")
HTML = """\
<table><thead><tr><th>Name</th><th>Self CPU</th><th>CPU total</th><th>Self CUDA</th><th>CUDA total</th>
<th># of Calls</th></tr></thead><tbody>
<tr><td>aten::convolution_backward</td><td>5.875s</td><td>8.119s</td><td>75.444s</td><td>75.752s</td><td>4890</td></tr>
<tr><td>aten::copy_</td><td>276.372ms</td><td>940.697ms</td><td>1.949s</td><td>1.949s</td><td>48548</td></tr>
</tbody></table>
"""
NSYS = """\
| Time (%) | Total Time (ns) | Instances | Avg (ns) | Name |
|---:|---:|---:|---:|:---|
| 62.5 | 2 500 | 5 | 500,0 | void gemm<float, 128>(A \\| B) |
| 37,5 | 1 500 | 1 | 1 500,0 | [CUDA memset] |
"""


@pytest.mark.parametrize("text", [MARKDOWN, PIPES, HTML])
def test_a_pasted_table_of_pytorch_is_read_with_its_device_times(tmp_path, text):
    path = tmp_path / "table.md"
    path.write_text(text)
    table = open_profile(path).read().table.to_pylist()
    on_device = {row["kernel"]: row["duration_ns"] for row in table if row["category"] != "cpu"}
    assert on_device == {"aten::convolution_backward": 75.444e9, "aten::copy_": 1.949e9}
    assert {row["kernel"]: row["calls"] for row in table} == {"aten::convolution_backward": 4890, "aten::copy_": 48548}


def test_a_pasted_report_of_nsys_is_read(tmp_path):
    path = tmp_path / "report.md"
    path.write_text(NSYS)
    rows = open_profile(path).read().table.to_pylist()
    assert [(row["kernel"], row["duration_ns"], row["calls"]) for row in rows] == [
        ("void gemm<float, 128>(A | B)", 2500.0, 5),
        ("[CUDA memset]", 1500.0, 1),
    ]


def test_lines_outside_of_tables_stay_as_they_are():
    lines = list(enumerate(["a | b", "text", "x | y | z", "--- | --- | ---", "1 | 2 |", "end"], 1))
    printed = list(as_printed(lines))
    assert printed[:2] == lines[:2] and printed[-1] == lines[-1]
    assert next(line.split() for number, line in printed if number == 5) == ["1", "2"]
    assert not is_pasted(["a | b", "-----"])

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


GRID = """\
Processing [first.sqlite] with [reports/cuda_gpu_kern_sum.py]...

 ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):

+----------+-----------------+-----------+----------+------------------------------------------+
| Time (%) | Total Time (ns) | Instances | Avg (ns) |                   Name                   |
+----------+-----------------+-----------+----------+------------------------------------------+
|     76.9 |     53351148261 |    671360 |  79467.3 | fmhaSm100fKernel_QkvBfloat16OBfloat16H12 |
|      1.3 |       893758039 |      9016 |  99130.2 | void <unnamed>::multimem_all_reduce<T|1> |
+----------+-----------------+-----------+----------+------------------------------------------+
"""
BOXES = GRID.translate(str.maketrans("+-", "┼─")).replace("| ", "│ ").replace(" |", " │")


@pytest.mark.parametrize("text", [GRID, BOXES], ids=["ascii", "boxes"])
def test_a_report_with_lines_around_its_cells_is_read(tmp_path, text):
    """As ``nsys stats --format table`` prints it; the rows are of a published profile of vLLM on B200."""
    path = tmp_path / "report.txt"
    path.write_text(text)
    rows = open_profile(path).read().table.to_pylist()
    assert [(row["category"], row["duration_ns"], row["calls"]) for row in rows] == [
        ("kernel", 53351148261.0, 671360),
        ("communication", 893758039.0, 9016),
    ]
    assert rows[1]["kernel"] == "void <unnamed>::multimem_all_reduce<T|1>"


def test_totals_that_became_a_row_end_the_table(tmp_path):
    """A lecture's notes on torch.square; its last row gives 962 us on the device."""
    path = tmp_path / "lecture.md"
    path.write_text(
        "| Name | Self CPU | CPU total | Self CUDA | CUDA total | # of Calls |\n"
        "| ---- | -------- | --------- | --------- | ---------- | ---------- |\n"
        "| aten::square | 15.000us | 85.000us | 15.000us | 962.000us | 1 |\n"
        "| aten::pow | 51.000us | 68.000us | 941.000us | 947.000us | 1 |\n"
        "| aten::result_type | 1.000us | 1.000us | 4.000us | 4.000us | 1 |\n"
        "| aten::to | 0.000us | 0.000us | 2.000us | 2.000us | 1 |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        "| Self CPU time total: <br>Self CUDA time total: | 922.000us<br>962.000us | | | | |\n"
    )
    rows = open_profile(path).read().table.to_pylist()
    assert sum(row["duration_ns"] for row in rows if row["category"] == "kernel") == 962e3


def test_lines_outside_of_tables_stay_as_they_are():
    lines = list(enumerate(["a | b", "text", "x | y | z", "--- | --- | ---", "1 | 2 |", "end"], 1))
    printed = list(as_printed(lines))
    assert printed[:2] == lines[:2] and printed[-1] == lines[-1]
    assert next(line.split() for number, line in printed if number == 5) == ["1", "2"]
    assert not is_pasted(["a | b", "-----"])

"""Device times as Intel's tracers print them: the example of PTI-GPU's README, and quoted names of unitrace."""

from __future__ import annotations

import pytest

from paleo_lite.errors import BadProfile
from paleo_lite.profiles.detect import open_profile

HEADING = "      Kernel, Calls, Time (ns), Time (%), Average (ns), Min (ns), Max (ns)\n"
QUOTED = f"""step 1 of 10
=== API Timing Summary ===

               Function, Calls, Time (ns), Time (%), Average (ns), Min (ns), Max (ns)
 zeCommandListHostSynchronize, 3, 900, 100, 300, 200, 400

=== Device Timing Summary ===

    Total Execution Time (ns): 1000000
    Total Device Time for L0 backend (ns): 100000

== L0 Backend ==

{HEADING} "gemm_kernel", 2, 90000, 90, 45000, 40000, 50000
 "at::native::xpu::VectorizedElementwiseKernel<4, at::native::xpu::PowImpl<float> >", 1, 8000, 8, 8000, 8000, 8000
 "zeCommandListAppendMemoryCopy(D2M)[4096]", 2, 2000, 2, 1000, 900, 1100

=== Kernel Properties ===

     Kernel, Compiled, SIMD, Number of Arguments, SLM Per Work Group, Private Memory Per Thread
 "gemm_kernel", 1, 16, 3, 4096, 0
"""


def read(tmp_path, text: str) -> list[dict]:
    path = tmp_path / "unitrace.txt"
    path.write_text(text)
    profile = open_profile(path)
    assert profile.format == "unitrace" and not profile.has_starts
    return profile.read().table.to_pylist()


def test_the_published_example(tmp_path, samples):
    rows = read(tmp_path, samples["unitrace.UnitraceText"].decode())
    assert [(row["category"], row["calls"], row["duration_ns"]) for row in rows] == [
        ("kernel", 4, 172_104_499.0),
        ("memcpy", 8, 2_934_831.0),
        ("memcpy", 4, 2_099_164.0),
        ("api", 8, 9_328.0),
    ]
    assert sum(row["duration_ns"] for row in rows) == 177_147_822  # the total above the table


def test_names_with_commas_and_copies_with_bytes_between_other_summaries(tmp_path):
    rows = read(tmp_path, QUOTED)
    assert [row["kernel"] for row in rows] == [
        "gemm_kernel",
        "at::native::xpu::VectorizedElementwiseKernel<4, at::native::xpu::PowImpl<float> >",
        "zeCommandListAppendMemoryCopy(D2M)[4096]",
    ]
    assert sum(row["duration_ns"] for row in rows) == 100_000
    assert rows[2]["bytes"] == 2 * 4096


@pytest.mark.parametrize(
    ("rows", "problem"),
    [("", "no row"), ('"gemm", 2, 90000, 90\n', "line 3: '\"gemm\", 2, 90000, 90' is not a kernel")],
)
def test_a_cut_table_gets_one_sentence(tmp_path, rows, problem):
    with pytest.raises(BadProfile, match=problem):
        read(tmp_path, f"=== Device Timing Summary ===\n{HEADING}{rows}")

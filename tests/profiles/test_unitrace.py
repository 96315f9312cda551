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


def read_trace(tmp_path, text: str) -> list[dict]:
    path = tmp_path / "trace.json"
    path.write_text(text)
    profile = open_profile(path)
    assert profile.format == "unitrace-trace" and profile.has_starts
    return profile.read().table.to_pylist()


def test_a_chrome_trace_has_kernels_copies_and_calls_of_the_host(tmp_path, samples):
    kernel, copy, call = read_trace(tmp_path, samples["unitrace.UnitraceTrace"].decode())
    assert (kernel["category"], kernel["kernel"], kernel["grid"], kernel["block"]) == (
        "kernel",
        "gemm_kernel",
        "128,1,1",
        "16,2,8",
    )
    assert (kernel["start_ns"], kernel["duration_ns"]) == (1_695_711_406_516_161_000, 600_000.0)
    assert (kernel["launch_ns"], copy["launch_ns"]) == (1_695_711_406_515_990_000, None)
    assert (copy["category"], copy["bytes"], copy["device"], copy["stream"]) == ("memcpy", 4096.0, 0, 1)
    assert (call["category"], call["thread"], call["device"]) == ("api", 77, None)


def test_tiles_of_a_device_run_at_the_same_time(tmp_path, samples):
    first, *_ = samples["unitrace.UnitraceTrace"].decode().splitlines()[1:]
    tiles = ",".join(first.removesuffix(",").replace("gemm_kernel", f"Tile #{tile}: gemm_kernel") for tile in (0, 1))
    rows = read_trace(tmp_path, f'{{ "traceEvents":[{tiles}]}}')
    assert [(row["kernel"], row["device"]) for row in rows] == [("gemm_kernel", 0), ("gemm_kernel", 1)]


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ('{"ph": "M", "name": "process_name", "args": {"name": "HOST<node>"}}', "no kernel or call"),
        ('{"ph": "X", "name": "gemm", "cat": "gpu_op", "ts": -4, "dur": 1}', "'gemm' has no start and duration in us"),
        ('{"ph": "X", "name": "gemm", "cat": "gpu_op", "ts": "NaN", "dur": 1}', "'gemm' has no start and duration in"),
    ],
)
def test_a_damaged_trace_gets_one_sentence(tmp_path, events, problem):
    with pytest.raises(BadProfile, match=problem):
        read_trace(tmp_path, f'{{ "traceEvents":[{events}]}}')


@pytest.mark.parametrize(
    ("columns", "row", "bytes_moved"),
    [
        ("Calls, SIMD, Transferred (bytes),", "12, 0, 50331648,", 50_331_648.0),
        ("Calls, SIMD,", "12, 32,", None),
        ("Calls,", "12,", None),
    ],
)
def test_older_tracers_have_widths_and_bytes_in_columns(tmp_path, columns, row, bytes_moved):
    """As the README of PTI-GPU's ze_tracer and of its samples show it."""
    text = (
        "=== Device Timing Results: ===\n\nTotal Execution Time (ns): 376807360\n\n== GPU Backend: ==\n\n"
        f"  Kernel, {columns} Time (ns),  Time (%),  Average (ns),  Min (ns),  Max (ns)\n"
        f"  zeCommandListAppendMemoryCopy, {row} 4639036, 2.60, 386586, 271742, 553610\n"
    )
    (found,) = read(tmp_path, text)
    assert (found["calls"], found["duration_ns"], found["bytes"]) == (12, 4_639_036.0, bytes_moved)
    if bytes_moved is not None:
        with pytest.raises(BadProfile, match="is not a kernel with calls"):
            read(tmp_path, text.replace(row, "12,"))

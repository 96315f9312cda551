"""``nsys stats`` CSV. No real file is available; the files are built from the columns that the vendor documents.

Headings as the scripts of Nsight Systems 2023 to 2025 print them (``nsys stats --help-reports``), and for the old names
those of 2021; the rows are made up.
"""

from __future__ import annotations

import gzip

import pyarrow as pa
import pytest
from hypothesis import given

from paleo_lite.errors import BadProfile
from paleo_lite.profiles.detect import open_profile, read_head
from paleo_lite.profiles.nsys_stats import NsysStatsCsv
from strategies import ACCIDENTS, damaged

SUM = "Time (%),Total Time (ns),{},Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),{}\n"
KERN_SUM = SUM.format("Instances", "Name") + (
    '88.7,10650240,24,443760.0,443520.0,441120,449280,2048.5,"void gemm<float, (int)2>(float *, int)"\n'
    "11.3,1357824,12,113152.0,113024.0,112640,114688,301.2,ncclDevKernel_AllReduce_Sum_f32_RING_LL\n"
)
MEM_TIME_SUM = SUM.format("Count", "Operation") + (
    "71.4,2411520,48,50240.0,50176.0,49920,51200,320.1,[CUDA memcpy Host-to-Device]\n"
    "28.6,965632,24,40234.6,40192.0,39936,41216,281.0,[CUDA memset]\n"
)
MEM_SIZE_SUM = (
    "Total (MB),Count,Avg (MB),Med (MB),Min (MB),Max (MB),StdDev (MB),Operation\n"
    "12.583,48,0.262,0.262,0.262,0.262,0.000,[CUDA memcpy Host-to-Device]\n"
)
API_SUM = SUM.format("Num Calls", "Name") + (
    "99.0,494092651,3,164697550.3,3870.0,2020,494086761,285259424.2,cudaMalloc\n"
    "1.0,3188157,36,88559.9,995.0,930,3175897,916480.8,cuLaunchKernelEx\n"
)
OSRT_SUM = SUM.format("Num Calls", "Name") + "67.3,335987431,2,167993715.5,1.0,2971823,333015608,2.0,sem_wait\n"
NVTX_SUM = SUM.format("Instances", "Style,Range") + (
    "80.0,8000,8,1000.0,1000.0,900,1100,0.0,PushPop,:forward\n20.0,2000,2,1000.0,1000.0,900,1100,0.0,StartEnd,load\n"
)
GPU_TRACE = (
    "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),"
    "Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name\n"
    '1719000000,41280,1201,512,1,2,256,1,1,104,0.048,0.033,,,,,"NVIDIA RTX A6000 (1)",1,,7,"void k<a, b>(int)"\n'
    '1719150000,2560,1212,,,,,,,,,,0.004,1562.500,Device,Pinned,"NVIDIA RTX A6000 (0)",1,,13,[CUDA memcpy DtoH]\n'
    '1719170000,1280,1215,,,,,,,,,,0.262,204.8,Device,,"NVIDIA RTX A6000 (0)",1,,7,[CUDA memset]\n'
)
API_TRACE = (
    "Start (ns),Duration (ns),Name,Result,CorrID,Pid,Tid,T-Pri,Thread Name\n"
    "500,300,cudaLaunchKernel,0,101,4242,4243,20,python3\n"
)
OLD_KERN_SUM = (
    "Time(%),Total Time (ns),Instances,Average,Minimum,Maximum,Name\n"
    "98.0,29401,6,4900.2,4800,5000,volta_sgemm_128x64_nn\n"
)


def printed(*reports: str) -> str:
    """What the command prints: a line before each report, and empty ones."""
    return "".join(
        f"Processing [run.sqlite] with [/reports/report_{index}.py]... \n\n ** Report ({index}):\n\n{report}\n\n"
        for index, report in enumerate(reports)
    )


def read(tmp_path, text: str | bytes) -> list[dict]:
    path = tmp_path / "stats.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    assert NsysStatsCsv().recognises(path, read_head(path))
    rows = pa.Table.from_batches(list(NsysStatsCsv().batches(path, None))).to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def test_default_reports_as_the_command_prints_them(tmp_path):
    text = "Generating SQLite file run.sqlite from run.nsys-rep\n" + printed(
        NVTX_SUM, OSRT_SUM, API_SUM, KERN_SUM, MEM_TIME_SUM, MEM_SIZE_SUM
    )
    assert read(tmp_path, text) == [
        {"category": "marker", "kernel": ":forward", "duration_ns": 8000.0, "calls": 8},
        {"category": "marker", "kernel": "load", "duration_ns": 2000.0, "calls": 2},
        {"category": "api", "kernel": "cudaMalloc", "duration_ns": 494092651.0, "calls": 3},
        {"category": "api", "kernel": "cuLaunchKernelEx", "duration_ns": 3188157.0, "calls": 36},
        {
            "category": "kernel",
            "kernel": "void gemm<float, (int)2>(float *, int)",
            "duration_ns": 10650240.0,
            "calls": 24,
        },
        {
            "category": "communication",
            "kernel": "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
            "duration_ns": 1357824.0,
            "calls": 12,
        },
        {"category": "memcpy", "kernel": "[CUDA memcpy Host-to-Device]", "duration_ns": 2411520.0, "calls": 48},
        {"category": "memset", "kernel": "[CUDA memset]", "duration_ns": 965632.0, "calls": 24},
    ]


def test_gpu_trace(tmp_path):
    kernel, copy, fill = read(tmp_path, gzip.compress(GPU_TRACE.encode()))
    assert kernel == {
        "category": "kernel", "kernel": "void k<a, b>(int)", "start_ns": 1719000000, "duration_ns": 41280.0, "calls": 1,
        "grid": "512,1,2", "block": "256,1,1", "stream": 7, "device": 1,
    }  # fmt: skip
    assert (copy["category"], copy["bytes"], copy["stream"], copy["device"]) == ("memcpy", 4000.0, 13, 0)
    assert (fill["category"], fill["bytes"]) == ("memset", 262000.0)


def test_api_trace(tmp_path):
    assert read(tmp_path, API_TRACE) == [
        {
            "category": "api",
            "kernel": "cudaLaunchKernel",
            "start_ns": 500,
            "duration_ns": 300.0,
            "calls": 1,
            "thread": 4243,
        }
    ]


def test_older_names_and_other_units(tmp_path):
    assert read(tmp_path, OLD_KERN_SUM) == [
        {"category": "kernel", "kernel": "volta_sgemm_128x64_nn", "duration_ns": 29401.0, "calls": 6}
    ]
    in_ms = KERN_SUM.replace("(ns)", "(ms)").replace("10650240", "10.650")
    assert read(tmp_path, in_ms)[0]["duration_ns"] == 10650000.0
    grid = KERN_SUM.replace("StdDev (ns),", "StdDev (ns),GridXYZ,BlockXYZ,").replace(
        "2048.5,", "2048.5,  512    1    1, 256 1 1,"
    )
    row = read(tmp_path, grid.splitlines()[0] + "\n" + grid.splitlines()[1])[0]
    assert (row["grid"], row["block"]) == ("512,1,1", "256,1,1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            KERN_SUM.replace("10650240", "-10650240"),
            r"line 2: Total Time is '-10650240' in ns, expected a number from 0",
        ),
        (KERN_SUM.replace("10650240", "nan"), "line 2: Total Time is 'nan'"),
        (KERN_SUM.replace("1357824", "1357824x"), "line 3: Total Time"),
        (KERN_SUM.replace("(ns)", "(ms)").replace("10650240", "1e308"), "line 2: Total Time is '1e308' in ms"),
        (GPU_TRACE.replace("1719000000", "1e19"), "line 2: Start is '1e19' in ns, expected a number from 0 to 2"),
        (GPU_TRACE.replace("0.262", "1e308"), "line 4: Bytes is '1e308' in MB"),
        (KERN_SUM.replace(",24,", ",24.5,"), "line 2: Instances is '24.5'"),
        (KERN_SUM[:-60], r"line 3: \d columns, expected 9"),
        (KERN_SUM.replace("Total Time (ns)", "Total Time (weeks)"), "in weeks"),
        (KERN_SUM.replace("Avg (ns)", "Med (ns)"), "line 1: column 'Med' appears twice"),
        (KERN_SUM.replace(",Name", ",Title"), "line 1: a heading without a column Name or"),
        # A stray mark makes another column of it, while the line still begins as a heading does.
        (KERN_SUM.replace("Instances", 'Instances"'), "line 1: a heading without a column Instances or Num Calls"),
        (KERN_SUM.replace("Total Time (ns)", 'Total Time (ns)"'), "line 1: a heading without a column Total Time"),
        (GPU_TRACE.replace("Duration (ns)", 'Duration (ns)"'), "line 1: a heading without a column Duration"),
        (KERN_SUM + "\n" + GPU_TRACE, "line 6: a second report with kernel rows, after the one at line 1"),
        (KERN_SUM.replace('int)"', "int)"), "line 2: not CSV"),
    ],
)
def test_the_error_of_damaged_reports_names_the_damage(tmp_path, text, message):
    with pytest.raises(BadProfile, match=message):
        read(tmp_path, text)


def test_a_heading_with_another_delimiter_is_not_recognised(tmp_path):
    path = tmp_path / "stats.csv"
    path.write_text(KERN_SUM.replace(",", ";"))
    assert not NsysStatsCsv().recognises(path, read_head(path))
    with pytest.raises(BadProfile, match="no heading"):
        list(NsysStatsCsv().batches(path, None))


@given(ACCIDENTS)
def test_damaged_reports_give_a_table_or_our_error(tmp_path, table_or_our_error, happened):
    path = tmp_path / "stats.csv"
    path.write_bytes(damaged(printed(API_SUM, GPU_TRACE, NVTX_SUM).encode(), happened))
    table_or_our_error(path, NsysStatsCsv())


def test_indented_rows_are_rows(tmp_path):
    """Not skipped as text between reports."""
    indented = KERN_SUM.replace("88.7,", " 88.7,").replace("11.3,", " 11.3,")
    assert [row["calls"] for row in read(tmp_path, indented)] == [24, 12]


def test_sizes_in_single_bytes(tmp_path):
    """Some versions write the sizes of a trace in bytes, without a prefix."""
    text = GPU_TRACE.replace("Bytes (MB)", "Bytes (byte)").replace(",0.004,", ",4096,").replace(",0.262,", ",262144,")
    assert [row.get("bytes") for row in read(tmp_path, text)] == [None, 4096, 262144]


def test_columns_that_somebody_left_out_are_skipped(tmp_path):
    """A table of a blog post, with dots in place of columns."""
    path = tmp_path / "post.md"
    path.write_text(
        " ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):\n"
        " Time (%)  Total Time (ns)  Instances  Avg (ns)   Med (ns)   ...  Name\n"
        " --------  ---------------  ---------  ---------  ---------  ...  --------------------------\n"
        "    100.0        704721548        320  2202254.8  2201780.0  ...  ampere_bf16_s16816gemm_bf16\n"
        "      0.0           151553          2    75776.5    75776.5  ...  distribution_elementwise\n"
    )
    rows = open_profile(path).read().table.to_pylist()
    assert [(row["kernel"], row["duration_ns"], row["calls"]) for row in rows] == [
        ("ampere_bf16_s16816gemm_bf16", 704721548.0, 320),
        ("distribution_elementwise", 151553.0, 2),
    ]

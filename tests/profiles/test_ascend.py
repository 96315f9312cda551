"""CSV of Huawei's profilers, with columns and rows as published; the start has a tab behind it, as torch_npu writes."""

from __future__ import annotations

import pytest

import paleo_lite as pl
from paleo_lite.errors import BadProfile
from paleo_lite.profiles.detect import open_profile
from paleo_lite.profiles.names import classify

DETAILS = """\
Step Id,Device_id,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us),Input Shapes
2,0,1,7,aclnnMatmul_MatMulCommon_MatMulV2,MatMulV2,dynamic,AI_CORE,1774670741777000.027\t,420.50,"2,4096;4096,64"
2,0,2,7,aclnnMul_MulAiCore_Mul,Mul,dynamic,AI_VECTOR_CORE,1774670741777420.5\t,18.32,N/A
2,0,3,9,hcom_allReduce__123_0,hcom_allReduce_,N/A,COMMUNICATION,1774670741777500.0\t,10.0,N/A
"""
SUMMARY = """\
Device_id,Op Name,OP Type,Task Type,Task Start Time(us),Task Duration(us),Task Wait Time(us),Block Num
0,official_kernel_a,MatMul,AI_CORE,0.0,12.5,0.1,1
0,MemcpyAsync,N/A,MEMCPY_ASYNC,20.0,6.0,0,0
"""
STATISTIC = """\
Device_id,OP Type,Core Type,Count,Total Time(us),Min Time(us),Avg Time(us),Max Time(us),Ratio(%)
0,Cast,AI_VECTOR_CORE,240,23077.4,1.18,96.155,2708.32,10.561
0,BatchMatMulV3,AI_CORE,45,19941.5,417.24,443.144,483.54,9.126
"""


def read(tmp_path, text: str) -> list[dict]:
    path = tmp_path / "profile.csv"
    path.write_text(text)
    profile = open_profile(path)
    assert profile.format == "ascend"
    return profile.read().table.to_pylist()


def test_kernels_begin_to_the_nanosecond(tmp_path):
    rows = read(tmp_path, DETAILS)
    assert [row["start_ns"] for row in rows] == [1774670741777000027, 1774670741777420500, 1774670741777500000]
    assert [row["duration_ns"] for row in rows] == [420500.0, 18320.0, 10000.0]
    assert [row["category"] for row in rows] == ["kernel", "kernel", "communication"]
    assert [row["op"] for row in rows] == ["MatMulV2", "Mul", "hcom_allReduce_"]
    assert {row["step"] for row in rows} == {"2"} and [row["stream"] for row in rows] == [7, 7, 9]


def test_a_summary_of_operators_is_read_by_its_own_names(tmp_path):
    rows = read(tmp_path, SUMMARY)
    assert [(row["kernel"], row["category"], row["duration_ns"]) for row in rows] == [
        ("official_kernel_a", "kernel", 12500.0),
        ("MemcpyAsync", "memcpy", 6000.0),
    ]


def test_a_statistic_has_the_calls_of_each_type(tmp_path):
    rows = read(tmp_path, STATISTIC)
    assert [(row["kernel"], row["calls"], row["duration_ns"]) for row in rows] == [
        ("Cast", 240, 23077400.0),
        ("BatchMatMulV3", 45, 19941500.0),
    ]


OPERATORS = """\
Name,Input Shapes,Call Stack,Host Self Duration(us),Host Total Duration(us),Device Self Duration(us),\
Device Total Duration(us),Device Self Duration With AICore(us),Device Total Duration With AICore(us)
vllm::decode_step,,,40,100,0,1200,0,1200
aten::mm,"2,4096;4096,64","model.py(7): forward;
main.py(3): <module>",30.5,50,1110,1110,1110,1110
aten::rms_norm,"2,4096",,30,50,90,90,0,90
"""
"""Columns as torch_npu's `OperatorViewParser` writes them, with a call stack of two lines."""


def test_operators_have_a_row_of_the_host_and_one_of_the_device_if_they_launched_kernels(tmp_path):
    rows = [(row["category"], row["op"], row["duration_ns"], row["params"]) for row in read(tmp_path, OPERATORS)]
    assert rows == [
        ("cpu", "vllm::decode_step", 40_000.0, None),
        ("cpu", "aten::mm", 30_500.0, "2,4096;4096,64"),
        ("kernel", "aten::mm", 1_110_000.0, "2,4096;4096,64"),
        ("cpu", "aten::rms_norm", 30_000.0, "2,4096"),
        ("kernel", "aten::rms_norm", 90_000.0, "2,4096"),
    ]
    report = pl.kernels(tmp_path / "profile.csv")
    assert report.time_s == pytest.approx(1200e-6)  # the total of the step that launched both


def test_a_call_stack_without_an_end_is_an_error(tmp_path):
    with pytest.raises(BadProfile, match="line 3: a cell in quotation marks does not end"):
        read(tmp_path, OPERATORS.replace('<module>"', "<module>"))


def test_a_kernel_without_a_duration_is_left_out_and_said(tmp_path):
    """A row of an operator that was not timed has N/A; the others are read."""
    path = tmp_path / "kernel_details.csv"
    path.write_text(DETAILS.replace("18.32", "N/A"))
    durations = open_profile(path).read().table["duration_ns"].to_pylist()
    assert durations == [420500.0, None, 10000.0]
    report = pl.kernels(path)
    assert {row.name for row in report.kernels} == {"aclnnMatmul_MatMulCommon_MatMulV2", "hcom_allReduce__123_0"}
    assert "1 row without a duration left out" in report.notes


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("420.50", "-1", r"line 2: Duration\(us\) is '-1', expected a time in us"),
        (",18.32,", ",,", "line 3: no duration"),
        (",7,aclnnMatmul", ",seven,aclnnMatmul", "line 2: Stream ID is 'seven', expected a whole number"),
    ],
)
def test_a_bad_cell_names_its_line(tmp_path, old, new, message):
    with pytest.raises(BadProfile, match=message):
        read(tmp_path, DETAILS.replace(old, new, 1))


@pytest.mark.parametrize(
    ("operator", "inputs", "outputs", "flops"),
    [
        ("MatMulV2", "2,4096;4096,64", "2,64", 2 * 2 * 4096 * 64),
        ("MatMulV3", "64,4096;2,64;2", "4096,2", 2 * 4096 * 64 * 2),  # both transposed, with a bias
        ("BatchMatMulV3", "8,128,64;8,64,256", "8,128,256", 2 * 8 * 128 * 64 * 256),
        ("BatchMatMulV2", "2,8,128,64;2,8,64,256", "2,8,128,256", 2 * 16 * 128 * 64 * 256),
        ("BatchMatMulV2", "8,128,64;64,256", "8,128,256", 2 * 8 * 128 * 64 * 256),  # one matrix for all
        ("MatMul", "4,2,16,16;4,4,16,16", "4,2,16,16", 2 * 32 * 64 * 64),  # in blocks: 32 x 64 by 64 x 64
        ("MatMulV2", "2,4096;4096,64", "N/A", None),
        ("MatMulV2", "2,4096;x", "2,64", None),
        ("Mul", "2,4096;2,4096", "2,4096", None),
    ],
)
def test_products_have_the_flops_of_their_shapes(tmp_path, operator, inputs, outputs, flops):
    text = (
        "Step Id,Device_id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Input Shapes,Output Shapes\n"
        f'2,0,kernel,{operator},AI_CORE,0.0\t,10.0,"""{inputs}""","""{outputs}"""\n'
    )
    (row,) = read(tmp_path, text)
    assert row["flops"] == (None if flops is None else pytest.approx(flops))
    assert row["params"] == inputs


def test_classes_follow_from_the_types_of_operators() -> None:
    """Names of kernels and types of operators as torch_npu writes them (MindStudio's profile data file reference)."""
    classes = {
        "aclnnMul_MulAiCore_Mul": "elementwise", "RealDiv": "elementwise", "Muls": "elementwise", "Cast": "elementwise",
        "aclnnMatmul_MatMulCommon_MatMulV2": "gemm", "BatchMatMulV3": "gemm", "FlashAttentionScore": "attention",
        "SoftmaxV2": "softmax", "RmsNorm": "normalization", "Transpose": "layout", "ReduceSum": "reduction",
        "MulticastGather": "indexing",
    }  # fmt: skip
    assert {name: classify(name).label for name in classes} == classes


def test_tasks_that_wait_compute_nothing(tmp_path):
    """Columns of `task_time_*.csv` as msprof's reference lists them."""
    rows = read(
        tmp_path,
        "Device_id,kernel_name,kernel_type,stream_id,task_id,task_time(us),task_start(us),task_stop(us)\n"
        "0,MatMulV2,AI_CORE,2,1,8.5,1750000000000010.027,1750000000000018.527\n"
        "0,copy,MEMCPY_ASYNC,4,94,5,1750000000000620.0,1750000000000625.0\n"
        "0,wait,EVENT_WAIT,3,91,4,1750000000000011.0,1750000000000015.0\n",
    )
    assert [(row["category"], row["stream"], row["duration_ns"]) for row in rows] == [
        ("kernel", 2, 8500.0), ("memcpy", 4, 5000.0), ("api", 3, 4000.0),
    ]  # fmt: skip
    assert rows[0]["start_ns"] == 1750000000000010027


def read_trace(tmp_path, text: str) -> list[dict]:
    path = tmp_path / "trace_view.json"
    path.write_text(text)
    profile = open_profile(path)
    assert profile.format == "ascend-trace"
    return profile.read().table.to_pylist()


def test_a_trace_has_the_tasks_of_the_device_once(tmp_path, samples):
    rows = read_trace(tmp_path, samples["ascend.AscendTrace"].decode())
    assert [(row["kernel"], row["category"], row["duration_ns"]) for row in rows] == [
        ("aten::mm", "cpu", 50_000.0), ("AscendCL@aclopExecuteV2", "api", 10_000.0), ("MatMulV2", "kernel", 20_500.0),
        ("EVENT_WAIT", "api", 19_500.0), ("hcom_allReduce__1", "communication", 30_000.0),
    ]  # fmt: skip
    assert [(row["device"], row["stream"]) for row in rows[2:]] == [(0, 0), (0, 1), (0, 1)]
    assert rows[2]["start_ns"] == 1704161511420306491
    assert [row["launch_ns"] for row in rows] == [None, None, 1704161511420256000, None, None]


def test_a_trace_whose_end_is_missing_says_so(tmp_path, samples):
    """The profiler that ended early wrote no closing bracket, which the Trace Event Format makes optional."""
    text = samples["ascend.AscendTrace"].decode().rstrip()
    whole = read_trace(tmp_path, text)
    for unclosed in (text[:-1], text[:-1] + ",\n"):
        assert read_trace(tmp_path, unclosed) == whole
        (doubt,) = open_profile(tmp_path / "trace_view.json").doubts
        assert "no closing bracket" in doubt
    with pytest.raises(BadProfile, match="inside the element: it is cut off or damaged"):
        read_trace(tmp_path, text[:-20])


def test_a_task_without_a_time_is_named(tmp_path, samples):
    text = samples["ascend.AscendTrace"].decode()
    with pytest.raises(BadProfile, match="event 'MatMulV2' has no start and duration in us"):
        read_trace(tmp_path, text.replace('"dur": 20.5', '"dur": -1', 1))
    with pytest.raises(BadProfile, match="no task of a device and no operation"):
        read_trace(tmp_path, text.replace("Ascend Hardware", "Other").replace("Python", "a").replace('"CANN"', '"b"'))

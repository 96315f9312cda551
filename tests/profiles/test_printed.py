"""Tables as profilers print them on the terminal, from logs that were published; expected values are theirs."""

# ruff: noqa: E501
from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from measured import DATA
from paleo_lite.errors import BadProfile
from paleo_lite.profiles.detect import open_profile
from paleo_lite.profiles.ncu import NcuCsv
from paleo_lite.profiles.nsys_stats import NsysStatsCsv
from paleo_lite.profiles.nvprof_csv import MetricsCsv
from paleo_lite.profiles.printed import describe_cut, plain_numbers, spans_of_rule, split_columns, without_thousands
from strategies import ACCIDENTS, damaged

NSYS = """\
Generating '/tmp/nsys-report-2ee6.qdstrm'
[2/8] [========================100%] vector_add_profile_v3.sqlite
[3/8] Executing 'nvtx_sum' stats report

 Time (%)  Total Time (ns)  Instances   Avg (ns)     Med (ns)    Min (ns)   Max (ns)   StdDev (ns)   Style      Range
 --------  ---------------  ---------  -----------  -----------  ---------  ---------  -----------  -------  ------------
     95.0        3,481,709          1  3,481,709.0  3,481,709.0  3,481,709  3,481,709          0.0  PushPop  Profile_Loop
      5.0          182,472          1    182,472.0    182,472.0    182,472    182,472          0.0  PushPop  Warmup

[4/8] Executing 'osrt_sum' stats report

 Time (%)  Total Time (ns)  Num Calls    Avg (ns)       Med (ns)     Min (ns)    Max (ns)     StdDev (ns)        Name
 --------  ---------------  ---------  -------------  -------------  ---------  -----------  -------------  --------------
     67.3      335,987,431          2  167,993,715.5  167,993,715.5  2,971,823  333,015,608  233,376,198.5  sem_wait

[5/8] Executing 'cuda_api_sum' stats report

 Time (%)  Total Time (ns)  Num Calls    Avg (ns)    Med (ns)  Min (ns)   Max (ns)    StdDev (ns)            Name
 --------  ---------------  ---------  ------------  --------  --------  -----------  ------------  ----------------------
      2.9        3,201,638      1,010       3,169.9   2,922.0         0      138,218       5,124.5  cudaLaunchKernel

[6/8] Executing 'cuda_gpu_kern_sum' stats report

 Time (%)  Total Time (ns)  Instances  Avg (ns)  Med (ns)  Min (ns)  Max (ns)  StdDev (ns)                          Name
 --------  ---------------  ---------  --------  --------  --------  --------  -----------  -----------------------------------------------------
    100.0        1,831,281      1,010   1,813.1   1,823.0     1,791     4,705         93.3  vectorAdd(const float *, const float *, float *, int)

[7/8] Executing 'cuda_gpu_mem_time_sum' stats report

 Time (%)  Total Time (ns)  Count  Avg (ns)  Med (ns)  Min (ns)  Max (ns)  StdDev (ns)      Operation
 --------  ---------------  -----  --------  --------  --------  --------  -----------  ------------------
     51.0            2,432      2   1,216.0   1,216.0     1,024     1,408        271.5  [CUDA memcpy HtoD]
     49.0            2,336      1   2,336.0   2,336.0     2,336     2,336          0.0  [CUDA memcpy DtoH]

[8/8] Executing 'cuda_gpu_mem_size_sum' stats report

 Total (MB)  Count  Avg (MB)  Med (MB)  Min (MB)  Max (MB)  StdDev (MB)      Operation
 ----------  -----  --------  --------  --------  --------  -----------  ------------------
      0.000      2     0.000     0.000     0.000     0.000        0.000  [CUDA memcpy HtoD]

12 runs in all
"""
"""``nsys profile --stats=true`` (ayush-os/nsight-systems-deep-dive, README.md, 0e3f06f), shortened."""

NCU = """\
==PROF== Connected to process 152070 (build/raytrace)
==PROF== Profiling "init_rng_kernel" - 0: 0%....50%....100% - 10 passes
==PROF== Disconnected from process 152070
[152070] raytrace@127.0.0.1
  init_rng_kernel(RngState *, int, int, unsigned int) (75, 43, 1)x(16, 16, 1), Context 1, Stream 7, Device 0, CC 9.0
    Section: GPU Speed Of Light Throughput
    ----------------------- ----------- ------------
    Metric Name             Metric Unit Metric Value
    ----------------------- ----------- ------------
    DRAM Frequency                  Ghz         2.59
    Elapsed Cycles                cycle        7,145
    Duration                         us         4.74
    ----------------------- ----------- ------------

    OPT   This workload exhibits low compute throughput and memory bandwidth utilization relative to the peak
          performance of this device. Achieved compute throughput and/or memory bandwidth below      60.0

    Section: Launch Statistics
    -------------------------------- --------------- ---------------
    Metric Name                          Metric Unit    Metric Value
    -------------------------------- --------------- ---------------
    Cluster Scheduling Policy                           PolicySpread
    Grid Size                                                  3,225
    -------------------------------- --------------- ---------------

  render_kernel(uchar3 *, GpuCamera, GpuScene, RngState *) (75, 43, 1)x(16, 16, 1), Context 1, Stream 7, Device 0, CC 9.0
    Section: GPU Speed Of Light Throughput
    ----------------------- ----------- -------------
    Metric Name             Metric Unit  Metric Value
    ----------------------- ----------- -------------
    Duration                         ms         11.44
    SM Active Cycles              cycle 16,578,748.80
    ----------------------- ----------- -------------

    Section: Occupancy
    ------------------------------- ----------- ------------
    Metric Name                     Metric Unit Metric Value
    ------------------------------- ----------- ------------
    Achieved Occupancy                        %        33.23
    ------------------------------- ----------- ------------
"""
"""``ncu`` on an H100, shortened (a ray tracer of a course in high-performance computing)."""

OLD_NCU = """\
[18028] task1b@127.0.0.1
  naive_cuda_transpose(int, const double *, double *), 2022-Jun-08 16:31:17, Context 1, Stream 7
    Section: Command line profiler metrics
    ---------------------------------------------------------------------- --------------- ------------------------------
    l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum                                  sector                      4,194,304
    smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct                        %                             25
    ---------------------------------------------------------------------- --------------- ------------------------------
"""
"""``ncu --metrics`` of 2022 (eduardo4jesus/cuda-training-series, task1b.profile, 2cce63d), shortened."""

NVPROF = """\
==12944== NVPROF is profiling process 12944, command: ./perfsig.out 10 1
==12944== Profiling result:
==12944== Metric result:
Invocations                               Metric Name                        Metric Description         Min         Max         Avg
Device "GeForce GTX 1070 (0)"
    Kernel: void reduce_wShrdMem<float>(float*, float*, unsigned int)
         60                            gld_efficiency             Global Memory Load Efficiency      62.50%      62.50%      62.50%
         60                        shared_utilization                 Shared Memory Utilization     Low (1)     Low (2)     Low (1)
    Kernel: GPU_updateVel(int, float, float, float*, float const *, float const *)
          1                            gld_efficiency             Global Memory Load Efficiency      93.75%      93.75%      93.75%
"""
"""``nvprof --metrics`` (sankarmanoj/thrust2D, MD/native.detail, 2ab3038), shortened."""

NVPROF_EVENTS = """\
==21== Event result:
Invocations                                Event Name         Min         Max         Avg       Total
Device "Tesla K40c (0)"
    Kernel: copy(float*)
          2                         l1_global_load_hit          10          30          20          40
"""


def read(tmp_path, text: str) -> list[dict]:
    path = tmp_path / "log.txt"
    path.write_text(text)
    profile = open_profile(path)
    rows = pa.Table.from_batches(list(profile.batches())).to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def test_reports_of_nsight_systems(tmp_path):
    assert read(tmp_path, NSYS) == [
        {"category": "marker", "kernel": "Profile_Loop", "duration_ns": 3481709.0, "calls": 1},
        {"category": "marker", "kernel": "Warmup", "duration_ns": 182472.0, "calls": 1},
        {"category": "api", "kernel": "cudaLaunchKernel", "duration_ns": 3201638.0, "calls": 1010},
        {
            "category": "kernel",
            "kernel": "vectorAdd(const float *, const float *, float *, int)",
            "duration_ns": 1831281.0,
            "calls": 1010,
        },
        {"category": "memcpy", "kernel": "[CUDA memcpy HtoD]", "duration_ns": 2432.0, "calls": 2},
        {"category": "memcpy", "kernel": "[CUDA memcpy DtoH]", "duration_ns": 2336.0, "calls": 1},
    ]


def test_two_runs_in_one_log_are_one_clear_error(tmp_path):
    with pytest.raises(BadProfile, match="a second report with marker rows, after the one at line 5"):
        read(tmp_path, NSYS + NSYS)


def test_a_heading_that_does_not_fit_its_rule(tmp_path):
    text = " Time (%)  Total Time (ns)  Instances  Name \n ---- ------------ --------- -----\n  100.0  5  1  k\n"
    with pytest.raises(BadProfile, match="line 1: the heading does not fit the columns of the rule below it"):
        read(tmp_path, text)


def test_sections_of_nsight_compute(tmp_path):
    first, second = read(tmp_path, NCU)
    assert first["kernel"] == "init_rng_kernel(RngState *, int, int, unsigned int)"
    assert (first["duration_ns"], first["grid"], first["block"]) == (4740.0, "75,43,1", "16,16,1")
    assert (first["metric.DRAM Frequency"], first["metric.Elapsed Cycles"]) == (2.59e9, 7145.0)
    assert first["metric.Grid Size"] == 3225.0
    metrics = {name for name in first if name.startswith("metric.")}
    assert metrics == {f"metric.{name}" for name in ("DRAM Frequency", "Elapsed Cycles", "Duration", "Grid Size")}
    assert (second["duration_ns"], second["metric.SM Active Cycles"]) == (11.44e6, 16_578_748.8)
    assert second["metric.Achieved Occupancy"] == 33.23


def test_metrics_of_nsight_compute_in_2022(tmp_path):
    (row,) = read(tmp_path, OLD_NCU)
    assert (row["kernel"], row["stream"]) == ("naive_cuda_transpose(int, const double *, double *)", 7)
    assert row["metric.l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] == 4194304.0
    assert row["metric.smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct"] == 25.0


def test_metrics_of_nvprof(tmp_path):
    first, second = read(tmp_path, NVPROF)
    assert (first["kernel"], first["calls"], first["device"]) == (
        "void reduce_wShrdMem<float>(float*, float*, unsigned int)",
        60,
        0,
    )
    assert (first["metric.gld_efficiency"], first["metric.shared_utilization"]) == (62.5, 1.0)
    assert (second["metric.gld_efficiency"], "metric.shared_utilization" in second) == (93.75, False)


def test_events_of_nvprof(tmp_path):
    (row,) = read(tmp_path, NVPROF_EVENTS)
    assert (row["kernel"], row["calls"], row["metric.l1_global_load_hit"]) == ("copy(float*)", 2, 20.0)


def test_a_row_of_nvprof_that_is_cut(tmp_path):
    with pytest.raises(BadProfile, match=r"line 8: '60 .*' is not a whole row of nvprof's metrics"):
        read(tmp_path, NVPROF.replace("     Low (1)     Low (2)     Low (1)", ""))


def test_columns_below_a_rule():
    spans = spans_of_rule("  ----  --- -----")
    assert spans == ((2, 6), (8, 11), (12, 17))
    assert split_columns("    12  abc a b c d", spans) == ["12", "abc", "a b c d"]
    assert split_columns("12", spans) is None  # text left of the first column
    assert split_columns("  12345  abc", spans) is None
    assert spans_of_rule("-------") is None and spans_of_rule("- one") is None
    assert [without_thousands(text) for text in ("1,234,567.8", "1,23", "a,b")] == ["1234567.8", "1.23", "a,b"]


@pytest.mark.parametrize(
    "printed",
    [
        ["19,0", "285 118 634", "803\u00a0151,0", "171\u202f872", "at::fill<1,2>"],  # French
        ["19,0", "285.118.634", "803.151,0", "171.872", "at::fill<1,2>"],  # German: the other numbers decide the last
        ["19.0", "285'118'634", "803\u2019151.0", "171\u2019872", "at::fill<1,2>"],  # Swiss
        ["19.0", "28,51,18,634", "8,03,151.0", "1,71,872", "at::fill<1,2>"],  # Indian: groups of two
        ["19.0", "285,118,634", "803,151.0", "171,872", "at::fill<1,2>"],
        ["19,0", "285118634", "803151,0", "171872", "at::fill<1,2>"],
    ],
)
def test_numbers_of_any_locale_are_read_as_the_same_numbers(printed):
    assert plain_numbers(printed) == ["19.0", "285118634", "803151.0", "171872", "at::fill<1,2>"]


@given(ACCIDENTS, st.sampled_from([(NSYS, NsysStatsCsv()), (NCU, NcuCsv()), (NVPROF, MetricsCsv())]))
def test_damaged_logs_give_a_table_or_our_error(tmp_path, table_or_our_error, happened, whole):
    text, reader = whole
    path = tmp_path / "log.txt"
    path.write_bytes(damaged(text.encode(), happened))
    table_or_our_error(path, reader)


@pytest.mark.needs_data
@pytest.mark.parametrize(("name", "percent"), [("nsys_plain", 49), ("ka_md", 83)])
def test_a_cut_table_says_which_share_its_rows_are(name: str, percent: int) -> None:
    """By the percentages in the files: 19 + 11 + 11 + 8, and 54.86 + 18.32 + 3.75 + 2.73 + 1.94 + 1.42."""
    profile = open_profile(DATA / f"profiles/small_texts/{name}.txt")
    (remark,) = profile.remarks
    assert f"its rows are {percent}% of the time" in remark


def test_a_whole_table_says_nothing() -> None:
    assert describe_cut(99.9) == [] == describe_cut(0.0)


_KERNELS = """Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
30.0,300,3,100.0,100.0,100,100,0.0,first
20.0,200,2,100.0,100.0,100,100,0.0,second
"""
_COPIES = """Time (%),Total Time (ns),Count,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Operation
100.0,400,4,100.0,100.0,100,100,0.0,[CUDA memcpy Host-to-Device]
"""


@pytest.mark.parametrize("text", [_KERNELS, f"{_KERNELS}\n{_COPIES}", f"{_COPIES}\n{_KERNELS}"])
def test_each_report_of_a_file_is_cut_by_itself(tmp_path, text: str) -> None:
    path = tmp_path / "stats.csv"
    path.write_text(text)
    (remark,) = open_profile(path).remarks
    assert "the table of kernels is cut" in remark and "its rows are 50% of the time" in remark


def test_whole_reports_of_a_file_say_nothing(tmp_path) -> None:
    path = tmp_path / "stats.csv"
    exchanges = "50.0,500,5,100.0,100.0,100,100,0.0,ncclDevKernel_AllReduce_Sum_bf16_RING_LL\n"
    path.write_text(f"{_KERNELS}{exchanges}\n{_COPIES}")
    assert list(open_profile(path).remarks) == []

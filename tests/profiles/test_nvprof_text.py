"""nvprof summaries: a real one, the head of one on a slide, and the layouts of other versions."""

from __future__ import annotations

import gzip
import re

import pytest

from paleo_lite.errors import BadProfile
from paleo_lite.profiles.nvprof_text import SummaryText


def rows_of(tmp_path, text, encoding="utf-8"):
    path = tmp_path / "log"
    path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
    (batch,) = SummaryText().batches(path, None)
    return batch.to_pylist()


HEADING = "            Type  Time(%)      Time     Calls       Avg       Min       Max  Name\n"

# The slides "Profiling DNN workloads" (Argonne, ATPESC) show the head of a list; what character recognition made of
# digits ("339.6lus") is put right.
SLIDE = (
    HEADING
    + """
 GPU activities: 36.04% 46.6474s 202752 230.07us 124.57us 339.61us void sgemm_largek_lds64<bool=0, boo

                 4.90% 6.34396s 5642 1.1244ms 52.928us 1.2132ms void fermiPlusCgemmLDS128_batched<b

                 4.60% 5.95521s 6562 907.53us 252.41us 1.4053ms cgemm_strided_batched_sm35_ldg_nt_6
      API calls: 47.93% 42.3065s 6891 6.1394ms 4.2120us 8.8403ms cuCtxSynchronize
                 26.73% 23.5916s 2092524 11.274us 4.8920us 40.285ms cudaLaunchKernel
                 5.32% 4.69823s 209098 22.469us 545ns 4.29630s cudaPointerGetAttributes
"""
)


@pytest.mark.needs_data
def test_real_summary_row_by_row(data_folder):
    path = data_folder / "profiles" / "nvprof_summary_text" / "k80_tf2_mnist.txt"
    (batch,) = SummaryText().batches(path, None)
    rows = batch.to_pylist()
    printed = re.findall(r"^.{16}\s*([\d.]+)%\s+\S+\s+(\d+) ", path.read_text("utf-8"), re.MULTILINE)
    assert [(row["metric.time_percent"], row["calls"]) for row in rows] == [(float(p), int(c)) for p, c in printed]
    assert rows[0]["kernel"] == "sgemm_sm35_ldg_nn_64x16x64x16x16"
    assert (rows[0]["duration_ns"], rows[0]["metric.duration_max_ns"]) == (374.78e6, 1.1202e6)
    for row in rows:  # nvprof's own mean is another way to the total
        assert row["duration_ns"] == pytest.approx(row["metric.duration_avg_ns"] * row["calls"], rel=5e-3)
    for category in ("api", "gpu"):
        shares = [row["metric.time_percent"] for row in rows if (row["category"] == "api") == (category == "api")]
        assert sum(shares) == pytest.approx(100, abs=0.005 * len(shares))
    copies = {row["kernel"]: row["category"] for row in rows if row["kernel"].startswith("[")}
    assert copies == {
        "[CUDA memcpy HtoD]": "memcpy",
        "[CUDA memcpy DtoH]": "memcpy",
        "[CUDA memset]": "memset",
    }


def test_head_of_a_list_as_a_slide_shows_it(tmp_path):
    rows = rows_of(tmp_path, SLIDE)
    assert [(row["category"], row["duration_ns"], row["calls"]) for row in rows] == [
        ("kernel", 46.6474e9, 202752),
        ("kernel", 6.34396e9, 5642),
        ("kernel", 5.95521e9, 6562),
        ("api", 42.3065e9, 6891),
        ("api", 23.5916e9, 2092524),
        ("api", 4.69823e9, 209098),
    ]
    assert rows[5]["metric.duration_min_ns"] == 545.0
    assert rows[0]["start_ns"] is None and rows[0]["flops"] is None


def test_ocr_errors_are_reported_with_their_line(tmp_path):
    with pytest.raises(BadProfile, match=r"line 3: '339.6lus' is not a number"):
        rows_of(tmp_path, SLIDE.replace("339.61us", "339.6lus"))


# Layouts as other versions print them (CUDA 7 to 11), with numbers made up.
BEFORE_CUDA_9 = """==2== NVPROF is profiling process 2, command: ./a
Max error: 0
==2== Profiling application: ./a
==2== Profiling result:
Time(%)      Time     Calls       Avg       Min       Max  Name
 60.00%  600.00us         2  300.00us  200.00us  400.00us  gemm(float*)
 40.00%  400.00us         1  400.00us  400.00us  400.00us  [CUDA memset]

==2== API calls:
Time(%)      Time     Calls       Avg       Min       Max  Name
100.00%  2.0000ms         4  500.00us     385ns  1.9000ms  cudaMalloc
done
"""

CSV = """==2== Profiling result:
"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"
,%,ms,,us,us,us,
"GPU activities",60.000000,0.600000,2,300.000000,200.000000,400.000000,"void gemm<int, bool>(float*, int)"
"API calls",100.000000,2.000000,4,500.000000,0.385000,1900.000000,"cudaMalloc"
==3== Profiling result:
"Time(%)","Time","Calls","Avg","Min","Max","Name"
%,s,,s,s,s,
100.000000,1.500000,3,0.5,0.5,0.5,"ncclAllReduce"
"""

UNIFIED = (
    HEADING
    + """ GPU activities:  100.00%  600.00us         1  600.00us  600.00us  600.00us  add(int, float*)

==2== Unified Memory profiling result:
Device "Tesla V100-SXM2-16GB (3)"
   Count  Avg Size  Min Size  Max Size  Total Size  Total Time  Name
      48  170.67KB  4.0000KB  0.9961MB  8.000000MB  843.8660us  Host To Device
      12         -         -         -           -  4.243755ms  Gpu page fault groups
Total CPU Page faults: 36
"""
)

NVTX = """==2== NVTX result:
==2==   Thread "<unnamed>" (id = 3433130048)
==2==     Domain "<unnamed>"
==2==       Range "batch"
            Type  Time(%)      Time     Calls       Avg       Min       Max  Name
          Range:  100.00%  20.000ms        10  2.0000ms  1.0000ms  3.0000ms  batch
 GPU activities:  100.00%  15.000ms        10  1.5000ms  1.0000ms  2.0000ms  gemm(float*)
"""


def named(rows, *columns):
    return [tuple(row[column] for column in columns) for row in rows]


def test_layout_before_cuda_9_has_a_heading_per_section(tmp_path):
    rows = rows_of(tmp_path, BEFORE_CUDA_9)
    assert named(rows, "category", "kernel", "duration_ns") == [
        ("kernel", "gemm(float*)", 600e3),
        ("memset", "[CUDA memset]", 400e3),
        ("api", "cudaMalloc", 2e6),
    ]


def test_csv_has_its_units_in_a_line_and_a_file_can_hold_processes(tmp_path):
    rows = rows_of(tmp_path, CSV)
    assert named(rows, "category", "kernel", "duration_ns", "metric.duration_min_ns") == [
        ("kernel", "void gemm<int, bool>(float*, int)", 600e3, 200e3),
        ("api", "cudaMalloc", 2e6, 385.0),
        ("communication", "ncclAllReduce", 1.5e9, 0.5e9),
    ]


def test_unified_memory_migrations_are_copies_with_bytes(tmp_path):
    rows = rows_of(tmp_path, UNIFIED)[1:]
    assert named(rows, "category", "kernel", "calls", "duration_ns", "bytes", "device") == [
        ("memcpy", "[Unified Memory Host To Device]", 48, 843866.0, 8 * 2**20, 3),
        ("memcpy", "[Unified Memory Gpu page fault groups]", 12, 4243755.0, None, 3),
    ]


def test_kernels_within_ranges_are_not_counted_again(tmp_path):
    rows = rows_of(tmp_path, SLIDE + NVTX)
    assert named(rows[6:], "category", "kernel", "duration_ns") == [("marker", "batch", 20e6)]


@pytest.mark.parametrize(
    "change", [lambda raw: raw.replace(b"\n", b"\r\n"), lambda raw: b"\xef\xbb\xbf" + raw, gzip.compress]
)
def test_line_ends_byte_order_mark_and_gzip_change_nothing(tmp_path, samples, change):
    raw = samples["nvprof_text.SummaryText"]
    assert rows_of(tmp_path, change(raw)) == rows_of(tmp_path, raw)


def test_latin_1_and_utf_8_names(tmp_path, samples):
    text = samples["nvprof_text.SummaryText"].decode().replace("gemm", "größe")
    assert rows_of(tmp_path, text)[0]["kernel"] == rows_of(tmp_path, text, "latin-1")[0]["kernel"]
    assert "größe" in rows_of(tmp_path, text, "latin-1")[0]["kernel"]


# As a run with unified memory on a V100 printed it.
THRASHED = """==2641714== Unified Memory profiling result:
Device "Tesla V100-PCIE-32GB (0)"
   Count  Avg Size  Min Size  Max Size  Total Size  Total Time  Name
 1015451  26.939KB  4.0000KB  0.9961MB  26.08832GB   4.618286s  Host To Device
 1810082  14.781KB  4.0000KB  252.00KB  25.51612GB   3.858506s  Device To Host
  238083         -         -         -           -  53.551726s  Gpu page fault groups
  590712  4.0000KB  4.0000KB  4.0000KB  2.253388GB           -  Memory thrashes
Total CPU Page faults: 1073940
Total CPU thrashes: 590712
"""


def test_pages_that_thrash_have_a_size_and_no_time(tmp_path, samples):
    rows = rows_of(tmp_path, samples["nvprof_text.SummaryText"].decode() + THRASHED)[-4:]
    assert [(row["kernel"], row["calls"], row["bytes"], row["duration_ns"]) for row in rows] == [
        ("[Unified Memory Host To Device]", 1015451, 26.08832 * 2**30, 4.618286e9),
        ("[Unified Memory Device To Host]", 1810082, 25.51612 * 2**30, 3.858506e9),
        ("[Unified Memory Gpu page fault groups]", 238083, None, 53.551726e9),
        ("[Unified Memory Memory thrashes]", 590712, pytest.approx(2.253388 * 2**30), None),
    ]
    assert {row["device"] for row in rows} == {0}


def test_csv_values_with_units(tmp_path):
    text = (
        'Time(%),Time,Calls,Avg,Min,Max,Name\n47.79%,542.36ms,100,5.4236ms,5.4us,5.5ms,"void gemm<int=3>(int*, int)"\n'
    )
    text += "52.21%,1.5s,2,592ns,1us,592.49ms,[CUDA memcpy HtoD]\n"
    gemm, copy = rows_of(tmp_path, text)
    assert (gemm["kernel"], gemm["duration_ns"], gemm["calls"]) == ("void gemm<int=3>(int*, int)", 542.36e6, 100)
    assert (gemm["metric.duration_min_ns"], gemm["metric.time_percent"]) == (5.4e3, 47.79)
    assert (copy["category"], copy["duration_ns"], copy["metric.duration_avg_ns"]) == ("memcpy", 1.5e9, 592.0)
    with pytest.raises(BadProfile, match=r"line 3: '1.5' is not a number with a unit"):
        rows_of(tmp_path, text.replace("1.5s", "1.5"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("3.0000ms         3", "3.0000ms", r"line 4: .* is not a whole row"),
        ("3.0000ms", "nanms", r"line 4: 'nanms' is not a number with a unit"),
        ("3.0000ms", "-3.0000ms", r"line 4: a time is negative"),
        ("3.0000ms", "3.0000", r"line 4: '3.0000' is not a number with a unit"),
        ("75.00%", "7x5%", r"line 4: 'GPU activities:   7x5"),
        ("API calls:", "Fan calls:", r"line 6: 'Fan calls' is not a known section"),
        ("  Avg  ", "  Mean ", r"line 3: the heading is"),
        ("Time(%)", "Tempo(%)", r"no heading 'Time\(%\) Time Calls"),
        ("1.0000ms         2", "1.0000ms  99999999999999999999", r"line 5: .* is not a number of calls"),
        ("gemm", "gemm\0", r"line 4 holds a zero byte"),
        ("gemm", "g" * 2**21, r"line 4 is longer than 1,048,576 bytes"),
    ],
)
def test_bad_summary_names_its_line(tmp_path, samples, old, new, message):
    text = samples["nvprof_text.SummaryText"].decode()
    assert old in text
    with pytest.raises(BadProfile, match=message):
        rows_of(tmp_path, text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",", ";", r"line 2: the heading is"),
        (",%,ms,,us", ",%,furlong,,us", r"line 3: the units are"),
        (",%,ms,,us,us,us,\n", "", r"line 3: the units are"),
        ("0.600000,2,", "0.600000,", r"line 4: 7 columns, expected 8"),
        ('float*, int)"', "float*, int)", r"line 4: not CSV"),
    ],
)
def test_bad_csv_names_its_line(tmp_path, old, new, message):
    with pytest.raises(BadProfile, match=message):
        rows_of(tmp_path, CSV.replace(old, new) if old == "," else CSV.replace(old, new, 1))


def test_cut_gzip_is_an_error(tmp_path, samples):
    raw = gzip.compress(samples["nvprof_text.SummaryText"] * 50)
    with pytest.raises(BadProfile, match="gzip that is cut or corrupted"):
        rows_of(tmp_path, raw[: len(raw) // 2])


def test_gzip_of_blank_lines_ends(tmp_path):
    with pytest.raises(BadProfile, match="lines without content in a row"):
        rows_of(tmp_path, gzip.compress(b"\n" * 2**24))


def test_only_wanted_columns_and_always_metrics(tmp_path, samples):
    path = tmp_path / "log"
    path.write_bytes(samples["nvprof_text.SummaryText"])
    (batch,) = SummaryText().batches(path, ("kernel", "duration_ns"))
    assert batch.schema.names[:2] == ["kernel", "duration_ns"]
    assert all(name.startswith("metric.") for name in batch.schema.names[2:])

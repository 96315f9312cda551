"""rocprof's CSV as AMD's documentation prints it: kernels and copies in time, and summaries."""

from __future__ import annotations

import pytest

from paleo_lite.errors import BadProfile
from paleo_lite.profiles.detect import open_profile


def rows_of(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text if isinstance(text, str) else text.decode())
    profile = open_profile(path)
    assert profile.format == "rocprof"
    return profile.read().table.to_pylist()


def test_kernels_in_time(tmp_path, samples):
    first, second = rows_of(tmp_path, samples["rocprof.RocprofCsv"])
    assert first["kernel"] == "void addition_kernel<float>(float*, float const*, float const*, int, int)"
    assert (first["category"], first["start_ns"], first["duration_ns"]) == ("kernel", 1551874061244694, 11040.0)
    assert (first["device"], first["stream"], second["stream"], first["thread"]) == (4, 1, 2, 852831)
    assert (first["block"], first["grid"]) == ("64,1,1", "16,1024,1")  # 1,024 x 1,024 work items in groups of 64
    assert (first["metric.vector_registers"], first["metric.scalar_registers"]) == (8, 16)


def test_copies(tmp_path):
    text = '"Kind","Direction","Source_Agent_Id","Destination_Agent_Id","Correlation_Id",'
    text += '"Start_Timestamp","End_Timestamp"\n'
    text += '"MEMORY_COPY","HOST_TO_DEVICE",0,1,0,14955949675563,14955950239443\n'
    (row,) = rows_of(tmp_path, text)
    assert (row["category"], row["kernel"], row["device"]) == ("memcpy", "[memcpy HOST_TO_DEVICE]", 1)
    assert row["duration_ns"] == 563880


def test_summaries(tmp_path):
    text = '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n'
    text += (
        '"bodyForce(Body*, float, int) [clone .kd]",10,261124944,26112494,100.0\nhipMemcpy,2,583182462,291591231,99.7\n'
    )
    kernel, call = rows_of(tmp_path, text)
    assert (kernel["kernel"], kernel["category"]) == ("bodyForce(Body*, float, int)", "kernel")
    assert (kernel["calls"], kernel["duration_ns"], kernel["start_ns"]) == (10, 261124944.0, None)
    assert (call["category"], call["calls"], call["duration_ns"]) == ("api", 2, 583182462.0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("1551874061255734", "1551874061244693", r"line 2: begins at 1551874061244694 and ends at 1551874061244693"),
        ("1551874061255734", "soon", r"line 2: End_Timestamp is 'soon', expected a whole number"),
        ("1551874061255734", "-5", r"line 2: End_Timestamp is '-5'"),
        ('"End_Timestamp"', '"Ended"', r"line 2: no times: rocprof --timestamp on"),
        (",1551874061255734", "", r"line 2: 21 columns, expected 22"),
    ],
)
def test_bad_rows_name_their_line(tmp_path, samples, old, new, message):
    text = samples["rocprof.RocprofCsv"].decode()
    with pytest.raises(BadProfile, match=message):
        rows_of(tmp_path, text.replace(old, new, 1))


def summary(heading: str, *rows: str) -> str:
    """A table as ``rocprofv3 --summary`` prints it."""
    names = "| NAME | DOMAIN | CALLS | DURATION (nsec) | AVERAGE (nsec) | PERCENT (INC) |"
    return "\n".join((f"ROCPROFV3 {heading}SUMMARY:", "", names, "|---|---|---|---|---|---|", *rows, ""))


def test_a_printed_summary_counts_each_domain_once(tmp_path):
    """Rows of ROCm's documentation of rocprofv3; the first table repeats those of the others."""
    api = "| hipFree | HIP_API | 24 | 1572948 | 6.554e+04 | 0.275920 |"
    kernels = (
        "| void addition_kernel<float>(float*, float const*, int) | KERNEL_DISPATCH | 8 | 184324 | 2.304e+04 | 40.7 |",
        "| divide_kernel(float*, float const*, int, int) | KERNEL_DISPATCH | 8 | 94482 | 1.181e+04 | 20.9 |",
    )
    path = tmp_path / "summary.txt"
    path.write_text(summary("", api, *kernels) + summary("HIP_API ", api) + summary("KERNEL_DISPATCH ", *kernels))
    rows = open_profile(path).read().table.to_pylist()
    assert [(row["category"], row["duration_ns"], row["calls"]) for row in rows] == [
        ("api", 1572948.0, 24), ("kernel", 184324.0, 8), ("kernel", 94482.0, 8),
    ]  # fmt: skip
    damaged = tmp_path / "damaged.txt"
    damaged.write_text(summary("KERNEL_DISPATCH ", kernels[0].replace("184324", "many")))
    with pytest.raises(BadProfile, match="line 5: '8' calls in 'many', expected numbers"):
        open_profile(damaged).read()


@pytest.mark.parametrize("heading", ["Name", "Kernel Name", "HIP Kernel Name", "OCL Kernel Name"])
def test_summaries_of_all_ages_name_their_first_column(tmp_path, heading):
    path = tmp_path / "results.stats.csv"
    path.write_text(
        f'"{heading}","Calls","TotalDurationNs","AverageNs","Percentage"\n'
        '"copy_kernel(float*, float*, int, int) [clone .kd]",2,165920,82960,100.0\n'
    )
    (row,) = open_profile(path).read().table.to_pylist()
    assert (row["kernel"], row["calls"], row["duration_ns"]) == ("copy_kernel(float*, float*, int, int)", 2, 165920.0)

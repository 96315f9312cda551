"""Intel VTune and APS. No real file is available; columns follow Intel's user guide and the
slides "Profiling DNN workloads" (Argonne, ATPESC).
"""

from __future__ import annotations

import pytest

from paleo_lite.errors import BadProfile
from paleo_lite.profiles.vtune import ApsSummary, HotspotsCsv


def rows_of(reader, tmp_path, text):
    path = tmp_path / "report"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert reader.recognises(path, path.read_bytes())
    (batch,) = reader.batches(path, None)
    return batch.to_pylist()


@pytest.fixture
def hotspots(samples):
    return samples["vtune.HotspotsCsv"].decode()


@pytest.fixture
def aps(samples):
    return samples["vtune.ApsSummary"].decode()


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
def test_hotspots_by_any_delimiter(tmp_path, hotspots, delimiter):
    rows = rows_of(HotspotsCsv(), tmp_path, hotspots.replace(",", delimiter))
    assert [(row["kernel"], row["duration_ns"], row["category"]) for row in rows] == [
        ("compress_block", 12.504e9, "cpu"),
        ("[Outside any known module]", 0.12e9, "cpu"),
    ]
    assert [row["metric.cpu_time_spin_time_ns"] for row in rows] == [0.404e9, 0.0]
    assert [row["metric.cpi_rate"] for row in rows] == [5.149, None]
    assert rows[0]["metric.instructions"] == 871e6
    assert rows[0]["calls"] is None and "metric.module" not in rows[0]


# The example of Intel's page on -csv-delimiter.
def test_grouped_by_module(tmp_path):
    text = "Module,Process,CPU Time\nworker3.so,main,10.735\nworker1.so,main,5.525\nworker2.so,main,3.612\n"
    rows = rows_of(HotspotsCsv(), tmp_path, text)
    assert [(row["kernel"], row["duration_ns"]) for row in rows] == [
        ("worker3.so", 10.735e9),
        ("worker1.so", 5.525e9),
        ("worker2.so", 3.612e9),
    ]


def test_top_down_uses_self_time(tmp_path):
    text = (
        "Function Stack,CPU Time:Total,CPU Time:Self,Module\nTotal,100.0%,0s,\n  MPI_Allreduce,98.5%,0.100s,libmpi.so\n"
    )
    rows = rows_of(HotspotsCsv(), tmp_path, text)
    assert [(row["kernel"], row["category"], row["duration_ns"]) for row in rows] == [
        ("Total", "cpu", 0.0),
        ("MPI_Allreduce", "message", 0.1e9),
    ]
    assert [row["metric.cpu_time_total"] for row in rows] == [100.0, 98.5]


def test_quoted_functions_and_thousands(tmp_path):
    text = 'Function,CPU Time,Instructions Retired\n"void f<int, float>(int, float)",0.5,"871,000,000"\n'
    (row,) = rows_of(HotspotsCsv(), tmp_path, text)
    assert (row["kernel"], row["metric.instructions_retired"]) == ("void f<int, float>(int, float)", 871e6)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("12.504", "NaN", r"line 2: CPU Time is 'NaN'"),
        ("12.504", "-1", r"line 2: CPU Time is negative"),
        ("5.149", "fast", None),  # the first cell of a column tells whether it holds numbers
        ("871000000", "8e7x", None),
        ("26000000", "lots", r"line 3: Instructions is 'lots'"),
        ("compress_block", "f<int, float>", r"line 2: 8 columns, expected 7"),
        (",app\n", "\n", r"line 2: 6 columns, expected 7"),
        ("CPU Time,CPU Time:E", "CPU Zeit,CPU Time:E", r"no column 'CPU Time'"),
    ],
)
def test_bad_hotspots_name_their_line(tmp_path, hotspots, old, new, message):
    text = hotspots.replace(old, new, 1)
    assert text != hotspots
    if message is None:
        assert len(rows_of(HotspotsCsv(), tmp_path, text)) == 2
        return
    with pytest.raises(BadProfile, match=message):
        rows_of(HotspotsCsv(), tmp_path, text)


def test_aps_values_with_their_units(tmp_path, aps):
    application, wait = rows_of(ApsSummary(), tmp_path, aps)
    assert (application["kernel"], application["category"], application["duration_ns"]) == ("train", "cpu", 784.33e9)
    assert application["metric.cpu_utilization_percent"] == 6.5
    assert application["metric.average_cpu_utilization"] == 16.6
    assert application["metric.logical_core_count_per_node"] == 256.0
    assert application["metric.dram_bandwidth_peak_gb_per_s"] == 3.73
    assert application["metric.mpi_time_s"] == 65.98
    assert (wait["kernel"], wait["category"], wait["duration_ns"]) == ("MPI_Waitall", "message", 58.48e9)
    assert wait["metric.time_percent"] == 7.46 and wait["metric.cpu_utilization_percent"] is None


# The printout as it stands on the slide.
SLIDE = """| Summary information

HW Platform : Intel(R) Processor code named Knights Landing
Logical core count per node: 256

Collector type : Driverless Perf system-wide counting

Used statistics : aps_results

| Your application might underutilize the available logical CPU cores
| because of insufficient parallel work, blocking on synchronization, or too much I/O.
Perform function or source line-level profiling with tools like Intel(R) VTune(TM)
Amplifier to discover why the CPU is underutilized.
CPU Utilization: 6.50%
| Your application might underutilize the available logical CPU cores because of
| insufficient parallel work, blocking on synchronization, or too much I/0.
| Perform function or source line-level profiling with tools like Intel(R)
"""


def test_aps_as_a_slide_shows_it(tmp_path):
    (row,) = rows_of(ApsSummary(), tmp_path, SLIDE)
    assert row["metric.cpu_utilization_percent"] == 6.5
    assert row["metric.logical_core_count_per_node"] == 256.0
    assert row["duration_ns"] is None and row["kernel"] == "application"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("784.33 s", "nan s", r"line 9: Elapsed Time is not a time in seconds"),
        ("784.33 s", "-784.33 s", r"line 9: Elapsed Time is negative"),
        ("784.33 s", "784.33", r"line 9: Elapsed Time is not a time in seconds"),
        ("  CPU Utilization:  ", "  MPI Time: 1 s\n  CPU Utilization:  ", r"line 13: 'MPI Time' appears twice"),
        ("58.48 s", "58.4.8 s", r"line 12: MPI_Waitall is not a time"),
        ("7.46%", "7..46%", r"line 12: '7..46' is not a number"),
    ],
)
def test_bad_summary_names_its_line(tmp_path, aps, old, new, message):
    assert old in aps
    with pytest.raises(BadProfile, match=message):
        rows_of(ApsSummary(), tmp_path, aps.replace(old, new, 1))


def test_summary_without_values(tmp_path):
    with pytest.raises(BadProfile, match="without any value"):
        rows_of(ApsSummary(), tmp_path, "| Summary information\nUsed statistics : here\n")

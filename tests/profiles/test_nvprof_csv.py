"""nvprof's CSV against the same files read by pandas, and in other units, versions and states of decay."""

from __future__ import annotations

import gzip

import pandas as pd
import pyarrow as pa
import pytest

from paleo_lite.errors import BadProfile
from paleo_lite.profiles.nvprof_csv import GpuTraceCsv, MetricsCsv

TRACES = ["convolutionFFT2D", "matrixMul", "sortingNetworks"]
METRICS = ["matrixMul", "reduction"]
NS = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}
SIZES = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}


def read(path, reader=None):
    return pa.Table.from_batches((reader or GpuTraceCsv()).batches(path, None)).to_pandas()


def written(tmp_path, raw):
    path = tmp_path / "trace"
    path.write_bytes(raw if isinstance(raw, bytes) else raw.encode())
    return path


@pytest.fixture
def trace(samples):
    return samples["nvprof_csv.GpuTraceCsv"].decode()


@pytest.fixture
def metrics(samples):
    return samples["nvprof_csv.MetricsCsv"].decode()


@pytest.mark.needs_data
@pytest.mark.parametrize("name", TRACES)
def test_real_trace_agrees_with_pandas(data_folder, name):
    path = data_folder / "profiles" / "nvprof_gpu_trace_csv" / f"{name}_trace.csv"
    ours, theirs = read(path), pd.read_csv(path, skiprows=3)
    units, theirs = theirs.iloc[0], theirs.iloc[1:].reset_index(drop=True)
    assert len(ours) == len(theirs)
    for column, name_, factors in (
        ("start_ns", "Start", NS),
        ("duration_ns", "Duration", NS),
        ("bytes", "Size", SIZES),
    ):
        expected = theirs[name_].astype(float) * factors[units[name_]]
        # bytes are printed in KB or MB with six decimals
        tolerance = 1e-6 * factors[units[name_]] if column == "bytes" else 0.5
        pd.testing.assert_series_equal(
            ours[column].astype(float), expected, check_names=False, rtol=0, atol=tolerance, check_dtype=False
        )
    grid = (
        theirs["Grid X"] + "," + theirs["Grid Y"] + "," + theirs["Grid Z"] if theirs["Grid X"].dtype == object else None
    )
    if grid is not None:
        assert ours["grid"].fillna("").astype(str).tolist() == grid.fillna("").tolist()
    assert set(ours["device"]) == {0} and set(ours["stream"]) == {7}
    kernels = ours[ours["category"] == "kernel"]
    assert not kernels["kernel"].astype(str).str.contains(r"\[\d+\]$").any()
    assert len(kernels) == theirs["Name"].str.contains(r"\[\d+\]$").sum()
    assert kernels["bytes"].isna().all() and kernels["grid"].notna().all()


@pytest.mark.needs_data
def test_a_copy_of_409600_bytes_is_400_kb(data_folder):
    rows = read(data_folder / "profiles" / "nvprof_gpu_trace_csv" / "matrixMul_trace.csv")
    # 320 x 320 and 640 x 320 matrices of fp32, as the CUDA sample multiplies
    assert rows["bytes"].dropna().tolist() == [4 * 320 * 320, 4 * 640 * 320, 4 * 640 * 320]
    copy = rows.iloc[0]
    assert copy["metric.throughput_bytes_per_s"] == pytest.approx(copy["bytes"] / copy["duration_ns"] * 1e9, rel=1e-6)


@pytest.mark.needs_data
@pytest.mark.parametrize("name", METRICS)
def test_real_metrics_agree_with_pandas(data_folder, name):
    path = data_folder / "profiles" / "nvprof_metrics_csv" / f"{name}_metrics.csv"
    ours, theirs = read(path, MetricsCsv()), pd.read_csv(path, skiprows=5)
    assert len(ours) == theirs["Kernel"].nunique()
    for _, row in theirs.iterrows():
        kernel = ours[ours["kernel"] == row["Kernel"]].iloc[0]
        assert kernel["calls"] == row["Invocations"]
        text = row["Avg"]
        digits = text.split("(")[1].rstrip(")") if "(" in text else text.rstrip("%KMGB/s")
        unit = text[len(digits) :] if "(" not in text else ""
        factor = SIZES[unit.removesuffix("/s")] if unit.endswith("B/s") else 1
        assert kernel[f"metric.{row['Metric Name']}"] == pytest.approx(float(digits) * factor)


@pytest.mark.needs_data
def test_metrics_of_a_product(data_folder):
    (kernel,) = read(data_folder / "profiles" / "nvprof_metrics_csv" / "matrixMul_metrics.csv", MetricsCsv()).to_dict(
        "records"
    )
    assert 0 < kernel["metric.achieved_occupancy"] <= 1
    assert 0 < kernel["metric.executed_ipc"] < 8
    assert 0 <= kernel["metric.dram_utilization"] <= 10
    assert kernel["metric.gst_efficiency"] == 100.0
    assert pd.isna(kernel["duration_ns"])
    # 2 FLOPs a multiply-accumulate of the CUDA sample's 320 x 320 by 320 x 640 matrices, 301 times
    assert kernel["flops"] == 301 * 2 * 320 * 320 * 640


def test_throughputs_are_in_one_unit(tmp_path, metrics):
    rows = read(written(tmp_path, metrics), MetricsCsv())
    assert rows["metric.gst_throughput"].tolist()[1] == 1e6  # 976.5625 KB/s of 1,024 bytes
    assert rows["metric.achieved_occupancy"].tolist()[0] == 0.6
    assert rows["metric.gld_efficiency"].tolist()[0] == 99.5
    assert rows["metric.dram_utilization"].tolist()[0] == 2.0
    assert rows["metric.dram_utilization"].isna().tolist() == [False, True]


@pytest.mark.parametrize("text", ["<OVERFLOW>", "nan%", "N/A", ""])
def test_unmeasured_values_are_null(tmp_path, metrics, text):
    rows = read(written(tmp_path, metrics.replace(",0.6\n", f",{text}\n")), MetricsCsv())
    assert rows["metric.achieved_occupancy"].isna().all()


def test_two_processes_are_two_rows_and_events_join_metrics(tmp_path, metrics):
    events = """==7== Event result:
"Device","Kernel","Invocations","Event Name","Min","Max","Avg","Total"
"GTX 1080 Ti (0)","gemm(int*)",2,"active_cycles",10,14,12,24
"""
    rows = read(written(tmp_path, metrics + events + metrics.replace("==7==", "==8==")), MetricsCsv())
    assert rows["kernel"].tolist() == ["reduce<int>(int*)", "gemm(int*)"] * 2
    assert rows["metric.active_cycles"].isna().tolist() == [True, False, True, True]


@pytest.mark.parametrize("start", NS)
@pytest.mark.parametrize("duration", NS)
@pytest.mark.parametrize("size", SIZES)
def test_units_stand_in_the_second_line(tmp_path, trace, start, duration, size):
    rows = read(written(tmp_path, trace.replace("s,ms,,,,,,,MB", f"{start},{duration},,,,,,,{size}")))
    assert rows["start_ns"][0] == round(1.443182 * NS[start])
    assert rows["duration_ns"].tolist() == pytest.approx([40.152845 * NS[duration], 0.001536 * NS[duration]])
    assert rows["bytes"][0] == round(15.258789 * SIZES[size])


def test_columns_come_and_go(tmp_path):
    rows = read(written(tmp_path, '"Start","Duration","Name"\nms,us,\n1.5,2.25,"cudaMalloc"\n'))
    assert rows["category"].tolist() == ["api"] and rows["duration_ns"].tolist() == [2250.0]
    assert (
        rows["bytes"].isna().all() and rows["stream"].isna().all() and rows["metric.registers_per_thread"].isna().all()
    )


def test_devices_streams_and_correlation(tmp_path, trace):
    rows = read(written(tmp_path, trace))
    assert rows["device"].tolist() == [0, 1] and rows["stream"].tolist() == [7, 8]
    assert rows["kernel"].tolist() == ["[CUDA memcpy HtoD]", "pad(float*, int)"]
    assert rows["grid"].tolist()[1] == "1,1,1" and rows["block"].tolist()[1] == "32,8,1"
    assert rows["grid"].isna()[0]


def test_a_second_process_has_its_own_units(tmp_path, trace):
    rows = read(written(tmp_path, trace + trace.replace("s,ms,", "ms,us,")))
    assert rows["duration_ns"].tolist() == pytest.approx([40152845, 1536, 40152.845, 1.536])


def test_heading_without_rows_does_not_rename_earlier_columns(tmp_path, trace):
    empty = '"Start","Duration","Name"\nns,ns,\n'
    assert read(written(tmp_path, trace + empty)).equals(read(written(tmp_path, trace)))
    assert len(read(written(tmp_path, empty))) == 0


def test_many_rows_come_in_batches(tmp_path, trace):
    head, row = trace.rsplit("\n", 2)[0], trace.split("\n")[-2]
    path = written(tmp_path, gzip.compress((head + "\n" + (row + "\n") * 40_000).encode()))
    batches = list(GpuTraceCsv().batches(path, ("duration_ns",)))
    assert len(batches) > 2 and sum(batch.num_rows for batch in batches) == 40_001
    assert len({str(batch.schema) for batch in batches}) == 1


@pytest.mark.parametrize("change", [lambda raw: raw.replace(b"\n", b"\r\n"), lambda raw: b"\xef\xbb\xbf" + raw[15:]])
def test_line_ends_and_byte_order_mark(tmp_path, trace, change):
    raw = trace.encode() if b"\r" in change(b"\n") else b" " * 15 + trace.partition("\n")[2].encode()
    assert read(written(tmp_path, change(raw))).equals(read(written(tmp_path, trace)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("40.152845", "NaN", r"line 4: Duration is 'NaN', expected a number of 0 or more"),
        ("40.152845", "-1.5", r"line 4: Duration is '-1.5'"),
        ("40.152845", "inf", r"line 4: Duration is 'inf'"),
        ("40.152845", "", r"line 4: no duration"),
        ("0.001536", "0x1", r"line 5: Duration is '0x1'"),
        ("1.483534", "1e99", r"line 5: Start is '1e99', expected a number of 0 or more below 2"),
        ("1.483534,0.001536,", "1.483534,", r"line 5: 12 columns, expected 13"),
        ('[2437]"', "[2437]", r"line 5: not CSV"),
        ("s,ms,,,", "s,fortnight,,,", r"line 3: the unit of Duration is 'fortnight', expected ns, us"),
        ("s,ms,,,,,,,MB,GB/s,,,\n", "", r"line 3: the unit of Start is '1.443182'"),
        ('"Duration"', '"Duration","Duration"', r"line 2: a column appears twice"),
        ('"Name"', '"Title"', r"no column 'Name'"),
        ('"Start",', "", r"heading that this profiler prints"),
        (",", ";", r"line 2: the heading is .* expected columns between ','"),
    ],
)
def test_bad_trace_names_its_line(tmp_path, trace, old, new, message):
    assert old in trace
    with pytest.raises(BadProfile, match=message):
        read(written(tmp_path, trace.replace(old, new) if old == "," else trace.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",0.6\n", ",fast\n", r"line 3: 'fast' is not the value of a metric"),
        (",0.6\n", ",0.6furlong\n", r"line 3: '0.6furlong' is not the value of a metric"),
        (",0.6\n", "\n", r"line 3: 7 columns, expected 8"),
        (",101,", ",many,", r"line 3: 'many' is not a number of invocations"),
        ('"Avg"', '"Mean"', r"line 3: no metric with an average"),
        ('"Device","Kernel"', '"Kernel","Device"', r"heading that this profiler prints"),
        (",", "\t", r"line 2: the heading is"),
    ],
)
def test_bad_metrics_name_their_line(tmp_path, metrics, old, new, message):
    assert old in metrics
    with pytest.raises(BadProfile, match=message):
        read(written(tmp_path, metrics.replace(old, new) if old == "," else metrics.replace(old, new, 1)), MetricsCsv())


def test_more_values_than_a_summary_has(tmp_path, metrics, monkeypatch):
    monkeypatch.setattr("paleo_lite.profiles.nvprof_csv._MOST_VALUES", 5)
    with pytest.raises(BadProfile, match="line 6: more than 5 values"):
        read(written(tmp_path, metrics), MetricsCsv())

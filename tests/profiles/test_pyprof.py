"""pyprof parquet and CSV: real files compared with pandas, files of other versions, and damaged files."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from paleo_lite.errors import BadProfile
from paleo_lite.profile_analysis.one_file import ReadOptions, analyse_file
from paleo_lite.profiles.detect import open_profile
from paleo_lite.profiles.pyprof import PyprofCsv, PyprofParquet
from paleo_lite.profiles.table import SCHEMA
from strategies import ACCIDENTS, damaged

ROWS = {
    "Idx": [1, 2, 3],
    "TId": [7, 7, 8],
    "Layer": ["-", "conv1", "-"],
    "Direction": ["fprop", "fprop", "bprop"],
    "Module": ["na", "torch.nn.functional", "na"],
    "Op": ["na", "conv2d", "linear"],
    "Kernel": ["copy", "gemm", "gemm"],
    "Params": ["na=na,", "N=1,C=3,fp32,", "M=2,N=3,K=4,fp32,"],
    "Sil(ns)": [10, 20, 30],
    "TC": ["na", "-", "1"],
    "Device": [0, 0, 0],
    "Stream": [7, 7, 13],
    "Grid": ["1,1,1", "2,1,1", "3,1,1"],
    "Block": ["32,1,1", "32,1,1", "64,1,1"],
    "FLOPs": [0.0, 600.0, 0.0],
    "Bytes": [0.0, 80.0, 40.0],
}


def parquet(changes=None, drop=()):
    columns = {name: values for name, values in (ROWS | (changes or {})).items() if name not in drop}
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


def pyprof_csv(rows=ROWS):
    """As pyprof/prof/output.py prints it: every value in quotes."""
    lines = [list(rows), *zip(*rows.values())]
    return "".join(",".join(f'"{value}"' for value in line) + "\n" for line in lines).encode()


def read(path, data):
    path.write_bytes(data)
    return open_profile(path).read().table.to_pydict()


@pytest.mark.parametrize(
    ("data", "name"),
    [(parquet(), "pyprof"), (pyprof_csv(), "pyprof-csv"), (gzip.compress(pyprof_csv()), "pyprof-csv")],
    ids=["parquet", "csv", "csv.gz"],
)
def test_columns_and_absence(tmp_path, data, name):
    path = tmp_path / "anything.gzip"
    table = read(path, data)
    assert open_profile(path).format == name
    assert list(table) == SCHEMA.names
    assert table["kernel"] == ["copy", "gemm", "gemm"]
    assert table["op"] == [None, "conv2d", "linear"]
    assert table["layer"] == [None, "conv1", None]
    assert table["params"] == [None, "N=1,C=3,fp32,", "M=2,N=3,K=4,fp32,"]
    assert table["duration_ns"] == [10.0, 20.0, 30.0]
    assert table["flops"] == [None, 600.0, 0.0]  # 0 beside bytes is a count, 0 and 0 is none
    assert table["bytes"] == [None, 80.0, 40.0]
    assert table["tensor_core"] == [None, None, True]
    assert table["thread"] == [7, 7, 8]
    assert table["start_ns"] == [None, None, None]
    assert table["calls"] == [1, 1, 1]


def test_columns_come_and_go(tmp_path):
    table = read(tmp_path / "a", parquet(drop=["FLOPs", "TC", "Params", "TId", "Op"]))
    assert table["flops"] == table["tensor_core"] == table["thread"] == table["op"] == [None] * 3
    assert table["bytes"] == [0.0, 80.0, 40.0]


def test_absent_numbers_are_null(tmp_path):
    assert read(tmp_path / "a", parquet({"FLOPs": [float("nan"), None, 5.0]}))["flops"] == [None, None, 5.0]


def test_only_requested_columns_are_read(tmp_path):
    (tmp_path / "a").write_bytes(parquet())
    batch = next(open_profile(tmp_path / "a").batches(("kernel", "flops")))
    assert batch.schema.names == ["kernel", "flops"]
    assert batch["flops"].to_pylist() == [None, 600.0, 0.0]


def test_zero_rows(tmp_path):
    path = tmp_path / "a"
    pq.write_table(pa.table(ROWS).slice(0, 0), path)
    assert len(open_profile(path).read()) == 0


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (parquet()[:-100], "parquet that is truncated or corrupted"),
        (parquet()[:50], "parquet that is truncated or corrupted"),
        (b"\x1f\x8b\x08\x00" + b"garbage" * 20, "gzip at byte 0 cannot be decompressed"),
        (
            gzip.compress(pyprof_csv({name: values * 2000 for name, values in ROWS.items()}))[:-90],
            "cannot be read as a pyprof CSV",
        ),
        (parquet(drop=["Sil(ns)"]), "without the column 'Sil(ns)'"),
        (parquet(drop=["Kernel"]), "without the column 'Kernel'"),
        (parquet({"Sil(ns)": [1.0, float("nan"), 2.0]}), "row 1: Sil(ns) is absent"),
        (parquet({"Sil(ns)": [1, None, 2]}), "row 1: Sil(ns) is absent"),
        (parquet({"Sil(ns)": [1, 2, -3]}), "row 2: Sil(ns) is -3"),
        (parquet({"Sil(ns)": [1.0, 2.0, float("inf")]}), "row 2: Sil(ns) is inf"),
        (parquet({"FLOPs": [0.0, -1.0, 0.0]}), "row 1: FLOPs is -1"),
        (parquet({"Sil(ns)": ["a", "b", "c"]}), "not what pyprof writes"),
        (pyprof_csv(ROWS | {"Sil(ns)": [1, 2, -3]}), "row 2: Sil(ns) is -3"),
        (pyprof_csv(ROWS | {"Sil(ns)": [1, "x", 3]}), "'x'"),
        (pyprof_csv() + b'"1","2"\n', "Expected 16 columns, got 2"),
    ],
)
def test_errors_are_one_sentence(tmp_path, data, says):
    path = tmp_path / "run.gzip"
    path.write_bytes(data)
    with pytest.raises(BadProfile) as caught:
        list(open_profile(path).batches())
    assert str(path) in str(caught.value) and says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_damaged_page_is_an_error_after_the_rows_before(tmp_path):
    path = tmp_path / "a"
    table = pa.table({"Kernel": [f"k{i}" for i in range(9000)], "Sil(ns)": list(range(9000))})
    pq.write_table(table, path, row_group_size=3000, compression="gzip", use_dictionary=False)
    place = pq.ParquetFile(path).metadata.row_group(2).column(0).data_page_offset + 60
    data = bytearray(path.read_bytes())
    data[place : place + 40] = bytes(40)
    path.write_bytes(data)
    with pytest.raises(BadProfile, match="cannot be read"):
        list(open_profile(path).batches())


def test_other_parquet_is_not_taken(tmp_path):
    path = tmp_path / "a"
    pq.write_table(pa.table({"function": ["f"], "inc_time": [1.0]}), path)
    assert not PyprofParquet().recognises(path, path.read_bytes())
    assert not PyprofCsv().recognises(path, b"Kernel,Calls\n")


@pytest.mark.parametrize("whole", [parquet(), pyprof_csv()], ids=["parquet", "csv"])
@given(ACCIDENTS)
def test_damaged_files_give_a_result_or_our_error(tmp_path, table_or_our_error, whole, happened):
    path = tmp_path / "a"
    path.write_bytes(damaged(whole, happened))
    table_or_our_error(path, PyprofParquet() if whole[:4] == b"PAR1" else PyprofCsv())
    for method in ("steady", "notebook"):  # which answer with the error
        assert analyse_file(path, ReadOptions(method)).path == path


@pytest.mark.skipif(int(pa.__version__.partition(".")[0]) < 26, reason="older pyarrow imports pandas by itself")
def test_reading_imports_no_pandas(tmp_path):
    """pyarrow's own conversions do, and take a third of a second for it."""
    (tmp_path / "a").write_bytes(parquet())
    program = (
        "import sys, pathlib; from paleo_lite.profile_analysis.one_file import ReadOptions, analyse_file\n"
        f"path = pathlib.Path({str(tmp_path / 'a')!r})\n"
        "for method in ('notebook', 'steady'): assert not analyse_file(path, ReadOptions(method)).error\n"
        "assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.needs_data
def test_real_file_equals_pandas(data_folder):
    pandas = pytest.importorskip("pandas")
    name = "run_0_config_8_2_ib_nvprof_2_resnet50_dali-gpu_32_fp16_fp32_ret_0_0.gzip"
    path = data_folder / "surfboard" / "pyprof_kernels" / name
    expected = pandas.read_parquet(path)
    profile = open_profile(path)
    assert profile.configuration["nodes"] == 8 and profile.configuration["data_loader"] == "dali-gpu"
    table = profile.read().table
    for ours, theirs in [("kernel", "Kernel"), ("duration_ns", "Sil(ns)"), ("grid", "Grid"), ("stream", "Stream")]:
        assert table[ours].to_pylist() == expected[theirs].tolist()
    counted = (expected["FLOPs"] != 0) | (expected["Bytes"] != 0)
    assert table["flops"].to_pylist() == expected["FLOPs"].astype(object).where(counted, None).tolist()
    assert table["op"].to_pylist() == expected["Op"].astype(object).where(expected["Op"].notna(), None).tolist()
    params = expected["Params"].astype(object)
    assert table["params"].to_pylist() == params.where(params != "na=na,", None).tolist()
    assert table["tensor_core"].to_pylist() == [{"0": False}.get(word) for word in expected["TC"]]


def test_columns_that_are_no_columns(tmp_path):
    path = tmp_path / "file"
    rows = [pa.array(["gemm"]), pa.array([5]), pa.array([1]), pa.array([2])]
    pq.write_table(pa.Table.from_arrays(rows, names=["Kernel", "Sil(ns)", "TId", "TId"]), path)
    with pytest.raises(BadProfile, match="file: the column 'TId' is there twice"):
        open_profile(path)
    pq.write_table(pa.table({"Kernel": ["gemm"], "Sil(ns)": [5], "Params": [["N=1"]]}), path)
    with pytest.raises(BadProfile, match="file: the column 'Params' holds lists or structs"):
        open_profile(path)
    pq.write_table(pa.Table.from_arrays([rows[0], rows[1], rows[1]], names=["function", "calls", "calls"]), path)
    with pytest.raises(BadProfile, match="file: the column 'calls' is there twice"):
        open_profile(path)

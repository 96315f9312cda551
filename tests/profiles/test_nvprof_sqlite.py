"""nvprof's SQLite. No real file is available; `conftest.NVPROF_SCHEMA` follows CUPTI's documentation."""

from __future__ import annotations

import shutil
import sqlite3

import pyarrow as pa
import pytest

from paleo_lite.errors import BadProfile
from paleo_lite.profiles.names import normalise
from paleo_lite.profiles.nvprof_sqlite import NvprofSqlite


def read(path):
    return pa.Table.from_batches(NvprofSqlite().batches(path, None)).to_pylist()


@pytest.fixture
def changed(tmp_path, nvprof_file):
    """The file after SQL was run on it."""

    def change(*statements):
        path = tmp_path / "changed.nvprof"
        shutil.copy(nvprof_file, path)
        database = sqlite3.connect(path)
        for statement in statements:
            database.execute(statement)
        database.commit()
        database.close()
        return path

    return change


def named(rows, *columns):
    return [tuple(row[column] for column in columns) for row in rows]


def test_kernels_copies_fills_calls_and_markers(nvprof_file):
    rows = read(nvprof_file)
    assert named(rows, "category", "start_ns", "duration_ns") == [
        ("kernel", 1000, 2500.0),
        ("communication", 4000, 5000.0),
        ("memcpy", 100, 800.0),
        ("memset", 950, 10.0),
        ("api", 90, 8.0),
        ("api", 99, 1.0),
        ("marker", 60, None),
        ("marker", 50, 9450.0),
        ("marker", 9600, None),
    ]
    assert {row["calls"] for row in rows} == {1}


def test_launch_configuration_of_a_kernel(nvprof_file):
    kernel, collective, copy, fill = read(nvprof_file)[:4]
    assert normalise(kernel["kernel"]) == "cudnn::detail::implicit_convolve_sgemm"
    assert named([kernel], "grid", "block", "stream", "device") == [("12544,2,1", "8,8,1", 7, 0)]
    registers = ("metric.registers_per_thread", "metric.static_shared_bytes", "metric.dynamic_shared_bytes")
    assert named([kernel, copy], *registers) == [(32.0, 4096.0, 512.0), (None, None, None)]
    assert kernel["bytes"] is None and collective["stream"] == 9
    assert named([copy, fill], "kernel", "bytes", "device") == [
        ("[CUDA memcpy HtoD]", 602112.0, 0),
        ("[CUDA memset]", 4096.0, 1),
    ]


def test_calls_are_numbers_and_threads_are_of_32_bits(nvprof_file):
    launch, other, *markers = read(nvprof_file)[4:]
    assert launch["kernel"] == "cudaLaunchKernel" and other["kernel"] == "CUDA runtime call 9999"
    assert launch["thread"] == other["thread"] == markers[0]["thread"] == 0x12345678
    assert [marker["kernel"] for marker in markers] == ["epoch", "forward", "forward"]


def test_columns_that_a_version_has_not_are_null(changed):
    table = "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL"
    path = changed(*(f"ALTER TABLE {table} DROP COLUMN {name}" for name in ("gridZ", "registersPerThread", "streamId")))
    kernel = read(path)[0]
    assert named([kernel], "grid", "stream", "metric.registers_per_thread") == [(None, None, None)]
    assert kernel["block"] == "8,8,1"


def test_times_that_could_not_be_collected_are_null(changed):
    path = changed("UPDATE CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL SET start = 0, end = 0 WHERE _id_ = 1")
    assert named(read(path)[:1], "start_ns", "duration_ns") == [(None, None)]


def test_no_files_are_written(tmp_path, nvprof_file):
    path = tmp_path / "a run?#.nvvp"
    shutil.copy(nvprof_file, path)
    path.chmod(0o400)
    read(path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET end = 50", r"MEMCPY row 1: begins at 100 and ends at 50"),
        ("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET start = 'early'", r"RUNTIME row 1: begins at 'early'"),
        ("UPDATE CUPTI_ACTIVITY_KIND_MEMSET SET bytes = 'many'", r"MEMSET rows from 1: not what nvprof writes"),
        ("UPDATE CUPTI_ACTIVITY_KIND_MARKER SET timestamp = -1", r"MARKER: marker 1 at -1"),
        ("UPDATE CUPTI_ACTIVITY_KIND_MARKER SET timestamp = 1 WHERE flags = 4", r"marker 1 ends before it begins"),
        ("DELETE FROM StringTable WHERE _id_ = 2", r"StringTable has no entry 2"),
        ("DROP TABLE StringTable", r"SQLite without the tables of nvprof"),
        ("ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY RENAME COLUMN end TO stop", r"MEMCPY has no column 'end'"),
    ],
)
def test_missing_tables_and_columns_are_refused(changed, statement, message):
    with pytest.raises(BadProfile, match=message):
        read(changed(statement))


def test_a_view_in_the_place_of_a_table_is_not_run(changed):
    endless = (
        "WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start FROM n) SELECT start, start + 1 AS end FROM n"
    )
    path = changed("DROP TABLE CUPTI_ACTIVITY_KIND_MEMCPY", f"CREATE VIEW CUPTI_ACTIVITY_KIND_MEMCPY AS {endless}")
    assert "memcpy" not in {row["category"] for row in read(path)}


def test_messages_for_truncated_files(tmp_path, nvprof_file):
    raw = nvprof_file.read_bytes()
    path = tmp_path / "cut.nvvp"
    for length in (10, 50, 120, 4096, len(raw) // 2, len(raw) - 1):
        path.write_bytes(raw[:length])
        with pytest.raises(BadProfile, match="cut"):
            read(path)


def test_sqlite_without_the_tables_is_not_recognised(tmp_path):
    path = tmp_path / "other.sqlite"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE films(title TEXT)")
    database.close()
    assert not NvprofSqlite().recognises(path, path.read_bytes())
    with pytest.raises(BadProfile, match="without the tables of nvprof"):
        read(path)

"""Nsight Systems' SQLite: the real file against SQL of its own, and small ones after the real one's schema."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given

from paleo_lite.errors import BadProfile
from paleo_lite.profiles.detect import read_head
from paleo_lite.profiles.nsys_sqlite import TABLES, NsysSqlite
from strategies import ACCIDENTS, damaged

REAL = "profiles/nsys_sqlite/h100_2gpu_1s.sqlite"


def read(path: Path, columns=None) -> pa.Table:
    assert NsysSqlite().recognises(path, read_head(path))
    batches = list(NsysSqlite().batches(path, columns))
    assert {batch.schema for batch in batches} == {batches[0].schema}
    return pa.Table.from_batches(batches)


@pytest.fixture(scope="module")
def real(data_folder):
    path = data_folder / REAL
    database = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    yield read(path).to_pylist(), database
    database.close()


@pytest.mark.spread(2)
@pytest.mark.needs_data
@pytest.mark.parametrize(("table", "category"), TABLES.items())
def test_rows_match_the_tables(real, table, category):
    rows, database = real
    mine = [row for row in rows if row["category"] == category]
    host = category in ("api", "marker")
    fields = "globalTid & 0xFFFFFF" if host else "deviceId, streamId"
    expected = database.execute(f"SELECT start, end - start, {fields} FROM {table} ORDER BY rowid").fetchall()
    names = ("start_ns", "duration_ns", "thread") if host else ("start_ns", "duration_ns", "device", "stream")
    assert [tuple(row[name] for name in names) for row in mine] == expected
    assert len(mine) > 0


@pytest.mark.needs_data
def test_real_kernels(real):
    rows, database = real
    kernels = [row for row in rows if row["category"] == "kernel"]
    expected = database.execute(
        "SELECT value, gridX || ',' || gridY || ',' || gridZ, blockX || ',' || blockY || ',' || blockZ "
        "FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = demangledName ORDER BY k.rowid"
    ).fetchall()
    assert [(row["kernel"], row["grid"], row["block"]) for row in kernels] == expected
    copies = database.execute(
        "SELECT copyKind, SUM(bytes), COUNT(*) FROM CUPTI_ACTIVITY_KIND_MEMCPY GROUP BY 1"
    ).fetchall()
    labels = dict(database.execute("SELECT id, label FROM ENUM_CUDA_MEMCPY_OPER"))
    for kind, size, count in copies:
        mine = [row for row in rows if row["kernel"] == f"[CUDA memcpy {labels[kind]}]"]
        assert (sum(row["bytes"] for row in mine), len(mine)) == (size, count)


@pytest.mark.needs_data
def test_real_kernels_are_linked_through_their_launch(real):
    """Innermost by SQL: of PyTorch's ranges around the call on its thread, the one that starts last."""
    rows, database = real
    with closing(sqlite3.connect(":memory:")) as indexed:
        database.backup(indexed)
        indexed.execute("CREATE INDEX ranges ON NVTX_EVENTS (globalTid, start)")
        expected = indexed.execute(
            """
        SELECT (SELECT substr(text, 1, instr(text, ', op_id') - 1) FROM NVTX_EVENTS n
                WHERE n.globalTid = r.globalTid AND n.start <= r.start AND n.end > r.start AND text LIKE '%, op_id = %'
                ORDER BY n.start DESC, n.end LIMIT 1)
        FROM CUPTI_ACTIVITY_KIND_KERNEL k
        LEFT JOIN CUPTI_ACTIVITY_KIND_RUNTIME r
            ON r.correlationId = k.correlationId AND (r.globalTid >> 24) = (k.globalPid >> 24)
        ORDER BY k.rowid
            """
        ).fetchall()
    found = [row["op"] for row in rows if row["category"] == "kernel"]
    assert found == [op for (op,) in expected]
    assert found.count("aten::mm") > 100


@pytest.mark.needs_data
def test_real_kernels_know_when_they_were_launched(real):
    rows, database = real
    expected = database.execute(
        "SELECT r.start FROM CUPTI_ACTIVITY_KIND_KERNEL k LEFT JOIN CUPTI_ACTIVITY_KIND_RUNTIME r"
        " ON r.correlationId = k.correlationId AND (r.globalTid >> 24) = (k.globalPid >> 24) ORDER BY k.rowid"
    ).fetchall()
    assert [(row["launch_ns"],) for row in rows if row["category"] == "kernel"] == expected


@pytest.mark.needs_data
def test_reading_creates_no_files(data_folder, tmp_path):
    path = tmp_path / "run.sqlite"
    path.write_bytes((data_folder / REAL).read_bytes())
    before = path.stat().st_mtime_ns
    read(path)
    assert [one.name for one in tmp_path.iterdir()] == ["run.sqlite"]
    assert path.stat().st_mtime_ns == before


# After the schema of the real file (export version of 2026), with columns taken away as older versions lack them.
KERNEL = (
    "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,"
    " streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,"
    " shortName INTEGER NOT NULL,"
    " gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER"
)
RUNTIME = "start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER"
NVTX = "start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER"
PID = 1 << 24


def build(path: Path, kernel: str = KERNEL, **changed) -> Path:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
    names = [
        "void gemm<1>()",
        "gemm",
        "cudaLaunchKernel_v7000",
        "aten::mm, seq = 3, op_id = 8, sizes = [[2, 3], [3, 4]]",
    ]
    names += ["autograd::engine::evaluate_function: MmBackward0, op_id = 9", "aten::mm, op_id = 10", "epoch"]
    database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(names))
    database.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({kernel})")
    database.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME ({RUNTIME})")
    database.execute(f"CREATE TABLE NVTX_EVENTS ({NVTX})")
    columns = [column.split()[0] for column in kernel.split(", ")]
    base = dict.fromkeys(columns, 1) | {"demangledName": 0, "shortName": 1, "streamId": 7, "globalPid": PID}
    # The same correlation id in two processes: only one of them has the ranges.
    kernels = [
        base | {"start": 100, "end": 150, "correlationId": 5},
        base | {"start": 200, "end": 260, "correlationId": 6},
        base | {"start": 300, "end": 301, "correlationId": 5, "globalPid": 2 * PID},
    ]
    kernels[0] |= changed
    for row in kernels:
        kept = {name: value for name, value in row.items() if name in columns}
        marks = ", ".join("?" * len(kept))
        database.execute(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL ({', '.join(kept)}) VALUES ({marks})", list(kept.values())
        )
    runtime = [(12, 15, 0, PID + 3, 5, 2), (32, 35, 0, PID + 3, 6, 2), (12, 15, 0, 2 * PID + 3, 5, 2)]
    database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?, ?)", runtime)
    ranges = [
        (10, 20, 59, None, PID + 3, 3),
        (30, 40, 59, None, PID + 3, 4),
        (31, 39, 59, None, PID + 3, 5),
        (0, None, 60, "unfinished", PID + 3, None),
        (50, None, 34, None, PID + 3, 6),
        (60, None, 75, "a domain", PID + 3, None),
    ]
    database.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?)", ranges)
    database.commit()
    database.close()
    return path


def test_names_links_and_directions(tmp_path):
    rows = read(build(tmp_path / "run.sqlite")).to_pylist()
    kernels = [row for row in rows if row["category"] == "kernel"]
    assert [(row["kernel"], row["op"], row["params"], row["direction"]) for row in kernels] == [
        ("void gemm<1>()", "aten::mm", "[[2, 3], [3, 4]]", None),
        ("void gemm<1>()", "aten::mm", None, "bprop"),
        ("void gemm<1>()", None, None, None),
    ]
    markers = [row for row in rows if row["category"] == "marker"]
    assert [(row["kernel"].split(",")[0], row["start_ns"], row["duration_ns"]) for row in markers[-3:]] == [
        ("aten::mm", 31, 8.0),
        ("unfinished", 0, None),
        ("epoch", 50, None),
    ]
    assert {row["thread"] for row in markers} == {3}


def with_ranges(path: Path, *ranges: tuple) -> list[tuple]:
    """Step and layer of the kernels launched at 12 and 32 by one thread, with (start, end, kind, name, domain)."""
    database = sqlite3.connect(build(path))
    database.execute("DELETE FROM NVTX_EVENTS")
    database.execute("ALTER TABLE NVTX_EVENTS ADD COLUMN domainId INTEGER")
    for number, (start, end, kind, name, domain) in enumerate(ranges, 100):
        text, known = (name, None) if number % 2 else (None, number)  # some names are registered, others are not
        database.execute("INSERT INTO StringIds VALUES (?, ?)", (number, name))
        database.execute(
            "INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?, ?)", (start, end, kind, text, PID + 3, known, domain)
        )
    database.commit()
    database.close()
    kernels = [row for row in read(path).to_pylist() if row["category"] == "kernel"]
    assert [row["launch_ns"] for row in kernels] == [12, 32, 12]  # the third is of another process
    return [(row["step"], row["layer"]) for row in kernels[:2]]


def test_ranges_of_the_program_are_its_iterations_and_layers(tmp_path):
    """NVTX's documentation: ranges pushed and popped on a thread nest; domains separate the ranges of libraries."""
    found = with_ranges(
        tmp_path / "run.sqlite",
        (0, None, 75, "NCCL", 7),
        (11, 14, 59, "ncclAllReduce", 7),
        (5, 25, 59, "step 1", 0),
        (25, 45, 59, "step 2", 0),
        (10, 20, 59, "encoder/0", 0),
        (28, 39, 59, "encoder/0", 0),
        (31, 36, 59, "attention", 0),
        (0, 50, 60, "epoch", 0),  # started and ended, on whichever thread: nothing is inside of it
    )
    assert found == [("step 1", "encoder|0"), ("step 2", "encoder|0/attention")]


def test_marks_of_the_program_begin_its_iterations(tmp_path):
    found = with_ranges(tmp_path / "run.sqlite", (5, None, 34, "batch", 0), (30, None, 34, "batch", 0))
    assert found == [("batch 1", None), ("batch 2", None)]


def test_columns_that_a_version_lacks_are_null(tmp_path):
    older = "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, shortName INTEGER"
    row = read(build(tmp_path / "run.sqlite", older)).to_pylist()[0]
    assert {name: value for name, value in row.items() if value is not None} == {
        "category": "kernel", "kernel": "gemm", "start_ns": 100, "duration_ns": 50.0, "calls": 1, "stream": 7,
        "device": 1,
    }  # fmt: skip


def test_chosen_columns(tmp_path):
    assert read(build(tmp_path / "run.sqlite"), ("duration_ns", "op")).column_names == ["op", "duration_ns"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"end": 99}, "CUPTI_ACTIVITY_KIND_KERNEL row 1: begins at 100 and ends at 99"),
        ({"end": "soon"}, "row 1: begins at 100 and ends at 'soon'"),
        ({"end": 2**62}, "row 1: begins at 100 and ends at 4611686018427387904"),
        ({"start": 1.5}, "row 1: begins at 1.5"),
        ({"demangledName": 77}, "row 1: StringIds has no entry 77"),
    ],
)
def test_the_error_of_a_damaged_database_names_the_damage(tmp_path, changed, message):
    with pytest.raises(BadProfile, match=message):
        read(build(tmp_path / "run.sqlite", **changed))


def test_long_kernel_name_is_stored_once(tmp_path):
    path = build(tmp_path / "run.sqlite")
    database = sqlite3.connect(path)
    database.execute("UPDATE StringIds SET value = ? WHERE id = 0", ("gemm" * 500_000,))
    rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) SELECT "
    columns = ", ".join(column.split()[0] for column in KERNEL.split(", "))
    database.execute(
        f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL ({columns}) {rows} {columns} FROM n, "
        "(SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid = 1)"
    )
    database.commit()
    database.close()
    kernels = next(iter(NsysSqlite().batches(path, None)))
    assert len(kernels) == 3003 and len(kernels.column("kernel").dictionary) == 1
    assert len(kernels.column("kernel")[0].as_py()) == 2**20
    assert kernels.nbytes < 2**22


def test_message_lists_the_missing_tables(tmp_path):
    path = tmp_path / "other.sqlite"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE notes (text TEXT)")
    database.close()
    with pytest.raises(BadProfile, match=r"looked for StringIds and CUPTI_ACTIVITY_KIND_KERNEL, .*NVTX_EVENTS"):
        read(path)


def test_a_table_without_times(tmp_path):
    with pytest.raises(BadProfile, match="KERNEL has no column 'end'"):
        read(build(tmp_path / "run.sqlite", "start INTEGER, shortName INTEGER"))


def test_nvprofs_file_is_another(tmp_path):
    path = tmp_path / "run.nvvp"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE StringTable (_id_ INTEGER PRIMARY KEY, value TEXT)")
    database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT)")
    database.close()
    assert not NsysSqlite().recognises(path, read_head(path))


@given(ACCIDENTS)
def test_damaged_files_give_a_table_or_our_error(tmp_path, table_or_our_error, happened):
    whole, path = tmp_path / "whole.sqlite", tmp_path / "run.sqlite"
    if not whole.exists():
        build(whole)
    path.write_bytes(damaged(whole.read_bytes(), happened))
    table_or_our_error(path, NsysSqlite())

"""SQLite files are opened read-only, and errors are one line."""

from __future__ import annotations

import gzip
import sqlite3

import pytest

from paleo_lite.errors import BadProfile
from paleo_lite.profiles import sqlite_file
from paleo_lite.profiles.detect import open_profile
from paleo_lite.profiles.sqlite_file import Entries, open_readonly, tables_of


@pytest.fixture
def made(tmp_path):
    path = tmp_path / "a b?#%.sqlite"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE films(title TEXT, year INT)")
    database.executemany("INSERT INTO films VALUES(?, ?)", [("x" * 500, year) for year in range(100)])
    database.execute(
        "CREATE VIEW endless AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT i FROM n"
    )
    database.execute("CREATE VIRTUAL TABLE words USING fts5(text)")
    database.commit()
    database.close()
    return path


def test_plain_tables_only(made):
    with open_readonly(made) as connection:
        tables = tables_of(connection)
    assert tables["films"] == ["title", "year"]
    assert not {"endless", "words"} & set(tables)


def test_database_is_read_only(made):
    before = made.read_bytes()
    with pytest.raises(BadProfile, match="not authorized"), open_readonly(made) as connection:
        connection.execute("DELETE FROM films")
    assert made.read_bytes() == before and list(made.parent.iterdir()) == [made]


def test_text_that_is_no_utf_8(made):
    database = sqlite3.connect(made)
    database.execute("INSERT INTO films VALUES(CAST(x'e9' AS TEXT), 2000)")
    database.commit()
    database.close()
    with open_readonly(made) as connection:
        assert connection.execute("SELECT title FROM films WHERE year = 2000").fetchone() == ("é",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw[:50], "not SQLite, or cut within its header"),
        (lambda raw: raw[: len(raw) - 4096], r"SQLite that is cut: [\d,]+ bytes of [\d,]+"),
        (lambda raw: b"x" + raw[1:], "not SQLite"),
        (gzip.compress, "compressed SQLite, .* decompress it first"),
        (lambda raw: raw[:100] + b"\xff" * 4000 + raw[4100:], "SQLite that is cut or corrupted"),
    ],
)
def test_damage(made, change, message):
    made.write_bytes(change(made.read_bytes()))
    with pytest.raises(BadProfile, match=message) as caught, open_readonly(made) as connection:
        tables_of(connection)
        connection.execute("SELECT * FROM films").fetchall()
    assert "\n" not in str(caught.value)


def test_absent(tmp_path):
    with pytest.raises(BadProfile, match="cannot be read"), open_readonly(tmp_path / "absent"):
        pass


KERNELS = "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start INTEGER, end INTEGER, demangledName INTEGER)"


def write_profile(path, *statements):
    """A profile of Nsight Systems with 100 kernels of 10 ns, unless the statements make it otherwise."""
    database = sqlite3.connect(path)
    for statement in statements or ("CREATE TABLE StringIds(id INTEGER PRIMARY KEY, value TEXT)",):
        database.execute(statement)
    database.commit()
    database.close()
    return path


def test_computed_columns_are_not_evaluated(tmp_path):
    """400 MB of zeros as hexadecimal digits, which took 2.7 GB for a file of 12 KB."""
    path = write_profile(
        tmp_path / "generated.sqlite",
        "CREATE TABLE StringIds(id INTEGER PRIMARY KEY, v2 TEXT)",
        KERNELS,
        "INSERT INTO StringIds(id) VALUES(1)",
        "ALTER TABLE StringIds ADD COLUMN value TEXT AS (hex(zeroblob(400000000)))",
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES(0, 10, 1)",
    )
    with pytest.raises(BadProfile, match="StringIds has no stored columns 'id' and 'value'"):
        list(open_profile(path).batches())
    with (
        pytest.raises(
            BadProfile, match=r"StringIds\.value is computed or not of a plain table, expected a stored column"
        ),
        open_readonly(path) as connection,
    ):
        connection.execute("SELECT value FROM StringIds").fetchall()


@pytest.mark.parametrize("column", ["_id_", "value"])
def test_computed_names_of_nvprof_are_not_evaluated(nvprof_file, tmp_path, column):
    """The table of names was read whatever its columns were: 40 KB took 9 s."""
    path = tmp_path / "nvprof.sqlite"
    path.write_bytes(nvprof_file.read_bytes())
    database = sqlite3.connect(path)
    database.execute(f"ALTER TABLE StringTable RENAME COLUMN {column} TO stored")
    database.execute(f"ALTER TABLE StringTable ADD COLUMN {column} AS (printf('%.*c', 900000000, stored))")
    database.commit()
    database.close()
    with pytest.raises(BadProfile, match=rf"StringTable\.{column} is computed"):
        list(open_profile(path).batches())


@pytest.mark.parametrize("query", ["SELECT i FROM endless", "SELECT text FROM words"])
def test_what_is_not_stored_in_a_plain_table_cannot_be_read(made, query):
    with pytest.raises(BadProfile), open_readonly(made) as connection:
        connection.execute(query).fetchone()
    with open_readonly(made) as connection:
        assert connection.execute("SELECT rowid, year FROM films WHERE rowid = 5").fetchone() == (5, 4)


@pytest.mark.parametrize("module", ["fts5(start, end, demangledName)", "rtree_i32(id, start, end)"])
def test_virtual_tables_behind_a_comment_are_not_opened(tmp_path, module):
    path = write_profile(
        tmp_path / "virtual.sqlite",
        "CREATE TABLE StringIds(id INTEGER PRIMARY KEY, value TEXT)",
        f"CREATE VIRTUAL TABLE CUPTI_ACTIVITY_KIND_KERNEL USING {module}",
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = replace(sql, 'CREATE VIRTUAL', 'CREATE/**/VIRTUAL')",
    )
    with open_readonly(path) as connection:
        assert "CUPTI_ACTIVITY_KIND_KERNEL" not in tables_of(connection)
    with pytest.raises(BadProfile, match="without the tables of Nsight Systems"):
        list(open_profile(path).batches())


def test_a_query_takes_steps_in_proportion_to_the_file(made, monkeypatch):
    monkeypatch.setattr(sqlite_file, "LEAST_STEPS", 10**5)
    with (
        pytest.raises(BadProfile, match=r"more steps than a profile of [\d,]+ bytes needs"),
        open_readonly(made) as opened,
    ):
        opened.execute(
            "SELECT a.year FROM films a, films b, films c, films d WHERE a.year + b.year + c.year + d.year < -1"
        ).fetchall()


@pytest.mark.parametrize("key", ["id INTEGER PRIMARY KEY", "id INTEGER", "id INTEGER UNIQUE", "id TEXT PRIMARY KEY"])
def test_names_are_found_in_steps_in_proportion_to_their_number(tmp_path, key):
    """Twice as many names take about twice the steps, also in a table without a key."""
    steps = []
    for count in (500, 1000, 2000):
        path = tmp_path / f"{count}.sqlite"
        database = sqlite3.connect(path)
        database.execute(f"CREATE TABLE StringIds({key}, value TEXT)")
        database.executemany("INSERT INTO StringIds VALUES(?, ?)", [(number, f"k{number}") for number in range(count)])
        database.commit()
        database.close()
        taken = 0

        def count_steps():
            nonlocal taken
            taken += 1

        with open_readonly(path) as connection:
            connection.set_progress_handler(count_steps, 100)
            entries = Entries(connection, "StringIds", "id", "value", 100)
            wanted = str if "TEXT P" in key else int
            assert [entries.find(wanted(number)) for number in range(count)] == [f"k{n}" for n in range(count)]
        steps.append(taken)
    assert steps[2] < 2.5 * steps[1] < 6.5 * max(steps[0], 1)
    with pytest.raises(KeyError):
        entries.cache.pop("x")


@pytest.mark.parametrize(("start", "end"), [(-(2**63), -(2**63) + 10), (2**62, 2**62 + 10)])
def test_times_that_no_clock_has_are_refused(tmp_path, start, end):
    path = write_profile(
        tmp_path / "times.sqlite",
        "CREATE TABLE StringIds(id INTEGER PRIMARY KEY, value TEXT)",
        KERNELS,
        "INSERT INTO StringIds VALUES(1, 'k')",
        f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES({start}, {end}, 1)",
    )
    with pytest.raises(BadProfile, match=r"CUPTI_ACTIVITY_KIND_KERNEL row 1: begins at -?\d+ and ends at"):
        list(open_profile(path).batches())

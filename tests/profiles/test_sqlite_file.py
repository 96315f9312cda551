"""SQLite files are opened read-only, and errors are one line."""

from __future__ import annotations

import gzip
import sqlite3

import pytest

from paleo_lite.errors import BadProfile
from paleo_lite.profiles.sqlite_file import open_readonly, tables_of


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
    with pytest.raises(BadProfile, match="readonly"), open_readonly(made) as connection:
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

"""Read-only access to untrusted SQLite files: stored values only, in steps in proportion to the size of the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..errors import BadProfile
from ..text import clean_message
from .detect import is_gzip
from .lines import decoded

MAGIC = b"SQLite format 3\0"

STEPS_PER_BYTE = 100
"""Most steps of SQLite's virtual machine per byte of the file. Readers need less than ten."""

LEAST_STEPS = 10**7
"""Steps that every file may take."""

_STEPS = 10**5  # steps between two looks at their number
_LEAST_LENGTH = 2**26  # a text or blob of so many bytes is read from any file; from a longer one of the file's size
_PRAGMAS = ("trusted_schema", "cell_size_check", "table_xinfo", "index_list", "index_info")
_FUNCTIONS = ("substr", "like")
_WHOLE_ROWS = ("", "ROWID")  # columns that SQLite names where it counts rows or finds one by its number
_GENERATED = (2, 3)  # of PRAGMA table_xinfo: columns that SQLite computes from an expression in the file


_SCHEMA = "sqlite_master"


class _Guard:
    """Allows reading, and denies whatever else a file may make SQLite do: functions, pragmas, writing, attaching."""

    def __init__(self) -> None:
        # The columns that may be read besides those of the schema; none before they are known.
        self.tables: dict[str, set[str]] = {}
        self.denied = ""  # the last column whose reading was denied, if any

    def __call__(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if action == sqlite3.SQLITE_READ:
            is_allowed = first == _SCHEMA or second in self.tables.get(first or "", ())
            if not is_allowed:
                self.denied = f"{first}.{second}"
        else:
            is_allowed = action == sqlite3.SQLITE_SELECT
            is_allowed |= action == sqlite3.SQLITE_PRAGMA and first in _PRAGMAS
            is_allowed |= action == sqlite3.SQLITE_FUNCTION and second in _FUNCTIONS
        return sqlite3.SQLITE_OK if is_allowed else sqlite3.SQLITE_DENY


class _Budget:
    """Counts the steps of SQLite's virtual machine; called every `_STEPS`, it ends a query beyond the budget."""

    def __init__(self, size: int) -> None:
        self.remaining = STEPS_PER_BYTE * size + LEAST_STEPS

    def __call__(self) -> int:
        self.remaining -= _STEPS
        return int(self.is_exceeded)

    @property
    def is_exceeded(self) -> bool:
        return self.remaining < 0


@contextmanager
def open_readonly(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a connection that writes neither to the file nor to a journal, and reads what `tables_of` returns.

    Text that is not UTF-8 is read as Latin-1. Errors of SQLite inside the block become BadProfile, as for a file that
    is truncated, compressed, corrupted or not SQLite, or a column that is not stored.
    """
    _check_length(path)
    connection = None
    size = path.stat().st_size
    budget, guard = _Budget(size), _Guard()
    try:
        connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True)
        connection.text_factory = decoded
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(_LEAST_LENGTH, min(size, 10**9)))
        connection.set_authorizer(guard)
        connection.set_progress_handler(budget, _STEPS)
        guard.tables = {name: {*columns, *_WHOLE_ROWS} for name, columns in tables_of(connection).items()}
        yield connection
    except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeDecodeError) as error:
        if budget.is_exceeded:
            raise BadProfile(f"{path}: reading it takes more steps than a profile of {size:,} bytes needs") from None
        if guard.denied:
            column = clean_message(guard.denied[:80])
            raise BadProfile(
                f"{path}: {column} is computed or not of a plain table, expected a stored column"
            ) from None
        raise BadProfile(f"{path}: SQLite that is cut or corrupted ({str(error)[:200]})") from None
    finally:
        if connection is not None:
            connection.close()


def recognised_tables(path: Path, head: bytes) -> dict[str, list[str]] | None:
    """Return the tables of a file with the first bytes `head`; None if it is not SQLite."""
    if not head.startswith(MAGIC):
        return None
    with open_readonly(path) as connection:
        return tables_of(connection)


def tables_of(connection: sqlite3.Connection) -> dict[str, list[str]]:
    """Return the stored columns of every plain table.

    Views, virtual tables and generated columns are left out: they can run code from the file. SQLite itself writes the
    statement of a plain table with these first words, so that no comment can hide another kind.
    """
    rows = connection.execute(
        f"SELECT name FROM {_SCHEMA} WHERE type = 'table' AND rootpage > 0 AND sql LIKE 'CREATE TABLE %' LIMIT 10000"
    ).fetchall()
    tables = {}
    for (name,) in rows:
        if isinstance(name, str) and name.isidentifier():
            columns = connection.execute(f'PRAGMA table_xinfo("{name}")').fetchall()
            tables[name] = [str(column[1]) for column in columns if column[6] not in _GENERATED]
    return tables


class Entries:
    """The values of a table by their key; from a table whose key has no index, all are read at once.

    `table`, `key` and `value` are the names of the table and of its columns; of a text `longest` characters are kept.
    """

    def __init__(self, connection: sqlite3.Connection, table: str, key: str, value: str, longest: int) -> None:
        self.connection, self.table, self.key, self.value, self.longest = connection, table, key, value, longest
        self.cache: dict[Any, Any] = {}
        self.is_complete = not self._has_index()
        if self.is_complete:
            for number, entry in connection.execute(f'SELECT "{key}", "{value}" FROM "{table}"'):
                self.cache[number] = self._short(entry)

    def find(self, number: Any) -> Any:
        """Return the value of a key; raise KeyError if no row has it."""
        if number not in self.cache and not self.is_complete:
            query = f'SELECT "{self.value}" FROM "{self.table}" WHERE "{self.key}" = ?'
            row = self.connection.execute(query, (number,)).fetchone()
            if row is not None:
                self.cache[number] = self._short(row[0])
        return self.cache[number]

    def _short(self, entry: Any) -> Any:
        return entry[: self.longest] if isinstance(entry, (str, bytes)) else entry

    def _has_index(self) -> bool:
        """Return whether SQLite finds a key without reading the whole table."""
        for column in self.connection.execute(f'PRAGMA table_xinfo("{self.table}")').fetchall():
            if column[1] == self.key and column[5] == 1 and str(column[2]).upper() == "INTEGER":
                return True
        for index in self.connection.execute(f'PRAGMA index_list("{self.table}")').fetchall():
            name = str(index[1]).replace('"', '""')
            first = self.connection.execute(f'PRAGMA index_info("{name}")').fetchone()
            if first is not None and first[2] == self.key and not index[4]:
                return True
        return False


def _check_length(path: Path) -> None:
    """Raise if the file is shorter than the number of pages in its header (SQLite file format, section 1.3)."""
    zipped = is_gzip(path)
    with path.open("rb") as file:
        header = file.read(100)
    size = path.stat().st_size
    if zipped:
        raise BadProfile(f"{path}: compressed SQLite, which cannot be read as it is: decompress it first (gunzip)")
    if len(header) < 100 or not header.startswith(MAGIC):
        raise BadProfile(f"{path}: not SQLite, or cut within its header")
    page = int.from_bytes(header[16:18], "big")
    page = 65536 if page == 1 else page
    pages = int.from_bytes(header[28:32], "big")
    if header[24:28] == header[92:96] and pages * page > size:
        raise BadProfile(f"{path}: SQLite that is cut: {size:,} bytes of {pages * page:,}")

"""Read-only access to untrusted SQLite files."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from ..errors import BadProfile
from .detect import is_gzip
from .lines import decoded

MAGIC = b"SQLite format 3\0"


@contextmanager
def open_readonly(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a connection that writes neither to the file nor to a journal.

    Text that is not UTF-8 is read as Latin-1. Errors of SQLite inside the block become BadProfile.

    Raises
    ------
    BadProfile
        If the file is truncated, compressed, corrupted or not SQLite.
    """
    _check_length(path)
    connection = None
    try:
        connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True)
        connection.text_factory = decoded
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        yield connection
    except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeDecodeError) as error:
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
    """Return the columns of every plain table, without views and virtual tables, which can run code from the file."""
    rows = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%' LIMIT 10000"
    ).fetchall()
    tables = {}
    for (name,) in rows:
        if isinstance(name, str) and name.isidentifier():
            columns = connection.execute(f'PRAGMA table_info("{name}")').fetchall()
            tables[name] = [str(column[1]) for column in columns]
    return tables


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

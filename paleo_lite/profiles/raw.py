"""The bytes of a profile: of a regular file, decompressed where it is gzip, and of those no more than a budget.

A few megabytes of gzip can hold gigabytes. Real traces and tables shrink to a thirtieth, so what holds more than
`RATIO` times its size is refused, until somebody allows as much.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, cast

from ..errors import BadProfile

RATIO = 64
ALWAYS = 64 * 2**20
"""Bytes that a file of any size may hold decompressed."""

VARIABLE = "PALEO_LITE_DECOMPRESSED"
"""The environment's variable with the bytes that gzip may hold, which processes that read files inherit."""


def allow(most: float) -> None:
    """Let gzip hold as many bytes, here and in processes that are started from now on."""
    os.environ[VARIABLE] = str(int(most))


def is_gzip(path: Path) -> bool:
    """Whether a file is gzip.

    Raises
    ------
    BadProfile
        If it cannot be read, or is no file: a pipe would be waited for, and read but once.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            what = "a folder" if stat.S_ISDIR(mode) else "a pipe or device, which cannot be read twice"
            raise BadProfile(f"{path}: cannot be read (it is {what})")
        with path.open("rb") as file:
            return file.read(2) == b"\x1f\x8b"
    except OSError as error:
        raise BadProfile(f"{path}: cannot be read ({error.strerror or error})") from None


def opened(path: Path) -> BinaryIO:
    """A file to read from, decompressed where it is gzip.

    Raises
    ------
    BadProfile
        As `is_gzip`; and while it is read, if it holds more than `budget`.
    """
    zipped = is_gzip(path)
    try:
        return cast(BinaryIO, io.BufferedReader(_Bounded(path), 2**18)) if zipped else path.open("rb")
    except OSError as error:
        raise BadProfile(f"{path}: cannot be read ({error.strerror or error})") from None


def budget(path: Path) -> int:
    """Bytes that a gzip file may hold.

    Raises
    ------
    BadProfile
        If the environment's value is not a number of bytes.
    """
    told = os.environ.get(VARIABLE, "")
    if told and not told.isdecimal():
        raise BadProfile(f"{VARIABLE} must be a whole number of bytes, not {told[:40]!r}")
    return int(told) if told else max(ALWAYS, RATIO * path.stat().st_size)


class _Bounded(io.RawIOBase):
    def __init__(self, path: Path) -> None:
        self._path, self._most, self._read = path, budget(path), 0
        self._file = gzip.open(path)  # noqa: SIM115, closed with this

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer)
        self._read += count
        if self._read > self._most:
            raise BadProfile(
                f"{self._path}: gzip of {self._path.stat().st_size:,} bytes that holds more than {self._most:,}: "
                "--decompressed SIZE allows more"
            )
        return count

    def close(self) -> None:
        self._file.close()
        super().close()

"""A profile on disk: the list of all readers and the one that knows it by its content, its name, and its bytes.

A few megabytes of gzip can hold gigabytes. Real traces and tables shrink to a thirtieth, so what holds more than
`RATIO` times its size is refused, until somebody allows as much.
"""

from __future__ import annotations

import gzip
import importlib
import io
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast

import msgspec

from ..errors import BadProfile, BadValue, UnknownFormat

if TYPE_CHECKING:
    import pyarrow as pa

    from .table import KernelTable

READERS: tuple[tuple[str, str], ...] = (
    ("pyprof", "PyprofParquet"),
    ("tau", "TauParquet"),
    ("rocprof", "RocpdSqlite"),
    ("nsys_sqlite", "NsysSqlite"),
    ("nvprof_sqlite", "NvprofSqlite"),
    ("xla", "XlaTrace"),
    ("chrome", "ChromeTrace"),
    ("tau_xml", "TauXml"),
    ("tau", "TauProfile"),
    ("ncu", "NcuCsv"),
    ("nsys_stats", "NsysStatsCsv"),
    ("nvprof_csv", "GpuTraceCsv"),
    ("nvprof_csv", "MetricsCsv"),
    ("nvprof_text", "SummaryText"),
    ("pyprof", "PyprofCsv"),
    ("rocprof", "RocprofCsv"),
    ("vtune", "HotspotsCsv"),
    ("vtune", "ApsSummary"),
    ("torch_table", "TorchTable"),
)
"""Module of this folder and the class in it, the most telling formats first. Imported when needed."""

HEAD = 64 * 2**10

_NSYS = (
    "a report of Nsight Systems, which only NVIDIA's tools read: "
    "`nsys export --type sqlite -o {stem}.sqlite {name}` makes a file that is read here"
)
_ENDINGS = {
    ".nsys-rep": _NSYS,
    ".qdrep": _NSYS,
    ".ncu-rep": "a report of Nsight Compute, which only NVIDIA's tools read: "
    "`ncu --import {name} --csv > {stem}.csv` makes a file that is read here",
    ".xplane.pb": "an XSpace of JAX or TensorFlow: read is the trace that is written beside it, `*.trace.json.gz`",
    ".pftrace": "a trace of Perfetto: `rocprofv3 --output-format csv` writes files that are read here",
}
_SIGNS = (
    (rb"\x80[\x02-\x05]", "a pickle, as PyTorch's memory snapshots are, and loading one runs whatever it says: "
     "https://pytorch.org/memory_viz shows it; `paleo-lite predict NETWORK --phase training` says what a step needs"),
    (rb'\s*\{\s*"rocprofiler-sdk-tool"', "rocprofv3's JSON, which has to be read whole: "
     "`rocprofv3 --output-format csv`, or its database (rocpd), has the same kernels and copies and is read here"),
    (rb'[^\0]*"BeginNs"', "rocprof's trace for Chrome: the `*.csv` that is written beside it is read here"),
)  # fmt: skip
"""What to make of files that no reader knows, by the ending of their names, or how they begin."""

SURFBOARD = (
    r"run_(?P<repetition>\d+)_config_(?P<nodes>\d+)_(?P<gpus_per_node>\d+)_(?P<fabric>[^_]+)_(?P<profiler>[^_]+)"
    r"_(?P<workers>\d+)_(?P<network>[^_]+)_(?P<data_loader>[^_]+)_(?P<batch_size>\d+)_(?P<gradient_precision>[^_]+)"
    r"_(?P<compute_precision>[^_]+)_ret_(?P<return_code>\d+)"
)
"""The pattern of SURFBoard's file names, which is the default."""

RATIO = 64
ALWAYS = 64 * 2**20
"""Bytes that a file of any size may hold decompressed."""

VARIABLE = "PALEO_LITE_DECOMPRESSED"
"""The environment's variable with the bytes that gzip may hold, which processes that read files inherit."""


class Profile(msgspec.Struct, frozen=True):
    """A profile on disk, recognised but not read.

    Attributes
    ----------
    format : str
        Name of the reader: ``pyprof``, ``nvprof-summary``, ``nsys-sqlite``, ...
    configuration : dict
        What the file's name says of the run: nodes, gpus_per_node, batch_size, ... (see `parse_name`).
    has_starts : bool
        False where the format never tells when anything began.
    """

    path: Path
    format: str
    reader: Reader
    configuration: dict[str, Any] = {}
    has_starts: bool = True

    def batches(self, columns: Iterable[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows, a bounded number at a time, with these columns of `SCHEMA` (all without) and the metrics."""
        return self.reader.batches(self.path, None if columns is None else tuple(columns))

    def read(self) -> KernelTable:
        """The whole profile in memory."""
        import pyarrow as pa  # needed only here: who asks what a file's name tells does without

        from .table import SCHEMA, KernelTable

        batches = list(self.batches())
        table = pa.Table.from_batches(batches) if batches else SCHEMA.empty_table()
        return KernelTable(table, self.format, dict(self.configuration))


class Reader(Protocol):
    """What a module of this folder offers; `READERS` lists them all."""

    name: str
    """How the format is called in output and errors."""

    what: str
    """What it reads, in a user's words, for the error that lists the formats."""

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether the first 64 KiB (decompressed where gzip) look like this format. Never by the name's extension."""
        ...

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """The rows in bounded memory; every batch has the same schema, a selection of `table.SCHEMA` in its order."""
        ...


def find_files(paths: Iterable[Path]) -> list[Path]:
    """The files, and those directly in the folders, each once; numbers in their names count as numbers.

    Raises
    ------
    BadValue
        If a path does not exist, or there is no file at all.
    """
    by_place: dict[Path, Path] = {}
    paths = list(paths)
    for path in paths:
        if path.is_dir():
            inside = [file for file in path.iterdir() if file.is_file() and not file.name.startswith(".")]
            files = sorted(inside, key=_natural)
        elif path.exists():
            files = [path]
        else:
            raise BadValue(f"{path}: no such file or folder")
        for file in files:
            by_place.setdefault(file.resolve(), file)
    if not by_place:
        raise BadValue(f"no files in {', '.join(map(str, paths)) or 'nothing'}")
    return list(by_place.values())


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"(\d+)", path.name)]


def open_profile(path: Path, name_pattern: str | None = None) -> Profile:
    """Recognise a profile.

    Parameters
    ----------
    name_pattern : str, optional
        How the file's name tells the run's configuration; see `parse_name`.

    Raises
    ------
    UnknownFormat
        If no reader knows the content; the message lists what is read.
    """
    head = read_head(path)
    readers = []
    for module, name in READERS:  # what is recognised early imports none of the rest
        readers.append(reader := load_reader(module, name))
        if reader.recognises(path, head):
            starts = getattr(reader, "has_starts", True)
            return Profile(path, reader.name, reader, parse_name(path.name, name_pattern), starts)
    instead = next((how for ending, how in _ENDINGS.items() if path.name.endswith(ending)), None)
    instead = instead or next((how for sign, how in _SIGNS if re.match(sign, head)), None)
    if instead is not None:
        raise UnknownFormat(f"{path}: {instead.format(name=path.name, stem=path.name.partition('.')[0])}")
    known = "; ".join(reader.what for reader in readers)
    raise UnknownFormat(f"{path}: not a profile that paleo-lite reads. It reads: {known}")


def load_reader(module: str, name: str) -> Reader:
    """An instance of a reader."""
    reader: Reader = getattr(importlib.import_module(f".{module}", __package__), name)()
    return reader


def parse_name(name: str, pattern: str | None = None) -> dict[str, Any]:
    """The named groups of a pattern in a file's name; whole numbers become int. Empty where it does not match.

    Parameters
    ----------
    name : str
        The file's name without its folder.
    pattern : str, optional
        A regular expression with named groups, `SURFBOARD` without one.

    Raises
    ------
    BadValue
        If the pattern is not a regular expression or has no named group.
    """
    try:
        compiled = re.compile(pattern or SURFBOARD)
    except re.error as error:
        raise BadValue(f"the name pattern is not a regular expression: {error}") from None
    if not compiled.groupindex:
        raise BadValue("the name pattern has no named group: write groups as (?P<batch_size>\\d+)")
    match = compiled.search(name)
    if match is None:
        return {}
    settings = {key: value for key, value in match.groupdict().items() if value is not None}
    return {key: int(value) if value.isdecimal() else value for key, value in settings.items()}


def read_head(path: Path) -> bytes:
    """The first bytes of a file, of what is inside where it is gzip."""
    zipped = is_gzip(path)
    with path.open("rb") as file:
        raw = file.read(HEAD)
    if not raw:
        raise BadProfile(f"{path}: the file is empty")
    if not zipped:
        return raw
    try:
        return zlib.decompressobj(wbits=31).decompress(raw, HEAD)
    except zlib.error as error:
        raise BadProfile(f"{path}: gzip at byte 0 cannot be decompressed ({error})") from None


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


def allow(most: float) -> None:
    """Let gzip hold as many bytes, here and in processes that are started from now on."""
    os.environ[VARIABLE] = str(int(most))

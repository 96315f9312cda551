"""Recognition of profile formats by content, run configurations from file names, and bounded decompression.

A few megabytes of gzip can expand to gigabytes. Real traces and tables compress by a factor of about 30, so a file that
expands to more than `RATIO` times its size is refused unless the limit is raised.
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

from ..errors import BadFile, BadProfile, BadValue, UnknownFormat
from ..files import NO_SUCH_FILE, file_exists
from ..text import natural_order

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
    ("onnxruntime", "OnnxRuntimeJson"),
    ("unitrace", "UnitraceTrace"),
    ("ascend", "AscendTrace"),
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
    ("rocprof", "RocprofSummary"),
    ("rocprof_json", "RocprofJson"),
    ("ascend", "AscendCsv"),
    ("vtune", "HotspotsCsv"),
    ("vtune", "ApsSummary"),
    ("unitrace", "UnitraceText"),
    ("torch_table", "TorchTable"),
)
"""Module of this folder and its reader class, the most specific formats first. Modules are imported when needed."""

HEAD = 64 * 2**10
MOST_UTF16_BYTES = 2**26
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")

_NSYS = (
    "a report of Nsight Systems, which only NVIDIA's tools read: "
    "`nsys export --type sqlite -o {stem}.sqlite {name}` makes a file that is read here"
)
_ARCHIVE = "an archive, which is not read: unpack it, and give the profiles in it"
_ENDINGS = {
    **dict.fromkeys((".tar", ".tar.gz", ".tgz", ".zip"), _ARCHIVE),
    ".nsys-rep": _NSYS,
    ".qdrep": _NSYS,
    ".ncu-rep": "a report of Nsight Compute, which only NVIDIA's tools read: "
    "`ncu --import {name} --csv > {stem}.csv` makes a file that is read here",
    ".xplane.pb": "an XSpace of JAX or TensorFlow, which is not read: use `*.trace.json.gz` from the same folder",
    ".pftrace": "a trace of Perfetto, which is not read: use `rocprofv3 --output-format csv` or `json`",
}
_SIGNS = (
    (rb"\x80[\x02-\x05]", "a pickle (for example a memory snapshot of PyTorch), which can run code when loaded "
     "and is not read: https://pytorch.org/memory_viz shows it; `paleo-lite predict NETWORK --phase training` "
     "predicts the memory"),
    (rb'\s*\{\s*"(?:schema": "[\d.]+-chakra|workload_graph")', "an execution trace (Chakra), which has no times of "
     "kernels: record the same run with `torch.profiler.profile`, and give what `export_chrome_trace` writes"),
    (rb'[^\0]*"BeginNs"', "rocprof's trace for Chrome, which is not read: use the `*.csv` from the same folder"),
)  # fmt: skip
"""Advice for files that no reader supports, by the first bytes (`_SIGNS`) or the end of the name (`_ENDINGS`)."""

_CONTAINERS = (
    (rb"SQLite format 3\0", "SQLite|database"),
    (rb"PAR1", "parquet"),
    (rb"\s*[\[{]", "json|JSON"),
    (rb"\s*<", "XML"),
)
"""What a file is stored in, by its first bytes, and how the descriptions of formats call that."""

SURFBOARD = (
    r"run_(?P<repetition>\d+)_config_(?P<nodes>\d+)_(?P<gpus_per_node>\d+)_(?P<fabric>[^_]+)_(?P<profiler>[^_]+)"
    r"_(?P<workers>\d+)_(?P<network>[^_]+)_(?P<data_loader>[^_]+)_(?P<batch_size>\d+)_(?P<gradient_precision>[^_]+)"
    r"_(?P<compute_precision>[^_]+)_ret_(?P<return_code>\d+)"
)
"""The pattern of SURFBoard's file names, which is the default."""

RATIO = 64
ALWAYS = 64 * 2**20
"""Decompressed bytes that a file of any size may have."""

VARIABLE = "PALEO_LITE_DECOMPRESSED"
"""Environment variable with the maximum of decompressed bytes; worker processes inherit it."""


class Profile(msgspec.Struct, frozen=True):
    """A profile on disk with its recognised format; nothing is read yet."""

    path: Path
    format: str  # name of the reader: `pyprof`, `nvprof-summary`, `nsys-sqlite`, ...
    reader: Reader
    configuration: dict[str, Any] = {}  # run settings from the file name: nodes, batch_size, ... (see `parse_name`)
    has_starts: bool = True  # false for formats without start times

    def batches(self, columns: Iterable[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield batches with the given columns of `SCHEMA` (default: all) and the metrics."""
        return self.reader.batches(self.path, None if columns is None else tuple(columns))

    @property
    def doubts(self) -> list[str]:
        """What contradicts itself in the file, a sentence each; empty for formats that cannot."""
        find_doubts = getattr(self.reader, "doubts", None)
        return [] if find_doubts is None else find_doubts(self.path)

    @property
    def remarks(self) -> list[str]:
        """What the file says besides the times of kernels, a sentence each."""
        find_remarks = getattr(self.reader, "remarks", None)
        return [] if find_remarks is None else find_remarks(self.path)

    @property
    def maker(self) -> str:
        """Maker of the devices that the profiler is for; empty for profilers of several makers' devices."""
        return str(getattr(self.reader, "maker", ""))

    @property
    def measures_shares(self) -> bool:
        """Whether the profiler measures shares of the device's peaks of each kernel."""
        return bool(getattr(self.reader, "measures_shares", False))

    @property
    def capability(self) -> float | None:
        """Highest compute capability of the devices that the profiler recorded; None if it records none."""
        find_capability = getattr(self.reader, "capability", None)
        return None if find_capability is None else find_capability(self.path)

    @property
    def on_processor(self) -> str:
        """What computed all kernels on the processor of the host; empty for profiles of a device."""
        find_processor = getattr(self.reader, "on_processor", None)
        return "" if find_processor is None else find_processor(self.path)

    def read(self) -> KernelTable:
        """Read the whole profile into memory."""
        import pyarrow as pa  # imported here because recognition does not need it

        from .table import SCHEMA, KernelTable

        batches = list(self.batches())
        table = pa.Table.from_batches(batches) if batches else SCHEMA.empty_table()
        return KernelTable(table, self.format, dict(self.configuration))


class Reader(Protocol):
    """Interface of the readers listed in `READERS`."""

    name: str
    """Name of the format in output and errors."""

    description: str
    """The supported files, for the error message that lists the formats."""

    def recognises(self, path: Path, head: bytes) -> bool:
        """Return whether the first 64 KiB (decompressed) have this format, regardless of the file extension."""
        ...

    def batches(self, path: Path, columns: tuple[str, ...] | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in bounded memory; all batches have the same schema, a selection of `table.SCHEMA`."""
        ...


def find_files(paths: Iterable[Path]) -> list[Path]:
    """Return the given files and the files directly in the given folders, without duplicates, in natural order.

    Raise BadFile if a path does not exist, and BadValue if there is no file at all.
    """
    by_resolved: dict[Path, Path] = {}
    paths = list(paths)
    for path in paths:
        if file_exists(path, Path.is_dir):
            visible = [file for file in path.iterdir() if file.is_file() and not file.name.startswith(".")]
            files = sorted(visible, key=lambda file: natural_order(file.name))
        elif file_exists(path, Path.exists):
            files = [path]
        else:
            raise BadFile(f"{path}: {NO_SUCH_FILE}")
        for file in files:
            by_resolved.setdefault(file.resolve(), file)
    if not by_resolved:
        raise BadValue(
            f"no files in {', '.join(map(str, paths))}" if paths else "no files are given: name profiles or folders"
        )
    return list(by_resolved.values())


def open_profile(path: Path, name_pattern: str | None = None) -> Profile:
    """Recognise the format of a profile; `name_pattern` reads the run settings in the file name, see `parse_name`.

    Raise UnknownFormat with the supported formats if no reader recognises the content.
    """
    head = read_head(path)
    readers = []
    for module, name in READERS:  # later modules are not imported after a match
        reader = load_reader(module, name)
        readers.append(reader)
        if reader.recognises(path, head):
            starts = getattr(reader, "has_starts", True)
            return Profile(path, reader.name, reader, parse_name(path.name, name_pattern), starts)
    advice = [text for ending, text in _ENDINGS.items() if path.name.endswith(ending)]
    advice += [text for sign, text in _SIGNS if re.match(sign, head)]
    if advice:
        raise UnknownFormat(f"{path}: {advice[0].format(name=path.name, stem=path.name.partition('.')[0])}")
    nearest = "; ".join(_nearest_formats(readers, path, head))
    raise UnknownFormat(
        f"{path}: not a profile that paleo-lite reads: the nearest of {len(readers)} formats: {nearest}"
    )


def _nearest_formats(readers: list[Reader], path: Path, head: bytes) -> list[str]:
    """Return the descriptions of the three formats that have most in common with a file, nearest first."""
    container = next((pattern for sign, pattern in _CONTAINERS if re.match(sign, head)), r"printed|text|CSV")
    words = set(re.findall(r"[a-z]{4,}", f"{path.name} {head[:4096].decode('latin-1')}".lower()))

    def distance(reader: Reader) -> tuple[bool, int]:
        description = f"{reader.name} {reader.description}"
        common = words & set(re.findall(r"[a-z]{4,}", description.lower()))
        return not re.search(container, description), -len(common)

    return [reader.description for reader in sorted(readers, key=distance)[:3]]


def load_reader(module: str, name: str) -> Reader:
    """Return an instance of a reader class."""
    reader: Reader = getattr(importlib.import_module(f".{module}", __package__), name)()
    return reader


def parse_name(name: str, pattern: str | None = None) -> dict[str, Any]:
    """Return the named groups of a pattern in a file name; integers become int. Empty if it does not match.

    The name is without its folder. The pattern is a regular expression with named groups, by default `SURFBOARD`:
    BadValue if it is not.
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
    """Return the first bytes of a file, decompressed if it is gzip, and as UTF-8 if it is UTF-16."""
    head = _raw_head(path)
    return head.decode("utf-16", errors="replace").encode() if head.startswith(UTF16_MARKS) else head


def _raw_head(path: Path) -> bytes:
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
    """Return whether a file is gzip.

    Raise BadProfile if it cannot be read or is not a regular file: a pipe would block, and can be read only once.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or device, which cannot be read twice"
            raise BadProfile(f"{path}: cannot be read (it is {kind})")
        with path.open("rb") as file:
            return file.read(2) == b"\x1f\x8b"
    except OSError as error:
        raise BadProfile(f"{path}: cannot be read ({error.strerror or error})") from None


def open_decompressed(path: Path) -> BinaryIO:
    """Open a file for reading, with decompression if it is gzip.

    Raise BadProfile as `is_gzip` does; also during reading, if the file expands to more than `decompression_limit`.
    """
    zipped = is_gzip(path)
    try:
        return cast(BinaryIO, io.BufferedReader(_Bounded(path), 2**18)) if zipped else path.open("rb")
    except OSError as error:
        raise BadProfile(f"{path}: cannot be read ({error.strerror or error})") from None


def open_utf8(path: Path) -> BinaryIO:
    """Open a file for reading, decompressed if it is gzip, and as UTF-8 if it is UTF-16, as PowerShell writes it.

    Raise BadProfile if there is more UTF-16 than memory is meant for.
    """
    file = open_decompressed(path)
    if not _raw_head(path).startswith(UTF16_MARKS):
        return file
    with file:
        data = file.read(MOST_UTF16_BYTES + 1)
    if len(data) > MOST_UTF16_BYTES:
        raise BadProfile(f"{path}: more than {MOST_UTF16_BYTES:,} bytes of UTF-16: convert it to UTF-8")
    return io.BytesIO(data.decode("utf-16", errors="replace").encode())


def decompression_limit(path: Path) -> int:
    """Return the maximum number of decompressed bytes of a gzip file.

    Raise BadProfile if the environment variable is not a number of bytes.
    """
    setting = os.environ.get(VARIABLE, "")
    if setting and not setting.isdecimal():
        raise BadProfile(f"{VARIABLE} must be a whole number of bytes, not {setting[:40]!r}")
    return int(setting) if setting else max(ALWAYS, RATIO * path.stat().st_size)


class _Bounded(io.RawIOBase):
    def __init__(self, path: Path) -> None:
        self._path, self._most, self._read = path, decompression_limit(path), 0
        self._file = gzip.open(path)  # noqa: SIM115, closed with this

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            count = self._file.readinto(buffer)
        except gzip.BadGzipFile as error:  # what follows a part is not gzip: damaged, as a file that is cut
            raise EOFError(str(error)) from None
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


def set_decompression_limit(max_bytes: float) -> None:
    """Set the maximum of decompressed bytes, for this process and processes started later."""
    os.environ[VARIABLE] = str(int(max_bytes))

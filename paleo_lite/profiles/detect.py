"""Recognising a profile by its content: the list of all readers, and the one that fits."""

from __future__ import annotations

import importlib
import re
import zlib
from pathlib import Path

from ..errors import BadProfile, UnknownFormat
from .configuration import parse_name
from .raw import is_gzip
from .table import Profile, Reader

READERS: tuple[tuple[str, str], ...] = (
    ("pyprof", "PyprofParquet"),
    ("tau", "TauParquet"),
    ("rocpd", "RocpdSqlite"),
    ("nsys_sqlite", "NsysSqlite"),
    ("nvprof_sqlite", "NvprofSqlite"),
    ("xla", "XlaTrace"),
    ("chrome", "ChromeTrace"),
    ("tau_xml", "TauXml"),
    ("tau_profile", "TauProfile"),
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


def open_profile(path: Path, name_pattern: str | None = None) -> Profile:
    """Recognise a profile.

    Parameters
    ----------
    name_pattern : str, optional
        How the file's name tells the run's configuration; see `configuration.parse_name`.

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
            return Profile(path, reader.name, reader, parse_name(path.name, name_pattern))
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

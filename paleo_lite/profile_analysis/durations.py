"""Batch durations measured independently of a kernel profile: from TAU, markers, or tables of durations.

Source of the three estimates: SURFBoard's notebook ``gpu_efficiency.ipynb``.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import BadProfile
from ..files import file_exists
from ..profiles.detect import is_gzip, parse_name

COLUMN_ALIASES = {
    "loader": "data_loader",
    "bs": "batch_size",
    "batch_size_per_gpu": "batch_size",
    "grad": "gradient_precision",
    "grad_precision": "gradient_precision",
    "compute": "compute_precision",
    "comp": "compute_precision",
    "gpu_per_nodes": "gpus_per_node",
    "gpus": "gpus_per_node",
    "nn": "network",
    "neural_network": "network",
    "network_backend": "fabric",
    "profile_level": "profiler",
    "profile": "profiler",
}
"""Names of configuration columns in tables, and the names that `paleo_lite.profiles.detect` uses for them."""

DURATION_COLUMNS = ("batch_duration_s", "duration_s", "t_min_oldnb", "t_swap_flops")
"""Columns of a table that hold seconds per batch; the first one present is used.

The last two are from SURFBoard's recovered durations: ``t_min_oldnb`` reproduces the notebook's printed table in all 64
rows, ``t_swap_flops`` in 63 (for 16 nodes, 2 workers, dali-gpu, batch 32, fp16 gradients it has 1.239 s, the printed
table 1.095 s).
"""

END_OF_BATCH, FORWARD_PASS = "End of Batch", "Forward Pass"
"""Names of SURFBoard's NVTX markers."""

_CONFIGURATION_COLUMNS = {"nodes", "workers", *COLUMN_ALIASES, *COLUMN_ALIASES.values()}
_PROFILED_BATCHES = 25
_TAU_COLUMNS = ("gpu", "thread", "function", "inc_time")
_Key = tuple[tuple[str, Any], ...]


class Duration(msgspec.Struct, frozen=True):
    """Seconds per batch, and their source: ``tau``, ``nvprof markers``, ``pyprof markers`` or ``table``."""

    seconds: float
    source: str


def tau_batch_duration(run_s: Sequence[float], initialisation_s: Sequence[float], batches: int) -> float:
    """Return seconds per batch: the run time minus the median initialisation time, divided by the number of batches.

    `run_s` has the time of the whole application for each process, of which the longest is used; `initialisation_s`
    those of runs of a single batch, taken as initialisation time. Raise BadProfile if there are no times, or the
    initialisation takes longer than the run.
    """
    if not len(run_s) or not len(initialisation_s):
        raise BadProfile("a batch duration by TAU needs the run's time and at least one initialisation time")
    seconds = (max(run_s) - float(np.median(initialisation_s))) / batches
    if seconds <= 0:
        raise BadProfile(f"by TAU the initialisation takes longer than the run of {max(run_s):g} s")
    return seconds


def nvprof_batch_duration(ends_of_batch_ns: Sequence[int]) -> float:
    """Return the median spacing of the end-of-batch markers, in seconds."""
    return _median_spacing_s(ends_of_batch_ns, END_OF_BATCH)


def pyprof_batch_duration(forward_passes_ns: Sequence[int]) -> float:
    """Return the median spacing of the forward-pass markers of the batches profiled by pyprof, in seconds.

    There is one marker per batch; only the last 25 batches ran with pyprof. The notebook takes ``markers[26:]``
    of 51, which is the last 25.
    """
    return _median_spacing_s(forward_passes_ns[-_PROFILED_BATCHES:], FORWARD_PASS)


def _median_spacing_s(times_ns: Sequence[int], name: str) -> float:
    if len(times_ns) < 2:
        raise BadProfile(f"a batch duration by markers needs at least two of {name!r} (got {len(times_ns)})")
    spacings_ns = np.diff(np.asarray(times_ns, np.int64))
    seconds = float(np.median(spacings_ns)) * 1e-9
    if seconds <= 0:
        raise BadProfile(f"the markers {name!r} are not in the order of time")
    return seconds


class DurationBook:
    """Batch durations by configuration, from any number of files; the shortest one of a configuration is used.

    The configuration of a run matches an entry if they share at least one column and agree in all shared columns.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[dict[str, Any], Duration]] = []

    def add(self, configuration: Mapping[str, Any], duration: Duration) -> None:
        """Add a duration of a configuration."""
        self._entries.append((dict(configuration), duration))

    def find(self, configuration: Mapping[str, Any]) -> Duration | None:
        """Return the shortest duration of a configuration; None if there is none."""
        matching = [duration for entry, duration in self._entries if _matches(entry, configuration)]
        return min(matching, key=lambda duration: duration.seconds, default=None)

    def __len__(self) -> int:
        return len(self._entries)


def _matches(entry: Mapping[str, Any], configuration: Mapping[str, Any]) -> bool:
    shared = entry.keys() & configuration.keys()
    return bool(shared) and all(str(entry[name]) == str(configuration[name]) for name in shared)


def read_durations(
    paths: Iterable[Path],
    *,
    # Parquet file of TAU intervals of runs of a single batch; required with TAU intervals.
    initialisation: Path | None = None,
    tau_batches: int = 50,  # batches of the TAU runs
    name_pattern: str | None = None,  # see `profiles.detect.parse_name`
) -> DurationBook:
    """Read durations from files of any supported type, recognised by content, and from folders of them.

    The types are CSV tables with configuration columns and one of `DURATION_COLUMNS`; CSV files of NVTX markers
    (``name_str``, ``timestamp`` in ns) with the configuration in their names; and parquet files of TAU intervals. Raise
    BadProfile with the name of a file that is of none of these types, or has invalid values.
    """
    book = DurationBook()
    for path in _list_files(paths):
        is_gzip(path)  # raises if the path is not a regular file
        with path.open("rb") as file:
            is_parquet = file.read(4) == b"PAR1"
        if is_parquet:
            if initialisation is None:
                raise BadProfile(f"{path}: TAU intervals also need those of runs of one batch, for the initialisation")
            _add_tau(book, path, initialisation, tau_batches)
        else:
            _add_csv(book, path, name_pattern)
    return book


def _list_files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if file_exists(path, Path.is_dir):
            yield from sorted(child for child in path.iterdir() if child.is_file())
        else:
            yield path


def _add_csv(book: DurationBook, path: Path, name_pattern: str | None) -> None:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            header = reader.fieldnames or []
            if {"name_str", "timestamp"} <= set(header):
                _add_markers(book, path, list(reader), name_pattern)
                return
            column = next((name for name in DURATION_COLUMNS if name in header), None)
            if column is None:
                raise BadProfile(
                    f"{path}: no batch durations: expected a column {', '.join(DURATION_COLUMNS)}, or markers with "
                    f"name_str and timestamp; it has {', '.join(header[:12]) or 'no header'}"
                )
            for line, row in enumerate(reader, 2):
                duration = Duration(_parse_seconds(path, line, row[column]), "table")
                book.add(_configuration_of_row(row), duration)
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadProfile(f"{path}: cannot be read as a CSV of durations ({error})") from None


def _configuration_of_row(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the configuration columns of a table's row, under the names of `paleo_lite.profiles.detect`."""
    configuration = {}
    for name, value in row.items():
        if name in _CONFIGURATION_COLUMNS and value not in (None, ""):
            configuration[COLUMN_ALIASES.get(name, name)] = value
    return configuration


def _parse_seconds(path: Path, line: int, text: str | None) -> float:
    try:
        seconds = float(text or "")
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise BadProfile(f"{path}: line {line}: a batch duration is {text!r}, expected seconds above 0")
    return seconds


def _add_markers(book: DurationBook, path: Path, rows: list[dict[Any, Any]], name_pattern: str | None) -> None:
    times_ns: dict[str, list[int]] = {END_OF_BATCH: [], FORWARD_PASS: []}
    for line, row in enumerate(rows, 2):
        marker = row["name_str"]
        if marker in times_ns:
            timestamp = row["timestamp"] or ""
            if not timestamp.isdecimal():
                raise BadProfile(f"{path}: line {line}: a timestamp is {row['timestamp']!r}, expected nanoseconds")
            times_ns[marker].append(int(timestamp))
    configuration = parse_name(path.name, name_pattern)
    if not configuration:
        raise BadProfile(f"{path}: a file of markers must have the configuration in its name, and this one does not")
    try:
        nvprof = Duration(nvprof_batch_duration(times_ns[END_OF_BATCH]), "nvprof markers")
        book.add(configuration, nvprof)
        pyprof = Duration(pyprof_batch_duration(times_ns[FORWARD_PASS]), "pyprof markers")
        book.add(configuration, pyprof)
    except BadProfile as error:
        raise BadProfile(f"{path}: {error}") from None


def _add_tau(book: DurationBook, path: Path, initialisation: Path, batches: int) -> None:
    initialisation_times = _application_times(initialisation)
    for key, run_s in _application_times(path).items():
        configuration = dict(key)
        initialisation_s = []
        for other_key, seconds in initialisation_times.items():
            if _matches(dict(other_key), configuration):
                initialisation_s += seconds
        if not initialisation_s:
            raise BadProfile(f"{initialisation}: has no run of one batch with {configuration}")
        try:
            book.add(configuration, Duration(tau_batch_duration(run_s, initialisation_s, batches), "tau"))
        except BadProfile as error:
            raise BadProfile(f"{path}: {error}") from None


def _application_times(path: Path) -> dict[_Key, list[float]]:
    """Return the seconds of the whole application on GPU 0, thread 0, by configuration without the repetition."""
    try:
        file = pq.ParquetFile(path)
        missing = [name for name in _TAU_COLUMNS if name not in file.schema_arrow.names]
        if missing:
            raise BadProfile(f"{path}: not TAU intervals: the column {missing[0]!r} is missing")
        columns = [name for name in file.schema_arrow.names if name in _CONFIGURATION_COLUMNS]
        # The profiler is not part of the key, because it differs between runs that belong together.
        key_columns = [name for name in columns if COLUMN_ALIASES.get(name, name) != "profiler"]
        seconds: dict[_Key, list[float]] = {}
        for batch in file.iter_batches(2**16, columns=[*columns, *_TAU_COLUMNS], use_threads=False):
            on_first_thread = pc.and_(pc.equal(batch["gpu"], 0), pc.equal(batch["thread"], 0))
            is_application = pc.equal(batch["function"], ".tau application")
            for row in batch.filter(pc.and_(on_first_thread, is_application)).to_pylist():
                key = tuple((COLUMN_ALIASES.get(name, name), row[name]) for name in key_columns)
                seconds.setdefault(key, []).append(float(row["inc_time"]) * 1e-6)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise BadProfile(f"{path}: TAU intervals that cannot be read ({str(error).splitlines()[0]})") from None
    return seconds

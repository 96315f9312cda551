"""How long a batch took, from what was measured beside a kernel profile: TAU, markers, or a table of durations.

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
from ..profiles.detect import is_gzip, parse_name

SAME = {
    "loader": "data_loader", "bs": "batch_size", "batch_size_per_gpu": "batch_size", "grad": "gradient_precision",
    "grad_precision": "gradient_precision", "compute": "compute_precision", "comp": "compute_precision",
    "gpu_per_nodes": "gpus_per_node", "gpus": "gpus_per_node", "nn": "network", "neural_network": "network",
    "network_backend": "fabric", "profile_level": "profiler", "profile": "profiler",
}  # fmt: skip
"""Names that tables use for the configuration's columns, towards those of `paleo_lite.profiles.detect`."""

DURATION_COLUMNS = ("batch_duration_s", "duration_s", "t_min_oldnb", "t_swap_flops")
"""Columns of a table that are taken as seconds per batch, the first that is there.

The last two are those of SURFBoard's recovered durations: the former gives the notebook's printed table in all 64 rows,
the latter in 63 (16 nodes, 2 workers, dali-gpu, batch 32, fp16 gradients is 1.239 s in it and 1.095 s as printed).
"""

END_OF_BATCH, FORWARD_PASS = "End of Batch", "Forward Pass"
"""Names of SURFBoard's NVTX markers."""

_KNOWN = {"nodes", "workers", *SAME, *SAME.values()}
_PROFILED_BATCHES = 25
_TAU_COLUMNS = ("gpu", "thread", "function", "inc_time")
_Key = tuple[tuple[str, Any], ...]


class Duration(msgspec.Struct, frozen=True):
    """Seconds per batch and where they are from: ``tau``, ``nvprof markers``, ``pyprof markers`` or ``table``."""

    seconds: float
    source: str


def tau_batch_duration(run_s: Sequence[float], initialisation_s: Sequence[float], batches: int = 50) -> float:
    """Run time less the median initialisation, over the batches.

    Parameters
    ----------
    run_s : sequence of float
        Seconds of the whole application, per process; the longest counts.
    initialisation_s : sequence of float
        Seconds of runs of one batch, which are all initialisation.
    batches : int
        Batches of the run.

    Returns
    -------
    float
        Seconds.

    Raises
    ------
    BadProfile
        If there are no times, or the initialisation takes longer than the run.
    """
    if not len(run_s) or not len(initialisation_s):
        raise BadProfile("a batch duration by TAU needs the run's time and at least one initialisation time")
    seconds = (max(run_s) - float(np.median(initialisation_s))) / batches
    if seconds <= 0:
        raise BadProfile(f"by TAU the initialisation takes longer than the run of {max(run_s):g} s")
    return seconds


def nvprof_batch_duration(ends_of_batch_ns: Sequence[int]) -> float:
    """Median spacing of the markers at the end of each batch, in seconds."""
    return _median_spacing(ends_of_batch_ns, END_OF_BATCH)


def pyprof_batch_duration(forward_passes_ns: Sequence[int], profiled: int = _PROFILED_BATCHES) -> float:
    """Median spacing of the forward-pass markers of the last batches, those with pyprof on, in seconds.

    Parameters
    ----------
    forward_passes_ns : sequence of int
        One per batch; all but the last `profiled` are of batches without pyprof. The notebook takes
        ``markers[26:]`` of 51, which is the last 25.
    profiled : int
        Batches with pyprof on.
    """
    return _median_spacing(forward_passes_ns[-profiled:], FORWARD_PASS)


def _median_spacing(times_ns: Sequence[int], name: str) -> float:
    if len(times_ns) < 2:
        raise BadProfile(f"a batch duration by markers needs at least two of {name!r}, not {len(times_ns)}")
    seconds = float(np.median(np.diff(np.asarray(times_ns, np.int64)))) * 1e-9
    if seconds <= 0:
        raise BadProfile(f"the markers {name!r} are not in the order of time")
    return seconds


class DurationBook:
    """Batch durations by configuration, from any number of files; the shortest counts.

    A run's configuration matches an entry's if all columns that both name agree, and they share at least one.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[dict[str, Any], Duration]] = []

    def add(self, configuration: Mapping[str, Any], duration: Duration) -> None:
        """One more duration of a configuration."""
        self._entries.append((dict(configuration), duration))

    def find(self, configuration: Mapping[str, Any]) -> Duration | None:
        """The shortest duration of a configuration; None where there is none."""
        fitting = [duration for known, duration in self._entries if _agree(known, configuration)]
        return min(fitting, key=lambda duration: duration.seconds, default=None)

    def __len__(self) -> int:
        return len(self._entries)


def _agree(known: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
    shared = known.keys() & asked.keys()
    return bool(shared) and all(str(known[name]) == str(asked[name]) for name in shared)


def read_durations(
    paths: Iterable[Path], *, initialisation: Path | None = None, tau_batches: int = 50, name_pattern: str | None = None
) -> DurationBook:
    """Read durations from files that are recognised by content.

    Parameters
    ----------
    paths : iterable of Path
        CSV tables with configuration columns and one of `DURATION_COLUMNS`; CSV files of NVTX markers (``name_str``,
        ``timestamp`` in ns) whose names tell the configuration; parquet of TAU intervals; folders of these.
    initialisation : Path, optional
        Parquet of TAU intervals of runs of one batch; needed with TAU intervals.
    tau_batches : int
        Batches of the TAU runs.
    name_pattern : str, optional
        See `paleo_lite.profiles.detect.parse_name`.

    Raises
    ------
    BadProfile
        If a file is none of these, or what it says cannot be; the sentence names it.
    """
    book = DurationBook()
    for path in _files(paths):
        is_gzip(path)  # which refuses what is no file
        with path.open("rb") as file:
            is_parquet = file.read(4) == b"PAR1"
        if is_parquet:
            if initialisation is None:
                raise BadProfile(f"{path}: TAU intervals also need those of runs of one batch, for the initialisation")
            _add_tau(book, path, initialisation, tau_batches)
        else:
            _add_csv(book, path, name_pattern)
    return book


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
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
            for number, row in enumerate(reader, 2):
                book.add(_configuration(row), Duration(_seconds(path, number, row[column]), "table"))
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadProfile(f"{path}: cannot be read as a CSV of durations ({error})") from None


def _configuration(row: Mapping[Any, Any]) -> dict[str, Any]:
    """The columns of a table's row that are configuration, under our names."""
    return {SAME.get(name, name): value for name, value in row.items() if name in _KNOWN and value not in (None, "")}


def _seconds(path: Path, line: int, text: str | None) -> float:
    try:
        seconds = float(text or "")
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise BadProfile(f"{path}: line {line}: a batch duration is {text!r}, expected seconds above 0")
    return seconds


def _add_markers(book: DurationBook, path: Path, rows: list[dict[Any, Any]], name_pattern: str | None) -> None:
    times: dict[str, list[int]] = {END_OF_BATCH: [], FORWARD_PASS: []}
    for number, row in enumerate(rows, 2):
        if row["name_str"] in times:
            if not (row["timestamp"] or "").isdecimal():
                raise BadProfile(f"{path}: line {number}: a timestamp is {row['timestamp']!r}, expected nanoseconds")
            times[row["name_str"]].append(int(row["timestamp"]))
    configuration = parse_name(path.name, name_pattern)
    if not configuration:
        raise BadProfile(f"{path}: a file of markers must have the configuration in its name, and this one does not")
    try:
        book.add(configuration, Duration(nvprof_batch_duration(times[END_OF_BATCH]), "nvprof markers"))
        book.add(configuration, Duration(pyprof_batch_duration(times[FORWARD_PASS]), "pyprof markers"))
    except BadProfile as error:
        raise BadProfile(f"{path}: {error}") from None


def _add_tau(book: DurationBook, path: Path, initialisation: Path, batches: int) -> None:
    starts = _applications(initialisation)
    for key, run_s in _applications(path).items():
        same = [s for other, seconds in starts.items() if _agree(dict(other), dict(key)) for s in seconds]
        if not same:
            raise BadProfile(f"{initialisation}: has no run of one batch with {dict(key)}")
        try:
            book.add(dict(key), Duration(tau_batch_duration(run_s, same, batches), "tau"))
        except BadProfile as error:
            raise BadProfile(f"{path}: {error}") from None


def _applications(path: Path) -> dict[_Key, list[float]]:
    """Seconds of the whole application on GPU 0, thread 0, by configuration without the repetition."""
    try:
        file = pq.ParquetFile(path)
        missing = [name for name in _TAU_COLUMNS if name not in file.schema_arrow.names]
        if missing:
            raise BadProfile(f"{path}: not TAU intervals: the column {missing[0]!r} is missing")
        names = [name for name in file.schema_arrow.names if name in _KNOWN]
        seconds: dict[_Key, list[float]] = {}
        for batch in file.iter_batches(2**16, columns=[*names, *_TAU_COLUMNS], use_threads=False):
            first = pc.and_(pc.equal(batch["gpu"], 0), pc.equal(batch["thread"], 0))
            chosen = batch.filter(pc.and_(first, pc.equal(batch["function"], ".tau application")))
            for row in chosen.to_pylist():
                # The profiler differs between runs that belong together.
                key = tuple((SAME.get(n, n), row[n]) for n in names if SAME.get(n, n) != "profiler")
                seconds.setdefault(key, []).append(float(row["inc_time"]) * 1e-6)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise BadProfile(f"{path}: TAU intervals that cannot be read ({str(error).splitlines()[0]})") from None
    return seconds

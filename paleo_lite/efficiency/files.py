"""One profile, from the file to the figures of a method: what a worker does, and which files there are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from ..errors import BadProfile, BadValue, PaleoError
from ..profiles.detect import Profile, open_profile
from ..profiles.evidence import Evidence, evidence_of, rank_of
from ..profiles.table import codes, device_rows, numbers
from . import activity, runs
from .activity import Activity
from .device_time import DeviceTime, describe_time
from .steady import Steady, steady_state

Method = Literal["steady", "notebook"]


class Finding(msgspec.Struct, frozen=True):
    """What was found of one file.

    Attributes
    ----------
    configuration : dict
        From the file's name.
    notebook, steady : dict, Steady or None
        The figures of the method that was asked for.
    device_time : DeviceTime or None
        Where the profile has start times.
    evidence : Evidence or None
        Of the device, where kernels have start times; the others are read again in no time.
    rank : int or None
        Of the job that it is one rank of, where the profile or its name says so.
    error : str
        What is wrong with the file, in which case there are no figures.
    """

    path: Path
    format: str = ""
    configuration: dict[str, Any] = {}
    notebook: dict[str, float] | None = None
    steady: Steady | None = None
    device_time: DeviceTime | None = None
    evidence: Evidence | None = None
    rank: int | None = None
    error: str = ""


def examine(
    path: Path, method: Method = "steady", name_pattern: str | None = None, steps: range | None = None, by: str = "op"
) -> Finding:
    """What is found of one file, or what is wrong with it."""
    try:
        profile = open_profile(path, name_pattern)
        steady, device_time, evidence = _steady(profile, steps, by) if method == "steady" else (None, None, None)
        sums = _sums(profile).finish() if method == "notebook" else None
    except PaleoError as error:
        return failed(path, error)
    except Exception as error:  # one file must not end what is read of the others
        return Finding(path, error=f"{path}: cannot be read: a defect of paleo-lite, {type(error).__name__}: {error}")
    told = dict(profile.configuration)
    return Finding(path, profile.format, told, sums, steady, device_time, evidence, rank_of(profile))


def failed(path: Path, error: PaleoError) -> Finding:
    """What is found of a file that cannot be read."""
    text = str(error)
    return Finding(path, error=text if str(path) in text else f"{path}: {text}")


def _sums(profile: Profile) -> NotebookSums:
    sums = NotebookSums()
    for batch in profile.batches(COLUMNS):
        sums = sums.merge(sum_rows(batch))
    _check_kernels(profile, sums.rows)
    if not any(sums.flops.values()):
        raise BadProfile(f"the profiler counted no FLOPs (a {profile.format} file), which the notebook's method needs")
    return sums


def _steady(profile: Profile, steps: range | None, by: str) -> tuple[Steady, DeviceTime | None, Evidence | None]:
    ran, batches, many = Activity(), [], 0
    columns = {*runs.COLUMNS, *(["layer"] if by == "module" else [])}
    for batch in profile.batches(columns | ({*activity.COLUMNS} if profile.has_starts else set())):
        batches.append(runs.find_runs(batch))
        many += len(batches[-1].table)
        if many > runs.MOST:
            raise BadProfile(f"more than {runs.MOST:,} operations: profile fewer iterations, or use --method notebook")
        if profile.has_starts:
            ran.add(batch)
    _check_kernels(profile, sum(found.length for found in batches))
    steady = steady_state(runs.together(batches), steps, by)
    seconds = ran.seconds()
    evidence = None if seconds is None else evidence_of(profile, seconds)
    return steady, describe_time(ran, steady, steps is not None), evidence


def _check_kernels(profile: Profile, rows: int) -> None:
    """Say why there is nothing with a duration on a device, where there is not."""
    if not rows:
        from .totals import total_kernels

        total_kernels(profile, with_busy=False)
        raise BadProfile("its kernels have counters, and no durations: take the time from a run without counters")


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


# The method ``notebook`` ----------------------------------------------------------------------------------------------
#
# Three efficiencies over every row of a profile, as SURFBoard's authors defined them: the functions compute_efficiency,
# flops_per_sec and bandwidth of their notebook ``gpu_efficiency.ipynb``.

COLUMNS = ("category", "kernel", "duration_ns", "flops", "bytes")
"""What the method reads."""


class NotebookSums(msgspec.Struct, frozen=True):
    """Sums over rows, by kernel name. Whole numbers below 2^53, so that no order of merging changes them.

    Attributes
    ----------
    durations_ns, flops : dict of str to float
        By kernel name; FLOPs that the profiler did not count add nothing.
    bytes : float
        Of the rows that took time: the notebook's ``Bytes / Sil`` is infinite for others, and pandas leaves them out.
    all_bytes : float
        Of all rows, which the notebook divides by batch durations.
    """

    durations_ns: Mapping[str, float] = {}
    flops: Mapping[str, float] = {}
    bytes: float = 0.0
    all_bytes: float = 0.0
    rows: int = 0

    def merge(self, later: NotebookSums) -> NotebookSums:
        """Sums over both."""
        return NotebookSums(
            _added(self.durations_ns, later.durations_ns),
            _added(self.flops, later.flops),
            self.bytes + later.bytes,
            self.all_bytes + later.all_bytes,
            self.rows + later.rows,
        )

    def finish(self) -> dict[str, float]:
        """Compute efficiency (a share of 1), FLOP/s and bytes/s, FLOPs and bytes.

        Compute efficiency is the share of time spent in kernels whose NAME has FLOPs in some row. The notebook weighs
        each row's bandwidth by its duration, which is the sum of bytes over the sum of durations.

        Raises
        ------
        BadProfile
            If there are no rows, or they took no time.
        """
        total_ns = sum(self.durations_ns.values())
        if not self.rows:
            raise BadProfile("there are no kernels in it")
        if not total_ns:
            raise BadProfile("its kernels took no time at all")
        compute_ns = sum(duration for name, duration in self.durations_ns.items() if self.flops.get(name))
        return {
            "compute_efficiency": compute_ns / total_ns,
            "flops_per_s": sum(self.flops.values()) / total_ns * 1e9,
            "bandwidth_bytes_per_s": self.bytes / total_ns * 1e9,
            "flops": sum(self.flops.values()),
            "bytes": self.all_bytes,
        }


def sum_rows(batch: pa.RecordBatch) -> NotebookSums:
    """The sums of a batch with the columns `COLUMNS`."""
    batch = device_rows(batch)
    kernel = batch.column("kernel")
    names = [None, *kernel.dictionary.to_pylist()]
    places, duration = codes(kernel), numbers(batch, "duration_ns")
    flops, moved = (numbers(batch, name, 0.0) for name in ("flops", "bytes"))
    # pandas' groupby leaves out rows whose key is absent.
    by_name = {
        label: dict(zip(names[1:], np.bincount(places, weights, len(names))[1:].tolist()))
        for label, weights in (("durations", duration), ("flops", flops))
    }
    timed = float(moved.sum(where=duration > 0))
    return NotebookSums(by_name["durations"], by_name["flops"], timed, float(moved.sum()), int(batch.num_rows))


def _added(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    both = dict(first)
    for name, value in second.items():
        both[name] = both.get(name, 0.0) + value
    return both

"""Kernels of two runs side by side, and whether they differ by more than runs differ among themselves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from ..errors import BadProfile, UnknownName
from ..profiles.detect import Profile, parse_name
from ..profiles.names import classify
from ..profiles.table import device_rows, numbers, values_of
from ..result import Result
from . import BY
from .sample import OUTSIDE, with_shapes
from .totals import SUMS, batches_of, total_kernels

# Student's t, two-sided 95%, for 1 to 30 degrees of freedom (any statistics text; scipy.stats.t.ppf(0.975, n)).
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


class ComparedKernel(msgspec.Struct, frozen=True):
    """One kernel in two runs.

    Attributes
    ----------
    name, label : str
        Normalised name and class.
    a_s, b_s : float or None
        Seconds over all calls, means over the repeats; None where the kernel is in no repeat of that side.
    difference_s, ratio : float or None
        ``b_s - a_s`` and ``b_s / a_s``; None where a side is absent.
    spread_s : float or None
        How far apart two such means are in 19 of 20 cases when nothing has changed; None without repeats.
    verdict : {"beyond spread", "within spread"} or None
    """

    name: str
    label: str
    a_s: float | None
    b_s: float | None
    difference_s: float | None
    ratio: float | None
    spread_s: float | None
    verdict: str | None

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON."""
        row = msgspec.structs.asdict(self)
        return {"name": row.pop("name"), "class": row.pop("label"), **row}


class Comparison(Result, msgspec.Struct, frozen=True, eq=False):
    """Two runs, kernel by kernel, longest in A first, then those that only B has; else those first that differ most.

    Attributes
    ----------
    a, b : list of str
        Paths of the repeats of each side.
    total : ComparedKernel
        The sums over all kernels.
    by : str
        What `kernels` are, of `BY`.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.compare:comparison_page"

    a: list[str]
    b: list[str]
    direction: str
    kernels: list[ComparedKernel]
    total: ComparedKernel
    notes: tuple[str, ...]
    by: str = "kernel"

    @property
    def both(self) -> list[ComparedKernel]:
        """The kernels that both sides have."""
        return [row for row in self.kernels if row.difference_s is not None]

    @property
    def only_a(self) -> list[ComparedKernel]:
        """The kernels that B does not have."""
        return [row for row in self.kernels if row.b_s is None]

    @property
    def only_b(self) -> list[ComparedKernel]:
        """The kernels that A does not have."""
        return [row for row in self.kernels if row.a_s is None]

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON: seconds; kernels of one side have null on the other."""
        return {
            "a": self.a,
            "b": self.b,
            "direction": self.direction,
            "by": self.by,
            "total": self.total.to_dict(),
            "kernels": [row.to_dict() for row in self.kernels],
            "notes": list(self.notes),
        }


def compare(a: Sequence[Profile], b: Sequence[Profile], direction: str = "all", by: str = "kernel") -> Comparison:
    """Lay kernel times of two runs side by side.

    Parameters
    ----------
    a, b : sequence of Profile
        The repeats of each side, at least one; their formats may differ.
    direction : {"all", "fprop", "bprop", "update"}
    by : {"kernel", "op", "shape", "module"}
        What times are summed by.

    Raises
    ------
    UnknownName
        If times cannot be summed so.
    """
    if by not in BY:
        raise UnknownName("grouping", by, BY)
    seconds = _seconds if by == "kernel" else partial(_seconds_by, by=by)
    sides = [[seconds(profile, direction) for profile in side] for side in (a, b)]
    names = dict.fromkeys(name for side in sides for repeat in side for name in repeat)
    rows = [_row(name, *([repeat.get(name) for repeat in side] for side in sides)) for name in names]
    if by == "kernel":
        rows.sort(key=lambda row: (row.a_s is None, -(row.a_s if row.a_s is not None else row.b_s or 0.0), row.name))
    else:
        rows.sort(key=lambda row: (-abs((row.b_s or 0.0) - (row.a_s or 0.0)), row.name))
    sums: list[list[float | None]] = [[sum(repeat.values()) for repeat in side] for side in sides]
    total = _row(("total", "total"), *sums)
    return Comparison(
        [str(profile.path) for profile in a],
        [str(profile.path) for profile in b],
        direction,
        rows,
        total,
        _notes(a, b, total.spread_s is not None),
        by,
    )


def find_repeats(path: Path, name_pattern: str | None = None) -> list[Path]:
    """The files beside a profile whose names differ from its own in ``repetition`` only, itself included.

    Parameters
    ----------
    name_pattern : str, optional
        How names tell the configuration, with a group ``repetition``.
    """

    def key(name: str) -> dict[str, Any]:
        return {key: value for key, value in parse_name(name, name_pattern).items() if key != "repetition"}

    if "repetition" not in parse_name(path.name, name_pattern):
        return [path]
    own = key(path.name)
    return sorted(other for other in path.parent.iterdir() if other.is_file() and key(other.name) == own)


def spread(a: Iterable[float], b: Iterable[float]) -> float | None:
    """How far apart the means of two samples are in 19 of 20 cases if both come from one distribution.

    Student's two-sample test with the pooled variance, so that repeats on one side are enough.

    Parameters
    ----------
    a, b : iterable of float
        At least one value each.

    Returns
    -------
    float or None
        None where neither side has two values.
    """
    samples = [list(a), list(b)]
    freedom = sum(len(sample) - 1 for sample in samples)
    if freedom < 1:
        return None
    squares = sum(sum((value - sum(s) / len(s)) ** 2 for value in s) for s in samples)
    error = math.sqrt(squares / freedom * sum(1 / len(sample) for sample in samples))
    return error * (_T95[freedom - 1] if freedom <= len(_T95) else 1.96)


def _seconds(profile: Profile, direction: str) -> dict[tuple[str, str], float]:
    totals, _ = total_kernels(profile, direction, with_busy=False)
    if not totals.has_durations:
        raise BadProfile(
            f"{profile.path}: a {profile.format} profile without durations, so there are no times to compare"
        )
    seconds: dict[tuple[str, str], float] = {}
    for (raw, category), sums in totals.sums.items():
        # By its name alone: the other side's profiler may name no operations.
        known = classify(raw, "kernel" if category == "convolution" else category)
        key = known.name, known.label
        seconds[key] = seconds.get(key, 0.0) + float(sums[SUMS.index("duration_ns")]) * 1e-9
    return seconds


def _seconds_by(profile: Profile, direction: str, by: str) -> dict[tuple[str, str], float]:
    """Seconds by operation, alone or with its shapes (by kernel where none is named), or by module."""
    wanted = {"op": ("op",), "shape": ("op", "params"), "module": ("layer",)}[by]
    columns = ("category", "kernel", "direction", "duration_ns", *wanted)
    seconds: dict[tuple[str, str], float] = {}
    for batch in batches_of(profile, direction, columns):
        rows = device_rows(batch)
        # Which of a batch's rows bear the same texts: a number for each column, of which the kernel counts last.
        place, texts = zip(*(values_of(rows, name) for name in (*wanted, "kernel")))
        given = list(place)
        if by != "module":
            given[-1] = np.where(given[0] > 0, 0, given[-1])
        else:
            given[-1] = np.zeros(rows.num_rows, np.int64)
        keys, group = np.unique(np.stack(given), axis=1, return_inverse=True)
        times = np.bincount(group.ravel(), numbers(rows, "duration_ns"), keys.shape[1])
        for key, time in zip(keys.T.tolist(), times.tolist()):
            *said, kernel = (known[code] for known, code in zip(texts, key))
            name = _called(by, said, kernel)
            seconds[name, ""] = seconds.get((name, ""), 0.0) + time * 1e-9
    if not seconds:
        raise BadProfile(f"{profile.path}: there are no kernels with a duration in this {profile.format} profile")
    return seconds


def _called(by: str, said: list[str | None], kernel: str | None) -> str:
    if said[0] is None:
        return OUTSIDE if by == "module" else classify(kernel or "unnamed").name
    return with_shapes(said[0], said[1]) if by == "shape" else said[0]


def _row(key: tuple[str, str], a: Sequence[float | None], b: Sequence[float | None]) -> ComparedKernel:
    # A kernel that one repeat does not run took no time there; one that no repeat runs is absent.
    present = [any(value is not None for value in side) for side in (a, b)]
    first, second = ([value or 0.0 for value in side] for side in (a, b))
    a_s, b_s = (sum(side) / len(side) if there else None for side, there in zip((first, second), present))
    if a_s is None or b_s is None:
        return ComparedKernel(*key, a_s, b_s, None, None, None, None)
    apart = spread(first, second)
    verdict = None if apart is None else ("beyond spread" if abs(b_s - a_s) > apart else "within spread")
    return ComparedKernel(*key, a_s, b_s, b_s - a_s, b_s / a_s if a_s else None, apart, verdict)


def _notes(a: Sequence[Profile], b: Sequence[Profile], has_spread: bool) -> tuple[str, ...]:
    notes = []
    if not has_spread:
        notes.append("one run on each side: differences cannot be held against the spread between runs")
    else:
        notes.append(f"spread from {len(a)} and {len(b)} runs: 1 in 20 unchanged kernels lies outside it by chance")
    if len({profile.format for profile in (*a, *b)}) > 1:
        notes.append("the profiles are of different formats, which may leave out different kernels")
    return tuple(notes)

"""Kernel-by-kernel comparison of two runs, with a test whether a difference exceeds the spread between repeats."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from ..errors import BadProfile, UnknownName
from ..profiles.detect import Profile, parse_name
from ..profiles.names import classify
from ..profiles.table import device_rows, float_column, values_of
from ..result import Result
from . import GROUPINGS
from .iteration_work import OUTSIDE_MODULES, name_with_shapes
from .totals import SUMS, batches_in_direction, total_kernels

# Student's t, two-sided 95%, for 1 to 30 degrees of freedom (any statistics text; scipy.stats.t.ppf(0.975, n)).
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip

_NORMAL95 = 1.96  # the normal distribution, for more degrees of freedom


class ComparedKernel(msgspec.Struct, frozen=True):
    """One kernel in two runs.

    Attributes
    ----------
    name, label : str
        Normalised name and class.
    a_s, b_s : float or None
        Seconds over all calls, averaged over the repeats; None if no repeat of that side has the kernel.
    difference_s, ratio : float or None
        ``b_s - a_s`` and ``b_s / a_s``; None if one side lacks the kernel.
    spread_s : float or None
        Largest difference of the two means that is expected by chance in 19 of 20 cases; None without repeats.
    verdict : {"beyond spread", "within spread"} or None
        Whether the difference exceeds `spread_s`.
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
        """Return the documented JSON."""
        row = msgspec.structs.asdict(self)
        return {"name": row.pop("name"), "class": row.pop("label"), **row}


class RunComparison(Result, msgspec.Struct, frozen=True, eq=False):
    """Comparison of two runs.

    Attributes
    ----------
    a, b : list of str
        Paths of the repeats of each side.
    direction : str
        Pass of the kernels, one of `DIRECTIONS`.
    kernels : list of ComparedKernel
        Kernels sorted by time in A, then those only in B; other groups sorted by the size of their difference.
    total : ComparedKernel
        Sum over all kernels.
    by : str
        Key that times are summed by, one of `GROUPINGS`.
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
    def in_both(self) -> list[ComparedKernel]:
        """Kernels that both sides have."""
        return [row for row in self.kernels if row.difference_s is not None]

    @property
    def only_a(self) -> list[ComparedKernel]:
        """Kernels that B does not have."""
        return [row for row in self.kernels if row.b_s is None]

    @property
    def only_b(self) -> list[ComparedKernel]:
        """Kernels that A does not have."""
        return [row for row in self.kernels if row.a_s is None]

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON: seconds; null for the side that lacks a kernel."""
        return {
            "a": self.a,
            "b": self.b,
            "direction": self.direction,
            "by": self.by,
            "total": self.total.to_dict(),
            "kernels": [row.to_dict() for row in self.kernels],
            "notes": list(self.notes),
        }


def compare(a: Sequence[Profile], b: Sequence[Profile], direction: str = "all", by: str = "kernel") -> RunComparison:
    """Compare the kernel times of two runs, each given as one or more repeats, whose formats may differ.

    `direction` is one of `DIRECTIONS`, and `by` one of `GROUPINGS`: UnknownName if it is not.
    """
    if by not in GROUPINGS:
        raise UnknownName("grouping", by, GROUPINGS)
    seconds_a = [_seconds(profile, direction, by) for profile in a]
    seconds_b = [_seconds(profile, direction, by) for profile in b]
    keys = dict.fromkeys(key for repeat in seconds_a + seconds_b for key in repeat)
    rows = []
    for key in keys:
        times_a = [repeat.get(key) for repeat in seconds_a]
        times_b = [repeat.get(key) for repeat in seconds_b]
        rows.append(_compare_times(key, times_a, times_b))
    rows.sort(key=_by_time_in_a if by == "kernel" else _by_difference)
    sums_a = [sum(repeat.values()) for repeat in seconds_a]
    sums_b = [sum(repeat.values()) for repeat in seconds_b]
    total = _compare_times(("total", "total"), sums_a, sums_b)
    return RunComparison(
        [str(profile.path) for profile in a],
        [str(profile.path) for profile in b],
        direction,
        rows,
        total,
        _notes(a, b, total.spread_s is not None),
        by,
    )


def _by_time_in_a(row: ComparedKernel) -> tuple[bool, float, str]:
    """Return a key that sorts kernels by time in A, those only in B last by time in B."""
    if row.a_s is None:
        return True, -(row.b_s or 0.0), row.name
    return False, -row.a_s, row.name


def _by_difference(row: ComparedKernel) -> tuple[float, str]:
    """Return a key that sorts by the size of the difference, largest first."""
    return -abs((row.b_s or 0.0) - (row.a_s or 0.0)), row.name


def find_repeats(path: Path, name_pattern: str | None = None) -> list[Path]:
    """Return the files in a profile's folder that differ from it in ``repetition`` only, including the profile.

    `name_pattern` reads the configuration from a name, with a group ``repetition``.
    """

    def configuration_of(name: str) -> dict[str, Any]:
        configuration = parse_name(name, name_pattern)
        return {key: value for key, value in configuration.items() if key != "repetition"}

    if "repetition" not in parse_name(path.name, name_pattern):
        return [path]
    configuration = configuration_of(path.name)
    files = [file for file in path.parent.iterdir() if file.is_file()]
    return sorted(file for file in files if configuration_of(file.name) == configuration)


def spread(a: Iterable[float], b: Iterable[float]) -> float | None:
    """Return the least significant difference of two means at the 5% level; None if neither side has two values.

    The means of two samples from one distribution differ by less in 19 of 20 cases (Student's two-sample test with the
    pooled variance, so that repeats on one side are enough). Each side has at least one value.
    """
    samples = [list(a), list(b)]
    degrees_of_freedom = sum(len(sample) - 1 for sample in samples)
    if degrees_of_freedom < 1:
        return None
    squares = 0.0
    for sample in samples:
        mean = sum(sample) / len(sample)
        squares += sum((value - mean) ** 2 for value in sample)
    standard_error = math.sqrt(squares / degrees_of_freedom * sum(1 / len(sample) for sample in samples))
    quantile = _T95[degrees_of_freedom - 1] if degrees_of_freedom <= len(_T95) else _NORMAL95
    return standard_error * quantile


def _seconds(profile: Profile, direction: str, by: str) -> dict[tuple[str, str], float]:
    """Return the summed seconds of a profile by (name, class); the class is empty unless `by` is ``kernel``."""
    if by == "kernel":
        return _seconds_by_kernel(profile, direction)
    return _seconds_by_operation(profile, direction, by)


def _seconds_by_kernel(profile: Profile, direction: str) -> dict[tuple[str, str], float]:
    totals, _ = total_kernels(profile, direction, with_busy=False)
    if not totals.has_durations:
        raise BadProfile(
            f"{profile.path}: a {profile.format} profile without durations, so there are no times to compare"
        )
    seconds: dict[tuple[str, str], float] = {}
    for (raw_name, category), sums in totals.sums.items():
        # Classified by name alone, because the other side's profiler may name no operations.
        kernel = classify(raw_name, "kernel" if category == "convolution" else category)
        key = kernel.name, kernel.label
        seconds[key] = seconds.get(key, 0.0) + float(sums[SUMS.index("duration_ns")]) * 1e-9
    return seconds


def _seconds_by_operation(profile: Profile, direction: str, by: str) -> dict[tuple[str, str], float]:
    """Return seconds by operation, with or without shapes (by kernel where none is named), or by module."""
    key_columns = {"op": ("op",), "shape": ("op", "params"), "module": ("layer",)}[by]
    columns = ("category", "kernel", "direction", "duration_ns", *key_columns)
    seconds: dict[tuple[str, str], float] = {}
    for batch in batches_in_direction(profile, direction, columns):
        rows = device_rows(batch)
        codes = []
        texts = []
        for column in (*key_columns, "kernel"):
            column_codes, column_texts = values_of(rows, column)
            codes.append(column_codes)
            texts.append(column_texts)
        # The kernel distinguishes only rows without an operation, and never modules.
        if by == "module":
            codes[-1] = np.zeros(rows.num_rows, np.int64)
        else:
            codes[-1] = np.where(codes[0] > 0, 0, codes[-1])
        keys, group = np.unique(np.stack(codes), axis=1, return_inverse=True)
        times_ns = np.bincount(group.ravel(), float_column(rows, "duration_ns"), keys.shape[1])
        for key, time_ns in zip(keys.T.tolist(), times_ns.tolist()):
            key_texts = [column_texts[code] for column_texts, code in zip(texts, key)]
            name = _group_name(by, key_texts[:-1], key_texts[-1])
            seconds[name, ""] = seconds.get((name, ""), 0.0) + time_ns * 1e-9
    if not seconds:
        raise BadProfile(f"{profile.path}: there are no kernels with a duration in this {profile.format} profile")
    return seconds


def _group_name(by: str, key_texts: list[str | None], kernel: str | None) -> str:
    name = key_texts[0]
    if name is None:
        return OUTSIDE_MODULES if by == "module" else classify(kernel or "unnamed").name
    return name_with_shapes(name, key_texts[1]) if by == "shape" else name


def _compare_times(key: tuple[str, str], a: Sequence[float | None], b: Sequence[float | None]) -> ComparedKernel:
    """Compare the seconds of one kernel in each repeat; None in a repeat that does not run it."""
    # A kernel missing from one repeat took no time there; a kernel missing from all repeats is absent.
    in_a = any(value is not None for value in a)
    in_b = any(value is not None for value in b)
    times_a = [value or 0.0 for value in a]
    times_b = [value or 0.0 for value in b]
    a_s = sum(times_a) / len(times_a) if in_a else None
    b_s = sum(times_b) / len(times_b) if in_b else None
    if a_s is None or b_s is None:
        return ComparedKernel(*key, a_s, b_s, None, None, None, None)
    difference_s = b_s - a_s
    ratio = b_s / a_s if a_s else None
    spread_s = spread(times_a, times_b)
    verdict = None
    if spread_s is not None:
        verdict = "beyond spread" if abs(difference_s) > spread_s else "within spread"
    return ComparedKernel(*key, a_s, b_s, difference_s, ratio, spread_s, verdict)


def _notes(a: Sequence[Profile], b: Sequence[Profile], has_spread: bool) -> tuple[str, ...]:
    notes = []
    if not has_spread:
        notes.append("one run on each side: differences cannot be compared with the spread between runs")
    else:
        notes.append(f"spread from {len(a)} and {len(b)} runs: 1 in 20 unchanged kernels exceeds it by chance")
    if len({profile.format for profile in (*a, *b)}) > 1:
        notes.append("the profiles have different formats, which may omit different kernels")
    return tuple(notes)

"""Where the iterations of a profiled loop begin: as the program marked them, else found from what repeats."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..errors import BadValue
from .runs import Runs, Signature

if TYPE_CHECKING:
    from numpy.typing import NDArray

COVERED = 0.95
"""Share of the thread's time that must be spent in what happens at least once per iteration."""

SPACING = 0.25
"""How far nine of ten distances between beginnings may be from their median."""


class Iterations(msgspec.Struct, frozen=True, eq=False):
    """The iterations of a profile.

    Attributes
    ----------
    anchor : Signature
        The run that every iteration begins with.
    thread : int or None
        The thread that does the forward pass.
    starts : ndarray of int64, shape (iterations,)
        First row of each; what lies before the first belongs to none.
    number : ndarray of int64, shape (runs,)
        The iteration of every run, counted from 0; -1 before the first.
    marks : list of str
        What the program calls them; empty where they were found from what repeats.
    """

    anchor: Signature
    thread: int | None
    starts: NDArray[np.int64]
    number: NDArray[np.int64]
    marks: list[str] = []


def find_iterations(runs: Runs) -> Iterations | None:
    """The iterations of a profile, None where none is marked and nothing repeats as an iteration does.

    Marks win. Without them, the forward thread is the one with the most time in named operations that are not labelled
    backward (in anything, where no operation is named). Its first run that comes back at even distances, and less often
    than almost everything else on the thread, begins an iteration: a layer that repeats within an iteration comes back
    at uneven ones, with the backward pass after the last.

    Parameters
    ----------
    runs : Runs
        Settled.
    """
    if not runs.length:
        return None
    table = runs.table
    thread = _forward_thread(runs)
    if (marked := np.unique(table["step"][table["step"] >= 0])).size:
        number = np.searchsorted(marked, table["step"])
        number[table["step"] < 0] = -1
        first = np.full(len(marked), runs.length)
        np.minimum.at(first, number[number >= 0], table["row"][number >= 0])
        anchor = runs.signatures[table["signature"][0]]
        return Iterations(anchor, thread, first, number, [runs.steps[step] for step in marked])
    candidates = [
        candidate
        for candidate, signature in enumerate(runs.signatures)
        if signature.thread == thread and _forward(signature)
    ]
    named = [candidate for candidate in candidates if runs.signatures[candidate].op is not None]
    candidates = named or candidates
    if not candidates:
        return None
    size = len(runs.signatures)
    counts = np.bincount(table["signature"], minlength=size)
    times = np.bincount(table["signature"], table["duration_ns"], size)
    first = np.full(size, runs.length)
    first[table["signature"][::-1]] = table["row"][::-1]  # rows of a signature ascend
    total = times[candidates].sum()
    for candidate in sorted(candidates, key=lambda candidate: first[candidate]):
        if counts[candidate] < 2:
            continue
        often = [other for other in candidates if counts[other] >= 0.9 * counts[candidate]]
        if times[often].sum() < COVERED * total:
            continue
        starts = table["row"][table["signature"] == candidate]
        if _even(starts):
            number = np.searchsorted(starts, table["row"], side="right") - 1
            return Iterations(runs.signatures[candidate], thread, starts, number)
    return None


def step_numbers(iterations: Iterations) -> list[int]:
    """How a user names each: the number that its mark ends with, else its place counted from 1."""
    ends = [re.search(r"(\d+)\D*$", mark) for mark in iterations.marks]
    numbers = [int(end[1]) for end in ends if end is not None]
    return numbers if len({*numbers}) == len(iterations.starts) else list(range(1, len(iterations.starts) + 1))


def parse_steps(text: str) -> range:
    """Numbers of iterations: ``3``, or ``2:5`` for 2 to 5.

    Raises
    ------
    BadValue
        If it is neither.
    """
    span = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", text.strip())
    if span is None or int(span[2] or span[1]) < int(span[1]):
        raise BadValue(f"--steps must be a number or two such as 2:5, the first and the last step, not {text!r}")
    return range(int(span[1]), int(span[2] or span[1]) + 1)


def typical(
    values: NDArray[Any], among: NDArray[np.bool_], times: NDArray[np.float64] | None = None
) -> NDArray[np.bool_]:
    """Which of some iterations have the most frequent value; none where none is asked about.

    Of values that are equally frequent, that of the iterations that take longest together (with `times`).
    """
    if not among.any():
        return among
    distinct, group, counts = np.unique(values[among], return_inverse=True, return_counts=True)
    together = np.zeros(len(distinct)) if times is None else np.bincount(group, times[among], len(distinct))
    frequent: NDArray[np.bool_] = among & (values == distinct[np.lexsort((-together, -counts))[0]])
    return frequent


def _forward(signature: Signature) -> bool:
    return signature.direction != "bprop"


def _forward_thread(runs: Runs) -> int | None:
    by_thread: dict[int | None, float] = {}
    named = any(signature.op is not None for signature in runs.signatures)
    times = np.bincount(runs.table["signature"], runs.table["duration_ns"], len(runs.signatures))
    for signature, time in zip(runs.signatures, times):
        if _forward(signature) and (signature.op is not None or not named):
            by_thread[signature.thread] = by_thread.get(signature.thread, 0.0) + float(time)
    return max(by_thread, key=lambda thread: by_thread[thread], default=None)


def _even(starts: NDArray[np.int64]) -> bool:
    distances = np.diff(starts)
    middle = np.median(distances)
    return bool(np.mean(np.abs(distances - middle) <= SPACING * middle) >= 0.9)

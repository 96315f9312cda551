"""The ``steady`` method: what one iteration takes once the loop runs evenly, and what it computes in that time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..errors import BadProfile
from .iterations import Iterations, find_iterations, step_numbers, typical
from .overlap import merge
from .runs import Runs, divide, settle
from .sample import Missing, Operator, Run, count_sample, list_missing, list_operators, most_precision
from .traced_call import is_convolution

if TYPE_CHECKING:
    from numpy.typing import NDArray

PARTS = ("forward", "backward", "update", "other")
"""What the kernels of an iteration belong to; `other` is data loading, communication, bookkeeping of gradients."""

COVERED_ENOUGH = 0.9
"""Share of the time for which a count must be known, else the rate is said to be a lower bound."""

_FORWARD, _BACKWARD, _UPDATE, _OTHER = range(4)


class SteadyStep(msgspec.Struct, frozen=True):
    """An iteration that was found.

    Attributes
    ----------
    name : str
        As the program marked it, else its number.
    kernel_s : float
        Summed kernel time.
    counts : bool
        Whether the figures are of it (and of others that count).
    """

    name: str
    kernel_s: float
    counts: bool


class Steady(msgspec.Struct, frozen=True):
    """One steady iteration of a profile; None where the profile does not tell.

    Attributes
    ----------
    iterations, forwards, backwards, matched : int
        Iterations found; with a steady forward pass; with a steady backward pass that is labelled as one; with both.
    forward_s, backward_s, update_s, other_s : float or None
        Medians of the summed kernel time.
    kernel_s : float
        Median sum over all kernels of an iteration.
    busy_s : float or None
        Median of the time in which at least one kernel ran: the union of their intervals.
    compute_s : float or None
        Of `kernel_s`, in operations that have FLOPs.
    flops, bytes : float or None
        Of an iteration, algorithmic: what the shapes ask for, not what an algorithm such as Winograd's executes.
    flops_covered, bytes_covered : float
        Share of `kernel_s` in operations for which they are known.
    profiler_flops, profiler_bytes : float or None
        What the profiler counted of the same.
    conv_flops_forward, conv_flops_backward, conv_forward_s, conv_backward_s : float or None
        Of the convolutions alone.
    precision : str or None
        What nearly all of its products are in, as far as a trace says.
    operators : list of Operator
        Of the sampled iteration, longest first.
    missing : list of Missing
        Longest first.
    steps : list of SteadyStep
        The iterations found; empty where there are none.
    """

    iterations: int
    forwards: int
    backwards: int
    matched: int
    forward_s: float | None
    backward_s: float | None
    update_s: float | None
    other_s: float | None
    kernel_s: float
    busy_s: float | None
    compute_s: float | None
    flops: float | None
    bytes: float | None
    flops_covered: float
    bytes_covered: float
    profiler_flops: float | None
    profiler_bytes: float | None
    conv_flops_forward: float | None = None
    conv_flops_backward: float | None = None
    conv_forward_s: float | None = None
    conv_backward_s: float | None = None
    precision: str | None = None
    operators: list[Operator] = []
    missing: list[Missing] = []
    steps: list[SteadyStep] = []
    notes: list[str] = []


def steady_state(runs: Runs, steps: range | None = None, by: str = "op") -> Steady:
    """The steady iteration of a profile.

    Left out are iterations that run other kernels than most do: the first with its autotuning, one that is cut off.
    Forward and backward passes are judged apart, since a profiler may label some backward passes only.

    Parameters
    ----------
    steps : range, optional
        Only iterations with these numbers (`iterations.step_numbers`).
    by : str
        What `operators` are, of `BY`.

    Raises
    ------
    BadProfile
        If there are no rows, they took no time, or there are no such iterations.
    """
    runs = settle(runs)
    if not runs.length:
        raise BadProfile("there are no kernels in it")
    if not runs.table["duration_ns"].sum():
        raise BadProfile("its kernels took no time at all")
    iterations = find_iterations(runs)
    notes = []
    if iterations is None:
        notes.append("no iterations were found in it: the figures are of the whole profile")
        first = runs.signatures[runs.table["signature"][0]]
        iterations = Iterations(first, None, np.zeros(1, np.int64), np.zeros(len(runs.table), np.int64))
    elif not iterations.marks:
        runs = divide(runs, iterations.starts)
        number = np.searchsorted(iterations.starts, runs.table["row"], side="right") - 1
        iterations = msgspec.structs.replace(iterations, number=number)
    return _Loop(runs, iterations, notes, _chosen(iterations, steps)).summary(by)


def _chosen(iterations: Iterations, steps: range | None) -> NDArray[np.bool_]:
    numbers = step_numbers(iterations)
    chosen = np.array([steps is None or number in steps for number in numbers])
    if steps is not None and not chosen.any():
        known = f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
        raise BadProfile(f"it has no step {steps[0]}{f' to {steps[-1]}' if len(steps) > 1 else ''}: found are {known}")
    return chosen


class _Loop:
    """The runs of a profile, each with its iteration and part."""

    def __init__(self, runs: Runs, loop: Iterations, notes: list[str], chosen: NDArray[np.bool_]) -> None:
        self.runs, self.table, self.notes = runs, runs.table, notes
        self.marks = loop.marks
        self.count = len(loop.starts)
        self.number = loop.number
        of_signature = [
            (one.direction == "bprop", one.thread == loop.thread, is_convolution(one.op), one.op is not None)
            for one in runs.signatures
        ]
        back, main, conv, named = np.array(of_signature, bool).reshape(-1, 4).T[:, self.table["signature"]]
        self.labelled = bool(back.any())
        self.part = self._parts(back, main, named)
        self.chosen = chosen
        # The time of each iteration in convolutions and without them, by part.
        cell = (self.number + 1) * (2 * len(PARTS)) + self.part * 2 + conv
        sums = np.bincount(cell, self.table["duration_ns"], (self.count + 1) * 2 * len(PARTS))
        self.times_ns = sums.astype(np.float64).reshape(self.count + 1, len(PARTS), 2)[
            1:
        ]  # the first is outside of all
        times = self.times_ns.sum(axis=(1, 2))
        forward, backward = (self._mix(part) for part in (_FORWARD, _BACKWARD))
        self.forwards = typical(forward, self._has(_FORWARD) & chosen, times)
        self.backwards = typical(backward, self._has(_BACKWARD) & chosen, times)
        self.matched = self.forwards & self.backwards
        # What an iteration takes in all is asked of those with both passes, else of those with one, else of all.
        self.whole = next((m for m in (self.matched, self.forwards) if m.any()), chosen)
        if not self.labelled:
            self.whole = typical(self._mix(None), chosen, times)
        self.steps = [
            SteadyStep(
                loop.marks[cell] if loop.marks else str(number), float(times[cell]) * 1e-9, bool(self.whole[cell])
            )
            for cell, number in enumerate(step_numbers(loop))
        ]
        self.sample = int(np.flatnonzero(self.whole)[0])

    def _parts(self, back: NDArray[Any], main: NDArray[Any], named: NDArray[Any]) -> NDArray[np.int64]:
        """Without labelled backward passes nothing tells forward from update, and all is other.

        A thread that does backward passes and no forward ones is all backward, in the iterations that are labelled:
        it also accumulates and converts the gradients, under other labels.
        """
        part = np.full(len(self.table), _OTHER)
        if not back.any():
            return part
        threads = {s.thread for s in self.runs.signatures if s.direction == "bprop"}
        behind = np.array([s.thread in threads for s in self.runs.signatures])[self.table["signature"]]
        if (behind & main).any():  # one thread does both: only the label tells
            behind = back
        inside = self.number >= 0
        labelled = np.zeros(self.count, bool)
        labelled[self.number[back & inside]] = True
        begin = np.full(self.count, np.iinfo(np.int64).max)
        there = np.flatnonzero(behind & inside)
        there = there[np.argsort(self.table["row"][there])[::-1]]
        begin[self.number[there]] = self.table["row"][there]  # the first is written last
        before = self.table["row"] < begin[self.number]
        part[main & named & before] = _FORWARD
        part[main & named & ~before] = _UPDATE
        part[behind & labelled[self.number]] = _BACKWARD
        part[~inside] = _OTHER
        return part

    def _has(self, part: int) -> NDArray[np.bool_]:
        return np.bincount(self.number[(self.part == part) & (self.number >= 0)], minlength=self.count) > 0

    def _mix(self, part: int | None) -> NDArray[np.uint64]:
        """For each iteration which kernels how often its part ran."""
        chosen = (self.number >= 0) & (self.part == part if part is not None else True)
        mixes = np.zeros(self.count, np.uint64)
        number, mix = self.number[chosen], self.table["mix"][chosen]
        if not len(number):
            return mixes
        if (number[1:] < number[:-1]).any():
            order = np.argsort(number, kind="stable")
            number, mix = number[order], mix[order]
        first = np.flatnonzero(np.concatenate([[True], number[1:] != number[:-1]]))
        mixes[number[first]] = np.add.reduceat(mix, first)  # modulo 2^64, as the hashes are
        return mixes

    def _median_s(self, among: NDArray[np.bool_], times_ns: NDArray[np.float64]) -> float | None:
        """Median over some iterations of their times."""
        return float(np.median(times_ns[among])) * 1e-9 if among.any() else None

    def summary(self, by: str) -> Steady:
        """Times as medians over the steady iterations, work as it stands in one of them."""
        chosen = np.flatnonzero(self.number == self.sample)
        chosen = chosen[np.argsort(self.table["row"][chosen])]
        parts = self.part[chosen]
        sample = count_sample(self.runs, self.table[chosen], parts == _FORWARD, parts.tolist())
        by_part = self.times_ns.sum(axis=2).T
        kernel_s = self._median_s(self.whole, self.times_ns.sum(axis=(1, 2))) or 0.0
        sampled_ns = sum(run.duration_ns for run in sample)
        flops, moved = (known_sum(getattr(run.cost, name) for run in sample) for name in ("flops", "bytes"))
        flops = flops or None  # where only copies are counted, nothing is
        compute = _share(sample, sampled_ns, lambda run: bool(run.cost.flops))
        covered = _share(sample, sampled_ns, lambda run: run.cost.flops is not None)
        covered_bytes = _share(sample, sampled_ns, lambda run: run.cost.bytes is not None)
        steady = Steady(
            iterations=self.count,
            forwards=int(self.forwards.sum()),
            backwards=int(self.backwards.sum()),
            matched=int(self.matched.sum()),
            forward_s=self._median_s(self.forwards, by_part[_FORWARD]),
            backward_s=self._median_s(self.backwards, by_part[_BACKWARD]),
            update_s=self._median_s(self.matched, by_part[_UPDATE]),
            other_s=self._median_s(self.matched, by_part[_OTHER]),
            kernel_s=kernel_s,
            busy_s=self._busy_s(),
            compute_s=None if flops is None else kernel_s * compute,
            flops=flops,
            bytes=moved,
            flops_covered=covered,
            bytes_covered=covered_bytes,
            profiler_flops=known_sum(run.profiler.flops for run in sample),
            profiler_bytes=known_sum(run.profiler.bytes for run in sample),
            steps=self.steps if self.count > 1 or self.marks else [],
            precision=most_precision(sample),
            operators=list_operators(sample, sampled_ns, by),
            missing=list_missing(sample, sampled_ns),
            notes=self._notes() + _lower_bounds(flops, covered, moved, covered_bytes),
        )
        return self._with_convolutions(steady, sample)

    def _with_convolutions(self, steady: Steady, sample: list[Run]) -> Steady:
        changed: dict[str, float | None] = {}
        for name, part, among in (("forward", _FORWARD, self.forwards), ("backward", _BACKWARD, self.backwards)):
            flops = [run.cost.flops for run in sample if run.part == part and is_convolution(run.signature.op)]
            if flops and None not in flops:
                changed[f"conv_flops_{name}"] = known_sum(flops)
                changed[f"conv_{name}_s"] = self._median_s(among, self.times_ns[:, part, 1])
        return msgspec.structs.replace(steady, **changed)

    def _busy_s(self) -> float | None:
        spans = self.runs.spans_ns
        if spans is None:
            return None
        number = np.repeat(self.number, self.table["rows"])
        busy = []
        for iteration in np.flatnonzero(self.whole):
            starts, ends = merge(*spans[number == iteration].T)
            busy.append(int((ends - starts).sum()))
        return float(np.median(busy)) * 1e-9

    def _notes(self) -> list[str]:
        notes = list(self.notes)
        if self.runs.spans_ns is None:
            notes.append("no start times: sums of kernel times stand in for the time that the device was busy")
        if self.count > 1:
            if not self.labelled:
                notes.append("no backward pass is labelled: forward, backward and update are not told apart")
                if not self.marks:
                    notes.append(
                        f"{self.count} iterations are what repeats, which may be a network's blocks: no mark in the "
                        "profile says where they begin"
                    )
            else:
                notes += self._left_out("forward", self.forwards) + self._left_out("backward", self.backwards)
        return notes

    def _left_out(self, name: str, steady: NDArray[np.bool_]) -> list[str]:
        has = self._has(_FORWARD if name == "forward" else _BACKWARD)
        odd = np.flatnonzero(has & ~steady & self.chosen) + 1
        notes = []
        if len(odd):
            which = ", ".join(map(str, odd[:5])) + (", ..." if len(odd) > 5 else "")
            why = "its kernels differ (autotuning, or cut off)"
            notes.append(f"{name}: iteration {which} of {self.count} left out, {why}")
        if not has.all():
            notes.append(f"{name}: labelled in {int(has.sum())} of {self.count} iterations")
        return notes


def _share(sample: list[Run], total_ns: float, chosen: Callable[[Run], bool]) -> float:
    return sum(run.duration_ns for run in sample if chosen(run)) / total_ns if total_ns else 0.0


def _lower_bounds(flops: float | None, covered: float, moved: float | None, covered_bytes: float) -> list[str]:
    """What to say of rates that most of the time adds nothing to."""
    return [
        f"{name} are known for {share:.0%} of an iteration's time: rates of them are lower bounds"
        for name, known, share in (("FLOPs", flops, covered), ("bytes", moved, covered_bytes))
        if known is not None and share < COVERED_ENOUGH
    ] + [
        f"{name} are unknown for every kernel" for name, known in (("FLOPs", flops), ("bytes", moved)) if known is None
    ]


def known_sum(values: Iterable[float | None]) -> float | None:
    """The sum of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None

"""The ``steady`` method: time and work of one iteration in the steady state.

Iterations are found by the program's marks, or by a repeating operation if there are no marks.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ..errors import BadProfile, BadValue
from .activity import merge_intervals, positions_by_value
from .iteration_work import CountedRun, OperatorWork, UncountedOperation, count_sample, known_sum, summarise_work
from .parameters import is_convolution
from .runs import Runs, Signature, split_at_iterations

if TYPE_CHECKING:
    from numpy.typing import NDArray

PARTS = ("forward", "backward", "update", "other")
"""Parts of an iteration; `other` is data loading, communication and accumulation of gradients."""

MIN_COVERAGE = 0.9
"""Minimum fraction of the time with known counts; below it the rate is reported as a lower bound."""

MIN_THREAD_TIME_SHARE = 0.95
"""Minimum fraction of the thread's time in operations that run at least once per iteration."""

MAX_SPACING_DEVIATION = 0.25
"""Maximum relative deviation from the median of nine in ten distances between iteration starts."""

_FORWARD, _BACKWARD, _UPDATE, _OTHER = range(4)


class SteadyStep(msgspec.Struct, frozen=True):
    """One iteration of a profile."""

    name: str  # name of the program's mark, or the number of the iteration if there are no marks
    kernel_s: float  # summed kernel time
    counts: bool  # whether the iteration is one of those that the figures describe


class SteadyIteration(msgspec.Struct, frozen=True):
    """One iteration in the steady state; figures are None if the profile does not determine them."""

    # Number of iterations: all of them; with a steady forward pass; with a steady backward pass that is labelled
    # as one; with both.
    iterations: int
    forwards: int
    backwards: int
    matched: int
    # Median of the summed kernel time of each part.
    forward_s: float | None
    backward_s: float | None
    update_s: float | None
    other_s: float | None
    kernel_s: float  # median of the summed time of all kernels of an iteration
    busy_s: float | None  # median of the time in which at least one kernel ran: the union of the kernels' intervals
    compute_s: float | None  # part of `kernel_s` in operations that have FLOPs
    # Algorithmic FLOPs and bytes of an iteration, from the shapes; algorithms such as Winograd execute fewer
    # FLOPs.
    flops: float | None
    bytes: float | None
    # Share of `kernel_s` in operations with known FLOPs, and with known bytes.
    flops_covered: float
    bytes_covered: float
    # FLOPs and bytes of an iteration as counted by the profiler.
    profiler_flops: float | None
    profiler_bytes: float | None
    # FLOPs and kernel time of the convolutions.
    conv_flops_forward: float | None = None
    conv_flops_backward: float | None = None
    conv_forward_s: float | None = None
    conv_backward_s: float | None = None
    precision: str | None = None  # precision of nearly all matrix products, if the profile records it
    operators: list[OperatorWork] = []  # operations of one steady iteration, longest first
    missing: list[UncountedOperation] = []  # operations without a FLOP count, longest first
    steps: list[SteadyStep] = []  # all iterations; empty if none were found
    notes: list[str] = []


NO_ITERATIONS = "no iterations were found in it: the figures are of the whole profile"
"""Note of a profile without iterations."""


class Iterations(msgspec.Struct, frozen=True, eq=False):
    """The iterations of a profile."""

    anchor: Signature  # signature of the first run of every iteration
    thread: int | None  # thread of the forward pass
    # First row of each iteration; rows before the first iteration belong to none; shape (iterations,).
    starts: NDArray[np.int64]
    number: NDArray[np.int64]  # index of the iteration of each run; -1 before the first iteration; shape (runs,)
    marks: list[str] = []  # names of the program's marks; empty if iterations were found by repetition


def analyse_steady_state(runs: Runs, steps: range | None = None, by: str = "op") -> SteadyIteration:
    """Return the time and work of one steady iteration of a profile.

    Iterations that run other kernels than most iterations are left out, such as the first one with its autotuning, or
    one that is cut off. Forward and backward passes are judged separately, because a profiler may label only some
    backward passes.

    The runs are those of the whole profile, `steps` the numbers of the iterations to use (`step_numbers`), by default
    all, and `by` is one of `GROUPINGS`. Raise BadProfile if there are no rows, the rows took no time, or no iteration
    has one of the numbers.
    """
    if not runs.length:
        raise BadProfile("there are no kernels in it")
    if not runs.table["duration_ns"].sum():
        raise BadProfile("its kernels took no time at all")
    loop = find_iterations(runs)
    notes = []
    if loop is None:
        notes.append(NO_ITERATIONS)
        first = runs.signatures[runs.table["signature"][0]]
        loop = Iterations(first, None, np.zeros(1, np.int64), np.zeros_like(runs.table["row"]))
    elif not loop.marks:
        runs = split_at_iterations(runs, loop.starts)
        number = np.searchsorted(loop.starts, runs.table["row"], side="right") - 1
        loop = msgspec.structs.replace(loop, number=number)
    numbers = step_numbers(loop)
    chosen = np.array([steps is None or number in steps for number in numbers])
    if steps is not None and not chosen.any():
        recorded_steps = f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
        raise BadProfile(
            f"it has no step {steps[0]}{f' to {steps[-1]}' if len(steps) > 1 else ''}: found are {recorded_steps}"
        )
    return _summary(runs, loop, _judge(runs, loop, chosen), notes, by)


class _Judged(NamedTuple):
    """Selection of the iterations used for the figures."""

    part: NDArray[np.int64]  # index in `PARTS`; shape (runs,)
    labelled: bool  # whether any backward pass is labelled
    ran: NDArray[np.bool_]  # whether an iteration has kernels in a part; shape (iterations, parts)
    times_ns: NDArray[np.float64]  # kernel time; shape (iterations, parts)
    # Selected iterations; with a steady forward pass; with a steady backward pass; used for the total time; shape
    # (iterations,).
    chosen: NDArray[np.bool_]
    forwards: NDArray[np.bool_]
    backwards: NDArray[np.bool_]
    whole: NDArray[np.bool_]


def _judge(runs: Runs, loop: Iterations, chosen: NDArray[np.bool_]) -> _Judged:
    """Assign runs to parts, and find the iterations with the most frequent combination of kernels."""
    table = runs.table
    signature = table["signature"]
    is_backward = np.array([item.direction == "bprop" for item in runs.signatures])[signature]
    is_on_forward_thread = np.array([item.thread == loop.thread for item in runs.signatures])[signature]
    has_name = np.array([item.op is not None for item in runs.signatures])[signature]
    part = _parts(runs, loop, is_backward, is_on_forward_thread & has_name)
    # One cell per iteration and part. Runs outside all iterations are in the first row of cells, which is dropped.
    cell = (loop.number + 1) * len(PARTS) + part
    shape = (len(loop.starts) + 1, len(PARTS))
    cells = shape[0] * shape[1]
    ran: NDArray[np.bool_] = (np.bincount(cell, minlength=cells) > 0).reshape(shape)[1:]
    times_ns = np.bincount(cell, table["duration_ns"], cells).astype(np.float64).reshape(shape)[1:]
    times = times_ns.sum(axis=1)
    mixes = np.zeros(cells, np.uint64)
    np.add.at(mixes, cell, table["mix"])  # modulo 2^64, like the hashes
    mixes = mixes.reshape(shape)[1:]
    forwards = most_frequent(mixes[:, _FORWARD], ran[:, _FORWARD] & chosen, times)
    backwards = most_frequent(mixes[:, _BACKWARD], ran[:, _BACKWARD] & chosen, times)
    labelled = bool(is_backward.any())
    if labelled:
        complete = chosen
        if (forwards & backwards).any():
            complete = forwards & backwards
        elif forwards.any() or backwards.any():
            complete = forwards if forwards.any() else backwards
    else:
        complete = most_frequent(mixes.sum(axis=1, dtype=np.uint64), chosen, times)
    return _Judged(part, labelled, ran, times_ns, chosen, forwards, backwards, complete)


def _parts(
    runs: Runs, loop: Iterations, is_backward: NDArray[np.bool_], is_forward_operation: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the part of each run; all are `other` if no backward pass is labelled.

    A thread that runs backward but no forward passes also accumulates and converts gradients, under other labels. In
    iterations with a labelled backward pass, everything on such a thread is backward. Both masks have shape (runs,):
    that of the runs that are labelled backward, and that of the named operations of the forward thread.
    """
    row, number = runs.table["row"], loop.number
    part = np.full(len(row), _OTHER)
    if not is_backward.any():
        return part
    backward_threads = {signature.thread for signature in runs.signatures if signature.direction == "bprop"}
    if loop.thread in backward_threads:  # one thread runs both passes: only the label decides
        is_on_backward_side = is_backward
    else:
        on_backward_thread = [signature.thread in backward_threads for signature in runs.signatures]
        is_on_backward_side = np.array(on_backward_thread)[runs.table["signature"]]
    is_inside = number >= 0
    has_label = np.zeros(len(loop.starts), bool)
    has_label[number[is_backward & is_inside]] = True
    first_backward_row = np.full(len(loop.starts), np.iinfo(np.int64).max)
    backward_rows = is_on_backward_side & is_inside
    np.minimum.at(first_backward_row, number[backward_rows], row[backward_rows])
    is_before_backward = row < first_backward_row[number]
    is_forward = is_before_backward | is_labelled_forward(runs)
    part[is_forward_operation & is_forward] = _FORWARD
    part[is_forward_operation & ~is_forward] = _UPDATE
    part[is_on_backward_side & has_label[number]] = _BACKWARD
    part[~is_inside] = _OTHER
    return part


def is_labelled_forward(runs: Runs) -> NDArray[np.bool_]:
    """Return which runs the profile labels forward, in a profile that labels updates as well.

    Others label everything forward that is not backward: there only the order in an iteration tells them apart. With
    both labels an iteration may also begin after its forward pass.
    """
    directions = np.array([signature.direction for signature in runs.signatures], dtype=object)
    labels_both = (directions == "update").any()
    is_forward = np.asarray((directions == "fprop") & labels_both, dtype=bool)
    return np.asarray(is_forward[runs.table["signature"]])


def _summary(runs: Runs, loop: Iterations, judged: _Judged, notes: list[str], by: str) -> SteadyIteration:
    """Return median times over the steady iterations, and the work of one of them."""
    first_steady = np.flatnonzero(judged.whole)[0]
    sampled_runs = np.flatnonzero(loop.number == first_steady)
    sampled_runs = sampled_runs[np.argsort(runs.table["row"][sampled_runs])]
    sample = count_sample(runs, sampled_runs, judged.part[sampled_runs].tolist(), _FORWARD)
    computing, work = summarise_work(sample, by)
    times, by_part = judged.times_ns.sum(axis=1), judged.times_ns.T
    matched = judged.forwards & judged.backwards
    kernel_s = _median_s(judged.whole, times) or 0.0
    busy_s = None
    if runs.spans_ns is not None:
        busy_s = _busy_s(runs.spans_ns, np.repeat(loop.number, runs.table["rows"]), judged.whole)
    steady = SteadyIteration(
        iterations=len(loop.starts),
        forwards=int(judged.forwards.sum()),
        backwards=int(judged.backwards.sum()),
        matched=int(matched.sum()),
        forward_s=_median_s(judged.forwards, by_part[_FORWARD]),
        backward_s=_median_s(judged.backwards, by_part[_BACKWARD]),
        update_s=_median_s(matched, by_part[_UPDATE]),
        other_s=_median_s(matched, by_part[_OTHER]),
        kernel_s=kernel_s,
        busy_s=busy_s,
        compute_s=None if work["flops"] is None else kernel_s * computing,
        steps=[
            SteadyStep(mark, float(time) * 1e-9, bool(counts))
            for mark, time, counts in zip(loop.marks or map(str, step_numbers(loop)), times, judged.whole)
            if loop.marks or len(loop.starts) > 1
        ],
        **work,
        **_convolutions(runs, loop, judged, sample),
    )
    return msgspec.structs.replace(steady, notes=notes + _notes(runs, loop, judged, steady))


def _median_s(among: NDArray[np.bool_], times_ns: NDArray[np.float64]) -> float | None:
    """Return the median time of the selected iterations."""
    return float(np.median(times_ns[among])) * 1e-9 if among.any() else None


def _busy_s(spans_ns: NDArray[np.int64], number: NDArray[np.int64], selected: NDArray[np.bool_]) -> float:
    """Return the median busy time (union of intervals) of iterations; `number` is the iteration of each row."""
    busy = []
    for iteration, rows in positions_by_value(number):
        if iteration >= 0 and selected[iteration]:
            starts, ends = merge_intervals(*spans_ns[rows].T)
            busy.append(int((ends - starts).sum()))
    return float(np.median(busy)) * 1e-9


def _convolutions(runs: Runs, loop: Iterations, judged: _Judged, sample: list[CountedRun]) -> dict[str, Any]:
    """Return FLOPs and times of the convolutions per pass, if the FLOPs of all of them are known."""
    figures: dict[str, Any] = {}
    convolves = np.array([is_convolution(signature.op) for signature in runs.signatures])[runs.table["signature"]]
    convolves &= loop.number >= 0
    for name, part, among in (("forward", _FORWARD, judged.forwards), ("backward", _BACKWARD, judged.backwards)):
        flops = [run.cost.flops for run in sample if run.part == part and is_convolution(run.signature.op)]
        if flops and None not in flops:
            figures[f"conv_flops_{name}"] = known_sum(flops)
            in_pass = convolves & (judged.part == part)
            times_ns = np.bincount(loop.number[in_pass], runs.table["duration_ns"][in_pass], len(loop.starts)).astype(
                np.float64
            )
            figures[f"conv_{name}_s"] = _median_s(among, times_ns)
    return figures


def _notes(runs: Runs, loop: Iterations, judged: _Judged, steady: SteadyIteration) -> list[str]:
    """Return notes on substitutes, left-out iterations and lower bounds."""
    notes, count = [], len(loop.starts)
    if runs.spans_ns is None:
        notes.append("no start times: sums of kernel times are used in place of the busy time of the device")
    if count > 1 and not judged.labelled:
        odd = np.flatnonzero(judged.chosen & ~judged.whole) + 1
        if len(odd):
            notes.append(_left_out_note("", odd, count))
        notes.append("no backward pass is labelled: forward, backward and update are not separated")
        if not loop.marks:
            notes.append(
                f"the profile has no step markers: {count} repeating segments were taken as iterations and may be "
                "blocks of the network"
            )
    elif count > 1:
        for name, part, among in (("forward", _FORWARD, judged.forwards), ("backward", _BACKWARD, judged.backwards)):
            has = judged.ran[:, part]
            odd = np.flatnonzero(has & ~among & judged.chosen) + 1
            if len(odd):
                notes.append(_left_out_note(f"{name}: ", odd, count))
            if not has.all():
                notes.append(f"{name}: labelled in {int(has.sum())} of {count} iterations")
    quantities = (("FLOPs", steady.flops, steady.flops_covered), ("bytes", steady.bytes, steady.bytes_covered))
    for name, value, share in quantities:
        if value is not None and share < MIN_COVERAGE:
            notes.append(f"{name} are known for {share:.0%} of an iteration's time: rates of them are lower bounds")
    for name, value, _ in quantities:
        if value is None:
            notes.append(f"{name} are unknown for every kernel")
    return notes


def _left_out_note(subject: str, odd: NDArray[np.int64], count: int) -> str:
    """Return the note on iterations, by their places from 1, that are left out."""
    which = ", ".join(map(str, odd[:5])) + (", ..." if len(odd) > 5 else "")
    return f"{subject}iteration {which} of {count} left out, its kernels differ (autotuning, or cut off)"


# Where iterations begin -----------------------------------------------------------------------------------------------


def find_iterations(runs: Runs) -> Iterations | None:
    """Find the iterations of a profile; None if there are neither marks nor a regularly repeating operation.

    Marks have priority. Without marks, the forward thread is the one with the most time in named operations that are
    not labelled backward (in all operations if none is named). Its first run that repeats at even distances, and less
    often than almost all other operations of the thread, begins an iteration. A layer that repeats within an iteration
    has uneven distances, because the backward pass follows the last one.
    """
    if not runs.length:
        return None
    table, size = runs.table, len(runs.signatures)
    times = np.bincount(table["signature"], table["duration_ns"], size)
    named = any(signature.op is not None for signature in runs.signatures)
    by_thread: dict[int | None, float] = {}
    for signature, time in zip(runs.signatures, times.tolist()):
        if signature.direction != "bprop" and (signature.op is not None or not named):
            by_thread[signature.thread] = by_thread.get(signature.thread, 0.0) + time
    thread = max(by_thread, key=lambda thread: by_thread[thread], default=None)
    if (table["step"] >= 0).any():
        return _marked_iterations(runs, thread)
    signatures = list(enumerate(runs.signatures))
    on_thread = [index for index, item in signatures if item.thread == thread and item.direction != "bprop"]
    candidates = [index for index in on_thread if runs.signatures[index].op is not None] or on_thread
    counts = np.bincount(table["signature"], minlength=size)
    first = np.full(size, runs.length)
    first[table["signature"][::-1]] = table["row"][::-1]  # rows of a signature ascend
    rows_of = dict(positions_by_value(table["signature"]))
    by_count = np.array(sorted(candidates, key=lambda candidate: counts[candidate]), np.int64)
    ascending_counts = counts[by_count]
    # Time of the candidates from each place of `by_count` on: of those that run at least so often.
    times_from = np.append(np.cumsum(times[by_count][::-1])[::-1], 0.0)
    total = times_from[0]
    for candidate in sorted(candidates, key=lambda candidate: first[candidate]):
        often = np.searchsorted(ascending_counts, 0.9 * counts[candidate])
        if counts[candidate] < 2 or times_from[often] < MIN_THREAD_TIME_SHARE * total:
            continue
        starts = table["row"][rows_of[candidate]]
        distances = np.diff(starts)
        middle = np.median(distances)
        if np.mean(np.abs(distances - middle) <= MAX_SPACING_DEVIATION * middle) >= 0.9:
            number = np.searchsorted(starts, table["row"], side="right") - 1
            return Iterations(runs.signatures[candidate], thread, starts, number)
    return None


def _marked_iterations(runs: Runs, thread: int | None) -> Iterations:
    """Return the iterations marked by the program."""
    step, row = runs.table["step"], runs.table["row"]
    marked = np.unique(step[step >= 0])
    number = np.searchsorted(marked, step)
    number[step < 0] = -1
    first = np.full(len(marked), runs.length)
    np.minimum.at(first, number[number >= 0], row[number >= 0])
    anchor = runs.signatures[runs.table["signature"][0]]
    return Iterations(anchor, thread, first, number, [runs.steps[step] for step in marked])


def step_numbers(iterations: Iterations) -> list[int]:
    """Return the number of each iteration: the last number in its mark, else its position from 1."""
    # No more digits than a number has: longer ones take the square of their length to search, and int() refuses them.
    ends = [re.search(r"(\d{1,30})\D*$", mark) for mark in iterations.marks]
    numbers = [int(end[1]) for end in ends if end is not None]
    return numbers if len({*numbers}) == len(iterations.starts) else list(range(1, len(iterations.starts) + 1))


def parse_steps(text: str) -> range:
    """Parse numbers of iterations: ``3``, or ``2:5`` for 2 to 5; raise BadValue for any other text."""
    span = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", text.strip())
    if span is None or int(span[2] or span[1]) < int(span[1]):
        raise BadValue(f"`--steps` must be a number or a range such as 2:5 (got {text!r})")
    return range(int(span[1]), int(span[2] or span[1]) + 1)


def most_frequent(
    values: NDArray[Any], among: NDArray[np.bool_], times: NDArray[np.float64] | None = None
) -> NDArray[np.bool_]:
    """Return a mask of the iterations in `among` with the most frequent value.

    A tie is resolved by the total time of the iterations (with `times`).
    """
    if not among.any():
        return among
    distinct, group, counts = np.unique(values[among], return_inverse=True, return_counts=True)
    total_times = np.zeros(len(distinct)) if times is None else np.bincount(group, times[among], len(distinct))
    frequent: NDArray[np.bool_] = among & (values == distinct[np.lexsort((-total_times, -counts))[0]])
    return frequent

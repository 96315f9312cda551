"""What a trace tells only between its lines: which operation launched a kernel, in which direction, step and module.

A kernel's ``External id`` names the innermost operation that ran when it was launched. Many versions of the profiler
wrote the correlation id there instead (in all events alike): such ids are not a link, and the call that launched the
kernel, found by its correlation, is looked up among the operations that were running on its thread.

PyTorch's profiler marks each call of its ``step`` (``ProfilerStep#3``); those win. Else what a program marks itself
(``record_function("train_step")``, NVTX) is taken for iterations where it comes at least twice under one name but for
its digits, one after the other, and around almost everything that was launched. Of several such, one in the other, the
outermost: a network's blocks come within its steps. A mark without a length lasts to the next of its name.

The profiler also writes the forward call of each module (``with_stack=True``) and the ranges of ``record_function``.
They nest, and the path of their names says where in the program a kernel comes from. A backward operation runs on
autograd's thread, outside of all of them: its place is that of the forward operation it belongs to.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .table import coded

Integers = NDArray[np.int64]

OPERATION = np.dtype(
    [
        ("external", "i8"),  # -1 where the trace gives none
        ("thread", "i4"),  # a code: the same for the same process and thread
        ("start", "i8"),
        ("end", "i8"),
        ("name", "i4"),  # codes of texts
        ("params", "i4"),
        ("sequence", "i8"),  # autograd's, -1 without
        ("direction", "i1"),  # of `DIRECTIONS`, as far as its own event says
    ]
)
"""One operation (or, for its direction only, an annotation): 45 bytes."""

LAUNCH = np.dtype([("correlation", "i8"), ("thread", "i4"), ("start", "i8")])
"""One call of the runtime or driver: 20 bytes."""

DIRECTIONS = ("fprop", "bprop", "update")
"""Names of the directions; -1 is none."""

FPROP, BPROP, UPDATE = range(3)

_BACKWARD = ("autograd::engine::evaluate_function", "torch::autograd::")
STEP = "Optimizer.step#"
"""What PyTorch calls the range around an optimiser's step begins like this."""

PROFILER_STEP = "ProfilerStep"
"""What PyTorch calls a step begins like this."""

COVERED = 0.9
"""Share of the launches that marks must be around to be iterations."""

MODULE = "nn.Module: "
"""What the range of a module's forward call begins with."""

_DIGITS = re.compile(r"\d+")
_NO_PLACE = (PROFILER_STEP, STEP, "nccl:")
"""Ranges that do not say where in the program something is."""


def direction_of(name: str) -> int:
    """The direction that an operation's own name tells, -1 where it does not."""
    if name.startswith(_BACKWARD):
        return BPROP
    return UPDATE if name.startswith(STEP) else -1


class Nest:
    """Nested intervals on threads, asked for the innermost one at a time.

    Parameters
    ----------
    thread, start, end : arrays of one length
        An interval holds its start and not its end; one of no length is taken to last 1 ns.
    """

    def __init__(self, thread: NDArray[Any], start: Integers, end: Integers) -> None:
        self.end = np.maximum(end, start + 1)
        order = np.lexsort((start - self.end, start, thread))
        self._threads: dict[int, tuple[Integers, Integers, Integers, Integers, Integers]] = {}
        cuts = np.flatnonzero(np.diff(thread[order])) + 1
        for of_thread in np.split(order, cuts) if len(order) else ():
            starts, ends = start[of_thread], np.sort(self.end[of_thread])
            depth = np.arange(1, len(of_thread) + 1) - np.searchsorted(ends, starts, side="right")
            levels = np.argsort(depth, kind="stable")
            self._threads[int(thread[of_thread[0]])] = (starts, ends, depth[levels], starts[levels], of_thread[levels])

    def innermost(self, thread: NDArray[Any], time: Integers) -> Integers:
        """Index of the innermost interval on each thread at each time, -1 where there is none."""
        operation = np.full(len(time), -1, dtype=np.int64)
        order = np.argsort(thread, kind="stable")
        cuts = np.flatnonzero(np.diff(thread[order])) + 1
        for of_thread in np.split(order, cuts) if len(order) else ():
            known = self._threads.get(int(thread[of_thread[0]]))
            if known is not None:
                operation[of_thread] = self._on_thread(time[of_thread], *known)
        return operation

    def _on_thread(
        self, time: Integers, starts: Integers, ends: Integers, levels: Integers, level_starts: Integers, at: Integers
    ) -> Integers:
        depth = np.searchsorted(starts, time, side="right") - np.searchsorted(ends, time, side="right")
        operation = np.full(len(time), -1, dtype=np.int64)
        order = np.argsort(depth, kind="stable")
        for of_depth in np.split(order, np.flatnonzero(np.diff(depth[order])) + 1):
            low, high = np.searchsorted(levels, [depth[of_depth[0]], depth[of_depth[0]] + 1])
            last = np.searchsorted(level_starts[low:high], time[of_depth], side="right") - 1
            if high > low:
                operation[of_depth] = np.where(last >= 0, at[low + np.maximum(last, 0)], -1)
        # Intervals that overlap without nesting mislead the depth: rather none than a wrong one.
        return np.where((operation >= 0) & (self.end[operation] > time), operation, -1)


def _place_in(known: Integers, keys: Integers) -> Integers:
    """Where each key stands among those that are known, which are in order; -1 where it does not."""
    if not len(known):
        return np.full(len(keys), -1)
    place = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.where(known[place] == keys, place, -1)


class _Names(NamedTuple):
    """Keys in order, and the operation that each stands for."""

    keys: Integers
    operation: Integers

    @classmethod
    def of(cls, keys: Integers, operation: Integers, label: Integers) -> _Names:
        """Keys that stand for operations of different labels are left out: they name neither."""
        order = np.argsort(keys, kind="stable")
        keys, operation, label = keys[order], operation[order], label[order]
        if not len(keys):
            return cls(keys, operation)
        first = np.concatenate(([True], np.diff(keys) != 0))
        group = np.cumsum(first) - 1
        differs = np.bincount(group, weights=label != label[first][group]) > 0
        return cls(keys[first][~differs], operation[first][~differs])

    def look_up(self, keys: Integers) -> Integers:
        place = _place_in(self.keys, keys)
        return np.where(place >= 0, self.operation[place], -1) if len(self.keys) else place


class Links:
    """From events on a device to the operations that launched them.

    Parameters
    ----------
    operations : array of `OPERATION`
        In any order. Those with a name of -1 are annotations: they give a direction and are never found.
    launches : array of `LAUNCH`
    external_ids : bool
        Whether external ids are links, and no copies of the correlation.

    Attributes
    ----------
    direction : ndarray of int8
        Of each operation, -1 for none.
    forward : ndarray of int64
        For each operation of a backward pass the forward operation that it belongs to, -1 where there is none.
    """

    def __init__(self, operations: NDArray[Any], launches: NDArray[Any], external_ids: bool) -> None:
        self.operations = operations
        index = np.flatnonzero(operations["name"] >= 0)
        real = operations[index]
        label = (operations["name"].astype(np.int64) << 32) + operations["params"]
        named = index[real["external"] >= 0] if external_ids else index[:0]
        self._by_external = _Names.of(operations["external"][named], named, label[named])
        around = Nest(real["thread"], real["start"], real["end"]).innermost(launches["thread"], launches["start"])
        inside = around >= 0
        launched = index[around[inside]]
        self._by_correlation = _Names.of(launches["correlation"][inside], launched, label[launched])
        self.direction, self.forward = _directions(operations)

    def find(self, external: Integers, correlation: Integers) -> Integers:
        """Index of the operation behind each event, -1 where the trace does not tell."""
        launch = self._by_external.look_up(external)
        return np.where(launch >= 0, launch, self._by_correlation.look_up(correlation))

    def columns(self, at: Integers, names: pa.Array, params: pa.Array) -> dict[str, pa.Array]:
        """`op`, `params`, `direction` and `execution` of the events that these operations (-1 for none) stand behind.

        Parameters
        ----------
        at : array
            From `find`.
        names, params : pyarrow.Array
            The texts that the codes of the operations stand for.
        """
        operation = self.operations[at]
        codes = {"op": operation["name"], "params": operation["params"], "direction": self.direction[at]}
        texts = {"op": names, "params": params, "direction": pa.array(DIRECTIONS)}
        return {
            name: pa.DictionaryArray.from_arrays(
                pa.array(code.astype(np.int32), mask=(at < 0) | (code < 0)), texts[name]
            )
            for name, code in codes.items()
        } | {"execution": pa.array(at, mask=at < 0)}


def _directions(operations: NDArray[Any]) -> tuple[NDArray[np.int8], Integers]:
    """The direction of each operation: its own or that of the nearest one around it that has any; its forward one.

    A forward operation bears the sequence number of its backward one. Operations before it may bear the same number,
    for it only counts up when the graph grows: so it is the last one to start with that number before the backward.
    """
    direction = operations["direction"].copy()
    numbered = np.flatnonzero((operations["sequence"] >= 0) & (direction != UPDATE))
    order = numbered[np.lexsort((operations["start"][numbered], operations["sequence"][numbered]))]
    is_backward = direction[order] == BPROP
    last_forward = np.maximum.accumulate(np.where(is_backward, -1, np.arange(len(order))))
    partner = last_forward[is_backward & (last_forward >= 0)]
    backward = np.flatnonzero(is_backward & (last_forward >= 0))
    same = operations["sequence"][order[partner]] == operations["sequence"][order[backward]]
    direction[order[partner[same]]] = FPROP
    marked = np.flatnonzero(direction >= 0)
    nest = Nest(*(operations[name][marked] for name in ("thread", "start", "end")))
    around = nest.innermost(operations["thread"], operations["start"])
    if not len(marked):
        return np.full(len(operations), -1, np.int8), np.full(len(operations), -1)
    forward = np.full(len(operations), -1)
    forward[order[backward[same]]] = order[partner[same]]
    return (
        np.where(around >= 0, direction[marked[around]], -1).astype(np.int8),
        np.where(around >= 0, forward[marked[around]], -1),
    )


# Iterations -----------------------------------------------------------------------------------------------------------


class MarkedSteps(NamedTuple):
    """Iterations that a program marked, in the order of time.

    Attributes
    ----------
    names : list of str
        Each once: marks that are called alike are numbered from 1.
    starts, ends : ndarray of int64, shape (iterations,)
        In nanoseconds.
    """

    names: list[str]
    starts: Integers
    ends: Integers

    def find(self, times: Integers) -> Integers:
        """The iteration that each time is in, -1 for none."""
        if not self.names:
            return np.full(len(times), -1, dtype=np.int64)
        step = np.searchsorted(self.starts, times, side="right") - 1
        return np.where((step >= 0) & (times < self.ends[step]), step, -1)


class Launched:
    """In which iteration events on a device were launched.

    Parameters
    ----------
    steps : MarkedSteps
        When the host was in each.
    ran : MarkedSteps
        When the device was, where the profiler says so; else the same.
    launches : structured ndarray
        All launches, see `LAUNCH`.

    Attributes
    ----------
    steps : MarkedSteps
    launches : structured ndarray
        By correlation.
    """

    def __init__(self, steps: MarkedSteps, ran: MarkedSteps, launches: NDArray[Any]) -> None:
        self.steps, self._ran = steps, ran
        self.launches = launches[np.argsort(launches["correlation"], kind="stable")]

    def find(self, correlation: Integers) -> Integers:
        """The place in `launches` of what launched each event, by its correlation; -1 where none is known."""
        return np.where(correlation >= 0, _place_in(self.launches["correlation"], correlation), -1)

    def columns(self, correlation: Integers, start: Integers, base_ns: int = 0) -> dict[str, pa.Array]:
        """`launch_ns` and `step` of events.

        What no known call launched is of the step in which it began: at a trace's begin that is often the last step
        before it, whose launches were not traced.
        """
        launch = self.find(correlation)
        time = start.copy()
        time[launch >= 0] = self.launches["start"][launch[launch >= 0]]
        step = np.where(launch >= 0, self.steps.find(time), self._ran.find(start))
        return {"launch_ns": pa.array(time + base_ns, mask=launch < 0), "step": coded(step, self.steps.names)}


def find_steps(names: Sequence[str], starts: Integers, ends: Integers, launches: Integers) -> MarkedSteps:
    """The iterations among ranges.

    Parameters
    ----------
    names : sequence of str, length n
    starts, ends : ndarray of int64, shape (n,)
    launches : ndarray of int64
        When work was given to the device.
    """
    families: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        families.setdefault(_DIGITS.sub("#", name), []).append(index)
    times = np.sort(launches)
    best, longest = MarkedSteps([], np.empty(0, np.int64), np.empty(0, np.int64)), 0.0
    for family, members in families.items():
        order = np.array(sorted(members, key=lambda index: (starts[index], ends[index])))
        begin, end = starts[order], ends[order].copy()
        if len(times) and (begin == end).all():
            end = np.append(begin[1:], max(times[-1] + 1, begin[-1] + 1))
        if (begin[1:] < end[:-1]).any():
            continue
        own = [names[index] for index in order]
        if len({*own}) < len(own):
            own = [f"{name} {number}" for number, name in enumerate(own, 1)]
        steps = MarkedSteps(own, begin, end)
        if family.startswith(PROFILER_STEP):
            return steps
        inside = int((np.searchsorted(times, end) - np.searchsorted(times, begin)).sum())
        length = float(np.median(end - begin))
        if len(order) > 1 and inside >= COVERED * len(times) > 0 and length > longest:
            best, longest = steps, length
    return best


# Modules and ranges ---------------------------------------------------------------------------------------------------


class HostRange(NamedTuple):
    """A range on a thread of the host, in nanoseconds."""

    name: str
    thread: int
    start: int
    end: int


class Places:
    """Where in the program something is.

    Parameters
    ----------
    ranges : sequence of HostRange
        In any order.
    steps : MarkedSteps
        The iterations, whose marks are no place.

    Attributes
    ----------
    names : list of str
        Paths such as ``Model_0/Block_3/Linear_7``, each once.
    """

    def __init__(self, ranges: Sequence[HostRange], steps: MarkedSteps) -> None:
        marks = set(zip(steps.starts.tolist(), steps.ends.tolist()))
        entered = [known for known in ranges if not known.name.startswith(_NO_PLACE)]
        entered = [known for known in entered if (known.start, known.end) not in marks]
        entered.sort(key=lambda known: (known.thread, known.start, -known.end))
        codes: dict[str, int] = {}
        self._path = np.empty(len(entered) + 1, np.int64)
        self._path[-1] = -1  # of what is in none
        open_ranges: list[tuple[HostRange, str]] = []
        for index, known in enumerate(entered):
            while open_ranges and (open_ranges[-1][0].thread != known.thread or open_ranges[-1][0].end <= known.start):
                open_ranges.pop()
            own = known.name.removeprefix(MODULE).replace("/", "|")
            text = f"{open_ranges[-1][1]}/{own}" if open_ranges else own
            open_ranges.append((known, text))
            self._path[index] = codes.setdefault(text, len(codes))
        self.names = list(codes)
        self._nest = Nest(*(np.array([known[field] for known in entered], np.int64) for field in (1, 2, 3)))

    def find(self, thread: NDArray[Any], time: Integers) -> Integers:
        """The place in `names` of each thread at a time, -1 for none."""
        return self._path[self._nest.innermost(thread, time)]

    def of(self, links: Links) -> Integers:
        """The same of each of the links' operations; of a backward one that is nowhere, that of its forward one."""
        operations, forward = links.operations, links.forward
        module = self.find(operations["thread"], operations["start"])
        outside = (module < 0) & (forward >= 0)
        module[outside] = module[forward[outside]]
        return module

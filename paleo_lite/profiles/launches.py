"""Links between the events of a trace: the operation, direction, iteration and module that launched a kernel.

A kernel's ``External id`` is the id of the innermost operation that ran at its launch. Many versions of the profiler
wrote the correlation id there instead (in all events): such ids are not a link. In this case the launching call is
found by its correlation id, and the operation by the time of the call on its thread.

PyTorch's profiler marks each call of its ``step`` (``ProfilerStep#3``); these marks have priority. Otherwise a
program's own marks (``record_function("train_step")``, NVTX) are taken as iterations if they occur at least twice
under one name (ignoring digits), do not overlap, and contain almost all launches. Of several nested candidates the
outermost is taken, because the blocks of a network lie within its steps. A mark without a length lasts until the next
mark of its name.

The profiler also records the forward call of each module (``with_stack=True``) and the ranges of ``record_function``.
They nest, and the path of their names locates a kernel in the program. Backward operations run on autograd's thread,
outside all ranges: they get the path of their forward operation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .table import Records, encode_text, from_numpy, text_array

Integers = NDArray[np.int64]

OPERATION = np.dtype(
    [
        ("external", "i8"),  # -1 if absent
        ("thread", "i4"),  # code of the process and thread
        ("start", "i8"),
        ("end", "i8"),
        ("name", "i4"),  # codes of texts
        ("params", "i4"),
        ("sequence", "i8"),  # autograd's, -1 without
        ("direction", "i1"),  # of `DIRECTIONS`, from the event itself; -1 if absent
    ]
)
"""Record of one operation, or of an annotation that only gives a direction: 45 bytes."""

LAUNCH = np.dtype([("correlation", "i8"), ("thread", "i4"), ("start", "i8")])
"""Record of one call of the runtime or driver: 20 bytes."""

DIRECTIONS = ("fprop", "bprop", "update")
"""Names of the directions; -1 is none."""

FPROP, BPROP, UPDATE = range(3)

_BACKWARD = ("autograd::engine::evaluate_function", "torch::autograd::")
STEP = "Optimizer.step#"
"""Prefix of PyTorch's range around an optimizer step."""

PROFILER_STEP = "ProfilerStep"
"""Prefix of the name of PyTorch's step marks."""

COVERED = 0.9
"""Minimum fraction of the launches inside marks that are taken as iterations."""

MODULE = "nn.Module: "
"""Prefix of the range of a module's forward call."""

LONGEST_PATH = 2000
"""Characters of a path. A range that would get a longer one belongs to the range around it, because the paths of n
ranges within each other would have the square of n characters."""

_DIGITS = re.compile(r"\d+")
_NOT_IN_PATHS = (PROFILER_STEP, STEP, "nccl:")
"""Prefixes of ranges that do not locate a kernel in the program."""


def direction_of(name: str) -> int:
    """Return the direction that follows from an operation's name, or -1."""
    if name.startswith(_BACKWARD):
        return BPROP
    return UPDATE if name.startswith(STEP) else -1


class Nest:
    """Nested intervals per thread, with a lookup of the innermost interval at a time.

    The intervals are half-open, in ns, in arrays of shape (n,); one without a length is taken as 1 ns.
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
        """Return the index of the innermost interval on each thread at each time, or -1."""
        operation = np.full(len(time), -1, dtype=np.int64)
        order = np.argsort(thread, kind="stable")
        cuts = np.flatnonzero(np.diff(thread[order])) + 1
        for of_thread in np.split(order, cuts) if len(order) else ():
            intervals = self._threads.get(int(thread[of_thread[0]]))
            if intervals is not None:
                operation[of_thread] = self._on_thread(time[of_thread], *intervals)
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
        # The depth is wrong for intervals that overlap without nesting: return -1 rather than a wrong index.
        return np.where((operation >= 0) & (self.end[operation] > time), operation, -1)


def _find_sorted(sorted_keys: Integers, keys: Integers) -> Integers:
    """Return the index of each key in a sorted array, or -1 if it is absent."""
    if not len(sorted_keys):
        return np.full(len(keys), -1)
    index = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return np.where(sorted_keys[index] == keys, index, -1)


class _KeyIndex(NamedTuple):
    """Sorted keys and the operation of each key."""

    keys: Integers
    operation: Integers

    @classmethod
    def of(cls, keys: Integers, operation: Integers, label: Integers) -> _KeyIndex:
        """Build the index; keys shared by operations with different labels are ambiguous and left out."""
        order = np.argsort(keys, kind="stable")
        keys, operation, label = keys[order], operation[order], label[order]
        if not len(keys):
            return cls(keys, operation)
        first = np.concatenate(([True], np.diff(keys) != 0))
        group = np.cumsum(first) - 1
        differs = np.bincount(group, weights=label != label[first][group]) > 0
        return cls(keys[first][~differs], operation[first][~differs])

    def look_up(self, keys: Integers) -> Integers:
        """Return the operation of each key, or -1."""
        index = _find_sorted(self.keys, keys)
        return np.where(index >= 0, self.operation[index], -1) if len(self.keys) else index


class Links:
    """Links from device events to the operations that launched them.

    The operations are an array of `OPERATION` in any order. Records with name -1 are annotations: they give a direction
    and are never returned by `find`. The launches are an array of `LAUNCH`. `external_ids` says whether external ids
    are links and not copies of the correlation ids.
    """

    def __init__(self, operations: Records, launches: Records, external_ids: bool) -> None:
        self.operations = operations
        index = np.flatnonzero(operations["name"] >= 0)
        real = operations[index]
        label = (operations["name"].astype(np.int64) << 32) + operations["params"]
        named = index[real["external"] >= 0] if external_ids else index[:0]
        self._by_external = _KeyIndex.of(operations["external"][named], named, label[named])
        around = Nest(real["thread"], real["start"], real["end"]).innermost(launches["thread"], launches["start"])
        inside = around >= 0
        launched = index[around[inside]]
        self._by_correlation = _KeyIndex.of(launches["correlation"][inside], launched, label[launched])
        # Of each operation, and the index of the forward operation of each backward one; -1 if there is none.
        self.direction, self.forward = _directions(operations)

    def find(self, external: Integers, correlation: Integers) -> Integers:
        """Return the index of the operation that launched each event, or -1."""
        launch = self._by_external.look_up(external)
        return np.where(launch >= 0, launch, self._by_correlation.look_up(correlation))

    def columns(self, at: Integers, names: pa.Array, params: pa.Array) -> dict[str, pa.Array]:
        """Return `op`, `params`, `direction` and `execution` of events from the operations that launched them.

        `at` has the index of the operation of each event from `find`, or -1; `names` and `params` are texts indexed by
        the codes of the operations.
        """
        operation = self.operations[at]
        codes = {"op": operation["name"], "params": operation["params"], "direction": self.direction[at]}
        texts = {"op": names, "params": params, "direction": text_array(DIRECTIONS)}
        columns: dict[str, pa.Array] = {}
        for name, code in codes.items():
            indices = from_numpy(code.astype(np.int32), pa.int32(), (at >= 0) & (code >= 0))
            columns[name] = pa.DictionaryArray.from_arrays(indices, texts[name])
        columns["execution"] = from_numpy(at, pa.int64(), at >= 0)
        return columns


def _directions(operations: Records) -> tuple[NDArray[np.int8], Integers]:
    """Return the direction and the forward operation of each operation.

    The direction is the operation's own label, else that of the innermost enclosing operation with a label. A forward
    operation has the sequence number of its backward operation. Earlier operations can have the same number, because
    the counter only increases when the graph grows; the last operation that starts with the number before the backward
    operation is taken.
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
    """Iterations marked by the program, in order of time."""

    names: list[str]  # unique names: marks with equal names are numbered from 1
    # In nanoseconds; shape (iterations,).
    starts: Integers
    ends: Integers

    def find(self, times: Integers) -> Integers:
        """Return the iteration that contains each time, or -1."""
        if not self.names:
            return np.full(len(times), -1, dtype=np.int64)
        step = np.searchsorted(self.starts, times, side="right") - 1
        return np.where((step >= 0) & (times < self.ends[step]), step, -1)


class Launched:
    """Assignment of device events to the iterations that launched them.

    `steps` has the intervals of the iterations on the host, and `ran` those on the device if the profiler records them,
    else the same. The launches are an array of all `LAUNCH`.
    """

    def __init__(self, steps: MarkedSteps, ran: MarkedSteps, launches: Records) -> None:
        self.steps, self._ran = steps, ran
        self.launches = launches[np.argsort(launches["correlation"], kind="stable")]  # sorted by correlation id

    def find(self, correlation: Integers) -> Integers:
        """Return the index in `launches` of the call that launched each event, or -1."""
        return np.where(correlation >= 0, _find_sorted(self.launches["correlation"], correlation), -1)

    def columns(self, correlation: Integers, start: Integers, base_ns: int = 0) -> dict[str, pa.Array]:
        """Return `launch_ns` and `step` of events.

        An event without a recorded launch belongs to the step in which it began. At the start of a trace this is often
        the step before the first complete one, because its launches were not recorded.
        """
        launch = self.find(correlation)
        time = start.copy()
        time[launch >= 0] = self.launches["start"][launch[launch >= 0]]
        step = np.where(launch >= 0, self.steps.find(time), self._ran.find(start))
        return {
            "launch_ns": from_numpy(time + base_ns, pa.int64(), launch >= 0),
            "step": encode_text(step, self.steps.names),
        }


def find_steps(names: Sequence[str], starts: Integers, ends: Integers, launches: Integers) -> MarkedSteps:
    """Find the iterations among n named ranges; `launches` are launch times, in ns."""
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
        step_names = [names[index] for index in order]
        if len({*step_names}) < len(step_names):
            step_names = [f"{name} {number}" for number, name in enumerate(step_names, 1)]
        steps = MarkedSteps(step_names, begin, end)
        if family.startswith(PROFILER_STEP):
            return steps
        inside = int((np.searchsorted(times, end) - np.searchsorted(times, begin)).sum())
        length = float(np.median(end - begin))
        if len(order) > 1 and inside >= COVERED * len(times) > 0 and length > longest:
            best, longest = steps, length
    return best


# Modules and ranges ---------------------------------------------------------------------------------------------------


class HostRange(NamedTuple):
    """A named range on a host thread; times in ns."""

    name: str
    thread: int
    start: int
    end: int


class ProgramPaths:
    """Paths of the program's nested ranges, given in any order; the marks of iterations are not part of them."""

    def __init__(self, ranges: Sequence[HostRange], steps: MarkedSteps) -> None:
        marks = set(zip(steps.starts.tolist(), steps.ends.tolist()))
        entered = [item for item in ranges if not item.name.startswith(_NOT_IN_PATHS)]
        entered = [item for item in entered if (item.start, item.end) not in marks]
        entered.sort(key=lambda item: (item.thread, item.start, -item.end))
        codes: dict[str, int] = {}
        self._path = np.empty(len(entered) + 1, np.int64)
        self._path[-1] = -1  # for events outside all ranges
        open_ranges: list[tuple[HostRange, str]] = []
        for index, item in enumerate(entered):
            while open_ranges and (open_ranges[-1][0].thread != item.thread or open_ranges[-1][0].end <= item.start):
                open_ranges.pop()
            segment = item.name[:LONGEST_PATH].removeprefix(MODULE).replace("/", "|")
            text = f"{open_ranges[-1][1]}/{segment}" if open_ranges else segment
            if len(text) > LONGEST_PATH:
                text = open_ranges[-1][1]
            open_ranges.append((item, text))
            self._path[index] = codes.setdefault(text, len(codes))
        self.names = list(codes)  # unique paths such as `Model_0/Block_3/Linear_7`
        self._nest = Nest(*(np.array([item[field] for item in entered], np.int64) for field in (1, 2, 3)))

    def find(self, thread: NDArray[Any], time: Integers) -> Integers:
        """Return the index in `names` of the path on each thread at each time, or -1."""
        return self._path[self._nest.innermost(thread, time)]

    def of(self, links: Links) -> Integers:
        """Return the path index of each operation; a backward operation outside all ranges gets that of its forward."""
        operations, forward = links.operations, links.forward
        module = self.find(operations["thread"], operations["start"])
        outside = (module < 0) & (forward >= 0)
        module[outside] = module[forward[outside]]
        return module

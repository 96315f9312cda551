"""Which operation launched a kernel, and in which direction: what a PyTorch trace tells only between its lines.

A kernel's ``External id`` names the innermost operation that ran when it was launched. Many versions of the profiler
wrote the correlation id there instead (in all events alike): such ids are not a link, and the call that launched the
kernel, found by its correlation, is looked up among the operations that were running on its thread.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

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
        if not len(self.keys):
            return np.full(len(keys), -1, dtype=np.int64)
        index = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[index] == keys, self.operation[index], -1)


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

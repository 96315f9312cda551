"""Measured time per iteration of each kind of layer in each pass, for comparison with a prediction."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

from ..errors import BadProfile
from ..profiles.detect import Profile
from ..profiles.names import OPERATIONS, classify
from .activity import positions_by_value
from .operation_times import Operation, gap_of_iteration, operation_of_run
from .runs import COLUMNS, Runs, concatenate_runs, find_runs, order_by_start
from .steady import Iterations, find_iterations, is_labelled_forward, most_frequent

if TYPE_CHECKING:
    from numpy.typing import NDArray

K = TypeVar("K")

_OPERATION_PATTERNS = tuple((kind.name, re.compile(kind.pattern)) for kind in OPERATIONS)

_KIND_OF_FAMILY = {
    "random": "elementwise",
    "layout": "elementwise",
    "reduction": "elementwise",
    "indexing": "other",
    "memcpy": "copy",
    "memset": "copy",
    "fft": "other",
}


class PassTimes(msgspec.Struct, frozen=True, eq=False):
    """Median times over the steady iterations of a profile."""

    phase: str  # training if any kernel is labelled backward
    # Iterations that the medians are over, and iterations in the profile.
    iterations: int
    iterations_found: int
    # Seconds per iteration, by kind of layer and pass (``forward``, ``backward``, ``update``).
    seconds: dict[tuple[str, str], float]
    # Seconds of the single operations of a kind and pass in execution order, if all iterations have equally many.
    layers: dict[tuple[str, str], tuple[float, ...]]
    # False if the profiler names no operations, so that matrix products of convolutions and of linear layers
    # cannot be distinguished.
    has_ops: bool
    # Seconds per iteration by operation and pass. The operation of a linear layer is the sizes of its product.
    operations: dict[tuple[Operation, str], float] = {}
    gap_s: float | None = None  # seconds per iteration in which no kernel runs; None without start times
    # False if the profile names neither modules nor operations of norms, so that norms are elementwise
    # operations.
    has_norm_names: bool = True
    # What `layers` times, in the same order: for linear layers the sizes of their products, if the profile has
    # them.
    layer_operations: dict[tuple[str, str], tuple[Operation, ...]] = {}


def measure_passes(profile: Profile) -> PassTimes:
    """Return the time per iteration by kind of layer and pass.

    Excluded are the first iteration (autotuning), iterations that differ from most others, and, if backward kernels are
    labelled in some iterations only, those without such labels. Raise BadProfile if the profile has no kernels, or no
    iterations are found in it.
    """
    runs = order_by_start(concatenate_runs([find_runs(batch) for batch in profile.batches((*COLUMNS, "layer"))]))
    if not runs.length:
        raise BadProfile(f"{profile.path}: a {profile.format} profile without kernels that have a duration")
    iterations = find_iterations(runs)
    if iterations is None:
        raise BadProfile(f"{profile.path}: no iterations were found in it, so the time per iteration is unknown")
    signature_of_run = runs.table["signature"]
    directions = [signature.direction for signature in runs.signatures]
    threads = [signature.thread for signature in runs.signatures]
    is_backward = np.array([direction == "bprop" for direction in directions])[signature_of_run]
    is_update = np.array([direction == "update" for direction in directions])[signature_of_run]
    on_forward_thread = np.array([thread == iterations.thread for thread in threads])[signature_of_run]
    passes = _assign_passes(runs, iterations, is_backward, is_update, on_forward_thread)
    chosen = _select_iterations(iterations, is_backward, on_forward_thread)
    kinds = np.array([_layer_kind(runs, index) for index in range(len(runs.signatures))], dtype=object)
    sums = _IterationSums(runs, kinds, passes)
    for runs_inside, rows_inside in _of_iterations(runs, iterations, chosen):
        sums.add_iteration(runs_inside, rows_inside)
    layer_medians = sums.layer_medians()
    measured_gaps = [gap_s for gap_s in sums.gaps_s if gap_s is not None]
    return PassTimes(
        phase="training" if any(pass_name == "backward" for _, pass_name in sums.durations_s) else "inference",
        iterations=len(chosen),
        iterations_found=len(iterations.starts),
        seconds=_medians_with_absent(
            {key: [sum(durations) for durations in listed] for key, listed in sums.durations_s.items()}, len(chosen)
        ),
        layers=layer_medians,
        has_ops=any(signature.op is not None for signature in runs.signatures),
        operations=_medians_with_absent(sums.operation_s, len(chosen)),
        gap_s=float(np.median(measured_gaps)) if measured_gaps else None,
        has_norm_names=any(operation == "norms" for operation, _ in sums.operation_s),
        layer_operations={key: value for key, value in sums.first_operations.items() if key in layer_medians},
    )


_Key = tuple[str, str]
"""Kind of layer and pass."""


class _IterationSums:
    """Times of runs, summed iteration by iteration over kinds of layers and over operations, in each pass."""

    def __init__(self, runs: Runs, kinds: NDArray[Any], passes: NDArray[Any]) -> None:
        self.runs = runs
        self.kinds = kinds  # kind of layer of each signature
        self.passes = passes  # pass of each run
        self.iterations = 0
        self.gaps_s: list[float | None] = []  # time in which no kernel ran, of each iteration
        self.durations_s: dict[_Key, list[tuple[float, ...]]] = {}  # of the runs, for each iteration that has any
        self.operation_s: dict[tuple[Operation, str], list[float]] = {}  # likewise, summed
        self.first_operations: dict[_Key, tuple[Operation, ...]] = {}  # operations of the first iteration with a key
        self._operation_of: dict[tuple[int, int], Operation] = {}  # by signature and layer

    def add_iteration(self, runs_inside: NDArray[np.int64], rows_inside: NDArray[np.int64]) -> None:
        """Add the runs of an iteration, in order, and the positions of its rows in the spans."""
        self.iterations += 1
        self.gaps_s.append(gap_of_iteration(self.runs, rows_inside))
        durations: dict[_Key, list[float]] = {}
        operations: dict[_Key, list[Operation]] = {}
        operation_s: dict[tuple[Operation, str], float] = {}
        for run in runs_inside.tolist():
            duration_s = float(self.runs.table["duration_ns"][run]) * 1e-9
            signature, pass_name = int(self.runs.table["signature"][run]), self.passes[run]
            operation = self._operation(signature, int(self.runs.table["layer"][run]))
            key = (self.kinds[signature], pass_name)
            durations.setdefault(key, []).append(duration_s)
            operations.setdefault(key, []).append(operation)
            operation_s[operation, pass_name] = operation_s.get((operation, pass_name), 0.0) + duration_s
        for key, listed in durations.items():
            self.durations_s.setdefault(key, []).append(tuple(listed))
            self.first_operations.setdefault(key, tuple(operations[key]))
        for operation_key, total_s in operation_s.items():
            self.operation_s.setdefault(operation_key, []).append(total_s)

    def _operation(self, signature: int, layer: int) -> Operation:
        """Return the operation of a signature in a layer, -1 for none."""
        if (signature, layer) not in self._operation_of:
            module = self.runs.layers[layer] if layer >= 0 else None
            self._operation_of[signature, layer] = operation_of_run(
                self.runs.signatures[signature], self.kinds[signature], module
            )
        return self._operation_of[signature, layer]

    def layer_medians(self) -> dict[_Key, tuple[float, ...]]:
        """Return the median time of each single operation, of keys with equally many in all iterations."""
        medians = {}
        for key, listed in self.durations_s.items():
            lengths = {len(durations) for durations in listed}
            if len(listed) == self.iterations and len(lengths) == 1:
                medians[key] = tuple(np.median(np.array(listed), axis=0).tolist())
        return medians


def _of_iterations(
    runs: Runs, iterations: Iterations, chosen: list[int]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the runs of each chosen iteration in order of their rows, and the positions of its rows in the spans."""
    nothing = np.empty(0, np.int64)
    runs_of = dict(positions_by_value(iterations.number))
    rows_of = dict(positions_by_value(np.repeat(iterations.number, runs.table["rows"])))
    for iteration in chosen:
        runs_inside = runs_of.get(iteration, nothing)
        order = np.argsort(runs.table["row"][runs_inside])
        yield runs_inside[order], rows_of.get(iteration, nothing)


def _medians_with_absent(times_s: dict[K, list[float]], iterations: int) -> dict[K, float]:
    """Return the positive medians over all iterations; one without an entry spent no time on it and counts as 0."""
    medians = {key: float(np.median(listed + [0.0] * (iterations - len(listed)))) for key, listed in times_s.items()}
    return {key: median_s for key, median_s in medians.items() if median_s}


def _select_iterations(
    iterations: Iterations, is_backward: NDArray[np.bool_], on_forward_thread: NDArray[np.bool_]
) -> list[int]:
    """Return the indices of the steady iterations."""
    count = len(iterations.starts)
    number = iterations.number
    backward_runs = np.bincount(number[is_backward & (number >= 0)], minlength=count)
    forward_runs = np.bincount(number[on_forward_thread & (number >= 0)], minlength=count)
    is_chosen = np.ones(count, bool)
    if count > 2:
        is_chosen[0] = False
    if backward_runs.any():
        is_chosen &= backward_runs > 0
        if is_chosen.sum() > 2:
            is_chosen = most_frequent(backward_runs, is_chosen)
    if is_chosen.sum() > 2:
        is_chosen = most_frequent(forward_runs, is_chosen)
    return [int(iteration) for iteration in np.flatnonzero(is_chosen)]


def _assign_passes(
    runs: Runs,
    iterations: Iterations,
    is_backward: NDArray[np.bool_],
    is_update: NDArray[np.bool_],
    on_forward_thread: NDArray[np.bool_],
) -> NDArray[Any]:
    """Return the pass of every run.

    All work of the backward thread is backward, labelled or not. Work of the forward thread after the last backward
    kernel of its iteration is the update.
    """
    table = runs.table
    number = iterations.number
    backward_threads = {runs.signatures[signature].thread for signature in np.unique(table["signature"][is_backward])}
    backward_threads.discard(iterations.thread)
    has_backward_thread = np.array([signature.thread in backward_threads for signature in runs.signatures])
    on_backward_thread = has_backward_thread[table["signature"]]
    last_backward_row = np.full(len(iterations.starts), np.iinfo(np.int64).max)
    is_backward_inside = is_backward & (number >= 0)
    backward_row = np.full(len(iterations.starts), -1)
    np.maximum.at(backward_row, number[is_backward_inside], table["row"][is_backward_inside])
    last_backward_row[backward_row >= 0] = backward_row[backward_row >= 0]
    # Runs outside iterations have the number -1; their pass is not used.
    follows_backward = on_forward_thread & (table["row"] > last_backward_row[number])
    passes = np.full(len(number), "forward", dtype=object)
    passes[is_backward | on_backward_thread] = "backward"
    is_forward = is_labelled_forward(runs)
    passes[is_update | (follows_backward & ~is_forward & ~is_backward)] = "update"
    return passes


def _layer_kind(runs: Runs, index: int) -> str:
    """Return the kind of layer of a signature, by its operation, else by its kernel's name."""
    signature = runs.signatures[index]
    if signature.op is not None:
        for kind, pattern in _OPERATION_PATTERNS:
            if pattern.search(signature.op):
                return kind
        return "other"
    family = classify(signature.kernel or "").family
    return _KIND_OF_FAMILY.get(family, family)

"""Measured time per iteration of each kind of layer in each pass, for comparison with a prediction."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

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
    kind_of_run = kinds[signature_of_run]
    operation_of: dict[tuple[int, int], Operation] = {}
    operations: dict[tuple[Operation, str], list[float]] = {}
    gaps: list[float | None] = []
    seconds: dict[tuple[str, str], list[float]] = {}
    layers: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    layer_operations: dict[tuple[str, str], tuple[Operation, ...]] = {}
    for runs_inside, rows_inside in _of_iterations(runs, iterations, chosen):
        gaps.append(gap_of_iteration(runs, rows_inside))
        times_of: dict[tuple[str, str], list[float]] = {}
        operation_s: dict[tuple[Operation, str], float] = {}
        operations_of: dict[tuple[str, str], list[Operation]] = {}
        for run in runs_inside.tolist():
            duration_s = float(runs.table["duration_ns"][run]) * 1e-9
            times_of.setdefault((kind_of_run[run], passes[run]), []).append(duration_s)
            signature, layer = int(signature_of_run[run]), int(runs.table["layer"][run])
            if (signature, layer) not in operation_of:
                module = runs.layers[layer] if layer >= 0 else None
                operation_of[signature, layer] = operation_of_run(runs.signatures[signature], kinds[signature], module)
            operation_key = operation_of[signature, layer], passes[run]
            operations_of.setdefault((kind_of_run[run], passes[run]), []).append(operation_key[0])
            operation_s[operation_key] = operation_s.get(operation_key, 0.0) + duration_s
        for operation_key, duration_s in operation_s.items():
            operations.setdefault(operation_key, []).append(duration_s)
        for key, durations in times_of.items():
            seconds.setdefault(key, []).append(sum(durations))
            layers.setdefault(key, []).append(tuple(durations))
            layer_operations.setdefault(key, tuple(operations_of[key]))
    medians = {key: _median_with_absent(times, len(chosen)) for key, times in seconds.items()}
    operation_medians = {key: _median_with_absent(times, len(chosen)) for key, times in operations.items()}
    measured_gaps = [gap_s for gap_s in gaps if gap_s is not None]
    layer_medians = {}
    for key, durations_of_iterations in layers.items():
        lengths = {len(durations) for durations in durations_of_iterations}
        if len(durations_of_iterations) == len(chosen) and len(lengths) == 1:
            layer_medians[key] = tuple(np.median(np.array(durations_of_iterations), axis=0).tolist())
    has_backward = any(pass_name == "backward" for _, pass_name in seconds)
    return PassTimes(
        phase="training" if has_backward else "inference",
        iterations=len(chosen),
        iterations_found=len(iterations.starts),
        seconds={key: value for key, value in medians.items() if value},
        layers=layer_medians,
        has_ops=any(signature.op is not None for signature in runs.signatures),
        operations={key: value for key, value in operation_medians.items() if value},
        gap_s=float(np.median(measured_gaps)) if measured_gaps else None,
        has_norm_names=any(operation == "norms" for operation, _ in operations),
        layer_operations={key: value for key, value in layer_operations.items() if key in layer_medians},
    )


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


def _median_with_absent(times: list[float], iterations: int) -> float:
    """Return the median over the iterations; an iteration without an entry spent no time on it and counts as 0."""
    return float(np.median(times + [0.0] * (iterations - len(times))))


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

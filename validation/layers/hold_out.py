"""Validation of single layers with shapes held out, and of simpler models on the same folds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from paleo_lite.calibration.accuracy import error_statistics
from paleo_lite.calibration.fit import MeasuredRuns, predict_held_out, stack_features
from paleo_lite.calibration.prior import device_prior
from paleo_lite.calibration.validate import AccuracyRow, baseline_times
from paleo_lite.counting import Layer
from paleo_lite.counting.kinds import class_of, count_layer
from paleo_lite.counting.layer import Op
from paleo_lite.errors import BadValue, CountFailed
from paleo_lite.extras import require
from paleo_lite.machines import Device, Machine, find_device
from paleo_lite.timing.calibrated import library_peak, rates_of
from paleo_lite.timing.features import CLASS_INDEX, PASS_NUMBERS, Features, padding_and_tiles
from paleo_lite.units import element_bytes, parse_quantity

from .published import hash_of
from .timed import LayerTime

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

FOLDS = 5
"""Number of folds, each of which holds out one fifth of the shapes."""

SCATTER = 0.15
"""Standard deviation of the logarithm of single layers around a good model; within a network, errors average out."""

FEWEST = 20
"""Fewest points of a row."""


CACHE_BYTES_PER_CLOCK = 8.0
"""Bytes that each multiprocessor reads from the L2 in a clock (`bytes_from_memory`)."""


class LayerPoint(msgspec.Struct, frozen=True):
    """A held-out layer and its prediction."""

    layer: LayerTime
    predicted_s: float
    deviation: float

    @property
    def error(self) -> float:
        """Relative error."""
        return self.predicted_s / self.layer.time_s - 1


class LayerRow(AccuracyRow, frozen=True):
    """Row of the table for a kind of layer."""

    kind: str = ""


def validate_layers(layers: Sequence[LayerTime]) -> tuple[list[LayerRow], list[LayerPoint]]:
    """Hold out one fifth of the shapes at a time, and predict them from the others.

    Layers with the same source, device, precision and mode are fitted together, and a shape is held out in all passes.
    The fold of a shape depends on its hash, so the order of rows does not matter.

    Raises
    ------
    BadValue
        If there are too few layers to hold any out.
    """
    groups: dict[tuple[str, str, str, str], list[LayerTime]] = defaultdict(list)
    for each in sorted(layers, key=lambda layer: (layer.kind, layer.phase, layer.shape, layer.time_s)):
        groups[each.source, each.gpu, each.precision, each.mode].append(each)
    rows, points = [], []
    for (source, gpu, precision, _), group in sorted(groups.items()):
        parts = np.array([hash_of(f"fold {each.shape}") % FOLDS for each in group])
        folds = [np.flatnonzero(parts == part) for part in range(FOLDS)]
        if len(group) < FEWEST or not all(map(len, folds)):
            continue
        runs = runs_of_layers(group)
        prior = device_prior(find_device(gpu), precision)
        predicted, deviation = predict_held_out(runs, [prior] * FOLDS, folds, SCATTER)
        baseline_s = {**baseline_times(runs, folds), "launch_and_roofline": _launch_and_roofline(runs, folds)}
        del baseline_s["per_class_ppp"]
        kinds = [(each.kind, each.phase) for each in group]
        for kind, phase in sorted(set(kinds)):
            is_own = np.array([kind_and_phase == (kind, phase) for kind_and_phase in kinds])
            if is_own.sum() < FEWEST:
                continue
            measured = runs.measured_s[is_own]
            baselines = {}
            for name, times in baseline_s.items():
                baselines[name] = float(np.mean(np.abs(times[is_own] / measured - 1)))
            rows.append(
                LayerRow(
                    split="layers",
                    gpu=gpu,
                    precision=precision,
                    phase=phase,
                    points=int(is_own.sum()),
                    **error_statistics(measured, predicted[is_own], deviation[is_own]),
                    baselines=baselines,
                    source=source,
                    kind=kind,
                )
            )
        points += [LayerPoint(each, float(p), float(d)) for each, p, d in zip(group, predicted, deviation)]
    if not rows:
        raise BadValue(f"too few layers to hold out a fifth of their shapes: at least {FEWEST} of a kind are needed")
    return rows, points


def runs_of_layers(layers: Sequence[LayerTime]) -> MeasuredRuns:
    """Return the measured layers of one device in one precision as input of a fit."""
    device, precision = find_device(layers[0].gpu), layers[0].precision
    cache = cache_of(device, precision)
    rates = rates_of(Machine(device), precision)
    return stack_features([_features(each, cache) for each in layers], rates, [each.time_s for each in layers])


class Cache(NamedTuple):
    """The L2 of a device."""

    capacity_bytes: float  # 0 if it is unknown
    speedup: float  # its bandwidth relative to that of the memory, at least 1

    def bytes_from_memory(self, moved_bytes: float) -> float:
        """Return the bytes that the memory moves in the time in which an operation in a loop moves its bytes.

        Operations are timed in loops, which find their operands in the L2 if these fit.
        """
        if not self.capacity_bytes:
            return moved_bytes
        hit_share = 1 / (1 + (moved_bytes / self.capacity_bytes) ** 4)
        return moved_bytes * (1 - hit_share + hit_share / self.speedup)


def cache_of(device: Device, precision: str) -> Cache:
    """Return the L2 of a device, at the clock of its peak in a precision."""
    rate = library_peak(Machine(device), precision)
    clock_hz = device.clock_hz(rate.clock)  # type: ignore[arg-type]
    l2 = device.memory.l2
    if l2 is None or clock_hz is None:
        return Cache(0.0, 1.0)
    bandwidth = CACHE_BYTES_PER_CLOCK * float(device.cores.multiprocessors.value) * clock_hz
    return Cache(parse_quantity(l2.value, "B"), max(1.0, bandwidth / device.bandwidth_bytes_per_s))


def _features(timed: LayerTime, cache: Cache) -> Features:
    """Return the features of the timed operations, with gradients for all inputs.

    The time of launching is one constant for all operations of a source (``step_s``): no kernels are counted.
    """
    entries = [
        _entry(layer, part, timed.batch_size, element_bytes(timed.precision), cache) for layer, part in timed.operations
    ]
    columns = np.array([entry for entry in entries if entry is not None], dtype=np.float64).T
    flops, moved, gradients, padding, tiles, work_class, part = columns
    position = np.zeros((len(part), 2), dtype=np.int64)
    return Features(
        flops=flops,
        bytes=moved,
        kernels=np.zeros_like(flops),
        calls=np.zeros_like(flops),
        gradients=gradients,
        padding=padding,
        tiles=tiles,
        work_class=work_class.astype(np.int64),
        pass_number=part.astype(np.int64),
        position=position,
        wide=np.zeros(len(part), dtype=bool),
        update_products=np.zeros_like(flops),
        inverse_keys=np.zeros_like(flops),
    )


def _entry(layer: Layer, part: str, batch_size: int, size: int, cache: Cache) -> tuple[float, ...] | None:
    """Return the features of an operation; None if it launches no kernel."""
    # The cost of an update does not depend on the batch size.
    depends_on_batch = part != "update"
    op = Op(
        layer,
        batch_size if depends_on_batch else 1,
        [depends_on_batch] * len(layer.inputs),
        depends_on_batch,
        [True] * len(layer.inputs),
    )
    cost = count_layer(op)
    if cost is None:
        raise CountFailed(f"there is no counting rule for {layer.kind}")
    phase = getattr(cost, part) if depends_on_batch else cost.forward
    padding, tiles = padding_and_tiles(layer, part, batch_size)
    if not phase.kernels:
        return None
    moved = cache.bytes_from_memory((phase.reads + phase.writes) * size + phase.index_bytes)
    gradients = len(layer.weights) if part == "backward_weight" else 0
    work_class, pass_number = CLASS_INDEX[class_of(layer)], PASS_NUMBERS[part]
    return phase.flops, moved, gradients, float(padding), float(tiles), work_class, pass_number


def _launch_and_roofline(runs: MeasuredRuns, folds: Sequence[NDArray[np.int64]]) -> Floats:
    """Return seconds of ``launch + sum of max(FLOPs / (a peak), bytes / (b bandwidth))``, fitted to the other folds."""
    least_squares = require("scipy.optimize", "fitting", "calibrate").least_squares
    features, rates, number = runs.features, runs.rates, len(runs)
    compute = features.flops / np.where(features.matrix, rates.matrix_per_s, rates.vector_per_s)
    memory = features.bytes / rates.bandwidth_bytes_per_s

    def times(theta: Floats) -> Floats:
        launch, share_of_peak, share_of_bandwidth = np.exp(theta)
        roof = np.maximum(compute / share_of_peak, memory / share_of_bandwidth)
        return np.asarray(launch + np.bincount(runs.run, roof, number))

    def residuals(theta: Floats, rest: NDArray[np.int64]) -> Floats:
        return np.asarray(np.log(times(theta)[rest] / runs.measured_s[rest]))

    predicted = np.zeros(number)
    start = np.log([runs.measured_s.min(), 0.6, 0.7])
    for fold in folds:
        rest = np.setdiff1d(np.arange(number), fold)
        predicted[fold] = times(least_squares(residuals, start, loss="soft_l1", f_scale=0.2, args=(rest,)).x)[fold]
    return predicted

"""The calibrated time model: per layer the work at the share of peak that its class reaches, and what launching costs.

For each layer and pass, with p = 4 so that the largest term rules and the others still show::

    device = (compute^p + memory^p + floor^p)^(1/p)
    compute = FLOPs * padding / (peak * efficiency[class] * factor[pass] * tiles / (tiles + half * multiprocessors))
    memory = bytes / (bandwidth * share[class])
    floor = shortest kernel * kernels

The host launches kernels ahead of the device, so that launching counts only where it takes longer than all the work::

    host = sum(overhead[pass] * kernels) + overhead of a gradient * parameter tensors
    step = (sum(device)^p + host^p)^(1/p) + constant

The constant is the framework's own work, and copies to the device where a source includes them.
``efficiency`` may exceed 1: that is what an algorithm with fewer multiplications looks like from outside. The
saturation term is the share of multiprocessors that have a tile to work on, smoothed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from .classes import CLASSES, MATRIX_CLASSES
from .features import Features

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

POWER = 4.0

_SHARES = {
    **dict.fromkeys(MATRIX_CLASSES, "share_matrix"),
    "norm": "share_other",
    "elementwise": "share_other",
    "pool": "share_other",
    "copy": "share_other",
}

PARAMETERS: dict[str, str] = {
    **{f"efficiency_{name}": "share of peak" for name in MATRIX_CLASSES},
    "factor_data_gradient": "relative to forward",
    "factor_weight_gradient": "relative to forward",
    "share_matrix": "share of bandwidth",
    "share_other": "share of bandwidth",
    "half": "tiles per multiprocessor at half efficiency",
    "half_3x3": "the same, of 3x3 convolutions",
    "floor_s": "s, the shortest kernel",
    "overhead_s": "s of the host per kernel",
    "overhead_backward_s": "s of the host per kernel of a backward pass",
    "overhead_gradient_s": "s of the host per parameter tensor of a backward pass",
    "step_s": "s per step",
}
"""Every parameter with its unit. All are positive; their logarithms are what is fitted."""

NAMES = tuple(PARAMETERS)
_INDEX = {name: index for index, name in enumerate(NAMES)}
_OVERHEADS = ("overhead_s", "overhead_backward_s", "overhead_gradient_s")


class Rates(msgspec.Struct, frozen=True):
    """What the device offers: peaks in FLOP/s, bandwidth in bytes per second, multiprocessors."""

    matrix_per_s: float
    vector_per_s: float
    bandwidth_bytes_per_s: float
    multiprocessors: float


class EntryTerms(msgspec.Struct, frozen=True, eq=False):
    """Seconds of each entry on the device: its three terms and what they make together; `filled` is the saturation."""

    compute_s: Floats
    memory_s: Floats
    floor_s: Floats
    device_s: Floats
    filled: Floats


def evaluate(features: Features, rates: Rates, values: Floats) -> EntryTerms:
    """The terms of every entry.

    Parameters
    ----------
    features : Features
    rates : Rates
    values : ndarray, shape (len(PARAMETERS),)
        In the order of `PARAMETERS`.
    """
    matrix = features.matrix
    tiles = features.tiles / rates.multiprocessors
    filled = np.where(matrix & (tiles > 0), tiles / (tiles + values[_half_index(features)]), 1.0)
    efficiency = np.where(matrix, values[np.minimum(features.work_class, len(MATRIX_CLASSES) - 1)], 1.0)
    factor = np.where(matrix, _factors(values)[features.part], 1.0)
    peak = np.where(matrix, rates.matrix_per_s, rates.vector_per_s)
    compute = features.flops * features.padding / (peak * efficiency * factor * filled)
    memory = features.bytes / (rates.bandwidth_bytes_per_s * values[share_index(features)])
    floor = features.kernels * values[_INDEX["floor_s"]]
    together = np.asarray((_fourth(compute) + _fourth(memory) + _fourth(floor)) ** (1 / POWER))
    return EntryTerms(compute, memory, floor, together, filled)


def _fourth(seconds: Floats) -> Floats:
    """To the `POWER`, by squares: five times as fast."""
    return np.square(np.square(seconds))


def _factors(values: Floats) -> Floats:
    data, weight = values[_INDEX["factor_data_gradient"]], values[_INDEX["factor_weight_gradient"]]
    return np.array([1.0, data, weight, 1.0])


def share_index(features: Features) -> NDArray[np.int64]:
    """For each entry which parameter is its share of the bandwidth; an update streams like elementwise work."""
    by_class = np.array([_INDEX[_SHARES[name]] for name in CLASSES])
    return np.where(features.part == 3, _INDEX["share_other"], by_class[features.work_class])


def _half_index(features: Features) -> NDArray[np.int64]:
    """For each entry which parameter is its half: Winograd's algorithm makes many products of few rows each."""
    return np.where(features.work_class == CLASSES.index("conv_3x3"), _INDEX["half_3x3"], _INDEX["half"])


def sums_by(group: NDArray[np.int64], weights: Floats, groups: int) -> Floats:
    """Sums of the entries of each group, shape (groups,); of arrays (entries, batch sizes) shape (groups, batch sizes).

    Parameters
    ----------
    group : ndarray of int, shape (entries,) or (entries, 1)
    weights : ndarray, shape (entries,) or (entries, batch sizes)
    groups : int
    """
    if weights.ndim == 1:
        return np.asarray(np.bincount(group, weights=weights, minlength=groups), dtype=np.float64)
    sums = np.zeros((groups, weights.shape[1]))
    first = np.flatnonzero(np.diff(group[:, 0], prepend=-1))  # of each stretch that belongs to one group
    stretches, found = np.add.reduceat(weights, first, axis=0), group[first, 0]
    if (np.diff(found) < 0).any():
        order = np.argsort(found, kind="stable")
        found = found[order]
        first = np.flatnonzero(np.diff(found, prepend=-1))
        stretches, found = np.add.reduceat(stretches[order], first, axis=0), found[first]
    sums[found] = stretches
    return sums


def step_times(
    features: Features,
    rates: Rates,
    values: Floats,
    run: NDArray[np.int64],
    runs: int,
    launched: Floats | None = None,
) -> Floats:
    """Seconds of whole steps; entry i belongs to step ``run[i]`` of `runs`; `launched` saves counting `launches`."""
    device = sums_by(run, evaluate(features, rates, values).device_s, runs)
    host = _launching(launches(features, run, runs) if launched is None else launched, values).sum(axis=0)
    return np.asarray((device**POWER + host**POWER) ** (1 / POWER) + values[_INDEX["step_s"]])


def launches(features: Features, run: NDArray[np.int64], runs: int) -> Floats:
    """Kernels of forward passes, of backward passes, and gradients that the host launches, shape (3, runs)."""
    backward = (features.part == 1) | (features.part == 2)
    columns = (features.kernels * ~backward, features.kernels * backward, features.gradients)
    return np.array([sums_by(run, column, runs) for column in columns])


def _launching(launched: Floats, values: Floats) -> Floats:
    """Seconds that the host launches, in the shape of `launches` and the order of `_OVERHEADS`."""
    overheads = values[[_INDEX[name] for name in _OVERHEADS]]
    return np.asarray(overheads.reshape(-1, *[1] * (launched.ndim - 1)) * launched)


def sensitivities(
    features: Features,
    rates: Rates,
    values: Floats,
    run: NDArray[np.int64],
    runs: int,
    launched: Floats | None = None,
) -> tuple[Floats, Floats]:
    """Times of whole steps, shape (runs,), and their derivatives by each parameter's logarithm, (runs, parameters).

    With t = (a^p + b^p + c^p)^(1/p), dt/da = (a/t)^(p-1), and each term is a power of each parameter but ``half``, for
    which d log a / d log half = half * multiprocessors / (tiles + half * multiprocessors).
    """
    terms = evaluate(features, rates, values)
    taken = np.maximum(terms.device_s, 1e-300)  # an entry that launches nothing at this batch size takes none
    compute, memory, floor = (
        part * (share * share * share)
        for part in (terms.compute_s, terms.memory_s, terms.floor_s)
        for share in (part / taken,)
    )
    launching = _launching(launches(features, run, runs) if launched is None else launched, values)
    unfilled = compute * (1 - terms.filled)
    shape = features.flops.shape[1:]
    if shape:  # first the sums of neighbours that are of one class and pass
        kinds = (run * len(CLASSES) + features.work_class) * 4 + features.part
        first = np.flatnonzero(np.diff(kinds[:, 0], prepend=-1))
        compute, memory, floor, unfilled = (
            np.add.reduceat(part, first, axis=0) for part in (compute, memory, floor, unfilled)
        )
        features = msgspec.structs.replace(features, work_class=features.work_class[first], part=features.part[first])
        run_of = run[first]
    else:
        run_of = run
    matrix = features.matrix
    size = len(NAMES)
    by_class = np.where(matrix, features.work_class, 0)
    factors = np.array([0, _INDEX["factor_data_gradient"], _INDEX["factor_weight_gradient"], 0])[features.part]
    summed = np.zeros((runs * size, *shape))
    for parameter, change in (
        (by_class, -compute * matrix),
        (factors, -compute * (matrix & (factors > 0))),
        (share_index(features), -memory),
        (_half_index(features), unfilled),
        (np.full(run_of.shape, _INDEX["floor_s"]), floor),
    ):
        summed += sums_by(run_of * size + parameter, change, runs * size)
    gradient = summed.reshape(runs, size, *shape)
    device = sums_by(run, terms.device_s, runs)
    host = launching.sum(axis=0)
    busy = (device**POWER + host**POWER) ** (1 / POWER)
    gradient *= ((device / busy) ** (POWER - 1))[:, None]
    for name, part in zip(_OVERHEADS, launching):
        gradient[:, _INDEX[name]] = part * (host / busy) ** (POWER - 1)
    gradient[:, _INDEX["step_s"]] = values[_INDEX["step_s"]]
    return busy + values[_INDEX["step_s"]], gradient

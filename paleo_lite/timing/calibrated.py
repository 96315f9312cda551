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

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from ..counting.kinds.products import MATRIX_CLASSES
from .features import CLASSES, Features

if TYPE_CHECKING:
    from types import EllipsisType

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Block = EllipsisType | tuple[slice, slice]

POWER = 4.0

_BLOCK = 2**15
"""Entries times batch sizes that are passed over at a time: a handful of such arrays stays in a core's cache."""

_PRODUCT = 2**10
"""Groups times entries of one matrix product in `Sums`. With a block's batch sizes it is too small for BLAS to start
threads, which in a pool of processes would wait for each other's."""

_SHARES = {
    **dict.fromkeys(MATRIX_CLASSES, "share_matrix"),
    "norm": "share_other",
    "elementwise": "share_other",
    "pool": "share_other",
    "copy": "share_other",
}

PARAMETERS: dict[str, str] = {
    **{f"efficiency_{name}": "share of peak" for name in MATRIX_CLASSES},
    "factor_data_gradient": "relative to forward, of convolutions",
    "factor_weight_gradient": "relative to forward, of convolutions",
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
_NONE = len(NAMES)
"""In the place of a parameter, of entries that have none: its value is 1."""


class Rates(msgspec.Struct, frozen=True):
    """What the device offers: peaks in FLOP/s, bandwidth in bytes per second, multiprocessors."""

    matrix_per_s: float
    vector_per_s: float
    bandwidth_bytes_per_s: float
    multiprocessors: float


class EntryTerms(msgspec.Struct, frozen=True, eq=False):
    """Seconds of each entry on the device: its three terms and what they make together."""

    compute_s: Floats
    memory_s: Floats
    floor_s: Floats
    device_s: Floats

    @classmethod
    def to_fill(cls, features: Features) -> EntryTerms:
        """Room for those of all entries, which `step_times` and `sensitivities` fill."""
        return cls(*np.empty((4, *features.flops.shape)))

    def fill(self, block: Block, *terms: Floats) -> None:
        """Put down terms of some entries."""
        for whole, part in zip((self.compute_s, self.memory_s, self.floor_s, self.device_s), terms):
            whole[block] = part


def evaluate(features: Features, rates: Rates, values: Floats) -> EntryTerms:
    """The terms of every entry.

    Parameters
    ----------
    values : ndarray, shape (len(PARAMETERS),)
        In the order of `PARAMETERS`.
    """
    entries = EntryTerms.to_fill(features)
    step_times(features, rates, values, np.zeros_like(features.part), 1, entries=entries)
    return entries


class Which(NamedTuple):
    """For each entry the places of its parameters among `NAMES`, `_NONE` where it has none."""

    efficiency: Ints
    factor: Ints
    share: Ints
    half: Ints
    products: slice | Ints  # which entries multiply and accumulate


def which_of(work_class: Ints, part: Ints) -> Which:
    """The places of the parameters of entries of these classes and passes."""
    matrix = (work_class < len(MATRIX_CLASSES)) & (part < 3)
    products = np.flatnonzero(matrix)
    factors = np.array([_NONE, _INDEX["factor_data_gradient"], _INDEX["factor_weight_gradient"], _NONE])
    # The gradients of a matrix product are products of the same sizes: libraries run them alike.
    gradients = matrix & (work_class != CLASSES.index("gemm"))
    shares = np.array([_INDEX[_SHARES[name]] for name in CLASSES])
    # Winograd's algorithm makes many products of few rows each.
    half = np.where(work_class == CLASSES.index("conv_3x3"), _INDEX["half_3x3"], _INDEX["half"])
    return Which(
        np.where(matrix, work_class, _NONE),
        np.where(gradients, factors[part], _NONE),
        # An update streams like elementwise work.
        np.where(part == 3, _INDEX["share_other"], shares[work_class]),
        half[products],
        # Where they are the first, a slice is a view of them.
        slice(0, len(products)) if matrix[: len(products)].all() else products,
    )


class _Scales(NamedTuple):
    """What turns the features of each entry into seconds: all that depends on the device and on the entry alone."""

    flop_s: Floats
    byte_s: Floats
    kernel_s: float
    half_tiles: Floats  # of `Which.products`


def _scales(which: Which, rates: Rates, values: Floats) -> _Scales:
    known = np.append(values, 1.0)
    peak = np.where(which.efficiency == _NONE, rates.vector_per_s, rates.matrix_per_s)
    return _Scales(
        1 / (peak * known[which.efficiency] * known[which.factor]),
        1 / (rates.bandwidth_bytes_per_s * known[which.share]),
        float(values[_INDEX["floor_s"]]),
        rates.multiprocessors * known[which.half],
    )


def _terms(
    features: Features, work: Floats, which: Which, scales: _Scales, block: Block
) -> tuple[Floats, Floats, Floats, Floats]:
    """Compute, memory and floor of every entry; and of products the share by which too few tiles prolong compute."""
    compute = work[block] * scales.flop_s
    prolonged = scales.half_tiles / features.tiles[which.products][block]
    compute[which.products] *= 1 + prolonged
    kernels = features.kernels if features.kernels.shape[1:] == (1,) else features.kernels[block]
    return compute, features.bytes[block] * scales.byte_s, kernels * scales.kernel_s, prolonged


def _together(
    compute: Floats, memory: Floats, floor: Floats, block: Block, entries: EntryTerms | None
) -> tuple[Floats, Floats]:
    """What three terms make together, and its `POWER`; the terms are raised to it where they are.

    Squares and square roots take a fifth of what powers do, and an array is written where it was read in half the time.
    """
    if entries is not None:
        entries.fill(block, compute, memory, floor)
    for term in (compute, memory, floor):
        np.square(term, out=term)
        np.square(term, out=term)
    floor += 1e-300  # an entry that launches nothing at this batch size takes none, and has a slope nonetheless
    power = compute + memory
    power += floor
    together = np.sqrt(power)
    np.sqrt(together, out=together)
    if entries is not None:
        entries.device_s[block] = together
    return together, power


def _blocks(shape: tuple[int, ...]) -> Iterator[Block]:
    """Whole entries at some batch sizes each; without batch sizes everything."""
    if len(shape) == 1:
        yield ...
        return
    width = max(_BLOCK // max(shape[0], 1), 16)
    for start in range(0, shape[1], width):
        yield slice(None), slice(start, start + width)


class Sums:
    """Sums of entries by group, prepared once and taken of many arrays.

    Parameters
    ----------
    group : ndarray of int, shape (entries,) or (entries, 1)
        Of every entry, with one column for arrays (entries, batch sizes); an entry may belong to several groups.
    """

    def __init__(self, groups: int, *group: Ints) -> None:
        self.groups, self.group = groups, group
        self.parts = list(self._split(0, len(group[0]))) if group[0].ndim > 1 else []

    def _split(self, first: int, last: int) -> Iterator[tuple[slice, Ints, Floats]]:
        """Stretches of entries; of each the groups that occur, and for each of them how often every entry counts."""
        members = np.stack([column[first:last, 0] for column in self.group])
        distinct = np.unique(members)
        if len(distinct) * (last - first) > _PRODUCT:
            yield from self._split(first, (first + last) // 2)
            yield from self._split((first + last) // 2, last)
        else:
            counts = (distinct[:, None, None] == members).sum(axis=1, dtype=np.float64)
            yield slice(first, last), distinct, counts

    def of(self, weights: Floats) -> Floats:
        """The sums, shape (groups,), or (groups, batch sizes)."""
        sums = np.zeros((self.groups, *weights.shape[1:]))
        self.add(weights, sums)
        return sums

    def add(self, weights: Floats, sums: Floats) -> None:
        """Add them to others."""
        if weights.ndim == 1:
            for column in self.group:
                sums += np.bincount(column, weights, self.groups)
        for stretch, distinct, counts in self.parts:
            sums[distinct] += counts @ weights[stretch]  # a third of what np.add.reduceat takes


def sums_by(group: Ints, weights: Floats, groups: int) -> Floats:
    """Sums of the entries of each group, shape (groups,); of arrays (entries, batch sizes) shape (groups, batch sizes).

    Parameters
    ----------
    group : ndarray of int, shape (entries,) or (entries, 1)
    weights : ndarray, shape (entries,) or (entries, batch sizes)
    """
    return Sums(groups, group).of(weights)


class StepPlan(NamedTuple):
    """How entries make whole steps: what no batch size and no device changes.

    Attributes
    ----------
    by_step, compute, memory, prolonged : Sums
        Of entries by step; of each term by step and the term's parameters.
    """

    which: Which
    by_step: Sums
    compute: Sums
    memory: Sums
    prolonged: Sums


def plan_of(work_class: Ints, part: Ints, run: Ints, runs: int) -> StepPlan:
    """A plan of entries of these classes and passes; entry i belongs to step ``run[i]`` of `runs`.

    Parameters
    ----------
    work_class, part, run : ndarray of int, shape (entries,) or (entries, 1)
    """
    which = which_of(work_class, part)
    first, products = run * (_NONE + 1), which.products
    groups = runs * (_NONE + 1)
    return StepPlan(
        which,
        Sums(runs, run),
        Sums(groups, first[products] + which.efficiency[products], first[products] + which.factor[products]),
        Sums(groups, first + which.share),
        Sums(groups, first[products] + which.half),
    )


class Steps(NamedTuple):
    """Whole steps at some batch sizes: what no device changes.

    Attributes
    ----------
    work : ndarray
        FLOPs with padding.
    launched : ndarray, shape (3, runs)
        See `launches`.
    """

    plan: StepPlan
    work: Floats
    launched: Floats


def steps_of(features: Features, run: Ints, runs: int, plan: StepPlan | None = None) -> Steps:
    """Prepare steps for `step_times` and `sensitivities`; worth keeping where several devices or parameters follow."""
    plan = plan or plan_of(features.work_class, features.part, run, runs)
    return Steps(plan, features.flops * features.padding, launches(features, plan.by_step))


def step_times(
    features: Features, rates: Rates, values: Floats, run: Ints, runs: int, steps: Steps | None = None,
    entries: EntryTerms | None = None,
) -> Floats:  # fmt: skip
    """Seconds of whole steps; entry i belongs to step ``run[i]`` of `runs`.

    `steps` saves preparing them; `entries` are filled.
    """
    plan, work, launched = steps or steps_of(features, run, runs)
    scales = _scales(plan.which, rates, values)
    device = np.zeros((runs, *features.flops.shape[1:]))
    for block in _blocks(features.flops.shape):
        compute, memory, floor, _ = _terms(features, work, plan.which, scales, block)
        plan.by_step.add(_together(compute, memory, floor, block, entries)[0], device[block])
    host = _launching(launched, values).sum(axis=0)
    return np.asarray(_joined(device, host) + values[_INDEX["step_s"]])


def _joined(device: Floats, host: Floats) -> Floats:
    """What device and host take together."""
    return np.asarray(np.sqrt(np.sqrt(np.square(np.square(device)) + np.square(np.square(host)))))


def launches(features: Features, by_step: Sums) -> Floats:
    """Kernels of forward passes, of backward passes, and gradients that the host launches, shape (3, runs)."""
    backward = (features.part == 1) | (features.part == 2)
    columns = (features.kernels * ~backward, features.kernels * backward, features.gradients)
    return np.array([by_step.of(column) for column in columns])


def _launching(launched: Floats, values: Floats) -> Floats:
    """Seconds that the host launches, in the shape of `launches` and the order of `_OVERHEADS`."""
    overheads = values[[_INDEX[name] for name in _OVERHEADS]]
    return np.asarray(overheads.reshape(-1, *[1] * (launched.ndim - 1)) * launched)


def sensitivities(
    features: Features, rates: Rates, values: Floats, run: Ints, runs: int, steps: Steps | None = None,
    entries: EntryTerms | None = None,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Times of whole steps, shape (runs,), and their derivatives by each parameter's logarithm, (runs, parameters).

    See `step_times`.

    With t = (a^p + b^p + c^p)^(1/p), dt / d log a = a^p t / t^p, and each term is a power of each parameter but
    ``half``, for which d log a / d log half = half * multiprocessors / (tiles + half * multiprocessors).
    """
    plan, work, launched = steps or steps_of(features, run, runs)
    scales = _scales(plan.which, rates, values)
    shape = features.flops.shape[1:]
    gradient = np.zeros((runs * (_NONE + 1), *shape))
    device, kernels = np.zeros((2, runs, *shape))
    for block in _blocks(features.flops.shape):
        compute, memory, floor, prolonged = _terms(features, work, plan.which, scales, block)
        device_s, slope = _together(compute, memory, floor, block, entries)
        np.divide(device_s, slope, out=slope)
        floor = floor * slope  # of kernels that do not grow with the batch it has been one column
        np.negative(slope, out=slope)  # the other terms fall as their parameters grow
        memory *= slope
        products = compute[plan.which.products]
        products *= slope[plan.which.products]
        plan.by_step.add(device_s, device[block])
        plan.by_step.add(floor, kernels[block])
        plan.memory.add(memory, gradient[block])
        plan.compute.add(products, gradient[block])
        prolonged /= -1 - prolonged
        prolonged *= products
        plan.prolonged.add(prolonged, gradient[block])
    gradient = gradient.reshape(runs, _NONE + 1, *shape)[:, :_NONE]
    gradient[:, _INDEX["floor_s"]] = kernels
    launching = _launching(launched, values)
    host = launching.sum(axis=0)
    busy = _joined(device, host)
    working, waiting = device / busy, host / busy
    gradient *= (working * working * working)[:, None]
    gradient[:, [_INDEX[name] for name in _OVERHEADS]] = np.moveaxis(launching * (waiting * waiting * waiting), 0, 1)
    gradient[:, _INDEX["step_s"]] = values[_INDEX["step_s"]]
    return busy + values[_INDEX["step_s"]], gradient

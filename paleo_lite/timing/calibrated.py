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
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec
import numpy as np

from ..counting.kinds.products import MATRIX_CLASSES
from ..counting.work import passes_of
from ..machines import Machine, PeakRate
from .features import CLASSES, Features, Sums, features_of
from .models import Terms, Times, Want, interval_of

if TYPE_CHECKING:
    from types import EllipsisType

    from numpy.typing import NDArray

    from .broadcast import Laid
    from .workload import Workload

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Block = EllipsisType | tuple[slice, slice]

POWER = 4.0

_BLOCK = 2**15
"""Entries times batch sizes that are passed over at a time: a handful of such arrays stays in a core's cache."""

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


class EntryTerms(NamedTuple):
    """Seconds of each entry on the device: its three terms and what they make together."""

    compute_s: Floats
    memory_s: Floats
    floor_s: Floats
    device_s: Floats


def rates_of(machine: Machine, precision: str) -> Rates:
    """The rates that a calibration of this device and precision refers to."""
    vector, matrix = machine.vector_peak(precision).per_s, works_in(machine, precision).per_s
    multiprocessors = float(machine.device.cores.multiprocessors.value)
    return Rates(matrix, vector, machine.device.bandwidth_bytes_per_s, multiprocessors)


UNFAMILIAR = 0.09
"""Relative error that the networks of a family share beyond what a fit without the family knows of itself, and those of
a source beyond a fit of other sources: 0.077 and 0.062 by maximum likelihood, under Student's t with 5 degrees of
freedom, of the errors with a family or a source held out. With 0.09 instead of 0.07 the 90% intervals of held-out
families and of held-out ranges of batch sizes hold 88 and 85% of what was measured instead of 84 and 82. Part of every
prediction: who asks runs other software than who measured."""


def own_variance(scatter: float) -> float:
    """Variance of a prediction's logarithm besides that of the parameters: of single measurements, and of families."""
    return scatter**2 + UNFAMILIAR**2


def works_in(machine: Machine, precision: str) -> PeakRate:
    """The peak that libraries compute a precision at.

    fp64 runs on vector units: of devices with fp64 tensor cores cuDNN's convolutions do not take those (an A100 is held
    out with 17% error against its vector peak, with 73% against its tensor cores'). AMD's rocBLAS does: an MI210
    reaches 1.8 times its vector peak.
    """
    if precision == "fp64" and machine.unit is None and machine.device.vendor == "NVIDIA":
        return machine.vector_peak(precision)
    return machine.peak(precision)


class CalibratedModel(msgspec.Struct, frozen=True, eq=False):
    """A calibration as a time model.

    Attributes
    ----------
    label : str
        Which calibration: reported with every prediction.
    theta : ndarray
        Logarithms of the parameters, in the order of `PARAMETERS`.
    covariance : ndarray
        Of `theta`.
    scatter : float
        Relative scatter of single measurements around the model.
    notes : tuple of str
        What every prediction with it should say.
    moved : ndarray or None
        How far the device's own measurements narrowed what others say of each parameter, 0 to 1; None where nothing is
        known of that.
    products : float
        What narrower products reach of their own peak, over what those of the precision reach of theirs.
    """

    name: ClassVar[str] = "calibrated"
    ppp: ClassVar[float | None] = None
    is_forecast: ClassVar[bool] = True
    needs_bytes: ClassVar[bool] = True
    uses_memory: ClassVar[bool] = True
    takes_count: ClassVar[bool] = False
    label: str
    theta: Floats
    covariance: Floats
    scatter: float
    notes: tuple[str, ...] = ()
    moved: Floats | None = None
    products: float = 1.0

    @property
    def own_variance(self) -> float:
        """Variance of a prediction's logarithm besides that of the parameters."""
        return own_variance(self.scatter)

    def formula(self, compute: str = "FLOPs / peak", memory: str = "bytes / bandwidth") -> str:
        """The formula in one line."""
        return f"({compute} at its class's efficiency ^4 + {memory} at its share ^4 + shortest kernel ^4)^(1/4)"

    peak = staticmethod(works_in)

    def evaluate(self, workload: Workload, machine: Machine) -> Terms:
        """See `TimeModel.evaluate`; layers that wait for the host are stretched by one factor."""
        features, rates = features_of(workload), rates_of(machine, workload.precision)
        passes = passes_of(workload.phase)
        products = None if workload.training is None else workload.training.products
        if products is not None:  # narrower: as much less to compute as they are faster
            faster = machine.peak(products).per_s / machine.peak(workload.precision).per_s * self.products
            narrow = workload.narrow[features.place[:, 1]] & (features.part < 3)
            features = msgspec.structs.replace(features, padding=features.padding / np.where(narrow, faster, 1.0))
        entries = EntryTerms(*np.empty((4, *features.flops.shape)))
        run = np.zeros(len(features.flops), dtype=np.int64)
        total, deviation, slopes = self._steps(features, rates, run, 1, entries=entries)
        # How much longer than the device's own work layers take because the host launches them; 1: not at all.
        overhead_s = float(np.exp(self.theta[_INDEX["step_s"]]))
        waiting = float((total - overhead_s)[0] / entries.device_s.sum())
        laid_out = np.zeros((4, len(passes), len(workload.layers)))
        laid_out[:, features.place[:, 0], features.place[:, 1]] = entries
        compute_s, memory_s, floor_s, device_s = laid_out
        return Terms(
            passes, compute_s, memory_s, device_s * waiting, overhead_s, float(deviation[0]), waiting, floor_s,
            slopes[0, :, 0],
        )  # fmt: skip

    def evaluate_many(self, laid: Laid, machine: Machine, precision: str, want: Want) -> Times:
        """See `TimeModel.evaluate_many`."""
        features, run, cases = laid.features, laid.run, laid.cases
        rates, values = rates_of(machine, precision), np.exp(self.theta)
        low = high = pieces_s = None
        entries = EntryTerms(*np.empty((4, *features.flops.shape))) if want.pieces else None
        if want.interval:
            total, deviation, _ = self._steps(features, rates, run, cases, laid.steps, entries)
            low, high = interval_of(total, deviation)
        else:
            total = step_times(features, rates, values, run, cases, laid.steps, entries)
        if entries is not None:
            waiting = (total - values[_INDEX["step_s"]]) / laid.by_case(entries.device_s)
            pieces_s = laid.by_piece(entries.device_s * waiting[run[:, 0]])
        return Times(total, low, high, pieces_s)

    def _steps(
        self, features: Features, rates: Rates, run: Ints, runs: int, steps: Steps | None = None,
        entries: EntryTerms | None = None,
    ) -> tuple[Floats, Floats, Floats]:  # fmt: skip
        """Seconds of whole steps, the standard deviations of their logarithms by the delta method, and what it takes.

        The last are the derivatives of those logarithms, shape (runs, parameters, batch sizes).
        """
        total, gradient = sensitivities(features, rates, np.exp(self.theta), run, runs, steps, entries)
        gradient = gradient.reshape(*gradient.shape[:2], -1)  # entries without batch sizes are entries at one
        slopes = gradient / total.reshape(len(gradient), 1, -1)
        variance = np.einsum("rpb,rpb->rb", slopes, self.covariance @ slopes).reshape(total.shape)
        return total, np.sqrt(variance + self.own_variance), slopes


def evaluate(features: Features, rates: Rates, values: Floats) -> EntryTerms:
    """The terms of every entry.

    Parameters
    ----------
    values : ndarray, shape (len(PARAMETERS),)
        In the order of `PARAMETERS`.
    """
    entries = EntryTerms(*np.empty((4, *features.flops.shape)))
    step_times(features, rates, values, np.zeros_like(features.part), 1, entries=entries)
    return entries


def step_times(
    features: Features, rates: Rates, values: Floats, run: Ints, runs: int, steps: Steps | None = None,
    entries: EntryTerms | None = None,
) -> Floats:  # fmt: skip
    """Seconds of whole steps; entry i belongs to step ``run[i]`` of `runs`.

    `steps` saves preparing them; `entries` are filled.
    """
    steps = steps or steps_of(features, run, runs)
    device = np.zeros((runs, *features.flops.shape[1:]))
    for passed in _on_the_device(features, rates, values, steps, entries):
        steps.plan.by_step.of(passed.device_s, device[passed.block])
    return np.asarray(_with_the_host(device, steps.launched, values)[0] + values[_INDEX["step_s"]])


def sensitivities(
    features: Features, rates: Rates, values: Floats, run: Ints, runs: int, steps: Steps | None = None,
    entries: EntryTerms | None = None,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Times of whole steps, shape (runs,), and their derivatives by each parameter's logarithm, (runs, parameters).

    See `step_times`.

    With t = (a^p + b^p + c^p)^(1/p), dt / d log a = a^p t / t^p, and each term is a power of each parameter but
    ``half``, for which d log a / d log half = half * multiprocessors / (tiles + half * multiprocessors).
    """
    steps = steps or steps_of(features, run, runs)
    plan, shape = steps.plan, features.flops.shape[1:]
    gradient = np.zeros((runs * (_NONE + 1), *shape))
    device, kernels = np.zeros((2, runs, *shape))
    for passed in _on_the_device(features, rates, values, steps, entries):
        block, memory, prolonged = passed.block, passed.memory, passed.prolonged
        slope = np.divide(passed.device_s, passed.power, out=passed.power)
        floor = passed.floor * slope  # of kernels that do not grow with the batch it has been one column
        np.negative(slope, out=slope)  # the other terms fall as their parameters grow
        memory *= slope
        products = passed.compute[plan.products]
        products *= slope[plan.products]
        plan.by_step.of(passed.device_s, device[block])
        plan.by_step.of(floor, kernels[block])
        plan.by_memory.of(memory, gradient[block])
        plan.by_compute.of(products, gradient[block])
        prolonged /= -1 - prolonged
        prolonged *= products
        plan.by_half.of(prolonged, gradient[block])
    gradient = gradient.reshape(runs, _NONE + 1, *shape)[:, :_NONE]
    gradient[:, _INDEX["floor_s"]] = kernels
    busy, host, launching = _with_the_host(device, steps.launched, values)
    working, waiting = device / busy, host / busy
    gradient *= (working * working * working)[:, None]
    gradient[:, [_INDEX[name] for name in _OVERHEADS]] = np.moveaxis(launching * (waiting * waiting * waiting), 0, 1)
    gradient[:, _INDEX["step_s"]] = values[_INDEX["step_s"]]
    return busy + values[_INDEX["step_s"]], gradient


class StepPlan(NamedTuple):
    """How entries make whole steps: what no batch size and no device changes.

    Attributes
    ----------
    efficiency, factor, share, half : ndarray of int
        For each entry, `half` for each product, the place of its parameter among `NAMES`; `_NONE` where it has none.
    products : slice or ndarray of int
        Which entries multiply and accumulate.
    by_step, by_compute, by_memory, by_half : Sums
        Of entries by step; of each term, and of what too few tiles prolong, by step and parameter.
    """

    efficiency: Ints
    factor: Ints
    share: Ints
    half: Ints
    products: slice | Ints
    by_step: Sums
    by_compute: Sums
    by_memory: Sums
    by_half: Sums


class Steps(NamedTuple):
    """Whole steps at some batch sizes: what no device changes.

    Attributes
    ----------
    work : ndarray
        FLOPs with padding.
    launched : ndarray, shape (3, runs)
        Kernels of forward passes, of backward passes, and gradients that the host launches.
    """

    plan: StepPlan
    work: Floats
    launched: Floats


def steps_of(features: Features, run: Ints, runs: int, plan: StepPlan | None = None) -> Steps:
    """Prepare steps for `step_times` and `sensitivities`; worth keeping where several devices or parameters follow."""
    plan = plan or plan_of(features.work_class, features.part, run, runs)
    backward = (features.part == 1) | (features.part == 2)
    columns = (features.kernels * ~backward, features.kernels * backward, features.gradients)
    launched = np.array([plan.by_step.of(column) for column in columns])
    return Steps(plan, features.flops * features.padding, launched)


def plan_of(work_class: Ints, part: Ints, run: Ints, runs: int) -> StepPlan:
    """A plan of entries of these classes and passes; entry i belongs to step ``run[i]`` of `runs`.

    Parameters
    ----------
    work_class, part, run : ndarray of int, shape (entries,) or (entries, 1)
    """
    matrix = (work_class < len(MATRIX_CLASSES)) & (part < 3)
    products = np.flatnonzero(matrix)
    factors = np.array([_NONE, _INDEX["factor_data_gradient"], _INDEX["factor_weight_gradient"], _NONE])
    # The gradients of a matrix product are products of the same sizes: libraries run them alike.
    gradients = matrix & (work_class != CLASSES.index("gemm"))
    shares = np.array([_INDEX[_SHARES[name]] for name in CLASSES])
    efficiency = np.where(matrix, work_class, _NONE)
    factor = np.where(gradients, factors[part], _NONE)
    # An update streams like elementwise work.
    share = np.where(part == 3, _INDEX["share_other"], shares[work_class])
    # Winograd's algorithm makes many products of few rows each.
    half = np.where(work_class == CLASSES.index("conv_3x3"), _INDEX["half_3x3"], _INDEX["half"])[products]
    # Where they are the first, a slice is a view of them.
    chosen = slice(0, len(products)) if matrix[: len(products)].all() else products
    first, groups = run * (_NONE + 1), runs * (_NONE + 1)
    return StepPlan(
        efficiency, factor, share, half, chosen,
        by_step=Sums(runs, run),
        by_compute=Sums(groups, first[chosen] + efficiency[chosen], first[chosen] + factor[chosen]),
        by_memory=Sums(groups, first + share),
        by_half=Sums(groups, first[chosen] + half),
    )  # fmt: skip


class _Passed(NamedTuple):
    """Every entry at some batch sizes: its seconds on the device, and to the `POWER` those and its three terms; of
    products the share by which too few tiles prolong compute."""

    block: Block
    device_s: Floats
    power: Floats
    compute: Floats
    memory: Floats
    floor: Floats
    prolonged: Floats


def _on_the_device(
    features: Features, rates: Rates, values: Floats, steps: Steps, entries: EntryTerms | None
) -> Iterator[_Passed]:
    """What the device takes for every entry, some batch sizes at a time; without batch sizes everything at once.

    Squares and square roots take a fifth of what powers do, and an array is written where it was read in half the time.
    """
    plan, known = steps.plan, np.append(values, 1.0)
    peak = np.where(plan.efficiency == _NONE, rates.vector_per_s, rates.matrix_per_s)
    flop_s = 1 / (peak * known[plan.efficiency] * known[plan.factor])
    byte_s = 1 / (rates.bandwidth_bytes_per_s * known[plan.share])
    kernel_s, half_tiles = float(values[_INDEX["floor_s"]]), rates.multiprocessors * known[plan.half]
    width = max(_BLOCK // max(len(features.flops), 1), 16)
    blocks: list[Block] = [...]
    if features.flops.ndim > 1:
        blocks = [(slice(None), slice(start, start + width)) for start in range(0, features.flops.shape[1], width)]
    for block in blocks:
        compute = steps.work[block] * flop_s
        prolonged = half_tiles / features.tiles[plan.products][block]
        compute[plan.products] *= 1 + prolonged
        memory = features.bytes[block] * byte_s
        floor = (features.kernels if features.kernels.shape[1:] == (1,) else features.kernels[block]) * kernel_s
        terms = compute, memory, floor
        for whole, term in zip(entries or (), terms):
            whole[block] = term
        for term in terms:  # each is to the `POWER` from here on, in its own place
            np.square(term, out=term)
            np.square(term, out=term)
        floor += 1e-300  # an entry that launches nothing at this batch size takes none, and has a slope nonetheless
        power = compute + memory
        power += floor
        device_s = np.sqrt(power)
        np.sqrt(device_s, out=device_s)
        if entries is not None:
            entries.device_s[block] = device_s
        yield _Passed(block, device_s, power, *terms, prolonged)


def _with_the_host(device: Floats, launched: Floats, values: Floats) -> tuple[Floats, Floats, Floats]:
    """What device and host take together, what the host launches, and that by `_OVERHEADS`."""
    overheads = values[[_INDEX[name] for name in _OVERHEADS]]
    launching = overheads.reshape(-1, *[1] * (launched.ndim - 1)) * launched
    host = launching.sum(axis=0)
    return np.sqrt(np.sqrt(np.square(np.square(device)) + np.square(np.square(host)))), host, launching

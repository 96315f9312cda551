"""How true predictions are on what was held out, beside simpler models on the same folds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np

from ..errors import BadValue
from ..machines import Device, Machine, find_device
from ..result import Result
from ..timing.calibrated import library_peak
from ..timing.models import QUANTILES
from ..units import format_si
from .choose import SCATTER as POOL_SCATTER
from .fit import Fit, MeasuredRuns, held_out, runs_of
from .measured_devices import DeviceData, Key, MeasuredDevices
from .measurements import Measurement
from .prior import Prior, Traits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

BYTES_AT_MOST = 2**27
"""Of a file that holds what `validate` said."""

FAMILIES = (
    "wide_resnet", "resnext", "resnet", "densenet", "vgg", "mnasnet", "mobilenet", "shufflenet", "squeezenet",
    "efficientnet", "convnext", "regnet", "swin", "maxvit", "vit", "inception", "googlenet", "alexnet",
)  # fmt: skip


class Point(msgspec.Struct, frozen=True):
    """One held-out measurement beside its prediction."""

    measurement: Measurement
    predicted_s: float
    deviation: float

    @property
    def error(self) -> float:
        """Relative error."""
        return self.predicted_s / self.measurement.time_s - 1


class Row(msgspec.Struct, frozen=True):
    """A line of the table of truth: shares of 1."""

    split: str
    gpu: str
    precision: str
    phase: str
    points: int
    mape: float
    median: float
    p90: float
    bias: float
    rank_correlation: float | None
    coverage_80: float
    coverage_90: float
    width_90: float
    baselines: dict[str, float]
    source: str = ""


def family_of(network: str) -> str:
    """The family of a network by its name: itself where it belongs to none."""
    return next((family for family in FAMILIES if network.startswith(family)), network)


class Validation(Result, msgspec.Struct, frozen=True):
    """How far off predictions of held-out measurements are.

    Attributes
    ----------
    split : str
        What was held out at a time.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.calibrations:validation_page"

    split: str
    rows: list[Row]
    points: list[Point]

    def only(self, gpus: Sequence[str], precisions: Sequence[str]) -> Validation:
        """The same of some devices and precisions; of all where none is named."""

        def wanted(one: Row | Measurement) -> bool:
            return (not gpus or one.gpu in gpus) and (not precisions or one.precision in precisions)

        points = [point for point in self.points if wanted(point.measurement)]
        return Validation(self.split, [row for row in self.rows if wanted(row)], points)


def validate(
    measurements: Sequence[Measurement],
    split: str,
    gpus: Sequence[str] = (),
    precisions: Sequence[str] = (),
    operations: Sequence[DeviceData] = (),
    on_done: Callable[[int, int], None] = lambda done, groups: None,
) -> tuple[list[Row], list[Point]]:
    """Hold out, predict, compare.

    Other devices say what is expected of each, see `MeasuredDevices`; they have not seen what is held out either.

    Parameters
    ----------
    split : str
        What is held out at a time, one of `SPLITS`. A network, a family or a range of batch sizes (`_LABELS`) is
        predicted by a fit to the rest of what the source measured of the device in the precision, all phases together,
        as calibrations are. Of the others (`_IGNORED`) everything is held out: what is expected of the device, on a
        computer that nobody knows (`KNOWN_HOST`: on that of the source's other devices), is what predicts.
    gpus, precisions : sequence of str
        Only these devices and precisions; all where empty. The others are learnt from all the same.
    operations : sequence of DeviceData
        Single operations to learn from, too.
    on_done : callable
        Called with how many devices of how many are done.

    Raises
    ------
    BadValue
        If the split is unknown or there is nothing to hold out.
    """
    if split not in SPLITS:
        raise BadValue(f"the split is {', '.join(SPLITS)}, not {split!r}")
    devices = MeasuredDevices(measurements, _LABELS.get(split), operations)
    rows, points = [], []
    for place, (key, group) in enumerate(devices.groups.items()):
        on_done(place, len(devices.groups))
        if (gpus and key.gpu not in gpus) or (precisions and key.precision not in precisions):
            continue
        held_out = _by_fold(split, devices, key) if split in _LABELS else _by_expectation(split, devices, key)
        if held_out is None:
            continue
        runs, predicted, deviation, simple = held_out
        group_points = [Point(step, float(p), float(d)) for step, p, d in zip(group, predicted, deviation)]
        rows += _rows(split, runs, group_points, simple)
        points += group_points
    if not rows:
        raise BadValue(f"nothing to hold out: a {split} is predicted from measurements of three or more other networks")
    return rows, points


Found = tuple[MeasuredRuns, "Floats", "Floats", "dict[str, Floats]"]
"""Steps, what was predicted of them, its deviation, and what simpler models say."""


def _by_fold(split: str, devices: MeasuredDevices, key: Key) -> Found | None:
    """Parts of a group, each predicted by a fit to the rest of it."""
    group = devices.groups[key]
    labels = [_LABELS[split](step) for step in group]
    if len(set(labels)) < 2 or len({step.network for step in group}) < 3:
        return None
    runs, ordered = devices.measured[key].runs, sorted(set(labels))
    folds = [np.flatnonzero(np.array(labels) == label) for label in ordered]
    priors = [devices.prior(key, label) for label in ordered]
    return runs, *held_out(runs, priors, folds), simple_times(runs, folds)


def _by_expectation(split: str, devices: MeasuredDevices, key: Key) -> Found | None:
    """A group as if nobody had measured it, nor what is held out with it."""
    runs, own, ignored = devices.measured[key].runs, devices.measured[key].traits, _IGNORED[split]
    others = [one for one in devices.evidence().values() if not ignored(own, one)]
    # Of a device that others measured, those have to be left; of any, a device on such units.
    left = [one for one in others if (one.unit, one.precision) == (own.unit, own.precision)]
    if split in _KNOWN_DEVICE:
        left = [one for one in left if one.id == own.id and one.source != own.source]
    if split == KNOWN_HOST and not any(one.source == own.source for one in others):
        return None
    if not left:
        return None
    prior = devices.prior(key, ignore=lambda other: ignored(own, other), known=split == KNOWN_HOST)
    predicted, deviation = expected_from(prior).predict(runs)
    return runs, predicted, deviation, {"roofline": simple_terms(runs)[1]}


def expected_from(prior: Prior) -> Fit:
    """What is expected before anything is measured, as a fit to nothing."""
    nothing = np.zeros(len(prior.mean))
    return Fit(prior.mean, np.diag(prior.deviation**2), POOL_SCATTER, nothing[:0], nothing)


def predict_measured(basis: Fit, measurements: Sequence[Measurement], device: Device, precision: str) -> list[Point]:
    """Measurements that a fit has not seen beside its predictions of them."""
    predicted, deviation = basis.predict(runs_of(measurements, device, precision))
    return [Point(step, float(p), float(d)) for step, p, d in zip(measurements, predicted, deviation)]


SMALL_BATCH = 8

_LABELS: dict[str, Callable[[Measurement], str]] = {
    "network": lambda measurement: measurement.network,
    "family": lambda measurement: family_of(measurement.network),
    "batch": lambda measurement: f"batch {'up to' if measurement.batch_size <= SMALL_BATCH else 'above'} {SMALL_BATCH}",
}
"""What steps of a source are told apart by, for each split that fits the rest of the source."""


def _author(one: Traits) -> str:
    """Who measured, whatever the version of the software."""
    return one.source.split(" ", maxsplit=1)[0]


KNOWN_HOST = "host"
"""The split of devices that nobody has measured, on the computer of a source that has measured others."""

_IGNORED: dict[str, Callable[[Traits, Traits], bool]] = {
    **dict.fromkeys(("gpu", KNOWN_HOST), lambda own, other: other.chip == own.chip),
    "generation": lambda own, other: abs(other.year - own.year) <= 1 or other.chip == own.chip,
    "source": lambda own, other: other.chip == own.chip and _author(other) == _author(own),
    "software": lambda own, other: other.chip == own.chip and other.software == own.software,
    "execution": lambda own, other: other.execution == own.execution and other.chip == own.chip,
}
"""What is held out with a group, for each split that holds out all of it."""

_KNOWN_DEVICE = ("source", "software", "execution")
"""Splits of devices that somebody else measured, too."""

SPLITS = (*_LABELS, *_IGNORED)


def _rows(split: str, runs: MeasuredRuns, points: Sequence[Point], simple: dict[str, Floats]) -> list[Row]:
    """A row for each phase and source of a device's points, which are in the order of `runs`."""
    kinds = [(point.measurement.phase, point.measurement.source) for point in points]
    rows = []
    for phase, source in sorted(set(kinds)):
        chosen = np.array([kind == (phase, source) for kind in kinds])
        own = [point for point, is_own in zip(points, chosen) if is_own]
        step = own[0].measurement
        measured = runs.measured_s[chosen]
        baselines = {name: float(np.mean(np.abs(times[chosen] / measured - 1))) for name, times in simple.items()}
        predicted, deviation = np.array([(point.predicted_s, point.deviation) for point in own]).T
        rows.append(
            Row(
                split=split, gpu=step.gpu, precision=step.precision, phase=phase, points=len(own), source=source,
                baselines=baselines, **scores(measured, predicted, deviation),
            )
        )  # fmt: skip
    return rows


def explain(point: Point, points: Sequence[Point]) -> str:
    """What makes a point hard to predict, as far as its configuration and the other points tell."""
    own = point.measurement
    alike = [p.measurement for p in points if (p.measurement.gpu, p.measurement.source) == (own.gpu, own.source)]
    networks = len({m.network for m in alike})
    wider = [m.time_s for m in alike if _step(m) == _step(own) and m.precision == "fp32"]
    if own.precision == "fp16" and wider and own.time_s > 1.2 * min(wider):
        return f"a suspicious row: the same step takes {format_si(min(wider), 's')} in fp32"
    # Of a smaller batch a sample takes no less; of a larger one, or in another precision, it may.
    larger = [
        m.time_s / m.batch_size
        for m in alike
        if (m.network, m.phase, m.precision, m.image_size) == ("vgg19", own.phase, own.precision, own.image_size)
        and m.batch_size <= own.batch_size
    ]
    if own.network in ("vgg11", "vgg13", "vgg16") and larger and own.time_s / own.batch_size > min(larger):
        return "a suspicious row: slower per sample than VGG19, which contains it"
    if own.precision == "fp16" and library_peak(Machine(find_device(own.gpu)), "fp16").peak.unit != "tensor":
        return "fp16 without tensor cores: which kernels the library takes changes from layer to layer"
    if networks < 6:
        which = "the only network" if networks == 1 else f"one of {networks} networks"
        return f"{which} of its source, so the others hold little of its work"
    if own.batch_size <= 2:
        return "a batch so small that launching and short kernels rule"
    if own.network.startswith(("regnet", "resnext")):
        return "grouped convolutions: what libraries make of them changed severalfold between generations"
    if own.precision == "fp64":
        return "fp64 kernels differ by shape more than one share per class says"
    if own.network.startswith(("shufflenet", "mnasnet", "mobilenet", "squeezenet", "densenet")):
        return "many short kernels: the speed of the host that launched them, which no data sheet tells"
    return "the source's software or clocks differ from what the others taught"


def _step(measurement: Measurement) -> tuple[str, str, int, int]:
    return measurement.network, measurement.phase, measurement.batch_size, measurement.image_size


def scores(measured: Floats, predicted: Floats, deviation: Floats) -> dict[str, Any]:
    """How far predictions are off, and how many lie within their intervals: see `Row`.

    Parameters
    ----------
    measured, predicted : ndarray
        Seconds.
    deviation : ndarray
        Standard deviation of the logarithm of each prediction.
    """
    errors = predicted / measured - 1
    away = np.abs(np.log1p(errors)) / deviation
    reach = QUANTILES[0.9] * deviation
    return {
        "mape": float(np.mean(np.abs(errors))),
        "median": float(np.median(np.abs(errors))),
        "p90": float(np.quantile(np.abs(errors), 0.9)),
        "bias": float(np.median(errors)),
        "rank_correlation": _rank_correlation(measured, predicted),
        "coverage_80": float(np.mean(away < QUANTILES[0.8])),
        "coverage_90": float(np.mean(away < QUANTILES[0.9])),
        "width_90": float(np.mean(np.exp(reach) - np.exp(-reach))),
    }


def _rank_correlation(one: Floats, other: Floats) -> float | None:
    """Spearman's, without ties; None of a single point."""
    if len(one) < 2:
        return None
    ranks = [np.argsort(np.argsort(values, kind="stable"), kind="stable") for values in (one, other)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def simple_times(runs: MeasuredRuns, folds: Sequence[NDArray[np.int64]]) -> dict[str, Floats]:
    """Seconds by simpler models on the same folds: one PPP, roofline, one PPP per class."""
    from scipy.optimize import nnls

    compute, bound, by_class = simple_terms(runs)
    one_ppp, per_class = np.zeros(len(runs)), np.zeros(len(runs))
    for fold in folds:
        rest = np.setdiff1d(np.arange(len(runs)), fold)
        one_ppp[fold] = compute[fold] * np.median(runs.measured_s[rest] / compute[rest])
        # One positive factor per class, by least squares on relative error.
        relative = by_class[rest] / runs.measured_s[rest][:, None]
        per_class[fold] = by_class[fold] @ nnls(relative, np.ones(len(rest)))[0]
    return {"one_ppp": one_ppp, "roofline": bound, "per_class_ppp": per_class}


def simple_terms(runs: MeasuredRuns) -> tuple[Floats, Floats, Floats]:
    """Per step: seconds of all FLOPs at peak, of the roofline, and of the roofline by class of work."""
    features, rates = runs.features, runs.rates
    compute = features.flops / np.where(features.matrix, rates.matrix_per_s, rates.vector_per_s)
    roof = np.maximum(compute, features.bytes / rates.bandwidth_bytes_per_s)
    classes = int(features.work_class.max()) + 1
    by_class = np.bincount(runs.run * classes + features.work_class, weights=roof, minlength=len(runs) * classes)
    total, bound = (np.bincount(runs.run, weights=part, minlength=len(runs)) for part in (compute, roof))
    return np.asarray(total, float), np.asarray(bound, float), np.asarray(by_class, float).reshape(len(runs), classes)

"""Accuracy of predictions of held-out measurements, in comparison with simpler models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec
import numpy as np

from ..errors import BadValue
from ..machines import Device, Machine, find_device
from ..progress import report as report_progress
from ..result import Result
from ..timing.calibrated import CalibratedModel, library_peak
from ..units import format_si
from .accuracy import error_statistics, relative_errors
from .fit import Fit, MeasuredRuns, predict_held_out, runs_of
from .measured_devices import DeviceData, GroupKey, MeasuredDevices
from .measurements import Measurement
from .pool import POOL_SCATTER, pooled_model
from .power import hold_out_power
from .prior import Prior, Traits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MAX_FILE_BYTES = 2**27
"""Upper limit for the size of a file with a `Validation`."""

FAMILIES = (
    "wide_resnet",
    "resnext",
    "resnet",
    "densenet",
    "vgg",
    "mnasnet",
    "mobilenet",
    "shufflenet",
    "squeezenet",
    "efficientnet",
    "convnext",
    "regnet",
    "swin",
    "maxvit",
    "vit",
    "inception",
    "googlenet",
    "alexnet",
)
"""Prefixes of network names; the first that matches is the family."""


class Point(msgspec.Struct, frozen=True):
    """One held-out measurement with its prediction.

    Attributes
    ----------
    predicted_s : float
        Predicted seconds.
    deviation : float
        Standard deviation of the logarithm of the prediction.
    """

    measurement: Measurement
    predicted_s: float
    deviation: float

    @property
    def error(self) -> float:
        """Relative error, predicted / measured - 1."""
        return self.predicted_s / self.measurement.time_s - 1


class AccuracyRow(msgspec.Struct, frozen=True):
    """Accuracy for one device, precision, phase and source; errors and coverages are fractions of 1.

    Attributes
    ----------
    split : str
        Held-out unit, one of `SPLITS`.
    points : int
        Number of held-out measurements.
    mape, median, p90 : float
        Mean, median and 90th percentile of the absolute relative error.
    bias : float
        Median of the relative error.
    rank_correlation : float or None
        Spearman's, between measured and predicted times.
    coverage_80, coverage_90 : float
        Fraction of the measurements within their 80% and 90% intervals.
    width_90 : float
        Mean relative width of the 90% intervals.
    sharpness_90 : float or None
        Median ratio between the ends of the 90% intervals; None in files of earlier versions.
    baselines : dict of str to float
        Mean absolute relative error of simpler models.
    """

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
    sharpness_90: float | None = None


def family_of(network: str) -> str:
    """Return the family of a network by its name, or the name itself if it belongs to none."""
    for family in FAMILIES:
        if network.startswith(family):
            return family
    return network


class PowerRow(msgspec.Struct, frozen=True):
    """Accuracy of held-out watts of one device in one precision, at measured times; errors are fractions of 1.

    Attributes
    ----------
    split : str
        Held-out unit, one of `SPLITS`.
    points : int
        Number of measured powers.
    mape, median, bias : float
        Mean and median of the absolute relative error, and median of the relative error.
    coverage_90, width_90 : float
        Fraction of the powers within their 90% intervals, and mean relative width of these.
    shipped : float
        Mean absolute relative error of the shipped constants.
    """

    split: str
    gpu: str
    precision: str
    points: int
    mape: float
    median: float
    bias: float
    coverage_90: float
    width_90: float
    shipped: float


class Validation(Result, msgspec.Struct, frozen=True):
    """Accuracy of the predictions of held-out measurements.

    Attributes
    ----------
    split : str
        Held-out unit, one of `SPLITS`.
    powers : list of PowerRow
        Accuracy of the watts, if any were measured.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.calibrations:validation_page"

    split: str
    rows: list[AccuracyRow]
    points: list[Point]
    powers: list[PowerRow] = []

    def select(self, gpus: Sequence[str], precisions: Sequence[str]) -> Validation:
        """Return the part for some devices and precisions; an empty sequence selects all."""

        def is_selected(item: AccuracyRow | PowerRow | Measurement) -> bool:
            return (not gpus or item.gpu in gpus) and (not precisions or item.precision in precisions)

        rows = [row for row in self.rows if is_selected(row)]
        points = [point for point in self.points if is_selected(point.measurement)]
        return Validation(self.split, rows, points, [row for row in self.powers if is_selected(row)])


def validate(
    measurements: Sequence[Measurement],
    split: str,
    gpus: Sequence[str] = (),  # devices to validate; all if empty. The others still inform the priors
    precisions: Sequence[str] = (),  # precisions to validate; all if empty
    operations: Sequence[DeviceData] = (),  # measurements of single operations that also inform the priors
) -> tuple[list[AccuracyRow], list[Point]]:
    """Predict held-out measurements and compare them with the measured times.

    The prior of each device comes from other devices, see `MeasuredDevices`; held-out measurements do not inform them
    either.

    The split is the held-out unit, one of `SPLITS`. A network, a family or a range of batch sizes (`_LABEL_SPLITS`) is
    predicted by a fit to the source's other measurements of the device in the precision, all phases together, as in a
    calibration. The other splits (`_GROUP_SPLITS`) hold out all measurements of the group: it is predicted by its
    prior, for an unknown host (`KNOWN_HOST`: the host of the source's other devices). Raise BadValue if the split is
    unknown or there is nothing to hold out.
    """
    if split not in SPLITS:
        raise BadValue(f"the split must be one of {', '.join(SPLITS)} (got {split!r})")
    devices = MeasuredDevices(measurements, _LABEL_SPLITS.get(split), operations)
    rows: list[AccuracyRow] = []
    points: list[Point] = []
    for number_done, (key, group) in enumerate(devices.groups.items()):
        report_progress(number_done, len(devices.groups))
        if (gpus and key.gpu not in gpus) or (precisions and key.precision not in precisions):
            continue
        if split in _LABEL_SPLITS:
            predictions = _predict_by_label(split, devices, key)
        else:
            predictions = _predict_by_prior(split, devices, key)
        if predictions is None:
            continue
        group_points = [
            Point(step, float(predicted_s), float(deviation))
            for step, predicted_s, deviation in zip(group, predictions.predicted_s, predictions.deviation)
        ]
        rows += _rows(split, predictions, group_points)
        points += group_points
    if not rows:
        raise BadValue(f"nothing to hold out: the split {split} needs measurements of three or more other networks")
    return rows, points


def validate_powers(
    measurements: Sequence[Measurement], split: str, gpus: Sequence[str], precisions: Sequence[str]
) -> list[PowerRow]:
    """Predict held-out watts at the measured times, and compare them with the measured ones.

    The shares of arithmetic and memory traffic are those of the shipped calibration; the constants of the power are
    fitted to the watts of the device's other groups. With a whole device held out they are the shipped ones.
    Measurements without watts are left out; the other arguments are as for `validate`.
    """
    label = _LABEL_SPLITS.get(split, _same_label)
    rows = []
    groups: dict[tuple[str, str, str], list[Measurement]] = {}
    for step in measurements:
        if step.power_w is not None:
            groups.setdefault((find_device(step.gpu).id, step.precision, step.execution), []).append(step)
    for (gpu, precision, execution), steps in groups.items():
        if (gpus and gpu not in gpus) or (precisions and precision not in precisions):
            continue
        device = find_device(gpu)
        model = pooled_model(device, precision, execution)
        if not isinstance(model, CalibratedModel):
            continue
        points = hold_out_power(steps, device, model, [label(step) for step in steps])
        if not points:
            continue
        errors = np.array([point.error for point in points])
        rows.append(
            PowerRow(
                split=split,
                gpu=gpu,
                precision=precision,
                points=len(points),
                **relative_errors(errors),
                coverage_90=float(np.mean([point.is_inside for point in points])),
                width_90=float(np.mean([(point.high_w - point.low_w) / point.power_w for point in points])),
                shipped=float(np.mean([abs(point.shipped_w / point.measured_w - 1) for point in points])),
            )
        )
    return rows


def _same_label(measurement: Measurement) -> str:
    """Return the label of a split that holds out whole devices."""
    return ""


class _HeldOutPredictions(NamedTuple):
    """Predictions of a group."""

    runs: MeasuredRuns  # the measured steps
    predicted_s: Floats  # shape (steps,)
    deviation: Floats  # standard deviation of the logarithms of the predicted seconds, shape (steps,)
    baselines_s: dict[str, Floats]  # seconds by simpler models


def _predict_by_label(split: str, devices: MeasuredDevices, key: GroupKey) -> _HeldOutPredictions | None:
    """Predict the measurements of each label in a group by a fit to the rest of the group.

    None if there are fewer than two labels or three networks.
    """
    group = devices.groups[key]
    labels = [_LABEL_SPLITS[split](step) for step in group]
    if len(set(labels)) < 2 or len({step.network for step in group}) < 3:
        return None
    runs = devices.measured[key].runs
    sorted_labels = sorted(set(labels))
    folds = [np.flatnonzero(np.array(labels) == label) for label in sorted_labels]
    priors = [devices.prior(key, label, of_calibration=True) for label in sorted_labels]
    predicted_s, deviation = predict_held_out(runs, priors, folds)
    return _HeldOutPredictions(runs, predicted_s, deviation, baseline_times(runs, folds))


def _predict_by_prior(split: str, devices: MeasuredDevices, key: GroupKey) -> _HeldOutPredictions | None:
    """Predict a group by its prior, without the evidence of the group and of the groups held out with it.

    None if too little evidence remains.
    """
    runs, traits = devices.measured[key].runs, devices.measured[key].traits
    is_held_out = _GROUP_SPLITS[split]
    remaining = [evidence for evidence in devices.evidence().values() if not is_held_out(traits, evidence)]
    # Measured devices must remain with the same arithmetic unit, or for some splits the same device by other sources.
    related = [other for other in remaining if (other.unit, other.precision) == (traits.unit, traits.precision)]
    if split in _SAME_DEVICE_SPLITS:
        related = [other for other in related if other.id == traits.id and other.source != traits.source]
    if split == KNOWN_HOST and not any(other.source == traits.source for other in remaining):
        return None
    if not related:
        return None
    prior = devices.prior(key, ignore=lambda other: is_held_out(traits, other), is_source_known=split == KNOWN_HOST)
    predicted_s, deviation = prior_as_fit(prior).predict(runs)
    return _HeldOutPredictions(runs, predicted_s, deviation, {"roofline": baseline_terms(runs)[1]})


def prior_as_fit(prior: Prior) -> Fit:
    """Return a prior in the form of a fit to no measurements."""
    zeros = np.zeros(len(prior.mean))
    return Fit(
        theta=prior.mean,
        covariance=np.diag(prior.deviation**2),
        scatter=POOL_SCATTER,
        residuals=np.zeros(0),
        learned_fraction=zeros,
    )


def predict_measured(basis: Fit, measurements: Sequence[Measurement], device: Device, precision: str) -> list[Point]:
    """Predict measurements that a fit has not used."""
    times_s, deviations = basis.predict(runs_of(measurements, device, precision))
    return [
        Point(step, float(time_s), float(deviation))
        for step, time_s, deviation in zip(measurements, times_s, deviations)
    ]


SMALL_BATCH = 8


def _batch_label(measurement: Measurement) -> str:
    if measurement.batch_size <= SMALL_BATCH:
        return f"batch up to {SMALL_BATCH}"
    return f"batch above {SMALL_BATCH}"


_LABEL_SPLITS: dict[str, Callable[[Measurement], str]] = {
    "network": lambda measurement: measurement.network,
    "family": lambda measurement: family_of(measurement.network),
    "batch": _batch_label,
}
"""Splits that hold out part of a group, with the label by which measurements are held out."""


def _author(traits: Traits) -> str:
    """Return the author of a source, without the version of the software."""
    return traits.source.split(" ", maxsplit=1)[0]


KNOWN_HOST = "host"
"""Split that holds out devices, on the host of a source that has measured others."""


def _is_same_chip(traits: Traits, other: Traits) -> bool:
    return other.chip == traits.chip


_GROUP_SPLITS: dict[str, Callable[[Traits, Traits], bool]] = {
    "gpu": _is_same_chip,
    KNOWN_HOST: _is_same_chip,
    "generation": lambda traits, other: abs(other.year - traits.year) <= 1 or other.chip == traits.chip,
    "source": lambda traits, other: other.chip == traits.chip and _author(other) == _author(traits),
    "software": lambda traits, other: other.chip == traits.chip and other.software == traits.software,
    "execution": lambda traits, other: other.execution == traits.execution and other.chip == traits.chip,
}
"""Splits that hold out whole groups, with the condition under which another group is held out as well."""

_SAME_DEVICE_SPLITS = ("source", "software", "execution")
"""Splits that predict a device from other sources' measurements of it."""

SPLITS = (*_LABEL_SPLITS, *_GROUP_SPLITS)


def _rows(split: str, predictions: _HeldOutPredictions, points: Sequence[Point]) -> list[AccuracyRow]:
    """Return a row for each phase and source of a group; `points` are in the order of the predictions."""
    keys = [(point.measurement.phase, point.measurement.source) for point in points]
    rows = []
    for phase, source in sorted(set(keys)):
        selected = np.array([key == (phase, source) for key in keys])
        step = points[int(np.flatnonzero(selected)[0])].measurement
        measured_s = predictions.runs.measured_s[selected]
        baselines = {}
        for name, times_s in predictions.baselines_s.items():
            baselines[name] = float(np.mean(np.abs(times_s[selected] / measured_s - 1)))
        statistics = error_statistics(measured_s, predictions.predicted_s[selected], predictions.deviation[selected])
        rows.append(
            AccuracyRow(
                split=split,
                gpu=step.gpu,
                precision=step.precision,
                phase=phase,
                points=len(measured_s),
                source=source,
                baselines=baselines,
                **statistics,
            )
        )
    return rows


def explain_error(point: Point, points: Sequence[Point]) -> str:
    """Return a likely reason for the error of a prediction, from its configuration and the other points."""
    step = point.measurement
    same_source = [
        p.measurement for p in points if (p.measurement.gpu, p.measurement.source) == (step.gpu, step.source)
    ]
    fp32_times_s = [m.time_s for m in same_source if _step(m) == _step(step) and m.precision == "fp32"]
    if step.precision == "fp16" and fp32_times_s and step.time_s > 1.2 * min(fp32_times_s):
        return f"a suspicious row: the same step takes {format_si(min(fp32_times_s), 's')} in fp32"
    # Only smaller batches of VGG19 are compared: they take at least as long per sample.
    vgg19 = ("vgg19", step.phase, step.precision, step.image_size)
    vgg19_s_per_sample = [
        m.time_s / m.batch_size
        for m in same_source
        if (m.network, m.phase, m.precision, m.image_size) == vgg19 and m.batch_size <= step.batch_size
    ]
    is_part_of_vgg19 = step.network in ("vgg11", "vgg13", "vgg16")
    if is_part_of_vgg19 and vgg19_s_per_sample and step.time_s / step.batch_size > min(vgg19_s_per_sample):
        return "a suspicious row: slower per sample than VGG19, which contains it"
    if step.precision == "fp16" and library_peak(Machine(find_device(step.gpu)), "fp16").peak.unit != "tensor":
        return "fp16 without tensor cores: libraries choose different kernels from layer to layer"
    networks = len({m.network for m in same_source})
    if networks < 6:
        number = "the only network" if networks == 1 else f"one of {networks} networks"
        return f"{number} of its source: the other measurements contain little of the same work"
    if step.batch_size <= 2:
        return "a small batch: launches and short kernels dominate the time"
    if step.network.startswith(("regnet", "resnext")):
        return "grouped convolutions: their efficiency changed severalfold between library versions and generations"
    if step.precision == "fp64":
        return "fp64 kernels: their efficiency depends on the shape more than the model allows"
    if step.network.startswith(("shufflenet", "mnasnet", "mobilenet", "squeezenet", "densenet")):
        return "many short kernels: the time depends on the speed of the host, which is not in the data sheet"
    return "the software or clocks of the source differ from those of the other sources"


def _step(measurement: Measurement) -> tuple[str, str, int, int]:
    return measurement.network, measurement.phase, measurement.batch_size, measurement.image_size


def baseline_times(runs: MeasuredRuns, folds: Sequence[NDArray[np.int64]]) -> dict[str, Floats]:
    """Return the seconds by simpler models, fitted to the same folds: one PPP, the roofline, and one PPP per class."""
    from scipy.optimize import nnls

    compute, roofline, by_class = baseline_terms(runs)
    one_ppp, per_class = np.zeros(len(runs)), np.zeros(len(runs))
    for fold in folds:
        rest = np.setdiff1d(np.arange(len(runs)), fold)
        one_ppp[fold] = compute[fold] * np.median(runs.measured_s[rest] / compute[rest])
        # One positive factor per class, by least squares of the relative errors.
        relative = by_class[rest] / runs.measured_s[rest][:, None]
        per_class[fold] = by_class[fold] @ nnls(relative, np.ones(len(rest)))[0]
    return {"one_ppp": one_ppp, "roofline": roofline, "per_class_ppp": per_class}


def baseline_terms(runs: MeasuredRuns) -> tuple[Floats, Floats, Floats]:
    """Return the terms of simpler models.

    They are the seconds of all FLOPs at peak and of the roofline summed over layers, both of shape (steps,), and the
    latter by class of work, shape (steps, classes).
    """
    features, rates = runs.features, runs.rates
    layer_compute_s = features.flops / np.where(features.matrix, rates.matrix_per_s, rates.vector_per_s)
    layer_roofline_s = np.maximum(layer_compute_s, features.bytes / rates.bandwidth_bytes_per_s)
    steps, classes = len(runs), int(features.work_class.max()) + 1
    compute_s = np.bincount(runs.run, weights=layer_compute_s, minlength=steps)
    roofline_s = np.bincount(runs.run, weights=layer_roofline_s, minlength=steps)
    step_and_class = runs.run * classes + features.work_class
    by_class_s = np.bincount(step_and_class, weights=layer_roofline_s, minlength=steps * classes)
    return (
        np.asarray(compute_s, float),
        np.asarray(roofline_s, float),
        np.asarray(by_class_s, float).reshape(steps, classes),
    )

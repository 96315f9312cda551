"""How true predictions are on what was held out, beside simpler models on the same folds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..errors import BadValue
from ..hardware import find_device
from ..timing.terms import QUANTILES
from .borrowed import Key, Taught, group_by_source
from .calibrate import held_out, order, runs_of
from .fit import Runs
from .measurements import Measurement

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SPLITS = ("network", "family", "gpu", "source")

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


def validate(
    measurements: Sequence[Measurement], split: str, gpus: Sequence[str] = (), precisions: Sequence[str] = ()
) -> tuple[list[Row], list[Point]]:
    """Hold out, predict, compare.

    What other devices taught is the prior of each, see `borrowed.Taught`; they have not seen what is held out either.

    Parameters
    ----------
    measurements : sequence of Measurement
    split : {"network", "family", "gpu", "source"}
        What is held out at a time: a network or a family of what one source measured of a device in a precision; all
        measurements of a device, which is then predicted from its data sheet and what the others taught; or a source,
        predicted from the other sources of the device. All phases are fitted together, as calibrations are.
    gpus, precisions : sequence of str
        Only these devices and precisions; all where empty. The others are learnt from all the same.

    Raises
    ------
    BadValue
        If the split is unknown or there is nothing to hold out.
    """
    if split not in SPLITS:
        raise BadValue(f"the split is {', '.join(SPLITS)}, not {split!r}")
    taught = Taught(measurements, _LABELS.get(split))
    groups = group_by_source(measurements) if split != "source" else _group_by_device(measurements)
    rows, points = [], []
    for (gpu, precision, source), group in groups.items():
        wanted = (not gpus or gpu in gpus) and (not precisions or precision in precisions)
        if not wanted or len({m.network for m in group}) < 3:
            continue
        device = find_device(gpu)
        if split == "gpu":
            labels = [source] * len(group)
            if not taught.others(device, precision):
                continue
        else:
            labels = [_LABELS[split](m) for m in group]
            if len(set(labels)) < 2:
                continue
        runs, folds = runs_of(group, device, precision), _folds(labels)
        priors = [
            taught.prior(device, precision, label if split == "source" else source, label)
            for label in sorted(set(labels))
        ]
        predicted, deviation = held_out(runs, priors, folds)
        found = [Point(m, float(p), float(d)) for m, p, d in zip(group, predicted, deviation)]
        simple = {} if split == "gpu" else simple_times(runs, folds)
        parts = [(m.phase, m.source) for m in group]
        for phase, name in sorted(set(parts)):
            chosen = np.array([part == (phase, name) for part in parts])
            baselines = {
                name: float(np.mean(np.abs(times[chosen] / runs.measured_s[chosen] - 1)))
                for name, times in simple.items()
            }
            kept = [point for point, is_in in zip(found, chosen) if is_in]
            rows.append(_row(split, (gpu, precision, phase, name), kept, baselines))
        points += found
    if not rows:
        raise BadValue(f"nothing to hold out: a {split} is predicted from measurements of three or more other networks")
    return rows, points


_LABELS: dict[str, Callable[[Measurement], str]] = {
    "network": lambda measurement: measurement.network,
    "family": lambda measurement: family_of(measurement.network),
    "source": lambda measurement: measurement.source,
}


def _group_by_device(measurements: Sequence[Measurement]) -> dict[Key, list[Measurement]]:
    groups: dict[Key, list[Measurement]] = defaultdict(list)
    for each in order(measurements):
        groups[each.gpu, each.precision, ""].append(each)
    return groups


def _folds(labels: list[str]) -> list[NDArray[np.int64]]:
    return [np.array([i for i, label in enumerate(labels) if label == one]) for one in sorted(set(labels))]


def _row(split: str, key: tuple[str, str, str, str], points: list[Point], baselines: dict[str, float]) -> Row:
    gpu, precision, phase, source = key
    measured, predicted, deviation = np.array(
        [(point.measurement.time_s, point.predicted_s, point.deviation) for point in points]
    ).T
    return Row(
        split=split, gpu=gpu, precision=precision, phase=phase, points=len(points), source=source, baselines=baselines,
        **scores(measured, predicted, deviation),
    )  # fmt: skip


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


def simple_times(runs: Runs, folds: Sequence[NDArray[np.int64]]) -> dict[str, Floats]:
    """Seconds by simpler models on the same folds: one PPP, roofline, one PPP per class."""
    compute, bound, by_class = _simple_terms(runs)
    one_ppp, per_class = np.zeros(len(runs)), np.zeros(len(runs))
    for fold in folds:
        rest = np.setdiff1d(np.arange(len(runs)), fold)
        one_ppp[fold] = compute[fold] * np.median(runs.measured_s[rest] / compute[rest])
        per_class[fold] = by_class[fold] @ _positive_least_squares(by_class[rest], runs.measured_s[rest])
    return {"one_ppp": one_ppp, "roofline": bound, "per_class_ppp": per_class}


def _simple_terms(runs: Runs) -> tuple[Floats, Floats, Floats]:
    """Per step: seconds of all FLOPs at peak, of the roofline, and of the roofline by class of work."""
    features, rates = runs.features, runs.rates
    compute = features.flops / np.where(features.matrix, rates.matrix_per_s, rates.vector_per_s)
    roof = np.maximum(compute, features.bytes / rates.bandwidth_bytes_per_s)
    classes = int(features.work_class.max()) + 1
    by_class = np.bincount(runs.run * classes + features.work_class, weights=roof, minlength=len(runs) * classes)
    total, bound = (np.bincount(runs.run, weights=part, minlength=len(runs)) for part in (compute, roof))
    return np.asarray(total, float), np.asarray(bound, float), np.asarray(by_class, float).reshape(len(runs), classes)


def _positive_least_squares(columns: Floats, measured: Floats) -> Floats:
    """One positive factor per class, by least squares on relative error."""
    from scipy.optimize import nnls

    return np.asarray(nnls(columns / measured[:, None], np.ones(len(measured)))[0])

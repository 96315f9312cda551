"""How true predictions are on what was held out, beside simpler models on the same folds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..errors import BadValue
from ..hardware import find_device
from ..timing.fitted import QUANTILES
from .calibrate import calibrate, held_out, on_tensor_cores, order, runs_of
from .fit import Fit, Runs
from .measurements import Measurement
from .prior import base_prior, pooled_prior

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SPLITS = ("network", "family", "gpu")

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
    rank_correlation: float
    coverage_80: float
    coverage_90: float
    width_90: float
    baselines: dict[str, float]
    source: str = ""


def family_of(network: str) -> str:
    """The family of a network by its name: itself where it belongs to none."""
    return next((family for family in FAMILIES if network.startswith(family)), network)


def validate(measurements: Sequence[Measurement], split: str) -> tuple[list[Row], list[Point]]:
    """Hold out, predict, compare.

    Parameters
    ----------
    measurements : sequence of Measurement
    split : {"network", "family", "gpu"}
        What is held out at a time: a network or a family within a device, precision, phase and source; or all
        measurements of a device, which is then predicted from its data sheet and what the others taught.

    Raises
    ------
    BadValue
        If the split is unknown or there is nothing to hold out.
    """
    if split not in SPLITS:
        raise BadValue(f"the split is {', '.join(SPLITS)}, not {split!r}")
    groups: dict[tuple[str, str, str, str], list[Measurement]] = defaultdict(list)
    for each in order(measurements):
        groups[each.gpu, each.precision, each.phase, each.source].append(each)
    fits = _fits(groups) if split == "gpu" else {}
    rows, points = [], []
    for key, group in groups.items():
        gpu, precision, phase, _ = key
        if len({m.network for m in group}) < 3:
            continue
        device = find_device(gpu)
        runs = runs_of(group, device, precision)
        if split == "gpu":
            others = [fit for other, fit in fits.items() if other[0] != gpu and other[1:3] == (precision, phase)]
            if not others:
                continue
            base = base_prior(on_tensor_cores(device, precision))
            predicted, deviation = held_out(runs, pooled_prior(others, base), [np.arange(len(runs))])
        else:
            folds = _folds([m.network if split == "network" else family_of(m.network) for m in group])
            predicted, deviation = held_out(runs, base_prior(on_tensor_cores(device, precision)), folds)
        found = [Point(m, float(p), float(d)) for m, p, d in zip(group, predicted, deviation)]
        baselines = {} if split == "gpu" else _baselines(runs, folds)
        rows.append(_row(split, key, found, baselines))
        points += found
    if not rows:
        raise BadValue("nothing to hold out: each device, precision, phase and source needs three networks or more")
    return rows, points


def _fits(groups: dict[tuple[str, str, str, str], list[Measurement]]) -> dict[tuple[str, str, str, str], Fit]:
    return {key: calibrate(group, find_device(key[0]), key[1])[1] for key, group in groups.items()}


def _folds(labels: list[str]) -> list[NDArray[np.int64]]:
    return [np.array([i for i, label in enumerate(labels) if label == one]) for one in sorted(set(labels))]


def _row(split: str, key: tuple[str, str, str, str], points: list[Point], baselines: dict[str, float]) -> Row:
    gpu, precision, phase, source = key
    errors = np.array([point.error for point in points])
    away = np.abs(np.log1p(errors)) / np.array([point.deviation for point in points])
    measured = np.array([point.measurement.time_s for point in points])
    predicted = np.array([point.predicted_s for point in points])
    reach = QUANTILES[0.9] * np.array([point.deviation for point in points])
    return Row(
        split=split, gpu=gpu, precision=precision, phase=phase, points=len(points), source=source,
        mape=float(np.mean(np.abs(errors))), median=float(np.median(np.abs(errors))),
        p90=float(np.quantile(np.abs(errors), 0.9)), bias=float(np.median(errors)),
        rank_correlation=_rank_correlation(measured, predicted),
        coverage_80=float(np.mean(away < QUANTILES[0.8])), coverage_90=float(np.mean(away < QUANTILES[0.9])),
        width_90=float(np.mean(np.exp(reach) - np.exp(-reach))), baselines=baselines,
    )  # fmt: skip


def _rank_correlation(one: Floats, other: Floats) -> float:
    """Spearman's, without ties."""
    ranks = [np.argsort(np.argsort(values, kind="stable"), kind="stable") for values in (one, other)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _baselines(runs: Runs, folds: Sequence[NDArray[np.int64]]) -> dict[str, float]:
    """Mean absolute error of simpler models on the same folds: one PPP, roofline, one PPP per class."""
    compute, bound, by_class = _simple_terms(runs)
    one_ppp, per_class = np.zeros(len(runs)), np.zeros(len(runs))
    for fold in folds:
        rest = np.setdiff1d(np.arange(len(runs)), fold)
        one_ppp[fold] = compute[fold] * np.median(runs.measured_s[rest] / compute[rest])
        per_class[fold] = by_class[fold] @ _positive_least_squares(by_class[rest], runs.measured_s[rest])
    return {
        name: float(np.mean(np.abs(times / runs.measured_s - 1)))
        for name, times in (("one_ppp", one_ppp), ("roofline", bound), ("per_class_ppp", per_class))
    }


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

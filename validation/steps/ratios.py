"""Validation of intervals of ratios: the fraction of measured ratios inside the interval of their prediction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import msgspec
import numpy as np

from paleo_lite.calibration.fit import fit
from paleo_lite.calibration.measured_devices import GroupKey, MeasuredDevices
from paleo_lite.calibration.measurements import Measurement
from paleo_lite.calibration.pool import POOL_SCATTER
from paleo_lite.calibration.ratios import Estimate, log_ratio_variance
from paleo_lite.calibration.validate import family_of
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.reporting.formats import format_percent_rounded
from paleo_lite.timing.calibrated import CalibratedModel, sensitivities
from paleo_lite.timing.intervals import QUANTILES

GROUPS = 8
"""Number of parts in which networks are held out; two networks of a part are predicted by the same fit."""


class HeldOutStep(NamedTuple):
    """A held-out step, the error of the logarithm of its prediction, and the estimate behind the prediction."""

    step: Measurement
    error: float
    estimate: Estimate


class RatioRow(msgspec.Struct, frozen=True):
    """Coverage and width of the intervals of a kind of ratio."""

    kind: str
    pairs: int
    # Fraction of ratios inside their 80% and 90% interval.
    coverage_80: float
    coverage_90: float
    width_90: float  # upper over lower end of the 90% interval, for the median ratio
    # The same if the two predictions were treated as independent.
    independent_coverage_90: float
    independent_width_90: float


class _Pairs(NamedTuple):
    """Differences of two errors, their variances, and their variances if the errors were independent."""

    difference: list[float]
    variance: list[float]
    independent: list[float]

    def add(self, one: HeldOutStep, other: HeldOutStep, is_same_step: bool) -> None:
        self.difference.append(one.error - other.error)
        self.variance.append(log_ratio_variance(one.estimate, other.estimate, is_same_step))
        estimates = one.estimate, other.estimate
        variances = (e.slopes @ e.model.covariance @ e.slopes + e.model.residual_variance for e in estimates)
        self.independent.append(float(sum(variances)))


def validate_ratios(measurements: Sequence[Measurement]) -> list[RatioRow]:
    """Predict held-out steps, and compare the ratio of each pair from one source with its interval.

    For a step on two devices, its family of networks is held out on all devices. Each device is predicted by a fit to
    its other families, or from other devices alone, like a device without measurements. For two steps on one device,
    both networks are held out.
    """
    families = MeasuredDevices(measurements, lambda step: family_of(step.network))
    names = {name: number % GROUPS for number, name in enumerate(sorted({step.network for step in measurements}))}
    networks = MeasuredDevices(measurements, lambda step: str(names[step.network]))
    fitted = list(_predict_by_label(families, lambda step: family_of(step.network), True))
    expected = list(_predict_by_label(families, lambda step: family_of(step.network), False))
    same_device = list(_predict_by_label(networks, lambda step: str(names[step.network]), True))
    return [
        *_of_devices("a step on two devices, both measured", fitted, fitted),
        *_of_devices("a step on two devices, neither measured", expected, expected),
        *_of_devices("a step on two devices, one measured", fitted, expected),
        *_on_one_device(same_device),
    ]


Part = tuple[GroupKey, list[HeldOutStep]]


def _predict_by_label(
    devices: MeasuredDevices, label_of: Callable[[Measurement], str], is_fitted: bool
) -> Iterator[Part]:
    """Predict the steps of each label in each group with a fit to its other steps, or with the prior only."""
    for key, group in devices.groups.items():
        if len({step.network for step in group}) < 3:
            continue
        runs = devices.measured[key].runs
        labels = np.array([label_of(step) for step in group])
        for label in sorted(set(labels)):
            out, rest = np.flatnonzero(labels == label), np.flatnonzero(labels != label)
            prior = devices.prior(key, label, of_calibration=is_fitted)
            result = fit(runs.select(rest if is_fitted else rest[:0]), prior)
            scatter = result.scatter if is_fitted else POOL_SCATTER
            model = CalibratedModel(
                "held out", result.theta, result.covariance, scatter, learned_fraction=result.learned_fraction
            )
            part = runs.select(out)
            times, slopes = sensitivities(part.features, part.rates, np.exp(model.theta), part.run, len(part))
            errors = np.log(times / part.measured_s)
            steps = []
            for index, error, slope in zip(out, errors, slopes / times[:, None]):
                estimate = Estimate(model, slope, key.gpu, key.precision)
                steps.append(HeldOutStep(group[index], float(error), estimate))
            yield key, steps


def _of_devices(kind: str, ones: Iterable[Part], others: Iterable[Part]) -> Iterator[RatioRow]:
    """Compare the same step of one source on two devices in one precision."""
    steps_by_key: dict[object, list[tuple[str, HeldOutStep]]] = defaultdict(list)
    for key, steps in others:
        for step in steps:
            steps_by_key[_step_key(key, step)].append((key.gpu, step))
    pairs = _Pairs([], [], [])
    for key, steps in ones:
        for step in steps:
            for gpu, other in steps_by_key[_step_key(key, step)]:
                # Count each pair once if both sides come from the same predictions.
                is_pair = gpu > key.gpu if ones is others else gpu != key.gpu
                if is_pair:
                    pairs.add(step, other, is_same_step=True)
    yield _row(kind, pairs)


def _step_key(key: GroupKey, held_out: HeldOutStep) -> object:
    step = held_out.step
    return key.source, key.precision, key.execution, step.network, step.phase, step.batch_size, step.image_size


def _on_one_device(parts: Iterable[Part]) -> Iterator[RatioRow]:
    """Compare two steps on one device that differ only in network, batch size or phase."""
    kinds = {name: _Pairs([], [], []) for name in ("network", "batch_size", "phase")}
    for _, steps in parts:
        for one, other in combinations(steps, 2):
            differing = [name for name in kinds if getattr(one.step, name) != getattr(other.step, name)]
            if len(differing) == 1:
                kinds[differing[0]].add(one, other, is_same_step=False)
    for name, pairs in kinds.items():
        yield _row(f"on one device, another {name.replace('_', ' ')}", pairs)


def _row(kind: str, pairs: _Pairs) -> RatioRow:
    difference = np.abs(pairs.difference)
    deviation, independent = np.sqrt(pairs.variance), np.sqrt(pairs.independent)
    quantile = QUANTILES[0.9]
    return RatioRow(
        kind=kind,
        pairs=len(difference),
        coverage_80=float(np.mean(difference < QUANTILES[0.8] * deviation)),
        coverage_90=float(np.mean(difference < quantile * deviation)),
        width_90=float(np.exp(2 * quantile * np.median(deviation))),
        independent_coverage_90=float(np.mean(difference < quantile * independent)),
        independent_width_90=float(np.exp(2 * quantile * np.median(independent))),
    )


def ratio_page(rows: Sequence[RatioRow]) -> Document:
    """Return the page with the coverage and width of the intervals."""
    table = Table(
        "Ratios held out",
        [
            Column("kind", "ratio", left=True),
            Column("pairs", "pairs"),
            Column("coverage_80", "inside\n80%", format_percent_rounded),
            Column("coverage_90", "inside\n90%", format_percent_rounded),
            Column("width_90", "width\n90%", "{:.2f}".format),
            Column("independent_coverage_90", "as if independent,\ninside 90%", format_percent_rounded),
            Column("independent_width_90", "width", "{:.2f}".format),
        ],
        [msgspec.to_builtins(row) for row in rows],
    )
    return Document("ratios of published steps in the intervals of their predictions", (), [table])

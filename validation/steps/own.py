"""Value of a few own measurements of a held-out device, chosen by suggestion or at random."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from paleo_lite.calibration.accuracy import error_statistics
from paleo_lite.calibration.fit import MeasuredRuns, expected_scatter, fit
from paleo_lite.calibration.measured_devices import DeviceData, GroupKey, MeasuredDevices
from paleo_lite.calibration.measurements import Measurement
from paleo_lite.calibration.prior import FIT_SCATTER, Prior, Traits
from paleo_lite.calibration.suggest import choose_measurements, measuring_time_s
from paleo_lite.calibration.validate import prior_as_fit
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.reporting.formats import format_percent
from paleo_lite.timing.calibrated import residual_variance, sensitivities
from paleo_lite.timing.intervals import QUANTILES

from ..columns import error_columns

COUNTS = (1, 2, 4, 8)
"""Numbers of own measurements."""

FEWEST_MEASUREMENTS = 16
"""Fewest measurements of a device in a precision by a source: with fewer, too few remain to predict."""

DRAWS = 5
"""Number of random draws of each number of measurements."""


class OwnRow(msgspec.Struct, frozen=True):
    """Errors for a held-out device after some of its steps were measured, as fractions, averaged over groups."""

    chosen: str  # how the measurements were chosen
    # Number of own measurements, of groups, and of predicted steps.
    measured: int
    groups: int
    points: int
    # Mean and median absolute relative error.
    mape: float
    median: float
    # Fraction of steps inside their 90% interval, and its relative width.
    coverage_90: float
    width_90: float
    sharpness_90: float  # median ratio between the ends of the interval, on average over groups
    promised_90: float | None  # width of the 90% interval that the suggestion expects before the steps are measured


class _HeldOutDevice(NamedTuple):
    """A source's measurements of a held-out device, with the prior from other devices."""

    group: Sequence[Measurement]
    runs: MeasuredRuns
    prior: Prior
    prior_of_fit: Prior
    slopes: np.ndarray
    measuring_s: np.ndarray


def validate_steps(
    measurements: Sequence[Measurement],
    operations: Sequence[DeviceData] = (),
    includes: Callable[[str, str], bool] = lambda gpu, precision: True,
) -> list[OwnRow]:
    """Hold out a chip, fit a few of its steps, and predict the other steps of the source.

    Parameters
    ----------
    measurements : sequence of Measurement
    operations : sequence of DeviceData
        Single operations as additional evidence.
    includes : function of a device and a precision
        Returns whether to hold out a device; evidence comes from all other devices.
    """
    devices = MeasuredDevices(measurements, None, operations)
    held_out = []
    for key, group in devices.groups.items():
        has_enough = len(group) >= FEWEST_MEASUREMENTS
        if has_enough and includes(key.gpu, key.precision) and _has_evidence(devices, key):
            held_out.append(_hold_out(devices, key))
    scores: dict[tuple[str, int], list[dict[str, float]]] = defaultdict(list)
    generator = np.random.default_rng(0)
    for device in held_out:
        scores["none", 0] += _score(device, [])
        covariance = np.diag(device.prior.deviation**2)
        suggested = list(choose_measurements(covariance, device.slopes, device.slopes, device.measuring_s, max(COUNTS)))
        number = len(device.runs)
        for count in COUNTS:
            indices = [index for index, _ in suggested[:count]]
            _, covariance_after = suggested[count - 1]
            expected_width = _width(device.slopes, covariance_after, np.setdiff1d(np.arange(number), indices))
            for row in _score(device, indices):
                scores["suggested", count].append({**row, "promised_90": expected_width})
            for _ in range(DRAWS):
                drawn = generator.choice(number, count, replace=False)
                scores["random", count] += _score(device, drawn.tolist())
    in_order = sorted(scores.items(), key=lambda item: (item[0][1], item[0][0]))
    return [_row(chosen, count, rows) for (chosen, count), rows in in_order]


def _has_evidence(devices: MeasuredDevices, key: GroupKey) -> bool:
    """Return whether another chip was measured in the same precision on the same kind of arithmetic unit."""
    held_out = devices.measured[key].traits
    return any(
        (traits.unit, traits.precision) == (held_out.unit, held_out.precision) and traits.chip != held_out.chip
        for traits in devices.evidence().values()
    )


def _hold_out(devices: MeasuredDevices, key: GroupKey) -> _HeldOutDevice:
    """Return a group of measurements with a prior that excludes its chip."""
    traits, runs = devices.measured[key].traits, devices.measured[key].runs

    def is_same_chip(other: Traits) -> bool:
        return other.chip == traits.chip

    prior = devices.prior(key, ignore=is_same_chip, is_source_known=False)
    prior_of_fit = devices.prior(key, ignore=is_same_chip, is_source_known=False, of_calibration=True)
    times, gradient = sensitivities(runs.features, runs.rates, np.exp(prior.mean), runs.run, len(runs))
    slopes = gradient / times[:, None]
    return _HeldOutDevice(devices.groups[key], runs, prior, prior_of_fit, slopes, measuring_time_s(times))


def _score(device: _HeldOutDevice, indices: Sequence[int]) -> list[dict[str, float]]:
    """Fit the measurements at some indices and predict the others; return a row for each phase."""
    if len(indices):
        fitted = fit(device.runs.select(np.array(indices)), device.prior_of_fit, expected_scatter(len(indices)))
    else:
        fitted = prior_as_fit(device.prior)
    others = np.setdiff1d(np.arange(len(device.runs)), indices)
    runs = device.runs.select(others)
    predicted, deviation = fitted.predict(runs)
    phases = np.array([device.group[index].phase for index in others])
    rows = []
    for phase in sorted(set(phases)):
        is_of_phase = phases == phase
        statistics = error_statistics(runs.measured_s[is_of_phase], predicted[is_of_phase], deviation[is_of_phase])
        rows.append({"points": float(np.sum(is_of_phase)), **statistics})
    return rows


def _width(slopes: np.ndarray, covariance: np.ndarray, rest: np.ndarray) -> float:
    """Return the mean width of the 90% interval of steps, relative to their prediction."""
    variances = np.einsum("np,pq,nq->n", slopes[rest], covariance, slopes[rest]) + residual_variance(FIT_SCATTER)
    half_width = QUANTILES[0.9] * np.sqrt(variances)
    return float(np.mean(np.exp(half_width) - np.exp(-half_width)))


def _row(chosen: str, measured: int, rows: Sequence[dict[str, float]]) -> OwnRow:
    repeated = DRAWS if chosen == "random" else 1
    means = {}
    for name in ("mape", "median", "coverage_90", "width_90", "sharpness_90"):
        means[name] = float(np.mean([row[name] for row in rows]))
    promised = float(np.mean([row["promised_90"] for row in rows])) if chosen == "suggested" else None
    points = int(sum(row["points"] for row in rows)) // repeated
    return OwnRow(chosen, measured, len(rows) // repeated, points, promised_90=promised, **means)


def page(rows: Sequence[OwnRow]) -> Document:
    """Return the page with error, coverage and width by number of measurements and how they were chosen."""
    table = Table(
        "Own measurements of a device held out",
        [
            Column("measured", "measured"),
            Column("chosen", "chosen", left=True),
            Column("groups", "groups"),
            Column("points", "points"),
            *error_columns("mape", "median", "coverage_90", "width_90", "sharpness_90"),
            Column("promised_90", "promised", format_percent),
        ],
        [msgspec.to_builtins(row) for row in rows],
    )
    by_count = {(row.chosen, row.measured): row.mape for row in rows}
    headline = (
        f"a device held out, {by_count['none', 0]:.1%} mean absolute error before anything is measured; after two "
        f"suggested measurements {by_count['suggested', 2]:.1%}, after two at random {by_count['random', 2]:.1%}"
    )
    return Document(headline, (), [table])

"""What a device's own measurements are worth: a few suggested ones, or as many at random, on a device held out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from paleo_lite.calibration.fit import MeasuredRuns, fit
from paleo_lite.calibration.measured_devices import DeviceData, GroupKey, MeasuredDevices
from paleo_lite.calibration.measurements import Measurement
from paleo_lite.calibration.prior import FIT_SCATTER, Prior
from paleo_lite.calibration.suggest import choose_measurements, measuring_time_s
from paleo_lite.calibration.validate import error_statistics, prior_as_fit
from paleo_lite.reporting.document import Column, Document, Table, format_percent
from paleo_lite.timing.calibrated import residual_variance, sensitivities
from paleo_lite.timing.models import QUANTILES

COUNTS = (1, 2, 4, 8)
LEAST = 16
"""Measurements that a source must have of a device in a precision: of fewer, eight leave too few to predict."""

DRAWS = 5
"""How often as many measurements are drawn at random."""


class OwnRow(msgspec.Struct, frozen=True):
    """How true predictions of a device are once so many of its steps were measured: means over groups, shares of 1.

    `promised_90` is the width of the 90% interval before anything was measured, as the suggestion gives it.
    """

    chosen: str
    measured: int
    groups: int
    points: int
    mape: float
    median: float
    coverage_90: float
    width_90: float
    promised_90: float | None


class _Held(NamedTuple):
    """A source's measurements of a device that nobody knows, and what is expected of it."""

    group: Sequence[Measurement]
    runs: MeasuredRuns
    prior: Prior
    slopes: np.ndarray
    measuring_s: np.ndarray


def validate_steps(
    measurements: Sequence[Measurement],
    operations: Sequence[DeviceData] = (),
    wants: Callable[[str, str], bool] = lambda gpu, precision: True,
) -> list[OwnRow]:
    """Hold a chip out, measure a few of its steps, predict the rest of what the source measured.

    Parameters
    ----------
    measurements : sequence of Measurement
    operations : sequence of DeviceData
        Single operations to learn from, too.
    wants : function of a device and a precision
        Whether they are held out; the others are learnt from all the same.
    """
    devices = MeasuredDevices(measurements, None, operations)
    wanted = [key for key, group in devices.groups.items() if len(group) >= LEAST and wants(key.gpu, key.precision)]
    held = [_held(devices, key) for key in wanted if _spoken(devices, key)]
    scored: dict[tuple[str, int], list[dict[str, float]]] = defaultdict(list)
    draws = np.random.default_rng(0)
    for each in held:
        scored["none", 0] += _scored(each, [])
        covariance = np.diag(each.prior.deviation**2)
        found = list(choose_measurements(covariance, each.slopes, each.slopes, each.measuring_s, max(COUNTS)))
        for count in COUNTS:
            places = [place for place, _ in found[:count]]
            promised = _width(each.slopes, found[count - 1][1], np.setdiff1d(np.arange(len(each.runs)), places))
            scored["suggested", count] += [{**row, "promised_90": promised} for row in _scored(each, places)]
            for _ in range(DRAWS):
                scored["random", count] += _scored(each, draws.choice(len(each.runs), count, replace=False).tolist())
    return [_row(*which, rows) for which, rows in sorted(scored.items(), key=lambda item: (item[0][1], item[0][0]))]


def _spoken(devices: MeasuredDevices, key: GroupKey) -> bool:
    """Whether another chip was measured in the precision on such units."""
    own = devices.measured[key].traits
    return any(
        (one.unit, one.precision) == (own.unit, own.precision) and one.chip != own.chip
        for one in devices.evidence().values()
    )


def _held(devices: MeasuredDevices, key: GroupKey) -> _Held:
    traits, runs = devices.measured[key].traits, devices.measured[key].runs
    prior = devices.prior(key, ignore=lambda other: other.chip == traits.chip, is_source_known=False)
    times, gradient = sensitivities(runs.features, runs.rates, np.exp(prior.mean), runs.run, len(runs))
    return _Held(devices.groups[key], runs, prior, gradient / times[:, None], measuring_time_s(times))


def _scored(held: _Held, places: Sequence[int]) -> list[dict[str, float]]:
    """Fit some measurements, predict the others; a row for each phase."""
    found = fit(held.runs.select(np.array(places)), held.prior) if len(places) else prior_as_fit(held.prior)
    rest = np.setdiff1d(np.arange(len(held.runs)), places)
    left = held.runs.select(rest)
    predicted, deviation = found.predict(left)
    phases = np.array([held.group[place].phase for place in rest])
    return [
        {
            "points": float(np.sum(phases == phase)),
            **error_statistics(
                left.measured_s[phases == phase], predicted[phases == phase], deviation[phases == phase]
            ),
        }
        for phase in sorted(set(phases))
    ]


def _width(slopes: np.ndarray, covariance: np.ndarray, rest: np.ndarray) -> float:
    """Mean width of the 90% interval of steps, relative to their prediction."""
    variances = np.einsum("np,pq,nq->n", slopes[rest], covariance, slopes[rest]) + residual_variance(FIT_SCATTER)
    reach = QUANTILES[0.9] * np.sqrt(variances)
    return float(np.mean(np.exp(reach) - np.exp(-reach)))


def _row(chosen: str, measured: int, rows: Sequence[dict[str, float]]) -> OwnRow:
    repeated = DRAWS if chosen == "random" else 1

    means = {
        name: float(np.mean([row[name] for row in rows])) for name in ("mape", "median", "coverage_90", "width_90")
    }
    promised = float(np.mean([row["promised_90"] for row in rows])) if chosen == "suggested" else None
    points = int(sum(row["points"] for row in rows)) // repeated
    return OwnRow(chosen, measured, len(rows) // repeated, points, promised_90=promised, **means)


def page(rows: Sequence[OwnRow]) -> Document:
    """Error, coverage and width by number of measurements and how they were chosen."""

    table = Table(
        "Own measurements of a device held out",
        [
            Column("measured", "measured"),
            Column("chosen", "chosen", left=True),
            Column("groups", "groups"),
            Column("points", "points"),
            Column("mape", "MAPE", format_percent),
            Column("median", "median", format_percent),
            Column("coverage_90", "within\n90%", lambda value: f"{value:.0%}"),
            Column("width_90", "width", format_percent),
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

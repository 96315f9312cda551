"""Validation of the models of links with message sizes or numbers of workers held out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from paleo_lite.calibration.accuracy import relative_errors, sharpness
from paleo_lite.errors import BadValue
from paleo_lite.machines import read_links
from paleo_lite.timing.intervals import QUANTILES

from .fit import by_operation, operation_cost, predict_held_out, size_folds, worker_folds
from .published import PLATFORMS, MeasuredExchange

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

FOLDS = {"sizes": size_folds, "workers": worker_folds}


class ExchangePoint(msgspec.Struct, frozen=True):
    """A held-out exchange and its prediction, with the scatter of the fit to the other exchanges of its platform."""

    exchange: MeasuredExchange
    held_out: str
    predicted_s: float
    data_sheet_s: float
    deviation: float

    @property
    def error(self) -> float:
        """Relative error."""
        return self.predicted_s / self.exchange.time_s - 1


class ExchangeRow(msgspec.Struct, frozen=True):
    """Row of the table of errors, which are fractions."""

    held_out: str  # every seventh message size, or each number of workers at a time
    platform: str
    link: str
    operation: str
    points: int
    mape: float
    median: float
    p90: float
    bias: float
    coverage_90: float
    sharpness_90: float
    # Mean absolute relative error of a prediction with the data sheet's bandwidth and without latency.
    data_sheet: float


def validate_collectives(exchanges: Sequence[MeasuredExchange]) -> tuple[list[ExchangeRow], list[ExchangePoint]]:
    """Predict held-out exchanges for each platform and operation.

    Raises
    ------
    BadValue
        If no platform has enough measurements.
    """
    rows, points = [], []
    links = read_links().link
    for kind, folds_of in FOLDS.items():
        for (platform, operation), group in by_operation(exchanges).items():
            link = PLATFORMS[platform].link
            bandwidth = links[link].bandwidth_bytes_per_s
            folds = folds_of(group)
            if not folds:
                continue
            predicted, scatter = predict_held_out(group, bandwidth, folds)
            table = np.array([(each.workers, each.message_bytes) for each in group], dtype=np.float64)
            sheet = operation_cost(operation, table[:, 0], table[:, 1])[1] / bandwidth
            group_points = [
                ExchangePoint(each, kind, float(p), float(s), float(d))
                for each, p, s, d in zip(group, predicted, sheet, scatter)
            ]
            rows.append(_row(kind, platform, link, operation, group_points))
            points += group_points
    if not rows:
        raise BadValue("nothing to hold out: a platform needs at least ten exchanges of an operation")
    return rows, points


def _row(kind: str, platform: str, link: str, operation: str, points: Sequence[ExchangePoint]) -> ExchangeRow:
    errors = np.array([point.error for point in points])
    half_width = QUANTILES[0.9] * np.array([point.deviation for point in points])
    sheet = np.array([point.data_sheet_s / point.exchange.time_s - 1 for point in points])
    return ExchangeRow(
        held_out=kind,
        platform=platform,
        link=link,
        operation=operation,
        points=len(points),
        **relative_errors(errors),
        p90=float(np.quantile(np.abs(errors), 0.9)),
        coverage_90=float(np.mean(np.abs(np.log1p(errors)) < half_width)),
        sharpness_90=sharpness(np.exp(-half_width), np.exp(half_width)),
        data_sheet=float(np.mean(np.abs(sheet))),
    )

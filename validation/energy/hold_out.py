"""Held-out errors of the power that devices draw, by model, by task and by device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from paleo_lite.calibration.validate import sharpness
from paleo_lite.timing.energy import EnergyModel, power_of
from paleo_lite.timing.models import QUANTILES

from .evidence import Measured
from .fit import fit_energy, rated_power_w

SPLITS: dict[str, Callable[[Measured], str]] = {
    "model": lambda one: one.model,
    "task": lambda one: one.task,
    "device": lambda one: one.device.id,
}
"""What is held out, one at a time."""

LEVEL = 0.9
"""Probability of the intervals that are judged."""


class Point(msgspec.Struct, frozen=True, eq=False):
    """A measurement and its forecast by a fit without it.

    Attributes
    ----------
    measured : Measured
        The measurement.
    power_w : float
        Forecast in watts.
    low_w, high_w : float
        Its 90% interval.
    """

    measured: Measured
    power_w: float
    low_w: float
    high_w: float

    @property
    def error(self) -> float:
        """Forecast over measurement, less 1."""
        return self.power_w / self.measured.power_w - 1

    @property
    def is_inside(self) -> bool:
        """Whether the interval contains the measurement."""
        return self.low_w <= self.measured.power_w <= self.high_w


def forecast(model: EnergyModel, measured: Sequence[Measured]) -> list[Point]:
    """Return the forecasts of a model."""
    points = []
    for one in measured:
        power = power_of(one.device, model=model)
        assert power is not None
        shares = one.activity.shares_of(one.time_s)
        low_w, high_w = power.interval_w(shares, LEVEL)
        points.append(Point(one, float(power.watts(shares)), float(low_w), float(high_w)))
    return points


def hold_out(measured: Sequence[Measured], split: str, scatter: float) -> list[Point]:
    """Return the forecasts of all measurements, each by a fit without those that share its model, task or device."""
    key = SPLITS[split]
    points = []
    for name in sorted({key(one) for one in measured}):
        rest = [one for one in measured if key(one) != name]
        own = [one for one in measured if key(one) == name]
        points += forecast(fit_energy(rest, scatter), own)
    return points


def scatter_of(points: Sequence[Point]) -> float:
    """Return the scatter with which intervals contain as many of some held-out measurements as they state."""
    deviations = [abs(np.log(point.power_w / point.measured.power_w)) for point in points]
    return float(np.quantile(deviations, LEVEL) / QUANTILES[LEVEL])


class EnergyRow(msgspec.Struct, frozen=True):
    """Accuracy of held-out powers on one device.

    Attributes
    ----------
    split, device : str
        What is held out, and the device that is judged.
    points : int
        Number of measurements.
    median, mape : float
        Median and mean absolute relative error.
    bias : float
        Median relative error.
    coverage_90 : float
        Share of the measurements inside the 90% interval.
    width_90 : float
        Mean width of the interval relative to the forecast.
    sharpness_90 : float
        Median ratio between the ends of the interval.
    rated : float
        Median absolute error of the rated power.
    """

    split: str
    device: str
    points: int
    median: float
    mape: float
    bias: float
    coverage_90: float
    width_90: float
    sharpness_90: float
    rated: float


def validate_energy(measured: Sequence[Measured], scatter: float) -> tuple[list[EnergyRow], list[Point]]:
    """Return the accuracy by split and device, and the forecasts with models held out."""
    rows, pairs = [], []
    for split in SPLITS:
        points = hold_out(measured, split, scatter)
        if split == "model":
            pairs = points
        for device in sorted({point.measured.device.id for point in points}):
            rows.append(_row(split, device, [point for point in points if point.measured.device.id == device]))
    return rows, pairs


def _row(split: str, device: str, points: Sequence[Point]) -> EnergyRow:
    errors = np.array([point.error for point in points])
    rated = [abs(rated_power_w(point.measured.device) / point.measured.power_w - 1) for point in points]
    return EnergyRow(
        split=split,
        device=device,
        points=len(points),
        median=float(np.median(np.abs(errors))),
        mape=float(np.mean(np.abs(errors))),
        bias=float(np.median(errors)),
        coverage_90=float(np.mean([point.is_inside for point in points])),
        width_90=float(np.mean([(point.high_w - point.low_w) / point.power_w for point in points])),
        sharpness_90=sharpness([point.low_w for point in points], [point.high_w for point in points]),
        rated=float(np.median(rated)),
    )

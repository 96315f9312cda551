"""Held-out errors of the power that devices draw, by model, by task and by device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from paleo_lite.calibration.accuracy import interval_accuracy, relative_errors
from paleo_lite.timing.energy import EnergyModel, Power, power_of

from .fit import Scatters, fit_energy, rated_power_w, with_scatter
from .measured import MeasuredPower

SPLITS: dict[str, Callable[[MeasuredPower], str]] = {
    "model": lambda power: power.model,
    "task": lambda power: power.task,
    "device": lambda power: power.device.id,
}
"""What is held out, one at a time."""

LEVEL = 0.9
"""Probability of the intervals that are judged."""

LEAST_OF_KIND = 0.85
"""Least share of each kind of work on each device that is inside the intervals."""

HALVINGS = 12
"""Halvings of the range of scatters in which the fitting ones are sought."""


class PowerPoint(msgspec.Struct, frozen=True, eq=False):
    """A measurement and its forecast by a fit without it."""

    measured: MeasuredPower  # the measurement
    power_w: float  # forecast in watts
    # Its 90% interval.
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


class Fold(NamedTuple):
    """A fit without some measurements, and these measurements."""

    model: EnergyModel  # the fit, without a scatter
    measured: list[MeasuredPower]  # what it did not see


def held_out_power(model: EnergyModel, measured: MeasuredPower) -> Power:
    """Return the power of a measured device by a fit."""
    power = power_of(measured.device, model=model, has_experts=measured.kind == "mixtures")
    assert power is not None
    return power


def forecast(model: EnergyModel, measured: Sequence[MeasuredPower]) -> list[PowerPoint]:
    """Return the forecasts of a model."""
    points = []
    for measurement in measured:
        power, shares = held_out_power(model, measurement), measurement.shares
        low_w, high_w = power.interval_w(shares, LEVEL)
        points.append(PowerPoint(measurement, float(power.watts(shares)), float(low_w), float(high_w)))
    return points


def folds_of(
    measured: Sequence[MeasuredPower], split: str, judged: Sequence[MeasuredPower] | None = None
) -> list[Fold]:
    """Return a fold for each model, task or device.

    Parameters
    ----------
    measured : sequence of MeasuredPower
        All measurements.
    split : str
        One of `SPLITS`.
    judged : sequence of MeasuredPower, optional
        What is forecast in place of the measurements, such as the same ones at forecast times.
    """
    key = SPLITS[split]
    judged = measured if judged is None else judged
    folds = []
    for name in sorted({key(measurement) for measurement in judged}):
        fitted = fit_energy([measurement for measurement in measured if key(measurement) != name])
        folds.append(Fold(fitted, [measurement for measurement in judged if key(measurement) == name]))
    return folds


def points_of(folds: Sequence[Fold], scatters: Scatters) -> list[PowerPoint]:
    """Return the forecasts of all folds with the scatters of an energy model."""
    return [point for fold in folds for point in forecast(with_scatter(fold.model, scatters), fold.measured)]


def hold_out(measured: Sequence[MeasuredPower], split: str, scatters: Scatters) -> list[PowerPoint]:
    """Return the forecasts of all measurements, each by a fit without those that share its model, task or device."""
    return points_of(folds_of(measured, split), scatters)


def scatters_of(folds: Sequence[Fold]) -> Scatters:
    """Return the smallest scatters with which the intervals contain `LEVEL` of the mixtures, and of all others.

    They contain `LEAST_OF_KIND` of each kind of work on each device.
    """
    low, high = [0.0, 0.0], [1.0, 1.0]
    for _ in range(HALVINGS):
        middle = Scatters(*((lower + upper) / 2 for lower, upper in zip(low, high, strict=True)))
        points = points_of(folds, middle)
        for index, is_mixture in enumerate((False, True)):
            of_kind = [point for point in points if (point.measured.kind == "mixtures") == is_mixture]
            if not _are_enough_inside(of_kind):
                low[index] = middle[index]
            else:
                high[index] = middle[index]
    return Scatters(*high)


def _are_enough_inside(points: Sequence[PowerPoint]) -> bool:
    """Return whether intervals contain as many measurements as `scatters_of` asks for."""
    groups: dict[tuple[str, str], list[bool]] = {}
    for point in points:
        groups.setdefault((point.measured.device.id, point.measured.kind), []).append(point.is_inside)
    shares = [float(np.mean(inside)) for inside in groups.values()]
    return not points or bool(np.mean([point.is_inside for point in points]) >= LEVEL and min(shares) >= LEAST_OF_KIND)


class EnergyRow(msgspec.Struct, frozen=True):
    """Accuracy of held-out powers of one kind of work on one device."""

    # What is held out, the device that is judged, and its work.
    split: str
    device: str
    kind: str
    points: int  # number of measurements
    # Median and mean absolute relative error.
    median: float
    mape: float
    bias: float  # median relative error
    coverage_90: float  # share of the measurements inside the 90% interval
    width_90: float  # mean width of the interval relative to the forecast
    sharpness_90: float  # median ratio between the ends of the interval
    rated: float  # median absolute error of the rated power


def validate_energy(measured: Sequence[MeasuredPower], scatters: Scatters) -> tuple[list[EnergyRow], list[PowerPoint]]:
    """Return the accuracy by split, device and kind, and the forecasts with models held out."""
    rows, pairs = [], []
    for split in SPLITS:
        points = hold_out(measured, split, scatters)
        if split == "model":
            pairs = points
        groups: dict[tuple[str, str], list[PowerPoint]] = {}
        for point in points:
            groups.setdefault((point.measured.device.id, point.measured.kind), []).append(point)
        rows += [_row(split, *group, groups[group]) for group in sorted(groups)]
    return rows, pairs


def _row(split: str, device: str, kind: str, points: Sequence[PowerPoint]) -> EnergyRow:
    rated = [abs(rated_power_w(point.measured.device) / point.measured.power_w - 1) for point in points]
    return EnergyRow(
        split=split,
        device=device,
        kind=kind,
        points=len(points),
        **relative_errors([point.error for point in points]),
        **interval_accuracy(*zip(*((point.measured.power_w, point.low_w, point.high_w) for point in points))),
        width_90=float(np.mean([(point.high_w - point.low_w) / point.power_w for point in points])),
        rated=float(np.median(rated)),
    )

"""Fit of the power that a device draws to its own measured watts.

The prior is what is known of the device, its generation or its kind of memory (`paleo_lite.timing.energy`). Steps of
one network share a part of their error, the scatter of networks; single steps have the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from ..errors import CalibrationFailed
from ..machines import Device, Machine
from ..timing import predict
from ..timing.activity import Shares
from ..timing.calibrated import CalibratedModel
from ..timing.energy import Power, PowerConstants, below_limit, demand, power_of
from .fit import workload_of
from .measurements import Measurement
from .store import PowerFit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

STEP_DEVIATION = 0.05
"""Deviation of the logarithm of the power of single steps of a network."""

CARD_DEVIATION = 0.1
"""Deviation of the logarithm of all constants of one card from those of its device: chips need different voltages, and
a warmer one leaks more."""

LEAST_NETWORKS = 3
"""Networks with which the error of a network that was left out is reported."""


class HeldOutPower(NamedTuple):
    """A measured power, and its forecast by a fit to others."""

    measurement: Measurement  # the measured step
    # Forecast at the measured time, and its 90% interval.
    power_w: float
    low_w: float
    high_w: float
    shipped_w: float  # forecast with the shipped constants

    @property
    def measured_w(self) -> float:
        """Measured watts."""
        assert self.measurement.power_w is not None
        return self.measurement.power_w

    @property
    def error(self) -> float:
        """Forecast over measurement, less 1."""
        return self.power_w / self.measured_w - 1

    @property
    def is_inside(self) -> bool:
        """Whether the interval contains the measurement."""
        return self.low_w <= self.measured_w <= self.high_w


def fit_power(steps: Sequence[Measurement], device: Device, model: CalibratedModel) -> PowerFit | None:
    """Fit the constants of a device's power to its steps with measured watts; None without any.

    The model says which share of a step's time the device spends with what. Raise CalibrationFailed if there is no
    power model for the device, or a power is above its limit.
    """
    measured = [step for step in steps if step.power_w is not None]
    if not measured:
        return None
    power = power_of(device)
    if power is None:
        raise CalibrationFailed(
            f"there is no power model for {device.name}, whose power limit or process is unknown: leave the watts out"
        )
    _check_limit(measured, device, power)
    shares = [_shares_of(step, device, model) for step in measured]
    fitted = _fit(measured, shares, power)
    networks = [step.network for step in measured]
    held_out = None
    if len(set(networks)) >= LEAST_NETWORKS:
        points = _hold_out(measured, shares, power, networks)
        held_out = float(np.mean([abs(point.error) for point in points]))
    return PowerFit(
        points=len(measured),
        constants=fitted.constants,
        error=round(_mean_error(_watts(fitted, shares), measured), 4),
        prior_error=round(_mean_error(_watts(power, shares), measured), 4),
        held_out_error=None if held_out is None else round(held_out, 4),
    )


def hold_out_power(
    steps: Sequence[Measurement], device: Device, model: CalibratedModel, groups: Sequence[str]
) -> list[HeldOutPower]:
    """Return the forecasts of measured watts, each by a fit to the steps of other groups.

    `groups` says what each step belongs to, such as its network; steps of one group are held out together. The rest is
    as for `fit_power`.
    """
    power = power_of(device)
    if power is None:
        return []
    _check_limit(steps, device, power)
    return _hold_out(steps, [_shares_of(step, device, model) for step in steps], power, groups)


def _hold_out(
    steps: Sequence[Measurement], shares: Sequence[Shares], power: Power, groups: Sequence[str]
) -> list[HeldOutPower]:
    """Return the forecasts of all steps, each by a fit to those of other groups."""
    points = []
    for group in sorted(set(groups)):
        rest = [index for index, name in enumerate(groups) if name != group]
        fitted = _fit([steps[index] for index in rest], [shares[index] for index in rest], power) if rest else power
        for step, step_shares, name in zip(steps, shares, groups, strict=True):
            if name == group:
                low_w, high_w = (float(end_w) for end_w in fitted.interval_w(step_shares))
                points.append(
                    HeldOutPower(step, float(fitted.watts(step_shares)), low_w, high_w, float(power.watts(step_shares)))
                )
    return points


def _check_limit(steps: Sequence[Measurement], device: Device, power: Power) -> None:
    for step in steps:
        assert step.power_w is not None
        highest_w = power.highest_w or power.rated_w
        if step.power_w > 1.1 * highest_w:
            raise CalibrationFailed(
                f"{step.network}, batch {step.batch_size}: {step.power_w:g} W are above the {highest_w:g} W of "
                f"{device.name}: a calibration needs the watts of one device"
            )


def _shares_of(step: Measurement, device: Device, model: CalibratedModel) -> Shares:
    """Return what the device does in the measured time of a step."""
    predicted = predict(workload_of(step), Machine.single_device(device), model)
    return predicted.activity.shares_of(step.time_s)


def _watts(power: Power, shares: Sequence[Shares]) -> list[float]:
    return [float(power.watts(step_shares)) for step_shares in shares]


def _mean_error(watts: Sequence[float], steps: Sequence[Measurement]) -> float:
    return float(
        np.mean([abs(predicted_w / step.power_w - 1) for predicted_w, step in zip(watts, steps) if step.power_w])
    )


def _fit(steps: Sequence[Measurement], shares: Sequence[Shares], power: Power) -> Power:
    """Return the power with the most likely constants."""
    from scipy.optimize import least_squares

    stacked = Shares(*(np.array(values, dtype=np.float64) for values in zip(*shares, strict=True)))
    logs = np.log([step.power_w for step in steps if step.power_w is not None])
    networks = [step.network for step in steps]
    is_same = np.array([[network == other for other in networks] for network in networks])
    errors = STEP_DEVIATION**2 * np.eye(len(steps)) + power.scatter**2 * is_same
    whitened = np.linalg.inv(np.linalg.cholesky(errors))
    mean, covariance = np.array(power.constants.theta), np.array(power.constants.covariance) + CARD_DEVIATION**2
    prior = np.linalg.inv(np.linalg.cholesky(covariance))

    def residuals(theta: Floats) -> Floats:
        watts = below_limit(demand(theta, stacked, power.dynamic) * power.rated_w, power.limit_w)
        return np.concatenate([whitened @ (np.log(watts) - logs), prior @ (theta - mean)])

    solution = least_squares(residuals, mean)
    posterior = np.linalg.inv(solution.jac.T @ solution.jac)
    constants = PowerConstants(
        theta=tuple(round(float(value), 4) for value in solution.x),
        covariance=tuple(tuple(round(float(value), 6) for value in row) for row in posterior),
    )
    return msgspec.structs.replace(power, constants=constants)

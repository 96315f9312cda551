"""Fit of the constants of the power that devices draw: a mean, and effects of memory, generation and device.

The logarithms of the constants of a device are the sum of a mean, of an effect of the kind of memory (on the power of
idling and of memory traffic), of the generation and of the device. All of them have normal priors, and the errors of
measurements a robust loss; the fit is the mode of the posterior, and its covariance that of the linear model there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from scipy.optimize import least_squares

from paleo_lite.machines import Device
from paleo_lite.timing.activity import Shares
from paleo_lite.timing.energy import (
    PARAMETERS,
    EnergyModel,
    PowerConstants,
    below_limit,
    boost_power,
    demand,
    energy_model,
    generation_of,
)
from paleo_lite.timing.power import ERAS, MEMORY_GROUPS, era_of, memory_group_of

from .measured import AT_WALL, MeasuredPower

PRIORS = {
    "idle": (0.2, 0.3),
    "arithmetic": (0.7, 0.5),
    "memory": (0.45, 0.5),
    "links": (0.15, 0.7),
    "intensity": (0.6, 0.5),
}
"""Typical values of the constants relative to the rated power, and standard deviations of their logarithms."""

OF_MEMORY = ("idle", "memory")
MEMORY_DEVIATION = 0.4
"""Constants on which the kind of memory has an effect, and standard deviation of the effect on their logarithms."""

ERA_DEVIATION = 0.3
"""Standard deviation of the effect of the era (`paleo_lite.timing.power.ERAS`) on the logarithms of all constants but
the idle power: in both eras devices of HBM wait at 0.11 to 0.15 of their rated power."""

GENERATION_DEVIATION = 0.2
DEVICE_DEVIATION = 0.1
"""Standard deviations of the effects of generation and device on the logarithms of all constants."""

UNSEEN_SHARE = 0.5
"""Deviation that a device or generation without measurements adds to those of the fit, relative to the two above: with
a device held out, 97% of all powers are inside with this share, and 99% with the whole of it."""

NOISE = 0.1
"""Deviation of the logarithm of a measured power: the same server measured twice differs by up to 15%."""

NOISE_AT_WALL = 0.15
"""The same of cards of machines at the wall, whose hosts and power supplies are assumed: 20 W of about 200."""

WORTH = 4.0
"""Independent measurements that a series of one deployment is worth at most."""


class Scatters(NamedTuple):
    """Deviations of the logarithm of the power around the formula, of `EnergyModel`."""

    others: float = 0.0
    experts: float = 0.0


class Design:
    """Unknowns of the fit, and the constants of devices as sums of them."""

    def __init__(self, devices: Sequence[Device]) -> None:
        count = len(PARAMETERS)
        self.memories = sorted(set(MEMORY_GROUPS.values()))
        self.generations = sorted({generation_of(device) for device in devices})
        self.devices = sorted({device.id for device in devices})
        self.deviation = np.concatenate(
            [
                [deviation for _, deviation in PRIORS.values()],
                np.full(len(OF_MEMORY) * len(self.memories), MEMORY_DEVIATION),
                np.full(count * len(ERAS), ERA_DEVIATION),
                np.full(count * len(self.generations), GENERATION_DEVIATION),
                np.full(count * len(self.devices), DEVICE_DEVIATION),
            ]
        )
        self.start = np.zeros(len(self.deviation))
        self.start[:count] = np.log([typical for typical, _ in PRIORS.values()])

    def rows_of(self, era: str, memory: str, generation: str | None = None, device: str | None = None) -> Any:
        """Return the matrix from the unknowns to the constants of a device, shape (parameters, unknowns)."""
        count = len(PARAMETERS)
        rows = np.zeros((count, len(self.start)))
        rows[:, :count] = np.eye(count)
        for number, name in enumerate(OF_MEMORY):
            column = count + number * len(self.memories) + self.memories.index(memory)
            rows[PARAMETERS.index(name), column] = 1.0
        offset = count + len(OF_MEMORY) * len(self.memories)
        first = offset + count * ERAS.index(era)
        rows[1:, first + 1 : first + count] = np.eye(count - 1)
        offset += count * len(ERAS)
        if generation in self.generations:
            first = offset + count * self.generations.index(generation)
            rows[:, first : first + count] = np.eye(count)
        offset += count * len(self.generations)
        if device in self.devices:
            first = offset + count * self.devices.index(device)
            rows[:, first : first + count] = np.eye(count)
        return rows

    def of_device(self, device: Device) -> Any:
        """Return the matrix of a device."""
        return self.rows_of(era_of(device), memory_group_of(device), generation_of(device), device.id)

    def of_generation(self, device: Device) -> Any:
        """Return the matrix of another device of the same generation."""
        return self.rows_of(era_of(device), memory_group_of(device), generation_of(device))


def relative_powers(theta: Any, shares: Shares, dynamic: Any) -> Any:
    """Return the powers relative to the rated one, at the constants of each measurement, shape (measurements, ...)."""
    return below_limit(demand(theta.T, shares, dynamic), 1.0)


def shares_of(measured: Sequence[MeasuredPower]) -> Shares:
    """Return the shares of all measurements as arrays."""
    each = [power.shares for power in measured]
    return Shares(*(np.array(values, dtype=np.float64) for values in zip(*each, strict=True)))


def weights_of(measured: Sequence[MeasuredPower]) -> Any:
    """Return the weights of the measurements: a series counts no more than `WORTH` single ones."""
    sizes: dict[tuple[str, str, str, int], int] = {}
    for power in measured:
        sizes[power.series] = sizes.get(power.series, 0) + 1
    return np.array([min(np.sqrt(WORTH / sizes[power.series]), 1.0) for power in measured])


def robust(errors: Any) -> Any:
    """Return errors whose squares are the loss `soft_l1` of scipy's `least_squares`: large ones count linearly.

    `least_squares` itself would apply its loss to the priors as well, which then were not normal.
    """
    return np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors**2) - 1))


def fit_energy(measured: Sequence[MeasuredPower]) -> EnergyModel:
    """Fit the constants to measurements; the scatter is 0 (`with_scatter`)."""
    design = Design([power.device for power in measured])
    shares, weights = shares_of(measured), weights_of(measured)
    matrices = {power.device.id: design.of_device(power.device) for power in measured}
    rows = np.stack([matrices[power.device.id] for power in measured])
    dynamic = np.array([boost_power(power.device) for power in measured])
    noise = np.array([NOISE_AT_WALL if power.kind == AT_WALL else NOISE for power in measured])
    logs = np.log([power.power_w / rated_power_w(power.device) for power in measured])

    def residuals(unknowns: Any) -> Any:
        errors = np.log(relative_powers(rows @ unknowns, shares, dynamic)) - logs
        return np.concatenate([robust(weights * errors / noise), (unknowns - design.start) / design.deviation])

    solution = least_squares(residuals, design.start)
    slopes = solution.jac[: len(measured)]
    covariance = np.linalg.inv(slopes.T @ slopes + np.diag(design.deviation**-2.0))

    def constants(matrix: Any, unknown_variance: float) -> PowerConstants:
        theta = matrix @ solution.x
        spread = matrix @ covariance @ matrix.T + unknown_variance * np.eye(len(PARAMETERS))
        return PowerConstants(
            theta=tuple(round(float(value), 4) for value in theta),
            covariance=tuple(tuple(round(float(value), 6) for value in row) for row in spread),
        )

    generations = {
        generation_of(power.device): design.of_generation(power.device)
        for power in sorted(measured, key=lambda power: power.device.id)
    }
    other_device = (UNSEEN_SHARE * DEVICE_DEVIATION) ** 2
    other_generation = other_device + (UNSEEN_SHARE * GENERATION_DEVIATION) ** 2
    return EnergyModel(
        devices={name: constants(matrices[name], 0.0) for name in design.devices},
        generations={name: constants(rows, other_device) for name, rows in generations.items()},
        others={
            f"{era} {memory}": constants(design.rows_of(era, memory), other_generation)
            for era in ERAS
            for memory in design.memories
        },
        scatter=0.0,
        expert_scatter=0.0,
        sources=sorted({power.source for power in measured}),
    )


def with_scatter(model: EnergyModel, scatters: Scatters, held_out: str = "") -> EnergyModel:
    """Return the model with the scatters and the text of its held-out error."""
    scatter, expert_scatter = (round(value, 3) for value in scatters)
    return msgspec.structs.replace(model, scatter=scatter, expert_scatter=expert_scatter, held_out=held_out)


def shipped_scatters() -> Scatters:
    """Return the scatters of the shipped model."""
    return Scatters(energy_model().scatter, energy_model().expert_scatter)


def rated_power_w(device: Device) -> float:
    """Return the rated power of a device in watts."""
    rated_w = device.rated_power_w
    assert rated_w is not None
    return rated_w

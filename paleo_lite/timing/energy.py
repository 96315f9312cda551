"""What a device draws: watts and joules of a step, from what it does in which share of its time.

A kernel computes, reads memory, exchanges data with other devices, or waits: for the host, for others, or for its own
start and end. With the share of a step's time that each takes, a device asks for the power

    demand / rated = idle + arithmetic * a + memory * m + links * l + intensity * sqrt(u)

where ``u`` is the utilisation of the peak: FLOPs over the peak of the data sheet, over the time. Operands that flow
through the multipliers cost power in addition to the busy units around them, but less and less per FLOP, because a
clock that falls takes the voltage with it. On boards that exceed the boost clock of their data sheet, all but the idle
power is larger by `boost_power`. The power drawn is the smooth minimum of demand and limit,

    power = (demand^-k + limit^-k)^(-1/k)

so that it never exceeds the limit. The five constants are relative to the rated power, and differ between devices
(`calibrations/energy.toml`, fitted by ``validation.energy``): a measured device has its own, another one of a measured
generation those of its generation, and any other one those of its kind of memory, with a covariance that grows in this
order.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..errors import BadFile, BadValue
from ..files import read_shipped
from ..machines import Device
from ..machines.device import LearnedPower
from ..machines.registry import limit_power
from .activity import Activity, Shares
from .intervals import INTERVAL_LEVEL, QUANTILES
from .power import (
    BOOST_POWER_EXPONENT,
    clock_under_limit,
    era_of,
    memory_group_of,
    node_nm_of,
    partners_limit_w,
    power_model,
    unlimited_clock,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

ENERGY_FILE = "energy.toml"
"""File of the fitted constants, in the folder of calibrations."""

PARAMETERS = ("idle", "arithmetic", "memory", "links", "intensity")
"""Constants of a device, in the order of their logarithms."""

MEMORY_CLOCK = 0.8
"""Fraction of the clock above which kernels reach the full bandwidth of the memory, whose own clock does not fall.

llama-bench of an RTX PRO 6000 under 200 to 300 W (Llama 2 7B in Q4_0): at 0.65 to 0.82 of the clock, prompts slow down
with the clock, and answers keep 0.73 to 1 of their speed.
"""

SHARPNESS = 12.0
"""Exponent of the smooth minimum of demand and limit: at equality it is 6% below both."""

LEAST_UTILISATION = 1e-6
"""Utilisation of the peak below which the power no longer falls."""

CARDS_OF_UNKNOWN_PROCESS = ("RDNA", "Xe")
"""Architectures of cards for games and workstations with the power of their era and kind of memory, though the
model of the sustained clock (`paleo_lite.timing.power`) does not know their process."""


class PowerConstants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Constants of a device, or of devices that have something in common."""

    theta: tuple[float, ...]  # logarithms of `PARAMETERS`
    covariance: tuple[tuple[float, ...], ...]  # their covariance


class EnergyModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fitted constants of the power that devices draw."""

    devices: dict[str, PowerConstants]  # constants of measured devices by id
    # Constants of other devices by architecture and group of memory, such as ``Hopper HBM``.
    generations: dict[str, PowerConstants]
    others: dict[
        str, PowerConstants
    ]  # constants of all other devices by era and group of memory, such as ``recent HBM``
    # Standard deviations of the logarithm of the power of a model or task around the formula: of networks without
    # experts, and of mixtures of experts, whose kernels fill the device more or less well.
    scatter: float
    expert_scatter: float
    sources: list[str]  # sources of the measurements
    held_out: str = ""  # error with a model held out
    format: int = 1


@cache
def energy_model() -> EnergyModel:
    """Return the shipped constants; raise BadFile if the file is malformed."""
    model = read_shipped(ENERGY_FILE, EnergyModel)
    for group in (model.devices, model.generations, model.others):
        for name, constants in group.items():
            if np.shape(constants.theta) != (len(PARAMETERS),):
                raise BadFile(f"{ENERGY_FILE}: theta of {name} must have {len(PARAMETERS)} numbers")
            if np.shape(constants.covariance) != (len(PARAMETERS), len(PARAMETERS)):
                raise BadFile(
                    f"{ENERGY_FILE}: the covariance of {name} must have {len(PARAMETERS)} rows of as many numbers"
                )
    return model


def are_constants(constants: PowerConstants) -> bool:
    """Return whether constants that were read have the shapes of `PARAMETERS`, and are finite."""
    count = len(PARAMETERS)
    if len(constants.theta) != count or [len(row) for row in constants.covariance] != [count] * count:
        return False
    return bool(np.isfinite(constants.theta).all() and np.isfinite(constants.covariance).all())


def generation_of(device: Device) -> str:
    """Return the generation of a device with its group of memory, the key of `EnergyModel.generations`."""
    return f"{device.architecture} {memory_group_of(device)}"


class Power(msgspec.Struct, frozen=True, eq=False):
    """What a device draws, by what it does."""

    # Power limit of the data sheet, and the limit in force, in watts.
    rated_w: float
    limit_w: float
    constants: PowerConstants  # constants of the device
    era: str  # one of `paleo_lite.timing.power.ERAS`
    scatter: float  # standard deviation of the logarithm of the power around the formula
    # Power above the idle power, relative to that at the boost clock: below 1 for a locked lower clock, above 1 for
    # boards that exceed their boost clock while the limit allows it.
    dynamic: float = 1.0
    # Upper end of the power in an interval, where makers of boards raise the limit; None for the limit.
    highest_w: float | None = None

    @property
    def idle_w(self) -> float:
        """Power of a waiting device in watts."""
        return min(float(np.exp(self.constants.theta[0])) * self.rated_w, self.limit_w)

    def demand_w(self, shares: Shares) -> Any:
        """Return the power that a device would draw without a limit, in watts; while it waits long, that of waiting."""
        busy = demand(np.array(self.constants.theta), shares.between_waits, self.dynamic) * self.rated_w
        return (1 - shares.offloaded) * busy + shares.offloaded * self.idle_w

    def watts(self, shares: Shares) -> Any:
        """Return the average power of steps with these shares, in watts."""
        busy_w = below_limit(self.demand_w(shares.between_waits), self.limit_w)
        return (1 - shares.offloaded) * busy_w + shares.offloaded * self.idle_w

    def clock(self, shares: Shares) -> Any:
        """Return the clock that the limit leaves, relative to that under the rated one; 1 if the demand is within."""
        demand_w = below_limit(self.demand_w(shares), self.rated_w)
        return clock_under_limit(self.limit_w, demand_w, self.idle_w, self.era)

    def deviation(self, shares: Shares) -> Any:
        """Return the standard deviation of the logarithm of the demand."""
        slopes = demand_slopes(np.array(self.constants.theta), shares, self.dynamic)
        variance = np.einsum("i...,ij,j...->...", slopes, np.array(self.constants.covariance), slopes)
        return np.sqrt(variance + self.scatter**2)

    def interval_w(self, shares: Shares, level: float = INTERVAL_LEVEL) -> tuple[Any, Any]:
        """Return the interval that contains the power with the probability `level`, in watts.

        The demand is uncertain; the limit cuts both ends.
        """
        factor = np.exp(QUANTILES[level] * self.deviation(shares))
        demand_w = self.demand_w(shares)
        highest_w = self.highest_w or self.limit_w
        return below_limit(demand_w / factor, self.limit_w), below_limit(demand_w * factor, highest_w)

    def energy_interval_j(
        self, activity: Activity, time_s: float, interval_s: tuple[float, float]
    ) -> tuple[float, float]:
        """Return the 90% interval of the energy of a step in joules, from those of its time and of the power.

        Both causes are independent, so that their logarithms add up in quadrature. A step that takes longer does the
        same work, at a lower power.
        """
        shares = activity.shares_of(time_s)
        likely_w = self.watts(shares)
        ends_j = [float(self.watts(activity.shares_of(end_s)) * end_s) for end_s in interval_s]
        ends = []
        for end_j, end_w in zip(ends_j, self.interval_w(shares), strict=True):
            of_time, of_power = np.log(end_j / (likely_w * time_s)), np.log(end_w / likely_w)
            ends.append(float(np.copysign(np.hypot(of_time, of_power), of_power)))
        low_j, high_j = (float(likely_w * time_s * np.exp(end)) for end in ends)
        return low_j, min(high_j, (self.highest_w or self.limit_w) * interval_s[1])


def demand(theta: Floats, shares: Shares, dynamic: Any = 1.0) -> Any:
    """Return the power without a limit, relative to the rated power.

    `theta` are the logarithms of `PARAMETERS`, and `dynamic` is a factor of all power but the idle one.
    """
    idle, arithmetic, memory, links, intensity = np.exp(theta)
    utilisation = np.sqrt(np.maximum(shares.utilisation, LEAST_UTILISATION))
    busy = arithmetic * shares.arithmetic + memory * shares.memory + links * shares.links + intensity * utilisation
    return idle + dynamic * busy


def demand_slopes(theta: Floats, shares: Shares, dynamic: float) -> Floats:
    """Return the derivatives of the logarithm of the demand with respect to `theta`, shape (parameters, ...)."""
    idle, arithmetic, memory, links, intensity = np.exp(theta)
    utilisation = np.sqrt(np.maximum(shares.utilisation, LEAST_UTILISATION))
    parts = np.broadcast_arrays(
        idle,
        dynamic * arithmetic * np.asarray(shares.arithmetic),
        dynamic * memory * np.asarray(shares.memory),
        dynamic * links * np.asarray(shares.links),
        dynamic * intensity * utilisation,
    )
    slopes: Floats = np.stack(parts) / sum(parts)
    return slopes


def below_limit(demand_w: Any, limit_w: Any) -> Any:
    """Return the smooth minimum of demand and limit."""
    ratio = np.asarray(demand_w, dtype=np.float64) / limit_w
    return demand_w / (1 + ratio**SHARPNESS) ** (1 / SHARPNESS)


def is_slowed(device: Device) -> bool:
    """Return whether a power limit below the rated one, or a locked clock, slows a device down."""
    power = power_of(device)
    return device.locked_clock < 1 or (power is not None and power.limit_w < power.rated_w)


def speed_under_limit(device: Device, shares: Shares) -> Any:
    """Return the speed of a step under a power limit below the rated one and at a locked clock; 1 without both.

    It is relative to that of a step without them, whose shares are given. Arithmetic slows down with the clock, memory
    traffic below `MEMORY_CLOCK`, and waiting does not.
    """
    power, clock = power_of(device), device.locked_clock
    if power is not None and power.limit_w < power.rated_w:
        clock = np.minimum(clock, power.clock(shares))
    arithmetic, memory = np.asarray(shares.arithmetic), np.asarray(shares.memory)
    return 1 / (1 + arithmetic * (1 / clock - 1) + memory * (np.maximum(1.0, MEMORY_CLOCK / clock) - 1))


def with_power_limit(device: Device, power_limit: float | str) -> Device:
    """Return a device under another power limit, in watts or as text such as ``"300 W"``.

    Raise BadValue if the limit is not a power, or not above what the device draws while it waits.
    """
    limited = limit_power(device, power_limit)
    power, limit_w, rated_w = power_of(device), limited.power_w, device.rated_power_w
    if limit_w is None or rated_w is None:
        return limited
    waiting_w = rated_w * power_model().base_share[memory_group_of(device)] if power is None else power.idle_w
    floor_w = power_model().waiting_floor * waiting_w
    if limit_w <= floor_w:
        raise BadValue(
            f"`--power-limit` must be above the {floor_w:.0f} W that {device.name} draws while it waits "
            f"(got {limit_w:g} W)"
        )
    return limited


def power_of(
    device: Device,  # with a requested power limit if there is one
    relative_clock: float | None = None,  # locked clock relative to the boost clock; that of the device by default
    model: EnergyModel | None = None,  # constants of all devices; the shipped ones by default
    constants: PowerConstants | None = None,  # constants of this device, fitted to its own watts
    *,
    has_experts: bool = False,  # whether the work is that of a mixture of experts, whose power is less certain
) -> Power | None:
    """Return what a device draws; None if its power limit is unknown, or it is no GPU of a known process.

    Dynamic power is proportional to the clock times the squared voltage, which is proportional to the clock down to the
    lowest voltage.
    """
    limit_w, rated_w = device.power_w, device.rated_power_w
    relative_clock = device.locked_clock if relative_clock is None else relative_clock
    is_card = node_nm_of(device) is not None or device.architecture.startswith(CARDS_OF_UNKNOWN_PROCESS)
    if limit_w is None or rated_w is None or not is_card:
        return None
    model = energy_model() if model is None else model
    constants = constants or model.devices.get(device.id) or model.generations.get(generation_of(device))
    if constants is None:
        constants = model.others[f"{era_of(device)} {memory_group_of(device)}"]
    lowest_voltage = power_model().low_voltage_slope[era_of(device)] ** -0.5
    voltage = min(1.0, max(relative_clock, lowest_voltage))
    dynamic = min(1.0, relative_clock) * voltage**2
    if relative_clock == 1:
        dynamic = boost_power(device)
    scatter = model.expert_scatter if has_experts else model.scatter
    if device.learned_power is not None:
        constants, scatter = _with_learned_power(constants, device.learned_power), scatter * device.learned_power.width
    return Power(
        rated_w,
        min(limit_w, rated_w),
        constants,
        era_of(device),
        scatter,
        dynamic,
        partners_limit_w(device),
    )


def _with_learned_power(constants: PowerConstants, learned: LearnedPower) -> PowerConstants:
    """Return constants with the factors that measured watts lead to, and as much of their covariance as is left."""
    theta = [value + learned.logs.get(name, 0.0) for name, value in zip(PARAMETERS, constants.theta)]
    covariance = np.array(constants.covariance) * learned.width**2
    return PowerConstants(tuple(theta), tuple(tuple(row) for row in covariance.tolist()))


def boost_power(device: Device) -> float:
    """Return the power above the idle power at the clock that a device holds, relative to that at its boost clock.

    Boards for games and workstations exceed their boost clock while the power allows it.
    """
    return float(unlimited_clock(device) ** BOOST_POWER_EXPONENT)

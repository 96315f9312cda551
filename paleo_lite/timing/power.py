"""The clock that a device sustains under its power limit, and the energy of its work.

Data-sheet peaks assume the boost clock. A kernel that keeps all arithmetic units busy draws the power

    power = idle + energy per FLOP * FLOP/s

and where that exceeds the power limit, the clock falls, and with it the voltage and the energy per FLOP. With the share
w of the dynamic power at the boost clock that the limit allows, the device sustains the fraction of its clock

    fraction = min(highest, (w / activity) ** exponent)
    w = (1 - idle share) * power limit / (energy per FLOP * peak FLOP/s)

An exponent of 1 is a constant voltage and 1/3 a voltage proportional to the clock: dynamic power is proportional to
clock times squared voltage (Weste and Harris, CMOS VLSI Design, 4th edition, section 5.2). The energy per FLOP depends
on the unit, the width of the operands, and the process node:

    energy = energy at 7 nm of the unit and width * (node / 7 nm) ** node exponent

These four parameters are fitted to the efficiencies that matrix products reach on 19 devices. The activity of matrix
products is 1. Convolutions keep the units less busy: theirs is `PowerModel.convolution_activity`.

The highest fraction is 1, but boards for gaming and workstations raise their clock above the boost clock of the data
sheet while power and temperature allow it: theirs is the ratio of these clocks (`UNLIMITED_CLOCKS_HZ`).

A requested limit below that of the data sheet slows the clock. A waiting device draws the base share of the rated
limit, of which the share `PowerModel.waiting_floor` remains at low clocks, and a busy one at its boost clock the busy
share. The limit leaves the share

    s = (limit - floor) / (busy - floor),  floor = waiting floor * base

of the power that depends on the clock, and the device runs at the fraction min(1, s ** (1/3), slope * s) of its clock:
the voltage is proportional to the clock down to the lowest voltage, and constant below. The shares and the slope of
older devices are fitted to measured steps of four devices (Zeus, You et al., NSDI 2023); recent devices, which boost
further above the clock of their lowest voltage, have a slope of their own. ``python -m validation ship`` fits all
parameters (``calibrations/power.toml``). `paleo_lite.timing.energy` computes the power that a step draws.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..errors import BadFile
from ..files import read_shipped
from ..formats import FORMATS

if TYPE_CHECKING:
    from ..machines import Device, PeakRate

POWER_FILE = "power.toml"

REFERENCE_NM = 7.0
"""Process node to which energies per FLOP refer, in nanometres."""

NODES_NM = {
    "Kepler": 28.0,
    "Maxwell": 28.0,
    "Pascal": 16.0,
    "Volta": 12.0,
    "Turing": 12.0,
    "Ampere": 8.0,
    "Ada": 5.0,
    "Hopper": 5.0,
    "Blackwell": 5.0,
    "GCN5": 14.0,
    "CDNA1": 7.0,
    "CDNA2": 6.0,
    "CDNA3": 5.0,
}
"""Process nodes of architectures, in nanometres (Wikipedia's lists of graphics processing units)."""

CHIP_NODES_NM = {"GA100": 7.0, "Vega 20": 7.0}
"""Process nodes of chips that differ from their architecture's, by the beginning of the chip's name."""

MEMORY_GROUPS = {"HBM": "HBM", "GDDR": "GDDR", "LPDDR": "HBM"}
"""Group of the parameters by the family of the memory. No power of a device with LPDDR was available."""

UNLIMITED_CLOCKS_HZ = {"Pascal": 1.81e9, "Turing": 1.94e9, "Ampere": 1.93e9, "Ada": 2.66e9, "Blackwell": 2.75e9}
"""Clock that boards for gaming and workstations hold while neither power nor temperature limits it, by architecture.

Measured as FLOP/s of chains of multiply-adds over those of a clock: GTX 1080, RTX 2080 SUPER and RTX 5060 (results of
clpeak, github.com/krrishnarraj/clpeak); or read from the board under such a load: RTX A6000 (NVIDIA developer forum,
topic 203772) and RTX 4090 (github.com/NVIDIA/nvbench/pull/207). By the same benchmark a V100 computes at the clock of
its data sheet, and a TITAN V below it.
"""

BOOSTING_BRANDS = ("GeForce", "TITAN", "Quadro", "RTX")
"""First words of the names of boards that exceed the boost clock of their data sheet. On boards for data centers it is
the highest clock that the driver sets ("Max Customer Boost Clocks" of nvidia-smi)."""

BOOST_POWER_EXPONENT = 2.0
"""Exponent of the clock above the boost clock of the data sheet in the dynamic power: the middle between a constant
voltage (1) and a voltage proportional to the clock (3)."""

PARTNERS_LIMIT = 1.25
"""Highest power limit of GeForce cards of their makers, relative to that of the data sheet: an RTX 3090, with 350 W, is
sold with up to 420 W (github.com/noonghunna/club-3090, issue 103) or 450 W."""

MIN_FRACTION = 0.1
"""Lowest fraction of the speed that a power limit leads to: devices do not clock lower."""

ERAS = ("older", "recent")
RECENT_YEAR = 2022


class PowerModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of the power model, and how well they hold."""

    # Energy per FLOP at the boost clock and 7 nm by unit: ``vector`` at 32 bits and ``tensor`` at 16 bits. The energy
    # of other widths is proportional to the bits.
    energy_j_per_flop: dict[str, float]
    node_exponent: float  # exponent of the process node in the energy per FLOP
    clock_exponent: float  # exponent of the share of power that the limit allows
    # Share of the sustained peak that matrix products reach, by unit: units are busy, and draw power, for the inverse
    # of it times as long as the FLOPs take at peak.
    efficiency: dict[str, float]
    # Power of convolutions above the idle power, relative to that of matrix products at the same clock.
    convolution_activity: float
    # Share of the power limit that matrix products draw for other things than arithmetic: leakage, memory, the board.
    idle_share: float
    # Share of the rated limit that a waiting device draws, by group of memory (`MEMORY_GROUPS`).
    base_share: dict[str, float]
    busy_share: float  # share of the rated limit that a busy device draws on average at its boost clock
    # Fraction of the clock per share of the power that depends on it, where the voltage cannot fall further, by era.
    low_voltage_slope: dict[str, float]
    waiting_floor: float  # share of the power of a waiting device that does not depend on the clock
    deviation: float  # standard deviation of the logarithm of the sustained fraction
    limit_deviation: float  # standard deviation of the logarithm of the speed under a lower limit
    # Devices and sources of the fit.
    devices: list[str]
    sources: list[str]
    held_out: str = ""  # error with a device held out, with and without the model
    format: int = 1

    def energy_per_flop_j(self, unit: str, precision: str, node_nm: float) -> float:
        """Return the energy of one FLOP at the boost clock, in joules."""
        bits = FORMATS[precision].bits
        reference_bits = 16 if unit == "tensor" else 32
        at_reference_node = self.energy_j_per_flop[unit] * bits / reference_bits
        return float(at_reference_node * (node_nm / REFERENCE_NM) ** self.node_exponent)


@cache
def power_model() -> PowerModel:
    """Read the shipped parameters; raise BadFile if the file is malformed."""
    model = read_shipped(POWER_FILE, PowerModel)
    units, groups = {"vector", "tensor"}, set(MEMORY_GROUPS.values())
    if model.energy_j_per_flop.keys() != units or model.efficiency.keys() != units:
        raise BadFile(f"{POWER_FILE}: energy_j_per_flop and efficiency must have the keys vector and tensor")
    if model.base_share.keys() != groups:
        raise BadFile(f"{POWER_FILE}: base_share must have the keys HBM and GDDR")
    if model.low_voltage_slope.keys() != set(ERAS):
        raise BadFile(f"{POWER_FILE}: low_voltage_slope must have the keys {' and '.join(ERAS)}")
    return model


def era_of(device: Device) -> str:
    """Return one of `ERAS`: devices from `RECENT_YEAR` on come closer to their power limits than older ones."""
    return ERAS[int(device.year >= RECENT_YEAR)]


def node_nm_of(device: Device) -> float | None:
    """Return the process node of a device in nanometres; None if it is unknown."""
    for chip, node_nm in CHIP_NODES_NM.items():
        if device.chip.startswith(chip):
            return node_nm
    return NODES_NM.get(device.architecture)


def memory_group_of(device: Device) -> str:
    """Return the group of a device's memory; GDDR if its type is unknown."""
    return MEMORY_GROUPS.get(device.memory.family, "GDDR")


def boost_fraction(device: Device, rate: PeakRate) -> float:
    """Return the clock that a device holds if power does not limit it, relative to the clock of a peak rate.

    It is 1 if the rate is at another clock than the boost clock, because the device is then locked at it.
    """
    return unlimited_clock(device) if rate.clock == "boost" else 1.0


def unlimited_clock(device: Device) -> float:
    """Return the clock that a device holds if power does not limit it, relative to its boost clock, at least 1."""
    unlimited_hz = UNLIMITED_CLOCKS_HZ.get(device.architecture)
    boost_hz = device.clock_hz("boost")
    is_boosting = device.scope == "die" and device.name.split()[0] in BOOSTING_BRANDS
    if not is_boosting or unlimited_hz is None or boost_hz is None:
        return 1.0
    return max(1.0, unlimited_hz / boost_hz)


def matrix_boost(device: Device) -> float:
    """Return the highest clock of a data sheet relative to that of its peaks of matrix products."""
    tensor_hz, boost_hz = device.clock_hz("tensor"), device.clock_hz("boost")
    return boost_hz / tensor_hz if tensor_hz and boost_hz else 1.0


def partners_limit_w(device: Device) -> float | None:
    """Return the highest power limit that a GeForce card of this name may have, in watts, unless a user states one."""
    is_geforce = device.name.split()[0] == "GeForce" and device.requested_power_limit_w is None
    return PARTNERS_LIMIT * device.power_w if is_geforce and device.power_w is not None else None


def matrix_fraction(device: Device, rate: PeakRate, model: PowerModel | None = None) -> float:
    """Return the clock that matrix products sustain under the rated power limit, relative to that of a peak rate.

    The rate is that of the unit that multiplies; the parameters are the shipped ones by default. The result is at most
    `boost_fraction`, and equal to it for devices without a power limit or of an unknown process.
    """
    return _fraction_at_activity(device, rate, 1.0, model or power_model())


def convolution_fraction(device: Device, rate: PeakRate, model: PowerModel | None = None) -> float:
    """Return the clock that convolutions sustain under the rated power limit, relative to that of a peak rate.

    See `matrix_fraction` for the parameters.
    """
    model = model or power_model()
    return _fraction_at_activity(device, rate, model.convolution_activity, model)


def _fraction_at_activity(device: Device, rate: PeakRate, activity: float, model: PowerModel) -> float:
    """Return the sustained clock of kernels whose dynamic power is a share of that of matrix products."""
    highest = boost_fraction(device, rate)
    rated_w, node_nm = device.rated_power_w, node_nm_of(device)
    if rated_w is None or node_nm is None:
        return highest
    energy_j = activity * model.energy_per_flop_j(rate.peak.unit, rate.peak.precision, node_nm)
    share = (1 - model.idle_share) * rated_w / (energy_j * rate.per_s)
    return float(min(highest, share**model.clock_exponent))


def limited_fraction(device: Device, model: PowerModel | None = None) -> float:
    """Return the share of its speed that a device keeps under a power limit below that of its data sheet.

    The speed is that of whole steps: part of the work depends on the clock of the memory, which does not fall.
    """
    limit_w, rated_w = device.power_w, device.rated_power_w
    if limit_w is None or rated_w is None or limit_w >= rated_w:
        return 1.0
    model = model or power_model()
    base_w = model.base_share[memory_group_of(device)] * rated_w
    return float(clock_under_limit(limit_w, model.busy_share * rated_w, base_w, era_of(device), model))


def clock_under_limit(
    limit_w: float, demand_w: Any, waiting_w: float, era: str, model: PowerModel | None = None
) -> Any:
    """Return the clock that a power limit leaves, relative to that without one; at least `MIN_FRACTION`.

    The power above the floor is proportional to the clock times the squared voltage (Weste and Harris, CMOS VLSI
    Design, section 5.2). `demand_w`, which may be an array, is the power that the device would draw without the limit,
    and `waiting_w` that at its full clock while it waits. The era is one of `ERAS`, and the parameters are the shipped
    ones by default.
    """
    model = model or power_model()
    floor_w = model.waiting_floor * waiting_w
    share = max(limit_w - floor_w, 0.0) / np.maximum(demand_w - floor_w, 1e-9)
    fraction = np.minimum(np.minimum(1.0, share ** (1 / 3)), model.low_voltage_slope[era] * share)
    return np.maximum(fraction, MIN_FRACTION)


def sustained_fraction(device: Device, rate: PeakRate, model: PowerModel | None = None) -> float:
    """Return the clock that matrix products sustain under the requested power limit, relative to that of a peak rate.

    See `matrix_fraction` for the parameters.
    """
    return matrix_fraction(device, rate, model) * limited_fraction(device, model)

"""The clock that a device sustains under its power limit, and the energy of its work.

Data-sheet peaks assume the boost clock. A kernel that keeps all arithmetic units busy draws the power

    power = idle + energy per FLOP * FLOP/s

and where that exceeds the power limit, the clock falls, and with it the voltage and the energy per FLOP. With the share
w of the dynamic power at the boost clock that the limit allows, the device sustains the fraction of its clock

    fraction = min(1, w ** exponent),    w = (1 - idle share) * power limit / (energy per FLOP * peak FLOP/s)

An exponent of 1 is a constant voltage and 1/3 a voltage proportional to the clock: dynamic power is proportional to
clock times squared voltage (Weste and Harris, CMOS VLSI Design, 4th edition, section 5.2). The energy per FLOP depends
on the unit, the width of the operands, and the process node:

    energy = energy at 7 nm of the unit and width * (node / 7 nm) ** node exponent

The four parameters are fitted to the efficiencies that matrix products reach on 20 devices
(``python -m validation power``, ``calibrations/power.toml``).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import msgspec

from ..errors import BadFile
from ..files import read_typed, shipped_folder
from ..units import element_bytes

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

MEMORY_ENERGY_PJ_PER_BYTE = {"HBM": 31.0, "GDDR": 60.0, "LPDDR": 32.0, "DDR": 120.0}
"""Energy per byte of memory traffic by the beginning of the memory's type: 3.9 pJ/bit of HBM2 (O'Connor et al. 2017,
Fine-Grained DRAM), and usual figures of 7.5 pJ/bit of GDDR6, 4 pJ/bit of LPDDR and 15 pJ/bit of DDR4."""

_MAX_FILE_BYTES = 2**16


class PowerModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of the power model, and how well they hold.

    Attributes
    ----------
    energy_j_per_flop : dict of str to float
        Energy per FLOP at the boost clock and 7 nm by unit: ``vector`` at 32 bits and ``tensor`` at 16 bits. The energy
        of other widths is proportional to the bits.
    node_exponent : float
        Exponent of the process node in the energy per FLOP.
    clock_exponent : float
        Exponent of the share of power that the limit allows.
    efficiency : dict of str to float
        Share of the sustained peak that matrix products reach, by unit: units are busy, and draw power, for the inverse
        of it times as long as the FLOPs take at peak.
    idle_share : float
        Share of the power limit that is drawn without arithmetic: leakage, memory and the board.
    deviation : float
        Standard deviation of the logarithm of the sustained fraction.
    devices, sources : list of str
        Devices and sources of the fit.
    held_out : str
        Error with a device held out, with and without the model.
    """

    energy_j_per_flop: dict[str, float]
    node_exponent: float
    clock_exponent: float
    efficiency: dict[str, float]
    idle_share: float
    deviation: float
    devices: list[str]
    sources: list[str]
    held_out: str = ""
    format: int = 1

    def energy_per_flop_j(self, unit: str, precision: str, node_nm: float) -> float:
        """Return the energy of one FLOP at the boost clock, in joules."""
        bits = 8 * element_bytes(precision)
        reference_bits = 16 if unit == "tensor" else 32
        at_reference_node = self.energy_j_per_flop[unit] * bits / reference_bits
        return float(at_reference_node * (node_nm / REFERENCE_NM) ** self.node_exponent)


@cache
def power_model() -> PowerModel:
    """Read the shipped parameters.

    Raises
    ------
    BadFile
        If the file is malformed.
    """
    path = shipped_folder("calibrations") / POWER_FILE
    model = read_typed(path, PowerModel, "power model", _MAX_FILE_BYTES)
    if model.energy_j_per_flop.keys() != {"vector", "tensor"}:
        raise BadFile(f"{path}: energy_j_per_flop must have the keys vector and tensor")
    return model


def node_nm_of(device: Device) -> float | None:
    """Return the process node of a device in nanometres; None if it is unknown."""
    for chip, node_nm in CHIP_NODES_NM.items():
        if device.chip.startswith(chip):
            return node_nm
    return NODES_NM.get(device.architecture)


def sustained_fraction(device: Device, rate: PeakRate, model: PowerModel | None = None) -> float:
    """Return the share of a peak rate's clock that a device sustains in matrix products.

    Parameters
    ----------
    device : Device
    rate : PeakRate
        The peak rate of the unit that multiplies.
    model : PowerModel, optional
        Parameters; the shipped ones by default.

    Returns
    -------
    float
        1 for devices without a power limit or of an unknown process.
    """
    limit_w, node_nm = device.power_w, node_nm_of(device)
    if limit_w is None or node_nm is None:
        return 1.0
    model = model or power_model()
    energy_j = model.energy_per_flop_j(rate.peak.unit, rate.peak.precision, node_nm)
    share = (1 - model.idle_share) * limit_w / (energy_j * rate.per_s)
    return float(min(1.0, share**model.clock_exponent))


def energy_j(device: Device, rate: PeakRate, matrix_flops: float, moved_bytes: float, time_s: float) -> float | None:
    """Return the energy of a step in joules; None if the device's power limit or process is unknown.

    Idle power runs all the time; arithmetic and memory traffic cost energy per FLOP and byte. The energy per FLOP falls
    with the clock: at a fraction f of the clock by f^(1 / exponent - 1). The sum never exceeds the power limit times
    the time, because the clock falls before it does.

    Parameters
    ----------
    device : Device
    rate : PeakRate
        Peak rate of the unit that multiplies.
    matrix_flops : float
        FLOPs of matrix products and convolutions.
    moved_bytes : float
        Bytes of memory traffic.
    time_s : float
        Time of the step in seconds.
    """
    limit_w, node_nm = device.power_w, node_nm_of(device)
    if limit_w is None or node_nm is None:
        return None
    model = power_model()
    fraction = sustained_fraction(device, rate)
    per_flop_j = model.energy_per_flop_j(rate.peak.unit, rate.peak.precision, node_nm)
    per_flop_j *= fraction ** (1 / model.clock_exponent - 1) / model.efficiency[rate.peak.unit]
    per_byte_j = memory_energy_pj_per_byte(device) * 1e-12
    dynamic_j = per_flop_j * matrix_flops + per_byte_j * moved_bytes
    total_j = model.idle_share * limit_w * time_s + dynamic_j
    return float(min(total_j, limit_w * time_s))


def memory_energy_pj_per_byte(device: Device) -> float:
    """Return the energy per byte of a device's memory in picojoules; that of GDDR if the type is unknown."""
    for kind, energy_pj in MEMORY_ENERGY_PJ_PER_BYTE.items():
        if device.memory.type.upper().startswith(kind):
            return energy_pj
    return MEMORY_ENERGY_PJ_PER_BYTE["GDDR"]

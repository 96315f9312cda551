"""Devices by the three figures that PALEO has of each, and what work takes there, in milliseconds.

``compute = max(tick, FLOPs / peak / PPP)``, ``transfer = max(tick, bytes / 2^30 / (bandwidth in GB/s) / PPP)``: the
bytes are counted in GiB though the bandwidth is given in GB, 7 % too fast.

Source: ``device.py`` and ``profilers/flops_profiler.py``.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from ..errors import UnknownPrecision
from ..hardware import find_device
from ..hardware.registry import key


class PaleoDevice(msgspec.Struct, frozen=True):
    """A device; its times are those of each amount, where it is given several."""

    clock_mhz: float
    peak_gflops: float
    bandwidth_gb_per_s: float

    @property
    def tick_ms(self) -> float:
        """One cycle of the clock: the least that any term takes."""
        return 1 / self.clock_mhz / 1000

    def compute_ms(self, flops: Any, ppp: float = 1.0) -> Any:
        """Arithmetic."""
        return np.maximum(self.tick_ms, flops / 1e6 / self.peak_gflops / ppp)

    def transfer_ms(self, size_bytes: Any, ppp: float = 1.0, bandwidth_gb_per_s: float | None = None) -> Any:
        """A transfer to or from memory, or over a link of another bandwidth."""
        return np.maximum(
            self.tick_ms, size_bytes / 2**30 / (bandwidth_gb_per_s or self.bandwidth_gb_per_s) * 1e3 / ppp
        )

    def update_ms(self, size_bytes: int, concurrent: bool = False) -> float:
        """Gradient descent on parameters of that size: 2 FLOPs and three transfers each, always at a PPP of 1."""
        if not size_bytes:
            return 0.0
        return float(together(self.compute_ms(size_bytes // 4 * 2), 3 * self.transfer_ms(size_bytes), concurrent))


def together(compute_ms: Any, memory_ms: Any, concurrent: bool) -> Any:
    """Arithmetic and transfers one after the other, or, concurrent, behind each other."""
    return np.maximum(compute_ms, memory_ms) if concurrent else compute_ms + memory_ms


DEVICES = {
    "TITAN_X": PaleoDevice(1000, 6144, 336.5),
    "K20": PaleoDevice(1000, 3520, 208),
    "K20X": PaleoDevice(1000, 3935, 250),
    "K40": PaleoDevice(745, 4290, 288),
    "K80": PaleoDevice(560, 5600, 480),  # both dies, at the base clock
    "GEFORCE_780_TI": PaleoDevice(875, 5040, 336),
    "GEFORCE_750_M": PaleoDevice(941, 722.7, 80),
    "CPU_I7": PaleoDevice(6 * 35000, 289, 68),  # 210 GHz: entered so
}
"""PALEO's devices as its release has them."""

_OURS = {
    "titanx-maxwell": "TITAN_X", "k20": "K20", "k20x": "K20X", "k40c": "K40", "k40m": "K40", "k80": "K80",
    "gtx780ti": "GEFORCE_780_TI", "gt750m": "GEFORCE_750_M", "i7-5930k": "CPU_I7",
}  # fmt: skip
"""Their ids in the device registry."""


def find_paleo_device(name: str) -> PaleoDevice:
    """A device of PALEO's by its own name or ours; any other one by the registry's fp32 peak, clock and bandwidth.

    Raises
    ------
    UnknownName, AmbiguousName
        If no device, or more than one, is called that.
    UnknownPrecision
        If the device has no vector fp32 peak or no clock on record.
    """
    by_key = {key(own): own for own in DEVICES}
    if key(name) in by_key:
        return DEVICES[by_key[key(name)]]
    device = find_device(name)
    if device.id in _OURS:
        return DEVICES[_OURS[device.id]]
    clock_hz = device.clock_hz(device.clocks.default)
    if clock_hz is None:
        raise UnknownPrecision(f"{device.name} has no clock on record, which PALEO needs")
    peak = device.find_peak("fp32", "vector").per_s
    return PaleoDevice(clock_hz / 1e6, peak / 1e9, device.bandwidth_bytes_per_s / 1e9)

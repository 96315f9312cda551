"""What a device does in the time of a step: arithmetic, memory traffic, exchanges with other devices, or nothing.

The power that it draws follows (`paleo_lite.timing.energy`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from ..machines import Device

NARROW_PRECISIONS = ("fp8", "int8", "fp4")
"""Precisions with fewer than 16 bits."""

WIDE_PRECISIONS = ("fp16", "bf16", "fp32")
"""Precisions of which the fastest is the measure of the utilisation in narrow ones."""


class Shares(NamedTuple):
    """Shares of a step's time, numbers or arrays of the same shape; what they leave of 1 is waiting."""

    # Shares of the time in which the device computes, moves data of its memory, and exchanges data with others.
    # The time of a kernel is divided among its terms in proportion to them, or they overlap.
    arithmetic: Any = 0.0
    memory: Any = 0.0
    links: Any = 0.0
    # FLOPs over the peak of the data sheet, over the time. An operation on fewer than 16 bits counts as one on 16
    # (`narrow_factor`).
    utilisation: Any = 0.0
    # Share of the time in which the device waits so long that its power falls, as `Activity.offloaded_s`.
    offloaded: Any = 0.0

    @property
    def between_waits(self) -> Shares:
        """Shares of the time that is left of such waits."""
        rest = np.maximum(1 - np.asarray(self.offloaded, dtype=np.float64), 1e-30)
        return Shares(*(np.minimum(share / rest, 1.0) for share in self[:-1]))


class Activity(NamedTuple):
    """Seconds of a step in which a device does one thing or another; numbers or arrays of the same shape."""

    # Seconds of arithmetic, of memory traffic and of exchanges.
    arithmetic_s: Any = 0.0
    memory_s: Any = 0.0
    links_s: Any = 0.0
    # Seconds that the arithmetic takes at the peak of the data sheet; that of 16 bits if its operands have fewer.
    peak_s: Any = 0.0
    # Seconds of waiting for what the host stores or updates: phases of a step, not the gaps between its kernels.
    offloaded_s: Any = 0.0

    def plus(self, other: Activity) -> Activity:
        """Return the activity of two steps after one another."""
        return Activity(*(seconds + other_seconds for seconds, other_seconds in zip(self, other, strict=True)))

    def times(self, factor: Any) -> Activity:
        """Return the activity of `factor` such steps."""
        return Activity(*(factor * seconds for seconds in self))

    def shares_of(self, time_s: Any) -> Shares:
        """Return the shares of a step that takes `time_s`; activities longer than that are scaled to fill it."""
        arithmetic_s, memory_s, links_s, peak_s, offloaded_s = (np.asarray(part, dtype=np.float64) for part in self)
        whole_s = np.maximum(np.maximum(arithmetic_s + memory_s + links_s + offloaded_s, time_s), 1e-30)
        utilisation = np.minimum(peak_s / np.maximum(time_s, 1e-30), 1.0)
        return Shares(arithmetic_s / whole_s, memory_s / whole_s, links_s / whole_s, utilisation, offloaded_s / whole_s)

    def overlapping_shares_of(self, time_s: Any) -> Shares:
        """Return the shares of a step whose kernels compute and read memory at the same time, each at most 1."""
        shares = (np.minimum(np.asarray(seconds, dtype=np.float64) / time_s, 1.0) for seconds in self)
        return Shares(*shares)

    def in_larger_step(self, own_s: Any, time_s: Any, exchanging_s: Any, waiting_s: Any = 0.0) -> Activity:
        """Return the activity of a device in a step of several devices.

        It computes as in its own step, and exchanges data or waits for the rest of the time. The seconds may be arrays:
        `own_s` are those of the step of this activity, `time_s` of the larger step, and in `exchanging_s` and
        `waiting_s` of it the device exchanges data, or waits for samples.
        """
        computing = (time_s - exchanging_s - waiting_s) / own_s
        return Activity(computing * self.arithmetic_s, computing * self.memory_s, exchanging_s, computing * self.peak_s)


def divide_time(device_s: Any, compute_s: Any, memory_s: Any, floor_s: Any = 0.0) -> tuple[Any, Any]:
    """Return the seconds of arithmetic and of memory traffic of kernels that take `device_s`; all may be arrays.

    The time of a kernel is divided among its terms in proportion to them: the seconds of arithmetic alone, of memory
    traffic alone, and of the shortest kernel; what remains is its start.
    """
    share = device_s / np.maximum(compute_s + memory_s + floor_s, 1e-30)
    return share * compute_s, share * memory_s


def narrow_factor(device: Device, precision: str) -> float:
    """Return the peak of a precision with fewer than 16 bits relative to that of 16 bits; 1 for other precisions.

    Seconds at the peak of the narrow precision times this factor are those at the peak of 16 bits. Measured servers
    that compute in 8 bits draw as much per operation as those in 16: scales are multiplied, and sums are added in 32
    bits (`docs/model.md`, Energy). Without a fast peak of 16 bits, as on Pascal's boards for inference, that of fp32 is
    the measure.
    """
    if precision not in NARROW_PRECISIONS:
        return 1.0
    wide = [device.find_peak(name).per_s for name in WIDE_PRECISIONS if name in device.precisions]
    return device.find_peak(precision).per_s / max(wide)

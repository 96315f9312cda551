"""The peaks that the rates of profiles are compared with, and likely reasons of rates above them.

The reasons follow from facts in the profile and in the data of the device.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import msgspec

from ..errors import UnknownPrecision
from ..machines import Device
from ..machines.device import PeakRate
from ..profiles.names import classify
from ..units import format_si, parse_quantity

_FEWER_MULTIPLICATIONS = {"convolution_winograd": "Winograd", "convolution_fft": "FFT"}
_SPARSE = re.compile(r"spmma|sptensorop|cusparselt|sp_?gemm|(?<![a-z])sparse", re.IGNORECASE)
UNEXPLAINED = (
    "no reason was found in the profile: check `--gpu` and `--precision`, and that the times of the kernels are as the "
    "profiler wrote them"
)
MAX_BOOST = 1.3
"""Largest plausible ratio of an actual clock to the boost clock of the data sheet. An RTX 2080 Ti holds up to 1.94 GHz,
and its data sheet lists 1.545 GHz (`paleo_lite.timing.power`)."""


class Peaks(msgspec.Struct, frozen=True):
    """A device with the peak that FLOP/s are compared with."""

    device: Device
    rate: PeakRate

    def in_precision(self, precision: str | None) -> Peaks:
        """Return the peaks for a precision that the profile records; these if it or the device has none."""
        if precision is None:
            return self
        try:
            return Peaks(self.device, self.device.find_peak(precision))
        except UnknownPrecision:
            return self


def explain_flops_above_peak(
    share: float,
    peak: PeakRate,
    kernel_names: Collection[str],
    *,
    counted_by_profiler: bool,
    device_count: int = 1,
) -> str:
    """Return the likely reason of a share of the compute peak above 1; empty if the share is not above 1.

    `kernel_names` are the printed names of the kernels that did the work; `device_count` is the number of devices with
    kernels in the profile.
    """
    if share <= 1:
        return ""
    if device_count > 1 and share <= device_count:
        return f"the rate is a sum over {device_count} devices"
    kernels = [classify(name) for name in kernel_names]
    algorithms = {_FEWER_MULTIPLICATIONS[item.label] for item in kernels if item.label in _FEWER_MULTIPLICATIONS}
    if algorithms:
        names = " and ".join(sorted(algorithms))
        return f"{names} kernels need fewer multiplications than the counted direct convolution"
    if any(_SPARSE.search(name) for name in kernel_names):
        return "sparse kernels skip zeros, which are included in the FLOPs"
    if peak.peak.unit == "vector" and any(item.tensor_core for item in kernels):
        return f"kernels use tensor cores, but the peak is the {peak.peak.precision} vector peak: set `--precision`"
    if share <= MAX_BOOST:
        return f"the clock was probably above the {peak.clock} clock of the data sheet"
    if counted_by_profiler:
        return "the FLOP count in the profile is probably too high for these kernels, or their times are too short"
    return UNEXPLAINED


def explain_bytes_above_peak(bytes_per_call: float | None, share: float, device: Device) -> str:
    """Return the likely reason of a share of the memory bandwidth above 1; empty if the share is not above 1."""
    if share <= 1:
        return ""
    l2_bytes = None if device.memory.l2 is None else parse_quantity(device.memory.l2.value, "B")
    if bytes_per_call is not None and l2_bytes is not None and bytes_per_call <= 2 * l2_bytes:
        moved = format_si(bytes_per_call, "B")
        return f"{moved} per call are partly read from the L2 cache of {format_si(l2_bytes, 'B')}"
    return "operands are reused in caches, or fused operations do not move all counted bytes"

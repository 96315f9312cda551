"""The peaks that the rates of profiles are compared with."""

from __future__ import annotations

import msgspec

from ..errors import UnknownPrecision
from ..machines import Device
from ..machines.device import PeakRate


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

"""`Machine`: where a network runs, and the rates that it offers."""

from __future__ import annotations

import msgspec

from .device import Device, PeakRate


class Machine(msgspec.Struct, frozen=True):
    """A device as somebody runs it.

    Attributes
    ----------
    device : Device
    clock : {"base", "boost"} or None
        None: the device's default.
    unit : {"vector", "tensor"} or None
        That multiplies and accumulates; None: the fastest.
    """

    device: Device
    clock: str | None = None
    unit: str | None = None

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Peak bandwidth of the device's memory."""
        return self.device.bandwidth_bytes_per_s

    def peak(self, precision: str) -> PeakRate:
        """The peak that multiply-accumulates are held against: of the fastest unit that does them in this precision.

        Cards whose vector units are slower in fp16 than in fp32 compute fp16 networks in fp32 (cuDNN's pseudo-half
        configuration converts on load): there it is the fp32 peak.

        Raises
        ------
        UnknownPrecision
            If the device has no such peak.
        """
        rate = self.device.find_peak(precision, self.unit, self.clock)
        if precision == "fp16" and rate.peak.unit == "vector":
            return max(rate, self.vector_peak(precision), key=lambda one: one.per_s)
        return rate

    def vector_peak(self, precision: str) -> PeakRate:
        """The peak of all other arithmetic.

        Frameworks compute elementwise work on numbers narrower than fp32 in fp32 (PyTorch's ``opmath_t``).

        Raises
        ------
        UnknownPrecision
            If the device has no such vector peak.
        """
        return self.device.find_peak("fp64" if precision == "fp64" else "fp32", "vector", self.clock)

    def notes(self, precision: str) -> list[str]:
        """What somebody who uses a figure of this machine should know."""
        device, peak = self.device, self.peak(precision)
        notes = []
        if device.parts is not None:
            notes.append(
                f"{device.name} is {device.parts.count} devices on one {device.scope}; a program that uses one of them "
                f"gets {device.parts.device}"
            )
        if peak.peak.unverified:
            notes.append(f"the {peak.describe()} could not be checked against a primary source")
        return notes

"""`Machine`: where a network runs, and the rates that it offers."""

from __future__ import annotations

import msgspec

from .device import Device, PeakRate
from .registry import find_device


class Machine(msgspec.Struct, frozen=True):
    """A device as somebody runs it.

    Attributes
    ----------
    clock : {"base", "boost"} or None
        None: the device's default.
    unit : {"vector", "tensor"} or None
        That multiplies and accumulates; None: the fastest.
    board : Device or None
        What was asked for, where `device` is one of several on it: a program sees these, never the whole.
    """

    device: Device
    clock: str | None = None
    unit: str | None = None
    board: Device | None = None

    @classmethod
    def one_of(cls, device: Device, clock: str | None = None, unit: str | None = None) -> Machine:
        """What a program gets of a device: of a board of several, one of them."""
        if device.parts is None:
            return cls(device, clock, unit)
        return cls(find_device(device.parts.device), clock, unit, device)

    @property
    def together(self) -> int:
        """How many of the device there are on what was asked for: programs on each run beside each other."""
        return 1 if self.board is None or self.board.parts is None else self.board.parts.count

    @property
    def name(self) -> str:
        """Of what was asked for."""
        if self.board is None:
            return self.device.name
        return f"one of the {self.together} GPUs of a {self.board.name}"

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Peak bandwidth of the device's memory."""
        return self.device.bandwidth_bytes_per_s

    def peak(self, precision: str) -> PeakRate:
        """The peak that multiply-accumulates are held against: of the fastest unit that does them in this precision.

        Cards whose vector units are slower in fp16 than in fp32 compute fp16 networks in fp32 (cuDNN's pseudo-half
        configuration converts on load): there it is the fp32 peak.
        """
        rate = self.device.find_peak(precision, self.unit, self.clock)
        if precision == "fp16" and rate.peak.unit == "vector":
            return max(rate, self.vector_peak(precision), key=lambda one: one.per_s)
        return rate

    def vector_peak(self, precision: str) -> PeakRate:
        """The peak of all other arithmetic.

        Frameworks compute elementwise work on numbers narrower than fp32 in fp32 (PyTorch's ``opmath_t``).
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

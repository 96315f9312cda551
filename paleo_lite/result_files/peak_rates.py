"""Rates of kernels that no device of that name reaches: a count, a time or a unit is wrong."""

from __future__ import annotations

import msgspec

from ..errors import PaleoError
from ..machines import Device, find_device
from ..units import format_si
from .findings import Findings, Reading

MOST_OF_PEAK = 2.0
"""Largest plausible ratio of a rate to the fastest dense peak in the data of a device: sparse tensors, or a narrower
format that the data lacks, double it."""


def doubt_impossible_rates(findings: Findings) -> None:
    """Add a doubt to each row of a kernel whose FLOP/s are above what its device can do."""
    devices: dict[str, Device | None] = {}
    for index, reading in enumerate(findings.readings):
        name = reading.values.get("gpu") or findings.configuration.get("gpu")
        if reading.kind != "kernel" or "flops_per_s" not in reading.values or not isinstance(name, str):
            continue
        if name not in devices:
            devices[name] = _find(name)
        device = devices[name]
        doubt = None if device is None else _doubt_rate(reading, device)
        if doubt is not None:
            findings.readings[index] = msgspec.structs.replace(reading, doubts=(*reading.doubts, doubt))


def _find(name: str) -> Device | None:
    try:
        return find_device(name)
    except PaleoError:  # a device from the user's own file, or a name that several devices have
        return None


def _doubt_rate(reading: Reading, device: Device) -> str | None:
    fastest = max((peak.per_s for peak in device.peaks), default=0.0)
    rate = reading.values["flops_per_s"]
    if not fastest or rate <= MOST_OF_PEAK * fastest:
        return None
    return (
        f"{format_si(rate, 'FLOP/s')} are {rate / fastest:,.3g} times the fastest peak of {device.name} "
        f"({format_si(fastest, 'FLOP/s')}): the time or the FLOPs are wrong"
    )

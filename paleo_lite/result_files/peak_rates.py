"""Rates and watts that no device of that name reaches: a count, a time, a unit or the name is wrong."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ..errors import PaleoError
from ..machines import Device, find_device
from ..units import format_si
from .findings import Findings, Reading

MOST_OF_PEAK = 2.0
"""Largest plausible ratio of a rate to the fastest dense peak in the data of a device: sparse tensors, or a narrower
format that the data lacks, double it."""


MOST_OF_LIMIT = 1.1
"""Largest plausible ratio of a mean power to the limit of a device: sensors err by some 5% (Yang et al. 2024,
"Part-time Power Measurements", on NVIDIA's), and a controller exceeds its limit for moments only."""


def doubt_impossible_rates(findings: Findings) -> None:
    """Add a doubt to each row whose FLOP/s, or watts, are above what its device can do."""
    devices: dict[str, Device | None] = {}
    for index, reading in enumerate(findings.readings):
        name = reading.values.get("gpu") or findings.configuration.get("gpu")
        check = _CHECKS.get(reading.kind)
        if check is None or not isinstance(name, str):
            continue
        if name not in devices:
            devices[name] = _find(name)
        device = devices[name]
        doubt = None if device is None else check(reading, device)
        if doubt is not None:
            findings.readings[index] = msgspec.structs.replace(reading, doubts=(*reading.doubts, doubt))


def _find(name: str) -> Device | None:
    try:
        return find_device(name)
    except PaleoError:  # a device from the user's own file, or a name that several devices have
        return None


def _doubt_rate(reading: Reading, device: Device) -> str | None:
    fastest = max((peak.per_s for peak in device.peaks), default=0.0)
    rate = reading.values.get("flops_per_s")
    if rate is None or not fastest or rate <= MOST_OF_PEAK * fastest:
        return None
    return (
        f"{format_si(rate, 'FLOP/s')} are {rate / fastest:,.3g} times the fastest peak of {device.name} "
        f"({format_si(fastest, 'FLOP/s')}): the time or the FLOPs are wrong"
    )


def _doubt_watts(reading: Reading, device: Device) -> str | None:
    watts, stated_w = (reading.values.get(name) for name in ("power_w", "power_limit_w"))
    limit_w = max(device.rated_power_w or 0.0, stated_w or 0.0)
    if watts is None or not limit_w or watts <= MOST_OF_LIMIT * limit_w:
        return None
    return (
        f"{format_si(watts, 'W')} on average are above the {format_si(limit_w, 'W')} that {device.name} may draw: the "
        "power or the name of the device is wrong, or its limit was raised"
    )


_CHECKS: dict[str, Callable[[Reading, Device], str | None]] = {"kernel": _doubt_rate, "power": _doubt_watts}
"""Check of a row, by its kind."""

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


MOST_OF_MEMORY = 1.02
"""Largest plausible ratio of the memory in use to that of a device: units of 1000 and 1024 are told apart by more."""


def doubt_impossible_rates(findings: Findings) -> None:
    """Add a doubt to each row whose FLOP/s, watts, bytes or share of the peak are above what its device can do."""
    devices: dict[str, Device | None] = {}
    for index, reading in enumerate(findings.readings):
        name = reading.values.get("gpu") or findings.configuration.get("gpu")
        device = None
        if isinstance(name, str) and reading.kind in _CHECKS:
            if name not in devices:
                devices[name] = _find(name)
            device = devices[name]
        doubts = [_doubt_share(reading)]
        if device is not None:
            doubts += [check(reading, device) for check in _CHECKS[reading.kind]]
        found = tuple(doubt for doubt in doubts if doubt is not None)
        if found:
            findings.readings[index] = msgspec.structs.replace(reading, doubts=(*reading.doubts, *found))


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


def _doubt_memory(reading: Reading, device: Device) -> str | None:
    used_bytes, most_bytes = reading.values.get("memory_bytes"), max(device.memory_bytes, device.reported_memory_bytes)
    if used_bytes is None or used_bytes <= MOST_OF_MEMORY * most_bytes:
        return None
    return (
        f"{format_si(used_bytes, 'B')} of memory are above the {format_si(most_bytes, 'B')} of {device.name}: the "
        "memory or the name of the device is wrong"
    )


def _doubt_share(reading: Reading) -> str | None:
    mfu = reading.values.get("mfu")
    if mfu is None or mfu <= 1:
        return None
    return f"an MFU of {mfu:.1%} is above the peak that it relates to: the time, the FLOPs or the peak are wrong"


_CHECKS: dict[str, tuple[Callable[[Reading, Device], str | None], ...]] = {
    "kernel": (_doubt_rate,),
    "power": (_doubt_watts,),
    "step": (_doubt_memory,),
}
"""Checks of a row on a known device, by its kind."""

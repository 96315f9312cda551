"""Measured watts as evidence: the shares of the causes in them, and devices whose power is calibrated by them.

A cause is a constant of the power of a device (`paleo_lite.timing.energy`): what it draws idle, and for arithmetic,
memory traffic, exchanges and operands. A device at its power limit says nothing of any of them.
"""

from __future__ import annotations

from math import isclose
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..machines.device import LearnedPower
from ..timing.activity import Shares
from ..timing.energy import PARAMETERS, demand_slopes, power_of
from ..timing.intervals import INTERVAL_LEVEL, QUANTILES
from .posterior import remaining_width

if TYPE_CHECKING:
    from ..machines import Device
    from ..timing.energy import Power
    from .evidence_file import EvidenceCalibration

KIND = "power"

WATTS = "power_w"
"""Figure of power that is evidence."""

AT_LIMIT = 0.9
"""Share of the limit above which a demand is hidden by it."""

TYPICAL = Shares(arithmetic=0.3, memory=0.4, utilisation=0.3)
"""Work by whose causes what remains uncertain is compared with what was before."""


def power_traits(device: str, network: str, source: str = "") -> dict[str, str]:
    """Return the traits by which watts are compared: device and network."""
    return {"source": source, "device": device, "network": network}


def is_at_limit(power: Power, shares: Shares) -> bool:
    """Return whether the limit hides what a device would draw."""
    return bool(power.demand_w(shares) > AT_LIMIT * power.limit_w)


def power_shares(power: Power, shares: Shares) -> dict[str, float]:
    """Return the shares of the causes in the power without a limit."""
    slopes = demand_slopes(np.array(power.constants.theta), shares, power.dynamic)
    return dict(zip(PARAMETERS, map(float, slopes)))


def power_notes(device: Device, network: str, evidence: EvidenceCalibration | None) -> tuple[str, ...]:
    """Return a sentence about the watts that calibrate the power of a device; none if none do."""
    if evidence is None or device.learned_power is None:
        return ()
    return (f"power {evidence.describe_distance(KIND, power_traits(device.id, network))}",)


def learned_device(device: Device, network: str, evidence: EvidenceCalibration | None) -> Device:
    """Return a device whose power under a network is calibrated by measured watts; as it is without any."""
    power = power_of(device)
    if evidence is None or KIND not in evidence.kinds or power is None:
        return device
    posterior = evidence.posterior(KIND)
    factors = posterior.factors(power_traits(device.id, network))
    _, after, before = factors.log_time(power_shares(power, TYPICAL), posterior.prior.noise[WATTS])
    if isclose(after, before):  # but for rounding, the watts have nothing in common with it
        return device
    reach = QUANTILES[INTERVAL_LEVEL] * float(power.deviation(TYPICAL))
    width = float(remaining_width(after, before, (-reach, reach)))
    learned = LearnedPower(dict(zip(factors.causes, factors.mean.tolist())), width)
    return msgspec.structs.replace(device, learned_power=learned)

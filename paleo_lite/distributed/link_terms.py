"""`LinkRate`: a link as the models of collectives see it."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from ..errors import BadValue
from ..units import format_si

Cost = tuple[Any, Any]
"""Steps of a collective, and bytes that the busiest device sends or receives."""


def seconds_on(
    wire: Any, steps: Any, start_s: Any, latency_s: Any, ramp_s: Any, switch_s: Any, small_share: Any
) -> Any:
    """Seconds by the terms of `LinkRate`, whose ``wire`` is the time of the bytes alone; all may be arrays."""
    whole = np.minimum(wire / small_share, switch_s + wire)
    return start_s + steps * latency_s + 2 * np.sqrt(ramp_s * wire) + whole


class LinkRate(msgspec.Struct, frozen=True):
    """What a link does for one device: the terms of the model.

    Seconds of a collective are ``start + steps * latency + 2 sqrt(ramp * wire) + min(wire / small_share, switch +
    wire)`` with ``wire = bytes / (bandwidth * ppp)``. The root is what is left of a pipeline that cuts a message into
    the best number of pieces, each of which costs ``ramp`` (as in Sanders et al. 2009). The minimum is a library that
    has a second protocol, for small messages, which reaches less bandwidth and saves the switch (NCCL's LL and LL128
    beside Simple). A data sheet knows neither.

    Attributes
    ----------
    bandwidth_bytes_per_s : float
        Of one direction, as the data sheet has it.
    latency_s : float
        Of one step of a collective.
    ppp : float
        The share of the bandwidth that a platform reaches.
    label : str
        Where the other figures come from.
    start_s, ramp_s, switch_s : float
        What a call costs before its first step; the cost of a piece; what small messages save.
    small_share : float
        The share of the reached bandwidth that small messages have.
    ppp_at : tuple of (int, float)
        The same share where it was measured for several numbers of workers, in rising order: between them it is
        interpolated over log(workers), beyond them it stays. `ppp` is that of most workers then.
    scatter : float
        Relative deviation of what was measured from the model; 0 where nothing was.
    kind : str
        Of what kind of link the share is taken where nobody says it: see `clusters.ClusterPrior`. Empty where it is
        measured or given.
    per : str
        Whose bandwidth it is: of a ``lane``, a ``device``, a ``port``; empty for a rate that was given.
    """

    name: str
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    ppp: float = 1.0
    label: str = "data sheet"
    start_s: float = 0.0
    ramp_s: float = 0.0
    switch_s: float = 0.0
    small_share: float = 1.0
    ppp_at: tuple[tuple[int, float], ...] = ()
    scatter: float = 0.0
    kind: str = ""
    per: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.bandwidth_bytes_per_s < math.inf:
            raise BadValue(f"link {self.name}: a bandwidth above 0 is needed, not {self.bandwidth_bytes_per_s:g} B/s")
        for cost in (self.latency_s, self.start_s, self.ramp_s, self.switch_s):
            if not 0 <= cost < math.inf:
                raise BadValue(f"link {self.name}: a latency must be 0 or more seconds, not {cost:g}")
        for share in (self.ppp, self.small_share, *(share for _, share in self.ppp_at)):
            if not 0 < share < math.inf:
                raise BadValue(f"link {self.name}: the PPP must be a share above 0, not {share:g}")

    @property
    def measured(self) -> bool:
        """Whether latency and PPP were fitted to measured collectives."""
        return bool(self.ppp_at)

    def ppp_of(self, workers: Any) -> Any:
        """The share that so many workers reach (scalar or array)."""
        if not self.ppp_at:
            return self.ppp
        counts, shares = np.array(self.ppp_at).T
        return np.exp(np.interp(np.log(workers), np.log(counts), np.log(shares)))

    def time_s(self, cost: Cost, workers: Any) -> Any:
        """Seconds of steps and bytes among so many workers (scalars or arrays that broadcast)."""
        steps, sent_bytes = cost
        wire = sent_bytes / (self.bandwidth_bytes_per_s * self.ppp_of(workers))
        small_share = self.small_share if self.switch_s else 1.0  # without a second protocol nothing is small
        return seconds_on(wire, steps, self.start_s, self.latency_s, self.ramp_s, self.switch_s, small_share)

    def describe(self) -> str:
        """``nvlink4: 25 GB/s per lane and direction at PPP 0.7, latency 12 us (data sheet)``."""
        shares = sorted(share for _, share in self.ppp_at) or [self.ppp]
        share = f"{shares[0]:.2g}" + (f" to {shares[-1]:.2g}" if shares[-1] > shares[0] else "")
        at = "" if shares == [1] else f" at PPP {share}"
        latency = f", latency {format_si(self.latency_s, 's', 3)}" if self.latency_s else ""
        whose = f"per {self.per} and direction" if self.per in ("lane", "device", "port") else "per direction"
        whose += f" over {self.per}" if self.per.endswith("s") else ""
        return f"{self.name}: {format_si(self.bandwidth_bytes_per_s, 'B/s')} {whose}{at}{latency} ({self.label})"

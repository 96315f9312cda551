"""Ranked deployments: candidates, their Pareto front, and the best of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from ..engines.division import Division
from ..errors import BadValue
from ..text import format_plural
from .drafts import PUBLISHED, acceptance_of
from .options import Speculation, make_speculation
from .price_basis import PricedDevice


class Ranking(NamedTuple):
    """A way to rank deployments."""

    without_rate: str  # figure of a candidate that is smallest for the best one
    at_rate: str  # the same where a rate is asked for
    # The order in words, without and with a rate, and the first of them.
    order: str
    order_at_rate: str
    best: str
    needs: str  # what has to be known of the devices

    def figure(self, *, has_rate: bool) -> str:
        """Return the figure of a candidate that is smallest for the best one, with or without a rate."""
        return self.at_rate if has_rate else self.without_rate


RATE_ENERGY = "rate_joules_per_million_output_tokens"
"""Figure of a candidate that only a simulation at the rate gives."""

RANKINGS = {
    "cost": Ranking(
        "usd_per_million_output_tokens", "usd_per_h", "the cheapest per token", "the cheapest for {rate}", "cheapest",
        "price",
    ),
    "hourly": Ranking(
        "usd_per_h", "usd_per_h", "the cheapest per hour", "the cheapest for {rate}", "cheapest per hour", "price",
    ),
    "joules": Ranking(
        "joules_per_million_output_tokens", RATE_ENERGY, "the least energy per token",
        "the least energy per token at {rate}", "least energy", "power",
    ),
}  # fmt: skip
"""What deployments are ranked by."""

DEFAULT_HEADROOM = 0.1


class Criteria(msgspec.Struct, frozen=True):
    """What makes one deployment better than another."""

    by: str = "cost"  # key of `RANKINGS`
    # Fraction of the lower end of the saturation rate that the asked rate leaves free.
    headroom: float = DEFAULT_HEADROOM
    devices: int | None = None  # devices that all replicas may have together; None without a limit

    def __post_init__(self) -> None:
        if not 0 <= self.headroom < 1:
            raise BadValue(f"`--headroom` must be a fraction >= 0 and < 1 (got {self.headroom:g})")

    @property
    def ranks_energy_at_rate(self) -> bool:
        """Whether a rate makes the energy at this rate decide, which takes a simulation at the rate."""
        return RANKINGS[self.by].at_rate == RATE_ENERGY


class PrefillChoice(msgspec.Struct, frozen=True):
    """Replicas of a split deployment that compute prompts, in the formats of those that decode."""

    gpu: str
    tensor: int
    pipeline: int
    expert_parallel: int
    attention_data_parallel: int
    replicas: int
    requests_per_s: float  # prompts per second of one replica
    low_requests_per_s: float  # lower end of their 90% interval
    # Price of one device per hour, and the cloud that asks it; None if it is unknown, or given.
    price_usd_per_h: float | None = None
    price_cloud: str | None = None

    @property
    def division(self) -> Division:
        """How the devices of a replica share the network."""
        return Division(self.tensor, self.pipeline, self.expert_parallel, self.attention_data_parallel)

    @property
    def devices(self) -> int:
        """Devices of all replicas."""
        return self.replicas * self.division.devices

    @property
    def usd_per_h(self) -> float | None:
        """Price of all devices per hour; None if it is unknown."""
        return None if self.price_usd_per_h is None else self.price_usd_per_h * self.devices

    def describe(self) -> str:
        """Return the pool as text, such as ``2 x h100-sxm tensor 4``."""
        return f"{self.replicas} x {self.gpu} {self.division.describe()}"


class DraftChoice(msgspec.Struct, frozen=True):
    """Heads that draft tokens, as published for the network."""

    heads: str  # one of `paleo_lite.serving.drafts.HEADS`
    tokens: int  # drafted per iteration
    acceptance: float  # probability that a drafted token is accepted

    @property
    def speculation(self) -> Speculation:
        """Speculative decoding with these heads."""
        return make_speculation(self.tokens, self.acceptance, self.heads)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of `--speculation`."""
        return {"tokens": self.tokens, "acceptance": self.acceptance, "draft": self.heads}

    def describe(self) -> str:
        """Return the heads as text, such as ``3 of mtp``."""
        return f"{self.tokens} of {self.heads}"


def published_drafts(network: str) -> tuple[DraftChoice, ...]:
    """Return the heads that are published for a network, with each number of tokens."""
    return tuple(
        DraftChoice(draft.heads, tokens, round(acceptance_of(yielded, tokens), 4))
        for draft in PUBLISHED.get(network, ())
        for tokens, yielded in draft.tokens.items()
    )


class Candidate(msgspec.Struct, frozen=True):
    """One replica of a deployment with a batch limit, and the replicas that a rate, users or devices need.

    Of a split deployment it is the replica that decodes; throughput and latencies are those of both pools.
    """

    # Device and formats.
    gpu: str
    precision: str
    weights: str
    # Devices of a stage, pipeline stages of a replica, and requests at the same time.
    tensor: int
    pipeline: int
    batch_limit: int
    # Output tokens per second.
    tokens_per_s_per_gpu: float
    tokens_per_s_per_user: float
    requests_per_s: float  # requests per second of one replica
    # Latencies at the percentile of the objectives, else mean.
    ttft_s: float
    tpot_s: float | None
    latency_s: float
    replicas: int  # replicas for the requested rate, users or devices; 1 if none is requested
    # Cost of one million output tokens at full load, and of all replicas per hour; None without a price.
    usd_per_million_output_tokens: float | None
    usd_per_h: float | None
    meets_objectives: bool  # whether the latencies are within the objectives
    is_on_front: bool = False  # whether no other candidate is better in tokens per second both per GPU and per user
    # Groups of the devices of a stage that divide the experts, and that compute attention for sequences of their own.
    expert_parallel: int = 1
    attention_data_parallel: int = 1
    # Bytes on a device of weights, activations and cache, and its watts while iterations run; None if unknown.
    memory_bytes: float | None = None
    power_w: float | None = None
    # Energy of the devices per million output tokens at full load; None if their power is unknown.
    joules_per_million_output_tokens: float | None = None
    # The same of all replicas at the asked rate, at which batches are smaller and devices wait; None where it does not
    # rank.
    rate_joules_per_million_output_tokens: float | None = None
    low_requests_per_s: float | None = None  # lower end of the 90% interval of `requests_per_s`; None without a rate
    missed: tuple[str, ...] = ()  # objectives that it misses, with its latencies
    objective_ratio: float | None = None  # largest ratio of a latency to its objective; None without objectives
    # Price of one device per hour, and the cloud that asks it; None if it is unknown, or given.
    price_usd_per_h: float | None = None
    price_cloud: str | None = None
    is_forecast: bool = True  # whether the times are forecasts; otherwise they are bounds
    is_chosen: bool = False  # whether this is the best
    # Replicas that compute prompts and send their keys and values; None where every replica does both.
    prefill: PrefillChoice | None = None
    draft: DraftChoice | None = None  # heads that draft tokens; None where advice adds none

    @property
    def devices(self) -> int:
        """Devices of all replicas, of both pools if there are two."""
        return self.replicas * self.division.devices + (0 if self.prefill is None else self.prefill.devices)

    @property
    def all_usd_per_h(self) -> float | None:
        """Price of all devices per hour; None if one is unknown."""
        if self.price_usd_per_h is None:
            return None
        decode_usd_per_h = self.price_usd_per_h * self.replicas * self.division.devices
        if self.prefill is None:
            return decode_usd_per_h
        return None if self.prefill.usd_per_h is None else decode_usd_per_h + self.prefill.usd_per_h

    @property
    def rented(self) -> list[tuple[PricedDevice, int]]:
        """Devices of each pool with their price, and how many."""
        decoding = PricedDevice(self.gpu, self.price_usd_per_h, self.price_cloud)
        rented = [(decoding, self.replicas * self.division.devices)]
        if self.prefill is not None:
            pool = self.prefill
            rented.append((PricedDevice(pool.gpu, pool.price_usd_per_h, pool.price_cloud), pool.devices))
        return rented

    @property
    def low_of_all_per_s(self) -> float:
        """Requests per second that all replicas carry at the lower end of their interval, with a rate."""
        assert self.low_requests_per_s is not None
        decoded_per_s = self.low_requests_per_s * self.replicas
        if self.prefill is None:
            return decoded_per_s
        return min(decoded_per_s, self.prefill.low_requests_per_s * self.prefill.replicas)

    @property
    def deployment(self) -> tuple[Any, ...]:
        """What deployments differ in that have the same candidates with other batch limits."""
        return self.gpu, self.division, self.weights, self.prefill, self.draft

    @property
    def division(self) -> Division:
        """How the devices of a replica share the network."""
        return Division(self.tensor, self.pipeline, self.expert_parallel, self.attention_data_parallel)

    def parallelism(self) -> str:
        """Return the degrees of parallelism as text, such as ``tensor 8, expert-parallel 8``."""
        return self.division.describe()


def within(candidate: Candidate, devices: int | None) -> Candidate:
    """Return a candidate, which misses a limit of devices if its replicas have more than that."""
    needed = candidate.devices
    if devices is None or needed <= devices:
        return candidate
    return msgspec.structs.replace(
        candidate,
        meets_objectives=False,
        missed=(*candidate.missed, f"{format_plural(needed, 'device')} instead of {devices:,}"),
        objective_ratio=max(candidate.objective_ratio or 0.0, needed / devices),
    )


class TooLarge(msgspec.Struct, frozen=True):
    """A deployment at a batch limit that is not simulated, as the rate needs more devices of it than there may be."""

    gpu: str
    weights: str
    parallelism: str  # how the devices of a replica share the network
    batch_limit: int
    devices: int  # that the rate needs at least
    # As of a candidate.
    price_usd_per_h: float | None
    price_cloud: str | None
    is_forecast: bool


class NotSimulated(msgspec.Struct, frozen=True):
    """A deployment at a batch limit that is not simulated, as bounds show that it is neither shown nor on the front."""

    gpu: str
    weights: str
    parallelism: str  # how the devices of a replica share the network
    batch_limit: int
    misses_objectives: bool  # whether it misses the objectives; otherwise those that are shown are ranked before it
    # As of a candidate.
    price_usd_per_h: float | None
    price_cloud: str | None
    is_forecast: bool


SHOWN_CANDIDATES = 20
"""Deployments that meet the objectives, or are on the front, of which the table shows the first."""


class DeploymentAdvice(msgspec.Struct, frozen=True):
    """Candidates and the best of them that meets the objectives."""

    candidates: list[Candidate]  # all that are simulated: those that meet the objectives first, of them the best first
    best: Candidate | None  # the best that meets the objectives; None if none does
    refused: dict[str, str]  # deployments that were not simulated, with the reason
    by: str = "cost"  # key of `RANKINGS`
    rate_per_s: float | None = None  # requests per second that the replicas carry; None without a rate
    headroom: float = DEFAULT_HEADROOM  # as in `Criteria`
    command: str | None = None  # command line that asks for the best alone; None if there is none
    splits_estimated: int = 0  # pairs of pools that were estimated, of which the best are among the candidates
    devices: int | None = None  # number of devices that a recommendation may have; None without a limit
    too_large: tuple[TooLarge, ...] = ()  # deployments that were not simulated, as the rate needs more devices of them
    left_out: tuple[
        NotSimulated, ...
    ] = ()  # deployments that were not simulated, as they are not among those of interest


def prices_of(advice: DeploymentAdvice) -> list[PricedDevice]:
    """Return the prices of the devices of all candidates, with those of their pools of prompts."""
    pools = [pool for candidate in advice.candidates for pool in (candidate, candidate.prefill) if pool is not None]
    priced = [PricedDevice(pool.gpu, pool.price_usd_per_h, pool.price_cloud) for pool in pools]
    others: list[TooLarge | NotSimulated] = [*advice.too_large, *advice.left_out]
    return priced + [PricedDevice(one.gpu, one.price_usd_per_h, one.price_cloud) for one in others]


def is_ranked_by_figure(candidates: Sequence[Candidate], by: str, *, has_rate: bool) -> bool:
    """Return whether any candidate has the figure of a ranking; otherwise fewer devices are better."""
    figure = RANKINGS[by].figure(has_rate=has_rate)
    return any(getattr(candidate, figure) is not None for candidate in candidates)


SAME_DIGITS = 4
"""Significant digits up to which candidates are equally good: prices of devices add up to sums that are rounded."""


def rank(candidates: Sequence[Candidate], by: str, *, has_rate: bool) -> list[Candidate]:
    """Return candidates in order: those within the objectives before others, forecasts before bounds, then by figure.

    If no candidate has the figure, such as a price, fewer devices are better. Among equals those are better that have
    no pool of prompts, then those that draft nothing, then those of the higher throughput.
    """
    value_of = ranked_value(candidates, by, has_rate=has_rate)

    def key(candidate: Candidate) -> tuple[float, ...]:
        return (
            not candidate.meets_objectives,
            not candidate.is_forecast,
            _rounded(value_of(candidate)),
            candidate.prefill is not None,
            candidate.draft is not None,
            -candidate.tokens_per_s_per_gpu,
            candidate.latency_s,
        )

    return sorted(candidates, key=key)


def _rounded(value: float) -> float:
    """Return a figure by which candidates are ranked in the digits in which they may be equal."""
    return float(f"{value:.{SAME_DIGITS}g}")


def equal_to_best(advice: DeploymentAdvice) -> list[tuple[Any, ...]]:
    """Return the deployments that meet the objectives and are ranked equal to the best one, however many sequences."""
    best = advice.best
    if best is None:
        return []
    value_of = ranked_value(advice.candidates, advice.by, has_rate=advice.rate_per_s is not None)
    value = _rounded(value_of(best))
    inside = [each for each in advice.candidates if each.meets_objectives and each.is_forecast == best.is_forecast]
    equal = dict.fromkeys(each.deployment for each in inside if _rounded(value_of(each)) == value)
    return [deployment for deployment in equal if deployment != best.deployment]


def ranked_value(candidates: Sequence[Candidate], by: str, *, has_rate: bool) -> Callable[[Candidate], float]:
    """Return the function that gives what candidates are ranked by, which is smallest for the best one.

    Infinite where it is unknown, and the number of devices where it is unknown of all.
    """
    figure = RANKINGS[by].figure(has_rate=has_rate)
    is_known = is_ranked_by_figure(candidates, by, has_rate=has_rate)

    def value_of(candidate: Candidate) -> float:
        value = getattr(candidate, figure) if is_known else candidate.devices
        return math.inf if value is None else float(value)

    return value_of


def mark_front(candidates: Sequence[Candidate], devices: int | None = None) -> list[Candidate]:
    """Return the candidates with those marked that are on the Pareto front of tokens/s per GPU and per user.

    Of the front are those that have no more devices than there may be, if any does.
    """
    possible = [candidate for candidate in candidates if within(candidate, devices) is candidate] or candidates
    marked = []
    for candidate in candidates:
        is_possible = possible is candidates or within(candidate, devices) is candidate
        is_dominated = any(_dominates(other, candidate) for other in possible)
        marked.append(msgspec.structs.replace(candidate, is_on_front=is_possible and not is_dominated))
    return marked


def _dominates(candidate: Candidate, other: Candidate) -> bool:
    """Return whether a candidate is at least as good in both respects and better in one."""
    pairs = (
        (candidate.tokens_per_s_per_gpu, other.tokens_per_s_per_gpu),
        (candidate.tokens_per_s_per_user, other.tokens_per_s_per_user),
    )
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)

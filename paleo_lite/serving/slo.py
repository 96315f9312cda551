"""Service-level objectives: their text form, and the highest rate that meets them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from ..errors import BadQuantity, BadValue
from ..units import check_positive, format_si, parse_quantity
from .answers import Serving
from .deployment import Deployment
from .outcomes import request_latencies, summarize
from .pools import Simulated
from .prepared import LEVELS, PreparedDeployment, prepare
from .requests import Traffic
from .saturation import saturate, saturate_levels

OBJECTIVES = {"ttft": "ttft_s", "tpot": "tpot_s", "latency": "latency_s"}
"""Names of objectives and of the latencies that they limit."""

DEFAULT_PERCENTILE = "p90"
PERCENTILE_NAMES = ("mean", "p50", "p90", "p99")
RATE_TOLERANCE = 0.02
NEVER_S, LONGEST_S = 1e12, 1e6  # seconds of what is refused, and above which some of it is in a percentile or a mean
SIMULATED_REQUESTS = 1000

CONFIRMING_RUNS = 5
"""Requests that confirm a rate, as a multiple of those that find it."""

NEAR_SATURATION = 0.8
"""Share of the saturation rate from which a rate is confirmed: latencies grow with the requests of a run there."""

INTERVAL_TOLERANCE = 1.1
"""Ratio of two rates between which an end of the interval is found."""

LEAST_SHARE = 0.01
"""Share of the saturation rate below which no rate is tried."""

RATE_DIGITS = 3
"""Digits of the rate that is found, which is printed as it was confirmed."""


class Objective(msgspec.Struct, frozen=True):
    """Upper limit of a latency."""

    name: str  # "ttft", "tpot" or "latency"
    percentile: str  # of the requests: "mean", "p50", "p90" or "p99"
    limit_s: float  # limit in seconds

    def describe(self) -> str:
        """Return the objective as text: ``ttft p90 <= 500 ms``."""
        return f"{self.name} {self.percentile} <= {format_si(self.limit_s, 's')}"


class Missed(msgspec.Struct, frozen=True):
    """An objective that is not met."""

    objective: Objective
    latency_s: float  # the latency that is above its limit

    @property
    def ratio(self) -> float:
        """The latency over its limit."""
        return self.latency_s / self.objective.limit_s

    def describe(self) -> str:
        """Return the latency as text: ``ttft p90 751 ms``."""
        if self.latency_s > LONGEST_S:
            return f"{self.objective.name} {self.objective.percentile}, as too many requests are refused"
        return f"{self.objective.name} {self.objective.percentile} {format_si(self.latency_s, 's', 3)}"


def parse_slo(text: str) -> tuple[Objective, ...]:
    """Parse objectives such as ``ttft=500ms,tpot=50ms`` or ``ttft.p99=2s``.

    Raise BadValue if a latency or percentile is unknown, or a limit is not a time > 0.
    """
    objectives = []
    for part in text.split(","):
        name, equals, limit = part.partition("=")
        name, _, percentile = name.strip().partition(".")
        percentile = percentile or DEFAULT_PERCENTILE
        if not equals or name not in OBJECTIVES or percentile not in PERCENTILE_NAMES:
            raise BadValue(
                f"`--slo` must be limits of {', '.join(OBJECTIVES)} with an optional percentile, such as "
                f"ttft=500ms,tpot.p99=50ms (got {part!r})"
            )
        try:
            limit_s = parse_quantity(limit.strip(), "s", unit_required=True)
        except BadQuantity as error:
            raise BadValue(f"`--slo` {part}: {error}") from None
        check_positive("`--slo`", limit_s, repr(part), "times > 0")
        objectives.append(Objective(name, percentile, limit_s))
    return tuple(objectives)


def meets(
    prepared: PreparedDeployment, objectives: tuple[Objective, ...], traffic: Traffic, level: str = "expected"
) -> bool:
    """Return whether requests are answered within the objectives, at one of the levels of iteration times."""
    return not find_missed(latencies_of_all(prepared.simulate(traffic, level)), objectives)


def latencies_of_all(simulated: Simulated) -> dict[str, Any]:
    """Return the latencies of all requests, of which those that are refused take for ever."""
    arrays = request_latencies(simulated.outcomes)
    if not simulated.refused:
        return arrays
    refused = np.full(len(simulated.refused), NEVER_S)
    return {name: np.concatenate([array, refused]) for name, array in arrays.items()}


def find_missed(arrays: Mapping[str, Any], objectives: Sequence[Objective]) -> list[Missed]:
    """Return the objectives that the latencies of requests miss, given as arrays by the names of `LATENCIES`."""
    return [
        Missed(objective, value)
        for objective, value in _latencies_of(arrays, objectives)
        if value is not None and value > objective.limit_s
    ]


def largest_ratio(arrays: Mapping[str, Any], objectives: Sequence[Objective]) -> float | None:
    """Return the largest ratio of a latency to its objective; None without objectives."""
    ratios = [value / objective.limit_s for objective, value in _latencies_of(arrays, objectives) if value is not None]
    return max(ratios, default=None)


def _latencies_of(
    arrays: Mapping[str, Any], objectives: Sequence[Objective]
) -> Iterator[tuple[Objective, float | None]]:
    """Yield each objective with the latency that it limits."""
    for objective in objectives:
        yield objective, summarize(arrays[OBJECTIVES[objective.name]])[objective.percentile]


def missed_in(result: Serving, objectives: Sequence[Objective]) -> list[Missed]:
    """Return the objectives that an answer misses at its own traffic."""
    missed = []
    for objective in objectives:
        value = result.latencies[OBJECTIVES[objective.name]][objective.percentile].value
        if value is not None and value > objective.limit_s:
            missed.append(Missed(objective, value))
    return missed


def highest_rate(
    deployment: Deployment, objectives: tuple[Objective, ...], traffic_at: Callable[[float, int], Traffic]
) -> float | None:
    """Return the highest rate, in requests per second, that meets the objectives.

    `traffic_at` gives the requests at a rate, once or several times as many. Bisection below the saturation rate, at
    which the queue has no end, to 2%; None if not even a hundredth of it does. Near saturation a longer run confirms
    the rate, or a lower one.
    """
    flood = traffic_at(math.inf, 1)
    prepared = prepare(deployment, flood)
    saturation_per_s, _ = saturate(prepared.lasting, flood)

    def meets_at(rate_per_s: float) -> bool:
        return meets(prepared, objectives, traffic_at(rate_per_s, 1))

    least, high = _round_down(LEAST_SHARE * saturation_per_s), _round_down(saturation_per_s / (1 + RATE_TOLERANCE))
    if not meets_at(least):
        return None
    low = high if meets_at(high) else least
    while high / low > 1 + RATE_TOLERANCE:
        middle = _round_down((low * high) ** 0.5)
        if meets_at(middle):
            low = middle
        else:
            high = middle
    if low < NEAR_SATURATION * saturation_per_s:
        return low
    prepared_for_longer = prepare(deployment, traffic_at(math.inf, CONFIRMING_RUNS))  # it has longer requests, too
    while low > least and not meets(prepared_for_longer, objectives, traffic_at(low, CONFIRMING_RUNS)):
        low = _round_down(low / (1 + RATE_TOLERANCE))
    return low


def interval_of_highest(
    deployment: Deployment,
    objectives: tuple[Objective, ...],
    traffic_at: Callable[[float, int], Traffic],
    highest_per_s: float,
) -> tuple[float, float] | None:
    """Return the highest rates with the slowest and the fastest iterations of their 90% interval; None without one.

    The search begins at the rate that changes as the saturation rate does, and ends within 10%. A rate of 0 stands for
    none that meets the objectives.
    """
    flood = traffic_at(math.inf, 1)
    prepared = prepare(deployment, flood)
    if prepared.slowest == "expected":
        return None
    saturated = saturate_levels(prepared.lasting, flood, LEVELS)
    ends = []
    for level in ("high", "low"):  # of the times of iterations
        saturation_per_s = saturated[level][0]

        def meets_at(rate_per_s: float, level: str = level) -> bool:
            return meets(prepared, objectives, traffic_at(rate_per_s, 1), level)

        first_per_s = min(highest_per_s / saturated["expected"][0], 1 / INTERVAL_TOLERANCE) * saturation_per_s
        ends.append(_search_from(first_per_s, LEAST_SHARE * saturation_per_s, saturation_per_s, meets_at))
    low_per_s, high_per_s = ends
    return min(low_per_s, highest_per_s), max(high_per_s, highest_per_s)


def _search_from(first_per_s: float, least_per_s: float, most_per_s: float, meets_at: Callable[[float], bool]) -> float:
    """Return the highest rate that meets objectives, within 10%, which is probably near a first one; 0 if none does."""
    low = high = first_per_s
    step = INTERVAL_TOLERANCE
    while not meets_at(low):
        if low <= least_per_s:
            return 0.0
        low, high = max(low / step, least_per_s), low
        step **= 2
    while low == high < most_per_s / INTERVAL_TOLERANCE:
        high = low * INTERVAL_TOLERANCE
        if meets_at(high):
            low = high
    while high / low > INTERVAL_TOLERANCE * (1 + 1e-9):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if meets_at(middle) else (low, middle)
    return low


def _round_down(rate_per_s: float) -> float:
    """Return a rate in as many digits as are printed, at most what it was."""
    step = 10.0 ** (math.floor(math.log10(rate_per_s)) + 1 - RATE_DIGITS)
    return float(f"{math.floor(rate_per_s / step) * step:.{RATE_DIGITS}g}")


def with_highest_rate(
    result: Serving,
    deployment: Deployment,
    objectives: tuple[Objective, ...],
    traffic_at: Callable[[float, int], Traffic],
    missed: Sequence[Missed],
    arrivals: str,  # of the requests that `traffic_at` gives, as text
) -> Serving:
    """Return an answer that misses some objectives with the highest rate that meets all."""
    highest = highest_rate(deployment, objectives, traffic_at)
    interval = None if highest is None else interval_of_highest(deployment, objectives, traffic_at, highest)
    described = [objective.describe() for objective in objectives]
    return msgspec.structs.replace(
        result,
        slo={
            "objectives": described,
            "highest_requests_per_s": highest,
            "highest_interval": interval,
            "arrivals": arrivals,
            "missed": [each.describe() for each in missed],
        },
    )

"""Latencies under traffic with their intervals, from simulations in which one cause at a time is at an end of its own.

Iterations of a replica are off in the same direction, since they share device and model. Those of two split pools are
not: prompts are limited by arithmetic, decoding by memory. With N users, whose requests take the pools in turn, a first
token comes N times the time per prompt of the pool after the one before, less the time of the answer: where the pools
are nearly balanced, a small error of either makes the wait several times longer or shorter.

Users of a closed loop whose lengths are all equal may be anywhere between evenly spread and in step, in which every
prompt waits for those of all others. Clients differ in this, and forecasts are nearer to the former.

Split pools that are not warm compile kernels when they get their first requests. Of few requests the mean shows it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..timing.intervals import Z_90
from .deployment import PreparedDeployment
from .figures import Figure, make_figure, widen
from .outcomes import request_latencies, summarize
from .pools import Simulated
from .requests import Traffic

Latencies = Mapping[str, Mapping[str, float | None]]
"""Mean and quantiles of each of `outcomes.LATENCIES`."""


class Cause(NamedTuple):
    """Latencies at the ends of what may be another way."""

    low: Latencies
    high: Latencies
    width: float = 1.0  # what measured servers leave of the interval, in logarithms


POOL_ENDS = ((("low", "expected"), ("high", "expected")), (("expected", "low"), ("expected", "high")))
"""Levels of the pool that decodes and of the one that computes prompts, at the ends of each of them."""


STALL_S = 10.0
"""Seconds, of all requests of a run together, by which first tokens of split pools are late that are not warm: upper
end of a 90% interval.

Of SGLang's published ones with up to 16 users 88% are inside with it and 71% without (3, 5, 20 and 40 s: 79, 83, 88
and 88%, with wider intervals), and the interval score is 2.01 instead of 2.61; of TensorRT-LLM's, by which it was not
chosen, 7.9 instead of 8.7.
"""

STALLED = ("ttft_s", "latency_s")
"""Latencies that contain a stall."""


def summarize_latencies(simulated: Simulated) -> Latencies:
    """Return the latencies of a simulation."""
    return {name: summarize(values) for name, values in request_latencies(simulated.outcomes).items()}


def simulate_causes(
    prepared: PreparedDeployment,
    traffic: Traffic,
    at_levels: Mapping[str, Latencies],  # latencies at each level of the iteration times, of both pools together
) -> list[Cause]:
    """Return the causes, each simulated by itself; none where the time model gives no interval."""
    if len(at_levels) == 1:
        return []
    causes = [Cause(at_levels["low"], at_levels["high"])]
    if prepared.prefill is not None:
        causes = []
        for ends in POOL_ENDS:
            low, high = (
                summarize_latencies(prepared.simulate(traffic, level, prefill_level=prefill_level))
                for level, prefill_level in ends
            )
            causes.append(Cause(low, high))
        causes.append(Cause(at_levels["expected"], _stalled(at_levels["expected"], len(traffic.counted))))
    synchronised = traffic.synchronised()
    if synchronised is not None:
        latencies = summarize_latencies(prepared.simulate(synchronised))
        causes.append(Cause(latencies, latencies, prepared.first_token_width))
    return causes


def _stalled(latencies: Latencies, requests: int) -> Latencies:
    """Return the latencies of so many requests, of which the first ones wait for a pool that is not warm."""
    stalled = dict(latencies)
    for name in STALLED:
        mean = latencies[name]["mean"]
        if mean is not None:
            stalled[name] = {**latencies[name], "mean": mean + STALL_S / requests}
    return stalled


def join_latencies(
    expected: Latencies, causes: Sequence[Cause], deviations: Mapping[str, float]
) -> dict[str, dict[str, Figure]]:
    """Return the latencies with intervals of all causes, and of deviations of their logarithms beside these."""
    joint: dict[str, dict[str, Figure]] = {}
    for name, parts in expected.items():
        added = Z_90 * deviations.get(name, 0.0)
        joint[name] = {}
        for part, value in parts.items():
            of_causes = [
                narrow(make_figure([cause.low[name][part], value, cause.high[name][part]]), cause.width)
                for cause in causes
            ]
            figure = join_causes(of_causes or [make_figure([value])])
            joint[name][part] = widen(figure, below=added, above=added)
    return joint


def narrow(figure: Figure, width: float) -> Figure:
    """Return a figure with an interval of so much of its width, in logarithms."""
    if width == 1.0 or not figure.value or not figure.low or figure.high is None:
        return figure
    value = figure.value
    return Figure(value, value * (figure.low / value) ** width, value * (figure.high / value) ** width)


def join_causes(figures: Sequence[Figure]) -> Figure:
    """Return a figure whose interval is that of several independent causes, each of which gives one of its own."""
    joint, *others = figures
    for other in others:
        if joint.value and joint.low and other.low and other.high is not None:
            joint = widen(joint, below=math.log(joint.value / other.low), above=math.log(other.high / joint.value))
        else:  # there are no logarithms: no narrower than each
            ends = [end for figure in (joint, other) for end in (figure.low, figure.high) if end is not None]
            joint = Figure(joint.value, min(ends, default=None), max(ends, default=None))
    return joint

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

from collections.abc import Mapping

from .causes import causes_of_iterations, causes_of_users
from .intervals import Cause, Latencies
from .prepared import PreparedDeployment
from .requests import Traffic

STALL_S = 10.0
"""Seconds, of all requests of a run together, by which first tokens of split pools are late that are not warm: upper
end of a 90% interval.

Of SGLang's published ones with up to 16 users 88% are inside with it and 71% without (3, 5, 20 and 40 s: 79, 83, 88
and 88%, with wider intervals), and the interval score is 2.01 instead of 2.61; of TensorRT-LLM's, by which it was not
chosen, 7.9 instead of 8.7.
"""

STALLED = ("ttft_s", "latency_s")
"""Latencies that contain a stall."""


def simulate_causes(
    prepared: PreparedDeployment,
    traffic: Traffic,
    at_levels: Mapping[str, Latencies],  # latencies at each level of the iteration times, of both pools together
) -> list[Cause]:
    """Return the causes, each simulated by itself; none where the time model gives no interval."""
    if len(at_levels) == 1:
        return []
    causes = causes_of_iterations(prepared, traffic, at_levels)
    if prepared.prefill is not None:
        causes.append(Cause(at_levels["expected"], _stalled(at_levels["expected"], len(traffic.counted))))
    return [*causes, *causes_of_users(prepared, traffic)]


def _stalled(latencies: Latencies, requests: int) -> Latencies:
    """Return the latencies of so many requests, of which the first ones wait for a pool that is not warm."""
    stalled = dict(latencies)
    for name in STALLED:
        mean = latencies[name]["mean"]
        if mean is not None:
            stalled[name] = {**latencies[name], "mean": mean + STALL_S / requests}
    return stalled

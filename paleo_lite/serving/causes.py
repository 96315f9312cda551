"""Measured servers as evidence: the shares of the causes in their times, and what they leave of an interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from ..calibration.posterior import remaining_width, shares_of
from ..engines.causes import FIRST_TOKEN, FRONT_END, HOST, PROMPTS, TIME_PER_TOKEN
from ..engines.kernels import Load
from .intervals import Cause, Latencies, half_width, join_latencies, summarize_latencies
from .kernel_timer import device_kernels
from .steady import steady_span, work_in

if TYPE_CHECKING:
    from ..engines.constants import Learned
    from ..engines.records.record import Server
    from .placement import ModelOnDevice
    from .pools import Simulated
    from .requests import Traffic

WAITED_RATIO = 3.0
"""Measured over forecast first token from which the prompt waited for a place, which says nothing of other loads.

Of 668 published ones 14 are such, of servers whose caches do not hold all requests.
"""


def has_waited(measured_s: float, forecast_s: float) -> bool:
    """Return whether a first token came so late that its prompt waited for a place in the server."""
    return measured_s > WAITED_RATIO * forecast_s


def server_shares(
    on_device: ModelOnDevice,
    engine: Server,
    *,
    users: float,
    prompt_tokens: float,
    answer_tokens: float,
    tpot_s: float,
    ttft_s: float,
) -> dict[str, dict[str, float]]:
    """Return the shares of causes in the time per output token and the time to first token of a server, by figure.

    What iterations of decoding and the host do not explain of a time per token are prompts of others.
    """
    assert on_device.kernels is not None
    step, groups = on_device.kernels.step, on_device.division.attention_data_parallel
    longest = max(round(prompt_tokens + answer_tokens), 1)
    decode, prefill = (device_kernels(on_device, phase, longest) for phase in ("decode", "prefill"))
    load = Load.of_decoding(max(users, 1.0), prompt_tokens + answer_tokens / 2, groups)
    seconds = {cause: float(own_s) for cause, own_s in step.seconds_by_cause(decode, load).items()}
    seconds[HOST] = engine.overhead_s + engine.sequence_overhead_s * float(np.ceil(users / groups))
    seconds[PROMPTS] = max(tpot_s - sum(seconds.values()), 0.0)
    per_token = shares_of(seconds)
    prompt_s = float(step.total_s(prefill, Load.of_prompts(1.0, max(prompt_tokens, 1.0))))
    front_end_s = engine.request_overhead_s + engine.request_kernels_s + engine.request_token_s * prompt_tokens
    front_end_s += engine.request_iterations * tpot_s
    return {
        TIME_PER_TOKEN: per_token,
        FIRST_TOKEN: first_token_shares(per_token, ttft_s=ttft_s, prompt_s=prompt_s, front_end_s=front_end_s),
    }


def first_token_shares(
    per_token: dict[str, float], *, ttft_s: float, prompt_s: float, front_end_s: float
) -> dict[str, float]:
    """Return the shares of causes in a time to first token, from those in the time per token.

    A request passes the front end, waits for iterations of others, in which causes have the shares that they have per
    token, and its prompt is computed.
    """
    waited_s = max(ttft_s - prompt_s - front_end_s, 0.0)
    seconds = {cause: share * waited_s for cause, share in per_token.items()}
    seconds[PROMPTS] = seconds.get(PROMPTS, 0.0) + prompt_s
    return shares_of({**seconds, FRONT_END: front_end_s})


class RemainingWidths(NamedTuple):
    """What measured servers leave of intervals, relative to those without them, in logarithms."""

    per_token: float  # of iterations and of the host
    first_token: float  # of the wait for a first token beside those of iterations, and of users in step


POOL_ENDS = ((("low", "expected"), ("high", "expected")), (("expected", "low"), ("expected", "high")))
"""Levels of the pool that decodes and of the one that computes prompts, at the ends of each of them."""

FEW_USERS = 64
"""Users of a server up to which its deviation of first tokens was fitted (`validation.engines.steps`)."""

CROWD_DEVIATION = 0.4
"""Standard deviation of the logarithm of a first token that twice as many users add in a closed loop.

Front ends that stream to many connections, users that fall into step or out of it, and caches that overflow make waits
shorter or longer. It was chosen by 104 published servers of 65 to 512 users under TensorRT-LLM, whose interval scores
hardly differ from 0.3 to 0.4 (2.83 without it, 2.64, 2.64 and 2.67, with 88, 93 and 96% inside the 90% interval; 2.82
with 0.5), as the larger of these, and judged by 51 under SGLang (4.83 to 3.51, 57 to 88% inside) and 18 under vLLM
(2.29 to 1.70, 61 to 100%).
"""


class Simulating(Protocol):
    """A prepared deployment, which simulates traffic."""

    @property
    def prefill(self) -> object | None:
        """The pool that computes prompts; None where every replica does both."""
        ...

    @property
    def first_token_width(self) -> float:
        """What measured servers leave of the interval of the wait for a first token, in logarithms."""
        ...

    def simulate(self, traffic: Traffic, level: str = "expected", *, prefill_level: str | None = None) -> Simulated:
        """Simulate all replicas at a level of the times of iterations, of which prompts may have one of their own."""
        ...


def causes_of_iterations(
    prepared: Simulating,
    traffic: Traffic,
    at_levels: Mapping[str, Latencies],  # latencies at each level of the iteration times, of both pools together
) -> list[Cause]:
    """Return the iteration times as causes: those of each of two split pools, or of all replicas."""
    if prepared.prefill is None:
        return [Cause(at_levels["low"], at_levels["high"])]
    causes = []
    for ends in POOL_ENDS:
        low, high = (
            summarize_latencies(prepared.simulate(traffic, level, prefill_level=prefill_level))
            for level, prefill_level in ends
        )
        causes.append(Cause(low, high))
    return causes


def causes_of_users(prepared: Simulating, traffic: Traffic) -> list[Cause]:
    """Return users in step as a cause; none where they are not apart."""
    synchronised = traffic.synchronised()
    if synchronised is None:
        return []
    latencies = summarize_latencies(prepared.simulate(synchronised))
    return [Cause(latencies, latencies, prepared.first_token_width)]


def crowd_deviations(deviations: Mapping[str, float], users: float) -> dict[str, float]:
    """Return deviations of logarithms of waits in a closed loop of some users of a server, from those of few users.

    Their variance grows by the same with every doubling.
    """
    doublings = max(math.log2(users / FEW_USERS), 0.0) if users else 0.0
    return {
        name: math.hypot(deviation, CROWD_DEVIATION * math.sqrt(doublings)) for name, deviation in deviations.items()
    }


def remaining_widths(
    on_device: ModelOnDevice,
    engine: Server,
    learned: Learned,
    traffic: Traffic,
    simulated: Simulated,  # at the expected times of iterations
    iterations: Sequence[Cause],  # the times of iterations, of each pool by itself
    users: Sequence[Cause],  # users in step
    first_token_deviation: float,  # of the logarithm of the wait for a first token beside those of iterations
) -> RemainingWidths:
    """Return what measured servers leave of the intervals under some traffic, by the causes of its mean latencies.

    The intervals are those that answers print, without a stall, of which measured servers say nothing. A simulation
    without answers of several tokens says nothing of times per token: they are those of first tokens.
    """
    outcomes, expected = simulated.outcomes, summarize_latencies(simulated)
    of_iterations = join_latencies(expected, iterations, {})
    of_all = join_latencies(expected, [*iterations, *users], {FIRST_TOKEN: first_token_deviation})
    first = of_iterations[FIRST_TOKEN]["mean"]
    token = of_iterations[TIME_PER_TOKEN]["mean"]
    if token.value is None:
        token = first
    assert first.value is not None and token.value is not None and token.low is not None and token.high is not None
    work = work_in(outcomes, steady_span(outcomes, traffic.rate_per_s, None))
    shares = server_shares(
        on_device,
        engine,
        users=max(work.sequence_s / work.busy_s, 1.0),
        prompt_tokens=float(traffic.input_tokens.mean()),
        answer_tokens=float(traffic.output_tokens.mean()),
        tpot_s=token.value,
        ttft_s=first.value,
    )
    variances = learned.variances(TIME_PER_TOKEN, shares[TIME_PER_TOKEN])
    per_token = float(remaining_width(*variances, (math.log(token.low), math.log(token.high))))
    # The interval of a first token is that of iterations and of other causes, whose logarithms add up in quadrature.
    stated, by_iterations = (half_width(joint[FIRST_TOKEN]["mean"]) for joint in (of_all, of_iterations))
    by_others = math.sqrt(max(stated**2 - by_iterations**2, 0.0))
    variances = learned.variances(FIRST_TOKEN, shares[FIRST_TOKEN])
    wanted = stated * float(remaining_width(*variances, (-stated, stated)))
    remaining = math.sqrt(max(wanted**2 - (per_token * by_iterations) ** 2, 0.0))
    return RemainingWidths(per_token, remaining / by_others if by_others else 1.0)

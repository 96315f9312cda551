"""Measured servers as evidence: the shares of the causes in their times, and what they leave of an interval."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..calibration.posterior import remaining_width, shares_of
from ..engines.causes import FIRST_TOKEN, FRONT_END, HOST, PROMPTS, TIME_PER_TOKEN
from ..engines.kernels import Load
from ..timing.intervals import Z_90
from .kernel_timer import device_kernels
from .outcomes import request_latencies
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
    step, groups = on_device.kernels.step, on_device.attention_data
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


_FIGURES = (FIRST_TOKEN, TIME_PER_TOKEN)


class RemainingWidths(NamedTuple):
    """What measured servers leave of intervals, relative to those without them, in logarithms."""

    per_token: float  # of iterations and of the host
    first_token: float  # of the wait for a first token beside those of iterations, and of users in step


def remaining_widths(
    on_device: ModelOnDevice,
    engine: Server,
    learned: Learned,
    traffic: Traffic,
    simulated: Mapping[str, Simulated],  # by level of the times of iterations: "low", "expected" and "high"
    first_token_deviation: float,  # of the logarithm of the wait for a first token beside those of iterations
    synchronised: Simulated | None,  # users in step, who wait for longer; None where they are not apart
) -> RemainingWidths:
    """Return what measured servers leave of the intervals under some traffic, by the causes of its mean latencies.

    A level without answers of several tokens says nothing of times per token: they are those of first tokens.
    """
    outcomes = simulated["expected"].outcomes
    first_s, token_s = (
        {level: _mean_s(simulation, figure) for level, simulation in simulated.items()} for figure in _FIGURES
    )
    work = work_in(outcomes, steady_span(outcomes, traffic.rate_per_s, None))
    shares = server_shares(
        on_device,
        engine,
        users=max(work.sequence_s / work.busy_s, 1.0),
        prompt_tokens=float(traffic.input_tokens.mean()),
        answer_tokens=float(traffic.output_tokens.mean()),
        tpot_s=token_s["expected"],
        ttft_s=first_s["expected"],
    )
    variances = learned.variances(TIME_PER_TOKEN, shares[TIME_PER_TOKEN])
    per_token = float(remaining_width(*variances, (math.log(token_s["low"]), math.log(token_s["high"]))))
    # The interval of a first token is that of iterations, of the wait and, at its upper end, of users in step; their
    # logarithms add up in quadrature.
    of_iterations = math.log(first_s["high"] / first_s["low"]) / 2
    of_wait = Z_90 * first_token_deviation
    of_step = 0.0
    if synchronised is not None:
        of_step = max(math.log(_mean_s(synchronised, FIRST_TOKEN) / first_s["expected"]), 0.0)
    stated = (math.hypot(of_iterations, of_wait) + math.hypot(of_iterations, of_wait, of_step)) / 2
    of_others = math.sqrt(stated**2 - of_iterations**2)
    variances = learned.variances(FIRST_TOKEN, shares[FIRST_TOKEN])
    wanted = stated * float(remaining_width(*variances, (-stated, stated)))
    remaining = math.sqrt(max(wanted**2 - (per_token * of_iterations) ** 2, 0.0))
    return RemainingWidths(per_token, remaining / of_others if of_others else 1.0)


def _mean_s(simulated: Simulated, figure: str) -> float:
    """Return the mean of a latency; where there is none, that of first tokens."""
    latencies = request_latencies(simulated.outcomes)
    values = latencies[figure] if len(latencies[figure]) else latencies[FIRST_TOKEN]
    return float(values.mean())

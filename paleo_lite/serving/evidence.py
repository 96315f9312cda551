"""Measured servers as evidence: the shares of the causes in their times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..calibration.evidence import shares_of
from ..engines.causes import FRONT_END, HOST, PROMPTS
from ..engines.step import Load
from .kernel_timer import device_kernels
from .learned import TIME_PER_TOKEN

if TYPE_CHECKING:
    from ..engines.records.record import Server
    from .placement import ModelOnDevice

FIRST_TOKEN = "ttft_s"
"""Figure of servers that is evidence beside the time per token."""

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
    front_end_s = (
        engine.request_overhead_s + engine.request_token_s * prompt_tokens + engine.request_iterations * tpot_s
    )
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

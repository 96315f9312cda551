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

LARGEST_PROMPT_SHARE = 0.95
"""Largest share of the prompt in a time to first token: the front end is never nothing."""


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
    prompt_s = float(step.total_s(prefill, Load.of_prompts(1.0, max(prompt_tokens, 1.0))))
    prompt_share = min(prompt_s / ttft_s, LARGEST_PROMPT_SHARE)
    return {
        TIME_PER_TOKEN: shares_of(seconds),
        FIRST_TOKEN: {PROMPTS: prompt_share, FRONT_END: 1 - prompt_share},
    }

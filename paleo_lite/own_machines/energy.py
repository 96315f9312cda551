"""What the devices draw under llama.cpp, and what a million tokens cost.

A device that decodes reads memory or unpacks numbers, and waits between kernels and for its host. The power of this
activity is that of `paleo_lite.timing.energy`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..machines import Device
from ..timing.activity import Activity
from ..timing.energy import power_of, speed_under_limit
from ..timing.facility import JOULES_PER_KWH, Facility
from .split import DevicesOfKind

MILLION = 1e6


class LocalEnergy(msgspec.Struct, frozen=True):
    """Power of the devices, and energy of tokens."""

    # Watts of all devices while they write an answer, and read a prompt.
    token_w: float
    prompt_w: float
    token_interval_w: tuple[float, float]  # interval of the former at 90%
    # Energy at the meter of a million tokens of answers, and of prompts.
    kwh_per_million_tokens: float
    kwh_per_million_prompt_tokens: float
    # Their price; None without the price of electricity.
    usd_per_million_tokens: float | None
    usd_per_million_prompt_tokens: float | None
    # Grams of CO2 of a million tokens of answers; None without the carbon intensity.
    co2_g_per_million_tokens: float | None


def token_under_limit(device: Device, activity: Activity, time_s: float) -> tuple[Activity, float]:
    """Return the activity and the seconds of a device for a token under its power limit, given those without one."""
    if not time_s:
        return activity, time_s
    speed = float(speed_under_limit(device, activity.overlapping_shares_of(time_s)))
    return activity.times(1 / speed), time_s / speed


def prompt_under_limit(
    kind: DevicesOfKind, activity: Activity, time_s: float, whole_s: float
) -> tuple[Activity, float]:
    """Return the activity and the seconds of all devices of a kind for a prompt under their limit, without which they
    take `time_s` of the `whole_s` of all kinds."""
    speed = float(speed_under_limit(kind.device, activity.times(1 / kind.number).shares_of(whole_s)))
    return activity.times(1 / speed), time_s / speed


def energy_of(
    kinds: Sequence[DevicesOfKind],
    token: tuple[Sequence[Activity], float],
    prompt: tuple[Sequence[Activity], float],
    prompt_tokens: int,
    facility: Facility | None,
    *,
    has_experts: bool,
) -> LocalEnergy | None:
    """Return the power and energy of a token and of a prompt, of each what the devices of each kind do and its seconds.

    Devices take turns: while one computes, the others wait. None if nothing is known of the power of a device.
    """
    site = facility or Facility()
    token_s, prompt_s, gpus = token[1], prompt[1], sum(kind.number for kind in kinds)
    token_w = prompt_w = low_w = high_w = 0.0
    for kind, of_token, of_prompt in zip(kinds, token[0], prompt[0], strict=True):
        power = power_of(kind.device, has_experts=has_experts)
        if power is None:
            return None
        token_shares = of_token.times(1 / kind.number).overlapping_shares_of(token_s)
        prompt_shares = of_prompt.times(1 / kind.number).shares_of(prompt_s)
        token_w += float(power.watts(token_shares)) * kind.number
        prompt_w += float(power.watts(prompt_shares)) * kind.number
        ends_w = power.interval_w(token_shares)
        low_w, high_w = low_w + float(ends_w[0]) * kind.number, high_w + float(ends_w[1]) * kind.number
    of_tokens = site.site_energy(token_w * token_s * MILLION, gpus * token_s * MILLION)
    seconds = prompt_s / prompt_tokens * MILLION
    of_prompts = site.site_energy(prompt_w * seconds, gpus * seconds)
    return LocalEnergy(
        token_w, prompt_w, (low_w, high_w), of_tokens.energy_j / JOULES_PER_KWH,
        of_prompts.energy_j / JOULES_PER_KWH, of_tokens.usd, of_prompts.usd, of_tokens.co2_g,
    )  # fmt: skip

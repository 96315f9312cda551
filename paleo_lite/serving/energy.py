"""What a deployment draws: the power of its iterations, and the energy of its tokens.

An iteration decodes a token of every sequence, and computes prompts. What a device does for both is in
`paleo_lite.serving.timer`; how long it takes is the simulation's answer, with the time of the host. Between
iterations devices wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..timing.activity import Activity
from ..timing.energy import Power, power_of
from .steady import work_in

if TYPE_CHECKING:
    from .deployment import Deployment
    from .outcomes import Outcome
    from .steady import MeasuredSpan


class Drawn(NamedTuple):
    """What the devices of a deployment draw."""

    energy_j: float  # energy of all devices in a span of the simulation, in joules
    watts: float  # average power of a device while iterations run
    # 90% interval of `watts` at these times; equal to it where the rated power is all that is known.
    low_w: float
    high_w: float


def draw_power(
    outcomes: Sequence[Outcome],
    deployment: Deployment,
    input_tokens: int,
    span: MeasuredSpan,
    replicas: float | None = None,  # in the mean over the span; None for those of the deployment
) -> Drawn | None:
    """Return power, and the energy in a span of the simulation; None if the devices draw unknown power."""
    device = deployment.on_device.machine.device
    limit_w = device.power_w
    power = power_of(device, has_experts=deployment.on_device.workload.has_experts)
    busy_s = work_in(outcomes, span).busy_s
    devices = deployment.on_device.devices
    waiting_s = max((replicas or deployment.replicas) * span.seconds - busy_s, 0.0)
    if power is None:
        return None if limit_w is None else Drawn(limit_w * devices * (busy_s + waiting_s), limit_w, limit_w, limit_w)
    activity = served_activity(outcomes, deployment, input_tokens)
    shares = activity.shares_of(sum(outcome.busy_s for outcome in outcomes))
    watts, (low_w, high_w) = float(power.watts(shares)), power.interval_w(shares)
    return Drawn(devices * (watts * busy_s + power.idle_w * waiting_s), watts, float(low_w), float(high_w))


def draw_power_of_all(
    outcomes: Sequence[Outcome],
    deployment: Deployment,
    input_tokens: int,
    span: MeasuredSpan,
    prefill: Sequence[Outcome],  # of the replicas of the prefill pool
    replicas: float | None,  # in the mean over the span; None for those of the deployment
) -> Drawn | None:
    """Return what the devices of both pools draw; None if the power of one is unknown."""
    decoding = draw_power(outcomes, deployment, input_tokens, span, replicas)
    if deployment.prefill is None or decoding is None:
        return decoding
    prefilling = draw_power(prefill, deployment.prefill, input_tokens, span)
    if prefilling is None:
        return None
    prefilling_share = deployment.prefill.devices / deployment.devices
    watts, low_w, high_w = (
        decoding_w * (1 - prefilling_share) + prefilling_w * prefilling_share
        for decoding_w, prefilling_w in zip(decoding[1:], prefilling[1:], strict=True)
    )
    return Drawn(decoding.energy_j + prefilling.energy_j, watts, low_w, high_w)


def drawn_by(power: Power, activity: Activity, busy_s: float, waiting_s: float, devices: int) -> Drawn:
    """Return power and energy from the busy and idle seconds of all replicas; `devices` is the number per replica."""
    shares = activity.shares_of(busy_s)
    watts, (low_w, high_w) = float(power.watts(shares)), power.interval_w(shares)
    return Drawn(devices * (watts * busy_s + power.idle_w * waiting_s), watts, float(low_w), float(high_w))


class Served(NamedTuple):
    """Requests that replicas have served, or would serve."""

    requests: float
    prompt_tokens: float  # of a request, that are computed
    cached_tokens: float  # of its prompt, that are found
    iterations: float  # that decode
    sequences: float  # that each of them decodes
    context: float  # their mean context


def served_activity(outcomes: Sequence[Outcome], deployment: Deployment, input_tokens: int) -> Activity:
    """Return what one device of each replica does in all iterations together.

    The iterations are taken to be alike: each decodes the mean number of sequences at their mean context.
    """
    iterations = sum(outcome.iterations for outcome in outcomes)
    outputs = np.concatenate([outcome.output_tokens for outcome in outcomes]).astype(np.float64)
    requests, decoded = len(outputs), float(np.maximum(outputs - 1, 0).sum())
    prompt_tokens = sum(outcome.computed_tokens for outcome in outcomes) / requests
    mean_input = input_tokens / requests
    served = Served(
        requests=requests,
        prompt_tokens=prompt_tokens,
        cached_tokens=max(mean_input - prompt_tokens, 0.0),
        iterations=iterations if decoded else 0,
        sequences=decoded / deployment.options.speculation.tokens_per_iteration / max(iterations, 1),
        context=decoded_context(mean_input, outputs),
    )
    return activity_of(deployment, served)


def decoded_context(prompt_tokens: float, output_tokens: Any) -> float:
    """Return the mean context of the iterations that decode answers to prompts of a mean length."""
    outputs = np.asarray(output_tokens, dtype=np.float64)
    return prompt_tokens + float((outputs**2).sum() / outputs.sum()) / 2


def activity_of(deployment: Deployment, served: Served) -> Activity:
    """Return what one device of a replica does for some requests."""
    speculation, timer = deployment.options.speculation, deployment.timer
    total = Activity()
    if served.iterations:
        sequences, context = served.sequences, served.context
        drafted = speculation.draft_length + 1
        decoding = timer.decode_activity(sequences, context, drafted)
        for number, tokens, _ in speculation.draft_passes:
            if speculation.heads:
                block = timer.decode_activity(sequences, context, tokens)
                decoding = decoding.plus(block.times(number / deployment.on_device.workload.network.blocks))
            elif deployment.draft_timer is not None:
                drafting = deployment.draft_timer.decode_activity(sequences, context, tokens)
                decoding = decoding.plus(drafting.times(number))
        total = decoding.times(served.iterations)
    if served.prompt_tokens >= 1:
        reading = timer.prompt_activity(served.prompt_tokens, served.cached_tokens)
        total = total.plus(reading.times(served.requests))
    return total


def busy_energy_j(deployment: Deployment, served: Served, busy_s: float) -> float | None:
    """Return the energy of the devices of a replica that serves requests in some seconds without a pause.

    None if they draw unknown power.
    """
    placed = deployment.on_device
    device = placed.machine.device
    power = power_of(device, has_experts=placed.workload.has_experts)
    watts = device.power_w
    if power is not None:
        shares = activity_of(deployment, served).shares_of(busy_s)
        watts = float(power.watts(shares))
    return None if watts is None else placed.devices * watts * busy_s


def idle_w_of(deployment: Deployment) -> float:
    """Return the power of a waiting device of a deployment, as `draw_power` has it; 0 where it is unknown."""
    device = deployment.on_device.machine.device
    power = power_of(device, has_experts=deployment.on_device.workload.has_experts)
    if power is None:
        return device.power_w or 0.0
    return power.idle_w

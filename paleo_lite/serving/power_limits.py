"""Iterations under a power limit below that of the data sheet: slower where they would draw more.

Decoding draws less than the rated power, so that a limit that is not far below it costs little; iterations with prompts
draw all of it. The factor of the times is taken by the number of new tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..machines import Device
from ..timing.energy import Power, power_of
from .backend import Backend
from .iteration_times import IterationTimes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

TYPICAL_CONTEXT = 2048
"""Context at which the power of an iteration is computed."""


def under_power_limit(times: IterationTimes, backend: Backend, device: Device) -> IterationTimes:
    """Return the times of iterations under the power limit of the device; the same ones if it is not below the rated.

    Parameters
    ----------
    times : IterationTimes
        Times at the rated limit.
    backend : Backend
        What times the iterations.
    device : Device
        The device.
    """
    power, rated_w = power_of(device), device.rated_power_w
    if power is None or rated_w is None or power.limit_w >= rated_w:
        return times
    largest = len(times.token_s) - 1
    sizes = np.unique(np.append(2 ** np.arange(int(np.log2(largest)) + 1), largest))
    speeds = [_step_speed(times, backend, power, int(size)) for size in sizes]
    every = [float(speed) for speed in np.interp(np.arange(largest + 1), sizes, speeds)]
    return msgspec.structs.replace(
        times.times_factors([1 / speed for speed in every]),
        relative_low=times.relative_low,
        relative_high=times.relative_high,
        limited_speed=every,
    )


def _step_speed(times: IterationTimes, backend: Backend, power: Power, tokens: int) -> float:
    """Return the speed of an iteration of so many new tokens, relative to that without a limit.

    More tokens than sequences can decode are those of a prompt.
    """
    context = min(TYPICAL_CONTEXT, int(times.contexts[-1]))
    if -(-tokens // times.attention_data) < len(times.decode_attention_s):
        activity = backend.decode_activity(tokens, context)
        time_s = times.iteration_s(tokens, float(tokens * context))
    else:
        tokens = min(tokens, len(times.prompt_attention_s) - 1)
        activity = backend.prompt_activity(tokens)
        time_s = times.iteration_s(0, 0.0, [(0, tokens)], 1)
    return float(power.speed(activity.shares_of(time_s)))

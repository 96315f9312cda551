"""Fit of the power model to measured power and times of steps under power limits.

``power_limits.csv`` holds measurements of Zeus (You, Chung and Chowdhury, NSDI 2023), from
https://github.com/ml-energy/zeus, Apache-2.0, ``examples/research_reproducibility/zeus_nsdi23/trace`` at commits
43297f6 (V100), 048db45 (A40) and 3db0d49 (Quadro RTX 6000, P100): seconds of an epoch and average power in PyTorch, by
power limit. ResNet-50 is trained on ImageNet, BERT on SQuAD, NCF on MovieLens. The Quadro RTX 6000 has the chip and the
memory of the TITAN RTX. Sequences of SQuAD have different lengths, so that BERT's work is unknown, but not its slowdown
and power. NCF hardly computes: its power is that of a waiting device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from scipy.optimize import least_squares

from paleo_lite.machines import Device, find_device
from paleo_lite.machines.registry import limit_power
from paleo_lite.timing.power import PowerModel, limited_fraction, memory_group_of

from .tables import rows_of

MEASURED = Path(__file__).with_name("power_limits.csv")

ZEUS = "Zeus (You et al., NSDI 2023)"
"""Source of the measurements."""

WAITING = "ncf"
"""Network that shows the power of a waiting device."""

LOWEST_SHARE = 0.33
"""Lowest limit that the fit uses, relative to the rated one: below, cards exceed the limit or fall to their lowest
clocks."""

WAITING_FLOOR = 0.7
"""Share of a waiting device's power that does not depend on the clock.

With a device held out, the speeds under limits from 33% on are 7.8% off with 0.7, 14.3% with 1, and 9.4% with 0.5.
"""

RECENT_LOWEST_CLOCK = 0.6
"""Clock at which recent devices reach their lowest voltage, relative to the clock that they hold without a limit.

llama-bench of an RTX PRO 6000 under 200 and 300 W, whose prompts keep 0.51 and 0.72 of their speed. The devices of
Zeus, of 2016 to 2020, reach it at about 0.85.
"""

SCATTER = 0.05
"""Deviation of the logarithm of a measured ratio around the model."""


class LimitedStep(NamedTuple):
    """A measured step under a power limit."""

    device: Device  # device with its rated limit
    network: str
    batch_size: int
    # Power limit and average power in watts.
    limit_w: float
    power_w: float
    speed: float  # speed relative to that at the rated limit
    epoch_s: float  # seconds of an epoch

    @property
    def is_rated(self) -> bool:
        """Whether the limit is the rated one."""
        return self.limit_w == self.device.power_w


def limited_steps() -> list[LimitedStep]:
    """Return the measured steps."""
    rows = list(rows_of(MEASURED))
    rated_s = {}
    for row in rows:
        if row["limit_w"] == row["rated_w"]:
            rated_s[row["gpu"], row["network"], row["batch_size"]] = float(row["epoch_s"])
    steps = []
    for row in rows:
        device = limit_power(find_device(row["gpu"]), float(row["rated_w"]))
        device = msgspec.structs.replace(device, rated_power=None)
        epoch_s = float(row["epoch_s"])
        steps.append(
            LimitedStep(
                device=device,
                network=row["network"],
                batch_size=int(row["batch_size"]),
                limit_w=float(row["limit_w"]),
                power_w=float(row["power_w"]),
                speed=rated_s[row["gpu"], row["network"], row["batch_size"]] / epoch_s,
                epoch_s=epoch_s,
            )
        )
    return steps


def base_shares(steps: Sequence[LimitedStep]) -> dict[str, float]:
    """Return the power of waiting devices relative to the rated limit, by group of memory."""
    shares: dict[str, list[float]] = {}
    for step in steps:
        if step.network == WAITING:
            shares.setdefault(memory_group_of(step.device), []).append(step.power_w / step.limit_w)
    return {group: round(float(np.mean(values)), 3) for group, values in shares.items()}


def fit_limits(model: PowerModel, steps: Iterable[LimitedStep]) -> PowerModel:
    """Return the model with the shares and the slope of older devices that fit the speeds under lower limits."""
    used = [step for step in steps if is_evidence_of_limits(step)]

    def with_parameters(parameters: np.ndarray) -> PowerModel:
        busy_share, slope = (float(value) for value in parameters)
        slopes = {"older": slope, "recent": round(RECENT_LOWEST_CLOCK**-2, 4)}
        return msgspec.structs.replace(
            model, busy_share=busy_share, low_voltage_slope=slopes, waiting_floor=WAITING_FLOOR
        )

    def residuals(parameters: np.ndarray) -> np.ndarray:
        return np.array([speed_error(step, with_parameters(parameters)) for step in used]) / SCATTER

    solution = least_squares(residuals, [0.85, 1.6], loss="soft_l1", bounds=([0.5, 1.0], [1.2, 3.0])).x
    return with_parameters(np.round(solution, 4))


def is_evidence_of_limits(step: LimitedStep) -> bool:
    """Return whether a step was measured under a limit that is lower than the rated one, but not extremely low."""
    rated_w = step.device.power_w
    assert rated_w is not None
    return step.network != WAITING and LOWEST_SHARE <= step.limit_w / rated_w < 1


def speed_error(step: LimitedStep, model: PowerModel) -> float:
    """Return the logarithm of the predicted over the measured speed."""
    device = limit_power(step.device, step.limit_w)
    return float(np.log(limited_fraction(device, model) / step.speed))


def fit_power_limits(model: PowerModel, steps: Sequence[LimitedStep] | None = None) -> PowerModel:
    """Return the model with the parameters of limits, and their error with a device held out."""
    steps = limited_steps() if steps is None else steps
    fitted = fit_limits(msgspec.structs.replace(model, base_share=base_shares(steps)), steps)
    speed_errors = held_out_limits(fitted, steps)
    return msgspec.structs.replace(fitted, limit_deviation=round(float(np.sqrt(np.mean(np.square(speed_errors)))), 3))


def held_out_limits(model: PowerModel, steps: Sequence[LimitedStep]) -> list[float]:
    """Return the errors of speeds as logarithms, with each device held out."""
    errors = []
    for name in sorted({step.device.id for step in steps}):
        fitted = fit_limits(model, [step for step in steps if step.device.id != name])
        errors += [
            speed_error(step, fitted) for step in steps if step.device.id == name and is_evidence_of_limits(step)
        ]
    return errors

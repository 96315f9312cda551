"""Fit of the constants of reinforcement learning to published steps.

Every phase is a sum of terms that each constant multiplies or divides, so that one evaluation of each step without
constants is enough for all fits; on devices apart the slower side counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from scipy.optimize import least_squares

from paleo_lite.api.reinforcement import predict_rl
from paleo_lite.engines.kernels import ExchangeKernel
from paleo_lite.reinforcement.constants import RlConstants, rl_constants
from paleo_lite.reinforcement.rollouts import BLACKWELL, has_coherent_host

from .published import Row

PRIOR = {
    "iteration_s": (np.log(1e-3), 1.0),
    "token_s": (np.log(1e-4), 1.0),
    "coherent_host": (np.log(1.8), 0.5),
    "blackwell_kernels": (np.log(1.2), 0.2),
    "across_nodes_s": (np.log(5e-5), 0.7),
    "slowdown": (np.log(1.1), 0.25),
    "tensor_s": (np.log(1.5e-4), 0.7),
    "port_share": (np.log(0.7), 0.3),
    "unpinned_share": (np.log(0.12), 0.5),
    "step_s": (np.log(3.0), 0.7),
    "sample_s": (np.log(1e-3), 0.7),
}
"""Mean and deviation of the logarithm of each fitted constant."""

RESIDUAL = 0.12
"""Expected deviation of the logarithm of the times."""

ROBUST = 2.0
"""Deviations from which an error counts less: some published steps have causes that are not published."""

WITHOUT = {
    "iteration_s": 0.0, "token_s": 0.0, "across_nodes_s": 0.0, "slowdown": 1.0, "tensor_s": 0.0, "converted_s": 0.0,
    "port_share": 1.0, "unpinned_share": 1.0, "wake_s": 0.0, "step_s": 0.0, "sample_s": 0.0, "blackwell_kernels": 1.0,
}  # fmt: skip
"""Constants with which a step has only its kernels, wires and bytes."""


class Pieces(NamedTuple):
    """What the constants multiply in a step."""

    row: Row
    kernels_s: float  # rollouts without what the constants add
    iterations: float  # of an engine
    tokens: float  # that an engine decodes
    exchanges: float  # between nodes
    is_coherent: bool
    is_blackwell: bool
    passes_s: float  # all passes of the trainer
    tensors: float
    wire_s: float  # weights at the whole rate of the links
    swap_s: float  # state at the whole rate of the link to the host
    samples: float
    steps_off: int
    constant_s: float  # wake of the engine


def pieces_of(row: Row) -> Pieces:
    """Return the pieces of a step."""
    shipped = rl_constants()
    without = msgspec.structs.replace(shipped, **WITHOUT)
    found = predict_rl(row.question, without)
    rollouts, transfer, deployment = found.parts.rollouts, found.parts.transfer, found.deployment
    assert rollouts is not None and transfer is not None and deployment is not None
    kernels = deployment.on_device.kernels
    exchanges = 0
    if kernels is not None and row.question.rollout_tensor > found.devices.topology.devices_per_node:
        counted = kernels.of_iteration("decode", 1)
        exchanges = sum(one.count for one in counted if isinstance(one.kernel, ExchangeKernel)) * rollouts.iterations
    return Pieces(
        row=row,
        kernels_s=found.step.phases["generation"],
        iterations=rollouts.iterations,
        tokens=(found.mean_tokens - row.question.prompt_tokens) * row.question.samples / rollouts.engines,
        exchanges=exchanges,
        is_coherent=has_coherent_host(found.devices.device),
        is_blackwell=found.devices.device.architecture == BLACKWELL,
        passes_s=found.step.trainer_s,
        tensors=transfer.tensors,
        wire_s=transfer.time_s,
        swap_s=found.parts.swap_s,
        samples=row.question.samples,
        steps_off=row.question.steps_off,
        constant_s=shipped.wake_s if found.devices.is_colocated else 0.0,
    )


def time_of(pieces: Pieces, constants: dict[str, float]) -> float:
    """Return the seconds of a step under some constants."""
    host = constants["coherent_host"] if pieces.is_coherent else 1.0
    kernels = constants["blackwell_kernels"] if pieces.is_blackwell else 1.0
    generation_s = pieces.kernels_s * kernels + pieces.exchanges * constants["across_nodes_s"]
    generation_s += host * (constants["token_s"] * pieces.tokens + constants["iteration_s"] * pieces.iterations)
    trainer_s = pieces.passes_s * constants["slowdown"]
    time_s = max(generation_s, trainer_s) if pieces.steps_off else generation_s + trainer_s
    time_s += pieces.wire_s / constants["port_share"] + pieces.tensors * constants["tensor_s"]
    time_s += pieces.swap_s / constants["unpinned_share"] + pieces.constant_s
    return time_s + constants["step_s"] + constants["sample_s"] * pieces.samples


def fit(measured: Sequence[Pieces]) -> dict[str, float]:
    """Fit the constants; the steps of one network on one device share the weight of five."""
    groups = [(pieces.row.network, pieces.row.gpu) for pieces in measured]
    weights = np.array([np.sqrt(min(5 / groups.count(group), 1.0)) for group in groups])
    means, deviations = np.array(list(PRIOR.values())).T

    def residuals(values: Any) -> Any:
        constants = dict(zip(PRIOR, np.exp(values)))
        errors = np.log([time_of(pieces, constants) / pieces.row.time_s for pieces in measured]) / RESIDUAL
        return np.concatenate([weights * ROBUST * np.arctan(errors / ROBUST), (values - means) / deviations])

    return dict(zip(PRIOR, map(float, np.exp(least_squares(residuals, means).x))))


def with_fit(constants: RlConstants, measured: Sequence[Pieces]) -> RlConstants:
    """Return constants of which those are replaced that are fitted to some steps."""
    fitted = {name: float(f"{value:.4g}") for name, value in fit(measured).items()}
    return msgspec.structs.replace(constants, **fitted)


def hold_out(measured: Sequence[Pieces], group: Callable[[Row], str]) -> list[tuple[Row, RlConstants]]:
    """Return each step with the constants that were fitted to the steps of all other groups."""
    judged = []
    for name in sorted({group(pieces.row) for pieces in measured}):
        constants = with_fit(rl_constants(), [pieces for pieces in measured if group(pieces.row) != name])
        judged += [(pieces.row, constants) for pieces in measured if group(pieces.row) == name]
    return judged

"""Fit of the constants of reinforcement learning to published steps, and to parts that sources publish apart.

Every phase is a sum of terms that each constant multiplies or divides, so that one evaluation of each step without
constants is enough for all fits; on devices apart the slower side counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from scipy.optimize import least_squares

from paleo_lite.api.reinforcement import predict_rl
from paleo_lite.engines.kernels import ExchangeKernel
from paleo_lite.reinforcement.constants import RlConstants, rl_constants
from paleo_lite.reinforcement.rollouts import BLACKWELL
from paleo_lite.reinforcement.weights import has_coherent_host

from .fit_parts import FITTED_TOGETHER, FittedPart, part_s, share_of
from .published import RlMeasurement

PRIOR = {
    "iteration_s": (np.log(1e-3), 1.0),
    "token_s": (np.log(1e-4), 1.0),
    "coherent_host": (np.log(1.8), 0.5),
    "blackwell_kernels": (np.log(1.2), 0.2),
    "across_nodes_s": (np.log(5e-5), 0.7),
    "slowdown": (np.log(1.1), 0.25),
    "tensor_s": (np.log(1.5e-4), 0.7),
    "port_share": (np.log(0.7), 0.3),
    "gathered_master_bytes_per_s": (np.log(5e10), 1.0),  # over NVLink, into memory that is reserved and freed
    "unpinned_share": (np.log(0.12), 0.5),
    "step_s": (np.log(3.0), 0.7),
    "sample_s": (np.log(1e-3), 0.7),
    "broadcast_share": (np.log(0.25), 0.5),
    "resharding_share": (np.log(0.6), 0.5),
    "resharded_tensor_s": (np.log(5e-5), 0.7),
    "converted_s": (np.log(1e-4), 0.7),
    "handover_s": (np.log(0.1), 0.7),
    "wake_s": (np.log(2.5), 0.5),
    "other_slowdown": (np.log(1.5), 0.6),  # of kernels that are neither attention nor products
    "sharded_share": (np.log(0.3), 0.5),
    "unit_s": (np.log(5e-4), 0.7),  # the hooks of FSDP alone take 0.18 ms; then exchange, casts and products
}
"""Mean and deviation of the logarithm of each fitted constant."""

RESIDUAL = 0.12
"""Expected deviation of the logarithm of the times of steps."""

RESIDUAL_OF_PARTS = 0.35
"""Expected deviation of the logarithm of the times of parts, which many sources publish under many circumstances."""

ROBUST = 2.0
"""Deviations from which an error counts less: some published steps have causes that are not published."""

WITHOUT = {
    "iteration_s": 0.0, "token_s": 0.0, "across_nodes_s": 0.0, "slowdown": 1.0, "tensor_s": 0.0, "converted_s": 0.0,
    "port_share": 1.0, "unpinned_share": 1.0, "wake_s": 0.0, "step_s": 0.0, "sample_s": 0.0, "blackwell_kernels": 1.0,
    "broadcast_share": 1.0, "resharding_share": 1.0, "handover_s": 0.0,
}  # fmt: skip
"""Constants with which a step has only its kernels, wires and bytes."""


class RlPieces(NamedTuple):
    """What the constants multiply in a step."""

    row: RlMeasurement
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
    share: str  # constant of the rate of the links
    is_narrow: bool  # whether weights are converted to a narrower format
    is_colocated: bool  # whether the engine wakes


def pieces_of(row: RlMeasurement) -> RlPieces:
    """Return the pieces of a step."""
    shipped = rl_constants()
    without = msgspec.structs.replace(shipped, **WITHOUT)
    predicted = predict_rl(row.question, without)
    rollouts, transfer, deployment = predicted.parts.rollouts, predicted.parts.transfer, predicted.deployment
    assert rollouts is not None and transfer is not None and deployment is not None
    kernels = deployment.on_device.kernels
    exchanges = 0
    if kernels is not None and row.question.rollout_tensor > predicted.devices.topology.devices_per_node:
        counted = kernels.of_iteration("decode", 1)
        exchanges = (
            sum(launched.count for launched in counted if isinstance(launched.kernel, ExchangeKernel))
            * rollouts.iterations
        )
    return RlPieces(
        row=row,
        kernels_s=predicted.step.phases["generation"],
        iterations=rollouts.iterations,
        tokens=(predicted.mean_tokens - row.question.prompt_tokens) * row.question.samples / rollouts.engines,
        exchanges=exchanges,
        is_coherent=has_coherent_host(predicted.devices.device),
        is_blackwell=predicted.devices.device.architecture == BLACKWELL,
        passes_s=predicted.step.trainer_s,
        tensors=transfer.tensors,
        wire_s=transfer.time_s,
        swap_s=predicted.parts.swap_s,
        samples=row.question.samples,
        steps_off=row.question.used_steps_off,
        share=share_of(row, predicted.devices),
        is_narrow=row.question.rollout_precision == "fp8",
        is_colocated=predicted.devices.is_colocated,
    )


def time_of(pieces: RlPieces, constants: dict[str, float]) -> float:
    """Return the seconds of a step under some constants."""
    host = constants["coherent_host"] if pieces.is_coherent else 1.0
    kernels = constants["blackwell_kernels"] if pieces.is_blackwell else 1.0
    generation_s = pieces.kernels_s * kernels + pieces.exchanges * constants["across_nodes_s"]
    generation_s += host * (constants["token_s"] * pieces.tokens + constants["iteration_s"] * pieces.iterations)
    trainer_s = pieces.passes_s * constants["slowdown"]
    time_s = max(generation_s, trainer_s) if pieces.steps_off else generation_s + trainer_s
    tensor_s = constants["tensor_s"] + (constants["converted_s"] if pieces.is_narrow else 0.0)
    time_s += pieces.wire_s / constants[pieces.share] + pieces.tensors * tensor_s + constants["handover_s"]
    time_s += pieces.swap_s / constants["unpinned_share"] + (constants["wake_s"] if pieces.is_colocated else 0.0)
    return time_s + constants["step_s"] + constants["sample_s"] * pieces.samples


def fit(measured: Sequence[RlPieces], parts: Sequence[FittedPart]) -> dict[str, float]:
    """Fit the constants.

    The steps of one network on one device share the weight of five, and the parts of a source that of one.
    """
    measured_s = [pieces.row.time_s or math.nan for pieces in measured]
    groups = [(pieces.row.network, pieces.row.gpu) for pieces in measured]
    weights = np.array([np.sqrt(min(5 / groups.count(group), 1.0)) for group in groups])
    sources = [part.row.source for part in parts]
    weights_of_parts = np.array([np.sqrt(1 / sources.count(source)) for source in sources])
    means, deviations = np.array(list(PRIOR.values())).T

    def residuals(values: Any) -> Any:
        constants = dict(zip(PRIOR, np.exp(values)))
        errors = np.log([time_of(pieces, constants) for pieces in measured]) - np.log(measured_s)
        errors_of_parts = [np.log(part_s(part, constants) / part.measured_s) for part in parts]
        return np.concatenate([
            weights * _robust(errors / RESIDUAL),
            weights_of_parts * _robust(np.array(errors_of_parts) / RESIDUAL_OF_PARTS),
            (values - means) / deviations,
        ])  # fmt: skip

    return dict(zip(PRIOR, map(float, np.exp(least_squares(residuals, means).x))))


def _robust(errors: Any) -> Any:
    """Return errors in deviations, of which large ones count less."""
    return ROBUST * np.arctan(errors / ROBUST)


def with_fit(constants: RlConstants, measured: Sequence[RlPieces], parts: Sequence[FittedPart] = ()) -> RlConstants:
    """Return constants of which those are replaced that are fitted to some steps and parts."""
    fitted = {name: float(f"{value:.4g}") for name, value in fit(measured, parts).items()}
    fitted |= {name: fitted[other] for name, other in FITTED_TOGETHER.items() if other in fitted}
    return msgspec.structs.replace(constants, **fitted)


def hold_out(
    measured: Sequence[RlPieces], group: Callable[[RlMeasurement], str], parts: Sequence[FittedPart] = ()
) -> list[tuple[RlMeasurement, RlConstants]]:
    """Return each step with the constants that were fitted to the steps and parts of all other groups."""
    judged = []
    for name in sorted({group(pieces.row) for pieces in measured}):
        others = [pieces for pieces in measured if group(pieces.row) != name]
        constants = with_fit(rl_constants(), others, [part for part in parts if group(part.row) != name])
        judged += [(pieces.row, constants) for pieces in measured if group(pieces.row) == name]
    return judged

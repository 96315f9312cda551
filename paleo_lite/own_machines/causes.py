"""Measured speeds of one's own machine as evidence: the causes of its times, and the constants that they lead to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import msgspec

from ..calibration.evidence_file import EvidenceCalibration
from ..calibration.posterior import elasticities, remaining_width
from ..machines import Device
from .contents import Contents
from .step import DEVIATIONS_AT_90, BackendConstants, prompt_s, token_s

KIND = "local"

TOKEN, PROMPT = "token_s", "prompt_s"
"""Figures that are evidence: seconds of a token of the answer, and of a prompt."""

READING, UNPACKING, WAITS, ARITHMETIC = "reading", "unpacking", "waits", "arithmetic"

CAUSES = (READING, UNPACKING, WAITS, ARITHMETIC)
"""Causes of the times of llama.cpp and its like: bandwidth, unpacking of numbers, waits of blocks, and prompts."""


def local_traits(contents: Contents, device: Device, backend: str, source: str = "") -> dict[str, str]:
    """Return the traits by which measurements are compared: source, engine, device, format, network, experts.

    Products of experts are many and small, and a machine is off by another factor in them than in large ones.
    """
    traits = {
        "source": source,
        "engine": backend,
        "device": device.id,
        "format": contents.weights,
        "network": contents.name,
    }
    return {**traits, "experts": "yes"} if contents.has_experts else traits


def multiply_causes(constants: BackendConstants, logs: Mapping[str, float]) -> BackendConstants:
    """Return constants in which the time of each cause is multiplied by a factor, given as its logarithm."""
    reading, unpacking, waits, arithmetic = (math.exp(logs.get(cause, 0.0)) for cause in CAUSES)
    return msgspec.structs.replace(
        constants,
        share=constants.share / reading,
        cache_share=constants.cache_share / reading,
        unpack={group: value / unpacking for group, value in constants.unpack.items()},
        block_s=constants.block_s * waits,
        efficiency={group: value / arithmetic for group, value in constants.efficiency.items()},
        attention_efficiency=constants.attention_efficiency / arithmetic,
    )


def shares_of_causes(constants: BackendConstants, seconds: Callable[[BackendConstants], float]) -> dict[str, float]:
    """Return the elasticity of a time with respect to the factor of each cause, normalised to a sum of 1."""
    return elasticities(CAUSES, lambda logs: math.log(seconds(multiply_causes(constants, logs))))


def shares_of_token(
    contents: Contents, device: Device, constants: BackendConstants, context: float
) -> dict[str, float]:
    """Return the shares of the causes in the time of a token behind a context."""
    return shares_of_causes(constants, lambda varied: token_s(contents, device, varied, context))


def shares_of_prompt(contents: Contents, device: Device, constants: BackendConstants, tokens: int) -> dict[str, float]:
    """Return the shares of the causes in the time of a prompt."""
    return shares_of_causes(constants, lambda varied: prompt_s(contents, device, varied, tokens))


def calibrated_constants(
    calibration: EvidenceCalibration,
    contents: Contents,
    device: Device,
    backend: str,
    constants: BackendConstants,
    context: float,
    prompt_tokens: int,
) -> BackendConstants:
    """Return the constants of a backend with what measured machines say of this one."""
    posterior = calibration.posterior(KIND)
    factors = posterior.factors(local_traits(contents, device, backend))
    merged = contents.merged()
    deviations = {}
    for figure, shares, deviation in (
        (TOKEN, shares_of_token(merged, device, constants, context), constants.deviation),
        (PROMPT, shares_of_prompt(merged, device, constants, prompt_tokens), constants.prompt_deviation),
    ):
        _, after, before = factors.log_time(shares, posterior.prior.noise[figure])
        reach = DEVIATIONS_AT_90 * deviation
        deviations[figure] = deviation * float(remaining_width(after, before, (-reach, reach)))
    moved = multiply_causes(constants, dict(zip(factors.causes, factors.mean.tolist())))
    return msgspec.structs.replace(
        moved,
        deviation=deviations[TOKEN],
        prompt_deviation=deviations[PROMPT],
    )

"""Causes of a server's times: measured servers correct the forecast of another server cause by cause.

A cause is a part of a time that can be wrong by a factor of its own: launches, kernels of some class, exchanges between
devices, the host, prompts. `paleo_lite.calibration.posterior` learns the factors from measured servers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from .constants import Company, EngineConstants, Learned

HOST, LAUNCHES, PROMPTS, FRONT_END = "host", "launches", "prompts", "front end"

TIME_PER_TOKEN, FIRST_TOKEN = "tpot_s", "ttft_s"
"""Figures of servers that are evidence: the time per output token, and the time to the first one."""

CAUSES = {
    "products": "products",
    "pointwise": "products",
    "experts": "experts",
    "prompt attention": "attention",
    "decode attention": "attention",
    "single decode attention": "attention",
    "latent prompt attention": "attention",
    "latent decode attention": "attention",
    "all-reduce": "exchanges",
    "expert exchange": "exchanges",
}
"""Cause of all but the shortest kernels of a class, by class."""


def with_factors(constants: EngineConstants, logs: Mapping[str, float], learned: Learned) -> EngineConstants:
    """Return constants in which the time of each cause is multiplied by a factor, given as its logarithm."""
    launch, prompts = logs[LAUNCHES], logs[PROMPTS]
    company = [Company(kernels, "", "", "", False, launch, logs[cause]) for kernels, cause in CAUSES.items()]
    company.append(Company("", "", "", "", True, prompts, prompts))
    hosts = {}
    for engine, host in constants.hosts.items():
        iteration, request = math.exp(logs[HOST]), math.exp(logs[FRONT_END])
        hosts[engine] = msgspec.structs.replace(
            host,
            iteration_s=host.iteration_s * iteration,
            logit_s=host.logit_s * iteration,
            nucleus_logit_s=host.nucleus_logit_s * iteration,
            request_s=host.request_s * request,
            request_token_s=host.request_token_s * request,
            request_kernel_s=host.request_kernel_s * request,
            request_expert_s=host.request_expert_s * request,
            request_iterations=host.request_iterations * request,
        )
    return msgspec.structs.replace(constants, company=(*constants.company, *company), hosts=hosts, learned=learned)

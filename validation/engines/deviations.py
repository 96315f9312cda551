"""Deviations of steps and first tokens of servers: what their intervals allow for beside the errors of kernels.

The logarithm of the time per token of a server that no fit knows has the variance of its kernels, of its host and of
what the servers of its source have in common, and that of the errors of servers in the fit, which factors of classes of
kernels cannot follow. The last is not that of held-out networks (2.9 times as large): their errors contain those of
kernels and host, which are in the interval by themselves. The deviation with which the intervals of all servers score
best where their network is held out is 0.090, and the errors in the fit have 0.0895.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from scipy.special import stdtrit

from paleo_lite.engines.constants import EngineConstants, ServerSpread
from paleo_lite.engines.records.record import SEQUENCE_FACTOR
from paleo_lite.engines.step import UNKNOWN_HOST
from paleo_lite.machines import find_device
from paleo_lite.timing.intervals import Z_90, log_reach

from .steps import HELD_OUT_TOLERANCE, StepParts, fit_steps, informs_first_token, predict_steps, spread_of


def step_deviation(part: StepParts, constants: EngineConstants) -> float:
    """Return the standard deviation of the logarithm of the time per token of a server, its host included.

    Kernels and host are independent, as in the intervals that commands state.
    """
    server = part.server
    device, host = find_device(server.gpu), constants.hosts.get(server.engine, UNKNOWN_HOST)
    of_kernels = constants.step_variance(part.variance, device, server.engine, has_experts=part.has_experts)
    logit_s = host.logit_s + (host.nucleus_logit_s if server.has_nucleus else 0.0)
    sequences_s = logit_s * part.logits * server.concurrency / server.attention_data
    reach_s = host.iteration_s * np.log(host.interval_factor) + sequences_s * np.log(SEQUENCE_FACTOR)
    share = reach_s / predict_steps(part, constants)[0]
    return float(log_reach(np.sqrt(of_kernels), 1 / Z_90, share))


def with_first_token_deviations(
    fitted: EngineConstants, parts: Sequence[StepParts], constants: EngineConstants
) -> EngineConstants:
    """Return fitted constants with the deviations of first tokens of servers whose network is held out.

    An engine whose first tokens are those of one network alone has the deviation of all engines: one network says
    little of the next.
    """
    errors: dict[str, list[float]] = {engine: [] for engine in fitted.hosts}
    networks: dict[str, set[str]] = {engine: set() for engine in fitted.hosts}
    judged = [part for part in parts if informs_first_token(part.server)]
    for part in judged:
        networks[part.server.engine].add(part.server.network)
    for network in sorted({part.server.network for part in judged}):
        rest = [part for part in parts if part.server.network != network]
        held_out = fit_steps(rest, constants, HELD_OUT_TOLERANCE)
        for part in judged:
            server = part.server
            if server.network == network and server.ttft_s is not None:
                ttft_s = predict_steps(part, held_out)[1]
                errors[server.engine].append(abs(float(np.log(ttft_s / server.ttft_s))))
    every = [error for of_engine in errors.values() for error in of_engine]
    hosts = {
        engine: msgspec.structs.replace(
            host, first_token_deviation=spread_of(every if len(networks[engine]) == 1 else errors[engine])
        )
        for engine, host in fitted.hosts.items()
    }
    return msgspec.structs.replace(fitted, hosts=hosts)


class SourceBiases(NamedTuple):
    """Median errors of the logarithm of the time per token of each source, with the source held out."""

    # Of all servers, and of those of networks without experts.
    every: dict[str, float]
    dense: dict[str, float]


def source_biases(parts: Sequence[StepParts], constants: EngineConstants) -> SourceBiases:
    """Return the biases of all sources."""
    biases = SourceBiases({}, {})
    for source in sorted({part.server.source for part in parts}):
        of_source = [part for part in parts if part.server.source == source]
        fitted = fit_steps([part for part in parts if part.server.source != source], constants, HELD_OUT_TOLERANCE)
        errors = [float(np.log(predict_steps(part, fitted)[0] / part.server.step_s)) for part in of_source]
        biases.every[source] = float(np.median(errors))
        of_dense = [error for part, error in zip(of_source, errors) if not part.has_experts]
        if of_dense:
            biases.dense[source] = float(np.median(of_dense))
    return biases


def with_source_deviations(fitted: EngineConstants, biases: SourceBiases, held_out: str = "") -> EngineConstants:
    """Return fitted constants with the deviations between sources, without what one of them says.

    Mixtures have those of all servers: of the four sources that have them one is off by 36%, which says little of the
    next.
    """
    every, dense = (between_sources(values, held_out) for values in biases)
    return msgspec.structs.replace(
        fitted,
        spread=ServerSpread(fitted.spread.step, every),
        dense_spread=ServerSpread(fitted.dense_spread.step, dense),
    )


def between_sources(biases: dict[str, float], held_out: str = "") -> float:
    """Return the standard deviation of the biases of sources around 0, without that of one of them.

    Few sources say little of it: its normal quantile is that of Student's t with as many degrees of freedom.
    """
    others = [bias for name, bias in biases.items() if name != held_out]
    return round(float(np.sqrt(np.mean(np.square(others))) * stdtrit(len(others), 0.95) / Z_90), 3)

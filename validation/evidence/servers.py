"""Published servers as evidence: times per token and to the first token, beside forecasts without their network.

The constants of engines are fitted to most of these servers. For each network they are fitted again without it, so that
the errors are those of a network that no fit knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from paleo_lite.calibration.posterior import Observation, shares_of
from paleo_lite.engines.causes import CAUSES, FIRST_TOKEN, HOST, LAUNCHES, PROMPTS, TIME_PER_TOKEN
from paleo_lite.engines.constants import EngineConstants, engine_constants
from paleo_lite.engines.step import UNKNOWN_HOST
from paleo_lite.machines import find_device
from paleo_lite.serving.causes import first_token_shares
from paleo_lite.serving.learned import KIND
from paleo_lite.timing.intervals import Z_90

from ..engines.deviations import step_deviation
from ..engines.servers import PublishedServer, published_servers
from ..engines.steps import HELD_OUT_TOLERANCE, MOST_USERS, StepParts, fit_steps, is_fitted, parts_of, predict_steps
from .groups import Grouped


def measured_servers(data: Path) -> list[Grouped]:
    """Return the figures of published servers, with the server that each is of."""
    shipped = engine_constants()
    alone = msgspec.structs.replace(shipped, company=(), hosts={})
    parts = [parts_of(server, alone) for server in published_servers(data) if is_fitted(server)]
    figures: list[Grouped] = []
    for network in sorted({part.server.network for part in parts}):
        others = [part for part in parts if part.server.network != network]
        fitted = fit_steps(others, alone, HELD_OUT_TOLERANCE)
        for part in parts:
            if part.server.network == network:
                figures += _figures(part, fitted)
    return figures


def _figures(part: StepParts, constants: EngineConstants) -> Iterator[Grouped]:
    """Yield the figures of a server as evidence."""
    server = part.server
    traits = server_traits(server)
    tpot_s, _ = predict_steps(part, constants)
    # Users wait for iterations of others: like `serve`, the forecast of a first token knows no measured iteration.
    unmeasured = msgspec.structs.replace(part, server=msgspec.structs.replace(server, tpot_s=tpot_s))
    _, ttft_s = predict_steps(unmeasured, constants)
    seconds = _decode_seconds(part, constants)
    host = constants.hosts.get(server.engine, UNKNOWN_HOST)
    logits = part.logits * server.concurrency / server.attention_data
    logit_s = host.logit_s + (host.nucleus_logit_s if server.has_nucleus else 0.0)
    seconds[HOST] = host.iteration_s + logit_s * logits
    seconds[PROMPTS] = max(tpot_s - sum(seconds.values()), 0.0)
    deviation = step_deviation(part, constants)
    group, situation = tuple(traits.values()), f"{server.concurrency} {server.input_tokens:g} {server.output_tokens:g}"
    yield Grouped(
        group,
        Observation(
            KIND,
            TIME_PER_TOKEN,
            situation,
            traits,
            server.step_s,
            tpot_s,
            shares_of(seconds),
            interval_around(tpot_s, deviation),
        ),
    )
    is_steady = server.is_drawn and server.attention_data == 1 and server.concurrency <= MOST_USERS
    is_steady = is_steady and server.script.gathering is None
    if server.ttft_s and is_steady and np.isfinite(ttft_s):
        front_end_s = host.request_s + host.request_token_s * server.mean_input + host.request_iterations * tpot_s
        front_end_s += host.request_kernel_s * part.prompt_launches + host.request_expert_s * part.expert_layers
        shares = first_token_shares(
            shares_of(seconds), ttft_s=ttft_s, prompt_s=_prompt_s(part, constants), front_end_s=front_end_s
        )
        interval = interval_around(ttft_s, np.hypot(deviation, host.first_token_deviation))
        yield Grouped(group, Observation(KIND, FIRST_TOKEN, situation, traits, server.ttft_s, ttft_s, shares, interval))


def interval_around(seconds: float, deviation: float) -> tuple[float, float]:
    """Return the 90% interval that `serve` states of a time whose logarithm has some deviation."""
    factor = float(np.exp(Z_90 * deviation))
    return seconds / factor, seconds * factor


def server_traits(server: PublishedServer) -> dict[str, str]:
    """Return what published servers may have in common; the version of ML.ENERGY's is that of their task, too."""
    version = f"{server.version} {server.name.split()[1]}" if server.source == "mlenergy" else server.version
    return {
        "source": server.source,
        "engine": server.engine,
        "device": server.gpu,
        "format": f"{server.precision} {server.weights or ''}".strip(),
        "network": server.network,
        "division": f"{server.devices} {server.experts} {server.attention_data}",
        "version": version,
    }


def _decode_seconds(part: StepParts, constants: EngineConstants) -> dict[str, float]:
    """Return the seconds of the kernels of a decode step by cause."""
    server = part.server
    device = find_device(server.gpu)
    seconds = {LAUNCHES: 0.0}
    for cell, launch_s in part.decode.launch_s.items():
        launch, work = constants.company_of(cell[0], device, server.engine, cell[1], False)
        seconds[LAUNCHES] += launch * launch_s
        cause = CAUSES[cell[0]]
        seconds[cause] = seconds.get(cause, 0.0) + work * part.decode.work_s[cell]
    return seconds


def _prompt_s(part: StepParts, constants: EngineConstants) -> float:
    """Return the seconds of an iteration with a prompt."""
    server, prompt = part.server, part.prompt
    device = find_device(server.gpu)
    total_s = 0.0
    for cell, launch_s in prompt.launch_s.items():
        launch, work = constants.company_of(cell[0], device, server.engine, cell[1], True)
        total_s += launch * launch_s + work * prompt.work_s[cell]
    return total_s

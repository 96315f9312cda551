"""Published servers simulated as `paleo_lite.serve` does, with the shipped constants: latencies and output per second.

Most of these servers inform the fit of the constants, so that this table shows what the simulation adds to the errors
of steps (`validation.engines.hold_out` holds parts out); it is not a forecast of unseen servers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

import paleo_lite as pl
from paleo_lite.calibration.accuracy import interval_accuracy, interval_scores, relative_errors
from paleo_lite.engines.records.record import GREEDY, NUCLEUS
from paleo_lite.errors import DoesNotFit
from paleo_lite.reporting.document import Column, Document, Table

from ..columns import SCORED_COLUMNS, ScoredErrors
from .servers import PublishedServer, published_servers

STRIDE = 5
"""One server of so many is simulated."""

MOST_SEQUENCES = 1024
"""Larger servers are left out: they take long to simulate."""

MOST_REQUESTS = 2000

DRAWN_MEAN, DRAWN_DEVIATION = 0.9, 0.058
"""Mean and standard deviation of lengths drawn uniformly between 0.8 and 1.0 of the nominal one."""

FIGURES: dict[str, tuple[Callable[[PublishedServer], float | None], Callable[[Any], Any]]] = {
    "TPOT": (lambda server: server.tpot_s, lambda answer: answer.latencies["tpot_s"]["p50"]),
    "TTFT": (
        lambda server: server.ttft_s if server.was_warm else None,
        lambda answer: answer.latencies["ttft_s"]["mean"],
    ),
    "output per second": (lambda server: server.tokens_per_s, lambda answer: answer.figures["output_tokens_per_s"]),
}
"""Published figure of a server, if it can be judged, and the simulation's, by name."""


class SimulatedRow(ScoredErrors, frozen=True, kw_only=True):
    """Errors of a figure over some servers."""

    figure: str  # figure that is judged


class SimulatedServer(NamedTuple):
    """A server and its simulation."""

    server: PublishedServer
    answer: Any


def simulate_servers(data: Path, stride: int = STRIDE) -> list[SimulatedServer]:
    """Simulate one of every `stride` published servers that hold their network."""
    chosen = [
        server
        for server in published_servers(data)
        if server.source in ("serving", "mlenergy") and server.concurrency <= MOST_SEQUENCES
        and not (server.is_speculative or server.is_host_bound)
    ]  # fmt: skip
    simulated = []
    for server in chosen[::stride]:
        try:
            simulated.append(SimulatedServer(server, simulate_server(server)))
        except DoesNotFit:
            continue
    return simulated


def simulate_server(server: PublishedServer) -> Any:
    """Return the answer of `paleo_lite.serve` for the closed loop of a published server."""
    lengths: dict[str, Any] = {name: _lengths(server, tokens) for name, tokens in _tokens(server)}
    limits: dict[str, Any] = {}
    settings: dict[str, Any] = {"sampling": NUCLEUS if server.has_nucleus else GREEDY}
    script = server.script
    if script.receive_interval > 1:
        settings["receive_interval"] = script.receive_interval
    if script.stream_interval > 1:
        settings["stream_interval"] = script.stream_interval
    if not server.is_captured:
        settings["captured_sequences"] = 1
    if script.most_tokens is not None:
        limits["max_batched_tokens"] = script.most_tokens
    if script.memory_fraction is not None:
        limits["memory_fraction"] = script.memory_fraction
    if script.gathering is not None:
        iterations, share, most_tokens = script.gathering
        settings["batch_wait_iterations"] = iterations
        if share is not None:
            settings["batch_wait_share"] = share
        if most_tokens is not None:
            limits["max_batched_tokens"] = most_tokens
    if server.source == "mlenergy":
        limits = {"max_sequences": server.concurrency, "num_requests": _requests(server.concurrency)}
    return pl.serve(
        server.network, gpu=server.gpu, tensor=server.devices, precision=server.precision, weights=server.weights,
        kv_cache=server.kv_cache, engine=server.record, expert_parallel=server.experts,
        attention_data_parallel=server.attention_data, concurrency=server.concurrency,
        engine_settings=settings, **lengths, **limits,
    )  # fmt: skip


def _tokens(server: PublishedServer) -> Iterator[tuple[str, float]]:
    yield "input_tokens", server.input_tokens
    yield "output_tokens", server.output_tokens


def _lengths(server: PublishedServer, tokens: float) -> int | str:
    if not server.is_drawn:
        return int(tokens)
    return f"{DRAWN_MEAN * tokens}:{DRAWN_DEVIATION * tokens}"


def _requests(sequences: int) -> int:
    return int(np.clip(4 * sequences, 40, MOST_REQUESTS))


def simulated_rows(simulated: Sequence[SimulatedServer]) -> list[SimulatedRow]:
    """Return the errors of every figure: of all servers, of each engine, and below and above 128 sequences."""
    groups: dict[str, Callable[[PublishedServer], bool]] = {"all": lambda server: True}
    for engine in sorted({run.server.engine for run in simulated}):
        groups[engine] = partial(_runs_under, engine)
    groups["up to 128 sequences"] = lambda server: server.concurrency <= 128
    groups["above 128 sequences"] = lambda server: server.concurrency > 128
    groups["expert-parallel"] = lambda server: server.experts > 1
    rows = []
    for figure, (measured_of, forecast_of) in FIGURES.items():
        for name, includes in groups.items():
            pairs = [
                (measured_of(run.server), forecast_of(run.answer))
                for run in simulated
                if includes(run.server) and measured_of(run.server)
            ]
            if pairs:
                rows.append(_row(figure, name, pairs))
    return rows


def _runs_under(engine: str, server: PublishedServer) -> bool:
    return server.engine == engine


def _row(figure: str, group: str, pairs: Sequence[tuple[Any, Any]]) -> SimulatedRow:
    measured = np.array([pair[0] for pair in pairs])
    value, low, high = (np.array([getattr(pair[1], field) for pair in pairs]) for field in ("value", "low", "high"))
    return SimulatedRow(
        figure=figure,
        group=group,
        points=len(pairs),
        **relative_errors(value / measured - 1),
        **interval_accuracy(measured, low, high),
        score=float(interval_scores(measured, low, high).mean()),
    )


def simulated_page(rows: Sequence[SimulatedRow]) -> Document:
    """Return a page with the errors of simulated servers."""
    table = Table(
        "Simulated servers, as shipped",
        [
            Column("figure", "figure", left=True),
            Column("group", "servers", left=True),
            Column("points", "points"),
            *SCORED_COLUMNS,
        ],
        [msgspec.to_builtins(row) for row in rows],
    )
    totals = [row for row in rows if row.group == "all"]
    text = ", ".join(f"{row.figure} {row.median:.1%} off, {row.coverage_90:.0%} inside" for row in totals)
    return Document(f"Simulated servers: {text}", (), [table], [])

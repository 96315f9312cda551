"""Predictions of published serving results, and the table of errors: ``python -m validation compare serving``.

Engines have their published defaults. Results of engines' current policies on one node also inform the factors of their
kernels and hosts (`validation.engines.steps`); pipelines and older policies keep the times of their layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np

import paleo_lite as pl
from paleo_lite.errors import PaleoError
from paleo_lite.reporting.document import Column, Document, Table

from ..comparisons import GROUPED, describe_errors, group_errors
from .published import FILE, PublishedServing, published_points

MOST_REQUESTS = 3000
"""More requests are not simulated: they only lengthen the steady state."""

GOALS = {"throughput": 0.15, "ttft": 0.25, "tpot": 0.25}
"""Largest median errors that were aimed at."""


COLUMNS = (
    "source", "network", "gpu", "tensor", "pipeline", "input_tokens", "output_tokens", "rate", "concurrency",
    "quantity", "measured", "predicted", "low", "high", "error",
)  # fmt: skip
"""Columns of the CSV of all comparisons."""


class ReproducedFigure(msgspec.Struct, frozen=True):
    """A published figure and its prediction."""

    point: PublishedServing  # the published result
    quantity: str  # the figure of it
    # Values.
    measured: float
    predicted: float
    # 90% interval of the prediction.
    low: float
    high: float

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.measured - 1

    @property
    def is_inside(self) -> bool:
        """Whether the measurement is inside the interval."""
        return self.low <= self.measured <= self.high


def compare(point: PublishedServing) -> list[ReproducedFigure]:
    """Predict all figures of a published result."""
    options: dict[str, Any] = {}
    for setting in filter(None, point.options.split(";")):
        name, _, value = setting.partition("=")
        number = float(value) if "." in value else int(value)
        if name == "receive_interval":
            options["engine_settings"] = f"receive-interval={number}"
        else:
            options[name] = number
    arguments: dict[str, Any] = {"rate": point.rate} if point.rate else {"concurrency": point.concurrency}
    result = _serve(
        point.network, point.gpu, point.tensor, point.pipeline, point.precision, point.weights, point.kv_cache,
        point.engine, point.input_tokens, point.output_tokens, point.lengths, min(point.requests, MOST_REQUESTS),
        tuple({**arguments, **options}.items()),
    )  # fmt: skip
    statistic = point.statistic or "p50"
    figures = {
        "throughput": (point.tokens_per_s, result.figures["output_tokens_per_s"]),
        "ttft": (point.ttft_s, result.latencies["ttft_s"][statistic]),
        "tpot": (point.tpot_s, result.latencies["tpot_s"][statistic]),
    }
    comparisons = []
    for quantity, (measured, figure) in figures.items():
        if measured is None or figure.value is None:
            continue
        low = figure.value if figure.low is None else figure.low
        high = figure.value if figure.high is None else figure.high
        comparisons.append(ReproducedFigure(point, quantity, measured, figure.value, low, high))
    return comparisons


@cache
def _serve(
    network: str, gpu: str, tensor: int, pipeline: int, precision: str, weights: str, kv_cache: str, engine: str,
    input_tokens: int, output_tokens: int, lengths: str, requests: int, arguments: tuple[tuple[str, Any], ...],
) -> Any:  # fmt: skip
    options = dict(arguments)
    with TemporaryDirectory() as folder:
        if lengths:
            trace = Path(folder) / lengths
            write_trace(FILE.parent / lengths, float(options.pop("rate")), requests, trace)
            traffic: dict[str, Any] = {"requests": trace}
        else:
            traffic = {"input_tokens": input_tokens, "output_tokens": output_tokens, "num_requests": requests}
        return pl.serve(
            network,
            gpu=gpu,
            tensor=tensor,
            pipeline=pipeline,
            precision=precision,
            weights=None if weights == precision else weights,
            kv_cache=kv_cache,
            engine=engine,
            **traffic,
            **options,
        )


def write_trace(lengths: Path, rate_per_s: float, count: int, path: Path) -> None:
    """Write a trace with the lengths of another file, repeated in random order, and Poisson arrivals."""
    rows = np.loadtxt(lengths, delimiter=",", skiprows=1)
    generator = np.random.default_rng(0)
    chosen = np.concatenate([generator.permutation(len(rows)) for _ in range(-(-count // len(rows)))])[:count]
    trace = rows[chosen]
    trace[:, 0] = np.cumsum(generator.exponential(1 / rate_per_s, count)) if np.isfinite(rate_per_s) else 0.0
    np.savetxt(path, trace, delimiter=",", header="arrival_s,input_tokens,output_tokens", comments="", fmt="%.6f")


def compare_all(points: Iterable[PublishedServing]) -> tuple[list[ReproducedFigure], list[str]]:
    """Predict all published results; return the comparisons, and why others do not fit into the predicted memory."""
    comparisons, refused = [], []
    for point in points:
        try:
            comparisons += compare(point)
        except PaleoError as error:
            refused.append(f"{point.source}, {point.network} on {point.gpu}: {error}")
    return comparisons, refused


def summarize(comparisons: Sequence[ReproducedFigure]) -> list[dict[str, Any]]:
    """Return the errors by source and figure."""
    groups: dict[tuple[str, str], list[ReproducedFigure]] = {}
    for comparison in comparisons:
        groups.setdefault((comparison.point.source, comparison.quantity), []).append(comparison)
    for quantity in GOALS:
        groups["all", quantity] = [comparison for comparison in comparisons if comparison.quantity == quantity]
    groups["all", "all"] = list(comparisons)
    return [
        {"source": source, "quantity": quantity, **group_errors(members)}
        for (source, quantity), members in groups.items()
        if members
    ]


def compare_page(data: Path | None) -> Document:
    """Return the page of the errors; its CSV has every figure."""
    comparisons, refused = compare_all(published_points())
    columns = [Column("source", "source", left=True), Column("quantity", "figure", left=True), *GROUPED]
    rows = [
        {**msgspec.structs.asdict(comparison.point), **msgspec.structs.asdict(comparison), "error": comparison.error}
        for comparison in comparisons
    ]
    return Document(
        f"Published results of servers: {describe_errors(comparisons)}",
        (),
        [Table("Errors by source", columns, summarize(comparisons))],
        refused,
        Table("", [Column(name, name) for name in COLUMNS], rows),
    )

"""Forecasts of published deployments with split pools: ``python -m validation accuracy --split disaggregated``.

No constant is fitted to these rows except the handover of an engine (`Server.handover`) and the tokens that drafting
yields (`ACCEPTED`), each one number that is the same on all devices. Where several published settings have the same
devices and users, the measured time per token says which of them a row is; rows of which no settings are published
are forecast with one replica per pool divided as the row says, and reported apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from paleo_lite.calibration.accuracy import interval_accuracy, relative_errors
from paleo_lite.errors import PaleoError
from paleo_lite.questions.serve_deployment import make_deployment
from paleo_lite.questions.serve_options import Serve
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.serving.deployment import LEVELS
from paleo_lite.serving.drafts import acceptance_of
from paleo_lite.serving.lengths import Lengths
from paleo_lite.serving.outcomes import request_latencies
from paleo_lite.serving.requests import Traffic, generate_traffic
from paleo_lite.timing.intervals import Z_90

from ..columns import GROUP_COLUMNS, GroupErrors
from ..tables import rows_of
from .recipes import PoolSize, Recipe, recipes

EXPERTS = 256  # of DeepSeek-R1

TABLE = Path("engines") / "serving_disaggregated.csv"

ENGINES = {"trtllm": "tensorrt-llm", "sglang": "sglang"}

ACCEPTED = {0: 1.0, 1: 1.75, 2: 2.2, 3: 2.45}
"""Tokens per iteration, the verified one included, by the number of drafted ones.

Published acceptance of DeepSeek-R1 and V4 with 1 drafted token is 0.79 to 0.84 (vLLM), with 3 tokens 1.49 of them.
"""

DEVICES = {"h100": "h100-sxm", "h200": "h200-sxm"}

NODE_LINKS = {"h100": "infiniband-ndr"}
"""Link between the devices of a replica that is on two nodes."""

SMALLEST, LARGEST = 0.8, 1.0
"""Ends of the lengths, drawn uniformly, relative to the nominal one (InferenceX: ``--random-range-ratio 0.8``)."""

PUBLISHED_ROUNDS, SIMULATED_ROUNDS = 10, 3
"""Requests per user of the benchmark; fewer are simulated, of which all but the first stand for the others."""

MOST_REQUESTS = 20_000


class MeasuredSplit(NamedTuple):
    """A measured row, with the settings that may be its own."""

    gpu: str
    engine: str
    precision: str
    ttft_s: float
    tpot_s: float
    candidates: tuple[Recipe, ...]
    is_published: bool  # whether the settings are; otherwise the numbers of replicas are assumed


class SplitForecast(NamedTuple):
    """Times of a deployment: expected ones, and the ends of their 90% interval."""

    ttft_s: tuple[float, float, float]  # low, expected, high
    tpot_s: tuple[float, float, float]


class SplitRow(GroupErrors, frozen=True, kw_only=True):
    """Errors of a figure over some rows."""

    figure: str


def measured_rows(data: Path) -> list[MeasuredSplit]:
    """Return the measured rows, each once."""
    splits: dict[tuple[Any, ...], MeasuredSplit] = {}
    for row in rows_of(data / TABLE):
        gpu, engine = row["gpu"].split("_")[0], ENGINES[row["engine"]]
        key = (gpu, engine, row["precision"], int(row["isl"]), int(row["osl"]), int(float(row["concurrency"])))
        prefill, decode = int(float(row["prefill_tp_size"])), int(float(row["decode_tp_size"]))
        experts = int(float(row["prefill_moe_ep_size"]))
        candidates = tuple(
            recipe
            for recipe in recipes()
            if recipe[:6] == key
            and (recipe.prefill.tensor, recipe.prefill.experts, recipe.decode.tensor) == (prefill, experts, decode)
        )
        is_published = bool(candidates)
        if not candidates:
            candidates = _assumed(key, prefill, decode, experts)
        ttft_s, tpot_s = float(row["ttft_ms"]) / 1e3, float(row["tpot_ms"]) / 1e3
        splits[(*key, ttft_s, tpot_s)] = MeasuredSplit(
            gpu, engine, row["precision"], ttft_s, tpot_s, candidates, is_published
        )
    return list(splits.values())


def _assumed(key: tuple[str, str, str, int, int, int], prefill: int, decode: int, experts: int) -> tuple[Recipe, ...]:
    """Return settings of which only the devices are known; more devices than a node are several replicas."""

    def pool(devices: int) -> PoolSize:
        tensor = next(degree for degree in (8, 4, 2, 1) if max(devices, 4) % degree == 0)
        divided = experts > 1
        replicas = max(devices // tensor, 1)
        return PoolSize(replicas, tensor, tensor if divided else 1, tensor if divided else 1)

    return tuple(Recipe(*key, drafted, pool(prefill), pool(decode)) for drafted in (0, 2))


def forecast(recipe: Recipe) -> SplitForecast:
    """Simulate the closed loop of a deployment."""
    settings = {pool: _settings(recipe, pool) for pool in ("prefill", "decode")}
    drafting: dict[str, Any] = {}
    if recipe.drafted:
        acceptance = acceptance_of(ACCEPTED[recipe.drafted], recipe.drafted)
        drafting = {"speculation": {"tokens": recipe.drafted, "acceptance": acceptance}}
    question = Serve(
        "deepseek-r1", gpu=DEVICES.get(recipe.gpu, recipe.gpu), engine=recipe.engine, precision="fp8",
        weights="nvfp4" if recipe.precision == "fp4" else None, kv_cache="fp8", concurrency=recipe.concurrency,
        prefill_pool=settings["prefill"], decode_pool=settings["decode"], **drafting,
    )  # fmt: skip
    traffic = _traffic(recipe)
    prepared = make_deployment(question).prepare(traffic)
    rounds = np.arange(len(traffic)) // recipe.concurrency
    weights = np.where(rounds == 0, 1.0, (PUBLISHED_ROUNDS - 1) / max(int(rounds.max()), 1))
    times = {}
    for level in LEVELS:
        simulated = prepared.simulate(traffic, level)
        latencies = request_latencies(simulated.outcomes)
        order = np.argsort(np.concatenate([outcome.arrival_s for outcome in simulated.outcomes]), kind="stable")
        ttft_s = float(np.average(latencies["ttft_s"][order], weights=weights))
        times[level] = (ttft_s, float(np.median(latencies["tpot_s"])))
    deviations = prepared.deployment.timer.latency_deviations
    ends = []
    for figure, name in enumerate(("ttft_s", "tpot_s")):
        low, value, high = (times[level][figure] for level in LEVELS)
        below, above = (np.hypot(np.log(end / value), Z_90 * deviations.get(name, 0.0)) for end in (low, high))
        ends.append((value * np.exp(-below), value, value * np.exp(above)))
    return SplitForecast(*ends)


def _settings(recipe: Recipe, pool: str) -> dict[str, Any]:
    """Return the settings of a pool."""
    size: PoolSize = getattr(recipe, pool)
    settings: dict[str, Any] = {"replicas": size.replicas, "tensor": size.tensor}
    if size.experts > 1:  # groups of 48 devices hold some of them twice
        divides = not EXPERTS % size.experts
        settings["expert_parallel"] = size.experts if divides else 2 ** int(np.log2(size.experts))
        settings["tensor"] = settings["expert_parallel"] if size.attention > 1 else size.tensor
    if size.attention > 1:
        settings["attention_data_parallel"] = settings["tensor"]
    if size.sequences:
        settings["max_sequences"] = size.sequences
    if size.tensor > 8 and recipe.gpu in NODE_LINKS:
        settings["link"] = NODE_LINKS[recipe.gpu]
    return settings


def _traffic(recipe: Recipe) -> Traffic:
    """Return the first rounds of requests."""
    count = min(SIMULATED_ROUNDS * recipe.concurrency, max(MOST_REQUESTS, recipe.concurrency))
    count = max(count, min(PUBLISHED_ROUNDS * recipe.concurrency, 60))
    traffic = generate_traffic(Lengths(1), Lengths(1), count=count, concurrency=recipe.concurrency)
    generator = np.random.default_rng(0)
    lengths = [
        np.rint(nominal * generator.uniform(SMALLEST, LARGEST, count)).astype(np.int64)
        for nominal in (recipe.input_tokens, recipe.output_tokens)
    ]
    return msgspec.structs.replace(traffic, input_tokens=lengths[0], output_tokens=lengths[1], left_out=None)


def forecast_all(rows: Sequence[MeasuredSplit]) -> tuple[list[tuple[MeasuredSplit, SplitForecast]], list[str]]:
    """Return the rows with their forecasts, and why others have none."""
    forecast_of: dict[Recipe, SplitForecast | str] = {}
    pairs, refused = [], []
    for row in rows:
        forecasts = []
        for recipe in row.candidates:
            if recipe not in forecast_of:
                try:
                    forecast_of[recipe] = forecast(recipe)
                except PaleoError as error:
                    forecast_of[recipe] = str(error)
            outcome = forecast_of[recipe]
            if isinstance(outcome, str):
                refused.append(f"{row.engine} on {row.gpu}, {recipe.concurrency} users: {outcome}")
            else:
                forecasts.append(outcome)
        if forecasts:
            pairs.append((row, min(forecasts, key=lambda candidate: abs(np.log(candidate.tpot_s[1] / row.tpot_s)))))
    return pairs, sorted(set(refused))


GROUPS: dict[str, Callable[[MeasuredSplit], str]] = {
    "engine": lambda row: row.engine,
    "device": lambda row: row.gpu,
    "precision": lambda row: row.precision,
}
"""What the errors are grouped by."""


def split_rows(pairs: Sequence[tuple[MeasuredSplit, SplitForecast]]) -> list[SplitRow]:
    """Return the errors of both times: of all rows with published settings, of their groups, and of the other rows."""
    published = [pair for pair in pairs if pair[0].is_published]
    groups = {"all": published}
    for name_of in GROUPS.values():
        for name in sorted({name_of(row) for row, _ in published}):
            groups[name] = [pair for pair in published if name_of(pair[0]) == name]
    groups["replicas assumed"] = [pair for pair in pairs if not pair[0].is_published]
    rows = []
    for figure in ("tpot_s", "ttft_s"):
        for group, members in groups.items():
            if members:
                rows.append(_errors(figure, group, members))
    return rows


def _errors(figure: str, group: str, members: Sequence[tuple[MeasuredSplit, SplitForecast]]) -> SplitRow:
    measured = np.array([getattr(row, figure) for row, _ in members])
    low, value, high = np.array([getattr(times, figure) for _, times in members]).T
    return SplitRow(
        figure={"tpot_s": "TPOT", "ttft_s": "TTFT"}[figure],
        group=group,
        points=len(members),
        **relative_errors(value / measured - 1),
        **interval_accuracy(measured, low, high),
    )


def split_page(rows: Sequence[SplitRow], refused: Sequence[str]) -> Document:
    """Return a page with the errors of split deployments."""
    columns = [
        Column("figure", "figure", left=True), Column("group", "deployments", left=True), Column("points", "points"),
        *GROUP_COLUMNS,
    ]  # fmt: skip
    whole = [row for row in rows if row.group == "all"]
    text = ", ".join(f"{row.figure} {row.median:.1%} off, {row.coverage_90:.0%} inside" for row in whole)
    table = Table("Split deployments of DeepSeek-R1", columns, [msgspec.to_builtins(row) for row in rows])
    return Document(f"Split deployments: {text}", (), [table], list(refused))

"""Forecasts of published deployments with split pools: ``python -m validation accuracy --split disaggregated``.

No constant is fitted to these rows except the handover of an engine (`Server.handover`) and the tokens that drafting
yields (`ACCEPTED`), each one number that is the same on all devices. Where several published settings have the same
devices and users, the measured time per token says which of them a row is; rows of which no settings are published
are forecast with one replica per pool divided as the row says, and reported apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from paleo_lite.calibration.accuracy import interval_accuracy, interval_scores, relative_errors
from paleo_lite.errors import PaleoError
from paleo_lite.executor import run_tasks
from paleo_lite.questions.serve_deployment import make_deployment
from paleo_lite.questions.serve_options import Serve
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.serving.causes import POOL_ENDS
from paleo_lite.serving.drafts import acceptance_of
from paleo_lite.serving.intervals import join_causes, make_figure, widen
from paleo_lite.serving.latencies import STALL_S
from paleo_lite.serving.lengths import Lengths
from paleo_lite.serving.outcomes import request_latencies
from paleo_lite.serving.prepared import PreparedDeployment, prepare
from paleo_lite.serving.requests import Traffic, generate_traffic
from paleo_lite.timing.intervals import Z_90

from ..columns import SCORED_COLUMNS, ScoredErrors
from ..tables import rows_of
from .recipes import PoolSize, Recipe, recipes

if TYPE_CHECKING:
    from numpy.typing import NDArray

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

PUBLISHED_ROUNDS, SIMULATED_ROUNDS, ROUNDS_OF_ENDS = 10, 3, 2
"""Requests per user of the benchmark; fewer are simulated, of which all but the first stand for the others, and fewer
still at the ends of the intervals, which are those relative to the expected times of the same requests."""

MOST_REQUESTS = 8_000
"""Requests of a simulation, unless there are more users."""


class MeasuredSplit(NamedTuple):
    """A measured row, with the settings that may be its own."""

    gpu: str
    engine: str
    precision: str
    ttft_s: float
    tpot_s: float
    candidates: tuple[Recipe, ...]
    is_published: bool  # whether the settings are; otherwise the numbers of replicas are assumed

    @property
    def users(self) -> int:
        """Users, of whom all settings have the same number."""
        return self.candidates[0].concurrency


class SplitForecast(NamedTuple):
    """Times of a deployment: expected ones, and the ends of their 90% interval."""

    ttft_s: tuple[float, float, float]  # low, expected, high
    tpot_s: tuple[float, float, float]


class SplitRow(ScoredErrors, frozen=True, kw_only=True):
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


class PreparedRecipe(NamedTuple):
    """A published deployment for any number of users up to one, with what is simulated of each number."""

    prepared: PreparedDeployment
    recipe: Recipe

    def expected(self) -> tuple[float, float]:
        """Return the mean time to the first token, and the median time per token, of the benchmark's requests."""
        return _times_of(*self._simulate("expected", SIMULATED_ROUNDS))

    def forecast(self) -> SplitForecast:
        """Return expected times with their intervals."""
        expected = self.expected()
        compared = _times_of(*self._simulate("expected", SIMULATED_ROUNDS), rounds=ROUNDS_OF_ENDS)
        causes = [
            [_times_of(*self._simulate(level, ROUNDS_OF_ENDS, prompts)) for level, prompts in ends]
            for ends in POOL_ENDS
        ]
        stall = STALL_S / (PUBLISHED_ROUNDS * self.recipe.concurrency) / expected[0]
        causes.append([compared, (compared[0] * (1 + stall), compared[1])])
        deviations = self.prepared.deployment.latency_deviations(_traffic(self.recipe, ROUNDS_OF_ENDS))
        forecasts = []
        for figure, name in enumerate(("ttft_s", "tpot_s")):
            of_causes = [make_figure([low[figure], compared[figure], high[figure]]) for low, high in causes]
            beside = Z_90 * deviations.get(name, 0.0)
            joint = widen(join_causes(of_causes), below=beside, above=beside)
            assert joint.value and joint.low and joint.high
            scale = expected[figure] / joint.value
            forecasts.append((joint.low * scale, expected[figure], joint.high * scale))
        return SplitForecast(*forecasts)

    def _simulate(
        self, level: str, rounds: int, prefill_level: str | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
        """Return the times to the first token in the order of arrival, those per token, and the number of users."""
        simulated = self.prepared.simulate(_traffic(self.recipe, rounds), level, prefill_level=prefill_level)
        latencies = request_latencies(simulated.outcomes)
        order = np.argsort(np.concatenate([outcome.arrival_s for outcome in simulated.outcomes]), kind="stable")
        return latencies["ttft_s"][order], latencies["tpot_s"][order], self.recipe.concurrency


def _times_of(
    ttft_s: NDArray[np.float64], tpot_s: NDArray[np.float64], users: int, rounds: int | None = None
) -> tuple[float, float]:
    """Return the mean time to the first token and the median time per token, of all rounds or of the first ones.

    Rounds but the first one stand for the others of the benchmark.
    """
    count = len(ttft_s) if rounds is None else min(_count_requests(users, rounds), len(ttft_s))
    number = np.arange(count) // users
    weights = np.where(number == 0, 1.0, (PUBLISHED_ROUNDS - 1) / max(int(number.max()), 1))
    return float(np.average(ttft_s[:count], weights=weights)), float(np.median(tpot_s[:count]))


def forecast(recipe: Recipe) -> SplitForecast:
    """Simulate the closed loop of a deployment."""
    return PreparedRecipe(_prepare(recipe), recipe).forecast()


def _prepare(recipe: Recipe) -> PreparedDeployment:
    """Return the deployment with its tables, for all numbers of users up to that of a recipe."""
    settings = {pool: _settings(recipe, pool) for pool in ("prefill", "decode")}
    drafting: dict[str, Any] = {}
    if recipe.drafted:
        acceptance = acceptance_of(ACCEPTED[recipe.drafted], recipe.drafted)
        drafting = {"speculation": {"tokens": recipe.drafted, "acceptance": acceptance}}
    is_narrow = recipe.precision == "fp4"
    question = Serve(
        "deepseek-r1", gpu=DEVICES.get(recipe.gpu, recipe.gpu), engine=recipe.engine,
        precision=None if is_narrow else "fp8", weights="nvfp4" if is_narrow else None, kv_cache="fp8",
        concurrency=recipe.concurrency,
        prefill_pool=settings["prefill"], decode_pool=settings["decode"], **drafting,
    )  # fmt: skip
    traffic = _traffic(recipe)
    # Of fewer users the longest request may be longer than that of these.
    traffic.input_tokens[0], traffic.output_tokens[0] = recipe.input_tokens, recipe.output_tokens
    return prepare(make_deployment(question), traffic)


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


def _count_requests(users: int, rounds: int) -> int:
    """Return the requests of the first rounds of a benchmark: of few users 60 at least, and of many 8,000 at most."""
    count = min(rounds * users, max(MOST_REQUESTS, users))
    return max(count, min(PUBLISHED_ROUNDS * users, 60))


def _traffic(recipe: Recipe, rounds: int = SIMULATED_ROUNDS) -> Traffic:
    """Return the first rounds of requests."""
    users = recipe.concurrency
    drawn, count = _count_requests(users, SIMULATED_ROUNDS), _count_requests(users, rounds)
    traffic = generate_traffic(Lengths(1), Lengths(1), count=count, concurrency=users)
    generator = np.random.default_rng(0)
    lengths = [
        np.rint(nominal * generator.uniform(SMALLEST, LARGEST, drawn)).astype(np.int64)[:count]
        for nominal in (recipe.input_tokens, recipe.output_tokens)
    ]
    return msgspec.structs.replace(traffic, input_tokens=lengths[0], output_tokens=lengths[1], left_out=None)


class _Forecasts(NamedTuple):
    """Forecasts of the rows of one deployment, or of several that may be theirs, and why others have none."""

    pairs: list[tuple[MeasuredSplit, SplitForecast]]
    refused: set[str]


def forecast_all(
    rows: Sequence[MeasuredSplit], jobs: int | None = None
) -> tuple[list[tuple[MeasuredSplit, SplitForecast]], list[str]]:
    """Return the rows with their forecasts, and why others have none; processes share the deployments."""
    by_deployments: dict[frozenset[Recipe], list[MeasuredSplit]] = {}
    for row in rows:
        deployments = frozenset(_for_any_users(recipe) for recipe in row.candidates)
        by_deployments.setdefault(deployments, []).append(row)
    longest_first = sorted(by_deployments.values(), key=_count_all, reverse=True)
    pairs: list[tuple[MeasuredSplit, SplitForecast]] = []
    refused: set[str] = set()
    for _, forecasts in run_tasks(longest_first, _forecast_group, jobs):
        pairs += forecasts.pairs
        refused |= forecasts.refused
    place = {row: number for number, row in enumerate(rows)}
    return sorted(pairs, key=lambda pair: place[pair[0]]), sorted(refused)


def _count_all(rows: Sequence[MeasuredSplit]) -> int:
    """Return the requests that are simulated of some rows, at one level of the times of iterations."""
    recipes_of_rows = {recipe for row in rows for recipe in row.candidates}
    return sum(_count_requests(recipe.concurrency, SIMULATED_ROUNDS) for recipe in recipes_of_rows)


def _for_any_users(recipe: Recipe) -> Recipe:
    """Return what recipes of one deployment have in common, however many users it has."""
    return recipe._replace(concurrency=0)


def _forecast_group(rows: Sequence[MeasuredSplit]) -> _Forecasts:
    """Forecast rows that may be of the same deployments, each of which is prepared once."""
    largest: dict[Recipe, Recipe] = {}
    for recipe in sorted({recipe for row in rows for recipe in row.candidates}):
        largest[_for_any_users(recipe)] = recipe
    refused: set[str] = set()
    prepared: dict[Recipe, PreparedDeployment] = {}
    for deployment, recipe in largest.items():
        try:
            prepared[deployment] = _prepare(recipe)
        except PaleoError as error:
            refused.add(f"{recipe.engine} on {recipe.gpu}, {recipe.concurrency} users: {error}")
    pairs = []
    for row in rows:
        known = [recipe for recipe in row.candidates if _for_any_users(recipe) in prepared]
        candidates = [PreparedRecipe(prepared[_for_any_users(recipe)], recipe) for recipe in known]
        if candidates:
            nearest = min(candidates, key=lambda one: abs(np.log(one.expected()[1] / row.tpot_s)))
            pairs.append((row, nearest.forecast()))
    return _Forecasts(pairs, refused)


GROUPS: dict[str, Callable[[MeasuredSplit], str]] = {
    "engine": lambda row: row.engine,
    "device": lambda row: row.gpu,
    "precision": lambda row: row.precision,
    "users": lambda row: "up to 128 users" if row.users <= 128 else "above 128 users",
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
        score=float(interval_scores(measured, low, high).mean()),
    )


def split_page(rows: Sequence[SplitRow], refused: Sequence[str]) -> Document:
    """Return a page with the errors of split deployments."""
    columns = [
        Column("figure", "figure", left=True), Column("group", "deployments", left=True), Column("points", "points"),
        *SCORED_COLUMNS,
    ]  # fmt: skip
    whole = [row for row in rows if row.group == "all"]
    text = ", ".join(f"{row.figure} {row.median:.1%} off, {row.coverage_90:.0%} inside" for row in whole)
    table = Table("Split deployments of DeepSeek-R1", columns, [msgspec.to_builtins(row) for row in rows])
    return Document(f"Split deployments: {text}", (), [table], list(refused))

"""Published gains of fleets by routers, tiers of the cache, split pools and drafts, beside their forecasts.

``python -m validation fleet``. A gain is a figure with a change of the deployment over the same without it. Both are
measured by one source, so that what its servers have in common cancels. Of the constants of the forecasts only
`Server.draft_pass_s` is fitted to these rows, to those of EAGLE-3. The lengths of Mooncake's requests on split A10 are
inferred from the latencies and throughputs published with them (`_A10`). Where a benchmark sends requests at several
rates, one after the other, the last one is compared, which begins with warm caches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from paleo_lite.errors import BadFile
from paleo_lite.progress import report
from paleo_lite.questions.serve import traffic_of
from paleo_lite.questions.serve_deployment import make_deployment
from paleo_lite.questions.serve_options import Serve
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.reporting.formats import format_yes_no
from paleo_lite.serving.drafts import acceptance_of
from paleo_lite.serving.figures import measure_figures
from paleo_lite.serving.outcomes import request_latencies
from paleo_lite.serving.pools import Simulated
from paleo_lite.serving.prepared import PreparedDeployment, prepare
from paleo_lite.serving.requests import Traffic

from ..tables import rows_of

TABLE = Path("fleet") / "measured.csv"

RIGHT_SIZE = 4 / 3
"""Ratio of a forecast and a published gain, in either direction, up to which its size is right."""

NO_GAIN = 1.1
"""Ratio up to which a figure is taken as unchanged."""

ORDERS = 5
"""Random orders of requests over which figures are averaged where these decide which replicas have long queues.

In each of six orders by itself, the gain of host memory in the time to first token is .52 to 1.05.
"""

Stages = tuple[tuple[int, int], ...]
"""Requests per second and seconds of each stage of a benchmark."""

PAUSE_S = 600.0
"""Seconds from the beginning of a stage to that of the next one, by when all of it are answered."""


class Simulation(NamedTuple):
    """A deployment and what its traffic experiences at the expected iteration times."""

    prepared: PreparedDeployment
    traffic: Traffic
    simulated: Simulated


class GainFigure(NamedTuple):
    """A figure that both a source and a simulation have."""

    name: str
    column: str  # of the table
    of: Callable[[Simulation], float]


def _mean(name: str) -> Callable[[Simulation], float]:
    """Return the function that gives the mean of a latency."""
    return lambda done: float(request_latencies(done.simulated.outcomes)[name].mean())


def _figure(name: str) -> Callable[[Simulation], float]:
    """Return the function that gives a figure of the whole deployment."""

    def value(done: Simulation) -> float:
        """Return the figure of a simulation."""
        prompts = int(done.traffic.input_tokens.sum())
        deployment = done.prepared.deployment
        figure = measure_figures(done.simulated, deployment, prompts)[name]
        assert figure is not None
        return figure

    return value


def _of_last_stage(done: Simulation) -> float:
    """Return the output tokens of the last stage per second from its first request to its last answer."""
    outcomes = done.simulated.outcomes
    arrival_s, finish_s, tokens = (
        np.concatenate([getattr(outcome, name) for outcome in outcomes])
        for name in ("arrival_s", "finish_s", "output_tokens")
    )
    is_last = arrival_s >= arrival_s.max() // PAUSE_S * PAUSE_S
    return float(tokens[is_last].sum() / (finish_s[is_last].max() - arrival_s[is_last].min()))


STAGE = GainFigure("output tokens/s of a stage", "throughput_tok_s", _of_last_stage)
OUTPUT = GainFigure("output tokens/s", "throughput_tok_s", _figure("output_tokens_per_s"))
TOTAL = GainFigure("input and output tokens/s", "throughput_tok_s", _figure("total_tokens_per_s"))
TTFT = GainFigure("time to first token", "ttft_mean_ms", _mean("ttft_s"))
TPOT = GainFigure("time per output token", "itl_ms", _mean("tpot_s"))
LATENCY = GainFigure("end-to-end latency", "e2e_ms", _mean("latency_s"))


class Gain(NamedTuple):
    """A published gain, with the questions of both deployments."""

    kind: str  # "router", "tier", "split" or "draft"
    name: str
    figure: GainFigure
    rows: Mapping[str, str]  # text that the columns of both rows contain
    without: str  # text that the setting of the row without the change contains
    with_it: str  # and with it
    question: Mapping[str, Any]  # of `serve`, of both
    without_it: Mapping[str, Any]  # options without the change
    change: Mapping[str, Any]  # and with it
    stages: Stages = ()  # of the benchmark; empty where requests come at one rate
    orders: int = 1  # random orders of requests over which the figure is averaged


def _of_each(figures: Sequence[GainFigure], *gain: Any) -> list[Gain]:
    """Return the gain of several figures."""
    kind, name, *others = gain
    return [Gain(kind, name, figure, *others) for figure in figures]


# llm-d's guides and its cache manager's benchmark: the default of the workload `shared-prefix`. A stage that sends each
# prompt once is followed by the last one of their ladder, 60 requests per second, four times what the fleet sustains.
_LADDER = ((15, 50), (60, 25))
_SHARED = {"network": "qwen3-32b", "gpu": "h100-sxm", "tensor": 2, "replicas": 8, "workload": "shared-prefix",
           "rate": 60, "num_requests": sum(rate * seconds for rate, seconds in _LADDER)}  # fmt: skip
_GUIDE = {"source": "llm-d guides", "traffic": "150 groups x5"}
_MANAGER = {"source": "llm-d kv-cache-manager", "url_or_repo_path": "73-capacity", "traffic": "offered rate 60.0"}

# Servers behind llm-d's router, with 65% of the memory of two H100: 148,336 tokens on the devices and 656,000 on the
# host, of 262,144 bytes.
_OFFLOADED = {"network": "qwen3-32b", "gpu": "h100-sxm", "tensor": 2, "replicas": 8, "memory_fraction": 0.65,
              "router": "scored", "concurrency": 45, "num_requests": 900}  # fmt: skip
_HOST = {"cache_tiers": "host=172GB"}

# Every token of a prompt has 163,840 bytes; the host holds twice what the devices hold.
_MULTITURN = {"network": "qwen3-14b", "gpu": "a10", "tensor": 2, "engine": "sglang", "concurrency": 4,
              "workload": "conversation:turns=10,clients=20,question=2048,output=16", "num_requests": 200,
              }  # fmt: skip
_MOONCAKE = {"source": "Mooncake docs", "model": "Qwen3-14B", "traffic": "20 clients x 10 rounds"}

# Prompts of 8,192 or 2,048 tokens at most, and answers of 512, are taken to be drawn from half of that on
# (`--random-range-ratio 0.5` of SGLang's bench_serving): with four devices an answer has 371 tokens in the mean, as the
# time after the first token over that of a token says, and there are 16.4 times as many tokens of prompts.
_A10 = {"network": "qwen2.5-7b", "gpu": "a10", "engine": "sglang", "weights": "int4", "output_tokens": "384:74"}
_A10_ROWS = {"source": "Mooncake docs", "device": "A10", "model": "Qwen2.5-7B"}

# The network's own generation_config.json states neither top-p nor top-k, so that no logits are sorted.
_GPT_OSS = {"network": "gpt-oss-120b", "gpu": "h200-sxm", "engine_settings": "sampling=greedy",
            "rate": 45, "num_requests": 5400, "arrivals": "fixed",
            "input_tokens": 5000, "output_tokens": 250}  # fmt: skip

_DRAFTED = {"network": "gpt-oss-20b", "gpu": "b200", "input_tokens": 100, "output_tokens": 1024}
_MT_BENCH = {"source": "vLLM blog", "model": "gpt-oss-20b"}

# Prompts of coding agents, of which the cache has most; what is computed does not matter for the time per token.
_GLM = {"network": "glm-5.2", "gpu": "h200-sxm", "precision": "fp8", "kv_cache": "fp8", "input_tokens": 50_000,
        "output_tokens": 400, "prefix_hit_rate": 0.95,
        "prefill_pool": "replicas=1,tensor=16,expert-parallel=16,attention-data-parallel=16,link=infiniband-ndr",
        "decode_pool": "replicas=1,tensor=16,expert-parallel=16,attention-data-parallel=16,link=infiniband-ndr",
        }  # fmt: skip


def _drafting(tokens: int, yielded: float, heads: str) -> dict[str, Any]:
    """Return the option of heads that yield some tokens per iteration."""
    return {"speculation": {"tokens": tokens, "acceptance": acceptance_of(yielded, tokens), "draft": heads}}


GAINS: tuple[Gain, ...] = (
    *(Gain("router", name, STAGE, rows, without, with_it, _SHARED, {"router": "random"}, {"router": router}, _LADDER,
           ORDERS)
      for name, rows, without, with_it, router in (
          ("prefixes, approximately, over a Service of Kubernetes (llm-d's guide)", _GUIDE, "round robin",
           "approximate prefix", "scored"),
          ("prefixes, precisely, over a Service of Kubernetes (llm-d's guide)", _GUIDE, "round robin",
           "precise prefix", "scored"),
          ("prefixes over any replica (llm-d's benchmark)", _MANAGER, "random-scheduling", "precise-scheduling",
           "scored"),
          ("least loaded over any replica (llm-d's benchmark)", _MANAGER, "random-scheduling", "load-scheduling",
           "least-loaded"))),
    *_of_each((TOTAL, TTFT), "tier", "host memory, prompts of 30,000 tokens in common (llm-d's guide)",
              {"source": "llm-d guides", "traffic": "sys 30000"}, "vLLM baseline", "native CPU offload",
              _OFFLOADED | {"workload": "shared-prefix:groups=45,prompts=10,system=30000,question=256,output=1024"},
              {}, _HOST, (), ORDERS),
    *_of_each((TOTAL,), "tier", "host memory, where the devices hold all (llm-d's guide)",
              {"source": "llm-d guides", "traffic": "sys 8000"}, "vLLM baseline", "native CPU offload",
              _OFFLOADED | {"workload": "shared-prefix:groups=45,prompts=10,system=8000,question=256,output=1024"},
              {}, _HOST),
    *_of_each((TOTAL, TTFT), "tier", "host memory, conversations on A10 (Mooncake)", _MOONCAKE, "GPU only",
              "+L2 host (ratio 2)", _MULTITURN, {}, {"cache_tiers": "host=20GB"}),
    *_of_each((TOTAL, TTFT), "tier", "host memory and a store, conversations on A10 (Mooncake)", _MOONCAKE, "GPU only",
              "+L2+Mooncake 150GB L3", _MULTITURN, {}, {"cache_tiers": "host=20GB,store=150GB"}),
    *_of_each((TTFT, TPOT, LATENCY), "split", "8 x 1 and 2 x 4 over 16 x 1 H200, gpt-oss-120b (llm-d's guide)",
              {"source": "llm-d guides", "model": "openai/gpt-oss-120b"}, "aggregated 16xTP1", "llm-d P/D", _GPT_OSS,
              {"replicas": 16}, {"prefill_pool": "replicas=8", "decode_pool": "replicas=2,tensor=4"}),
    *_of_each((TTFT, TPOT, LATENCY), "split", "4 + 4 A10 over 2 x 4, prompts of up to 8,192 tokens (Mooncake)",
              _A10_ROWS | {"traffic": "rate 1.0"}, "2 regular instances", "1P1D",
              _A10 | {"tensor": 4, "rate": 1, "input_tokens": "6144:1182", "num_requests": 50}, {"replicas": 2},
              {"prefill_pool": "replicas=1", "decode_pool": "replicas=1"}, (), ORDERS),
    *_of_each((TTFT, TPOT, LATENCY), "split", "2 + 2 A10 over 2 x 2, prompts of up to 2,048 tokens (Mooncake)",
              _A10_ROWS | {"traffic": "rate 4.0"}, "2 regular instances", "1P1D",
              _A10 | {"tensor": 2, "rate": 4, "input_tokens": "1536:296", "num_requests": 200}, {"replicas": 2},
              {"prefill_pool": "replicas=1", "decode_pool": "replicas=1"}, (), ORDERS),
    *(Gain("draft", f"{heads}, {tokens} tokens, {users} users of gpt-oss-20b on a B200 (vLLM's blog)", OUTPUT,
           _MT_BENCH | {"traffic": f"MT-Bench concurrency {users}$"}, "no speculation", setting,
           _DRAFTED | {"concurrency": users, "num_requests": max(4 * users, 8)}, {},
           _drafting(tokens, yielded, heads))
      for heads, tokens, yielded, setting in (("eagle3", 3, 2.7, "EAGLE-3 best"), ("parallel", 7, 3.7, "P-EAGLE best"))
      for users in (1, 4, 16, 32)),
    *(Gain("draft", f"mtp, 3 tokens, {users} users of GLM-5.2 on 32 H200 (llm-d's blog)", TPOT,
           {"source": "llm-d blog", "topic": "speculative", "traffic": f"concurrency {users},"},
           "CPU offload only, no MTP", "MTP up to 3 drafts", _GLM | {"concurrency": users, "num_requests": 6 * users},
           {}, _drafting(3, 2.99, "mtp"))
      for users in (32, 64, 128)),
)  # fmt: skip
"""Published gains. Tokens per iteration: vLLM's blog for MT-Bench, and InferenceX's for GLM-5.2 with three tokens."""


class GainRow(msgspec.Struct, frozen=True, kw_only=True):
    """A published gain and its forecast: a figure with the change over the figure without it."""

    kind: str
    name: str
    figure: str
    published: float
    forecast: float

    @property
    def has_direction(self) -> bool:
        """Whether the forecast changes in the direction of the published figure, or not at all where that does not."""
        if max(self.published, 1 / self.published) <= NO_GAIN:
            return max(self.forecast, 1 / self.forecast) <= NO_GAIN
        return (self.forecast > 1) == (self.published > 1)

    @property
    def has_size(self) -> bool:
        """Whether the size is right within a third."""
        ratio = self.forecast / self.published
        return max(ratio, 1 / ratio) <= RIGHT_SIZE


def compare_gains(data: Path, kinds: Sequence[str] = ()) -> list[GainRow]:
    """Return the published gains, of some kinds or all, with their forecasts."""
    table = list(rows_of(data / TABLE))
    chosen = [gain for gain in GAINS if not kinds or gain.kind in kinds]
    done: dict[str, Simulation] = {}
    rows = []
    for number, gain in enumerate(chosen):
        report(number, len(chosen))
        values = [_forecast(gain, options, done) for options in (gain.change, gain.without_it)]
        rows.append(
            GainRow(
                kind=gain.kind,
                name=gain.name,
                figure=gain.figure.name,
                published=_published(table, gain, gain.with_it) / _published(table, gain, gain.without),
                forecast=values[0] / values[1],
            )
        )
    return rows


def _forecast(gain: Gain, options: Mapping[str, Any], done: dict[str, Simulation]) -> float:
    """Return the figure of a deployment in the mean over some orders; simulations are kept by their question."""
    values = []
    for order in range(gain.orders):
        question = Serve(**gain.question, **options, seed=order)
        key = repr(question)
        if key not in done:
            done[key] = _simulate(question, gain.stages)
        values.append(gain.figure.of(done[key]))
    return float(np.mean(values))


def _simulate(question: Serve, stages: Stages) -> Simulation:
    """Return what the traffic of a question experiences, in the stages of a benchmark if it has any."""
    deployment = make_deployment(question)
    traffic = traffic_of(question, deployment)
    if stages:
        generator = np.random.default_rng(question.seed)
        arrival_s = [
            number * PAUSE_S + np.cumsum(generator.exponential(1 / rate, rate * seconds))
            for number, (rate, seconds) in enumerate(stages)
        ]
        traffic = msgspec.structs.replace(traffic, arrival_s=np.concatenate(arrival_s))
    prepared = prepare(deployment, traffic)
    return Simulation(prepared, traffic, prepared.simulate(traffic))


def _published(table: Sequence[Mapping[str, str]], gain: Gain, setting: str) -> float:
    """Return the figure of the one row that a gain names; raise BadFile if there is none, or several differ."""
    values = {
        row[gain.figure.column]
        for row in table
        if row[gain.figure.column] and setting in row["setting"] and _contains(row, gain.rows)
    }
    if len(values) != 1:
        raise BadFile(
            f"{TABLE}: {len(values)} values of {gain.figure.column} for {gain.name}, {setting}: one is needed"
        )
    return float(values.pop().split()[0])


def _contains(row: Mapping[str, str], texts: Mapping[str, str]) -> bool:
    """Return whether columns of a row contain some texts, of which one that ends with a dollar sign ends the column."""
    return all(
        row[column].endswith(text[:-1]) if text.endswith("$") else text in row[column] for column, text in texts.items()
    )


def gains_page(rows: Sequence[GainRow]) -> Document:
    """Return a page with the published gains and their forecasts."""
    columns = [
        Column("kind", "by", left=True), Column("name", "change", left=True), Column("figure", "figure", left=True),
        Column("published", "published", "{:.2f}".format), Column("forecast", "forecast", "{:.2f}".format),
        Column("direction", "direction", format_yes_no), Column("size", "within\na third", format_yes_no),
    ]  # fmt: skip
    shown = [{**msgspec.to_builtins(row), "direction": row.has_direction, "size": row.has_size} for row in rows]
    directions, sizes = (sum(getattr(row, name) for row in rows) for name in ("has_direction", "has_size"))
    title = f"Gains of fleets: {directions} of {len(rows)} in the right direction, {sizes} within a third"
    return Document(title, (), [Table("A figure with the change over the figure without it", columns, shown)])

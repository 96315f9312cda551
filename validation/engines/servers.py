"""Readers of published servers: closed loops of InferenceX, AIPerf and others, and ML.ENERGY's, with their settings.

InferenceX lists some configurations of DeepSeek-R1 twice, with and without the drafting of further tokens, which its
table does not tell apart: where one question has two answers, the faster one by a quarter or more is taken to draft
(`PublishedServer.is_speculative`). Configurations with and without drafting divide the experts differently, and were
measured with answers of different lengths.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from paleo_lite.api.question import Question, resolve_question
from paleo_lite.distributed.links import device_link
from paleo_lite.engines.division import Division
from paleo_lite.engines.records import KERNELS, SERVERS, find_server
from paleo_lite.errors import DoesNotFit
from paleo_lite.serving.cache import measure_room
from paleo_lite.serving.pipeline import connect_stages
from paleo_lite.serving.placement import ModelOnDevice, tensor_group, with_kernels

from ..serving.published import PublishedServing, published_points
from ..tables import rows_of
from .scripts import Script, cache_format, script_of
from .tables import DEVICES, ENGINES

NETWORKS = {
    "deepseek-ai/DeepSeek-R1": "deepseek-r1", "nvidia/DeepSeek-R1-NVFP4": "deepseek-r1",
    "openai/gpt-oss-120b": "gpt-oss-120b", "openai/gpt-oss-20b": "gpt-oss-20b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b", "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": "qwen3-235b-a22b",
    "Qwen/Qwen3-235B-A22B-Thinking-2507-FP8": "qwen3-235b-a22b", "Qwen/Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b",
    "Qwen/Qwen3-30B-A3B-Thinking-2507": "qwen3-30b-a3b", "Qwen/Qwen3-32B": "qwen3-32b",
    "nvidia/Qwen3-32B-NVFP4": "qwen3-32b", "Qwen/Qwen3-8B": "qwen3-8b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b", "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b", "meta-llama/Llama-3.1-70B-Instruct": "llama-3.1-70b",
    "moonshotai/Kimi-K2.5": "kimi-k2", "deepseek-ai/DeepSeek-V3.1": "deepseek-v3.1",
    "meta-llama/Llama-2-7b-hf": "llama-2-7b", "meta-llama/Llama-2-70b-hf": "llama-2-70b",
    "codellama/CodeLlama-34b-Instruct-hf": "codellama-34b", "mistralai/Mixtral-8x7B-v0.1": "mixtral-8x7b",
    "google/gemma-3-27b-it": "gemma-3-27b", "nvidia/NVIDIA-Nemotron-Nano-9B-v2": "nemotron-nano-9b-v2",
}  # fmt: skip
"""Networks of the tables, in the names of paleo-lite."""

PROMPT_TOKENS = {"lm-arena-chat": 300, "gpqa": 250, "sourcegraph-fim": 800}
"""Typical prompts of ML.ENERGY's tasks; those with pictures are left out."""

MOST_QUEUED_S = 10.0
"""Time to first token above which a server does not keep up with its load."""

DRAWN_LENGTH = 0.9
"""Mean of lengths that are drawn, relative to the nominal one."""

DRAFTING_RATIO, LATE_DRAFTING_RATIO = 0.75, 0.85
"""Time per token of a server that drafts over that of one that does not, at most, and where its first token is late."""

LATE_RATIO = 1.3
"""Time to a late first token of a server that drafts over that of one that does not, at least."""

FEW_USERS = 64
"""Users up to which prompts take little of the time per token, so that longer answers never shorten it by a quarter."""


UNKNOWN_USERS = ("openai/gpt-oss-120b", "h100_sxm", "vllm", "512")
"""Model, device, engine and users of six rows whose users are not known.

The script of that time (InferenceX, gpt-oss under vLLM: ``--num-prompts $(( $CONC * 10 )) --max-concurrency 512`` and
``--max-num-seqs=$CONC``) sends ten prompts for each sequence that the server runs, all at once. Each waits for 4.5
answers on average then; measured are 4.2 to 4.9. Times per token are those of 8 to 64 users.
"""

UNCAPTURED = ("tensorrt-llm", "1.3.0rc1")
"""Engine and version of nine rows whose decode steps no graph replays.

Their source states no options, but a step takes the same time with 5 and with 56 sequences on a rank.
"""


class PublishedServer(msgspec.Struct, frozen=True):
    """A published server under a closed loop.

    Attributes
    ----------
    source : str
        Table: ``serving``, ``mlenergy``, ``loads`` (of one server of vLLM under constant rates), or the source of a
        result of `validation.serving.published`.
    name : str
        Row of the table.
    network, gpu, engine, version : str
        Deployment, in the names of paleo-lite.
    precision : str
        Precision of the arithmetic.
    weights : str or None
        Format of the weights, if it is not that of the precision.
    kv_cache : str
        Format of the KV cache.
    devices, experts, attention_data : int
        Devices, expert-parallel degree, and groups that compute attention for sequences of their own.
    input_tokens, output_tokens : float
        Mean lengths.
    concurrency : int
        Users.
    is_drawn : bool
        Whether lengths are drawn between 0.8 and 1.0 of the nominal ones.
    ttft_s, tpot_s, tokens_per_s : float or None
        Time to first token, time per output token, and output tokens per second of all devices.
    is_speculative : bool
        Whether the server drafts tokens, as far as can be told.
    is_host_bound : bool
        Whether the source shows that the host limits the server several times over.
    shared_tokens : float
        Tokens of every prompt that are in the cache already.
    script : Script
        What the script that starts the server sets, as far as it is known.
    is_captured : bool
        Whether decode steps are replayed from captured graphs.
    """

    source: str
    name: str
    network: str
    gpu: str
    engine: str
    version: str
    precision: str
    weights: str | None
    kv_cache: str
    devices: int
    experts: int
    attention_data: int
    input_tokens: float
    output_tokens: float
    concurrency: int
    is_drawn: bool
    ttft_s: float | None
    tpot_s: float | None
    tokens_per_s: float | None
    is_speculative: bool = False
    is_host_bound: bool = False
    shared_tokens: float = 0.0
    script: Script = Script()
    is_captured: bool = True

    @property
    def group(self) -> tuple[str, ...]:
        """What servers of one series have in common."""
        return (
            self.source,
            self.network,
            self.gpu,
            self.engine,
            self.precision,
            self.weights or "",
            str(self.experts > 1),
        )

    @property
    def keeps_step(self) -> bool:
        """Whether all users send prompts and end answers together: equal lengths, and prompts before any decoding."""
        return self.source == "serving" and not self.is_drawn and not SERVERS[self.engine].mixes_phases

    @property
    def was_warm(self) -> bool:
        """Whether no request waited for kernels to be compiled: not under SGLang where no version is stated.

        Mean first tokens of DeepSeek-R1 on B200 there contain one stall in the first of ten rounds. In fp4 on eight
        devices it is 69 s with 32, 64 and 128 users, and 2.2 s with 4, 8 and 16: ten times what the mean is above that
        of servers of a stated version. Times per token are like theirs.
        """
        return bool(self.version) or self.engine != "sglang"

    @property
    def record(self) -> str:
        """Record of the engine's version; the newest one where no version is stated."""
        of_engine = [record for record in SERVERS.values() if record.kernels and record.kernels.engine == self.engine]
        of_version = [record for record in of_engine if record.versions.include(self.version)]
        return (of_version or of_engine)[0].name

    @property
    def has_nucleus(self) -> bool:
        """Whether tokens are drawn from a nucleus: ML.ENERGY's clients ask for it, and AIPerf's leave it to the server.

        vLLM takes the settings of the network then. Those of InferenceX ask for the most likely token.
        """
        is_default = self.source == "serving" and self.engine == "vllm" and not self.is_drawn
        return self.source == "mlenergy" or is_default

    @property
    def mean_input(self) -> float:
        """Mean tokens of prompts."""
        return self.input_tokens * (DRAWN_LENGTH if self.is_drawn else 1.0)

    @property
    def mean_output(self) -> float:
        """Mean tokens of answers."""
        return self.output_tokens * (DRAWN_LENGTH if self.is_drawn else 1.0)

    @property
    def step_s(self) -> float:
        """Measured time per output token, from the throughput where this is what is published."""
        if self.tpot_s is not None:
            return self.tpot_s
        assert self.tokens_per_s is not None
        return self.concurrency / self.tokens_per_s


def published_servers(data: Path) -> list[PublishedServer]:
    """Return the servers of all tables in a folder of data, each question and answer once."""
    servers = list(dict.fromkeys([*_serving_rows(data), *_energy_rows(data), *_loads(data), *_results()]))
    return _mark_drafting(servers)


def place(server: PublishedServer) -> ModelOnDevice:
    """Return the network of a server on its devices, with the kernels of its engine."""
    workload, machine, model = resolve_question(
        Question(server.network, server.gpu, precision=server.precision, phase="decode", weights=server.weights)
    )
    group = tensor_group(machine.device, Division(server.devices))
    link = None if group is None else device_link(machine.device)
    stages = connect_stages(1, server.devices, device_link=link)
    placed = ModelOnDevice(workload, machine, model, group, server.kv_cache, stages)
    return with_kernels(
        placed, server.record, expert_parallel=server.experts, attention_data_parallel=server.attention_data
    )


def _serving_rows(data: Path) -> Iterator[PublishedServer]:
    for row in rows_of(data / "engines/serving.csv"):
        has_users = (row["model"], row["gpu"], row["engine"], row["concurrency"]) != UNKNOWN_USERS
        if row["model"] in NETWORKS and row["concurrency"] and has_users:
            yield _serving_row(row)


def _serving_row(row: dict[str, str]) -> PublishedServer:
    network, engine = NETWORKS[row["model"]], ENGINES[row["engine"]]
    gpu = DEVICES[row["gpu"]]
    devices, experts, attention_data = _parallelism(row)
    precision, weights = _formats(row, network, gpu)
    is_undivided = engine == "vllm" and "235B" in row["model"]
    server = PublishedServer(
        source="serving",
        name=row["id"],
        network=network,
        gpu=gpu,
        engine=engine,
        version=row["engine_version"],
        precision=precision,
        weights=weights,
        kv_cache="bf16",
        devices=devices,
        experts=experts,
        attention_data=attention_data,
        input_tokens=float(row["isl"]),
        output_tokens=float(row["osl"]),
        concurrency=_users(row),
        is_drawn=row["id"].startswith("2026_") or "cfg" in row["id"] or "gap_analysis" in row["id"],
        ttft_s=float(row["ttft_ms"]) / 1e3,
        tpot_s=float(row["tpot_ms"]) / 1e3,
        tokens_per_s=None,
        is_host_bound=is_undivided,
        is_captured=(engine, row["engine_version"]) != UNCAPTURED,
    )
    return msgspec.structs.replace(server, kv_cache=cache_format(server), script=script_of(server))


def _parallelism(row: dict[str, str]) -> tuple[int, int, int]:
    """Return devices, expert-parallel degree and attention groups of a row.

    The name states them where it has ``tpN_epM``; the columns then list the product of both as degrees. Where no
    attention groups are stated, sequences of each of them (``batch_size``) may be fewer than the users.
    """
    attention_data = int(float(row["attention_dp_size"] or _users_per_batch(row)))
    named = re.search(r"_tp(\d+)(?:_0)?_ep(\d+|none)", row["id"])
    devices = int(named[1]) if named else int(float(row["tp_size"]))
    experts = min(int(float(row["moe_ep_size"] or 1)) or 1, devices)
    if named and named[2].isdigit():
        experts = int(named[2])
    groups = devices if attention_data > 1 and row["engine"] != "vllm" else 1
    return devices, experts, groups


def _users_per_batch(row: dict[str, str]) -> float:
    """Return the users of a row over the sequences of a data-parallel rank of attention; 1 where one is not stated."""
    if not row["batch_size"]:
        return 1.0
    return max(float(row["concurrency"]) / float(row["batch_size"]), 1.0)


def _users(row: dict[str, str]) -> int:
    """Return the users of one server: of a server without attention groups, not those of its replicas."""
    is_undivided = row["attention_dp_size"] and float(row["attention_dp_size"]) == 1
    return int(float(row["batch_size"] if is_undivided and row["batch_size"] else row["concurrency"]))


def _formats(row: dict[str, str], network: str, gpu: str) -> tuple[str, str | None]:
    """Return precision and weights of a row."""
    dense, experts = row["gemm_quant_mode"], row["moe_quant_mode"]
    if network.startswith("gpt-oss"):
        return ("fp8" if gpu == "b200" else "bf16"), "mxfp4"
    if dense == "nvfp4":
        return "fp4", None
    if experts == "int4_wo":
        return "bf16", "int4"
    if dense in ("fp8", "fp8_block") or "FP8" in row["model"]:
        return "fp8", None
    return "bf16", None


def _energy_rows(data: Path) -> Iterator[PublishedServer]:
    for index, row in enumerate(rows_of(data / "engines/mlenergy_language.csv")):
        if row["model"] not in NETWORKS or row["task"] not in PROMPT_TOKENS:
            continue
        network = NETWORKS[row["model"]]
        gpu = {"H100": "h100-sxm", "B200": "b200"}[row["gpu"]]
        is_mxfp4 = row["weights"] == "mxfp4"
        precision = "fp8" if row["weights"] == "fp8" or (is_mxfp4 and gpu == "b200") else "bf16"
        yield PublishedServer(
            source="mlenergy",
            name=f"{row['model']} {row['task']} {row['gpu']} {row['max_sequences']} {index}",
            network=network,
            gpu=gpu,
            engine="vllm",
            version="0.11.1",
            precision=precision,
            weights="mxfp4" if is_mxfp4 else None,
            kv_cache="bf16",
            devices=int(row["gpus"]),
            experts=int(row["expert_parallel"]),
            attention_data=int(row["attention_data_parallel"]),
            input_tokens=float(PROMPT_TOKENS[row["task"]]),
            output_tokens=float(row["output_tokens_mean"]),
            concurrency=max(round(float(row["mean_sequences"])), 1),
            is_drawn=False,
            ttft_s=None,
            tpot_s=None,
            tokens_per_s=float(row["output_tokens_per_s"]),
            is_host_bound=row["weights"] == "bfloat16" and row["task"] == "gpqa" and gpu == "b200",
        )


def _loads(data: Path) -> Iterator[PublishedServer]:
    """Read the loads that one server of vLLM kept up with; the sequences follow from rate and latency (Little 1961).

    The load generator sends a small set of prompts again and again (inference-perf, generator ``shared_prefix``), so
    that all of a prompt but its last block is in the cache: times to first token do not depend on the prompt's length.
    """
    for row in rows_of(data / "engines/vllm_h100_experiments.csv"):
        latency_s, ttft_s = float(row["latency_mean_s"]), float(row["ttft_mean_s"])
        if ttft_s > MOST_QUEUED_S:
            continue
        prompt, answer = float(row["input_tokens_mean"]), float(row["output_tokens_mean"])
        yield PublishedServer(
            source="loads",
            name=f"{row['experiment']} {row['stage']}",
            network=NETWORKS[row["model"]],
            gpu=row["gpu"],
            engine="vllm",
            version="0.15",
            precision="bf16",
            weights=None,
            kv_cache="bf16",
            devices=int(row["tensor"]),
            experts=1,
            attention_data=1,
            input_tokens=prompt,
            output_tokens=answer,
            concurrency=max(round(float(row["rate_requests_per_s"]) * latency_s), 1),
            is_drawn=False,
            ttft_s=ttft_s,
            tpot_s=(latency_s - ttft_s) / (answer - 1),
            tokens_per_s=None,
            shared_tokens=prompt - SERVERS["vllm"].block_tokens / 2,
        )


def _results() -> Iterator[PublishedServer]:
    """Return the published results that fit into the memory, with the sequences that the cache holds at saturation."""
    for point in published_points():
        if point.pipeline > 1 or point.engine not in KERNELS or not (point.tpot_s or point.tokens_per_s):
            continue
        if point.concurrency is None and point.rate != "inf":
            continue
        server = PublishedServer(
            source=point.source,
            name=f"{point.source} {point.network} {point.gpu} {point.input_tokens} {point.output_tokens}",
            network=point.network,
            gpu=point.gpu,
            engine=point.engine,
            version=point.source,
            precision=point.precision,
            weights=None if point.weights == point.precision else point.weights,
            kv_cache=point.kv_cache,
            devices=point.tensor,
            experts=1,
            attention_data=1,
            input_tokens=float(point.input_tokens),
            output_tokens=float(point.output_tokens),
            concurrency=point.concurrency or 1,
            is_drawn=False,
            ttft_s=None,
            tpot_s=point.tpot_s if point.concurrency else None,
            tokens_per_s=point.tokens_per_s,
        )
        try:
            held = _held_sequences(server, point)
        except DoesNotFit:
            continue
        yield msgspec.structs.replace(server, concurrency=min(point.concurrency or point.requests, held))


def _held_sequences(server: PublishedServer, point: PublishedServing) -> int:
    """Return the sequences that run at the same time at saturation."""
    settings = dict(setting.split("=") for setting in point.options.split(";") if setting)
    placed = place(server)
    engine = find_server(point.engine, placed.machine.device)
    engine = msgspec.structs.replace(engine, **{
        name: float(value) if "." in value else int(value) for name, value in settings.items() if hasattr(engine, name)
    })  # fmt: skip
    tokens = server.input_tokens + server.output_tokens
    room = measure_room(placed, engine, mean_tokens=tokens, prompt_tokens=point.input_tokens)
    mean_held = server.input_tokens + server.output_tokens * (1 + engine.reserved_output) / 2
    return max(min(int(room.tokens / mean_held), engine.max_sequences), 1)


def _mark_drafting(servers: Iterable[PublishedServer]) -> list[PublishedServer]:
    """Mark the servers of DeepSeek-R1 that draft tokens: those far faster than another one of the same question."""
    servers = list(servers)
    rivals: dict[tuple[object, ...], list[PublishedServer]] = {}
    for server in servers:
        rivals.setdefault(_question(server), []).append(server)
    marked = []
    for server in servers:
        slowest = max((rival for rival in rivals[_question(server)] if _asks_no_more(rival, server)), key=_step_of)
        drafts = server.network == "deepseek-r1" and server.version == "1.2.0rc6.post3"
        drafts = drafts or server.step_s < DRAFTING_RATIO * slowest.step_s
        drafts = drafts or (slowest.output_tokens == server.output_tokens and _is_late(server, slowest))
        marked.append(msgspec.structs.replace(server, is_speculative=drafts and server.source == "serving"))
    return marked


def _step_of(server: PublishedServer) -> float:
    return server.step_s


def _asks_no_more(server: PublishedServer, other: PublishedServer) -> bool:
    """Return whether the contexts of a server are no longer than those of another one, as far as this decides."""
    if server.output_tokens == other.output_tokens:
        return True
    is_shorter = server.output_tokens < other.output_tokens
    return other.network == "deepseek-r1" and is_shorter and other.concurrency <= FEW_USERS


def _is_late(server: PublishedServer, slowest: PublishedServer) -> bool:
    """Return whether a server is faster than the slowest of its question, but for the first token."""
    is_faster = server.step_s < LATE_DRAFTING_RATIO * slowest.step_s
    return is_faster and (server.ttft_s or 0.0) > LATE_RATIO * (slowest.ttft_s or np.inf)


def _question(server: PublishedServer) -> tuple[object, ...]:
    """Return what servers of one question have in common, apart from the length of answers.

    Of DeepSeek-R1 they may divide the experts differently.
    """
    experts = 0 if server.network == "deepseek-r1" else server.experts
    return (
        server.source, server.network, server.gpu, server.engine, server.precision, server.devices, experts,
        server.attention_data, server.input_tokens, server.concurrency,
    )  # fmt: skip

"""Options of `serve`, and the settings of its pools, which are options too."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .completion import LINK, NETWORK, PLATFORM
from .names import ListedNames, Names
from .option import Several, documented_spelling, option, options_of
from .records import (
    DEVICE_GROUP,
    ENGINE_GROUP,
    INFERENCE_PRECISIONS,
    NETWORK_GROUP,
    PARALLEL_GROUP,
    DeviceOptions,
    ExpertOptions,
    NetworkAsked,
    PriceOptions,
    SiteOptions,
    TimeModelOptions,
    WeightOptions,
)
from .values import (
    INTEGER,
    NUMBER,
    TOKENS,
    DurationText,
    KeyValues,
    Number,
    Quantity,
    SharesByPosition,
    TimeLimits,
    TokenCount,
    WholeNumber,
)

if TYPE_CHECKING:
    pass

TRAFFIC_GROUP = "Traffic"

SPECULATION_SETTINGS = KeyValues({"tokens": INTEGER, "acceptance": SharesByPosition(), "draft": NETWORK})
SCALING_SETTINGS = KeyValues(
    {
        **dict.fromkeys(("min", "max", "target"), INTEGER),
        **{name: DurationText() for name in ("interval", "down-after", "fail-at", "mtbf", "start")},
    }
)
ADMISSION_SETTINGS = KeyValues(
    {
        **dict.fromkeys(("max-queued-requests", "max-concurrent-requests", "active-prefill-tokens-threshold"), INTEGER),
        "queue-size": WholeNumber(minimum=0),
        **dict.fromkeys(("waiting-timeout", "queue-timeout"), DurationText()),
        "active-decode-blocks-threshold": Number(0, 1),
    }
)
TIER_SETTINGS = KeyValues(
    {
        **{name: Quantity("B", unit_required=True) for name in ("host", "disk", "store")},
        **{f"{name}-bandwidth": Quantity("B/s", unit_required=True) for name in ("host", "disk", "store")},
    }
)
ENGINE_SETTINGS = KeyValues(
    {
        "block-size": INTEGER,
        "receive-interval": INTEGER,
        "batch-wait-iterations": INTEGER,
        "batch-wait-share": Number(0, 1),
        "captured-sequences": INTEGER,
        "stream-interval": INTEGER,
        "sampling": Names("sampling", ".engines.records.record:SAMPLINGS"),
        "overhead": Quantity("s", unit_required=True),
        "stage-blocks": click.STRING,
        **dict.fromkeys(("adapters", "adapter-rank", "adapter-slots"), INTEGER),
        "adapter-skew": Number(0, 10),
    }
)


POOL_OPTIONS = (
    "replicas", "tensor", "pipeline", "expert_parallel", "attention_data_parallel", "expert_load", "gpu", "platform",
    "link", "clock", "unit", "power_limit", "engine", "precision", "weights", "kv_cache", "max_batched_tokens",
    "max_sequences", "chunked_prefill", "memory_fraction", "prefix_hit_rate", "time_model", "calibration",
)  # fmt: skip
"""Options of `serve` that a pool may have for itself; what it leaves out is that of the question."""


class PoolSettings(KeyValues):
    """Settings of a pool, whose types are those of the options."""

    def __init__(self) -> None:  # the types are read from the record, which has an option of this type itself
        pass

    @functools.cached_property
    def types(self) -> dict[str, Any]:  # type: ignore[override]
        """Types of the settings by the name of the option."""
        declared = options_of(Serve)
        spellings = {name: documented_spelling(name, declared[name]).removeprefix("--") for name in POOL_OPTIONS}
        return {spelling: declared[name].type for name, spelling in spellings.items()}


USUAL_TOKENS = (1024, 256)
"""Tokens of a prompt and of an answer where none are given."""

SPEECH_TOKENS = (4, 100)
"""Tokens where none are given, of networks that write what is said: those with which an answer begins, its start, the
language, the task, and that it has no times (Radford et al. 2022, figure 1), and those of what is said in a window of
30 s: 75 words at 150 words a minute, of 4/3 tokens each (as OpenAI's pages count English words:
https://help.openai.com, "What are tokens")."""


@dataclass(frozen=True)
class Serve(
    PriceOptions, SiteOptions, TimeModelOptions, ExpertOptions, WeightOptions, DeviceOptions, NetworkAsked
):  # fmt: skip
    """Predict latencies, throughput, saturation, cost and energy of a language model that serves requests.

    Several values of options are a comparison of all combinations; with --advise devices are ranked.
    """

    precision: Several[str | None] = option(
        group=NETWORK_GROUP, is_common=True, type=INFERENCE_PRECISIONS, metavar="NAME",
        spellings=("--precision", "--dtype"),
        help="Precision of the arithmetic. [default: that of --weights on devices that compute in it, otherwise bf16]",
    )  # fmt: skip
    platform: Several[str | None] = option(
        group=DEVICE_GROUP, is_common=True, type=PLATFORM, metavar="NAME|FILE",
        help="Computer of the devices, by name, p4d.24xlarge or dgx-h100.",
    )  # fmt: skip
    link: str | None = option(
        group=DEVICE_GROUP, type=LINK, metavar="LINK",
        help="Link between the devices of a replica: ethernet20, '25 GB/s'. [default: that of the platform, or the "
        "fastest of the device]",
    )  # fmt: skip
    workers: Several[int | None] = option(
        group=PARALLEL_GROUP, is_common=True, type=INTEGER, metavar="N",
        help="Number of devices. [default: --tensor times --pipeline times --replicas]",
    )  # fmt: skip
    tensor: Several[int | None] = option(
        group=PARALLEL_GROUP, is_common=True, type=INTEGER, metavar="N",
        spellings=("--tensor", "--tensor-parallel-size", "--tp-size", "--tp", "-tp"),
        help="Devices of a stage, which divide all matrices among themselves. [default: 1]",
    )  # fmt: skip
    pipeline: Several[int | None] = option(
        group=PARALLEL_GROUP, is_common=True, type=INTEGER, metavar="N",
        spellings=("--pipeline", "--pipeline-parallel-size", "--pp-size", "-pp"),
        help="Pipeline stages of a replica, which has --tensor times --pipeline devices. [default: 1]",
    )  # fmt: skip
    replicas: Several[int | None] = option(
        group=PARALLEL_GROUP, is_common=True, type=INTEGER, metavar="N",
        spellings=("--replicas", "--data-parallel-size", "--dp-size", "--dp", "-dp"),
        help="Replicas, which take requests in turn. [default: 1]",
    )  # fmt: skip
    router: str = option(
        "round-robin", group=PARALLEL_GROUP, type=Names("router", ".serving.routers:ROUTERS"), metavar="NAME",
        help="How replicas share the requests: in turn, at random, least-loaded, by the prefix that their caches hold, "
        "scored by prefix, free cache and queue, or sticky by session.",
    )  # fmt: skip
    scaling: dict[str, Any] | str | None = option(
        group=PARALLEL_GROUP, type=SCALING_SETTINGS, metavar="KEY=VALUE,...",
        help="Replicas that come and go: with the load, max=N and target=N (requests per replica, running and "
        "waiting), min=N (default 1), interval=TIME (15s), down-after=TIME (5min); by failures, whose requests "
        "are sent again, fail-at=TIME after the first request, mtbf=TIME (mean between failures of a device: 50000h of "
        "H100 in Meta's training of Llama 3); start=TIME of a replica (default: from published starts).",
    )  # fmt: skip
    admission: dict[str, Any] | str | None = option(
        group=PARALLEL_GROUP, type=ADMISSION_SETTINGS, metavar="KEY=VALUE,...",
        help="What is refused: of each server, max-queued-requests=N (that wait) and waiting-timeout=TIME (SGLang); of "
        "the gateway, max-concurrent-requests=N, of which no more are let through, with a queue, queue-size=N (100) "
        "and queue-timeout=TIME (1min) (SGLang's), or busy replicas, which get no requests, "
        "active-decode-blocks-threshold=FRACTION (of the cache) and active-prefill-tokens-threshold=N (Dynamo's).",
    )  # fmt: skip
    prefill_pool: dict[str, Any] | str | None = option(
        group=PARALLEL_GROUP, is_common=True, type=PoolSettings(), metavar="OPTION=VALUE,...",
        help="Replicas that compute prompts only, and send keys and values to those of --decode-pool: replicas=N and "
        "options of `serve` by their names, such as gpu, tensor, engine. What a pool leaves out is as for all.",
    )  # fmt: skip
    decode_pool: dict[str, Any] | str | None = option(
        group=PARALLEL_GROUP, is_common=True, type=PoolSettings(), metavar="OPTION=VALUE,...",
        help="With --prefill-pool: replicas that decode. [default: those of the other options]",
    )  # fmt: skip
    input_tokens: Several[int | str | None] = option(
        group=TRAFFIC_GROUP, is_common=True, metavar="TOKENS",
        spellings=("--input-tokens", "--random-input-len", "--isl"),
        help="Tokens of a prompt: 1024, 2k, mean:std as 1024:256, or a data set: azure-conversation, azure-code. "
        f"[default: {USUAL_TOKENS[0]}; {SPEECH_TOKENS[0]} of networks that read sound, which begin the answer]",
    )  # fmt: skip
    output_tokens: Several[int | str | None] = option(
        group=TRAFFIC_GROUP, is_common=True, metavar="TOKENS",
        spellings=("--output-tokens", "--random-output-len", "--osl"),
        help="Tokens of an answer: 256, mean:std as 256:64, or a data set. "
        f"[default: {USUAL_TOKENS[1]}; {SPEECH_TOKENS[1]} of networks that read sound, which 30 s of speech take]",
    )  # fmt: skip
    rate: Several[float | str | None] = option(
        group=TRAFFIC_GROUP, is_common=True, metavar="RATE", spellings=("--rate", "--request-rate"),
        help="Requests per second of an open loop; inf sends all requests at once.",
    )  # fmt: skip
    concurrency: Several[int | None] = option(
        group=TRAFFIC_GROUP, is_common=True, type=INTEGER, metavar="USERS",
        spellings=("--concurrency", "--max-concurrency"),
        help="Users of a closed loop, each of whom sends a request when the previous one is answered.",
    )  # fmt: skip
    requests: str | Path | None = option(
        group=TRAFFIC_GROUP, type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
        help="Requests instead of --rate: CSV with the columns arrival_s, input_tokens and output_tokens, or JSON "
        "lines as in Mooncake's traces (timestamp, input_length, output_length, hash_ids), whose prefixes are found.",
    )  # fmt: skip
    num_requests: int | None = option(
        group=TRAFFIC_GROUP, type=INTEGER, metavar="N", spellings=("--num-requests", "--num-prompts"),
        help="Number of requests. [default: 1000 per replica, or 10 per user]",
    )  # fmt: skip
    arrivals: str = option(
        "poisson",
        group=TRAFFIC_GROUP,
        type=ListedNames("arrival process", ("poisson", "fixed")),
        help="Arrival process of --rate.",
    )
    workload: str | None = option(
        group=TRAFFIC_GROUP, is_single=True, metavar="KIND:KEY=VALUE,...",
        help="Prompts with beginnings in common, instead of lengths: shared-prefix:groups=150,prompts=5,system=6000,"
        "question=1200,output=1000, conversation:turns=10,clients=0,question=512,output=256,think=0s,barrier=0, "
        "agent:turns=20,system=8000,question=1000,output=200,tool=2s or best-of:samples=8,prompt=1000,output=500 (the "
        "defaults). classes:NAME.KEY=VALUE,... divides requests of other lengths: share=WEIGHT, priority=N (lower ones "
        "first), input=TOKENS, output=TOKENS, and limits of a request, ttft=TIME, tpot=TIME, latency=TIME.",
    )  # fmt: skip
    seed: int = option(
        0, group=TRAFFIC_GROUP, type=WholeNumber(minimum=0), metavar="N",
        help="Seed of all that is left to chance: arrivals, lengths, routers, delays, failures. [default: 0]",
    )  # fmt: skip
    engine: Several[str] = option(
        "vllm", group=ENGINE_GROUP, is_common=True, metavar="NAME",
        type=Names("serving engine", ".engines.records:SERVERS"),
        help="Engine, with its defaults of batches and memory.",
    )  # fmt: skip
    max_batched_tokens: Several[int | None] = option(
        group=ENGINE_GROUP, type=TOKENS, metavar="N",
        spellings=("--max-batched-tokens", "--max-num-batched-tokens", "--max-prefill-tokens"),
        help="Tokens per iteration.",
    )  # fmt: skip
    max_sequences: Several[int | None] = option(
        group=ENGINE_GROUP, is_common=True, type=INTEGER, metavar="N",
        spellings=("--max-sequences", "--max-num-seqs", "--max-running-requests"),
        help="Sequences that run at the same time.",
    )  # fmt: skip
    chunked_prefill: Several[int | None] = option(
        group=ENGINE_GROUP, is_common=True, type=TokenCount(minimum=0), metavar="TOKENS",
        spellings=("--chunked-prefill", "--chunked-prefill-size"),
        help="Tokens of prompts per iteration, into which longer prompts are split; 0 for whole prompts.",
    )  # fmt: skip
    memory_fraction: Several[float | None] = option(
        group=ENGINE_GROUP, is_common=True, type=NUMBER, metavar="FRACTION",
        spellings=("--memory-fraction", "--gpu-memory-utilization", "--mem-fraction-static"),
        help="Fraction of the memory for weights, activations and cache, or in tensorrt-llm of the free memory.",
    )  # fmt: skip
    prefix_hit_rate: Several[float] = option(
        0.0, group=ENGINE_GROUP, is_common=True, type=Number(0, 1), metavar="FRACTION",
        help="Fraction of every prompt that the prefix cache holds. [default: 0]",
    )  # fmt: skip
    cache_tiers: dict[str, Any] | str | None = option(
        group=ENGINE_GROUP, type=TIER_SETTINGS, metavar="KEY=VALUE,...",
        help="What the prefix cache has below the memory of the devices: host=SIZE and disk=SIZE of each replica, "
        "store=SIZE of all together, and host-bandwidth=RATE, disk-bandwidth, store-bandwidth.",
    )  # fmt: skip
    speculation: dict[str, Any] | str | None = option(
        group=ENGINE_GROUP, is_common=True, type=SPECULATION_SETTINGS, metavar="KEY=VALUE,...",
        help="Speculative decoding: tokens=N (drafted per iteration), acceptance=PROBABILITY (that a drafted token is "
        "accepted, default 0, or by position as engines print it: 0.76,0.60,0.50), draft=NETWORK, or heads of the "
        "network: mtp, eagle3, or parallel for all tokens at once (default: drafting is free, as with n-grams).",
    )  # fmt: skip
    engine_settings: dict[str, Any] | str | None = option(
        group=ENGINE_GROUP, type=ENGINE_SETTINGS, metavar="KEY=VALUE,...",
        help="Settings of the engine: block-size=TOKENS (per block of the KV cache), receive-interval=N (decoding "
        "iterations between looks for new requests: sglang, vllm-0.7), batch-wait-iterations=N (for which "
        "prompts wait at most until an iteration has batch-wait-share=FRACTION of its tokens or, with "
        "--attention-data-parallel, each rank a prompt: tensorrt-llm), captured-sequences=N (of a rank, up to which "
        "CUDA graphs are replayed; larger batches wait for the launches of their kernels; default: all), "
        "stream-interval=N (tokens that are sent to a client together: tensorrt-llm), sampling=nucleus|greedy (how "
        "clients let vllm choose tokens: top-p or top-k, the default of vllm and vllm-0.16, or the most likely, that "
        "of vllm-0.13), overhead=TIME (per iteration, in which the device waits "
        "for scheduler and sampling, such as '1 ms'), stage-blocks=N+N (blocks of every stage of --pipeline, as "
        "VLLM_PP_LAYER_PARTITION states them); LoRA: adapters=N (of which each request asks for one), adapter-rank=N "
        "(16), adapter-slots=N (in memory and in a batch at a time, 1), adapter-skew=NUMBER (of their popularity, 0: "
        "all alike).",
    )  # fmt: skip
    slo: dict[str, Any] | str | None = option(
        group=TRAFFIC_GROUP, is_common=True, is_single=True, type=TimeLimits(), metavar="LIMITS",
        help="Objectives such as ttft=500ms,tpot.p99=50ms (p90 unless given): the highest rate that meets them. In "
        "Python also seconds by name, {'ttft': 0.5}.",
    )  # fmt: skip
    advise: str | None = option(
        group=TRAFFIC_GROUP, is_common=True, is_single=True, type=Names("ranking", ".serving.candidates:RANKINGS"),
        metavar="cost|hourly|joules", bare="cost",
        help="Rank devices, parallelism, weights and batch limits by the price of --rate (without it of a token), that "
        "of an hour or the joules of a token, and choose the best that meets --slo; without a value by cost.",
    )  # fmt: skip
    headroom: float | None = option(
        group=TRAFFIC_GROUP, type=Number(0, 1), metavar="FRACTION",
        help="With --advise: fraction of the lower end of the saturation rate that --rate leaves free. [default: 0.1]",
    )  # fmt: skip

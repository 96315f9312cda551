"""`serve`: a language model under traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import BadValue
from .compare import check_no_pipeline, check_single, compare, published_weights
from .completion import LINK, NETWORK, PLATFORM
from .kind import QuestionKind, make_function
from .option import Several, option
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
from .values import INTEGER, KeyValues, Names, Number, Quantity

if TYPE_CHECKING:
    from ..machines import Price
    from ..serving.answers import Serving
    from ..sweeps.comparison import Comparison

TRAFFIC_GROUP = "Traffic"

SPECULATION_SETTINGS = KeyValues({"tokens": INTEGER, "acceptance": Number(0, 1), "draft": NETWORK})
ENGINE_SETTINGS = KeyValues(
    {
        "block-size": INTEGER,
        "receive-interval": INTEGER,
        "sampling": Names("sampling", ".serving.iteration:SAMPLINGS"),
        "overhead": Quantity("s", unit_required=True),
    }
)


@dataclass(frozen=True)
class Serve(
    PriceOptions, SiteOptions, TimeModelOptions, ExpertOptions, WeightOptions, DeviceOptions, NetworkAsked
):  # fmt: skip
    """Predict latencies, throughput, saturation, cost and energy of a language model that serves requests.

    Several values of options are a comparison of all combinations; with --advise devices are ranked.
    """

    precision: Several[str] | None = option(
        group=NETWORK_GROUP, is_common=True, type=INFERENCE_PRECISIONS, metavar="NAME",
        spellings=("--precision", "--dtype"),
        help="Precision of the arithmetic. [default: that of --weights on devices that compute in it, otherwise bf16]",
    )  # fmt: skip
    platform: Several[str] | None = option(
        group=DEVICE_GROUP, is_common=True, type=PLATFORM, metavar="NAME|FILE",
        help="Computer of the devices, by name, p4d.24xlarge or dgx-h100.",
    )  # fmt: skip
    link: str | None = option(
        group=DEVICE_GROUP, type=LINK, metavar="LINK",
        help="Link between the devices of a replica: ethernet20, '25 GB/s'. [default: that of the platform, or the "
        "fastest of the device]",
    )  # fmt: skip
    workers: Several[int] | None = option(
        group=PARALLEL_GROUP, is_common=True, type=INTEGER, metavar="N",
        help="Number of devices. [default: --tensor times --pipeline times --replicas]",
    )  # fmt: skip
    tensor: Several[int] | None = option(
        group=PARALLEL_GROUP, is_common=True, type=INTEGER, metavar="N",
        spellings=("--tensor", "--tensor-parallel-size", "--tp-size", "--tp", "-tp"),
        help="Devices of a stage, which divide all matrices among themselves. [default: 1]",
    )  # fmt: skip
    pipeline: Several[int] | None = option(
        group=PARALLEL_GROUP, is_common=True, type=INTEGER, metavar="N",
        spellings=("--pipeline", "--pipeline-parallel-size", "--pp-size", "-pp"),
        help="Pipeline stages of a replica, which has --tensor times --pipeline devices. [default: 1]",
    )  # fmt: skip
    replicas: Several[int] | None = option(
        group=PARALLEL_GROUP, is_common=True, type=INTEGER, metavar="N",
        spellings=("--replicas", "--data-parallel-size", "--dp-size", "--dp", "-dp"),
        help="Replicas, which take requests in turn. [default: 1]",
    )  # fmt: skip
    prefill_workers: int = option(
        0, group=PARALLEL_GROUP, type=click.INT, metavar="N",
        help="Replicas that compute prompts only and send keys and values to the others (disaggregated serving).",
    )  # fmt: skip
    input_tokens: Several[int | str] = option(
        1024, group=TRAFFIC_GROUP, is_common=True, metavar="TOKENS",
        spellings=("--input-tokens", "--random-input-len"),
        help="Tokens of a prompt: 1024, mean:std as 1024:256, or a data set: azure-conversation, azure-code.",
    )  # fmt: skip
    output_tokens: Several[int | str] = option(
        256, group=TRAFFIC_GROUP, is_common=True, metavar="TOKENS",
        spellings=("--output-tokens", "--random-output-len"),
        help="Tokens of an answer: 256, mean:std as 256:64, or a data set.",
    )  # fmt: skip
    rate: Several[float | str] | None = option(
        group=TRAFFIC_GROUP, is_common=True, metavar="RATE", spellings=("--rate", "--request-rate"),
        help="Requests per second of an open loop; inf sends all requests at once.",
    )  # fmt: skip
    concurrency: Several[int] | None = option(
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
        "poisson", group=TRAFFIC_GROUP, type=click.Choice(("poisson", "fixed")), help="Arrival process of --rate."
    )
    seed: int = option(
        0, group=TRAFFIC_GROUP, type=click.INT, metavar="N", help="Seed of arrivals and lengths. [default: 0]"
    )
    engine: Several[str] = option(
        "vllm", group=ENGINE_GROUP, is_common=True, metavar="NAME",
        type=Names("serving engine", ".engines.records:SERVERS"),
        help="Engine, with its defaults of batches and memory.",
    )  # fmt: skip
    max_batched_tokens: Several[int] | None = option(
        group=ENGINE_GROUP, type=INTEGER, metavar="N",
        spellings=("--max-batched-tokens", "--max-num-batched-tokens", "--max-prefill-tokens"),
        help="Tokens per iteration.",
    )  # fmt: skip
    max_sequences: Several[int] | None = option(
        group=ENGINE_GROUP, is_common=True, type=INTEGER, metavar="N",
        spellings=("--max-sequences", "--max-num-seqs", "--max-running-requests"),
        help="Sequences that run at the same time.",
    )  # fmt: skip
    chunked_prefill: Several[int] | None = option(
        group=ENGINE_GROUP, is_common=True, type=click.INT, metavar="TOKENS",
        spellings=("--chunked-prefill", "--chunked-prefill-size"),
        help="Tokens of prompts per iteration, into which longer prompts are split; 0 for whole prompts.",
    )  # fmt: skip
    memory_fraction: Several[float] | None = option(
        group=ENGINE_GROUP, is_common=True, type=click.FLOAT, metavar="FRACTION",
        spellings=("--memory-fraction", "--gpu-memory-utilization", "--mem-fraction-static"),
        help="Fraction of the memory for weights, activations and cache, or in tensorrt-llm of the free memory.",
    )  # fmt: skip
    prefix_hit_rate: Several[float] = option(
        0.0, group=ENGINE_GROUP, is_common=True, type=Number(0, 1), metavar="FRACTION",
        help="Fraction of every prompt that the prefix cache holds. [default: 0]",
    )  # fmt: skip
    speculation: dict[str, Any] | str | None = option(
        group=ENGINE_GROUP, is_common=True, type=SPECULATION_SETTINGS, metavar="KEY=VALUE,...",
        help="Speculative decoding: tokens=N (drafted per iteration), acceptance=PROBABILITY (that a drafted token is "
        "accepted, default 0), draft=NETWORK (default: drafting is free, as with n-grams).",
    )  # fmt: skip
    engine_settings: dict[str, Any] | str | None = option(
        group=ENGINE_GROUP, type=ENGINE_SETTINGS, metavar="KEY=VALUE,...",
        help="Settings of the engine: block-size=TOKENS (per block of the KV cache), receive-interval=N (decoding "
        "iterations between looks for new requests: sglang, vllm-0.7), sampling=nucleus|greedy (how clients let vllm "
        "choose tokens: top-p or top-k, the default, or the most likely), overhead=TIME (per iteration, in which the "
        "device waits for scheduler and sampling, such as '1 ms').",
    )  # fmt: skip
    slo: str | None = option(
        group=TRAFFIC_GROUP, is_common=True, is_single=True, metavar="LIMITS",
        help="Objectives such as ttft=500ms,tpot.p99=50ms (p90 unless given): the highest rate that meets them.",
    )  # fmt: skip
    advise: str | None = option(
        group=TRAFFIC_GROUP, is_common=True, is_single=True, type=Names("ranking", ".serving.candidates:RANKINGS"),
        metavar="cost|joules",
        help="Rank devices, parallelism, weights and batch limits by the price of --rate (without it of a token) or by "
        "the joules of a token, and choose the best that meets --slo.",
    )  # fmt: skip
    headroom: float | None = option(
        group=TRAFFIC_GROUP, type=Number(0, 1), metavar="FRACTION",
        help="With --advise: fraction of the lower end of the saturation rate that --rate leaves free. [default: 0.1]",
    )  # fmt: skip


def answer(question: Serve) -> Serving | Comparison:
    """Return the prediction of a deployment, several of them side by side, or a ranking of deployments."""
    several = question.several()
    for network in several.get("network", [question.network]):
        check_no_pipeline(network, "serve")
    if question.headroom is not None and (question.advise is None or question.rate is None):
        raise BadValue("`--headroom` is for `--advise` with `--rate`, which needs replicas")
    if question.advise is not None:
        if "network" in several:
            raise BadValue("`--advise` ranks deployments of one network: give one")
        check_single(question, ("gpu",))
        return _answer(question)
    listings = _choose_listings(question, several.get("gpu", ()))
    return compare(question, lambda single: _answer(single, listings))


def _answer(question: Serve, listings: Mapping[str, Price | None] | None = None) -> Serving:
    """Return the prediction of one deployment, or a ranking."""
    if question.network is None:
        raise BadValue("`serve` needs a language model, such as llama-3-8b")
    if question.seed < 0:
        raise BadValue(f"`--seed` must be an integer >= 0 (got {question.seed})")
    from ..api.serve import serve as serve_network
    from ..serving.candidates import DEFAULT_HEADROOM

    network: Any = question.network
    engine: Any = question.engine
    is_group = question.tensor or question.pipeline
    if question.link is not None and question.advise is None and not is_group:
        raise BadValue("`--link` joins the devices of a replica: give their number with `--tensor`")
    given: dict[str, Any] = {name: getattr(question, name) for name in _PASSED}
    if question.advise is None:
        given["weights"] = question.weights or published_weights(question)
    speculation, settings = _settings(question.speculation), _settings(question.engine_settings)
    if speculation and "tokens" not in speculation:
        raise BadValue("`--speculation` needs tokens=N, the tokens drafted per iteration")
    given |= {_SPECULATION[key]: value for key, value in speculation.items()}
    given |= {key.replace("-", "_"): value for key, value in settings.items()}
    return serve_network(
        network,
        expert_load=question.expert_load or "uniform",
        policy=engine,
        advise=question.advise is not None,
        by=question.advise or "cost",
        price=question.price_usd_per_h,
        price_of=question.price_of,
        **question.site_settings,
        listings=listings,
        headroom=DEFAULT_HEADROOM if question.headroom is None else question.headroom,
        **given,
    )


def _choose_listings(question: Serve, gpus: Sequence[Any]) -> dict[str, Price | None] | None:
    """Return the listings by which several devices are compared; None where each answer has its own price."""
    if not gpus or question.price_usd_per_h is not None or question.platform is not None:
        return None
    from ..api.arguments import to_paths
    from ..machines import find_device
    from ..serving.price_basis import choose_listings

    return choose_listings([find_device(gpu, to_paths(question.hardware_files)) for gpu in gpus], question.price_of)


def _settings(given: Any) -> dict[str, Any]:
    """Return settings, which the record has converted to a dict; none if there are none."""
    return {} if given is None else given


_SPECULATION = {"tokens": "draft_length", "acceptance": "acceptance", "draft": "draft"}
_PASSED = (
    "gpu", "platform", "link", "workers", "tensor", "expert_parallel", "attention_data_parallel", "pipeline",
    "replicas", "prefill_workers", "precision", "weights", "kv_cache", "input_tokens", "output_tokens", "rate",
    "concurrency", "requests", "num_requests", "arrivals", "seed", "max_batched_tokens", "max_sequences",
    "chunked_prefill", "memory_fraction", "prefix_hit_rate", "slo", "time_model", "calibration", "clock", "power_limit",
    "unit", "hardware_files",
)  # fmt: skip

serve = make_function("serve", Serve, answer)

SERVE = QuestionKind(
    name="serve",
    record=Serve,
    answer=answer,
    summary="Predict latency, throughput and cost of a language model that serves requests.",
    examples=(
        "llama-3-8b --gpu h100-sxm --input-tokens 1024 --output-tokens 256 --rate 5",
        "llama-3-70b --platform p5.48xlarge --tensor 4 --workers 8 --concurrency 64 --engine sglang",
        "llama-3-8b --gpu h100-sxm,l40s --rate 4",
        "llama-3-70b --gpu l40s --tensor 4 --pipeline 2 --rate 0.5",
        "llama-3-8b --gpu l40s --rate 2 --slo ttft=500ms,tpot=50ms",
        "llama-3-8b --gpu h100-sxm,l40s --rate 20 --slo tpot=30ms --advise cost",
    ),
)

"""``paleo-lite serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from . import options, scale_options, serving_options
from .answers import Answer, command
from .values import DEVICE, INTEGER, NETWORK, CommaSeparated, Names, Number, Quantity


@command()
@options.network()
@options.gpu(
    required=False,
    help="Device, by name or alias; may be omitted if the platform names it. With --advise several: h100-sxm,l40s.",
    type=CommaSeparated(DEVICE),
)
@scale_options.platform()
@scale_options.link(
    help="Link between the devices of a replica. [default: that of the platform, or the fastest of the device]"
)
@click.option(
    "--workers",
    type=INTEGER,
    metavar="N",
    help="Number of devices. [default: --tensor times --pipeline times --replicas]",
)
@serving_options.tensor()
@serving_options.expert_parallel()
@serving_options.attention_data_parallel()
@serving_options.expert_load(default="uniform")
@serving_options.pipeline()
@serving_options.replicas()
@click.option(
    "--prefill-workers",
    type=int,
    default=0,
    metavar="N",
    help="Replicas that compute prompts only and send keys and values to the others (disaggregated serving).",
)
@options.precision(type=options.INFERENCE_PRECISIONS, default="bf16")
@options.weights()
@serving_options.kv_cache()
@serving_options.input_tokens(default="1024")
@serving_options.output_tokens(default="256")
@serving_options.rate()
@serving_options.concurrency()
@click.option(
    "--requests",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="CSV file with the columns arrival_s, input_tokens and output_tokens, instead of --rate.",
)
@serving_options.num_requests()
@click.option(
    "--arrivals",
    type=click.Choice(("poisson", "fixed")),
    default="poisson",
    show_default=True,
    help="Arrival process of --rate.",
)
@serving_options.seed(default=0)
@serving_options.policy(default="vllm")
@click.option("--max-batched-tokens", type=INTEGER, metavar="N", help="Tokens per iteration.")
@click.option("--max-sequences", type=INTEGER, metavar="N", help="Sequences that run at the same time.")
@click.option(
    "--chunked-prefill",
    type=int,
    metavar="TOKENS",
    help="Tokens of prompts per iteration, into which longer prompts are split; 0 for whole prompts.",
)
@click.option("--block-size", type=INTEGER, metavar="TOKENS", help="Tokens per block of the KV cache.")
@click.option(
    "--memory-fraction",
    type=float,
    metavar="FRACTION",
    help="Fraction of the memory for weights, activations and cache, or in tensorrt-llm of the free memory.",
)
@click.option(
    "--receive-interval",
    type=INTEGER,
    metavar="N",
    help="Decoding iterations between looks for new requests (sglang, vllm-0.7).",
)
@click.option(
    "--sampling",
    type=Names("sampling", ".serving.engines:SAMPLINGS"),
    default="nucleus",
    show_default=True,
    help="How clients let vllm choose tokens: nucleus (top-p or top-k, as most networks' settings) or greedy.",
)
@click.option(
    "--overhead",
    type=Quantity("s", unit_required=True),
    metavar="TIME",
    help="Time per iteration in which the device waits for scheduler and sampling, such as '1 ms'.",
)
@click.option(
    "--prefix-hit-rate",
    type=Number(0, 1),
    default=0.0,
    metavar="FRACTION",
    help="Fraction of every prompt that the prefix cache holds. [default: 0]",
)
@click.option("--draft-length", type=int, default=0, metavar="N", help="Tokens drafted per iteration. [default: 0]")
@click.option(
    "--acceptance",
    type=Number(0, 1),
    default=0.0,
    metavar="PROBABILITY",
    help="Probability that a drafted token is accepted. [default: 0]",
)
@click.option("--draft", type=NETWORK, metavar="NETWORK", help="Draft network. [default: drafting is free]")
@click.option(
    "--slo",
    metavar="LIMITS",
    help="Objectives such as ttft=500ms,tpot.p99=50ms (p90 unless given): the highest rate that meets them.",
)
@click.option(
    "--advise",
    is_flag=True,
    help="Rank devices, parallelism, weights and batch limits; choose the cheapest that meets --slo at --rate.",
)
@click.option(
    "--by",
    type=Names("ranking", ".serving.candidates:RANKINGS"),
    default="cost",
    show_default=True,
    help="What --advise ranks by: the cost of a token, or its joules.",
)
@scale_options.price()
@scale_options.price_of()
@scale_options.facility()
@options.time_model("")
@options.calibration()
@options.clock()
@options.power_limit()
@options.unit()
@options.hardware_files()
def serve(**arguments: Any) -> Answer:
    """Predict latencies, throughput, saturation, cost and energy of the language model NETWORK that serves requests.

    \b
      paleo-lite serve llama-3-8b --gpu h100-sxm --input-tokens 1024 --output-tokens 256 --rate 5
      paleo-lite serve llama-3-70b --platform p5.48xlarge --tensor 4 --workers 8 --concurrency 64 --policy sglang
      paleo-lite serve llama-3-70b --gpu l40s --tensor 4 --pipeline 2 --rate 0.5
      paleo-lite serve llama-3-8b --gpu l40s --rate 2 --slo ttft=500ms,tpot=50ms
      paleo-lite serve llama-3-8b --gpu h100-sxm,l40s --rate 20 --slo tpot=30ms --advise --plot front.png
    """
    from ..api.serve import serve as predict_serving

    result = predict_serving(**arguments)
    return Answer(result.to_dict, result.document, lambda: result)

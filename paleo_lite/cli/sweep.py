"""``paleo-lite sweep``."""

from __future__ import annotations

from typing import Any

import click

from ..api.sweeps import sweep as run_sweep
from ..distributed.collectives import COLLECTIVES
from ..result import Result
from ..sweeps.space import AUTOMATIC, MAX_UNCONFIRMED_ROWS
from ..timing import TIME_MODELS
from . import options
from .options import command, progress
from .values import DEVICE, INTEGER, LINK, NETWORK, CommaSeparated, CompletedText, Names, Quantity


@command()
@click.option(
    "--network",
    "networks",
    required=True,
    type=NETWORK,
    metavar="NAMES",
    help="Networks, separated by commas, or all.",
)
@click.option(
    "--gpu",
    "gpus",
    required=True,
    type=DEVICE,
    metavar="DEVICES",
    help="Devices, separated by commas, or all.",
)
@click.option(
    "--precision",
    "precisions",
    type=CompletedText(".units:PRECISION_BYTES"),
    metavar="NAMES",
    help="Precisions, separated by commas, or all. [default: fp32, of servers and pipelines bf16]",
)
@click.option(
    "--phase",
    "phases",
    type=CompletedText(".counting:PHASES", ".counting:GENERATION_PHASES"),
    default="inference",
    show_default=True,
    metavar="NAMES",
    help="Phases, separated by commas, or all.",
)
@click.option(
    "--batch-size",
    "batch_sizes",
    default="1",
    show_default=True,
    metavar="RANGE",
    help="1,2,4 or 1:1024:x2 (doubling) or 8:64:+8; the global batch size for strong scaling, per worker for weak.",
)
@click.option(
    "--sequence-length",
    "sequence_lengths",
    metavar="RANGE",
    help="Tokens per sequence; in decode the tokens in the KV cache. [default: the length of each network]",
)
@click.option(
    "--power-limit",
    "power_limits",
    metavar="WATTS",
    help="Power limits of every device, such as 150W,200W,250W. [default: those in the data files]",
)
@click.option(
    "--clock",
    "clocks",
    metavar="CLOCKS",
    help="Clocks of every device: base, boost, or locked ones such as 1.2GHz. [default: those in the data files]",
)
@click.option(
    "--time-model",
    "time_models",
    type=CompletedText(".timing:TIME_MODELS"),
    default=AUTOMATIC,
    show_default=True,
    metavar="NAMES",
    help=f"{AUTOMATIC} (as chosen by `predict`), {', '.join(TIME_MODELS)}.",
)
@options.ppp()
@click.option(
    "--workers",
    default="1",
    show_default=True,
    metavar="RANGE",
    help="Numbers of devices; a range as for --batch-size.",
)
@click.option(
    "--strategy",
    "strategies",
    type=CompletedText(".distributed.strategies:STRATEGIES"),
    default="data",
    show_default=True,
    metavar="NAMES",
    help="Parallelism, as for `paleo-lite scale`.",
)
@click.option(
    "--scaling",
    "scalings",
    type=CompletedText(".distributed.scale:SCALINGS"),
    default="strong",
    show_default=True,
    metavar="NAMES",
    help="strong, weak, or strong,weak.",
)
@click.option(
    "--link",
    "links",
    type=LINK,
    default="",
    metavar="NAMES",
    help="Links between workers: names, or rates such as '25 GB/s'.",
)
@click.option(
    "--collective",
    "collectives",
    type=CompletedText(".distributed.collectives:COLLECTIVES"),
    default="",
    metavar="NAMES",
    help=f"All-reduce algorithms of gradients: {', '.join(COLLECTIVES)}. [default: the fastest]",
)
@options.optimizer(default="sgd", help="Optimizer of training.")
@click.option(
    "--samples",
    type=Quantity(""),
    default="1M",
    show_default=True,
    metavar="COUNT",
    help="Number of samples for hours, cost and energy.",
)
@options.price()
@options.price_of()
@click.option(
    "--power",
    type=Quantity("W"),
    metavar="WATTS",
    help="Power of one device. [default: by the power model]",
)
@click.option(
    "--rate",
    "rates",
    metavar="RATES",
    help="Simulate servers, as `paleo-lite serve` does, at these requests per second: 2,5,10.",
)
@click.option(
    "--concurrency",
    "concurrencies",
    type=CommaSeparated(INTEGER),
    metavar="RANGE",
    help="The same with these numbers of users; 1,2,4 or 1:64:x2.",
)
@click.option(
    "--tensor",
    type=CommaSeparated(INTEGER),
    metavar="RANGE",
    help="Servers: devices of a stage, which divide all matrices among themselves. [default: 1]",
)
@click.option(
    "--expert-parallel",
    type=CommaSeparated(INTEGER),
    metavar="RANGE",
    help="Servers: groups of the --tensor devices that divide the experts of a mixture. [default: 1]",
)
@click.option(
    "--attention-data-parallel",
    type=CommaSeparated(INTEGER),
    metavar="RANGE",
    help="Servers: groups of the --tensor devices that compute attention for sequences of their own. [default: 1]",
)
@click.option(
    "--pipeline",
    type=CommaSeparated(INTEGER),
    metavar="RANGE",
    help="Servers: pipeline stages of a replica. [default: 1]",
)
@click.option(
    "--replicas",
    type=CommaSeparated(INTEGER),
    metavar="RANGE",
    help="Servers: replicas, which take requests in turn. [default: 1]",
)
@click.option(
    "--weights",
    type=CompletedText(".formats:FORMATS"),
    metavar="NAMES",
    help="Servers and pipelines: formats of the weights, separated by commas. [default: the precision]",
)
@click.option(
    "--kv-cache",
    type=Names("format of the KV cache", ".formats:FORMATS"),
    help="Servers: format of the KV cache. [default: the precision, but at least 16 bits]",
)
@click.option(
    "--input-tokens", metavar="TOKENS", help="Servers: tokens of a prompt, as for `paleo-lite serve`. [default: 1024]"
)
@click.option("--output-tokens", metavar="TOKENS", help="Servers: tokens of an answer. [default: 256]")
@click.option(
    "--policy", type=Names("serving engine", ".serving.engines:ENGINES"), help="Servers: engine. [default: vllm]"
)
@click.option(
    "--num-requests", type=INTEGER, metavar="N", help="Servers: requests of each row. [default: as for `serve`]"
)
@click.option("--seed", type=int, help="Servers: seed of arrivals and lengths. [default: 0]")
@click.option(
    "--image-size",
    "image_sizes",
    metavar="SIZES",
    help="Pipelines: sizes of pictures, separated by commas: 1024,1024x768. [default: that of each pipeline]",
)
@click.option(
    "--steps",
    type=CommaSeparated(INTEGER),
    metavar="RANGE",
    help="Pipelines: denoising steps. [default: those of each pipeline]",
)
@click.option(
    "--frames",
    type=CommaSeparated(INTEGER),
    metavar="RANGE",
    help="Pipelines: frames of a video. [default: those of each pipeline]",
)
@click.option(
    "--ulysses",
    type=CommaSeparated(INTEGER),
    metavar="RANGE",
    help="Pipelines: devices that exchange tokens for heads of the denoiser. [default: 1]",
)
@click.option(
    "--ring",
    type=CommaSeparated(INTEGER),
    metavar="RANGE",
    help="Pipelines: groups of devices around a ring. [default: 1]",
)
@click.option(
    "--execution",
    "executions",
    type=CompletedText(".counting.fusion:EXECUTIONS", ".timing.pipelines:EXECUTIONS"),
    metavar="NAMES",
    help="Pipelines: executions, separated by commas. [default: eager]",
)
@click.option(
    "--offload",
    "offloads",
    type=CommaSeparated(Names("offload", ".timing.workload:OFFLOADS", ".timing.pipelines:PIPELINE_OFFLOADS")),
    metavar="NAMES",
    help="Pipelines: placements of parameters, separated by commas. [default: none]",
)
@options.hardware_files()
@options.output(help=".parquet or .csv file.", required=True)
@options.force()
@click.option("--yes", is_flag=True, help=f"Run even with more than {MAX_UNCONFIRMED_ROWS:,} combinations.")
@click.option("--dry-run", is_flag=True, help="Only print the number of combinations.")
@options.jobs()
@options.scheduler()
def sweep(**arguments: Any) -> Result:
    """Predict every combination of networks, devices, batch sizes, ... and write the results to a file.

    \b
      paleo-lite sweep --network resnet50,vgg16 --gpu all --batch-size 1:1024:x2 -o sweep.parquet
      paleo-lite sweep --network all --gpu k80-die,v100-sxm2 --precision fp32,fp16 --phase training \\
        --batch-size 32:512:x2 --workers 1,2,4,8 --link pcie3-x16,'100 Gbit/s' -o training.parquet
      paleo-lite best sweep.parquet --minimise cost --where "hours < 1"
      paleo-lite sweep --network resnet50 --gpu v100-sxm2 --power-limit 150W,200W,250W,300W -o limits.parquet
      paleo-lite best limits.parquet --pareto time_s,energy_j
      paleo-lite sweep --network llama-3-8b --gpu a100-sxm-80gb,h100-sxm,l40s --rate 2,5,10 -o servers.parquet
      paleo-lite sweep --network sdxl,flux.1-dev --gpu rtx4090,l40s --image-size 512,1024 --steps 20,28 -o pictures.csv
      paleo-lite best pictures.csv --minimise time_per_image_s --where "image_size == 1024x1024"
      paleo-lite best servers.parquet --minimise usd_per_million_output_tokens --where "ttft_p50_s < 0.5"

    An infeasible combination gets a row with the reason. An interrupted sweep resumes when the command is repeated.
    """
    with progress("sweep, in chunks") as on_done:
        return run_sweep(on_done=on_done, **arguments)

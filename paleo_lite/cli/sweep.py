"""``paleo-lite sweep``."""

from __future__ import annotations

from typing import Any

import click

from ..api.sweeps import sweep as run_sweep
from ..questions.values import INTEGER, NETWORK, CompletedText, Names, Quantity
from ..result import Result
from ..sweeps.space import AUTOMATIC, MAX_UNCONFIRMED_ROWS
from . import options, pipeline_options, scale_options, serving_options, training_options
from .answers import command, progress


@command()
@click.option(
    "--network",
    "networks",
    required=True,
    type=NETWORK,
    metavar="NETWORK[,...]",
    help="Networks and pipelines, as for `predict`.",
)
@options.gpu.several("gpus")
@options.precision.several(
    "precisions",
    type=options.INFERENCE_PRECISIONS,
    default=None,
    help="Precisions. [default: fp32, of servers and pipelines bf16]",
)
@options.phase.several("phases", type=options.PHASES_AND_GENERATING)
@options.batch_size.several(
    "batch_sizes",
    metavar="N",
    help="Samples per pass; the global batch size for strong scaling, per worker for weak.",
)
@options.sequence_length.several(
    "sequence_lengths",
    help="Tokens per sequence; in decode the tokens in the KV cache. [default: the length of each network]",
)
@options.power_limit.several("power_limits")
@options.clock.several("clocks")
@click.option(
    "--time-model",
    "time_models",
    type=CompletedText(".timing:TIME_MODELS"),
    default=AUTOMATIC,
    show_default=True,
    metavar="NAME[,...]",
    help=f"Time models; {AUTOMATIC} as chosen by `predict`.",
)
@options.ppp()
@scale_options.workers.several(
    "workers", type=INTEGER, default=1, show_default=True, metavar="N", help="Numbers of devices."
)
@scale_options.strategy.several("strategies", help="Parallelism, as for `scale`.")
@scale_options.scaling.several(
    "scalings",
    default="strong",
    show_default=True,
    help="weak keeps the batch size per worker, strong the global batch size.",
)
@scale_options.link.several("links", default="", help="Links between workers: ethernet20, '25 GB/s'.")
@scale_options.collective.several("collectives", default="")
@training_options.optimizer(default="sgd", show_default=True, help="Optimizer of training.")
@training_options.samples(default="1M", show_default=True, help="Number of samples for hours, cost and energy.")
@scale_options.price()
@scale_options.price_of()
@click.option(
    "--power",
    type=Quantity("W"),
    metavar="WATTS",
    help="Power of one device. [default: by the power model]",
)
@serving_options.rate.several("rates", help="Simulate servers, as `serve` does, at these requests per second.")
@serving_options.concurrency.several("concurrencies", help="The same with these numbers of users.")
@serving_options.tensor.several("tensor")
@serving_options.expert_parallel.several("expert_parallel")
@serving_options.attention_data_parallel.several("attention_data_parallel")
@serving_options.expert_load()
@serving_options.pipeline.several("pipeline")
@serving_options.replicas.several("replicas")
@options.weights.several("weights")
@serving_options.kv_cache()
@serving_options.input_tokens()
@serving_options.output_tokens()
@serving_options.policy()
@serving_options.num_requests()
@serving_options.seed()
@options.picture_size.several("image_sizes", type=str, help="Sizes of pictures. [default: that of each pipeline]")
@pipeline_options.steps.several("steps")
@pipeline_options.frames.several("frames")
@pipeline_options.ulysses.several("ulysses")
@pipeline_options.ring.several("ring")
@options.execution.several(
    "executions",
    type=Names("execution", ".counting.fusion:EXECUTIONS", ".timing.pipeline_run:EXECUTIONS"),
    help="Executions of pipelines. [default: eager]",
)
@training_options.offload.several("offloads", help="Placements of the parameters of pipelines. [default: none]")
@options.hardware_files()
@options.output(help=".parquet or .csv file.", required=True)
@options.force()
@click.option("--yes", is_flag=True, help=f"Run even with more than {MAX_UNCONFIRMED_ROWS:,} combinations.")
@click.option("--dry-run", is_flag=True, help="Only print the number of combinations.")
@options.jobs()
@options.scheduler()
def sweep(**arguments: Any) -> Result:
    """Predict every combination of networks, devices, batch sizes, ... and write the results to a file.

    Options with [,...] take several values, separated by commas, or all; numbers also ranges: 1:1024:x2 (doubling) or
    8:64:+8. The options are those of predict and scale; with --rate or --concurrency those from --tensor to --seed are
    for servers, as of serve, and --image-size to --offload are for pipelines.

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

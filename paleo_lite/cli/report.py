"""``paleo-lite report``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from . import options
from .values import INTEGER, Names


@click.command()
@options.network(required=False)
@click.option("--profile", type=click.Path(path_type=Path), help="Profile to report on, instead of a network.")
@options.gpu()
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The HTML file.")
@options.force()
@options.precision()
@options.batch_size(default=None, help="Samples per pass. [default: 1; 32 per worker with --workers]")
@options.phase(
    type=options.PHASES_AND_GENERATING,
    default=None,
    help="Phase of the prediction. [default: inference; training with --workers]",
)
@options.time_model()
@options.ppp()
@options.calibration()
@options.clock()
@options.power_limit()
@options.unit()
@options.execution()
@options.fit_batch()
@options.optimizer()
@options.mixed_precision()
@options.checkpointing()
@options.accumulation()
@options.workers(help="Also predict this number of devices: 8, 1,2,4,...,128 or 1:128:x2.")
@options.link()
@options.topology()
@options.platform()
@options.scaling()
@options.strategy()
@options.collective()
@options.advise()
@options.images()
@options.epochs()
@options.price()
@click.option(
    "--rate",
    metavar="RATE",
    help="Requests per second: also predict the device as a server of the language model.",
)
@click.option("--input-tokens", metavar="TOKENS", help="Tokens of a prompt, with --rate. [default: 1024]")
@click.option("--output-tokens", metavar="TOKENS", help="Tokens of an answer, with --rate. [default: 256]")
@click.option(
    "--policy",
    type=Names("serving engine", ".serving.engines:ENGINES"),
    help="Serving engine, with --rate. [default: vllm]",
)
@options.name_pattern()
@click.option(
    "--program", metavar="COMMAND", help="Program in the suggested profiler commands. [default: python train.py]"
)
@options.picture_size()
@click.option("--steps", type=INTEGER, metavar="N", help="Denoising steps of a pipeline. [default: its own]")
@click.option("--frames", type=INTEGER, metavar="N", help="Frames of each video. [default: the pipeline's]")
@options.sequence_length()
@options.context()
@options.weights()
@options.inputs()
@options.hardware_files()
@options.debug()
def report(
    optimizer: str | None,
    mixed_precision: bool,
    checkpointing: str | None,
    accumulation: int | None,
    **arguments: Any,
) -> None:
    """Write a report of a prediction or a profile: one HTML file that opens offline.

    NETWORK is a shipped network, a descriptor file, or package.module:factory with --input, which is imported and
    called; with --profile it is omitted.

    \b
      paleo-lite report resnet50 --gpu v100-sxm2 --precision fp16 --batch-size 64 -o report.html
      paleo-lite report resnet50 --gpu k80-die --workers 1,2,4,...,64 --link ethernet20 --images 1.28M -o scaling.html
      paleo-lite report llama-3-8b --gpu h100-sxm --precision bf16 --phase decode --rate 5 -o serving.html
      paleo-lite report flux.1-dev --gpu rtx4090 --precision bf16 --steps 28 -o pictures.html
      paleo-lite report --profile run.parquet --gpu k40m -o profile.html
    """
    from ..api.reporting import report as write_report

    training = options.make_training_options(optimizer, mixed_precision, checkpointing, accumulation)
    written = write_report(training=training, **arguments)
    click.echo(f"{written.path}: {written.page.title}, {written.bytes / 1e6:.2f} MB", err=True)

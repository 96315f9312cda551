"""``paleo-lite report``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from . import options, pipeline_options, scale_options, serving_options, training_options


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
@training_options.optimizer()
@training_options.mixed_precision()
@training_options.checkpointing()
@training_options.accumulation()
@scale_options.workers(help="Also predict this number of devices: 8, 1,2,4,...,128 or 1:128:x2.")
@scale_options.link()
@scale_options.topology()
@scale_options.platform()
@scale_options.scaling()
@scale_options.strategy()
@scale_options.collective()
@scale_options.advise()
@training_options.images()
@training_options.epochs()
@scale_options.price()
@scale_options.price_of()
@serving_options.rate(help="Requests per second: also predict the device as a server of the language model.")
@serving_options.input_tokens()
@serving_options.output_tokens()
@serving_options.policy()
@options.name_pattern()
@click.option(
    "--program", metavar="COMMAND", help="Program in the suggested profiler commands. [default: python train.py]"
)
@options.picture_size()
@pipeline_options.steps()
@pipeline_options.frames()
@options.sequence_length()
@options.context()
@options.weights()
@options.inputs()
@scale_options.facility()
@options.hardware_files()
@options.debug()
def report(**arguments: Any) -> None:
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

    training = training_options.take_training_options(arguments)
    written = write_report(training=training, **arguments)
    click.echo(f"{written.path}: {written.page.title}, {written.bytes / 1e6:.2f} MB", err=True)

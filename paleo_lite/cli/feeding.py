"""``paleo-lite feeding``."""

from __future__ import annotations

from typing import Any

import click

from ..input_pipeline.feeding import DEFAULT_SAMPLE_BYTES
from ..questions.completion import LINK
from ..questions.names import Names
from ..questions.values import INTEGER, Number, Quantity
from ..result import Result
from . import options
from .answers import command


@command()
@options.network()
@options.gpu()
@click.option(
    "--storage",
    default="nvme",
    show_default=True,
    metavar="LINK|RATE",
    type=LINK,
    help="hdd, ssd, nvme, any other link, a rate such as '500 MB/s', or memory.",
)
@click.option(
    "--random-reads",
    type=Quantity("IOPS"),
    metavar="COUNT",
    help="Small random reads per second of the storage, such as 90k.",
)
@click.option(
    "--access",
    type=Names("access", ".input_pipeline.feeding:ACCESSES"),
    default="sequential",
    show_default=True,
    help="Access pattern of the samples.",
)
@click.option(
    "--sample-bytes",
    type=Quantity("B"),
    metavar="SIZE",
    default=DEFAULT_SAMPLE_BYTES,
    show_default=True,
    help="Size of one sample in storage.",
)
@click.option("--workers", type=INTEGER, default=8, show_default=True, help="Decoding workers, one CPU core each.")
@click.option("--decode-rate", type=Number(), metavar="RATE", help="Samples per second and worker. [default: 100]")
@click.option("--decoded", is_flag=True, help="Samples are stored decoded and augmented.")
@click.option(
    "--decoded-bytes",
    type=Quantity("B"),
    metavar="SIZE",
    help="Size of one decoded sample. [default: the elements of the network input in the precision]",
)
@click.option(
    "--host-link",
    metavar="LINK|RATE",
    type=LINK,
    help="Link or rate of host-to-device copies. [default: the device's own link]",
)
@click.option("--no-pinned", is_flag=True, help="Copy from pageable memory.")
@click.option("--no-prefetch", is_flag=True, help="Load, copy and compute one after the other, without prefetching.")
@options.precision()
@options.batch_size(default=32, help="Samples per step.")
@options.phase(default="training")
@click.option(
    "--devices",
    type=INTEGER,
    default=1,
    show_default=True,
    help="Number of devices of this kind that share the storage and the workers.",
)
@options.time_model()
@options.ppp()
@options.calibration()
@options.clock()
@options.power_limit()
@options.image_size()
@options.inputs()
@options.hardware_files()
def feeding(no_pinned: bool, no_prefetch: bool, **arguments: Any) -> Result:
    """Predict whether storage, decoding and the host link can keep a device busy, and which change would help most.

    \b
      paleo-lite feeding resnet50 --gpu v100-sxm2 --precision fp16 --batch-size 64
      paleo-lite feeding resnet50 --gpu k80-die --storage hdd --access random --workers 4
      paleo-lite feeding alexnet --gpu p100-sxm2 --no-pinned --no-prefetch
    """
    from ..api.feeding import feeding as predict_feeding

    return predict_feeding(pinned=not no_pinned, prefetch=not no_prefetch, **arguments)

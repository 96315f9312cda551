"""``paleo-lite feeding``."""

from __future__ import annotations

from typing import Any

import click

from . import options
from .command import Answer, command
from .completing import complete_links
from .values import WHOLE, Names, Number, Quantity


@command()
@options.network()
@options.gpu()
@click.option("--storage", default="nvme", shell_complete=complete_links, show_default=True,
              metavar="LINK|RATE",
              help="hdd, ssd, nvme, any other link, a rate such as '500 MB/s', or memory.")  # fmt: skip
@click.option(
    "--random-reads",
    type=Quantity("IOPS"),
    metavar="COUNT",
    help="Small reads per second at random places, such as 90k.",
)
@click.option("--access", type=Names("access", ".input_pipeline.feeding:ACCESSES"), default="sequential",
              show_default=True, help="How samples are read.")  # fmt: skip
@click.option(
    "--sample-bytes",
    type=Quantity("B"),
    default="110k",
    show_default=True,
    metavar="SIZE",
    help="Size of one sample in storage.",
)
@click.option("--workers", type=WHOLE, default=8, show_default=True, help="Decoding workers, one core each.")
@click.option(
    "--decode-rate",
    type=Number(),
    metavar="RATE",
    help="Samples per second and worker. [default: 100]",
)
@click.option("--decoded", is_flag=True, help="Samples are stored decoded and augmented.")
@click.option(
    "--decoded-bytes",
    type=Quantity("B"),
    metavar="SIZE",
    help="Size of one sample as copied. [default: its numbers in the precision]",
)
@click.option(
    "--host-link",
    metavar="LINK|RATE",
    shell_complete=complete_links,
    help="Link that copies go over. [default: the device's own]",
)
@click.option("--no-pinned", is_flag=True, help="Copies from pageable memory.")
@click.option("--no-prefetch", is_flag=True, help="Load, copy and compute one after the other, nothing ahead.")
@options.precision()
@options.batch_size(default=32, help="Samples per step.")
@options.phase(default="training")
@click.option(
    "--devices", type=WHOLE, default=1, show_default=True, help="Devices of this kind that share storage and workers."
)
@options.ppp()
@options.calibration()
@options.image_size()
@options.inputs()
@options.hardware_files()
def feeding(no_pinned: bool, no_prefetch: bool, **question: Any) -> Answer:
    """Say whether storage, CPU and host link can feed NETWORK on a device, what limits, and what would help most.

    \b
      paleo-lite feeding resnet50 --gpu v100-sxm2 --precision fp16 --batch-size 64
      paleo-lite feeding resnet50 --gpu k80-die --storage hdd --access random --workers 4
      paleo-lite feeding alexnet --gpu p100-sxm2 --no-pinned --no-prefetch
    """
    from ..api.feeding import feeding as feed

    answer = feed(pinned=not no_pinned, prefetch=not no_prefetch, **question)
    return Answer(answer.to_dict, answer.document)

"""``paleo-lite feeding``."""

from __future__ import annotations

import functools
from typing import Any

import click

from ..input_pipeline.feeding import SAMPLE
from ..result import Result
from . import options
from .options import Documented, command
from .values import LINK, WHOLE, Names, Number, Quantity

_option = functools.partial(click.option, cls=Documented, of="feeding", show_default=True)
_size = functools.partial(_option, type=Quantity("B"), metavar="SIZE")
_link = functools.partial(_option, metavar="LINK|RATE", type=LINK)


@command()
@options.network()
@options.gpu()
@_link("--storage", default="nvme")
@_option("--random-reads", type=Quantity("IOPS"), metavar="COUNT")
@_option("--access", type=Names("access", ".input_pipeline.feeding:ACCESSES"), default="sequential")
@_size("--sample-bytes", default=SAMPLE, help="Size of one sample in storage.")
@_option("--workers", type=WHOLE, default=8)
@_option("--decode-rate", type=Number(), metavar="RATE")
@_option("--decoded", is_flag=True, show_default=False)
@_size("--decoded-bytes", help="Size of one sample as copied. [default: its numbers in the precision]")
@_link("--host-link")
@click.option("--no-pinned", is_flag=True, help="Copies from pageable memory.")
@click.option("--no-prefetch", is_flag=True, help="Load, copy and compute one after the other, nothing ahead.")
@options.precision()
@options.batch_size(default=32, of="feeding")
@options.phase(default="training")
@_option("--devices", type=WHOLE, default=1)
@options.ppp()
@options.calibration()
@options.image_size()
@options.inputs()
@options.hardware_files()
def feeding(no_pinned: bool, no_prefetch: bool, **question: Any) -> Result:
    """Say whether storage, CPU and host link can feed NETWORK on a device, what limits, and what would help most.

    \b
      paleo-lite feeding resnet50 --gpu v100-sxm2 --precision fp16 --batch-size 64
      paleo-lite feeding resnet50 --gpu k80-die --storage hdd --access random --workers 4
      paleo-lite feeding alexnet --gpu p100-sxm2 --no-pinned --no-prefetch
    """
    from ..api.feeding import feeding as feed

    return feed(pinned=not no_pinned, prefetch=not no_prefetch, **question)

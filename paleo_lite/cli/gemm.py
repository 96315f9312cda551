"""``paleo-lite gemm``."""

from __future__ import annotations

from typing import Any

import click

from . import options
from .command import Answer, command
from .values import SHAPE, WHOLE


@command()
@click.argument("m", type=WHOLE)
@click.argument("n", type=WHOLE)
@click.argument("k", type=WHOLE)
@options.gpu(required=False)
@click.option("--peak", metavar="RATE", help='A bare peak such as "6000 GFLOP/s", in place of a device.')
@options.precision()
@click.option("--count", type=WHOLE, default=1, show_default=True, help="How many such products.")
@click.option(
    "--into", type=WHOLE, default=1, show_default=True,
    help="Stack them into this many: products that share their right operand become one with more rows.",
)  # fmt: skip
@click.option(
    "--tile",
    default="64x64",
    show_default=True,
    type=SHAPE,
    metavar="ROWSxCOLUMNS",
    help="Size of the tiles that waves consist of.",
)
@options.time_model()
@options.calibration()
@options.clock()
@options.unit()
@options.hardware_files()
def gemm(**question: Any) -> Answer:
    """Time the product of an M x K and a K x N matrix, or several, and say what putting them into one gains.

    \b
      paleo-lite gemm 512 64 512 --peak "6000 GFLOP/s"
      paleo-lite gemm 512 64 512 --count 8 --into 2 --gpu titanx-maxwell
      paleo-lite gemm 4096 4096 4096 --gpu a100-sxm-80gb --precision bf16
    """
    from ..api.gemm import gemm as time_products

    times = time_products(**question)
    return Answer(times.to_dict, times.document)

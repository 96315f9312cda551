"""``paleo-lite gemm``."""

from __future__ import annotations

import functools
from typing import Any

import click

from ..result import Result
from . import options
from .options import Documented, command
from .values import SHAPE, WHOLE

_option = functools.partial(click.option, cls=Documented, of="gemm", show_default=True)


@command()
@click.argument("m", type=WHOLE)
@click.argument("n", type=WHOLE)
@click.argument("k", type=WHOLE)
@options.gpu(required=False)
@_option("--peak", metavar="RATE")
@options.precision()
@_option("--count", type=WHOLE, default=1)
@_option("--into", type=WHOLE, default=1)
@_option("--tile", default="64x64", type=SHAPE, metavar="ROWSxCOLUMNS")
@options.time_model()
@options.calibration()
@options.clock()
@options.unit()
@options.hardware_files()
def gemm(**question: Any) -> Result:
    """Time the product of an M x K and a K x N matrix, or several, and say what putting them into one gains.

    \b
      paleo-lite gemm 512 64 512 --peak "6000 GFLOP/s"
      paleo-lite gemm 512 64 512 --count 8 --into 2 --gpu titanx-maxwell
      paleo-lite gemm 4096 4096 4096 --gpu a100-sxm-80gb --precision bf16
    """
    from ..api.gemm import gemm as time_products

    return time_products(**question)

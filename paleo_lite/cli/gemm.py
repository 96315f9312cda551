"""``paleo-lite gemm``."""

from __future__ import annotations

from typing import Any

import click

from ..questions.predict import ENGINES
from ..questions.values import INTEGER
from ..result import Result
from . import options
from .answers import command
from .values import SHAPE


@command()
@click.argument("m", type=INTEGER)
@click.argument("n", type=INTEGER)
@click.argument("k", type=INTEGER)
@options.gpu(required=False)
@click.option("--peak", metavar="RATE", help="Peak in FLOP/s instead of a device, such as '6000 GFLOP/s'.")
@options.precision()
@options.weights(
    help="Format in which the right operand is stored: fp8-block, nvfp4, int4, ... [default: that of the precision]"
)
@click.option(
    "--engine", "policy", type=ENGINES, help="Engine whose kernels are timed. [default: the mean of all engines]"
)
@click.option("--count", type=INTEGER, default=1, show_default=True, help="Number of products.")
@click.option(
    "--into",
    type=INTEGER,
    default=1,
    show_default=True,
    help="Number of products after batching: products that share their right operand become one with more rows.",
)
@click.option(
    "--tile",
    default="64x64",
    show_default=True,
    type=SHAPE,
    metavar="ROWSxCOLUMNS",
    help="Rows and columns of the output tiles that form waves.",
)
@options.time_model("")
@options.calibration()
@options.clock()
@options.power_limit()
@options.unit()
@options.hardware_files()
def gemm(**arguments: Any) -> Result:
    """Predict the time of matrix products (M x K) @ (K x N), and the gain of batching several into one.

    \b
      paleo-lite gemm 512 64 512 --peak "6000 GFLOP/s"
      paleo-lite gemm 512 64 512 --count 8 --into 2 --gpu titanx-maxwell
      paleo-lite gemm 4096 4096 4096 --gpu a100-sxm-80gb --precision bf16
    """
    from ..api.gemm import gemm as predict_products

    return predict_products(**arguments)

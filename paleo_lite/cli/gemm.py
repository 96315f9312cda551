"""``paleo-lite gemm``."""

from __future__ import annotations

from typing import Any

import click

from ..questions.gemm import MatrixProducts
from ..result import Result
from .answers import command


@command(MatrixProducts)
@click.argument("m")
@click.argument("n")
@click.argument("k")
def gemm(**arguments: Any) -> Result:
    """Predict the time of matrix products (M x K) @ (K x N), and the gain of batching several into one.

    \b
      paleo-lite gemm 512 64 512 --peak "6000 GFLOP/s"
      paleo-lite gemm 512 64 512 --count 8 --into 2 --gpu titanx-maxwell
      paleo-lite gemm 4096 4096 4096 --gpu a100-sxm-80gb --precision bf16
      paleo-lite gemm 1,2,4,...,128 4096 4096 --gpu a100-sxm-80gb --precision bf16
    """
    from ..questions.gemm import answer

    return answer(MatrixProducts(**arguments))

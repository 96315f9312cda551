"""``paleo-lite gemm``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..errors import BadValue
from ..units import parse_quantity
from . import options
from .command import Answer, command
from .options import SHAPE, WHOLE


@command()
@click.argument("m", type=WHOLE)
@click.argument("n", type=WHOLE)
@click.argument("k", type=WHOLE)
@options.gpu(required=False)
@click.option("--peak", metavar="RATE", help='A bare peak such as "6000 GFLOP/s", in place of a device.')
@options.precision()
@click.option("--count", "products", type=WHOLE, default=1, show_default=True, help="How many such products.")
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
def gemm(
    m: int,
    n: int,
    k: int,
    gpu: str | None,
    peak: str | None,
    precision: str,
    time_model: str | None,
    calibration: str | None,
    clock: str | None,
    unit: str | None,
    hardware_files: tuple[Path, ...],
    **way: Any,
) -> Answer:
    """Time the product of an M x K and a K x N matrix, or several, and say what putting them into one gains.

    \b
      paleo-lite gemm 512 64 512 --peak "6000 GFLOP/s"
      paleo-lite gemm 512 64 512 --count 8 --into 2 --gpu titanx-maxwell
      paleo-lite gemm 4096 4096 4096 --gpu a100-sxm-80gb --precision bf16
    """
    from ..calibration.choose import choose_model
    from ..hardware import Machine, find_device
    from ..report.gemm import gemm_page
    from ..timing import find_model
    from ..timing.gemm import time_gemms

    if peak is not None and (calibration or clock or unit or time_model not in (None, "peak")):
        raise BadValue("a bare peak takes no calibration, clock or unit, and no time model but peak")
    machine, model = None, find_model("peak")
    if gpu is not None:
        machine = Machine(find_device(gpu, hardware_files), clock, unit)
        model = choose_model(machine.device, precision, time_model, calibration=calibration)
    peak_per_s = None if peak is None else parse_quantity(peak, "FLOP/s")
    times = time_gemms(m, n, k, precision, model, machine=machine, peak_per_s=peak_per_s, **way)
    return Answer(times.to_dict, lambda: gemm_page(times))

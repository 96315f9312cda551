"""``paleo-lite gemm``."""

from __future__ import annotations

from pathlib import Path

import click

from ..errors import BadValue
from ..timing import TIME_MODELS
from ..units import PRECISION_BYTES, parse_quantity, parse_shape
from .common import WHOLE, complete_devices, hardware_files, output_options, show


@click.command()
@click.argument("m", type=WHOLE)
@click.argument("n", type=WHOLE)
@click.argument("k", type=WHOLE)
@click.option("--gpu", metavar="DEVICE", shell_complete=complete_devices, help="The device, such as v100-sxm2.")
@click.option("--peak", metavar="RATE", help='A bare peak such as "6000 GFLOP/s", in place of a device.')
@click.option(
    "--precision", type=click.Choice(list(PRECISION_BYTES)), default="fp32", show_default=True, help="Of the numbers."
)
@click.option("--count", "products", type=WHOLE, default=1, show_default=True, help="How many such products.")
@click.option(
    "--into", type=WHOLE, default=1, show_default=True,
    help="Stack them into this many: products that share their right operand become one with more rows.",
)  # fmt: skip
@click.option(
    "--tile",
    default="64x64",
    show_default=True,
    metavar="ROWSxCOLUMNS",
    help="Size of the tiles that waves consist of.",
)
@click.option(
    "--time-model", type=click.Choice([name for name, entry in TIME_MODELS.items() if not entry.takes]),
    help="Default: calibrated where a calibration or the pool covers the device, else roofline.",
)  # fmt: skip
@click.option("--calibration", metavar="FILE|NAME", help="A calibration; default: the shipped one.")
@click.option("--clock", type=click.Choice(["base", "boost"]), help="Default: the device's own.")
@click.option("--unit", type=click.Choice(["vector", "tensor"]), help="Default: the faster one.")
@hardware_files
@output_options
def gemm(
    m: int,
    n: int,
    k: int,
    gpu: str | None,
    peak: str | None,
    precision: str,
    products: int,
    into: int,
    tile: str,
    time_model: str | None,
    calibration: str | None,
    clock: str | None,
    unit: str | None,
    hardware_files: tuple[Path, ...],
    style: str,
) -> None:
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

    if (gpu is None) == (peak is None):
        raise BadValue('give a device with --gpu, or a bare peak with --peak "6000 GFLOP/s": one of the two')
    if peak is not None and (calibration or clock or unit or time_model not in (None, "peak")):
        raise BadValue("a bare peak takes no calibration, clock or unit, and no time model but peak")
    sizes = parse_shape(tile)
    if len(sizes) != 2:
        raise BadValue(f"a tile has rows and columns, such as 128x64: not {tile!r}")
    device = None if gpu is None else find_device(gpu, hardware_files)
    model = find_model("peak")
    if device is not None:
        model = choose_model(device, precision, time_model, calibration=calibration)
    times = time_gemms(
        m,
        n,
        k,
        precision,
        model,
        machine=None if device is None else Machine(device, clock, unit),
        peak_per_s=None if peak is None else parse_quantity(peak, "FLOP/s"),
        products=products,
        into=into,
        tile=(sizes[0], sizes[1]),
    )
    show(style, times.to_dict, lambda: gemm_page(times))

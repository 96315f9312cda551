"""Matrix products: `gemm`."""

from __future__ import annotations

from ..calibration.choose import choose_model
from ..calibration.store import Calibration
from ..errors import BadValue
from ..hardware import Device, Machine, find_device
from ..timing import find_model
from ..timing.gemm import time_gemms
from ..timing.gemm_times import GemmTimes
from ..units import parse_quantity, parse_shape
from .profiles import Paths, paths_of


def gemm(
    m: int,
    n: int,
    k: int,
    *,
    gpu: str | Device | None = None,
    peak: float | str | None = None,
    precision: str = "fp32",
    count: int = 1,
    into: int = 1,
    tile: str | tuple[int, ...] = (64, 64),
    time_model: str | None = None,
    calibration: str | Calibration | None = None,
    clock: str | None = None,
    unit: str | None = None,
    hardware_files: Paths = (),
) -> GemmTimes:
    """Time the product of an M x K and a K x N matrix, or several, and say what putting them into one gains.

    Parameters
    ----------
    m, n, k : int
    gpu : str or Device, optional
    peak : float or str, optional
        A bare peak in FLOP/s, such as ``"6000 GFLOP/s"``, in place of a device.
    precision : str
    count : int
        How many such products.
    into : int
        Stack them into this many: products that share their right operand become one with more rows.
    tile : (int, int) or str
        Rows and columns of the tiles that waves consist of.
    time_model, calibration, clock, unit, hardware_files
        As for `paleo_lite.predict`.

    Returns
    -------
    GemmTimes

    Raises
    ------
    PaleoError
        One of its classes.
    """
    if peak is not None and (calibration or clock or unit or time_model not in (None, "peak")):
        raise BadValue("a bare peak takes no calibration, clock or unit, and no time model but peak")
    machine, model = None, find_model("peak")
    if gpu is not None:
        device = find_device(gpu, paths_of(hardware_files)) if isinstance(gpu, str) else gpu
        machine = Machine(device, clock, unit)
        model = choose_model(device, precision, time_model, calibration=calibration)
    peak_per_s = None if peak is None else parse_quantity(peak, "FLOP/s")
    return time_gemms(
        m, n, k, precision, model, machine=machine, peak_per_s=peak_per_s, products=count, into=into,
        tile=parse_shape(tile) if isinstance(tile, str) else tile,
    )  # fmt: skip

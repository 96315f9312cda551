"""`gemm`: the time of matrix products."""

from __future__ import annotations

from ..calibration.choose import choose_model
from ..calibration.store import Calibration
from ..errors import BadQuantity, BadValue
from ..machines import Device, Machine, find_device
from ..machines.registry import limit_power
from ..timing import find_model
from ..timing.gemm import GemmTimes, time_gemms
from ..timing.models import PeakModel
from ..units import parse_quantity, parse_shape
from .arguments import Paths, to_paths


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
    power_limit: float | str | None = None,
    unit: str | None = None,
    hardware_files: Paths = (),
) -> GemmTimes:
    """Predict the time of matrix products (M x K) @ (K x N), and the gain of batching several into one.

    Parameters
    ----------
    m, n, k : int
        Sizes of the matrices.
    gpu : str or Device, optional
        Device, by name or alias.
    peak : float or str, optional
        Peak in FLOP/s instead of a device, such as ``"6000 GFLOP/s"``.
    precision : str
        Precision of the arithmetic.
    count : int
        Number of products.
    into : int
        Number of products after batching: products that share their right operand become one with more rows.
    tile : (int, int) or str
        Rows and columns of the output tiles that form waves.
    time_model, calibration, clock, power_limit, unit, hardware_files
        As for `paleo_lite.predict`.

    Returns
    -------
    GemmTimes

    Raises
    ------
    PaleoError
        For an unknown name, an invalid value, or a combination of arguments that is not supported.
    """
    has_device_options = calibration or clock or power_limit or unit or time_model not in (None, PeakModel.name)
    if peak is not None and has_device_options:
        raise BadValue(
            "`--peak` cannot be combined with a calibration, clock, power limit, unit or time model other than peak"
        )
    try:
        peak_per_s = None if peak is None else parse_quantity(peak, "FLOP/s", unit_required=True)
    except BadQuantity as error:
        raise BadQuantity(f"`--peak`: {error}") from None
    machine = None
    model = find_model(PeakModel.name)
    if gpu is not None:
        device = find_device(gpu, to_paths(hardware_files))
        if power_limit is not None:
            device = limit_power(device, power_limit)
        machine = Machine(device, clock, unit)
        model = choose_model(machine.device, precision, time_model, calibration=calibration)
    return time_gemms(
        m,
        n,
        k,
        precision,
        model,
        machine=machine,
        peak_per_s=peak_per_s,
        products=count,
        into=into,
        tile=parse_shape(tile) if isinstance(tile, str) else tile,
    )

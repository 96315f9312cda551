"""`gemm`: the time of matrix products."""

from __future__ import annotations

from ..calibration.choose import choose_model
from ..calibration.store import Calibration
from ..engines.products import EngineProductTimer, check_product_options, has_product_kernels
from ..engines.records import kernels_of
from ..errors import BadQuantity, BadValue
from ..machines import Device, Machine, find_device
from ..timing.energy import with_power_limit
from ..timing.gemm import GemmTimes, ModelTimer, PeakTimer, ProductTimer, time_gemms
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
    weights: str | None = None,
    policy: str | None = None,
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
    weights : str, optional
        Format of the right operand: ``"fp8-block"``, ``"nvfp4"``, ``"int4"``, ... By default that of the precision.
    policy : str, optional
        Engine whose kernels are timed, as for `paleo_lite.serve`; by default the mean of all.
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
    if (gpu is None) == (peak is None):
        raise BadValue("give either a device or a peak such as '6000 GFLOP/s'")
    timer: ProductTimer
    if gpu is None:
        check_product_options(weights, policy)
        timer = PeakTimer(_parse_peak(peak), precision)
    else:
        device = find_device(gpu, to_paths(hardware_files))
        if power_limit is not None:
            device = with_power_limit(device, power_limit)
        machine = Machine(device, clock, unit)
        if time_model is None and calibration is None and has_product_kernels(machine, precision):
            timer = EngineProductTimer(machine, precision, weights, None if policy is None else kernels_of(policy))
        else:
            check_product_options(weights, policy)
            model = choose_model(machine.device, precision, time_model, calibration=calibration)
            timer = ModelTimer(model, machine, precision)
    return time_gemms(
        m,
        n,
        k,
        precision,
        timer,
        products=count,
        into=into,
        tile=parse_shape(tile) if isinstance(tile, str) else tile,
    )


def _parse_peak(peak: float | str | None) -> float:
    """Return a peak in FLOP/s."""
    try:
        return parse_quantity(peak or 0.0, "FLOP/s", unit_required=True)
    except BadQuantity as error:
        raise BadQuantity(f"`--peak`: {error}") from None

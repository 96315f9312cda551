"""Matrix products: `gemm`."""

from __future__ import annotations

from functools import partial

import msgspec

from ..calibration.choose import choose_model
from ..calibration.store import Calibration
from ..errors import BadValue
from ..machines import Device, Machine, find_device
from ..timing import find_model
from ..timing.gemm import GemmTimes, time_gemms
from ..timing.models import PeakModel
from ..units import parse_quantity, parse_shape
from .question import Paths, asked, paths_of


class _Product(msgspec.Struct, frozen=True):
    m: int
    n: int
    k: int


class GemmQuestion(_Product, frozen=True, kw_only=True):
    """What `gemm` is asked; see there."""

    gpu: str | Device | None = None
    peak: float | str | None = None
    precision: str = "fp32"
    count: int = 1
    into: int = 1
    tile: str | tuple[int, ...] = (64, 64)
    time_model: str | None = None
    calibration: str | Calibration | None = None
    clock: str | None = None
    unit: str | None = None
    hardware_files: Paths = ()

    def __post_init__(self) -> None:
        if self.peak is not None and (
            self.calibration or self.clock or self.unit or self.time_model not in (None, PeakModel.name)
        ):
            raise BadValue("a bare peak takes no calibration, clock or unit, and no time model but peak")


@partial(asked, GemmQuestion)
def gemm(question: GemmQuestion) -> GemmTimes:
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
    precision, tile = question.precision, question.tile
    machine, model = None, find_model(PeakModel.name)
    if question.gpu is not None:
        machine = Machine(find_device(question.gpu, paths_of(question.hardware_files)), question.clock, question.unit)
        model = choose_model(machine.device, precision, question.time_model, calibration=question.calibration)
    return time_gemms(
        question.m, question.n, question.k, precision, model, machine=machine,
        peak_per_s=None if question.peak is None else parse_quantity(question.peak, "FLOP/s"),
        products=question.count, into=question.into, tile=parse_shape(tile) if isinstance(tile, str) else tile,
    )  # fmt: skip

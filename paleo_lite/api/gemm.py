"""Evaluation of `gemm`: the time of matrix products at a peak, by the kernels of engines, or by a time model."""

from __future__ import annotations

from typing import Any

from ..calibration.choose import choose_model
from ..engines.products import EngineProductTimer, check_product_options, has_product_kernels
from ..engines.records import kernels_of
from ..errors import BadQuantity, BadValue
from ..machines import Machine
from ..questions.compare import find_asked_device
from ..questions.gemm import MatrixProducts
from ..questions.kind import make_function
from ..questions.records import model_name
from ..timing.energy import with_power_limit
from ..timing.gemm import GemmTimes, ModelTimer, PeakTimer, ProductTimer, time_gemms
from ..timing.models import PeakModel
from ..units import parse_quantity


def answer(question: MatrixProducts) -> GemmTimes:
    """Return the time of the products, one by one and batched.

    Raise PaleoError for an unknown name, an invalid value, or a combination of options that is not supported.
    """
    if (question.gpu is None) == (question.peak is None):
        raise BadValue("give either a device or a peak such as '6000 GFLOP/s'")
    timer = _timer_of_peak(question) if question.gpu is None else _timer_of_device(question)
    tile: Any = question.tile  # sizes, which the record has read
    return time_gemms(
        question.m,
        question.n,
        question.k,
        precision=question.precision,
        timer=timer,
        products=question.count,
        into=question.into,
        tile=tile,
    )


gemm = make_function("gemm", MatrixProducts, answer)


def _timer_of_peak(question: MatrixProducts) -> ProductTimer:
    """Return the timer of a peak that is given instead of a device."""
    other_options = {"calibration", "clock", "power_limit", "unit"}.intersection(question.given())
    if other_options or question.time_model not in (None, PeakModel.name):
        raise BadValue(
            "`--peak` cannot be combined with a calibration, clock, power limit, unit or time model other than peak"
        )
    check_product_options(question.weights, question.engine)
    return PeakTimer(_parse_peak(question.peak), question.precision)


def _timer_of_device(question: MatrixProducts) -> ProductTimer:
    """Return the timer of a device: the kernels of engines where they are known, otherwise a time model."""
    device = find_asked_device(question)
    if question.power_limit is not None:
        device = with_power_limit(device, question.power_limit)
    machine = Machine(device, question.clock, question.unit)
    is_by_engine = question.time_model is None and question.calibration is None
    if is_by_engine and has_product_kernels(machine, question.precision):
        kernels = None if question.engine is None else kernels_of(question.engine)
        return EngineProductTimer(machine, question.precision, question.weights, kernels)
    check_product_options(question.weights, question.engine)
    calibration: Any = question.calibration
    model = choose_model(machine.device, question.precision, model_name(question.time_model), calibration=calibration)
    return ModelTimer(model, machine, question.precision)


def _parse_peak(peak: float | str | None) -> float:
    """Return a peak in FLOP/s."""
    try:
        return parse_quantity(peak or 0.0, "FLOP/s", unit_required=True)
    except BadQuantity as error:
        raise BadQuantity(f"`--peak`: {error}") from None

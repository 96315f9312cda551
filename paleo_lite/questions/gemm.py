"""`gemm`: the time of matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, ClassVar

import msgspec

from ..calibration.choose import choose_model
from ..engines.products import EngineProductTimer, check_product_options, has_product_kernels
from ..engines.records import kernels_of
from ..errors import BadQuantity, BadValue
from ..machines import Machine
from ..timing.energy import with_power_limit
from ..timing.gemm import GemmTable, GemmTimes, ModelTimer, PeakTimer, ProductTimer, time_gemms
from ..timing.models import CALIBRATED, PeakModel
from ..units import format_si, parse_quantity, parse_range
from .compare import MAX_COMPARED, find_asked_device
from .kind import make_function
from .names import PrecisionNames
from .option import argument, option
from .predict import ENGINES
from .records import ENGINE_GROUP, FORMATS, NETWORK_GROUP, DeviceOptions, TimeModelOptions
from .values import INTEGER, SHAPE


@dataclass(frozen=True)
class MatrixProducts(TimeModelOptions, DeviceOptions):
    """Predict the time of matrix products (M x K) @ (K x N), and the gain of batching several into one."""

    compares: ClassVar[bool] = False

    m: int | str | list[int] = argument("Rows of the product; several as 1,8,64 or 1,2,4,...,128.")
    n: int | str | list[int] = argument("Columns of the product; several as those of M.")
    k: int | str | list[int] = argument(
        "Terms of each sum: columns of the left operand, rows of the right one; several as those of M."
    )
    peak: float | str | None = option(
        metavar="RATE", help="Peak in FLOP/s instead of a device, such as '6000 GFLOP/s'."
    )
    precision: str = option(
        "fp32", group=NETWORK_GROUP, type=PrecisionNames("precision", ".units:PRECISION_BYTES"),
        help="Precision of the arithmetic.",
    )  # fmt: skip
    weights: str | None = option(
        group=NETWORK_GROUP, type=FORMATS, metavar="FORMAT",
        help="Format in which the right operand is stored: fp8-block, nvfp4, int4, ... [default: that of the "
        "precision]",
    )  # fmt: skip
    engine: str | None = option(
        group=ENGINE_GROUP, type=ENGINES, help="Engine whose kernels are timed. [default: the mean of all engines]"
    )
    count: int = option(1, group=NETWORK_GROUP, type=INTEGER, help="Number of products.")
    into: int = option(
        1, group=NETWORK_GROUP, type=INTEGER,
        help="Number of products after batching: products that share their right operand become one with more rows.",
    )  # fmt: skip
    tile: str | tuple[int, ...] = option(
        (64, 64), group=NETWORK_GROUP, type=SHAPE, metavar="ROWSxCOLUMNS",
        help="Rows and columns of the output tiles that form waves. [default: 64x64]",
    )  # fmt: skip


def answer(question: MatrixProducts) -> GemmTimes | GemmTable:
    """Return the time of the products, one by one and batched; of several sizes a table.

    Raise PaleoError for an unknown name, an invalid value, or a combination of options that is not supported.
    """
    if (question.gpu is None) == (question.peak is None):
        raise BadValue("give either a device or a peak such as '6000 GFLOP/s'")
    timer = _timer_of_peak(question) if question.gpu is None else _timer_of_device(question)
    tile: Any = question.tile  # sizes, which the record has read
    sizes = [parse_range(getattr(question, name), f"`{name.upper()}`") for name in ("m", "n", "k")]
    if prod(map(len, sizes)) > MAX_COMPARED:
        raise BadValue(
            f"{prod(map(len, sizes)):,} products are too many for a table (at most {MAX_COMPARED:,}): give fewer sizes"
        )
    answers = [
        time_gemms(
            m,
            n,
            k,
            precision=question.precision,
            timer=timer,
            products=question.count,
            into=question.into,
            tile=tile,
        )
        for m, n, k in product(*sizes)
    ]
    return _with_layer_note(question, answers[0]) if len(answers) == 1 else GemmTable(tuple(answers))


def _with_layer_note(question: MatrixProducts, times: GemmTimes) -> GemmTimes:
    """Return products by the kernels of engines with a note on the time of the same layer in a network of PyTorch.

    There is none where no fits speak of such layers.
    """
    if times.model != EngineProductTimer.model or question.weights is not None or question.engine is not None:
        return times
    timer = _timer_of_layers(question, _machine_of(question))
    if timer.model != CALIBRATED:
        return times
    shape = times.variants[0]
    time_s, interval = timer.time_s(shape.m, shape.n, shape.k, shape.groups, shape.launches)
    text = format_si(time_s, "s")
    if interval is not None:
        text += f" ({format_si(interval[0], 's', 3)} to {format_si(interval[1], 's', 3)} at 90%)"
    note = (
        "`predict` and `train` time layers of PyTorch by fits to whole networks, in which large products may be "
        f"quicker and what is between them slower than alone: {text} with `--time-model {CALIBRATED}`"
    )
    return msgspec.structs.replace(times, notes=(*times.notes, note))


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
    machine = _machine_of(question)
    is_by_engine = question.time_model is None and question.calibration is None
    if is_by_engine and has_product_kernels(machine, question.precision):
        kernels = None if question.engine is None else kernels_of(question.engine)
        return EngineProductTimer(machine, question.precision, question.weights, kernels)
    check_product_options(question.weights, question.engine)
    return _timer_of_layers(question, machine)


def _machine_of(question: MatrixProducts) -> Machine:
    """Return the device at its clock and power limit."""
    device = find_asked_device(question)
    if question.power_limit is not None:
        device = with_power_limit(device, question.power_limit)
    return Machine(device, question.clock, question.unit)


def _timer_of_layers(question: MatrixProducts, machine: Machine) -> ModelTimer:
    """Return the timer of products that are layers of a network."""
    calibration: Any = question.calibration
    model = choose_model(machine.device, question.precision, question.time_model, calibration=calibration)
    return ModelTimer(model, machine, question.precision)


def _parse_peak(peak: float | str | None) -> float:
    """Return a peak in FLOP/s."""
    try:
        return parse_quantity(peak or 0.0, "FLOP/s", unit_required=True)
    except BadQuantity as error:
        raise BadQuantity(f"`--peak`: {error}") from None

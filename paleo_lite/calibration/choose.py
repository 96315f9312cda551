"""Choice of the time model: the requested one, the model pooled from all measurements, or the roofline.

The reader of calibration files is imported only where it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..counting.work import COMPILED, UNFUSED_EXECUTIONS
from ..errors import BadValue, CalibrationFailed, UnknownName
from ..machines import Device, Machine
from ..timing import BoundModel, Prediction, TimeModel, find_model
from ..timing.calibrated import CalibratedModel
from ..timing.models import CALIBRATED
from ..timing.parameters import NAMES
from .pool import NotPooled, pooled_model, shipped_pool
from .prior import (
    SINGLE_OPERATIONS,
    traits_of,
)

if TYPE_CHECKING:
    from ..architectures.network import Network
    from .store import Calibration


def choose_model(
    device: Device,
    precision: str,
    time_model: str | None = None,
    execution: str = "eager",
    ppp: float | None = None,
    calibration: str | Calibration | None = None,
    products: str | None = None,  # precision of matrix products, if it differs from `precision`
    # In PyTorch, the kernels of decoders of text are timed with the constants that were fitted to published training
    # steps of language models (`paleo_lite.timing.blocks`). The matrix products of encoders of text are as certain as
    # products timed one by one (`with_certain_products`).
    network: Network | None = None,
) -> TimeModel:
    """Return the requested time model, or the best available one.

    The best is the model pooled from the measurements of all devices, for PyTorch on an unknown host, with the most
    weight on measurements of the device itself. Devices are thus compared under one software and one host. If no
    measurement covers a device it is the roofline, with a note that gives the reason and states that it is a bound.

    The options without a comment are as in `paleo_lite.predict`. Raise BadValue if the requests exclude each other, or
    ``calibrated`` is requested and no measurement covers the device, and CalibrationFailed if the calibration is for
    another device or precision.
    """
    if products is not None:
        wide = choose_model(device, precision, time_model, execution, ppp, calibration, network=network)
        if not isinstance(wide, CalibratedModel):
            return wide
        return msgspec.structs.replace(wide, narrow_relative_efficiency=narrow_efficiency(wide, device, products))
    is_uncalibrated = ppp is not None or time_model not in (None, CALIBRATED)
    if calibration is not None:
        if is_uncalibrated:
            raise BadValue(
                "a calibration is a time model of its own: it cannot be combined with `--time-model` or `--ppp`"
            )
        from .evidence_file import EvidenceCalibration
        from .store import find_calibration

        used = find_calibration(calibration) if isinstance(calibration, str) else calibration
        if isinstance(used, EvidenceCalibration):
            used.model()
        if (used.device, used.precision) != (device.id, precision):
            raise CalibrationFailed(
                f"the calibration is for {used.device} in {used.precision}, not for {device.id} in {precision}"
            )
        return used.model()
    if is_uncalibrated:
        return find_model(time_model, ppp)
    model = pooled_model(device, precision, execution)
    if not isinstance(model, NotPooled):
        if network is None or execution not in (*UNFUSED_EXECUTIONS, COMPILED):
            return model
        if network.is_language_model:
            from ..timing.blocks import use_kernel_constants  # which other networks are answered without

            return use_kernel_constants(model)
        return with_certain_products(model, device, precision) if network.is_text_encoder else model
    if time_model == CALIBRATED:
        raise BadValue(
            f"the calibrated model needs a calibration for {device.id} in {precision} ({model.reason}): give one with "
            "`--calibration`"
        )
    return BoundModel(notes=(f"a bound, not a forecast: {model.reason}",))


def narrow_efficiency(wide: CalibratedModel, device: Device, products: str) -> float:
    """Return the fraction of peak of products in a narrow precision over that in 16 bits, each of its own peak.

    On a device whose products were timed in the precision it is the ratio of both expected fractions. On others it is
    the mean ratio in fp8 of the measured devices whose matrix units are most like its own in FLOPs per clock: slower
    units are easier to keep busy, in every precision (0.84 and 0.90 on an L40S and an RTX PRO 6000, 0.73 to 0.75 on
    H100, H200, B200 and GB200), for each doubling of the peak.
    """
    gemm = NAMES.index("efficiency_gemm")
    fits = [fit for fit in shipped_pool().fits if fit.software == SINGLE_OPERATIONS]
    if any((fit.id, fit.precision) == (device.id, products) for fit in fits):
        narrow = pooled_model(device, products)
        assert isinstance(narrow, CalibratedModel)
        return float(np.exp(narrow.theta[gemm] - wide.theta[gemm]))
    in_16_bits = {fit.id: fit for fit in fits if fit.precision == "fp16" and fit.deviation[gemm] is not None}
    measured_pairs = [(in_16_bits[fit.id], fit) for fit in fits if fit.precision == "fp8" and fit.id in in_16_bits]
    machine = Machine(device)
    own_per_clock = traits_of(device, machine.wide_peak().peak.precision).per_clock
    nearest = min(abs(fit.per_clock - own_per_clock) for fit, _ in measured_pairs)
    logarithms = [
        narrow.theta[gemm] - fit.theta[gemm]
        for fit, narrow in measured_pairs
        if abs(fit.per_clock - own_per_clock) == nearest
    ]
    doublings = np.log2(machine.peak(products).per_s / machine.wide_peak().per_s)
    return float(np.exp(doublings * np.mean(logarithms)))


def with_certain_products(model: CalibratedModel, device: Device, precision: str) -> CalibratedModel:
    """Return a pooled model in which matrix products are as certain as those that were timed one by one.

    The pool learns products under PyTorch from convolutional networks, where they are a few small classifiers: their
    efficiency has a deviation of 0.35 to 0.4, which made the interval of BERT in fp32 a factor of 3 to 4 wide. The
    products of an encoder are large. On six chips held out one by one (products of more than 4 GFLOP in fp32, measured
    by NeuSight), the logarithm of the expected efficiency under PyTorch is off by 0.12 in the root mean square, within
    the deviation of 0.19 that products timed one by one have.
    """
    products = pooled_model(device, precision, SINGLE_OPERATIONS, SINGLE_OPERATIONS)
    if isinstance(products, NotPooled):
        return model
    gemm = NAMES.index("efficiency_gemm")
    covariance = model.covariance.copy()
    covariance[gemm, gemm] = min(covariance[gemm, gemm], products.covariance[gemm, gemm])
    return msgspec.structs.replace(model, covariance=covariance)


def used_calibration(prediction: Prediction, name: str | Calibration | None) -> Calibration | None:
    """Return the calibration that a prediction used.

    None if it used another model, a PPP, or parameters pooled from other devices.
    """
    if not prediction.model.label:
        return None
    from .store import Calibration, find_calibration

    try:
        calibration: Any = name
        if name is None or isinstance(name, str):
            calibration = find_calibration(name or f"{prediction.device.id}-{prediction.workload.precision}")
    except UnknownName:  # the model is pooled
        return None
    return calibration if isinstance(calibration, Calibration) else None

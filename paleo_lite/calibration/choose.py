"""Which time model answers: the one that was asked for, what the pool says of the device, or the roofline.

Every prediction imports this, so that what reads calibrations is imported only where one is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..errors import BadValue, CalibrationFailed, UnknownName
from ..hardware import Device
from ..timing import Prediction, RooflineModel, TimeModel, find_model
from ..timing.models import LEARNT
from .pool import why_not_pooled

if TYPE_CHECKING:
    from .store import Calibration


def choose_model(
    device: Device,
    precision: str,
    time_model: str | None = None,
    ppp: float | None = None,
    concurrent: bool = False,
    calibration: str | Calibration | None = None,
    execution: str = "eager",
    products: str | None = None,
) -> TimeModel:
    """The time model that was asked for, or the best that there is: see `default_model`.

    Parameters
    ----------
    time_model, ppp, concurrent, calibration, execution
        As for `paleo_lite.predict`.
    products : str, optional
        What matrices are multiplied in, where it is another precision.

    Raises
    ------
    BadValue
        If what was asked for excludes each other, or no measurement covers the device.
    CalibrationFailed
        If the calibration is of another device or precision.
    """
    if products is not None:
        of_all = choose_model(device, precision, time_model, ppp, concurrent, calibration, execution)
        return _with_products(of_all, default_model(device, products, execution=execution))
    plain = ppp is not None or concurrent or time_model not in (None, LEARNT)
    if calibration is None:
        return (
            find_model(time_model, ppp, concurrent)
            if plain
            else default_model(device, precision, time_model, execution)
        )
    from .store import find_calibration

    if plain:
        raise BadValue("a calibration is a time model of its own: leave --time-model, --ppp and --concurrent out")
    known = find_calibration(calibration) if isinstance(calibration, str) else calibration
    if (known.device, known.precision) != (device.id, precision):
        raise CalibrationFailed(
            f"the calibration is of {known.device} in {known.precision}, not of {device.id} in {precision}"
        )
    return known.model()


def _with_products(model: TimeModel, narrower: TimeModel) -> TimeModel:
    """A calibrated model that knows how much of their own peak narrower products reach; other models as they are."""
    from ..timing.calibrated import NAMES
    from ..timing.fitted import CalibratedModel

    if not isinstance(model, CalibratedModel) or not isinstance(narrower, CalibratedModel):
        return model
    place = NAMES.index("efficiency_gemm")
    return msgspec.structs.replace(model, products=float(np.exp(narrower.theta[place] - model.theta[place])))


def default_model(device: Device, precision: str, time_model: str | None = None, execution: str = "eager") -> TimeModel:
    """What is best known of a device in a precision, under PyTorch, on nobody's computer.

    What all measurements of all devices say together: those of the device first, where there are any. So are devices
    compared under one software and one host. Where no measurement covers a device it is the roofline, with a note that
    says why and that it is a bound.

    Raises
    ------
    BadValue
        If `time_model` is ``calibrated`` and no measurement covers the device.
    """
    reason = why_not_pooled(device)
    if not reason:
        from .pool import NotPooled, pooled_model

        model = pooled_model(device, precision, execution)
        if not isinstance(model, NotPooled):
            return model
        reason = model.reason
    if time_model == LEARNT:
        raise BadValue(
            f"the calibrated model needs a calibration of {device.id} in {precision} ({reason}): --calibration"
        )
    return RooflineModel(notes=(f"a bound, not a forecast: {reason}",))


def used_calibration(prediction: Prediction, name: str | Calibration | None) -> Calibration | None:
    """The calibration of a prediction; None where its model is another, a PPP's, or pooled from other devices."""
    if not prediction.model.label:
        return None
    from .store import Calibration, find_calibration

    if name is not None and not isinstance(name, str):
        return name
    try:
        known = find_calibration(name or f"{prediction.device.id}-{prediction.precision}")
    except UnknownName:  # of none, it was pooled
        return None
    return known if isinstance(known, Calibration) else None

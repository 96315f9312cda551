"""Which time model answers: the one that was asked for, what the pool says of the device, or the roofline.

The pool, ``calibrations/pooled.json``, holds what every source's measurements of a device say by themselves, so that
nothing counts twice and a prediction reads one small file; `prior.expect` puts it together. ``make calibrations``
writes it. Every prediction imports this, so that what reads calibrations is imported only where one is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..counting.work import ENGINE
from ..errors import BadFile, BadValue, CalibrationFailed, UnknownName
from ..files import read_typed, shipped_folder
from ..machines import Device
from ..timing import Prediction, RooflineModel, TimeModel, find_model
from ..timing.calibrated import NAMES, CalibratedModel
from ..timing.models import CALIBRATED
from .prior import KERNELS, SOFTWARE, Evidence, Prior, Traits, expect, traits_of

if TYPE_CHECKING:
    from .store import Calibration

POOL_FILE = "pooled.json"
FORMAT = 2
_BYTES_AT_MOST = 2**22

SCATTER = 0.07
"""Relative scatter of single measurements around what is expected of a device."""

VENDORS = ("NVIDIA", "AMD")
"""All fits are of their GPUs, each with its own libraries."""


def choose_model(
    device: Device,
    precision: str,
    time_model: str | None = None,
    execution: str = "eager",
    ppp: float | None = None,
    concurrent: bool = False,
    calibration: str | Calibration | None = None,
    products: str | None = None,
) -> TimeModel:
    """The time model that was asked for, or the best that there is.

    That is what all measurements of all devices say together, under PyTorch, on nobody's computer: those of the device
    first, where there are any. So are devices compared under one software and one host. Where no measurement covers a
    device it is the roofline, with a note that says why and that it is a bound.

    Parameters
    ----------
    time_model, execution, ppp, concurrent, calibration
        As for `paleo_lite.predict`.
    products : str, optional
        What matrices are multiplied in, where it is another precision.

    Raises
    ------
    BadValue
        If what was asked for excludes each other, or it is ``calibrated`` and no measurement covers the device.
    CalibrationFailed
        If the calibration is of another device or precision.
    """
    if products is not None:
        wide = choose_model(device, precision, time_model, execution, ppp, concurrent, calibration)
        narrow = choose_model(device, products, execution=execution)
        if not isinstance(wide, CalibratedModel) or not isinstance(narrow, CalibratedModel):
            return wide
        # How much of their own peak narrower products reach.
        place = NAMES.index("efficiency_gemm")
        return msgspec.structs.replace(wide, products=float(np.exp(narrow.theta[place] - wide.theta[place])))
    plain = ppp is not None or concurrent or time_model not in (None, CALIBRATED)
    if calibration is not None:
        if plain:
            raise BadValue("a calibration is a time model of its own: leave --time-model, --ppp and --concurrent out")
        from .store import find_calibration

        known = find_calibration(calibration) if isinstance(calibration, str) else calibration
        if (known.device, known.precision) != (device.id, precision):
            raise CalibrationFailed(
                f"the calibration is of {known.device} in {known.precision}, not of {device.id} in {precision}"
            )
        return known.model()
    if plain:
        return find_model(time_model, ppp, concurrent)
    model = pooled_model(device, precision, execution)
    if not isinstance(model, NotPooled):
        return model
    if time_model == CALIBRATED:
        raise BadValue(
            f"the calibrated model needs a calibration of {device.id} in {precision} ({model.reason}): --calibration"
        )
    return RooflineModel(notes=(f"a bound, not a forecast: {model.reason}",))


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


# What the pool says of a device ---------------------------------------------------------------------------------------


class Pool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file.

    Attributes
    ----------
    parameters : list of str
        The names that its numbers belong to.
    order : dict of str to dict of str to float
        What is added to the logarithms of parameters of some devices, ``"k40m fp32"``, so that one that is better in
        every figure is not expected to be slower: see `validation/ordering.py`.
    """

    format: int
    parameters: list[str]
    fits: list[Evidence]
    order: dict[str, dict[str, float]] = {}


class NotPooled(msgspec.Struct, frozen=True):
    """Why there is no pooled model, in words."""

    reason: str


def pooled_model(
    device: Device, precision: str, execution: str = "eager", software: str = SOFTWARE, pool: Pool | None = None
) -> CalibratedModel | NotPooled:
    """What all measurements say together of a device in a precision under some software, on nobody's computer.

    Parameters
    ----------
    execution : str
        One of `paleo_lite.counting.fusion.EXECUTIONS`.
    software : str
        The first word of a framework.
    pool : Pool, optional
        Without it the shipped one.

    Returns
    -------
    CalibratedModel or NotPooled
        The latter says what is missing: the vendor, a single device, or any fit in this precision on such units.
    """
    is_engine = execution == ENGINE  # measured are its kernels, with those of eager execution; its host is not
    known = _known(device, precision, "eager" if is_engine else execution, software, pool)
    if isinstance(known, NotPooled):
        return known
    traits, pool = known
    prior = expect(traits, pool.fits)
    if is_engine:
        prior = of_engine(prior)
    for name, shift in pool.order.get(f"{device.id} {precision}", {}).items():
        prior.mean[NAMES.index(name)] += shift
    label, notes = _told(device, precision, traits, pool.fits)
    return CalibratedModel(
        label, prior.mean, np.diag(prior.deviation**2), SCATTER, notes=notes, learned_fraction=np.zeros(len(NAMES))
    )


def pool_prior(
    device: Device, precision: str, execution: str = "eager", software: str = SOFTWARE, pool: Pool | None = None
) -> Prior | None:
    """The prior that a device's own measurements start from; None where the pool knows no device like it."""
    known = _known(device, precision, execution, software, pool)
    return None if isinstance(known, NotPooled) else expect(known[0], known[1].fits)


def _known(
    device: Device, precision: str, execution: str, software: str, pool: Pool | None
) -> tuple[Traits, Pool] | NotPooled:
    """Who is asked for, and the pool, where it holds any fit of this precision on such units."""
    if reason := why_not_pooled(device):
        return NotPooled(reason)
    pool = pool or read_pool()
    traits = traits_of(device, precision, software, execution)
    if not any((one.unit, one.precision) == (traits.unit, traits.precision) for one in pool.fits):
        return NotPooled(f"no device was measured in {precision} on {traits.unit.split()[-1]} units")
    return traits, pool


def why_not_pooled(device: Device) -> str:
    """Why no fit of another device covers this one; empty where some may."""
    if device.parts is not None:
        return f"only single devices were measured, {device.id} is a {device.scope} of {device.parts.count}"
    if device.vendor not in VENDORS:
        return f"only GPUs of {' and '.join(VENDORS)} were measured"
    return ""


def read_pool(path: Path | None = None) -> Pool:
    """Read a pool, the shipped one without a path.

    Raises
    ------
    BadFile
        If it is malformed, or of other parameters than this version fits.
    """
    path = path or shipped_folder("calibrations") / POOL_FILE
    pool = read_typed(path, Pool, "pool", _BYTES_AT_MOST)
    if pool.format != FORMAT or pool.parameters != list(NAMES):
        raise BadFile(f"{path}: written by another version: 'make calibrations' renews it")
    for other in pool.fits:
        if not len(other.theta) == len(other.deviation) == len(NAMES):
            raise BadFile(
                f"{path}: {other.id} in {other.precision} must have {len(NAMES)} numbers in each of its lists"
            )
    return pool


def _told(device: Device, precision: str, traits: Traits, fits: Sequence[Evidence]) -> tuple[str, tuple[str, ...]]:
    """What a prediction says of where its parameters come from: a label, and notes."""
    alike = [one for one in fits if (one.unit, one.precision) == (traits.unit, traits.precision)]
    steps = [one for one in alike if one.software != KERNELS]
    own = [one for one in steps if one.id == device.id]
    in_it = [one for one in own if one.measured_in == precision]
    if not own:
        single = "" if steps else "single operations on "
        number = len({one.id for one in steps or alike})
        label = f"pooled from {single}{number} device{'s' if number != 1 else ''} in {traits.precision}"
        spread = "the interval is as wide as the spread between " + ("devices" if single else "other devices")
        mine = bool(single) and any(one.id == device.id for one in alike)
        missing = "no network was measured on" if single else "no measurements of"
        return label + ("" if mine else ", not including this one"), (
            f"{missing} {device.name} in {traits.precision}: {spread}",
        )
    own = in_it or own
    same = [one for one in own if (one.software, one.execution) == (traits.software, traits.execution)]
    measured_in = own[0].measured_in
    label = f"{device.id} {measured_in}, {sum(one.points for one in same or own)} measurements"
    notes = [] if in_it else [f"measured in {measured_in}: {precision} takes its kernels, at its own peak"]
    if not same:
        under = " and ".join(sorted({f"{one.software} {one.execution}" for one in own}))
        notes.append(
            f"{device.name} was measured under {under}, not under {traits.software} {traits.execution}: "
            "the interval is wider for it"
        )
    return label, tuple(notes)


# Engines for inference ------------------------------------------------------------------------------------------------
#
# Matrix products and attention under vLLM, SGLang and TensorRT-LLM (ai-dynamo/aiconfigurator 095f58a) on five devices
# say what a device's own prior leaves open; operations of decoder layers that others timed are held against it
# (docs/transformers.md). Two things were not measured there and are assumed: that a graph's kernels follow one another
# without the host, and what the engine does between two steps.

ENGINE_KERNELS: dict[str, tuple[float, float]] = {
    "efficiency_gemm": (0.85, 0.12),
    "efficiency_attention": (0.55, 0.2),
    "share_matrix": (0.85, 0.1),
    "share_other": (0.7, 0.2),
    "floor_s": (5e-6, 0.25),
}
"""Median and deviation of the logarithm; the scores that a causal mask hides are not computed."""

ENGINE_HOST: dict[str, tuple[float, float]] = {
    "overhead_s": (1e-9, 0.1),
    "overhead_backward_s": (1e-9, 0.1),
    "overhead_gradient_s": (1e-9, 0.1),
    "step_s": (3e-4, 0.7),
}
"""Nothing for a kernel of a graph; between two steps sampling and preparing the next, some tenths of a millisecond."""


def of_engine(prior: Prior) -> Prior:
    """A device's prior with the kernels of engines, each opinion weighed by how sure it is, and with their host."""
    mean, deviation = prior.mean.copy(), prior.deviation.copy()
    for name, (median, spread) in ENGINE_KERNELS.items():
        index = NAMES.index(name)
        weight, own = spread**-2, deviation[index] ** -2
        mean[index] = (weight * np.log(median) + own * mean[index]) / (weight + own)
        deviation[index] = (weight + own) ** -0.5
    for name, (median, spread) in ENGINE_HOST.items():
        mean[NAMES.index(name)], deviation[NAMES.index(name)] = np.log(median), spread
    return Prior(mean, deviation)

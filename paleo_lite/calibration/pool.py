"""What is known of devices, from the shipped pool; `population` puts it together.

``calibrations/pooled.json`` holds what every source's measurements of a device say by themselves, so that nothing
counts twice and a prediction reads one small file. ``make calibrations`` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from ..counting.work import ENGINE
from ..errors import BadFile
from ..files import read_typed, shipped
from ..hardware import Device
from ..timing.calibrated import NAMES
from ..timing.fitted import CalibratedModel
from .fit import Prior
from .population import KERNELS, SOFTWARE, Evidence, Traits, expect, traits_of
from .prior import device_prior

POOL_FILE = "pooled.json"
FORMAT = 2
_BYTES_AT_MOST = 2**22

SCATTER = 0.07
"""Relative scatter of single measurements around what is expected of a device."""


class Pool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file.

    Attributes
    ----------
    parameters : list of str
        The names that its numbers belong to.
    order : dict of str to dict of str to float
        What is added to the logarithms of some devices' parameters (`order_key`), so that a device that is better in
        every figure is not expected to be slower: see `validation/ordering.py`.
    """

    format: int
    parameters: list[str]
    fits: list[Evidence]
    order: dict[str, dict[str, float]] = {}


def order_key(device: Device, precision: str) -> str:
    """Under what name `Pool.order` has a device in a precision."""
    return f"{device.id} {precision}"


class NotPooled(msgspec.Struct, frozen=True):
    """Why there is no pooled model, in words."""

    reason: str


# What is known of a device, and what its own measurements start from --------------------------------------------------


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
    pool = pool or read_pool()
    known = _known(device, precision, pool)
    if isinstance(known, NotPooled):
        return known
    is_engine = execution == ENGINE  # measured are its kernels, with those of eager execution; its host is not
    traits = traits_of(device, precision, software, "eager" if is_engine else execution)
    prior = expect(traits, device_prior(device, precision), known)
    if is_engine:
        prior = of_engine(prior)
    for name, shift in pool.order.get(order_key(device, precision), {}).items():
        prior.mean[NAMES.index(name)] += shift
    label, notes = _told(device, precision, traits, known)
    return CalibratedModel(
        label, prior.mean, np.diag(prior.deviation**2), SCATTER, notes=notes, moved=np.zeros(len(NAMES))
    )


def pool_prior(
    device: Device, precision: str, execution: str = "eager", software: str = SOFTWARE, pool: Pool | None = None
) -> Prior:
    """The prior that a device's own measurements start from: the best that is known of it."""
    known, base = _known(device, precision, pool), device_prior(device, precision)
    if isinstance(known, NotPooled):
        return base
    return expect(traits_of(device, precision, software, execution), base, known)


def _known(device: Device, precision: str, pool: Pool | None) -> list[Evidence] | NotPooled:
    """What the pool holds, where any of it is of this precision on such units."""
    traits = traits_of(device, precision)
    if reason := why_not_pooled(device):
        return NotPooled(reason)
    fits = (pool or read_pool()).fits
    if not any(_alike(one, traits) for one in fits):
        return NotPooled(f"no device was measured in {precision} on {traits.unit.split()[-1]} units")
    return fits


def _alike(one: Traits, traits: Traits) -> bool:
    return (one.unit, one.precision) == (traits.unit, traits.precision)


def _told(device: Device, precision: str, traits: Traits, known: Sequence[Evidence]) -> tuple[str, tuple[str, ...]]:
    """What a prediction says of where its parameters come from: a label, and notes."""
    alike = [one for one in known if _alike(one, traits)]
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


# The file -------------------------------------------------------------------------------------------------------------


def read_pool(path: Path | None = None) -> Pool:
    """Read a pool, the shipped one without a path.

    Raises
    ------
    BadFile
        If it is malformed, or of other parameters than this version fits.
    """
    path = path or shipped("calibrations") / POOL_FILE
    pool = read_typed(path, Pool, "pool", _BYTES_AT_MOST)
    if pool.format != FORMAT or pool.parameters != list(NAMES):
        raise BadFile(f"{path}: written by another version: 'make calibrations' renews it")
    for other in pool.fits:
        if not len(other.theta) == len(other.deviation) == len(NAMES):
            raise BadFile(
                f"{path}: {other.id} in {other.precision} must have {len(NAMES)} numbers in each of its lists"
            )
    return pool


VENDORS = ("NVIDIA", "AMD")
"""All fits are of their GPUs, each with its own libraries."""


def why_not_pooled(device: Device) -> str:
    """Why no fit of another device covers this one; empty where some may."""
    if device.parts is not None:
        return f"only single devices were measured, {device.id} is a {device.scope} of {device.parts.count}"
    if device.vendor not in VENDORS:
        return f"only GPUs of {' and '.join(VENDORS)} were measured"
    return ""


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

HOST: dict[str, tuple[float, float]] = {
    "overhead_s": (1e-9, 0.1),
    "overhead_backward_s": (1e-9, 0.1),
    "overhead_gradient_s": (1e-9, 0.1),
    "step_s": (3e-4, 0.7),
}
"""Nothing for a kernel of a graph; between two steps sampling and preparing the next, some tenths of a millisecond."""


def of_engine(prior: Prior) -> Prior:
    """A device's prior with the kernels of engines, each opinion weighed by how sure it is, and with their host."""
    weighed = _weighed(prior, ENGINE_KERNELS)
    for name, (median, spread) in HOST.items():
        weighed.mean[NAMES.index(name)], weighed.deviation[NAMES.index(name)] = np.log(median), spread
    return weighed


def _weighed(prior: Prior, opinion: Mapping[str, tuple[float, float]]) -> Prior:
    """Two opinions of each parameter, as sure as each is."""
    mean, deviation = prior.mean.copy(), prior.deviation.copy()
    for name, (median, spread) in opinion.items():
        index = NAMES.index(name)
        weight, own = spread**-2, deviation[index] ** -2
        mean[index] = (weight * np.log(median) + own * mean[index]) / (weight + own)
        deviation[index] = (weight + own) ** -0.5
    return Prior(mean, deviation)

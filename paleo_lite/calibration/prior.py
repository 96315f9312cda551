"""What is believed of a device without measurements, and how fits of others narrow it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from ..timing.calibrated import NAMES
from .fit import Fit, Prior

if TYPE_CHECKING:
    from numpy.typing import NDArray

BASE: dict[str, tuple[float, float, float]] = {
    "efficiency_conv_3x3": (1.3, 0.6, 0.3),
    "efficiency_conv_direct": (0.7, 0.5, 0.3),
    "efficiency_conv_1x1": (0.7, 0.6, 0.3),
    "efficiency_conv_grouped": (0.45, 0.1, 0.4),
    "efficiency_conv_depthwise": (0.17, 0.05, 0.4),
    "efficiency_gemm": (0.6, 0.4, 0.5),
    "efficiency_attention": (0.5, 0.4, 0.5),
    "factor_data_gradient": (0.9, 0.9, 0.3),
    "factor_weight_gradient": (0.8, 0.8, 0.3),
    "share_matrix": (0.65, 0.65, 0.3),
    "share_other": (0.75, 0.75, 0.3),
    "half": (0.2, 0.2, 0.7),
    "half_3x3": (0.3, 0.3, 1.2),
    "floor_s": (5e-6, 5e-6, 0.5),
    "overhead_s": (20e-6, 20e-6, 0.5),
    "overhead_backward_s": (8e-6, 8e-6, 0.5),
    "overhead_gradient_s": (30e-6, 30e-6, 1.0),
    "step_s": (1e-3, 1e-3, 1.0),
}
"""Median on vector units, median on tensor cores, and deviation of the logarithm, of every parameter.

Weak on purpose: they keep a parameter that no measurement moves where it makes sense. 3x3 convolution on vector units
is above 1 because of Winograd's algorithm (2.25 times fewer multiplications at about 0.6 of peak); grouped and
depthwise convolution reach a few to some tens of percent; launching from Python takes 10 to 35 us per operation, from
the autograd engine, which is C++, less than half of that; a kernel takes a few microseconds at least.
"""


KEPLER_SHARE = 128 / 192
"""Of Kepler's 192 lanes per multiprocessor four schedulers fill 128 with one instruction each (GK110 white paper)."""

KEPLER_HALF = 20.0
"""How many times more tiles a 3x3 convolution needs on Kepler: cuDNN computes Winograd's 36 products there in as many
launches, each of a sixteenth of the positions. Two fits of a K80 say 19 and 26."""


def base_prior(tensor_cores: bool, kepler: bool = False) -> Prior:
    """The prior of `BASE` for multiply-accumulates on tensor cores or on vector units, on Kepler's where said.

    fp64 takes that of fp32, although libraries have no Winograd's algorithm there: with direct convolution's 0.7 for
    3x3, devices held out were 20 % off in fp64 instead of 18 %.
    """
    rows = [BASE[name] for name in NAMES]
    median = [row[1 if tensor_cores else 0] for row in rows]
    return Prior(np.log(median) + kepler_shift(kepler), np.array([row[2] for row in rows]))


def kepler_shift(kepler: bool) -> NDArray[np.float64]:
    """What is different on Kepler, in logarithms of the parameters."""
    shift = np.log([KEPLER_SHARE if name.startswith("efficiency") else 1.0 for name in NAMES])
    shift[NAMES.index("half_3x3")] = np.log(KEPLER_HALF)
    return shift if kepler else np.zeros(len(NAMES))


def pooled_prior(fits: Sequence[Fit], base: Prior, weights: Sequence[float] | None = None) -> Prior:
    """The prior that fits of other devices leave: their mean, and how much they differ (and do not know).

    Each parameter's mean is weighted by how far its measurements moved it, with `base` as one device more. The
    deviation adds what differs between devices to what each of them leaves open.

    Parameters
    ----------
    fits : sequence of Fit
    base : Prior
    weights : sequence of float, optional
        How much each fit counts, of a device: several fits of one share its weight.
    """
    if not fits:
        return base
    counts = np.ones(len(fits)) if weights is None else np.array(weights)
    thetas = np.array([base.mean, *(fit.theta for fit in fits)])
    moved = np.array([np.full(len(NAMES), 0.5), *(np.clip(fit.moved, 0.02, 1) for fit in fits)])
    shares = moved * np.array([1.0, *counts])[:, None]
    total = shares.sum(axis=0)
    mean = (shares * thetas).sum(axis=0) / total
    between = (shares * (thetas - mean) ** 2).sum(axis=0) / total
    variances = np.array([base.deviation**2, *(np.diag(fit.covariance) for fit in fits)])
    within = (shares * variances).sum(axis=0) / total
    return Prior(mean, np.minimum(np.sqrt(between + within), base.deviation))


OTHER_SOFTWARE = 0.1
"""How much a fit under other software counts beside one under the same."""

YEARS_TO_HALF = 2.0
"""Devices this many years apart count half for each other: kernels are written for a generation."""


class Known(Protocol):
    """What the pool needs to know of a device."""

    @property
    def id(self) -> str: ...

    @property
    def architecture(self) -> str: ...

    @property
    def year(self) -> int: ...


class Neighbour(msgspec.Struct, frozen=True, eq=False):
    """A fit of a device, as another device borrows from it.

    Attributes
    ----------
    device : Device
        Or as much of it as `Known` asks for.
    source : str
        Its first word names the software.
    fit : Fit
    """

    device: Known
    source: str
    fit: Fit


def prior_from_others(base: Prior, device: Known, source: str, others: Sequence[Neighbour]) -> Prior:
    """The prior for a device under some software from fits of other devices in the same precision.

    Launching, copies and the choice of algorithms are the software's, so that fits under the same software count most,
    and those of a near generation; several fits of one device count as one.

    Parameters
    ----------
    base : Prior
        Of the device.
    device : Device
    source : str
        Empty where the software is not known: then all fits count alike.
    others : sequence of Neighbour
        Those of the device itself are not looked at.
    """
    used = [other for other in others if other.device.id != device.id]
    same = [_software(other.source) == _software(source) for other in used]
    rest = OTHER_SOFTWARE if any(same) else 1.0
    alike = Counter((other.device.id, equal) for other, equal in zip(used, same))
    weights = [
        (1.0 if equal else rest)
        / alike[other.device.id, equal]
        * 0.5 ** (abs(other.device.year - device.year) / YEARS_TO_HALF)
        for other, equal in zip(used, same)
    ]
    shift = kepler_shift(is_kepler(device))
    fits = [
        msgspec.structs.replace(other.fit, theta=other.fit.theta - kepler_shift(is_kepler(other.device)) + shift)
        for other in used
    ]
    return pooled_prior(fits, base, weights)


def is_kepler(device: Known) -> bool:
    """Whether a device is of NVIDIA's Kepler generation."""
    return device.architecture == "Kepler"


def _software(source: str) -> str:
    return source.split(" ", maxsplit=1)[0]

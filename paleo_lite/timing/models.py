"""The time models without fitted parameters: from compute and memory time of each layer to its time.

All of them work on arrays of any shape (passes, layers, configurations), so that a sweep is one broadcast.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from ..errors import BadValue, UnknownName

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Seconds = NDArray[np.float64]


class TimeModel(Protocol):
    """What `predict` needs of a model; a calibrated one has the same two methods.

    Attributes
    ----------
    name : str
        How it is asked for.
    ppp : float or None
        The platform percent of peak that it scales by, as a share.
    uses_memory : bool
        Whether bytes play a part.
    """

    @property
    def name(self) -> str: ...

    @property
    def ppp(self) -> float | None: ...

    @property
    def uses_memory(self) -> bool: ...

    def time_s(self, compute_s: Seconds, memory_s: Seconds) -> Seconds:
        """Seconds of each layer from the seconds of its arithmetic and of its memory traffic at peak."""
        ...

    def formula(self, compute: str = "FLOPs / peak", memory: str = "bytes / bandwidth") -> str:
        """The formula in one line, with words or with numbers in the place of its two terms."""
        ...


class PeakModel(msgspec.Struct, frozen=True):
    """FLOPs / peak: what direct convolution cannot beat. Memory is free."""

    name: str = "peak"
    ppp: float | None = None
    uses_memory: bool = False

    def time_s(self, compute_s: Seconds, memory_s: Seconds) -> Seconds:
        """Compute time alone, in the shape that both terms make together."""
        return np.broadcast_to(compute_s, np.broadcast_shapes(np.shape(compute_s), np.shape(memory_s)))

    def formula(self, compute: str = "FLOPs / peak", memory: str = "bytes / bandwidth") -> str:
        """Compute time."""
        return compute


class PppModel(msgspec.Struct, frozen=True):
    """PALEO (Qi et al. 2017, eq. 2 and section 4.3): (FLOPs / peak + bytes / bandwidth) / PPP.

    With `overlap` the layer's memory traffic hides behind its arithmetic, or the other way round.
    """

    ppp: float
    overlap: bool = False
    name: str = "ppp"
    uses_memory: bool = True

    def __post_init__(self) -> None:
        if not (isinstance(self.ppp, (int, float)) and math.isfinite(self.ppp) and self.ppp > 0):
            raise BadValue(f"the PPP must be a number above 0 (a share of peak, such as 0.62), not {self.ppp!r}")

    def time_s(self, compute_s: Seconds, memory_s: Seconds) -> Seconds:
        """Sum of the two over the PPP; with overlap the larger."""
        joined = np.maximum(compute_s, memory_s) if self.overlap else compute_s + memory_s
        return joined / self.ppp

    def formula(self, compute: str = "FLOPs / peak", memory: str = "bytes / bandwidth") -> str:
        """Sum or larger of the two, over the PPP."""
        joined = f"max({compute}, {memory})" if self.overlap else f"({compute} + {memory})"
        return f"{joined} / {self.ppp:g}"


class RooflineModel(msgspec.Struct, frozen=True):
    """Williams et al. 2009, per layer: max(FLOPs / peak, bytes / bandwidth). No free parameter.

    `notes` say why it stands in for a calibrated model where nobody asked for it.
    """

    name: str = "roofline"
    ppp: float | None = None
    uses_memory: bool = True
    notes: tuple[str, ...] = ()

    def time_s(self, compute_s: Seconds, memory_s: Seconds) -> Seconds:
        """The larger of the two."""
        return np.maximum(compute_s, memory_s)

    def formula(self, compute: str = "FLOPs / peak", memory: str = "bytes / bandwidth") -> str:
        """The larger of the two."""
        return f"max({compute}, {memory})"


TIME_MODELS = ("peak", "ppp", "roofline", "calibrated")
"""Models that can be asked for by name."""


def find_model(name: str | None, ppp: float | None = None, overlap: bool = False) -> TimeModel:
    """The model of a name; without one, ``ppp`` where a PPP is given and ``roofline`` otherwise.

    Raises
    ------
    UnknownName
        If there is no such model.
    BadValue
        If options and model do not go together.
    """
    name = name or ("ppp" if ppp is not None or overlap else "roofline")
    if name not in TIME_MODELS:
        raise UnknownName("time model", name, TIME_MODELS)
    if name == "ppp":
        if ppp is None:
            raise BadValue("the ppp model needs a PPP, the share of peak that the platform reaches: --ppp 0.62, say")
        return PppModel(ppp, overlap)
    if ppp is not None or overlap:
        raise BadValue(f"{'a PPP' if ppp is not None else 'overlap'} belongs to the ppp model, not to {name}")
    if name == "calibrated":
        raise BadValue("the calibrated model needs a calibration: --calibration FILE or the name of a shipped one")
    return PeakModel() if name == "peak" else RooflineModel()

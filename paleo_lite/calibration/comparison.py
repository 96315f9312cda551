"""A prediction beside a profile: where they part, by kind of layer and pass, and layer by layer where they match up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from ..counting import KINDS
from ..profile_analysis.pass_times import PassTimes
from ..result import Result
from ..timing import Prediction
from ..timing.models import Terms
from .ppp import AT_PEAK

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .measurements import Provenance

    Floats = NDArray[np.float64]

_PASSES = {
    "inference": "forward", "forward": "forward", "backward_data": "backward", "backward_weight": "backward",
    "update": "update",
}  # fmt: skip
_MATRIX = ("convolution", "linear", "gemm")
MEASURED_PASSES = ("forward", "backward", "update")
"""The passes that a profile tells apart, in their order."""


class PredictedRow(msgspec.Struct, frozen=True):
    """One kind of layer in one pass, or one layer in one pass; None where a side has nothing of it.

    Attributes
    ----------
    name, part : str
        Kind or layer, and pass.
    at_peak_s, flops_at_peak_s : float or None
        Seconds at peak: of arithmetic and memory traffic one after the other, and of the FLOPs alone.
    """

    name: str
    part: str
    measured_s: float | None
    predicted_s: float | None
    at_peak_s: float | None = None
    flops_at_peak_s: float | None = None

    @property
    def ppp(self) -> float | None:
        """PALEO's platform percent of peak: FLOPs / peak + bytes / bandwidth, over the measured seconds."""
        return self.at_peak_s / self.measured_s if self.measured_s and self.at_peak_s else None

    @property
    def share_of_peak(self) -> float | None:
        """Measured FLOP/s over peak FLOP/s, memory traffic left out."""
        return self.flops_at_peak_s / self.measured_s if self.measured_s and self.flops_at_peak_s else None

    @property
    def difference_s(self) -> float:
        """Measured less predicted; an absent side is 0."""
        return (self.measured_s or 0.0) - (self.predicted_s or 0.0)

    @property
    def ratio(self) -> float | None:
        """Measured over predicted."""
        return self.measured_s / self.predicted_s if self.measured_s is not None and self.predicted_s else None

    def to_dict(self, key: str = "kind") -> dict[str, Any]:
        """The documented JSON."""
        return {
            key: self.name,
            "pass": self.part,
            "measured_s": self.measured_s,
            "predicted_s": self.predicted_s,
            "difference_s": self.difference_s,
            "ratio": self.ratio,
            "ppp": self.ppp,
            "share_of_peak": self.share_of_peak,
        }


class PredictedBeside(Result, msgspec.Struct, frozen=True, eq=False):
    """A prediction beside what was measured, per iteration.

    Attributes
    ----------
    kinds, layers : list of PredictedRow
        Where they part most first. `layers` holds those kinds whose layers and operations are equally many.
    remarks : tuple of str
        What else is to be said of the two, such as that the one was fitted to the other.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.compare:predicted_page"

    path: str
    prediction: Prediction
    measured: PassTimes
    kinds: list[PredictedRow]
    layers: list[PredictedRow]
    remarks: tuple[str, ...] = ()

    @property
    def ppp(self) -> float:
        """Seconds at peak of all that is predicted, over the measured seconds."""
        return sum(row.at_peak_s or 0.0 for row in self.kinds) / self.measured_s

    @property
    def measured_s(self) -> float:
        """Seconds per iteration, summed over kernels."""
        return sum(self.measured.seconds.values())

    @property
    def notes(self) -> tuple[str, ...]:
        """What somebody who uses the numbers should know."""
        measured = self.measured
        left_out = "" if measured.iterations_found == measured.iterations else f" of {measured.iterations_found}"
        notes = [
            f"measured: medians over {measured.iterations}{left_out} iterations, summed over kernels; the first "
            "(autotuning) and those unlike the others are left out"
        ]
        if not measured.has_ops:
            notes.append(
                "the profile does not name operations: matrix products of convolutions and linear layers are one kind"
            )
        return (*self.remarks, *notes, *self.prediction.notes)

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON."""
        return {
            "path": self.path,
            "network": self.prediction.network,
            "gpu": self.prediction.device.id,
            "precision": self.prediction.precision,
            "batch_size": self.prediction.batch_size,
            "phase": self.prediction.phase,
            "time_model": self.prediction.model.name,
            "calibration": self.prediction.model.label or None,
            "ppp": self.ppp,
            "iterations": self.measured.iterations,
            "measured_s": self.measured_s,
            "predicted_s": self.prediction.time_s,
            "ratio": self.measured_s / self.prediction.time_s if self.prediction.time_s else None,
            "kinds": [row.to_dict() for row in self.kinds],
            "layers": [row.to_dict("layer") for row in self.layers],
            "notes": list(self.notes),
        }


def lay_beside(path: str, measured: PassTimes, prediction: Prediction) -> PredictedBeside:
    """Match a prediction's layers with a profile's operations.

    Parameters
    ----------
    path : str
        Of the profile.
    prediction : Prediction
        For the profile's batch size and phase.
    """
    merge = not measured.has_ops
    ours: dict[tuple[str, str], float] = {}
    for (kind, part), seconds in measured.seconds.items():
        key = _merged(kind, part, merge)
        ours[key] = ours.get(key, 0.0) + seconds
    at_peak = AT_PEAK.evaluate(prediction.workload, prediction.machine)
    sides = [
        ours,
        *(
            _by_kind(terms.passes, seconds, prediction.kinds, merge)
            for terms, seconds in (
                (prediction.terms, prediction.terms.layers_s),
                (at_peak, at_peak.layers_s),
                (at_peak, at_peak.compute_s),
            )
        ),
    ]
    keys = dict.fromkeys(key for side in sides for key in side)
    rows = [PredictedRow(*key, *(side.get(key) for side in sides)) for key in keys]
    rows.sort(key=lambda row: -abs(row.difference_s))
    return PredictedBeside(path, prediction, measured, rows, _layers(measured, prediction, at_peak))


def learnt_from(beside: PredictedBeside, provenance: Provenance) -> tuple[str, ...]:
    """Whether what predicts has learnt from profiles of this very network: then their agreement proves little."""
    of_profiles = any(source.startswith("profiles") for source in provenance.sources)
    if beside.prediction.network not in provenance.networks or not of_profiles:
        return ()
    return (
        f"the calibration has learnt from profiles of {beside.prediction.network} on this device "
        f"({provenance.points} measurements), perhaps from this one: that they agree is no test of it",
    )


def _by_kind(passes: Sequence[str], seconds: Floats, kinds: Sequence[str], merge: bool) -> dict[tuple[str, str], float]:
    """Sums of seconds, shape (passes, layers), by the kinds and passes that a profile tells apart."""
    sums: dict[tuple[str, str], float] = {}
    for number, part in enumerate(passes):
        for layer, kind in enumerate(kinds):
            if taken := float(seconds[number, layer]):
                key = _merged(kind_of_layer(kind), _PASSES[part], merge)
                sums[key] = sums.get(key, 0.0) + taken
    return sums


def kind_of_layer(kind: str) -> str:
    """The kind of `paleo_lite.profile_analysis.pass_times` that a network's layer belongs to."""
    return KINDS[kind].profile_kind if kind in KINDS else "other"


def _merged(kind: str, part: str, merge: bool) -> tuple[str, str]:
    if part == "update":
        return "update", part
    return ("convolution and linear", part) if merge and kind in _MATRIX else (kind, part)


def _layers(measured: PassTimes, prediction: Prediction, at_peak: Terms) -> list[PredictedRow]:
    by_kind: dict[str, list[int]] = {}
    for layer, kind in enumerate(prediction.kinds):
        by_kind.setdefault(kind_of_layer(kind), []).append(layer)
    rows = []
    for (kind, part), seconds in measured.layers.items():
        layers = by_kind.get(kind, [])
        passes = [name for name in prediction.terms.passes if _PASSES[name] == part]
        if part == "update" or kind == "elementwise" or len(layers) != len(seconds) or not passes:
            continue
        order = layers if part == "forward" else layers[::-1]
        flops_s = at_peak.compute_s[[name in passes for name in at_peak.passes]].sum(axis=0)
        columns = [prediction.terms.seconds_of(*passes), at_peak.seconds_of(*passes), flops_s]
        rows += [
            PredictedRow(prediction.names[layer], part, time, *(float(column[layer]) for column in columns))
            for layer, time in zip(order, seconds)
        ]
    return sorted(rows, key=lambda row: -abs(row.difference_s))

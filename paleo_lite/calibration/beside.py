"""A prediction beside a profile: where they part, by kind of layer and pass, and layer by layer where they match up."""

from __future__ import annotations

from typing import Any

import msgspec

from ..counting import KINDS
from ..efficiency.by_kind import PassTimes
from ..timing import Prediction

_PASSES = {
    "inference": "forward", "forward": "forward", "backward_data": "backward", "backward_weight": "backward",
    "update": "update",
}  # fmt: skip
_MATRIX = ("convolution", "linear", "gemm")
MEASURED_PASSES = ("forward", "backward", "update")
"""The passes that a profile tells apart, in their order."""


class PredictedRow(msgspec.Struct, frozen=True):
    """One kind of layer in one pass, or one layer in one pass; None where a side has nothing of it."""

    name: str
    part: str
    measured_s: float | None
    predicted_s: float | None

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
        }


class PredictedBeside(msgspec.Struct, frozen=True, eq=False):
    """A prediction beside what was measured, per iteration.

    Attributes
    ----------
    path : str
    prediction : Prediction
    measured : PassTimes
    kinds, layers : list of PredictedRow
        Where they part most first. `layers` holds those kinds whose layers and operations are equally many.
    """

    path: str
    prediction: Prediction
    measured: PassTimes
    kinds: list[PredictedRow]
    layers: list[PredictedRow]

    @property
    def measured_s(self) -> float:
        """Seconds per iteration, summed over kernels."""
        return sum(self.measured.seconds.values())

    @property
    def notes(self) -> tuple[str, ...]:
        """What somebody who uses the numbers should know."""
        measured = self.measured
        left_out = "" if measured.found == measured.iterations else f" of {measured.found}"
        notes = [
            f"measured: medians over {measured.iterations}{left_out} iterations, summed over kernels; the first "
            "(autotuning) and those unlike the others are left out"
        ]
        if not measured.has_ops:
            notes.append(
                "the profile does not name operations: matrix products of convolutions and linear layers are one kind"
            )
        return (*notes, *self.prediction.notes)

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
    measured : PassTimes
    prediction : Prediction
        For the profile's batch size and phase.
    """
    merge = not measured.has_ops
    ours: dict[tuple[str, str], float] = {}
    for (kind, part), seconds in measured.seconds.items():
        key = _merged(kind, part, merge)
        ours[key] = ours.get(key, 0.0) + seconds
    theirs: dict[tuple[str, str], float] = {}
    for number, part in enumerate(prediction.terms.passes):
        for layer, kind in enumerate(prediction.kinds):
            seconds = float(prediction.terms.layers_s[number, layer])
            key = _merged(kind_of_layer(kind), _PASSES[part], merge)
            if seconds:
                theirs[key] = theirs.get(key, 0.0) + seconds
    rows = [PredictedRow(*key, ours.get(key), theirs.get(key)) for key in {**ours, **theirs}]
    rows.sort(key=lambda row: -abs(row.difference_s))
    return PredictedBeside(path, prediction, measured, rows, _layers(measured, prediction))


def kind_of_layer(kind: str) -> str:
    """The kind of `paleo_lite.efficiency.by_kind` that a network's layer belongs to."""
    return KINDS[kind].profiled if kind in KINDS else "other"


def _merged(kind: str, part: str, merge: bool) -> tuple[str, str]:
    if part == "update":
        return "update", part
    return ("convolution and linear", part) if merge and kind in _MATRIX else (kind, part)


def _layers(measured: PassTimes, prediction: Prediction) -> list[PredictedRow]:
    by_kind: dict[str, list[int]] = {}
    for layer, kind in enumerate(prediction.kinds):
        by_kind.setdefault(kind_of_layer(kind), []).append(layer)
    rows = []
    for (kind, part), seconds in measured.layers.items():
        layers = by_kind.get(kind, [])
        passes = [number for number, name in enumerate(prediction.terms.passes) if _PASSES[name] == part]
        if part == "update" or kind == "elementwise" or len(layers) != len(seconds) or not passes:
            continue
        order = layers if part == "forward" else layers[::-1]
        rows += [
            PredictedRow(prediction.names[layer], part, time, float(prediction.terms.layers_s[passes, layer].sum()))
            for layer, time in zip(order, seconds)
        ]
    return sorted(rows, key=lambda row: -abs(row.difference_s))

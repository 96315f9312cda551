"""Comparison of a prediction with a profile, by kind of layer and pass, and by layer where the layers match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from ..counting import KINDS
from ..profile_analysis.operation_times import Operation, ProductSizes
from ..profile_analysis.pass_times import PassTimes
from ..result import Result
from ..text import format_plural
from ..timing import Prediction
from ..timing.terms import Terms
from ..units import format_si
from .by_operation import GAPS, PROFILE_PASSES, OperationRow, compare_operations, gaps_of, product_sizes
from .ppp import AT_PEAK

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .measurements import Provenance

    Floats = NDArray[np.float64]

_MATRIX_KINDS = ("convolution", "linear", "gemm")

MEASURED_PASSES = ("forward", "backward", "update")
"""Passes that a profile distinguishes, in their order."""


class ComparisonRow(msgspec.Struct, frozen=True):
    """One kind of layer or one layer in one pass; None on a side without it."""

    # Kind or layer, and pass; the gaps between kernels belong to no pass.
    name: str
    part: str
    measured_s: float | None
    predicted_s: float | None
    # Seconds at peak: of arithmetic and memory traffic one after the other, and of the FLOPs alone.
    at_peak_s: float | None = None
    flops_at_peak_s: float | None = None

    @property
    def ppp(self) -> float | None:
        """PALEO's platform percent of peak: FLOPs / peak + bytes / bandwidth, over the measured seconds."""
        return self.at_peak_s / self.measured_s if self.measured_s and self.at_peak_s else None

    @property
    def share_of_peak(self) -> float | None:
        """Measured FLOP/s over peak FLOP/s, without memory traffic."""
        return self.flops_at_peak_s / self.measured_s if self.measured_s and self.flops_at_peak_s else None

    @property
    def difference_s(self) -> float:
        """Measured minus predicted seconds; an absent side counts as 0."""
        return (self.measured_s or 0.0) - (self.predicted_s or 0.0)

    @property
    def ratio(self) -> float | None:
        """Measured over predicted time."""
        return self.measured_s / self.predicted_s if self.measured_s is not None and self.predicted_s else None

    def to_dict(self, key: str = "kind") -> dict[str, Any]:
        """Return the documented JSON."""
        return {
            key: self.name,
            "pass": self.part or None,
            "measured_s": self.measured_s,
            "predicted_s": self.predicted_s,
            "difference_s": self.difference_s,
            "ratio": self.ratio,
            "ppp": self.ppp,
            "share_of_peak": self.share_of_peak,
        }


IMPLAUSIBLE = 1.5
"""Factor below the bound from which a measured time is another computation's: clocks are at most a fifth higher."""


class ProfileComparison(Result, msgspec.Struct, frozen=True, eq=False):
    """Comparison of a prediction with measured times, per iteration."""

    _page: ClassVar[str] = "paleo_lite.reporting.compare:predicted_page"

    path: str
    prediction: Prediction
    measured: PassTimes
    # Rows by decreasing absolute difference: times of the device, and the gaps in which it waits. `layers` has only the
    # kinds with as many operations in the profile as layers in the network, of the same sizes.
    kinds: list[ComparisonRow]
    layers: list[ComparisonRow]
    remarks: tuple[str, ...] = ()  # further notes, for example that the prediction was fitted to the profile
    # Operations of a language model, by decreasing measured time; empty for networks without attention.
    operations: list[OperationRow] = []
    operation_notes: tuple[str, ...] = ()

    @property
    def ppp(self) -> float:
        """Time at peak of all predicted work over the measured time of the kernels."""
        return sum(row.at_peak_s or 0.0 for row in self.kinds) / self.kernels_s

    @property
    def kernels_s(self) -> float:
        """Measured seconds per iteration, summed over kernels."""
        return sum(self.measured.seconds.values())

    @property
    def has_gaps(self) -> bool:
        """Whether the profile has start times, so that the gaps between its kernels are known."""
        return self.measured.gap_s is not None

    @property
    def measured_s(self) -> float:
        """Measured seconds per iteration: of kernels, and of the gaps between them if they are known."""
        return self.kernels_s + (self.measured.gap_s or 0.0)

    @property
    def predicted_s(self) -> float:
        """Predicted seconds of what is measured: of the step, or of its kernels where gaps are not known."""
        terms = self.prediction.terms
        return self.prediction.time_s if self.has_gaps else self.prediction.time_s - gaps_of(terms)

    @property
    def notes(self) -> tuple[str, ...]:
        """Caveats of the numbers."""
        measured = self.measured
        available = "" if measured.iterations_found == measured.iterations else f" of {measured.iterations_found}"
        iterations = f"{format_plural(measured.iterations, 'iteration')}{available}"
        notes = [
            f"measured: medians over {iterations}, summed over kernels{' and the gaps between them' * self.has_gaps}; "
            "the first iteration (autotuning) and irregular ones are left out"
        ]
        if not self.has_gaps:
            notes.append(
                "the profile has no start times: the time of kernels is compared, without the "
                f"{format_si(gaps_of(self.prediction.terms), 's')} in which the device is predicted to wait"
            )
        bound_s = self.prediction.bound_s
        if bound_s is not None and self.kernels_s < bound_s / IMPLAUSIBLE:
            notes.insert(
                0,
                f"the data sheet allows no less than {format_si(bound_s, 's')} for {self.prediction.network}: the "
                "profile is of another network, batch or device, or of a part of an iteration",
            )
        if not measured.has_ops:
            notes.append(
                "the profile does not name operations: matrix products of convolutions and linear layers are one kind"
            )
        return (*self.remarks, *self.operation_notes, *notes, *self.prediction.notes)

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON."""
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
            "predicted_s": self.predicted_s,
            "ratio": self.measured_s / self.predicted_s if self.predicted_s else None,
            "operations": [row.to_dict() for row in self.operations],
            "kinds": [row.to_dict() for row in self.kinds],
            "layers": [row.to_dict("layer") for row in self.layers],
            "notes": list(self.notes),
        }


def compare_with_profile(path: str, measured: PassTimes, prediction: Prediction) -> ProfileComparison:
    """Match the layers of a prediction with the operations of a profile, which has the same batch size and phase.

    `path` is that of the profile.
    """
    merge = not measured.has_ops
    measured_s: dict[tuple[str, str], float] = {}
    for (kind, part), seconds in measured.seconds.items():
        key = _row_key(kind, part, merge)
        measured_s[key] = measured_s.get(key, 0.0) + seconds
    at_peak = AT_PEAK.evaluate(prediction.workload, prediction.machine)
    terms = prediction.terms
    predicted_s = _sum_by_kind(terms.passes, terms.layers_s / terms.host_slowdown, prediction.kinds, merge)
    at_peak_s = _sum_by_kind(at_peak.passes, at_peak.layers_s, prediction.kinds, merge)
    flops_at_peak_s = _sum_by_kind(at_peak.passes, at_peak.compute_s, prediction.kinds, merge)
    rows = [
        ComparisonRow(
            name=kind,
            part=part,
            measured_s=measured_s.get((kind, part)),
            predicted_s=predicted_s.get((kind, part)),
            at_peak_s=at_peak_s.get((kind, part)),
            flops_at_peak_s=flops_at_peak_s.get((kind, part)),
        )
        for kind, part in {**measured_s, **predicted_s, **at_peak_s, **flops_at_peak_s}
    ]
    if measured.gap_s is not None:
        rows.append(ComparisonRow(GAPS, "", measured.gap_s, gaps_of(terms)))
    rows.sort(key=lambda row: -abs(row.difference_s))
    operations, operation_notes = compare_operations(measured, prediction)
    return ProfileComparison(
        path,
        prediction,
        measured,
        rows,
        _compare_layers(measured, prediction, at_peak),
        operations=operations,
        operation_notes=operation_notes,
    )


def training_overlap_notes(comparison: ProfileComparison, provenance: Provenance) -> tuple[str, ...]:
    """Return a note if the calibration was fitted to profiles of the same network: then agreement is no evidence."""
    network = comparison.prediction.network
    has_profiles = any(source.startswith("profiles") for source in provenance.sources)
    if network not in provenance.networks or not has_profiles:
        return ()
    return (
        f"the calibration was fitted to profiles of {network} on this device ({provenance.points} measurements), "
        "possibly including this one: their agreement does not test the prediction",
    )


def _sum_by_kind(
    passes: Sequence[str], seconds: Floats, kinds: Sequence[str], merge: bool
) -> dict[tuple[str, str], float]:
    """Sum seconds, an array of shape (passes, layers), by the kinds and passes that a profile distinguishes."""
    sums: dict[tuple[str, str], float] = {}
    for pass_index, part in enumerate(passes):
        for layer, kind in enumerate(kinds):
            layer_s = float(seconds[pass_index, layer])
            if layer_s:
                key = _row_key(kind_of_layer(kind), PROFILE_PASSES[part], merge)
                sums[key] = sums.get(key, 0.0) + layer_s
    return sums


def kind_of_layer(kind: str) -> str:
    """Return the kind in `paleo_lite.profile_analysis.pass_times` for a kind of network layer."""
    return KINDS[kind].profile_kind if kind in KINDS else "other"


def _row_key(kind: str, part: str, merge: bool) -> tuple[str, str]:
    """Return kind and pass of a row; `merge` combines matrix products of convolutions and linear layers."""
    if part == "update":
        return "update", part
    if merge and kind in _MATRIX_KINDS:
        return "convolution and linear", part
    return kind, part


def _compare_layers(measured: PassTimes, prediction: Prediction, at_peak: Terms) -> list[ComparisonRow]:
    """Return one row per layer and pass, for kinds with as many measured operations as layers, of the same sizes."""
    sizes_of_layer = product_sizes(prediction.workload)
    layers_by_kind: dict[str, list[int]] = {}
    for layer, kind in enumerate(prediction.kinds):
        layers_by_kind.setdefault(kind_of_layer(kind), []).append(layer)
    rows = []
    for (kind, part), seconds in measured.layers.items():
        layers = layers_by_kind.get(kind, [])
        passes = [name for name in prediction.terms.passes if PROFILE_PASSES[name] == part]
        if part == "update" or kind == "elementwise" or len(layers) != len(seconds) or not passes:
            continue
        in_time_order = layers if part == "forward" else layers[::-1]
        if not _have_equal_sizes(in_time_order, sizes_of_layer, measured.layer_operations.get((kind, part), ())):
            continue
        predicted_s = prediction.terms.seconds_of(*passes) / prediction.terms.host_slowdown
        at_peak_s = at_peak.seconds_of(*passes)
        flops_at_peak_s = at_peak.compute_s[[name in passes for name in at_peak.passes]].sum(axis=0)
        for layer, layer_s in zip(in_time_order, seconds):
            rows.append(
                ComparisonRow(
                    name=prediction.names[layer],
                    part=part,
                    measured_s=layer_s,
                    predicted_s=float(predicted_s[layer]),
                    at_peak_s=float(at_peak_s[layer]),
                    flops_at_peak_s=float(flops_at_peak_s[layer]),
                )
            )
    return sorted(rows, key=lambda row: -abs(row.difference_s))


def _have_equal_sizes(
    layers: Sequence[int], sizes_of_layer: Mapping[int, ProductSizes], operations: Sequence[Operation]
) -> bool:
    """Return whether operations can be those of layers: sizes of products, where both are known, are equal.

    The numbers alone may agree by chance: a decoder that was profiled without its output head, but with the product
    of its rotary embedding, has as many products as linear layers.
    """
    for layer, operation in zip(layers, operations):
        sizes = sizes_of_layer.get(layer)
        if sizes is not None and isinstance(operation, ProductSizes) and operation != sizes:
            return False
    return True

"""Comparison of a language model's prediction with a profile by operation: attention, linear layers, norms, gaps."""

from __future__ import annotations

import math
from typing import NamedTuple

from ..counting import KINDS, Layer
from ..counting.kinds import class_of, gemm_of
from ..counting.places import last_part
from ..profile_analysis.operation_times import OPERATION_OF_KIND, ProductSizes, RunOperation
from ..profile_analysis.pass_times import PassTimes
from ..timing import Prediction, Workload
from ..timing.terms import Terms

PROFILE_PASSES = {
    "inference": "forward",
    "forward": "forward",
    "backward_data": "backward",
    "backward_weight": "backward",
    "update": "update",
}
"""Pass of a profile for each pass of a prediction."""

_NORMS_AND_ELEMENTWISE = "norms and elementwise"

GAPS = "gaps"
"""Row of the time in which the device is idle."""


class OperationRow(NamedTuple):
    """One operation in one pass."""

    operation: str  # ``attention``, names of linear layers, ``norms``, ``elementwise``, ``collectives``, ``gaps``,
    part: str  # pass of the profile; empty for gaps, which belong to no pass
    # Seconds per iteration; None on a side without the operation.
    measured_s: float | None
    predicted_s: float | None

    def to_dict(self) -> dict[str, str | float | None]:
        """Return the documented JSON."""
        measured_s, predicted_s = self.measured_s, self.predicted_s
        return {
            "operation": self.operation,
            "pass": self.part or None,
            "measured_s": measured_s,
            "predicted_s": predicted_s,
            "difference_s": (measured_s or 0.0) - (predicted_s or 0.0),
            "ratio": measured_s / predicted_s if measured_s is not None and predicted_s else None,
        }


def compare_operations(measured: PassTimes, prediction: Prediction) -> tuple[list[OperationRow], tuple[str, ...]]:
    """Return the operations of a language model in a profile and a prediction, and notes about them.

    Linear layers are matched by the sizes of their matrix products, so layers of equal size share a row. Attention
    includes batched products and softmax, which it consists of if it is not fused. Gaps are the time in which the
    device is idle; the predicted gaps are the time of waiting for the host and the overhead of a step. The rows are
    sorted by decreasing measured time; there are none for networks without attention.
    """
    kinds = prediction.kinds
    if not any(kind in KINDS and KINDS[kind].profile_kind == "attention" for kind in kinds):
        return [], ()
    predicted_s, names_of_sizes = _predicted_seconds(prediction, measured.has_norm_names)
    measured_s: dict[RunOperation, float] = {}
    unmatched: dict[ProductSizes, float] = {}
    for (operation, part), seconds in measured.operations.items():
        name = operation
        if not isinstance(operation, str):
            if operation not in names_of_sizes:
                unmatched[operation] = unmatched.get(operation, 0.0) + seconds
            name = names_of_sizes.get(operation, "linear, other sizes")
        elif not measured.has_norm_names and operation == "elementwise":
            name = _NORMS_AND_ELEMENTWISE
        key = str(name), part
        measured_s[key] = measured_s.get(key, 0.0) + seconds
    rows = [
        OperationRow(name, part, measured_s.get((name, part)), predicted_s.get((name, part)))
        for name, part in {**measured_s, **predicted_s}
    ]
    rows.append(OperationRow(GAPS, "", measured.gap_s, gaps_of(prediction.terms)))
    rows.sort(key=lambda row: -(row.measured_s or 0.0))
    return rows, _notes(measured, unmatched, names_of_sizes)


def gaps_of(terms: Terms) -> float:
    """Return the predicted seconds in which the device is idle: waiting for the host, and the overhead of a step."""
    return terms.time_s - float(terms.layers_s.sum()) / terms.host_slowdown


def product_sizes(workload: Workload) -> dict[int, ProductSizes]:
    """Return the sizes of the forward product of each linear layer, by the index of the layer."""
    sizes_of_layer = {}
    for index, layer in enumerate(workload.layers):
        if layer.kind not in KINDS or class_of(layer) != "gemm":
            continue
        gemm = gemm_of(layer, "forward")
        if gemm is None or gemm.groups != 1 or gemm.grows == "groups":
            continue
        rows = gemm.rows * (workload.batch_size if gemm.grows == "rows" else 1)
        columns = gemm.columns * (workload.batch_size if gemm.grows == "columns" else 1)
        sizes_of_layer[index] = ProductSizes.of(rows, columns, gemm.inner)
    return sizes_of_layer


def _predicted_seconds(
    prediction: Prediction, has_norm_names: bool
) -> tuple[dict[tuple[str, str], float], dict[ProductSizes, str]]:
    """Return predicted seconds on the device by operation and pass, and the layer names of every product size."""
    workload = prediction.workload
    sizes_of_layer = product_sizes(workload)
    names: dict[ProductSizes, list[str]] = {}
    for index, sizes in sizes_of_layer.items():
        name = last_part(workload.layers[index].name)
        if name not in names.setdefault(sizes, []):
            names[sizes].append(name)
    names_of_sizes = {sizes: ", ".join(members) for sizes, members in names.items()}
    terms = prediction.terms
    seconds: dict[tuple[str, str], float] = {}
    for index, layer in enumerate(workload.layers):
        if index in sizes_of_layer:
            operation = names_of_sizes[sizes_of_layer[index]]
        else:
            operation = _operation_of_layer(layer, has_norm_names)
        for pass_index, part in enumerate(terms.passes):
            layer_s = float(terms.layers_s[pass_index, index]) / terms.host_slowdown
            if layer_s:
                key = ("update" if part == "update" else operation), PROFILE_PASSES[part]
                seconds[key] = seconds.get(key, 0.0) + layer_s
    return seconds, names_of_sizes


def _operation_of_layer(layer: Layer, has_norm_names: bool) -> str:
    profile_kind = KINDS[layer.kind].profile_kind if layer.kind in KINDS else "other"
    operation = OPERATION_OF_KIND.get(profile_kind, "other")
    if operation in ("elementwise", "norms", "other") and layer.place.role == "norm":
        operation = "norms"
    if not has_norm_names and operation in ("norms", "elementwise"):
        return _NORMS_AND_ELEMENTWISE
    return operation


def _notes(
    measured: PassTimes, unmatched: dict[ProductSizes, float], names_of_sizes: dict[ProductSizes, str]
) -> tuple[str, ...]:
    notes = []
    if not measured.has_norm_names:
        notes.append(
            "the profile names neither modules nor norms, so norms and elementwise operations are one row: record it "
            "with with_stack=True"
        )
    products_s = math.fsum(s for (operation, _), s in measured.operations.items() if not isinstance(operation, str))
    other_s = math.fsum(unmatched.values())
    if products_s and other_s > 0.1 * products_s:
        largest = max(unmatched, key=lambda sizes: unmatched[sizes])
        expected = next(iter(names_of_sizes), None)
        example = "" if expected is None else f", while {names_of_sizes[expected]} has {expected.describe()}"
        notes.append(
            f"{other_s / products_s:.0%} of the time of linear layers is in products of other sizes than predicted, "
            f"such as {largest.describe()}{example}: check `--batch-size`, `--sequence-length` and `--phase`"
        )
    return tuple(notes)

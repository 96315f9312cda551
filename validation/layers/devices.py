"""Validation of single operations with shapes or whole devices held out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from paleo_lite.calibration.accuracy import error_statistics
from paleo_lite.calibration.fit import predict_held_out
from paleo_lite.calibration.measured_devices import DeviceData, learn_evidence
from paleo_lite.calibration.prior import prior_from_evidence
from paleo_lite.calibration.validate import baseline_terms, prior_as_fit
from paleo_lite.counting.kinds.products import MATRIX_CLASSES
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.timing.features import CLASSES
from paleo_lite.timing.parameters import NAMES

from .hold_out import FEWEST, FOLDS

SAMPLE = 400
"""Number of operations sampled for each device, precision and source."""


class DeviceRow(msgspec.Struct, frozen=True):
    """Errors for a source's operations on a device, as fractions."""

    kind: str
    gpu: str
    precision: str
    source: str
    points: int
    # Mean absolute relative error, fraction inside the 90% interval, and median ratio between the ends of the
    # interval, with one fifth of the shapes held out at a time.
    same: float
    same_inside: float
    same_sharpness: float
    # The same with the chip held out; None if no other chip was timed in the precision on such arithmetic units.
    out: float | None
    out_inside: float | None
    out_sharpness: float | None
    roofline: float  # mean absolute relative error of the roofline bound


def validate_operations(
    operations: Sequence[DeviceData], includes: Callable[[str, str], bool] = lambda gpu, precision: True
) -> list[DeviceRow]:
    """Hold out shapes and chips; matrix products and convolutions are validated separately.

    Parameters
    ----------
    operations : sequence of DeviceData
    includes : function of a device and a precision
        Returns whether to hold out a device; evidence comes from all other devices.
    """
    kinds: dict[str, list[DeviceData]] = {"matrix product": [], "convolution": []}
    for group in operations:
        name, products = _matrix_operations(group)
        if len(products.runs) >= FEWEST:
            kinds[name].append(products)
    rows: list[DeviceRow] = []
    for name, groups in kinds.items():
        rows += _rows(name, groups, includes)
    return rows


def _matrix_operations(group: DeviceData) -> tuple[str, DeviceData]:
    """Return the kind and a sample of a group's matrix operations, which inform all parameters."""
    work_class = group.runs.features.work_class
    is_product = work_class == CLASSES.index("gemm")
    if is_product.any():
        name, is_selected = "matrix product", is_product
    else:
        name, is_selected = "convolution", work_class < len(MATRIX_CLASSES)
    excluded = np.unique(group.runs.run[~is_selected])
    selected = np.setdiff1d(np.arange(len(group.runs)), excluded)
    sample = selected[:: max(1, len(selected) // SAMPLE)]
    return name, group._replace(runs=group.runs.select(sample), informative_parameters=NAMES)


def _rows(kind: str, groups: Sequence[DeviceData], includes: Callable[[str, str], bool]) -> list[DeviceRow]:
    evidence = learn_evidence(groups)
    rows = []
    for group in groups:
        traits, runs = group.traits, group.runs
        if not includes(traits.id, group.precision):
            continue
        others = [row for row in evidence if row.chip != traits.chip]
        has_evidence = any((row.unit, row.precision) == (traits.unit, traits.precision) for row in others)
        prior = prior_from_evidence(traits, others)
        folds = [np.arange(part, len(runs), FOLDS) for part in range(FOLDS)]
        same = error_statistics(runs.measured_s, *predict_held_out(runs, [prior] * FOLDS, folds, group.scatter))
        out = error_statistics(runs.measured_s, *prior_as_fit(prior).predict(runs)) if has_evidence else {}
        roofline = float(np.mean(np.abs(baseline_terms(runs)[1] / runs.measured_s - 1)))
        rows.append(
            DeviceRow(
                kind, traits.id, group.precision, traits.source, len(runs), same["mape"], same["coverage_90"],
                same["sharpness_90"], out.get("mape"), out.get("coverage_90"), out.get("sharpness_90"), roofline,
            )
        )  # fmt: skip
    return rows


def operations_page(rows: Sequence[DeviceRow]) -> Document:
    """Return the page with the errors of each device, and their means by kind of operation."""

    def percent(value: float | None) -> str:
        return "-" if value is None else f"{value:.1%}"

    columns = [
        Column("kind", "operation", left=True),
        Column("gpu", "gpu", left=True),
        Column("precision", "precision", left=True),
        Column("points", "points"),
        Column("same", "other shapes", percent),
        Column("same_inside", "within\n90%", percent),
        Column("same_sharpness", "ratio of\nends", "{:.2f}".format),
        Column("out", "gpu out", percent),
        Column("out_inside", "within\n90%", percent),
        Column("out_sharpness", "ratio of\nends", "{:.2f}".format),
        Column("roofline", "roofline", percent),
        Column("source", "source", left=True, wrap=True, drop_order=1),
    ]
    facts = []
    for kind in sorted({row.kind for row in rows}):
        of_kind = [row for row in rows if row.kind == kind]
        out = [row.out for row in of_kind if row.out is not None]
        text = f"{np.mean([row.same for row in of_kind]):.1%} on other shapes of the device"
        text += f", {np.mean(out):.1%} with the chip held out" if out else ""
        facts.append((kind, text))
    headline = f"single operations of {len({row.gpu for row in rows})} devices, {sum(row.points for row in rows)} timed"
    return Document(headline, facts, [Table("Operations held out", columns, [msgspec.to_builtins(r) for r in rows])])

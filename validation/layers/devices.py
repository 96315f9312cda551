"""How true single operations are: shapes of a device held out, and whole devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from paleo_lite.calibration.fit import predict_held_out
from paleo_lite.calibration.measured_devices import DeviceData, learn_evidence
from paleo_lite.calibration.prior import prior_from_evidence
from paleo_lite.calibration.validate import baseline_terms, error_statistics, prior_as_fit
from paleo_lite.counting.kinds.products import MATRIX_CLASSES
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.timing.calibrated import NAMES
from paleo_lite.timing.features import CLASSES

from .hold_out import FEWEST, FOLDS

SAMPLE = 400
"""Operations kept of each device, precision and source."""


class DeviceRow(msgspec.Struct, frozen=True):
    """How far off a source's operations of a device are: shares of 1.

    `same`: a fifth of the shapes held out at a time, the others fitted. `out`: nothing of the chip is known but its
    data sheet; None where nothing else was timed in that precision on such units.
    """

    kind: str
    gpu: str
    precision: str
    source: str
    points: int
    same: float
    same_inside: float
    out: float | None
    out_inside: float | None
    roofline: float


def validate_operations(
    operations: Sequence[DeviceData], wants: Callable[[str, str], bool] = lambda gpu, precision: True
) -> list[DeviceRow]:
    """Hold shapes and chips out; matrix products and convolutions learn from their own kind alone.

    Parameters
    ----------
    operations : sequence of DeviceData
    wants : function of a device and a precision
        Whether they are held out; the others are learnt from all the same.
    """
    kinds: dict[str, list[DeviceData]] = {"matrix product": [], "convolution": []}
    for group in operations:
        name, found = _products(group)
        if len(found.runs) >= FEWEST:
            kinds[name].append(found)
    return [row for name, groups in kinds.items() for row in _rows(name, groups, wants)]


def _products(group: DeviceData) -> tuple[str, DeviceData]:
    """What of a group multiplies, which may say all that it says: of the shortest kernel, too."""
    work_class = group.runs.features.work_class
    is_product = work_class == CLASSES.index("gemm")
    name = "matrix product" if is_product.any() else "convolution"
    wrong = np.unique(group.runs.run[~(is_product if is_product.any() else work_class < len(MATRIX_CLASSES))])
    kept = np.setdiff1d(np.arange(len(group.runs)), wrong)
    kept = kept[:: max(1, len(kept) // SAMPLE)]
    return name, group._replace(runs=group.runs.select(kept), informative_parameters=NAMES)


def _rows(kind: str, groups: Sequence[DeviceData], wants: Callable[[str, str], bool]) -> list[DeviceRow]:
    evidence = learn_evidence(groups)
    rows = []
    for group in groups:
        traits, runs = group.traits, group.runs
        if not wants(traits.id, group.precision):
            continue
        others = [one for one in evidence if one.chip != traits.chip]
        alike = any((one.unit, one.precision) == (traits.unit, traits.precision) for one in others)
        prior = prior_from_evidence(traits, others)
        folds = [np.arange(part, len(runs), FOLDS) for part in range(FOLDS)]
        same = error_statistics(runs.measured_s, *predict_held_out(runs, [prior] * FOLDS, folds, group.scatter))
        out = error_statistics(runs.measured_s, *prior_as_fit(prior).predict(runs)) if alike else {}
        roofline = float(np.mean(np.abs(baseline_terms(runs)[1] / runs.measured_s - 1)))
        rows.append(
            DeviceRow(
                kind, traits.id, group.precision, traits.source, len(runs), same["mape"], same["coverage_90"],
                out.get("mape"), out.get("coverage_90"), roofline,
            )
        )  # fmt: skip
    return rows


def operations_page(rows: Sequence[DeviceRow]) -> Document:
    """Errors of each device, and their means by kind and vendor."""

    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.1%}"

    columns = [
        Column("kind", "operation", left=True),
        Column("gpu", "gpu", left=True),
        Column("precision", "precision", left=True),
        Column("points", "points"),
        Column("same", "other shapes", share),
        Column("same_inside", "within\n90%", share),
        Column("out", "gpu out", share),
        Column("out_inside", "within\n90%", share),
        Column("roofline", "roofline", share),
        Column("source", "source", left=True, wrap=True, drop_order=1),
    ]
    facts = []
    for kind in sorted({row.kind for row in rows}):
        own = [row for row in rows if row.kind == kind]
        out = [row.out for row in own if row.out is not None]
        text = f"{np.mean([row.same for row in own]):.1%} on other shapes of the device"
        text += f", {np.mean(out):.1%} with the chip held out" if out else ""
        facts.append((kind, text))
    headline = f"single operations of {len({row.gpu for row in rows})} devices, {sum(row.points for row in rows)} timed"
    return Document(headline, facts, [Table("Operations held out", columns, [msgspec.to_builtins(r) for r in rows])])

"""Documents that compare two profiles, or a prediction with a profile."""

from __future__ import annotations

from ..calibration.comparison import MEASURED_PASSES, ProfileComparison
from ..profile_analysis import GROUPINGS
from ..profile_analysis.compare import ComparedKernel, RunComparison
from ..timing import describe_model
from ..units import format_si
from .answers import format_at_90
from .columns import find_column, select_columns
from .document import Column, Document, Table


def comparison_page(comparison: RunComparison, top: int | None = 20) -> Document:
    """Return the document of a comparison of two profiles, with the `top` kernels in each table; None lists all."""
    has_verdict = comparison.total.verdict is not None
    by = comparison.by
    tables = [_table(f"{GROUPINGS[by]} in both", by, comparison.in_both, top, has_verdict, comparison.total)]
    for title, rows in (("Only in A", comparison.only_a), ("Only in B", comparison.only_b)):
        if rows:
            tables.append(_table(title, by, rows, top, False, None))
    total = comparison.total
    headline = f"A {format_si(total.a_s, 's', 5)}, B {format_si(total.b_s, 's', 5)}"
    if total.ratio is not None:
        headline += f", B / A {total.ratio:.4f}"
    if comparison.direction != "all":
        headline += f" ({comparison.direction})"
    if has_verdict:
        headline += f": {total.verdict} of repeated runs"
    return Document(
        headline,
        [("A", ", ".join(comparison.a)), ("B", ", ".join(comparison.b))],
        tables,
        comparison.notes,
        Table("", _columns(True, comparison.by), [row.to_dict() for row in comparison.kernels]),
    )


def _table(
    title: str, by: str, rows: list[ComparedKernel], top: int | None, has_verdict: bool, total: ComparedKernel | None
) -> Table:
    foot = [] if total is None else [{**total.to_dict(), "name": "all"}]
    if not has_verdict:
        foot = [{key: value for key, value in row.items() if key not in ("verdict", "spread_s")} for row in foot]
    return Table(title, _columns(has_verdict, by), [row.to_dict() for row in rows], foot).head(top)


def _columns(has_verdict: bool, by: str = "kernel") -> list[Column]:
    return select_columns(
        find_column(by if by in ("kernel", "module") else "operation", key="name"),
        *(["class"] if by == "kernel" else []),
        "a_s",
        "b_s",
        find_column("b_minus_a_s", key="difference_s"),
        find_column("b_to_a", key="ratio"),
        *(["spread_s", "verdict"] if has_verdict else []),
        drop=("class", "spread_s", "verdict"),
    )


def predicted_page(comparison: ProfileComparison, top: int | None = 10) -> Document:
    """Return the document of a prediction compared with a profile, with the `top` layers; None lists all."""
    prediction = comparison.prediction
    kinds = sorted(comparison.kinds, key=lambda row: (*MEASURED_PASSES, "").index(row.part))
    total = {
        "kind": "total",
        "measured_s": comparison.measured_s,
        "predicted_s": comparison.predicted_s,
        "difference_s": comparison.measured_s - comparison.predicted_s,
        "ratio": comparison.measured_s / comparison.predicted_s if comparison.predicted_s else None,
        "ppp": comparison.ppp,
    }
    tables = [
        Table("Per iteration, by kind of layer", _predicted_columns("kind"), [row.to_dict() for row in kinds], [total])
    ]
    if comparison.operations:
        tables.insert(0, _operations_table(comparison))
    layers = comparison.layers if top is None else comparison.layers[:top]
    if layers:
        title = f"Layers with the largest difference, {len(layers)} of {len(comparison.layers)}"
        tables.append(Table(title, _predicted_columns("layer"), [row.to_dict("layer") for row in layers]))
    worst = comparison.kinds[0]
    place = f"{worst.name}, {worst.part}" if worst.part else worst.name
    interval = format_at_90(prediction.interval)
    if not comparison.has_gaps:
        interval = f" of kernels, in a step of {format_si(prediction.time_s, 's')}{interval}"
    headline = (
        f"{prediction.network} on {prediction.device.name}, batch {prediction.batch_size}, {prediction.phase}: "
        f"measured {format_si(comparison.measured_s, 's')}, {prediction.model.name} predicts "
        f"{format_si(comparison.predicted_s, 's')}{interval}; largest difference in {place}"
    )
    return Document(
        headline,
        [
            ("profile", comparison.path),
            ("time model", describe_model(prediction.model)),
            ("PPP", f"{comparison.ppp:.3g}: (FLOPs / peak + bytes / bandwidth) / measured time of kernels"),
            ("peak", prediction.peak.describe()),
        ],
        tables,
        comparison.notes,
    )


def _operations_table(comparison: ProfileComparison) -> Table:
    columns = [column for column in _predicted_columns("operation") if column.key not in ("ppp", "share_of_peak")]
    rows = [row.to_dict() for row in comparison.operations]
    return Table("Per iteration, by operation", columns, rows)


def _predicted_columns(first: str) -> list[Column]:
    return select_columns(
        first,
        "pass",
        "measured_s",
        "predicted_s",
        "difference_s",
        "ratio",
        "ppp",
        find_column("flops_efficiency", key="share_of_peak"),
        drop=("share_of_peak", "difference_s"),
    )

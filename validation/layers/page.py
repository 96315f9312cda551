"""Page and chart points of the validation of single layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from paleo_lite.calibration.accuracy import coverage, mean_error
from paleo_lite.reporting.charts.accuracy import Pair, interval_of
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.reporting.formats import format_percent, format_percent_rounded
from paleo_lite.units import format_si

from .hold_out import LayerPoint, LayerRow


def layer_validation_page(
    rows: Sequence[LayerRow], points: Sequence[LayerPoint], left_out: Mapping[str, int] = {}
) -> Document:
    """Return the page with the held-out errors of single layers by device and kind, and the worst points."""
    table = Table(
        "Held-out error",
        [
            Column("gpu", "gpu", left=True),
            Column("precision", "precision", left=True, drop_order=2),
            Column("kind", "kind", left=True),
            Column("phase", "phase", left=True),
            Column("points", "points", drop_order=1),
            Column("mape", "MAPE", format_percent),
            Column("median", "median", format_percent, drop_order=4),
            Column("p90", "90th\npercentile", format_percent, drop_order=5),
            Column("bias", "bias", lambda value: f"{value:+.1%}", drop_order=6),
            Column("rank_correlation", "rank\ncorrelation", lambda value: f"{value:.3f}", drop_order=8),
            Column("coverage_80", "within\n80%", format_percent_rounded, drop_order=7),
            Column("coverage_90", "within\n90%", format_percent_rounded),
            Column("width_90", "width", format_percent, drop_order=9),
            Column("sharpness_90", "ratio of\nends", "{:.2f}".format, drop_order=9),
            Column("launch_and_roofline", "launch +\nroofline", format_percent),
            Column("one_ppp", "one PPP", format_percent, drop_order=3),
            Column("roofline", "roofline", format_percent, drop_order=3),
            Column("source", "source", left=True, wrap=True, drop_order=10),
        ],
        [{**msgspec.to_builtins(row), **row.baselines} for row in rows],
    )
    worst = Table(
        "Worst points",
        [
            Column("kind", "kind", left=True),
            Column("gpu", "gpu", left=True),
            Column("phase", "phase", left=True, drop_order=1),
            Column("batch_size", "batch"),
            Column("operation", "operation", left=True, wrap=True),
            Column("measured_s", "measured", lambda value: format_si(value, "s")),
            Column("predicted_s", "predicted", lambda value: format_si(value, "s")),
            Column("error", "error", lambda value: f"{value:+.0%}"),
        ],
        [_point(point) for point in sorted(points, key=lambda point: -abs(point.error))[:10]],
    )
    names = sorted({(row.source.split(" ")[0], row.kind) for row in rows})
    facts = []
    for source, kind in names:
        group = [row for row in rows if row.kind == kind and row.source.startswith(source + " ")]
        facts.append((f"{source}, {kind}", _summary(group)))
    facts.append(("within", f"{coverage(rows):.0%} of {len(points)} layers lie in their 90% interval"))
    error = f"{mean_error(rows):.1%} mean absolute error"
    headline = f"one fifth of the shapes held out: {error} over {len(rows)} groups of layers"
    notes = [f"{number} rows left out: {reason}" for reason, number in left_out.items() if number]
    return Document(headline, facts, [table, worst], notes, table)


def _summary(rows: Sequence[LayerRow]) -> str:
    error = sum(row.mape for row in rows) / len(rows)
    baseline = sum(row.baselines["launch_and_roofline"] for row in rows) / len(rows)
    return f"{error:.1%} mean absolute error (launch and roofline {baseline:.1%})"


def _point(point: LayerPoint) -> dict[str, object]:
    timed = point.layer
    layer, _ = max(timed.operations, key=lambda operation: len(operation.layer.weights))
    shapes = [*layer.inputs, *layer.weights[:1]]
    stride = layer.attributes.get("stride", [1])[0]
    text = " by ".join("x".join(map(str, shape)) for shape in shapes) + (f", stride {stride}" if stride > 1 else "")
    return {
        **{name: getattr(timed, name) for name in ("kind", "gpu", "phase", "batch_size")},
        "operation": text, "measured_s": timed.time_s, "predicted_s": point.predicted_s, "error": point.error,
    }  # fmt: skip


def layer_pairs(points: Iterable[LayerPoint]) -> list[Pair]:
    """Return the points of the chart of held-out layers, by kind."""
    return [
        Pair(f"{e.kind} {e.shape}, {e.phase}, {e.gpu} {e.precision}", e.kind, e.time_s, p.predicted_s,
             interval_of(p.predicted_s, p.deviation))
        for p in points for e in [p.layer]
    ]  # fmt: skip

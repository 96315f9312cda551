"""Documents of predicted and measured training on several devices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from paleo_lite.reporting.charts.accuracy import Pair
from paleo_lite.reporting.document import Column, Document, Table, format_percent
from paleo_lite.units import format_si

from .clusters import HeldOut
from .hold_out import Gap, ScaledPoint, ScalingTruth

EFFICIENCY_GOAL, TIME_GOAL, GAP_GOAL = 0.05, 0.08, 0.3
"""Targets: points of efficiency, and relative errors of times and of the cost of gradients."""


def scaling_truth_page(truth: ScalingTruth) -> Document:
    """Return the document of predicted and measured training on several devices."""
    held = [point for point in truth.points if point.held_out]
    good = sum(_is_good(point) for point in held)
    facts = []
    for platform, constants in truth.constants.items():
        named = ", ".join(
            f"{name.removesuffix('_bytes_per_s')} {format_si(value, 'B/s', 3)}"
            if name.endswith("bytes_per_s")
            else f"{name.replace('_', ' ')} {value:.3g}"
            for name, value in constants.items()
        )
        facts.append((platform, named))
    tables = [_truth_summary(truth), _efficiencies(held), _cluster_times(held)]
    if truth.gaps:
        tables.append(_gap_table(truth.gaps))
    return Document(
        f"scaling: {good} of {len(held)} held-out measurements within {100 * EFFICIENCY_GOAL:g} points of efficiency "
        f"or {100 * TIME_GOAL:g}% of the time",
        facts,
        [table for table in tables if table.rows],
        data=Table("", _point_columns(efficiency=True, time=True), [_point_row(point) for point in truth.points]),
    )


def _is_good(point: ScaledPoint) -> bool:
    return abs(point.error) <= TIME_GOAL if point.off is None else abs(point.off) <= EFFICIENCY_GOAL


def _truth_summary(truth: ScalingTruth) -> Table:
    groups: dict[tuple[str, str], list[ScaledPoint]] = {}
    for point in truth.points:
        groups.setdefault((point.measurement.platform, point.held_out), []).append(point)
    rows = []
    for (platform, held_out), points in groups.items():
        errors = [abs(point.error if point.off is None else point.off) for point in points]
        row = {
            "platform": platform,
            "gpu": points[0].measurement.gpu,
            "held_out": held_out or "nothing (8 nodes, fitted)",
            "points": len(points),
            "mean": sum(errors) / len(errors),
            "worst": max(errors),
            "good": sum(map(_is_good, points)) / len(points),
            "of": "time" if points[0].off is None else "efficiency",
        }
        ideal = [1 - point.efficiency for point in points if point.efficiency is not None]
        row["ideal"] = sum(map(abs, ideal)) / len(ideal) if ideal else None
        rows.append(row)

    return Table(
        "Errors (points of efficiency, or of the time)",
        [
            Column("platform", "platform", left=True),
            Column("gpu", "gpu", left=True, drop_order=2),
            Column("held_out", "held out", left=True, wrap=True),
            Column("of", "of", left=True, drop_order=3),
            Column("points", "points"),
            Column("mean", "mean", format_percent),
            Column("worst", "worst", format_percent),
            Column("good", "within\n5% or 8%", lambda value: f"{value:.0%}"),
            Column("ideal", "perfect\nscaling", format_percent, drop_order=1),
        ],
        rows,
    )


def _point_row(point: ScaledPoint) -> dict[str, Any]:
    each = point.measurement
    return {
        "platform": each.platform, "gpu": each.gpu, "network": each.network, "batch_size": each.batch_size,
        "workers": each.workers, "gradients": each.gradient_precision, "held_out": point.held_out or "-",
        "measured_s": each.time_s, "predicted_s": point.predicted_s, "error": point.error,
        "efficiency": point.efficiency, "predicted_efficiency": point.predicted_efficiency, "off": point.off,
        "how": each.how,
    }  # fmt: skip


def _point_columns(*, efficiency: bool, time: bool) -> list[Column]:
    columns = [
        Column("platform", "platform", left=True, drop_order=4),
        Column("gpu", "gpu", left=True),
        Column("network", "network", left=True, drop_order=0 if efficiency else 5),
        Column("batch_size", "batch"),
        Column("workers", "workers"),
    ]
    if time:
        columns.append(Column("gradients", "gradients", left=True))
    columns.append(Column("held_out", "held out", left=True, drop_order=1))
    columns.append(
        Column("measured_s", "measured", lambda value: format_si(value, "s"), drop_order=3 if efficiency else 0)
    )
    columns.append(
        Column("predicted_s", "predicted", lambda value: format_si(value, "s"), drop_order=3 if efficiency else 0)
    )
    if time:
        columns.append(Column("error", "error", lambda value: f"{value:+.1%}"))
    if efficiency:
        columns += [
            Column("efficiency", "measured\nefficiency", format_percent),
            Column("predicted_efficiency", "predicted\nefficiency", format_percent),
            Column("off", "points", lambda value: f"{100 * value:+.1f}"),
        ]
    columns.append(Column("how", "how", left=True, wrap=True, drop_order=5))
    return columns


def _efficiencies(points: list[ScaledPoint]) -> Table:
    rows = [_point_row(point) for point in points if point.off is not None]
    return Table("Efficiency relative to one GPU", _point_columns(efficiency=True, time=False), rows)


def _cluster_times(points: list[ScaledPoint]) -> Table:
    rows = [_point_row(point) for point in points if point.off is None]
    return Table("Times on a cluster", _point_columns(efficiency=False, time=True), rows)


def _gap_table(gaps: list[Gap]) -> Table:
    rows = [
        {
            "nodes": gap.nodes, "batch_size": gap.batch_size, "measured_s": gap.measured_s,
            "predicted_s": gap.predicted_s, "how": gap.how, "held_out": "fitted" if gap.fitted else "held out",
            "error": gap.predicted_s / gap.measured_s - 1 if gap.measured_s > 0 else None,
        }
        for gap in gaps
    ]  # fmt: skip
    held = [gap for gap in gaps if not gap.fitted]
    good = sum(abs(gap.predicted_s - gap.measured_s) <= GAP_GOAL * gap.measured_s for gap in held)
    return Table(
        f"What fp32 gradients take longer than fp16 ones: {good} of {len(held)} held out within {GAP_GOAL:.0%}",
        [
            Column("nodes", "nodes"),
            Column("batch_size", "batch"),
            Column("measured_s", "measured", lambda value: format_si(value, "s", 3)),
            Column("predicted_s", "predicted", lambda value: format_si(value, "s", 3)),
            Column("error", "error", lambda value: f"{value:+.0%}"),
            Column("held_out", "fit", left=True, drop_order=2),
            Column("how", "how", left=True, wrap=True, drop_order=1),
        ],
        rows,
    )


def clusters_page(held: dict[str, list[HeldOut]]) -> Document:
    """Clusters that the prior did not see; `held` by what was held out, or what was measured of it."""
    tables = [_held_table("By what was held out", "held out", held)]
    for by in ("cluster", "source"):
        groups: dict[str, list[HeldOut]] = {}
        for each in held[by]:
            groups.setdefault(getattr(each.point, by), []).append(each)
        tables.append(_held_table(f"By {by} held out", by, groups))
    first = tables[0].rows[0]
    return Document(
        f"clusters: {first['mean']:.1%} of efficiency off with a cluster held out, {first['covered']:.0%} within 90%",
        [], tables,
    )  # fmt: skip


def _held_table(title: str, what: str, groups: dict[str, list[HeldOut]]) -> Table:
    rows = [
        {
            "held": name, "points": len(held), "mean": sum(abs(each.off) for each in held) / len(held),
            "bias": sum(each.off for each in held) / len(held),
            "covered": sum(each.covered for each in held) / len(held),
            "width": sum(each.high - each.low for each in held) / len(held),
        }
        for name, held in groups.items()
    ]  # fmt: skip
    columns = [
        Column("held", what, left=True),
        Column("points", "points"),
        Column("mean", "mean error", lambda value: f"{100 * value:.1f}"),
        Column("bias", "bias", lambda value: f"{100 * value:+.1f}"),
        Column("covered", "within 90%", lambda value: f"{value:.0%}"),
        Column("width", "width", lambda value: f"{100 * value:.0f}"),
    ]
    return Table(title + " (points of efficiency)", columns, rows)


def scaling_pairs(points: Iterable[ScaledPoint]) -> list[Pair]:
    """Measured steps of several devices as points of a chart, by platform, held out or not."""
    return [
        Pair(f"{m.network}, batch {m.batch_size} per GPU, {m.workers} workers", _seen(m.platform, p.held_out),
             m.time_s, p.predicted_s)
        for p in points for m in [p.measurement]
    ]  # fmt: skip


def _seen(platform: str, held_out: str) -> str:
    return f"{platform}, {held_out} held out" if held_out else f"{platform}, fitted to it"


def cluster_pairs(held: Iterable[HeldOut]) -> list[Pair]:
    """Efficiencies measured and predicted, by cluster."""
    return [
        Pair(f"{p.network}, {p.workers} workers", p.cluster, p.efficiency, each.expected)
        for each in held for p in [each.point]
    ]  # fmt: skip

"""Pages and chart points of the validation of training on several devices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from paleo_lite.calibration.accuracy import sharpness
from paleo_lite.reporting.charts.accuracy import Pair
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.reporting.formats import format_percent, format_percent_rounded
from paleo_lite.units import format_si

from .clusters import HeldOutCluster
from .hold_out import PrecisionGap, ScaledPoint, ScalingValidation

EFFICIENCY_GOAL, TIME_GOAL, GAP_GOAL = 0.05, 0.08, 0.3
"""Accepted errors: absolute error of efficiency, relative error of times, and relative error of the extra time of fp32
gradients."""


def scaling_page(validation: ScalingValidation) -> Document:
    """Return the page of the validation of training on several devices."""
    held_out = [point for point in validation.points if point.held_out]
    accepted = sum(_is_accepted(point) for point in held_out)
    facts = []
    for platform, constants in validation.constants.items():
        named = ", ".join(
            f"{name.removesuffix('_bytes_per_s')} {format_si(value, 'B/s', 3)}"
            if name.endswith("bytes_per_s")
            else f"{name.replace('_', ' ')} {value:.3g}"
            for name, value in constants.items()
        )
        facts.append((platform, named))
    tables = [_summary(validation), _efficiencies(held_out), _cluster_times(held_out)]
    if validation.gaps:
        tables.append(_gap_table(validation.gaps))
    return Document(
        f"scaling: {accepted} of {len(held_out)} held-out measurements within {100 * EFFICIENCY_GOAL:g} points of "
        f"efficiency or {100 * TIME_GOAL:g}% of the time",
        facts,
        [table for table in tables if table.rows],
        data=Table("", _point_columns(efficiency=True, time=True), [_point_row(point) for point in validation.points]),
    )


def _is_accepted(point: ScaledPoint) -> bool:
    return abs(point.error) <= TIME_GOAL if point.off is None else abs(point.off) <= EFFICIENCY_GOAL


def _summary(validation: ScalingValidation) -> Table:
    groups: dict[tuple[str, str], list[ScaledPoint]] = {}
    for point in validation.points:
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
            "good": sum(map(_is_accepted, points)) / len(points),
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
            Column("good", "within\n5% or 8%", format_percent_rounded),
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


def _gap_table(gaps: list[PrecisionGap]) -> Table:
    rows = [
        {
            "nodes": gap.nodes, "batch_size": gap.batch_size, "measured_s": gap.measured_s,
            "predicted_s": gap.predicted_s, "how": gap.how, "held_out": "fitted" if gap.fitted else "held out",
            "error": gap.predicted_s / gap.measured_s - 1 if gap.measured_s > 0 else None,
        }
        for gap in gaps
    ]  # fmt: skip
    held_out = [gap for gap in gaps if not gap.fitted]
    accepted = sum(abs(gap.predicted_s - gap.measured_s) <= GAP_GOAL * gap.measured_s for gap in held_out)
    return Table(
        f"Extra time of fp32 over fp16 gradients: {accepted} of {len(held_out)} held out within {GAP_GOAL:.0%}",
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


def clusters_page(held_out: dict[str, list[HeldOutCluster]]) -> Document:
    """Return the page of held-out clusters.

    Parameters
    ----------
    held_out : dict of str to list of HeldOutCluster
        Results by the property that was held out (``cluster``, ``source``), or by the known measurements.
    """
    tables = [_held_table("By held-out property", "held out", held_out)]
    for field in ("cluster", "source"):
        groups: dict[str, list[HeldOutCluster]] = {}
        for each in held_out[field]:
            groups.setdefault(getattr(each.point, field), []).append(each)
        tables.append(_held_table(f"By {field} held out", field, groups))
    first = tables[0].rows[0]
    return Document(
        f"clusters: {first['mean']:.1%} mean error of efficiency with a cluster held out, "
        f"{first['covered']:.0%} within 90%",
        [], tables,
    )  # fmt: skip


def _held_table(title: str, heading: str, groups: dict[str, list[HeldOutCluster]]) -> Table:
    rows = [
        {
            "held": name, "points": len(held_out), "mean": sum(abs(each.error) for each in held_out) / len(held_out),
            "bias": sum(each.error for each in held_out) / len(held_out),
            "covered": sum(each.is_covered for each in held_out) / len(held_out),
            "width": sum(each.high - each.low for each in held_out) / len(held_out),
            "sharpness": sharpness([each.low for each in held_out], [each.high for each in held_out]),
        }
        for name, held_out in groups.items()
    ]  # fmt: skip
    columns = [
        Column("held", heading, left=True),
        Column("points", "points"),
        Column("mean", "mean error", lambda value: f"{100 * value:.1f}"),
        Column("bias", "bias", lambda value: f"{100 * value:+.1f}"),
        Column("covered", "within 90%", format_percent_rounded),
        Column("width", "width", lambda value: f"{100 * value:.0f}"),
        Column("sharpness", "ratio of ends", "{:.2f}".format),
    ]
    return Table(title + " (points of efficiency)", columns, rows)


def scaling_pairs(points: Iterable[ScaledPoint]) -> list[Pair]:
    """Return the points of the chart of steps on several devices, by platform and held-out property."""
    return [
        Pair(f"{m.network}, batch {m.batch_size} per GPU, {m.workers} workers", _group_name(m.platform, p.held_out),
             m.time_s, p.predicted_s)
        for p in points for m in [p.measurement]
    ]  # fmt: skip


def _group_name(platform: str, held_out: str) -> str:
    return f"{platform}, {held_out} held out" if held_out else f"{platform}, fitted to it"


def cluster_pairs(held_out: Iterable[HeldOutCluster]) -> list[Pair]:
    """Return the points of the chart of efficiencies, by cluster."""
    return [
        Pair(f"{p.network}, {p.workers} workers", p.cluster, p.efficiency, each.expected)
        for each in held_out for p in [each.point]
    ]  # fmt: skip

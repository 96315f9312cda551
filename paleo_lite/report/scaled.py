"""Scaled efficiencies to look at."""

from __future__ import annotations

from collections.abc import Sequence

from ..efficiency.scaled import SWAPPED, ScaledReport
from ..units import format_si
from .document import Column, Document, Table

_SAME_EVERYWHERE = ("repetition", "return_code")


def scaled_page(report: ScaledReport) -> Document:
    """The page of scaled efficiencies: every profile, then the group means."""
    rows = [row.to_dict() for row in report.rows]
    names = list(dict.fromkeys(name for row in report.rows for name in row.configuration))
    varied = [name for name in names if len({row.configuration.get(name) for row in report.rows}) > 1]
    shown = varied or [name for name in names if name not in _SAME_EVERYWHERE]
    same = [f"{name} {rows[0][name]}" for name in names if name not in (*varied, *_SAME_EVERYWHERE)] if rows else []
    facts = [
        ("peak", f"{report.peak.describe()}, {report.device.name}"),
        ("memory", f"{format_si(report.device.bandwidth_bytes_per_s, 'B/s')} peak bandwidth"),
        ("counted", f"FLOPs and bytes of {report.batches} batches, over {report.batches} batch durations"),
    ]
    if same and varied:
        facts.append(("all runs", ", ".join(same)))
    measures = [
        Column("flops_efficiency", "FLOPs (%)", _percent),
        Column("bandwidth_efficiency", "bandwidth (%)", _percent),
    ]
    per_profile = [
        *(_configuration_columns(shown) if shown else [Column("path", "profile", left=True)]),
        Column("batch_duration_s", "batch (s)", lambda value: f"{value:.4f}"),
        Column("duration_from", "from", left=True, spare=2),
        *measures,
    ]
    tables = [Table("Scaled efficiencies", per_profile, rows)]
    for by, groups in report.groups:
        columns = [*_configuration_columns(by), Column("profiles", "profiles"), *measures]
        tables.append(Table(f"Means by {' and '.join(by).replace('_', ' ')}", columns, groups))
    every = [*_configuration_columns(names), *per_profile[len(shown) or 1 :], Column("path", "profile")]
    return Document(
        f"Scaled efficiency of {len(rows)} profiles on {report.device.name}", facts, tables, [SWAPPED],
        Table("", every, rows),
    )  # fmt: skip


def _percent(value: float) -> str:
    return f"{100 * value:.6f}"


def _configuration_columns(names: Sequence[str]) -> list[Column]:
    return [Column(name, name.replace("_", "\n"), left=False) for name in names]

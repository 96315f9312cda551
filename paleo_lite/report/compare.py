"""Two runs side by side to look at."""

from __future__ import annotations

from ..efficiency import BY
from ..efficiency.compare import ComparedKernel, Comparison
from ..units import format_si
from .document import Column, Document, Table


def comparison_page(comparison: Comparison, top: int | None = 20) -> Document:
    """The page of a comparison.

    Parameters
    ----------
    comparison : Comparison
    top : int or None
        How many kernels of each table to list; None lists all.
    """
    has_verdict, by = comparison.total.verdict is not None, comparison.by
    tables = [_table(f"{BY[by]} of both", by, comparison.both, top, has_verdict, comparison.total)]
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
    shown = rows if top is None else rows[:top]
    if len(shown) < len(rows):
        title = f"{title}, {len(shown)} of {len(rows)}"
    foot = [] if total is None else [{**total.to_dict(), "name": "all"}]
    if not has_verdict:
        foot = [{key: value for key, value in row.items() if key not in ("verdict", "spread_s")} for row in foot]
    return Table(title, _columns(has_verdict, by), [row.to_dict() for row in shown], foot)


def _columns(has_verdict: bool, by: str = "kernel") -> list[Column]:
    def seconds(value: float) -> str:
        return f"{value:.6f}"

    columns = [
        Column("name", {"kernel": "kernel", "module": "module"}.get(by, "operation"), left=True),
        *([Column("class", "class", left=True, spare=3)] if by == "kernel" else []),
        Column("a_s", "A (s)", seconds),
        Column("b_s", "B (s)", seconds),
        Column("difference_s", "B - A (s)", lambda value: f"{value:+.6f}"),
        Column("ratio", "B / A", lambda value: f"{value:.4f}"),
    ]
    if has_verdict:
        columns += [
            Column("spread_s", "spread (s)", seconds, spare=2),
            Column("verdict", "verdict", left=True, spare=1),
        ]
    return columns

"""Two runs, or a prediction and a profile, side by side to look at."""

from __future__ import annotations

from ..calibration.beside import MEASURED_PASSES, PredictedBeside
from ..profile_analysis import BY
from ..profile_analysis.compare import ComparedKernel, Comparison
from ..timing import Prediction, describe
from ..units import format_si
from .document import Column, Document, Table, say_percent, say_time


def comparison_page(comparison: Comparison, top: int | None = 20) -> Document:
    """The page of a comparison.

    Parameters
    ----------
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
    foot = [] if total is None else [{**total.to_dict(), "name": "all"}]
    if not has_verdict:
        foot = [{key: value for key, value in row.items() if key not in ("verdict", "spread_s")} for row in foot]
    return Table(title, _columns(has_verdict, by), [row.to_dict() for row in rows], foot).first(top)


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


def predicted_page(beside: PredictedBeside, top: int | None = 10) -> Document:
    """The page of a prediction beside a profile.

    Parameters
    ----------
    top : int or None
        How many layers to list; None lists all.
    """
    prediction = beside.prediction
    kinds = sorted(beside.kinds, key=lambda row: MEASURED_PASSES.index(row.part))
    total = {"kind": "total", "measured_s": beside.measured_s, "predicted_s": prediction.time_s,
             "difference_s": beside.measured_s - prediction.time_s,
             "ratio": beside.measured_s / prediction.time_s if prediction.time_s else None,
             "ppp": beside.ppp}  # fmt: skip
    tables = [
        Table("Per iteration, by kind of layer", _predicted_columns("kind"), [row.to_dict() for row in kinds], [total])
    ]
    layers = beside.layers if top is None else beside.layers[:top]
    if layers:
        title = f"Layers that differ most, {len(layers)} of {len(beside.layers)} that match"
        tables.append(Table(title, _predicted_columns("layer"), [row.to_dict("layer") for row in layers]))
    worst = beside.kinds[0]
    headline = (
        f"{prediction.network} on {prediction.device.name}, batch {prediction.batch_size}, {prediction.phase}: "
        f"measured {format_si(beside.measured_s, 's')}, {prediction.model.name} predicts "
        f"{format_si(prediction.time_s, 's')}{_interval(prediction)}; they differ most in {worst.name}, {worst.part}"
    )
    return Document(
        headline,
        [
            ("profile", beside.path),
            ("time model", describe(prediction.model)),
            ("PPP", f"{beside.ppp:.3g}: (FLOPs / peak + bytes / bandwidth) / measured time"),
            ("peak", prediction.peak.describe()),
        ],
        tables,
        beside.notes,
    )


def _interval(prediction: Prediction) -> str:
    if prediction.interval is None:
        return ""
    low, high = (format_si(seconds, "s") for seconds in prediction.interval)
    return f" ({low} to {high})"


def _predicted_columns(first: str) -> list[Column]:
    return [
        Column(first, first, left=True),
        Column("pass", "pass", left=True),
        Column("measured_s", "measured", say_time),
        Column("predicted_s", "predicted", say_time),
        Column("difference_s", "difference", say_time, spare=1),
        Column("ratio", "measured /\npredicted", lambda value: f"{value:.2f}"),
        Column("ppp", "PPP", lambda value: f"{value:.2f}"),
        Column("share_of_peak", "share of\npeak FLOP/s", say_percent, spare=2),
    ]

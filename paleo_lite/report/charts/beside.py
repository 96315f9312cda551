"""Two runs side by side: a prediction and a profile, by kind of layer and pass; two profiles, kernel by kernel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...calibration.beside import MEASURED_PASSES, PredictedBeside
from ...efficiency import BY
from ...efficiency.compare import Comparison
from ...units import format_si
from .render import altair, time_unit, values
from .theme import SERIES

BARS_AT_MOST = 20
"""Pairs of bars, those that differ most; of kinds of layers there are fewer anyway."""

Row = tuple[str, float | None, float | None]
"""A name, and the seconds of either side; None where a side has nothing of it."""


def comparison_chart(found: PredictedBeside | Comparison) -> Any:
    """What ``compare`` found.

    Raises
    ------
    BadValue
        If neither side has any time.
    """
    return predicted_chart(found) if isinstance(found, PredictedBeside) else profiles_chart(found)


def predicted_chart(beside: PredictedBeside) -> Any:
    """Measured and predicted time of an iteration by kind of layer, pass by pass."""
    prediction = beside.prediction
    passes = [
        (part, [(row.name, row.measured_s, row.predicted_s) for row in beside.kinds if row.part == part])
        for part in MEASURED_PASSES
    ]
    title = f"{prediction.network} on {prediction.device.name}, {prediction.phase}, batch {prediction.batch_size}"
    subtitle = (
        f"an iteration, summed over kernels: measured {format_si(beside.measured_s, 's')}, predicted "
        f"{format_si(prediction.time_s, 's')} ({prediction.model.name} model)"
    )
    return _paired(passes, ("measured", "predicted"), title, [subtitle])


def profiles_chart(comparison: Comparison) -> Any:
    """Time of the kernels of A and B that differ most."""
    rows: list[Row] = [(row.name, row.a_s, row.b_s) for row in comparison.kernels]
    rows.sort(key=lambda row: -abs((row[1] or 0.0) - (row[2] or 0.0)))
    kept = rows[:BARS_AT_MOST]
    total = comparison.total
    lines = [
        f"{side} {', '.join(Path(path).name for path in paths)}: {format_si(seconds or 0.0, 's')}"
        for side, paths, seconds in (("A", comparison.a, total.a_s), ("B", comparison.b, total.b_s))
    ]
    if len(kept) < len(rows):
        lines.append(f"the {len(kept)} that differ most of {len(rows)}")
    direction = "" if comparison.direction == "all" else f", {comparison.direction}"
    return _paired([("", kept)], ("A", "B"), f"{BY[comparison.by]} of two profiles{direction}", lines)


def _paired(parts: Sequence[tuple[str, Sequence[Row]]], sides: tuple[str, str], title: str, lines: list[str]) -> Any:
    """A panel per part with two bars per name, all on one axis of time."""
    alt = altair()
    longest = max((second or 0.0 for _, rows in parts for row in rows for second in row[1:]), default=0.0)
    factor, unit = time_unit(longest)
    panels = []
    told = [part for part, rows in parts if any(second is not None for row in rows for second in row[1:])]
    for part, rows in parts:
        if part not in told:
            continue
        last = part == told[-1]
        bars: list[dict[str, Any]] = [
            {"name": name, "side": side, "time": seconds * factor, "label": format_si(seconds, "s", 3)}
            for name, *pair in rows
            for side, seconds in zip(sides, pair)
            if seconds is not None
        ]
        order = [name for name, first, second in sorted(rows, key=lambda row: -max(row[1] or 0.0, row[2] or 0.0))]
        base = alt.Chart(alt.Data(values=bars)).encode(
            y=alt.Y("name:N", sort=order, title=None, axis=alt.Axis(labelLimit=360)),
            yOffset=alt.YOffset("side:N", sort=list(sides)),
            x=alt.X("time:Q", scale=alt.Scale(domain=[0, longest * factor]), title=f"time ({unit})" if last else None,
                    axis=alt.Axis(labels=last, ticks=last, domain=last)),
        )  # fmt: skip
        colour = alt.Color("side:N", title=None, legend=alt.Legend(orient="top"),
                           scale=alt.Scale(domain=list(sides), range=[SERIES[1], SERIES[0]]))  # fmt: skip
        bar = base.mark_bar().encode(color=colour, tooltip=["name:N", "side:N", "label:N"])
        text = base.mark_text(align="left", dx=3, fontSize=9).encode(text="label:N")
        named = alt.Title(part, fontSize=12, frame="group")
        panels.append(alt.layer(bar, text).properties(width=520, height=alt.Step(13), title=named))
    if not panels:
        values([])
    return alt.vconcat(*panels, spacing=10).properties(title=alt.Title(title, subtitle=lines))

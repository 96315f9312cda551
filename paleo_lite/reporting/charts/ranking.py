"""Charts of the best rows of a sweep: bars of a ranking by one column, or the Pareto front of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...sweeps.best import Best, is_better_larger
from ...sweeps.words import column_label
from ...timing.answer import BOUND
from ..columns import number_column
from ..sweep import describe_settings
from .marks import NUMBER_FORMAT
from .pareto import factor_and_unit, interval_ends, pareto_chart
from .render import SERIES, altair, inline_data

BARS_AT_MOST = 20
"""Rows of a ranking in a chart, the best."""

_WIDTH, _ROW_HEIGHT = 520, 20


def best_chart(best: Best) -> Any:
    """Draw the best rows by one column as bars, or the front of several columns."""
    return pareto_chart(best) if len(best.columns) > 1 else _ranking_chart(best)


def _ranking_chart(best: Best) -> Any:
    """Draw the best rows, the best first, with the settings that tell them apart and the intervals of their figures."""
    alt = altair()
    shown = best.rows[:BARS_AT_MOST]
    (name,) = best.columns
    factor, unit = factor_and_unit(name, [row[name] for row in shown])
    settings = describe_settings(shown)
    bars = _bars_of(shown, settings, name, factor)
    title = _axis_title(shown, name, unit)
    y = alt.Y("row:N", title=None, sort=None, axis=alt.Axis(labelLimit=480))
    base = alt.Chart(inline_data(bars)).encode(y=y)
    x_axis = alt.Axis(format=NUMBER_FORMAT)
    x_value, x_low = (alt.X(f"{end}:Q", title=title, axis=x_axis) for end in ("value", "low"))
    tooltip = [alt.Tooltip("row:N"), alt.Tooltip("text:N", title=name)]
    layers = [base.mark_bar(color=SERIES[0]).encode(x=x_value, tooltip=tooltip)]
    subtitle = [f"{len(shown)} of {best.count_summary}"]
    if any(bar["low"] is not None for bar in bars):
        layers.append(base.mark_rule(strokeWidth=2, opacity=0.6).encode(x=x_low, x2=alt.X2("high:Q")))
        subtitle.append("lines: 90% intervals")
    figures_text = base.mark_text(align="left", dx=4, fontSize=9).encode(
        x=alt.X("end:Q", title=title), text=alt.Text("text:N")
    )
    heading = f"{best.objective[0].upper()}{best.objective[1:]}: {settings[0]}"
    return alt.layer(*layers, figures_text).properties(
        width=_WIDTH, height=alt.Step(_ROW_HEIGHT), title=alt.Title(heading, subtitle=subtitle)
    )


def _bars_of(
    shown: Sequence[dict[str, Any]], settings: Sequence[str], name: str, factor: float
) -> list[dict[str, Any]]:
    """Return label, figure, ends of its interval and text of each bar; `end` is where the text begins."""
    column = number_column(name)
    bars = []
    for place, (row, text) in enumerate(zip(shown, settings), 1):
        # Rows that differ in nothing that has a name are told apart by their place.
        label = text if settings.count(text) == 1 else f"{text}, row {place}"
        ends = interval_ends(row, name, name, {name: (factor, "")})
        value, low, high = row[name] * factor, ends.get("x_low"), ends.get("x_high")
        bars.append(
            {
                "row": label,
                "text": f"{column.text(row)}{' (bound)' if row.get('answer') == BOUND else ''}",
                "value": value,
                "low": low,
                "high": high,
                "end": max(value, low or value, high or value),
            }
        )
    return bars


def _axis_title(shown: Sequence[dict[str, Any]], name: str, unit: str) -> str:
    """Return the title of the axis of a column: its heading, its unit, and which end of it is better."""
    heading = column_label(name, shown[0]) if shown else name
    in_unit = f" ({unit})" if unit else ""
    return f"{heading}{in_unit}, {'high' if is_better_larger(name) else 'low'} is better"

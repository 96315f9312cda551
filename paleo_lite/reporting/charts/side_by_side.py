"""Chart of several answers of any kind side by side: their times as points on their intervals."""

from __future__ import annotations

from typing import Any

from ...errors import BadValue
from ...sweeps.comparison import Comparison
from ...units import format_si
from .marks import left_out_lines, scale_of, title_of_axis
from .render import altair, inline_data, time_unit

WIDTH = 640

ROWS_AT_MOST = 60
"""Maximum number of answers in a chart; more do not fit on a screen."""


def side_by_side_chart(comparison: Comparison, title: str, time_of: str) -> Any:
    """Draw the times of several answers as points on their 90% intervals.

    Raise BadValue if no answer has a time, or there are more than `ROWS_AT_MOST`.
    """
    timed = [pair for pair in zip(comparison.rows, comparison.labels(), strict=True) if pair[0].get("time_s")]
    if not timed:
        raise BadValue("this result has no chart, as none of its answers has a time")
    if len(timed) > ROWS_AT_MOST:
        raise BadValue(f"a chart shows at most {ROWS_AT_MOST} answers (got {len(timed)}): select fewer")
    factor, unit = time_unit(max(row["time_s"] for row, _ in timed))
    rows = []
    for row, label in timed:
        low_s, high_s = row.get("low_s"), row.get("high_s")
        fits = "" if row.get("fits") is not False else ": does not fit"
        rows.append(
            {
                "step": label,
                "time": row["time_s"] * factor,
                "low": None if low_s is None else low_s * factor,
                "high": None if high_s is None else high_s * factor,
                "label": f"{format_si(row['time_s'], 's', 3)}{fits}",
            }
        )
    alt = altair()
    scale, axis = scale_of([row[name] for row in rows for name in ("time", "low", "high") if row[name]], (1.2, 1.2))
    axis_title = title_of_axis(f"{time_of} ({unit})", scale)
    x = alt.X("time:Q", title=axis_title, scale=scale, axis=axis)
    base = alt.Chart(inline_data(rows)).encode(y=alt.Y("step:N", title=None, sort=None))
    intervals = base.mark_rule(strokeWidth=3, opacity=0.4).encode(
        x=alt.X("low:Q", title=axis_title, scale=scale, axis=axis), x2="high:Q"
    )
    points = base.mark_point(filled=True, size=70, opacity=1).encode(
        x=x, tooltip=["step:N", "label:N", alt.Tooltip("time:Q", format=".4~r")]
    )
    labels = base.mark_text(dy=-9, fontSize=9).encode(x=x, text="label:N")
    lines = ["lines through points: 90% intervals"] if any(row["low"] is not None for row in rows) else []
    lines += left_out_lines(comparison.left_out)
    title_above = alt.Title(title, subtitle=lines)
    return alt.layer(intervals, points, labels).properties(width=WIDTH, height={"step": 26}, title=title_above)

"""Curves with their intervals: batch sizes, and whatever else is asked over a range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...timing import Prediction
from .render import altair, time_unit, values
from .theme import SERIES, SHAPES


def batch_chart(predictions: Sequence[Prediction]) -> Any:
    """Throughput and time per batch over the batch size, one curve per device, with 90 % intervals where there are.

    Raises
    ------
    BadValue
        If there is no prediction.
    """
    alt = altair()
    rows: list[dict[str, Any]] = []
    factor, unit = time_unit(max((each.time_s for each in predictions), default=0.0))
    for prediction in predictions:
        low, high = prediction.interval or (None, None)
        n, name = prediction.batch_size, f"{prediction.device.id} {prediction.precision}"
        time = {
            "time": prediction.time_s * factor,
            "time_low": low and low * factor,
            "time_high": high and high * factor,
        }
        rate = {"rate": prediction.throughput_per_s, "rate_low": high and n / high, "rate_high": low and n / low}
        rows.append({"series": name, "batch": n, **time, **rate})
    data = values(rows)
    names = sorted({row["series"] for row in rows})
    panels = [
        _panel(alt, data, names, "batch", "batch size", "rate", "samples per second"),
        _panel(alt, data, names, "batch", "batch size", "time", f"time per batch ({unit})"),
    ]
    first = predictions[0]
    title = f"{first.network}, {first.phase}, by batch size"
    networks = {(each.network, each.phase) for each in predictions}
    if len(networks) > 1:
        title = "by batch size"
    models = ", ".join(sorted({each.model.name for each in predictions}))
    band = "; bands: 90 % intervals" if any(each.interval for each in predictions) else ""
    return alt.hconcat(*panels).properties(title=alt.Title(title, subtitle=f"{models} model{band}"))


def _panel(alt: Any, data: Any, names: list[str], x: str, x_title: str, key: str, title: str) -> Any:
    """A curve per series over a logarithmic x, with a band between ``{key}_low`` and ``{key}_high``."""
    colour = alt.Color("series:N", title=None, scale=alt.Scale(domain=names, range=_cycled(SERIES, len(names))))
    shape = alt.Shape("series:N", title=None, scale=alt.Scale(domain=names, range=_cycled(SHAPES, len(names))))
    base = alt.Chart(data).encode(
        x=alt.X(f"{x}:Q", title=x_title, scale=alt.Scale(type="log", base=2, nice=False), axis=alt.Axis(format="d"))
    )
    y_axis = alt.Y(f"{key}:Q", title=title, scale=alt.Scale(zero=True), axis=alt.Axis(format="~s"))
    band = base.mark_area(opacity=0.18).encode(y=alt.Y(f"{key}_low:Q"), y2=f"{key}_high:Q", color=colour)
    line = base.mark_line().encode(y=y_axis, color=colour)
    dots = base.mark_point(filled=True, size=45, opacity=1).encode(
        y=y_axis, color=colour, shape=shape,
        tooltip=["series:N", f"{x}:Q", alt.Tooltip(f"{key}:Q", format=".4~s"),
                 alt.Tooltip(f"{key}_low:Q", format=".4~s"), alt.Tooltip(f"{key}_high:Q", format=".4~s")],
    )  # fmt: skip
    return alt.layer(band, line, dots).properties(width=330, height=260)


def _cycled(things: Sequence[str], number: int) -> list[str]:
    return [things[index % len(things)] for index in range(number)]

"""Curves with their intervals: batch sizes, and whatever else is asked over a range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import BadValue
from ...timing import Prediction
from .marks import BOUNDS_ARE, PLAIN, SERIES_AT_MOST, either, hollow, told_apart, without
from .render import altair, decades, time_unit, values

_DECADE = 10.0
"""Times that span more than this are drawn on a logarithmic axis: on a linear one the small ones are all at 0."""


def batch_chart(predictions: Sequence[Prediction], order: Sequence[str] = (), left_out: Sequence[str] = ()) -> Any:
    """Throughput and time per batch over the batch size, one curve per device, with 90% intervals where there are.

    Parameters
    ----------
    order : sequence of str
        Devices by whose places colours are given; without it their order in `predictions`.
    left_out : sequence of str
        Why others are not drawn.

    Raises
    ------
    BadValue
        If there is no prediction, or more devices than a chart tells apart.
    """
    alt = altair()
    rows: list[dict[str, Any]] = []
    devices: dict[str, str] = {}
    factor, unit = time_unit(max((each.time_s for each in predictions), default=0.0))
    several = len({each.precision for each in predictions}) > 1
    for prediction in predictions:
        low, high = prediction.interval or (None, None)
        n, name = prediction.batch_size, prediction.device.id
        time = {
            "time": prediction.time_s * factor,
            "time_low": low and low * factor,
            "time_high": high and high * factor,
        }
        rate = {"rate": prediction.throughput_per_s, "rate_low": high and n / high, "rate_high": low and n / low}
        series = f"{name} {prediction.precision}" if several else name
        series += "" if prediction.is_forecast else " (bound)"
        devices[series] = name if not several else series
        rows.append({"series": series, "batch": n, "bound": not prediction.is_forecast, **time, **rate})
    data, names = values(rows), list(devices)
    if len(names) > SERIES_AT_MOST:
        raise BadValue(f"a chart tells {SERIES_AT_MOST} curves apart, not {len(names)}: name fewer devices")
    colours, shapes = told_apart(list(devices.values()), order)
    colour = alt.Color("series:N", title=None, scale=alt.Scale(domain=names, range=colours))
    shape = alt.Shape("series:N", title=None, scale=alt.Scale(domain=names, range=shapes))
    panels = [
        _panel(alt, data, rows, colour, shape, "rate", "samples per second"),
        _panel(alt, data, rows, colour, shape, "time", f"time per batch ({unit})"),
    ]
    models = ", ".join(sorted({each.model.name for each in predictions}))
    band = "; bands: 90% intervals" if any(each.interval for each in predictions) else ""
    lines = [f"{_asked(predictions)}; time model {models}{band}"]
    if any(row["bound"] for row in rows):
        lines.append(BOUNDS_ARE)
    lines += without(left_out)
    return alt.hconcat(*panels).properties(title=alt.Title(_point(predictions), subtitle=lines))


def _point(predictions: Sequence[Prediction]) -> str:
    """Which device does most samples in a second, and at which batch size; forecasts before bounds."""
    able = [each for each in predictions if each.memory is None or each.memory.fits] or list(predictions)
    most = max(able, key=lambda each: (each.is_forecast, each.throughput_per_s or 0.0))
    rate = f"{most.throughput_per_s:,.0f} samples per second, at batch {most.batch_size}"
    return f"{most.device.id} does most: {'' if most.is_forecast else 'at best '}{rate}"


def _asked(predictions: Sequence[Prediction]) -> str:
    """What all of them have in common."""
    asked = [[each.network, each.precision, each.phase] for each in predictions]
    return ", ".join(words[0] for words in zip(*asked) if len(set(words)) == 1)


def _panel(alt: Any, data: Any, rows: Sequence[dict[str, Any]], colour: Any, shape: Any, key: str, title: str) -> Any:
    """A curve per series over a logarithmic x, with a band between ``{key}_low`` and ``{key}_high``."""
    batches = sorted({row["batch"] for row in rows})
    shown = batches if len(batches) <= 9 else [n for n in batches if n & (n - 1) == 0]
    base = alt.Chart(data).encode(
        x=alt.X("batch:Q", title="batch size", scale=alt.Scale(type="log", base=2, nice=False),
                axis=alt.Axis(format="d", values=shown))
    )  # fmt: skip
    drawn = [row[name] for row in rows for name in (key, f"{key}_low", f"{key}_high") if row[name]]
    low, high = min(drawn, default=1.0), max(drawn, default=1.0)
    if high > _DECADE * low:
        scale = alt.Scale(type="log", domain=[low / 1.1, high * 1.1], nice=False)
        axis = alt.Axis(format=PLAIN, values=decades(low, high))
    else:
        scale, axis = alt.Scale(zero=True), alt.Axis(format=PLAIN)
    y = {field: alt.Y(f"{field}:Q", title=title, scale=scale, axis=axis) for field in (key, f"{key}_low")}
    area = base.mark_area(opacity=0.18) if len(batches) > 1 else base.mark_rule(opacity=0.4, strokeWidth=3)
    band = area.encode(y=y[f"{key}_low"], y2=alt.Y2(f"{key}_high:Q"), color=colour)
    dash = either(alt.StrokeDashValue, "datum.bound", [5, 4], [1, 0])
    line = base.mark_line().encode(y=y[key], color=colour, strokeDash=dash, detail=alt.Detail("bound:N"))
    dots = base.mark_point(filled=True, size=45, opacity=1).encode(
        y=y[key], color=colour, shape=shape, **hollow(colour),
        tooltip=[alt.Tooltip("series:N", title="device"), alt.Tooltip("batch:Q", title="batch size"),
                 *(alt.Tooltip(f"{name}:Q", format=".4~r", title=said)
                   for name, said in ((key, title), (f"{key}_low", "from, at 90%"), (f"{key}_high", "to")))],
    )  # fmt: skip
    return alt.layer(band, line, dots).properties(width=330, height=260)

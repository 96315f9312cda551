"""Predictions of several devices: a dot each with its interval, or curves over the batch size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...calibration.several import Predictions, speedup
from ...errors import BadValue
from ...timing import Prediction
from ...units import format_si
from .marks import BOUNDS_ARE, PLAIN, SERIES_AT_MOST, either, hollow, told_apart, without
from .render import altair, decades, time_unit, values

ROWS_AT_MOST = 60
"""More rows than this are a table's: a chart of them is higher than a screen."""

_TITLE = 80  # letters that stand above a chart

_ASKED = {"network": "network", "precision": "precision", "phase": "phase", "batch_size": "batch"}


def devices_chart(predictions: Predictions | Prediction, order: Sequence[str] = ()) -> Any:
    """A dot and a line for its 90% interval for each prediction, a panel for each network.

    The axis is the time of a step; of several batch sizes, whose times say little side by side, samples per second.

    Parameters
    ----------
    order : sequence of str
        Devices by whose places colours are given; without it their order in `predictions`.

    Raises
    ------
    BadValue
        If there are more predictions than one looks through.
    """
    if isinstance(predictions, Prediction):
        predictions = Predictions([predictions])
    # A board is answered by one of its devices, which may have been asked for, too.
    found = list({(each.device.id, *(getattr(each, name) for name in _ASKED)): each for each in predictions.predictions}
                 .values())  # fmt: skip
    alt = altair()
    if len(found) > ROWS_AT_MOST:
        raise BadValue(f"a chart shows {ROWS_AT_MOST} predictions beside each other, not {len(found)}: name fewer")
    rates = len({each.batch_size for each in found}) > 1
    differ = [name for name in _ASKED if len({getattr(each, name) for each in found}) > 1]
    factor, unit = (1.0, "samples per second") if rates else time_unit(max(each.time_s for each in found))
    rows = [_row(each, differ, rates, factor) for each in found]
    ends = [row[name] for row in rows for name in ("value", "low", "high") if row[name]]
    wide = max(ends) > 10 * min(ends)
    scale = (
        alt.Scale(type="log", domain=[min(ends) / 1.3, max(ends) * 1.2], nice=False) if wide else alt.Scale(zero=True)
    )
    axis = alt.Axis(format=PLAIN, values=decades(min(ends), max(ends))) if wide else alt.Axis(format=PLAIN)
    title = unit if rates else f"time of a step ({unit})"
    names = list(dict.fromkeys(row["gpu"] for row in rows))
    colours, shapes = told_apart(names, order)
    colour = alt.Color("gpu:N", legend=None, scale=alt.Scale(domain=names, range=colours))
    shape = alt.Shape("gpu:N", legend=None, scale=alt.Scale(domain=names, range=shapes))
    panels = []
    for network in dict.fromkeys(row["network"] for row in rows):
        some = [row for row in rows if row["network"] == network]
        base = alt.Chart(values(some)).encode(y=alt.Y("what:N", sort=[row["what"] for row in some], title=None))
        x = {field: alt.X(f"{field}:Q", title=title, scale=scale, axis=axis) for field in ("value", "low")}
        spread = base.mark_rule(strokeWidth=3, opacity=0.4).encode(x=x["low"], x2=alt.X2("high:Q"), color=colour)
        spans = (("value", title), ("low", "from, at 90%"), ("high", "to"))
        tips = [alt.Tooltip("gpu:N", title="device"), alt.Tooltip("said:N", title="time"), alt.Tooltip("fits:N"),
                *(alt.Tooltip(f"{name}:Q", format=".4~r", title=said) for name, said in spans)]  # fmt: skip
        dots = base.mark_point(filled=True, size=70, opacity=1).encode(
            x=x["value"], color=colour, shape=shape, tooltip=tips, **hollow(colour)
        )
        text = base.mark_text(align="center", dy=-9, fontSize=9).encode(x=x["value"], text=alt.Text("said:N"))
        head = alt.Title(network, fontSize=12, frame="group") if "network" in differ else ""
        panels.append(alt.layer(spread, dots, text).properties(width=460, height={"step": 26}, title=head))
    lines = [*_said(found, rows), *without(predictions.left_out)]
    return alt.vconcat(*panels, spacing=10).properties(title=alt.Title(_point(found), subtitle=lines))


def _row(each: Prediction, differ: Sequence[str], rates: bool, factor: float) -> dict[str, Any]:
    what = [each.device.id, *(_word(each, name) for name in differ if name != "network")]
    low, high = each.interval or (None, None)
    fits = each.memory is None or each.memory.fits
    ends = [(n and each.batch_size / n) if rates else (n and n * factor) for n in (each.time_s, low, high)]
    value, first, last = (ends[0], ends[2], ends[1]) if rates else ends
    time = format_si(each.time_s, "s", 3)
    said = f"at least {time}" if not each.is_forecast else time
    return {
        "network": each.network, "gpu": each.device.id, "what": ", ".join(what),
        "value": value, "low": first, "high": last,
        "bound": not each.is_forecast, "fits": "yes" if fits else "no",
        "said": said if fits else f"{said}: does not fit",
    }  # fmt: skip


def _word(each: Prediction, name: str) -> str:
    return f"batch {each.batch_size}" if name == "batch_size" else str(getattr(each, name))


def _point(found: Sequence[Prediction]) -> str:
    """Which device is the fastest, for each network; those that cannot be told from it are named with it."""
    able = [each for each in found if each.is_forecast and (each.memory is None or each.memory.fits)]
    winners: dict[str, list[str]] = {}
    for network in dict.fromkeys(each.network for each in able):
        best = {}
        for each in sorted((each for each in able if each.network == network), key=_rate):
            best[each.device.id] = each  # the last of a device is its fastest
        *others, first = sorted(best.values(), key=_rate)
        ties = [each.device.id for each in reversed(others) if not _is_faster(first, each)]
        winners.setdefault(" or ".join([first.device.id, *ties][:3]) + " or others" * (len(ties) > 2), []).append(
            network
        )
    devices = {each.device.id for each in found}
    if len(devices) == 1:
        only = f", {'' if found[0].is_forecast else 'at least '}{format_si(found[0].time_s, 's', 3)}"
        return (
            f"{', '.join(dict.fromkeys(each.network for each in found))} on {devices.pop()}{only * (len(found) == 1)}"
        )
    if not winners:
        forecast = any(each.is_forecast for each in found)
        return "None of them holds it in its memory" if forecast else "What the data sheets allow"
    if len(winners) == 1:
        return f"{next(iter(winners))} is the fastest"
    said = "The fastest: " + "; ".join(f"{who} for {' and '.join(networks)}" for who, networks in winners.items())
    return said if len(said) <= _TITLE else "Which is the fastest depends on the network"


def _rate(prediction: Prediction) -> float:
    return prediction.throughput_per_s or 0.0


def _is_faster(one: Prediction, other: Prediction) -> bool:
    """Whether the interval of their ratio lies above 1."""
    ratio = speedup(one, other)
    ends = ratio and ratio.interval()
    return bool(ends and ends[0] > 1)


def _said(found: Sequence[Prediction], rows: Sequence[dict[str, Any]]) -> list[str]:
    alike = [_word(found[0], name) for name in _ASKED if len({getattr(each, name) for each in found}) == 1]
    lines = [", ".join(alike)] if alike else []
    lines.append("lines through dots: 90% intervals" if any(row["low"] for row in rows) else "")
    lines.append(BOUNDS_ARE if any(row["bound"] for row in rows) else "")
    return [line for line in lines if line]


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
    lines = [f"{_in_common(predictions)}; time model {models}{band}"]
    if any(row["bound"] for row in rows):
        lines.append(BOUNDS_ARE)
    lines += without(left_out)
    return alt.hconcat(*panels).properties(title=alt.Title(_most(predictions), subtitle=lines))


def _most(predictions: Sequence[Prediction]) -> str:
    """Which device does most samples in a second, and at which batch size; forecasts before bounds."""
    able = [each for each in predictions if each.memory is None or each.memory.fits] or list(predictions)
    most = max(able, key=lambda each: (each.is_forecast, each.throughput_per_s or 0.0))
    rate = f"{most.throughput_per_s:,.0f} samples per second, at batch {most.batch_size}"
    return f"{most.device.id} does most: {'' if most.is_forecast else 'at best '}{rate}"


def _in_common(predictions: Sequence[Prediction]) -> str:
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

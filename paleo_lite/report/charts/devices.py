"""Predictions side by side: a dot each with its interval, in the order asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...calibration.several import Predictions, speedup
from ...errors import BadValue
from ...timing import Prediction
from ...units import format_si
from .marks import BOUNDS_ARE, PLAIN, hollow, told_apart, without
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

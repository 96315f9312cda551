"""Charts of a prediction's time: layer by layer, by kind of layer, and by pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...text import format_plural
from ...timing import Prediction
from ...units import format_si
from ..answers import format_at_90
from ..formats import format_percent
from .marks import BOUNDS_LEGEND, CHARACTER_WIDTH, NUMBER_FORMAT, SI_LABELS, hollow_encoding
from .render import GROUPS, altair, group_colour, group_of, inline_data, time_unit

NAMED_AT_MOST = 40
"""Maximum number of layers that are labelled by name."""

BARS_AT_MOST = 400
"""Maximum number of bars; in a network with more layers, neighbouring layers share a bar."""

QUANTITIES = {"time_s": ("time", "s"), "flops": ("FLOPs", ""), "bytes": ("bytes", "B")}
"""Name and unit of each quantity."""

PASS_NAMES = {"backward_data": "data gradient", "backward_weight": "weight gradient"}

_PASS_WIDTH = 620
"""Length in pixels of the longest bar of `pass_chart`."""

_LABELLED_SHARE = 0.04
"""Minimum share of time of a part of a bar that is labelled."""


def prediction_title(prediction: Prediction) -> str:
    """Return network, device, precision and phase, the start of the subtitle of all charts of a prediction."""
    return f"{prediction.network} on {prediction.device.name}, {prediction.precision} {prediction.phase}"


def prediction_subtitle(prediction: Prediction) -> list[str]:
    """Return the subtitle lines: configuration and time, and how bounds are drawn."""
    prefix = "" if prediction.is_forecast else "at least "
    time = f"{prefix}{format_si(prediction.time_s, 's')}{format_at_90(prediction.interval)}"
    line = f"{prediction_title(prediction)}, batch {prediction.batch_size}, {prediction.model.name} model: {time}"
    return [line] if prediction.is_forecast else [line, BOUNDS_LEGEND]


def layer_chart(prediction: Prediction) -> Any:
    """Draw time, FLOPs and bytes of every layer, in the order of execution."""
    alt = altair()
    layers = list(prediction.rows())
    rows, layers_per_bar = _layer_bars(layers)
    lines = prediction_subtitle(prediction)
    if layers_per_bar > 1:
        lines.append(f"each bar is {layers_per_bar} neighbouring layers")
    factor, unit = time_unit(max((row["time_s high"] for row in rows), default=0.0))
    for row in rows:
        row["bounded"] = not prediction.is_forecast
        for key, (_, quantity_unit) in QUANTITIES.items():
            scale = factor if key == "time_s" else 1.0
            row[f"{key} low"] *= scale
            row[f"{key} high"] *= scale
            row[f"{key} text"] = format_si(row[key], quantity_unit, 3)
    visible_kinds = [row["kind"] for row in rows if any(row[key] for key in QUANTITIES)]
    colour = group_colour(visible_kinds or [row["kind"] for row in rows], "kind of layer")
    tooltip = [
        alt.Tooltip("name:N"),
        alt.Tooltip("kind:N"),
        *(alt.Tooltip(f"{key} text:N", title=name) for key, (name, _) in QUANTITIES.items()),
        alt.Tooltip("bound:N", title="bound by"),
    ]
    axes = {
        "time_s": (f"time ({unit})", {"format": NUMBER_FORMAT}),
        "flops": ("FLOPs", {"labelExpr": SI_LABELS}),
        "bytes": ("bytes (B)", {"labelExpr": SI_LABELS}),
    }
    panels = []
    for key, (title, label_format) in axes.items():
        mark = alt.Chart(height=110, width=760).mark_bar(binSpacing=0)
        bounds = hollow_encoding(colour, "datum.bounded") if key == "time_s" else {}
        panel = mark.encode(
            **_layer_axis(alt, rows, len(prediction.names), is_last=key == "bytes"),
            y=alt.Y(f"{key} high:Q", title=title, axis=alt.Axis(tickCount=4, **label_format)),
            y2=alt.Y2(f"{key} low:Q"),
            color=colour,
            tooltip=tooltip,
            **bounds,
        )
        panels.append(panel)
    title = alt.Title(_concentration_title(layers), subtitle=lines)
    return alt.vconcat(*panels, data=inline_data(rows), spacing=12).properties(title=title)


def _concentration_title(rows: Sequence[dict[str, Any]]) -> str:
    """Return how many layers take half of the time."""
    seconds = sorted((float(row["time_s"]) for row in rows), reverse=True)
    total = sum(seconds)
    count, cumulated = 0, 0.0
    for time_s in seconds:
        count += 1
        cumulated += time_s
        if 2 * cumulated >= total:
            break
    return f"Half of the layers' time is in {count:,} of {format_plural(len(rows), 'layer')}"


def _layer_axis(alt: Any, rows: Sequence[dict[str, Any]], layers: int, is_last: bool) -> dict[str, Any]:
    """Return the axis of the layers: names if there are few, else numbers from 1; only the last panel has a title."""
    title = "layers in the order of execution" if is_last else None
    if layers <= NAMED_AT_MOST:
        axis = alt.Axis(labels=is_last, ticks=is_last, labelAngle=-90 if layers > 6 else 0, labelLimit=140)
        return {"x": alt.X("name:N", sort=[row["name"] for row in rows], title=title, axis=axis)}
    scale = alt.Scale(domain=[0.5, layers + 0.5], nice=False)
    axis = alt.Axis(format="d", tickMinStep=1, tickCount=12)
    return {"x": alt.X("place:Q", title=title, scale=scale, axis=axis), "x2": "end:Q"}


def _layer_bars(layers: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Return the parts of the bars, and the number of layers per bar.

    A bar of several layers has a part for each group of layers, stacked on one another.
    """
    layers_per_bar = -(-len(layers) // BARS_AT_MOST)
    rows = []
    for first in range(0, len(layers), layers_per_bar or 1):
        bar = layers[first : first + layers_per_bar]
        position = {"place": first + 0.55, "end": first + len(bar) + 0.45}
        name = bar[0]["name"] if len(bar) == 1 else f"{bar[0]['name']} to {bar[-1]['name']}"
        low = dict.fromkeys(QUANTITIES, 0.0)
        groups = {group_of(row["kind"]) for row in bar}
        for group in sorted(groups, key=list(GROUPS).index):
            members = [row for row in bar if group_of(row["kind"]) == group]
            longest = max(members, key=lambda row: row["time_s"])
            part = {**longest, **position, "group": group, "name": name}
            for key in QUANTITIES:
                part[key] = sum(row[key] or 0 for row in members)
                part[f"{key} low"] = low[key]
                low[key] += part[key]
                part[f"{key} high"] = low[key]
            rows.append(part)
    return rows, layers_per_bar


def kind_chart(prediction: Prediction) -> Any:
    """Draw the shares of time, FLOPs and bytes by kind of layer."""
    alt = altair()
    kinds = dict(prediction.by_kind())
    if prediction.terms.overhead_s:
        kinds["overhead"] = {"time_s": prediction.terms.overhead_s, "flops": None, "bytes": None}
    kinds = {kind: entry for kind, entry in kinds.items() if any(entry[key] for key in QUANTITIES)}
    order = sorted(kinds, key=lambda kind: -kinds[kind]["time_s"])
    totals = {"time_s": prediction.time_s, "flops": prediction.flops, "bytes": prediction.bytes or 0}
    rows = []
    for kind, entry in kinds.items():
        for key, (quantity, unit) in QUANTITIES.items():
            if entry[key] and totals[key]:
                share = entry[key] / totals[key]
                rows.append(
                    {
                        "kind": kind,
                        "group": group_of(kind),
                        "quantity": quantity,
                        "share": share,
                        "label": format_percent(share),
                        "value": format_si(entry[key], unit),
                        "bound": key == "time_s" and not prediction.is_forecast,
                    }
                )
    axis = alt.Axis(format="%", values=[0, 0.5, 1], grid=False)
    base = alt.Chart().encode(
        y=alt.Y("kind:N", sort=order, title=None),
        x=alt.X("share:Q", title="share", axis=axis, scale=alt.Scale(domain=[0, 1.2])),
    )
    colour = group_colour(list(kinds)).legend(None)
    tooltip = [
        alt.Tooltip("kind:N"),
        alt.Tooltip("quantity:N"),
        alt.Tooltip("value:N"),
        alt.Tooltip("label:N", title="share"),
    ]
    bars = base.mark_bar().encode(color=colour, tooltip=tooltip, **hollow_encoding(colour, dashed=True))
    text = base.mark_text(align="left", dx=4).encode(text=alt.Text("label:N"))
    panel = alt.layer(bars, text, data=inline_data(rows)).properties(width=210, height=alt.Step(19))
    quantities = [quantity for quantity, _ in QUANTITIES.values()]
    chart = panel.facet(column=alt.Column("quantity:N", sort=quantities, title=None))
    first = order[0]
    title = f"{kinds[first]['time_s'] / prediction.time_s:.0%} of the time is spent in {first}"
    first_flops = kinds[first]["flops"] if totals["flops"] else None
    if first_flops is not None:
        title += f", with {format_percent(first_flops / totals['flops'])} of the FLOPs"
    return chart.properties(title=alt.Title(title, subtitle=prediction_subtitle(prediction)))


def pass_chart(prediction: Prediction) -> Any:
    """Draw the time of each pass, by kind of layer."""
    alt = altair()
    factor, unit = time_unit(prediction.time_s)
    rows = _pass_rows(prediction, factor)
    colours = {**GROUPS, "overhead": GROUPS["other"]}
    groups = [group for group in colours if any(row["group"] == group for row in rows)]
    scale = alt.Scale(domain=groups, range=[colours[group] for group in groups])
    colour = alt.Color("group:N", scale=scale, title="kind of layer")
    order = [*(PASS_NAMES.get(name, name) for name in prediction.terms.passes), "overhead"]
    pass_times = {name: sum(row["taken"] for row in rows if row["pass"] == name) for name in order}
    longest = max(pass_times, key=lambda name: pass_times[name])
    for row in rows:
        share = row["taken"] / factor / prediction.time_s
        width = _PASS_WIDTH * row["taken"] / pass_times[longest]
        label = f"{share:.0%}"
        if width > CHARACTER_WIDTH * (len(row["group"]) + 5):
            label = f"{row['group']} {label}"
        row["share"] = label if share >= _LABELLED_SHARE and prediction.is_forecast else ""
    x = alt.X("taken:Q", title=f"time ({unit})", axis=alt.Axis(format=NUMBER_FORMAT, tickCount=8), stack="zero")
    base = alt.Chart().encode(y=alt.Y("pass:N", sort=order, title=None), order=alt.Order("order:Q"))
    tooltip = [alt.Tooltip("pass:N"), alt.Tooltip("group:N", title="kind of layer"), alt.Tooltip("time:N")]
    bars = base.mark_bar().encode(x=x, color=colour, tooltip=tooltip, **hollow_encoding(colour, dashed=True))
    text = base.mark_text(color="#000000").encode(
        x=x.copy().bandPosition(0.5), text=alt.Text("share:N"), detail=alt.Detail("group:N")
    )
    share = pass_times[longest] / factor / prediction.time_s
    headline = f"Largest part: {longest}, {share:.0%} of the time"
    title = alt.Title(headline, subtitle=prediction_subtitle(prediction))
    chart = alt.layer(bars, text, data=inline_data(rows))
    return chart.properties(width=_PASS_WIDTH, height=alt.Step(34), title=title)


def _pass_rows(prediction: Prediction, factor: float) -> list[dict[str, Any]]:
    """Return the time of each group of layers in each pass, and the overhead."""
    seconds: dict[tuple[str, str], float] = {}
    for pass_index, pass_name in enumerate(prediction.terms.passes):
        for layer_index, kind in enumerate(prediction.kinds):
            key = PASS_NAMES.get(pass_name, pass_name), group_of(kind)
            seconds[key] = seconds.get(key, 0.0) + float(prediction.terms.layers_s[pass_index, layer_index])
    if prediction.terms.overhead_s:
        seconds["overhead", "overhead"] = prediction.terms.overhead_s
    groups = [*GROUPS, "overhead"]
    rows: list[dict[str, Any]] = []
    for (pass_name, group), time_s in seconds.items():
        if time_s:
            rows.append(
                {
                    "pass": pass_name,
                    "group": group,
                    "taken": time_s * factor,
                    "order": groups.index(group),
                    "time": format_si(time_s, "s"),
                    "bound": not prediction.is_forecast,
                }
            )
    return rows

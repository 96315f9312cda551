"""Where the time of a prediction goes: along the network, by kind of layer, by pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...timing import Prediction
from ...units import format_si, say_interval
from ..document import say_percent
from .marks import BOUNDS_ARE, LETTER, PLAIN, PREFIXED, hollow
from .render import GROUPS, altair, group_colour, group_of, time_unit, values

NAMED_AT_MOST = 40
"""Layers of a network that is drawn with their names."""

BARS_AT_MOST = 400
"""Layers beyond this are gathered: neighbours share a bar."""

QUANTITIES = {"time_s": ("time", "s"), "flops": ("FLOPs", ""), "bytes": ("bytes", "B")}

PASS_NAMES = {"backward_data": "data gradient", "backward_weight": "weight gradient"}


def title_of(prediction: Prediction) -> str:
    """What a prediction's charts are of, which stands below their titles, in front of the time."""
    return f"{prediction.network} on {prediction.device.name}, {prediction.precision} {prediction.phase}"


def said_of(prediction: Prediction) -> list[str]:
    """The lines below a title: what it is of with the time, and how bounds are drawn."""
    interval = "" if prediction.interval is None else f" ({say_interval(prediction.interval)} at 90%)"
    least = "" if prediction.is_forecast else "at least "
    time = f"{least}{format_si(prediction.time_s, 's')}{interval}"
    what = f"{title_of(prediction)}, batch {prediction.batch_size}, {prediction.model.name} model: {time}"
    return [what, *([] if prediction.is_forecast else [BOUNDS_ARE])]


def layer_chart(prediction: Prediction) -> Any:
    """Time, FLOPs and bytes of every layer, in the order of execution."""
    alt = altair()
    every = list(prediction.rows())
    rows, together = _gathered(every)
    lines = [*said_of(prediction), *([f"{together} neighbouring layers in one bar"] if together > 1 else [])]
    factor, unit = time_unit(max((row["time_s high"] for row in rows), default=0.0))
    for row in rows:
        row |= {"bounded": not prediction.is_forecast}
        for key, (_, written) in QUANTITIES.items():
            scale = factor if key == "time_s" else 1.0
            row |= {f"{key} low": row[f"{key} low"] * scale, f"{key} high": row[f"{key} high"] * scale}
            row[f"{key} said"] = format_si(row[key], written, 3)
    seen = [row["kind"] for row in rows if any(row[key] for key in QUANTITIES)]
    colour = group_colour(seen or [row["kind"] for row in rows], "kind of layer")
    panels = [
        alt.Chart(height=110, width=760)
        .mark_bar(binSpacing=0)
        .encode(
            **_along(alt, rows, len(prediction.names), key == "bytes"),
            y=alt.Y(f"{key} high:Q", title=axis, axis=alt.Axis(tickCount=4, **written)),
            y2=alt.Y2(f"{key} low:Q"),
            color=colour,
            **(hollow(colour, "datum.bounded") if key == "time_s" else {}),
            tooltip=[alt.Tooltip("name:N"), alt.Tooltip("kind:N"),
                     *(alt.Tooltip(f"{each} said:N", title=said) for each, (said, _) in QUANTITIES.items()),
                     alt.Tooltip("bound:N", title="bounded by")],
        )
        for key, axis, written in (
            ("time_s", f"time ({unit})", {"format": PLAIN}),
            ("flops", "FLOPs", {"labelExpr": PREFIXED}),
            ("bytes", "bytes (B)", {"labelExpr": PREFIXED}),
        )
    ]  # fmt: skip
    return alt.vconcat(*panels, data=values(rows), spacing=12).properties(
        title=alt.Title(_half_of(every), subtitle=lines)
    )


def _half_of(rows: Sequence[dict[str, Any]]) -> str:
    """How many layers it is that take most of the time."""
    seconds = sorted((float(row["time_s"]) for row in rows), reverse=True)
    count = next((n for n in range(1, len(seconds) + 1) if 2 * sum(seconds[:n]) >= sum(seconds)), 0)
    return f"Half of the layers' time is in {count:,} of {len(rows):,} layer{'s' if len(rows) > 1 else ''}"


def _along(alt: Any, rows: Sequence[dict[str, Any]], layers: int, last: bool) -> dict[str, Any]:
    """The axis of the layers: by name where they are few, else by number, the first is 1; said below the last panel."""
    title = "layers in the order of execution" if last else None
    if layers <= NAMED_AT_MOST:
        axis = alt.Axis(labels=last, ticks=last, labelAngle=-90 if layers > 6 else 0, labelLimit=140)
        return {"x": alt.X("name:N", sort=[row["name"] for row in rows], title=title, axis=axis)}
    scale = alt.Scale(domain=[0.5, layers + 0.5], nice=False)
    axis = alt.Axis(format="d", tickMinStep=1, tickCount=12)
    return {"x": alt.X("place:Q", title=title, scale=scale, axis=axis), "x2": "end:Q"}


def _gathered(layers: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Bars: one per layer; or per so many neighbours, of each group of which a part stands on those below it."""
    together = -(-len(layers) // BARS_AT_MOST)
    rows = []
    for first in range(0, len(layers), together or 1):
        some = layers[first : first + together]
        place = {"place": first + 0.55, "end": first + len(some) + 0.45}
        low = dict.fromkeys(QUANTITIES, 0.0)
        for group in sorted({group_of(row["kind"]) for row in some}, key=list(GROUPS).index):
            mine = [row for row in some if group_of(row["kind"]) == group]
            sums = {key: sum(row[key] or 0 for row in mine) for key in QUANTITIES}
            span = {f"{key} low": low[key] for key in QUANTITIES}
            low = {key: low[key] + sums[key] for key in QUANTITIES}
            span |= {f"{key} high": low[key] for key in QUANTITIES}
            longest = max(mine, key=lambda row: row["time_s"])
            name = longest["name"] if len(some) == 1 else f"{some[0]['name']} to {some[-1]['name']}"
            rows.append({**longest, **sums, **span, **place, "group": group, "name": name})
    return rows, together


def kind_chart(prediction: Prediction) -> Any:
    """Shares of time, FLOPs and bytes by kind of layer: what convolutions make up, and what the rest costs."""
    alt = altair()
    kinds = dict(prediction.by_kind())
    if prediction.terms.overhead_s:
        kinds["overhead"] = {"time_s": prediction.terms.overhead_s, "flops": None, "bytes": None}
    kept = {kind: entry for kind, entry in kinds.items() if any(entry[key] for key in QUANTITIES)}
    order = sorted(kept, key=lambda kind: -kept[kind]["time_s"])
    totals = {"time_s": prediction.time_s, "flops": prediction.flops, "bytes": prediction.bytes or 0}
    rows = [
        {
            "kind": kind, "group": group_of(kind), "quantity": name, "share": entry[key] / totals[key],
            "label": say_percent(entry[key] / totals[key]), "value": format_si(entry[key], unit),
            "bound": key == "time_s" and not prediction.is_forecast,
        }
        for kind, entry in kept.items()
        for key, (name, unit) in QUANTITIES.items()
        if entry[key] and totals[key]
    ]  # fmt: skip
    base = alt.Chart().encode(
        y=alt.Y("kind:N", sort=order, title=None),
        x=alt.X("share:Q", title="share", axis=alt.Axis(format="%", values=[0, 0.5, 1], grid=False),
                scale=alt.Scale(domain=[0, 1.2])),
    )  # fmt: skip
    colour = group_colour(list(kept)).legend(None)
    tips = [
        alt.Tooltip("kind:N"),
        alt.Tooltip("quantity:N"),
        alt.Tooltip("value:N"),
        alt.Tooltip("label:N", title="share"),
    ]
    bars = base.mark_bar().encode(color=colour, tooltip=tips, **hollow(colour, dashed=True))
    text = base.mark_text(align="left", dx=4).encode(text=alt.Text("label:N"))
    panel = alt.layer(bars, text, data=values(rows)).properties(width=210, height=alt.Step(19))
    names = [name for name, _ in QUANTITIES.values()]
    chart = panel.facet(column=alt.Column("quantity:N", sort=names, title=None))
    first = order[0]
    counted = kept[first]["flops"] if totals["flops"] else None
    point = f"{kept[first]['time_s'] / prediction.time_s:.0%} of the time goes to {first}"
    point += "" if counted is None else f", with {say_percent(counted / totals['flops'])} of the FLOPs"
    return chart.properties(title=alt.Title(point, subtitle=said_of(prediction)))


def pass_chart(prediction: Prediction) -> Any:
    """Time of each pass of the phase, by kind of layer."""
    alt = altair()
    sums: dict[tuple[str, str], float] = {}
    for number, part in enumerate(prediction.terms.passes):
        for index, kind in enumerate(prediction.kinds):
            place = PASS_NAMES.get(part, part), group_of(kind)
            sums[place] = sums.get(place, 0.0) + float(prediction.terms.layers_s[number, index])
    groups = list(GROUPS)
    factor, unit = time_unit(prediction.time_s)
    rows: list[dict[str, Any]] = [
        {"pass": part, "group": group, "taken": time_s * factor, "order": groups.index(group),
         "time": format_si(time_s, "s"), "bound": not prediction.is_forecast}
        for (part, group), time_s in sums.items()
        if time_s
    ]  # fmt: skip
    overhead_s = prediction.terms.overhead_s
    if overhead_s:
        rest = {"pass": "overhead", "group": "overhead", "order": len(groups)}
        rows.append({**rest, "taken": overhead_s * factor, "time": format_si(overhead_s, "s")})
    inks = {**GROUPS, "overhead": GROUPS["other"]}
    used = [group for group in inks if any(row["group"] == group for row in rows)]
    scale = alt.Scale(domain=used, range=[inks[group] for group in used])
    colour = alt.Color("group:N", scale=scale, title="kind of layer")
    order = [*(PASS_NAMES.get(part, part) for part in prediction.terms.passes), "overhead"]
    taken = {part: sum(row["taken"] for row in rows if row["pass"] == part) for part in order}
    longest = max(taken, key=lambda part: taken[part])
    point = f"The {longest} takes {taken[longest] / factor / prediction.time_s:.0%} of the time"
    for row in rows:
        share = row["taken"] / factor / prediction.time_s
        said, room = f"{share:.0%}", _WIDE * row["taken"] / max(taken.values())
        named = f"{row['group']} {said}" if room > LETTER * (len(row["group"]) + 5) else said
        row["share"] = named if share >= _LABELLED and prediction.is_forecast else ""
    x = alt.X("taken:Q", title=f"time ({unit})", axis=alt.Axis(format=PLAIN, tickCount=8), stack="zero")
    base = alt.Chart().encode(y=alt.Y("pass:N", sort=order, title=None), order=alt.Order("order:Q"))
    tips = [alt.Tooltip("pass:N"), alt.Tooltip("group:N", title="kind of layer"), alt.Tooltip("time:N")]
    bars = base.mark_bar().encode(x=x, color=colour, tooltip=tips, **hollow(colour, dashed=True))
    text = base.mark_text(color="#000000").encode(
        x=x.copy().bandPosition(0.5), text=alt.Text("share:N"), detail=alt.Detail("group:N")
    )
    title = alt.Title(point, subtitle=said_of(prediction))
    return alt.layer(bars, text, data=values(rows)).properties(width=_WIDE, height=alt.Step(34), title=title)


_WIDE = 620  # pixels of the longest pass, about
_LABELLED = 0.04
"""Share of the time from which a part of a bar has its own written on it."""

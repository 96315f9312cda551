"""PALEO's picture: what one platform percent of peak (PPP) predicts, beside the share of peak that was measured.

Qi, Sparks, Talwalkar, "Paleo", ICLR 2017, section 4.3: one PPP scales the time at peak of every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...calibration.beside import MEASURED_PASSES, PredictedBeside, PredictedRow, kind_of_layer
from ...efficiency.compare import Comparison
from ...errors import BadValue
from ...units import format_si
from .marks import PLAIN
from .render import altair, group_colour, time_unit, values
from .theme import SERIES, group_of

SHARES = {"PPP: FLOPs/peak + bytes/bandwidth": "ppp", "share of peak FLOP/s": "share_of_peak"}
"""The two shares that are measured, and what holds each."""

_SIDES = ("measured", "by the PPP")
_ROW, _WIDE = 15, 300


def ppp_chart(found: PredictedBeside | Comparison) -> Any:
    """By pass and class, and layer by layer: measured times and shares of peak beside what one PPP predicts.

    The PPP is the time model's own, where it is a PPP, else that of the profile as a whole.

    Raises
    ------
    BadValue
        If two profiles were compared, or no class of work was both measured and counted.
    """
    if not isinstance(found, PredictedBeside):
        raise BadValue("a chart of the PPP is of one profile and a network: --predict NETWORK --gpu DEVICE PROFILE")
    alt = altair()
    prediction = found.prediction
    ppp = prediction.model.ppp or found.ppp
    kinds = [row for row in found.kinds if row.ppp]
    kinds.sort(key=lambda row: (MEASURED_PASSES.index(row.part), -(row.measured_s or 0.0)))
    if not kinds:
        raise BadValue("there is nothing to draw: no class of work was both measured and counted")
    panels = [_classes(alt, kinds, ppp)]
    if layers := [row for row in found.layers if row.ppp]:
        panels.append(_layers(alt, found, layers, ppp))
    apart = max(kinds, key=lambda row: abs((row.measured_s or 0.0) - (row.at_peak_s or 0.0) / ppp))
    title = (
        f"One PPP of {ppp:.3g} is furthest off in {_named(apart)}: {format_si(apart.measured_s or 0.0, 's', 3)} "
        f"measured, {format_si((apart.at_peak_s or 0.0) / ppp, 's', 3)} by it"
    )
    at_peak_s = found.ppp * found.measured_s
    lines = [
        f"{prediction.network} on {prediction.device.name}, {prediction.phase}, batch {prediction.batch_size}",
        f"{format_si(at_peak_s, 's', 3)} at peak / PPP {ppp:.3g} = {format_si(at_peak_s / ppp, 's', 3)} predicted; "
        f"measured {format_si(found.measured_s, 's', 3)}, all kernels of an iteration summed",
        prediction.model.label if prediction.model.ppp else "the PPP is that of this profile as a whole",
        "right of the line, or above it, is faster than this PPP predicts; left of it, or below, slower",
    ]
    named = alt.Title(title, subtitle=[line for line in lines if line])
    chart = alt.vconcat(*panels, spacing=24).properties(title=named)
    return chart.resolve_scale(color="independent", shape="independent", size="independent")


def _classes(alt: Any, rows: Sequence[PredictedRow], ppp: float) -> Any:
    """Left the time of each class, right its shares of peak, around the PPP that is one for all."""
    longest = max(max(row.measured_s or 0.0, (row.at_peak_s or 0.0) / ppp) for row in rows)
    factor, unit = time_unit(longest)
    order = [_named(row) for row in rows]
    times = [
        {"what": _named(row), "side": side, "time": seconds * factor, "label": format_si(seconds, "s", 3)}
        for row in rows
        for side, seconds in zip(_SIDES, (row.measured_s or 0.0, (row.at_peak_s or 0.0) / ppp))
    ]
    shares: list[dict[str, Any]] = [
        {"what": _named(row), "share": getattr(row, field), "of": said, "label": f"{getattr(row, field):.2f}"}
        for row in rows
        for said, field in SHARES.items()
        if getattr(row, field) is not None
    ]
    y = alt.Y("what:N", sort=order, title=None, axis=alt.Axis(labelLimit=220))
    base = alt.Chart(values(times)).encode(
        y=y, yOffset=alt.YOffset("side:N", sort=list(_SIDES)),
        x=alt.X("time:Q", title=f"time ({unit})", axis=alt.Axis(format=PLAIN, tickCount=5, grid=False),
                scale=alt.Scale(domain=[0, longest * factor * 1.18])),
    )  # fmt: skip
    colour = alt.Color("side:N", title=None, legend=alt.Legend(orient="top"),
                       scale=alt.Scale(domain=list(_SIDES), range=[SERIES[1], SERIES[0]]))  # fmt: skip
    bars = base.mark_bar().encode(
        color=colour, tooltip=[alt.Tooltip("what:N"), alt.Tooltip("side:N"), alt.Tooltip("label:N", title="time")]
    )
    text = base.mark_text(align="left", dx=3, fontSize=9).encode(text=alt.Text("label:N"))
    height = 2.2 * _ROW * len(order)
    left = alt.layer(bars, text).properties(width=_WIDE, height=height)
    most = max(1.0, *(row["share"] for row in shares))
    x = alt.X("share:Q", title="measured share of peak", scale=alt.Scale(domain=[0, most * 1.05]),
              axis=alt.Axis(format=PLAIN, tickCount=5))  # fmt: skip
    names = list(SHARES)
    said = alt.Scale(domain=names, range=["circle", "diamond"])
    inks = alt.Scale(domain=names, range=[SERIES[1], SERIES[2]])
    dots = alt.Chart(values(shares)).mark_point(filled=True, size=70, opacity=1).encode(
        y=alt.Y("what:N", sort=order, title=None, axis=alt.Axis(labels=False, ticks=False)), x=x,
        color=alt.Color("of:N", title=None, scale=inks, legend=alt.Legend(orient="top", labelLimit=300)),
        shape=alt.Shape("of:N", title=None, scale=said, legend=alt.Legend(orient="top", labelLimit=300)),
        tooltip=[alt.Tooltip("what:N"), alt.Tooltip("of:N"), alt.Tooltip("label:N")],
    )  # fmt: skip
    right = alt.layer(*_one_for_all(alt, ppp, "x"), dots).properties(width=_WIDE, height=height)
    return alt.hconcat(left, right, spacing=16).resolve_scale(color="independent", shape="independent")


def _layers(alt: Any, found: PredictedBeside, rows: Sequence[PredictedRow], ppp: float) -> Any:
    """Each layer's own PPP in the order of execution, a panel for each pass."""
    places = {name: place for place, name in enumerate(found.prediction.names, 1)}
    kinds = dict(zip(found.prediction.names, found.prediction.kinds))
    whole = sum(row.measured_s or 0.0 for row in rows)
    dots: list[dict[str, Any]] = [
        {"name": row.name, "pass": row.part, "place": places[row.name], "kind": kind_of_layer(kinds[row.name]),
         "group": group_of(kinds[row.name]), "ppp": row.ppp, "peak": row.share_of_peak,
         "took": format_si(row.measured_s, "s", 3), "weight": (row.measured_s or 0.0) / whole}
        for row in rows
    ]  # fmt: skip
    most = max(row["ppp"] for row in dots) * 1.05
    colour = group_colour([kinds[row.name] for row in rows], "kind of layer")
    panels = []
    parts = [part for part in MEASURED_PASSES if any(row["pass"] == part for row in dots)]
    for part in parts:
        last = part == parts[-1]
        marks = alt.Chart(values([row for row in dots if row["pass"] == part])).mark_point(
            filled=True, opacity=0.8).encode(
            x=alt.X("place:Q", title="layers in the order of execution" if last else None,
                    scale=alt.Scale(domain=[0.5, len(places) + 0.5], nice=False),
                    axis=alt.Axis(format="d", tickMinStep=1)),
            y=alt.Y("ppp:Q", title=f"PPP, {part}", scale=alt.Scale(domain=[0, most]),
                    axis=alt.Axis(format=PLAIN, tickCount=4)),
            color=colour,
            size=alt.Size("weight:Q", title="share of time", scale=alt.Scale(range=[15, 250]),
                          legend=alt.Legend(format=".1%", tickCount=3)),
            tooltip=[alt.Tooltip("name:N"), alt.Tooltip("kind:N"), alt.Tooltip("took:N", title="measured"),
                     alt.Tooltip("ppp:Q", format=".2f", title="PPP"),
                     alt.Tooltip("peak:Q", format=".1%", title="of peak FLOP/s")],
        )  # fmt: skip
        panels.append(alt.layer(*_one_for_all(alt, ppp, "y"), marks).properties(width=2 * _WIDE + 16, height=120))
    return alt.vconcat(*panels, spacing=8)


def _named(row: PredictedRow) -> str:
    return row.part if row.name == row.part else f"{row.part}: {row.name.replace('_', ' ')}"


def _one_for_all(alt: Any, ppp: float, channel: str) -> list[Any]:
    """The line of the PPP that predicts, with its number; of a panel's values it says which are faster."""
    data = alt.Chart(values([{"share" if channel == "x" else "ppp": ppp, "said": f"PPP {ppp:.3g}"}]))
    if channel == "x":
        at = alt.X("share:Q")
        text = data.mark_text(align="left", dx=4, dy=-6, fontSize=10).encode(
            x=at, y=alt.YValue(0), text=alt.Text("said:N")
        )
        return [data.mark_rule(strokeWidth=1.5).encode(x=at), text]
    up = alt.Y("ppp:Q")
    text = data.mark_text(align="right", dy=-6, fontSize=10).encode(
        y=up, x=alt.XValue("width"), text=alt.Text("said:N")
    )
    return [data.mark_rule(strokeWidth=1.5).encode(y=up), text]

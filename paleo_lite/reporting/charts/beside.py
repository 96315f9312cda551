"""Two runs side by side: a prediction and a profile, by kind of layer and pass; two profiles, kernel by kernel.

Of a prediction by a platform percent of peak (PPP) it is PALEO's picture: what one PPP predicts, beside the share of
peak that was measured. Qi, Sparks, Talwalkar, "Paleo", ICLR 2017, section 4.3: one PPP scales the time at peak of every
layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...calibration.beside import MEASURED_PASSES, PredictedBeside, PredictedRow, kind_of_layer
from ...errors import BadValue
from ...profile_analysis import BY
from ...profile_analysis.compare import ComparedKernel, Comparison
from ...units import format_si, say_interval
from .marks import BOUNDS_ARE, PLAIN, hollow
from .render import SERIES, altair, group_colour, group_of, time_unit, values

BARS_AT_MOST = 20
"""Pairs of bars, those that differ most; of kinds of layers there are fewer anyway."""

Row = tuple[str, float | None, float | None]
"""A name, and the seconds of either side; None where a side has nothing of it."""


def comparison_chart(found: PredictedBeside | Comparison) -> Any:
    """What ``compare`` found; of a prediction by a PPP the picture of `ppp_chart`."""
    if not isinstance(found, PredictedBeside):
        return profiles_chart(found)
    return predicted_chart(found) if found.prediction.model.ppp is None else ppp_chart(found)


def predicted_chart(beside: PredictedBeside) -> Any:
    """Measured and predicted time of an iteration by kind of layer, pass by pass."""
    prediction = beside.prediction
    passes = [
        (part, [(row.name, row.measured_s, row.predicted_s) for row in beside.kinds if row.part == part])
        for part in MEASURED_PASSES
    ]
    passes.insert(0, ("whole iteration", [("all kernels", beside.measured_s, prediction.time_s)]))
    interval = "" if prediction.interval is None else f" ({say_interval(prediction.interval)} at 90%)"
    predicted = "predicted" if prediction.is_forecast else "bound of the data sheet"
    lines = [
        f"{prediction.network} on {prediction.device.name}, {prediction.phase}, batch {prediction.batch_size}",
        f"an iteration, summed over kernels: measured {format_si(beside.measured_s, 's')}, {predicted} "
        f"{format_si(prediction.time_s, 's')}{interval}, {prediction.model.name} model",
    ]
    lines += [] if prediction.is_forecast else [BOUNDS_ARE]
    return _paired(
        passes, ("measured", predicted), _apart(beside), lines, prediction.interval, not prediction.is_forecast
    )


def _apart(beside: PredictedBeside) -> str:
    """How far the prediction is from what was measured, and in which class and pass most."""
    prediction = beside.prediction
    ratio = prediction.time_s / beside.measured_s
    both = [row for row in beside.kinds if row.measured_s and row.predicted_s]
    furthest = max(both, key=lambda row: abs((row.predicted_s or 0.0) - (row.measured_s or 0.0)), default=None)
    most = f", most of it in {furthest.part}: {furthest.name.replace('_', ' ')}" if furthest else ""
    if not prediction.is_forecast:
        return f"Measured is {1 / ratio:.3g} times what the data sheet allows"
    low, high = prediction.interval or (0.0, 0.0)
    held = ", inside its interval" if low <= beside.measured_s <= high else ""
    return f"Predicted {abs(ratio - 1):.0%} {'shorter' if ratio < 1 else 'longer'} than measured{held}{most}"


def profiles_chart(comparison: Comparison) -> Any:
    """What takes longer in B than in A to the right, what takes less to the left; those that differ most."""
    alt = altair()
    kernels = sorted(comparison.kernels, key=lambda kernel: -abs(_more_s(kernel)))
    kept = [kernel for kernel in kernels[:BARS_AT_MOST] if _more_s(kernel)]
    factor, unit = time_unit(max((abs(_more_s(kernel)) for kernel in kept), default=0.0))
    rows = [
        {"name": kernel.name, "more": _more_s(kernel) * factor, "what": _WITHIN if kernel.verdict == _WITHIN else
         _LONGER if _more_s(kernel) > 0 else _SHORTER, "label": ("+" if _more_s(kernel) > 0 else "\N{MINUS SIGN}")
         + format_si(abs(_more_s(kernel)), "s", 3), "zero": max(0.0, _more_s(kernel) * factor),
         "a": _took(kernel.a_s), "b": _took(kernel.b_s)}
        for kernel in sorted(kept, key=_more_s, reverse=True)
    ]  # fmt: skip
    total = comparison.total
    lines = [
        f"{side} {', '.join(Path(path).name for path in paths)}: {format_si(seconds or 0.0, 's')}"
        for side, paths, seconds in (("A", comparison.a, total.a_s), ("B", comparison.b, total.b_s))
    ]
    of = f"{BY[comparison.by]}{'' if comparison.direction == 'all' else f', {comparison.direction}'}"
    lines.append(f"{of}: the {len(kept)} of {len(kernels)} that differ most" if len(kept) < len(kernels) else of)
    base = alt.Chart(values(rows)).encode(
        y=alt.Y("name:N", sort=[row["name"] for row in rows], title=None, axis=alt.Axis(labelLimit=360))
    )
    more = f"time in B beyond that in A ({unit})"
    names = [name for name in _OF_DIFFERENCES if name in {row["what"] for row in rows}]
    colour = alt.Color("what:N", title=None, legend=alt.Legend(orient="top", labelLimit=300),
                       scale=alt.Scale(domain=names, range=[_OF_DIFFERENCES[name] for name in names]))  # fmt: skip
    bars = base.mark_bar().encode(
        x=alt.X("more:Q", title=more, axis=alt.Axis(format=PLAIN, grid=False, tickCount=8)), color=colour,
        tooltip=[alt.Tooltip("name:N"), alt.Tooltip("a:N", title="A"), alt.Tooltip("b:N", title="B"),
                 alt.Tooltip("label:N", title="difference")],
    )  # fmt: skip
    text = base.mark_text(align="left", dx=4, fontSize=9).encode(
        x=alt.X("zero:Q", title=more), text=alt.Text("label:N")
    )
    named = alt.Title(_headline(total), subtitle=lines)
    return alt.layer(bars, text).properties(width=520, height=alt.Step(18), title=named)


_WITHIN, _LONGER, _SHORTER = "within spread", "longer in B", "shorter in B"
_OF_DIFFERENCES = {_LONGER: SERIES[1], _SHORTER: SERIES[2], _WITHIN: SERIES[7]}
"""Which way something differs, and its colour; what differs by no more than repeats do is grey."""


def _more_s(kernel: ComparedKernel) -> float:
    return (kernel.b_s or 0.0) - (kernel.a_s or 0.0)


def _took(seconds: float | None) -> str:
    return "not there" if seconds is None else format_si(seconds, "s", 3)


def _headline(total: ComparedKernel) -> str:
    if not total.a_s or not total.b_s or total.verdict == _WITHIN:
        return "A and B differ by no more than their repeats do" if total.verdict == _WITHIN else "B beside A"
    more = total.b_s / total.a_s - 1
    if more >= 1:
        return f"B takes {total.b_s / total.a_s:.3g} times as long as A"
    return (
        f"B takes {abs(more):.1%} {'longer' if more > 0 else 'less'} than A"
        if abs(more) >= 5e-4
        else "B takes as long as A"
    )


def _paired(
    parts: Sequence[tuple[str, Sequence[Row]]],
    sides: tuple[str, str],
    title: str,
    lines: list[str],
    interval: tuple[float, float] | None = None,
    bound: bool = False,
) -> Any:
    """A panel per part with two bars per name, all on one axis of time.

    The interval is that of the second bar of the first part; a bound's bars are hollow.
    """
    alt = altair()
    seconds_all = [second or 0.0 for _, rows in parts for row in rows for second in row[1:]]
    longest = max([*seconds_all, *(interval or ())], default=0.0)
    factor, unit = time_unit(longest)
    panels = []
    told = [part for part, rows in parts if any(second is not None for row in rows for second in row[1:])]
    for part, rows in parts:
        if part not in told:
            continue
        last = part == told[-1]
        bars: list[dict[str, Any]] = [
            {
                "name": name,
                "side": side,
                "time": seconds * factor,
                "label": format_si(seconds, "s", 3),
                "bound": bound and side == sides[1],
                "end": seconds * factor,
            }
            for name, *pair in rows
            for side, seconds in zip(sides, pair)
            if seconds is not None
        ]
        if interval and part == parts[0][0]:
            bars[-1] |= {"low": interval[0] * factor, "end": interval[1] * factor}
        order = [name for name, first, second in sorted(rows, key=lambda row: -max(row[1] or 0.0, row[2] or 0.0))]
        time = f"time ({unit})" if last else None
        base = alt.Chart(values(bars)).encode(
            y=alt.Y("name:N", sort=order, title=None, axis=alt.Axis(labelLimit=360)),
            yOffset=alt.YOffset("side:N", sort=list(sides)),
            x=alt.X("time:Q", scale=alt.Scale(domain=[0, longest * factor]), title=time,
                    axis=alt.Axis(format=PLAIN, labels=last, ticks=last, domain=last, grid=False)),
        )  # fmt: skip
        colour = alt.Color("side:N", title=None, legend=alt.Legend(orient="top"),
                           scale=alt.Scale(domain=list(sides), range=[SERIES[1], SERIES[0]]))  # fmt: skip
        tips = [alt.Tooltip("name:N"), alt.Tooltip("side:N"), alt.Tooltip("label:N", title="time")]
        bar = base.mark_bar().encode(color=colour, tooltip=tips, **hollow(colour, dashed=True))
        text = base.mark_text(align="left", dx=3, fontSize=9).encode(
            x=alt.X("end:Q", title=time), text=alt.Text("label:N")
        )
        named = alt.Title(part, fontSize=12, frame="group")
        spread = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2)
        spread = spread.encode(x=alt.X("low:Q", title=time), x2=alt.X2("end:Q"))
        panels.append(alt.layer(bar, spread, text).properties(width=520, height=alt.Step(13), title=named))
    if not panels:
        values([])
    return alt.vconcat(*panels, spacing=10).properties(title=alt.Title(title, subtitle=lines))


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

"""Charts that compare a prediction with a profile, by kind of layer and pass, or two profiles, kernel by kernel.

For a prediction by a platform percent of peak (PPP) the chart follows PALEO: one PPP scales the time at peak of every
layer (Qi, Sparks, Talwalkar, "Paleo", ICLR 2017, section 4.3), drawn next to the measured shares of peak.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...calibration.comparison import MEASURED_PASSES, ComparisonRow, ProfileComparison, kind_of_layer
from ...errors import BadValue
from ...profile_analysis import GROUPINGS
from ...profile_analysis.compare import ComparedKernel, RunComparison
from ...units import format_si
from ..answers import format_at_90
from .marks import BOUNDS_LEGEND, NUMBER_FORMAT, hollow_encoding
from .render import SERIES, altair, group_colour, group_of, inline_data, time_unit

BARS_AT_MOST = 20
"""Maximum number of bars of a comparison of profiles, those with the largest differences."""

Row = tuple[str, float | None, float | None]
"""A name, and the seconds of both sides; None where a side does not contain it."""

_WITHIN, _LONGER, _SHORTER = "within spread", "longer in B", "shorter in B"
_COLOURS = {_LONGER: SERIES[1], _SHORTER: SERIES[2], _WITHIN: SERIES[7]}
"""Colours of differences; those within the spread of repeated runs are grey."""

SHARES = {"PPP: FLOPs/peak + bytes/bandwidth": "ppp", "share of peak FLOP/s": "share_of_peak"}
"""The two measured shares of peak, and their attributes."""

_SIDES = ("measured", "by the PPP")
_ROW_HEIGHT, _PANEL_WIDTH = 15, 300


def comparison_chart(comparison: ProfileComparison | RunComparison) -> Any:
    """Draw the result of ``compare``: two profiles, or a prediction and a profile."""
    if not isinstance(comparison, ProfileComparison):
        return profiles_chart(comparison)
    if comparison.prediction.model.ppp is None:
        return predicted_chart(comparison)
    return ppp_chart(comparison)


def predicted_chart(comparison: ProfileComparison) -> Any:
    """Draw measured and predicted time of an iteration by kind of layer, pass by pass."""
    prediction = comparison.prediction
    panels: list[tuple[str, list[Row]]] = [
        (
            "whole iteration",
            [(f"kernels{' and gaps' * comparison.has_gaps}", comparison.measured_s, comparison.predicted_s)],
        )
    ]
    for part in (*MEASURED_PASSES, ""):
        panels.append(
            (
                part or "between kernels",
                [(row.name, row.measured_s, row.predicted_s) for row in comparison.kinds if row.part == part],
            )
        )
    interval = format_at_90(prediction.interval) if comparison.has_gaps else ""
    predicted = "predicted" if prediction.is_forecast else "bound from the data sheet"
    lines = [
        f"{prediction.network} on {prediction.device.name}, {prediction.phase}, batch {prediction.batch_size}",
        f"kernels{' and gaps' * comparison.has_gaps} of an iteration: measured "
        f"{format_si(comparison.measured_s, 's')}, {predicted} {format_si(comparison.predicted_s, 's')}{interval}, "
        f"{prediction.model.name} model",
    ]
    if not prediction.is_forecast:
        lines.append(BOUNDS_LEGEND)
    return _paired_bars(
        panels,
        ("measured", predicted),
        _prediction_error_title(comparison),
        lines,
        prediction.interval if comparison.has_gaps else None,
        not prediction.is_forecast,
    )


def _prediction_error_title(comparison: ProfileComparison) -> str:
    """Return the error of the prediction, and the class and pass with the largest difference."""
    prediction = comparison.prediction
    ratio = comparison.predicted_s / comparison.measured_s
    if not prediction.is_forecast:
        return f"Measured is {1 / ratio:.3g} times the bound from the data sheet"
    title = f"Predicted {abs(ratio - 1):.0%} {'shorter' if ratio < 1 else 'longer'} than measured"
    low, high = (prediction.interval if comparison.has_gaps else None) or (0.0, 0.0)
    if low <= comparison.measured_s <= high:
        title += ", inside its interval"
    in_both = [row for row in comparison.kinds if row.measured_s and row.predicted_s]
    if in_both:
        furthest = max(in_both, key=lambda row: abs((row.predicted_s or 0.0) - (row.measured_s or 0.0)))
        place = f"{furthest.part}: {furthest.name}" if furthest.part else furthest.name
        title += f"; largest difference in {place.replace('_', ' ')}"
    return title


def profiles_chart(comparison: RunComparison) -> Any:
    """Draw a diverging bar chart of the largest time differences between two profiles."""
    alt = altair()
    kernels = sorted(comparison.kernels, key=lambda kernel: -abs(_difference_s(kernel)))
    shown = [kernel for kernel in kernels[:BARS_AT_MOST] if _difference_s(kernel)]
    factor, unit = time_unit(max((abs(_difference_s(kernel)) for kernel in shown), default=0.0))
    rows = []
    for kernel in sorted(shown, key=_difference_s, reverse=True):
        difference_s = _difference_s(kernel)
        sign = "+" if difference_s > 0 else "\N{MINUS SIGN}"
        direction = _LONGER if difference_s > 0 else _SHORTER
        rows.append(
            {
                "name": kernel.name,
                "more": difference_s * factor,
                "direction": _WITHIN if kernel.verdict == _WITHIN else direction,
                "label": f"{sign}{format_si(abs(difference_s), 's', 3)}",
                "zero": max(0.0, difference_s * factor),
                "a": _format_side(kernel.a_s),
                "b": _format_side(kernel.b_s),
            }
        )
    total = comparison.total
    lines = []
    for side, paths, seconds in (("A", comparison.a, total.a_s), ("B", comparison.b, total.b_s)):
        names = ", ".join(Path(path).name for path in paths)
        lines.append(f"{side} {names}: {format_si(seconds or 0.0, 's')}")
    scope = GROUPINGS[comparison.by]
    if comparison.direction != "all":
        scope += f", {comparison.direction}"
    if len(shown) < len(kernels):
        scope += f": the {len(shown)} of {len(kernels)} with the largest difference"
    lines.append(scope)
    base = alt.Chart(inline_data(rows)).encode(
        y=alt.Y("name:N", sort=[row["name"] for row in rows], title=None, axis=alt.Axis(labelLimit=360))
    )
    axis_title = f"time in B minus time in A ({unit})"
    directions = {row["direction"] for row in rows}
    legend_names = [name for name in _COLOURS if name in directions]
    colour = alt.Color(
        "direction:N",
        title=None,
        legend=alt.Legend(orient="top", labelLimit=300),
        scale=alt.Scale(domain=legend_names, range=[_COLOURS[name] for name in legend_names]),
    )
    bars = base.mark_bar().encode(
        x=alt.X("more:Q", title=axis_title, axis=alt.Axis(format=NUMBER_FORMAT, grid=False, tickCount=8)),
        color=colour,
        tooltip=[
            alt.Tooltip("name:N"),
            alt.Tooltip("a:N", title="A"),
            alt.Tooltip("b:N", title="B"),
            alt.Tooltip("label:N", title="difference"),
        ],
    )
    text = base.mark_text(align="left", dx=4, fontSize=9).encode(
        x=alt.X("zero:Q", title=axis_title), text=alt.Text("label:N")
    )
    title = alt.Title(_profiles_title(total), subtitle=lines)
    return alt.layer(bars, text).properties(width=520, height=alt.Step(18), title=title)


def _difference_s(kernel: ComparedKernel) -> float:
    return (kernel.b_s or 0.0) - (kernel.a_s or 0.0)


def _format_side(seconds: float | None) -> str:
    return "absent" if seconds is None else format_si(seconds, "s", 3)


def _profiles_title(total: ComparedKernel) -> str:
    """Return the difference of the total times of two profiles."""
    if total.verdict == _WITHIN:
        return "A and B differ by no more than repeated runs"
    if not total.a_s or not total.b_s:
        return "B compared with A"
    relative = total.b_s / total.a_s - 1
    if relative >= 1:
        return f"B takes {total.b_s / total.a_s:.3g} times as long as A"
    if abs(relative) < 5e-4:
        return "B takes as long as A"
    return f"B takes {abs(relative):.1%} {'longer' if relative > 0 else 'less'} than A"


def _paired_bars(
    parts: Sequence[tuple[str, Sequence[Row]]],
    sides: tuple[str, str],
    title: str,
    lines: list[str],
    interval: tuple[float, float] | None = None,  # of the second bar of the first part, in seconds
    is_bound: bool = False,  # whether the second side is a bound, drawn hollow
) -> Any:
    """Draw a panel per part with two bars per name, all with the same time axis."""
    alt = altair()
    all_seconds = [seconds or 0.0 for _, rows in parts for row in rows for seconds in row[1:]]
    longest = max([*all_seconds, *(interval or ())], default=0.0)
    factor, unit = time_unit(longest)
    shown = [(part, rows) for part, rows in parts if any(seconds is not None for row in rows for seconds in row[1:])]
    panels = []
    for part, rows in shown:
        is_last = part == shown[-1][0]
        bars = _bar_rows(rows, sides, factor, is_bound)
        if interval and part == parts[0][0]:
            bars[-1]["low"] = interval[0] * factor
            bars[-1]["end"] = interval[1] * factor
        order = [name for name, first, second in sorted(rows, key=lambda row: -max(row[1] or 0.0, row[2] or 0.0))]
        axis_title = f"time ({unit})" if is_last else None
        axis = alt.Axis(format=NUMBER_FORMAT, labels=is_last, ticks=is_last, domain=is_last, grid=False)
        base = alt.Chart(inline_data(bars)).encode(
            y=alt.Y("name:N", sort=order, title=None, axis=alt.Axis(labelLimit=360)),
            yOffset=alt.YOffset("side:N", sort=list(sides)),
            x=alt.X("time:Q", scale=alt.Scale(domain=[0, longest * factor]), title=axis_title, axis=axis),
        )
        colour = _side_colour(sides)
        tooltip = [alt.Tooltip("name:N"), alt.Tooltip("side:N"), alt.Tooltip("label:N", title="time")]
        bar = base.mark_bar().encode(color=colour, tooltip=tooltip, **hollow_encoding(colour, dashed=True))
        text = base.mark_text(align="left", dx=3, fontSize=9).encode(
            x=alt.X("end:Q", title=axis_title), text=alt.Text("label:N")
        )
        spread = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2)
        spread = spread.encode(x=alt.X("low:Q", title=axis_title), x2=alt.X2("end:Q"))
        panel_title = alt.Title(part, fontSize=12, frame="group")
        panels.append(alt.layer(bar, spread, text).properties(width=520, height=alt.Step(13), title=panel_title))
    if not panels:
        inline_data([])  # raises: there is nothing to draw
    return alt.vconcat(*panels, spacing=10).properties(title=alt.Title(title, subtitle=lines))


def _side_colour(sides: Sequence[str]) -> Any:
    """Return the encoding of both sides by colour, with a legend above the bars."""
    alt = altair()
    colours = alt.Scale(domain=list(sides), range=[SERIES[1], SERIES[0]])
    return alt.Color("side:N", title=None, legend=alt.Legend(orient="top"), scale=colours)


def _bar_rows(rows: Sequence[Row], sides: tuple[str, str], factor: float, is_bound: bool) -> list[dict[str, Any]]:
    """Return a bar for each name and side with a time."""
    bars: list[dict[str, Any]] = []
    for name, *pair in rows:
        for side, seconds in zip(sides, pair):
            if seconds is not None:
                bars.append(
                    {
                        "name": name,
                        "side": side,
                        "time": seconds * factor,
                        "label": format_si(seconds, "s", 3),
                        "bound": is_bound and side == sides[1],
                        "end": seconds * factor,
                    }
                )
    return bars


def ppp_chart(comparison: ProfileComparison | RunComparison) -> Any:
    """Draw measured times and shares of peak next to the prediction by one PPP, by pass and class, and by layer.

    The PPP is that of the time model, or, for other time models, that of the whole profile. Raise BadValue if two
    profiles were compared, or no class of operations was both measured and counted.
    """
    if not isinstance(comparison, ProfileComparison):
        raise BadValue("a PPP chart compares one profile with a prediction: --predict NETWORK --gpu DEVICE PROFILE")
    alt = altair()
    prediction = comparison.prediction
    ppp = prediction.model.ppp or comparison.ppp
    kinds = [row for row in comparison.kinds if row.ppp]
    kinds.sort(key=lambda row: (MEASURED_PASSES.index(row.part), -(row.measured_s or 0.0)))
    if not kinds:
        raise BadValue("there is nothing to draw: no class of operations was both measured and counted")
    panels = [_class_panels(alt, kinds, ppp)]
    layers = [row for row in comparison.layers if row.ppp]
    if layers:
        panels.append(_layer_panels(alt, comparison, layers, ppp))
    furthest = max(kinds, key=lambda row: abs((row.measured_s or 0.0) - (row.at_peak_s or 0.0) / ppp))
    title = (
        f"A PPP of {ppp:.3g} has the largest error in {_row_name(furthest)}: "
        f"{format_si(furthest.measured_s or 0.0, 's', 3)} measured, "
        f"{format_si((furthest.at_peak_s or 0.0) / ppp, 's', 3)} predicted"
    )
    at_peak_s = comparison.ppp * comparison.kernels_s
    lines = [
        f"{prediction.network} on {prediction.device.name}, {prediction.phase}, batch {prediction.batch_size}",
        f"{format_si(at_peak_s, 's', 3)} at peak / PPP {ppp:.3g} = {format_si(at_peak_s / ppp, 's', 3)} predicted; "
        f"measured {format_si(comparison.kernels_s, 's', 3)} (sum of all kernels of an iteration)",
        prediction.model.label if prediction.model.ppp else "PPP of the whole profile",
        "points right of the line, or above it, are faster than predicted by this PPP; the others are slower",
    ]
    subtitle = [line for line in lines if line]
    chart = alt.vconcat(*panels, spacing=24).properties(title=alt.Title(title, subtitle=subtitle))
    return chart.resolve_scale(color="independent", shape="independent", size="independent")


def _class_panels(alt: Any, rows: Sequence[ComparisonRow], ppp: float) -> Any:
    """Draw the time of each class on the left, and its shares of peak around the common PPP on the right."""
    order = [_row_name(row) for row in rows]
    height = 2.2 * _ROW_HEIGHT * len(order)
    left = _class_time_panel(alt, rows, ppp, order).properties(width=_PANEL_WIDTH, height=height)
    right = _class_share_panel(alt, rows, ppp, order).properties(width=_PANEL_WIDTH, height=height)
    return alt.hconcat(left, right, spacing=16).resolve_scale(color="independent", shape="independent")


def _class_time_panel(alt: Any, rows: Sequence[ComparisonRow], ppp: float, order: list[str]) -> Any:
    longest = max(max(row.measured_s or 0.0, (row.at_peak_s or 0.0) / ppp) for row in rows)
    factor, unit = time_unit(longest)
    times = []
    for row in rows:
        for side, seconds in zip(_SIDES, (row.measured_s or 0.0, (row.at_peak_s or 0.0) / ppp)):
            label = format_si(seconds, "s", 3)
            times.append({"class": _row_name(row), "side": side, "time": seconds * factor, "label": label})
    base = alt.Chart(inline_data(times)).encode(
        y=alt.Y("class:N", sort=order, title=None, axis=alt.Axis(labelLimit=220)),
        yOffset=alt.YOffset("side:N", sort=list(_SIDES)),
        x=alt.X(
            "time:Q",
            title=f"time ({unit})",
            axis=alt.Axis(format=NUMBER_FORMAT, tickCount=5, grid=False),
            scale=alt.Scale(domain=[0, longest * factor * 1.18]),
        ),
    )
    colour = _side_colour(_SIDES)
    tooltip = [alt.Tooltip("class:N"), alt.Tooltip("side:N"), alt.Tooltip("label:N", title="time")]
    bars = base.mark_bar().encode(color=colour, tooltip=tooltip)
    text = base.mark_text(align="left", dx=3, fontSize=9).encode(text=alt.Text("label:N"))
    return alt.layer(bars, text)


def _class_share_panel(alt: Any, rows: Sequence[ComparisonRow], ppp: float, order: list[str]) -> Any:
    shares: list[dict[str, Any]] = []
    for row in rows:
        for name, attribute in SHARES.items():
            share = getattr(row, attribute)
            if share is not None:
                shares.append({"class": _row_name(row), "share": share, "measure": name, "label": f"{share:.2f}"})
    axis_end = max(1.0, *(row["share"] for row in shares)) * 1.05
    names = list(SHARES)
    legend = alt.Legend(orient="top", labelLimit=300)
    colours = alt.Scale(domain=names, range=[SERIES[1], SERIES[2]])
    shapes = alt.Scale(domain=names, range=["circle", "diamond"])
    dots = alt.Chart(inline_data(shares)).mark_point(filled=True, size=70, opacity=1)
    dots = dots.encode(
        y=alt.Y("class:N", sort=order, title=None, axis=alt.Axis(labels=False, ticks=False)),
        x=alt.X(
            "share:Q",
            title="measured share of peak",
            scale=alt.Scale(domain=[0, axis_end]),
            axis=alt.Axis(format=NUMBER_FORMAT, tickCount=5),
        ),
        color=alt.Color("measure:N", title=None, scale=colours, legend=legend),
        shape=alt.Shape("measure:N", title=None, scale=shapes, legend=legend),
        tooltip=[alt.Tooltip("class:N"), alt.Tooltip("measure:N"), alt.Tooltip("label:N")],
    )
    return alt.layer(*_ppp_line(alt, ppp, "x"), dots)


def _layer_panels(alt: Any, comparison: ProfileComparison, rows: Sequence[ComparisonRow], ppp: float) -> Any:
    """Draw the PPP of each layer in the order of execution, a panel per pass."""
    names = comparison.prediction.names
    positions = {name: number for number, name in enumerate(names, 1)}
    kinds = dict(zip(names, comparison.prediction.kinds))
    total_s = sum(row.measured_s or 0.0 for row in rows)
    dots: list[dict[str, Any]] = [
        {
            "name": row.name,
            "pass": row.part,
            "place": positions[row.name],
            "kind": kind_of_layer(kinds[row.name]),
            "group": group_of(kinds[row.name]),
            "ppp": row.ppp,
            "peak": row.share_of_peak,
            "took": format_si(row.measured_s, "s", 3),
            "weight": (row.measured_s or 0.0) / total_s,
        }
        for row in rows
    ]
    axis_end = max(row["ppp"] for row in dots) * 1.05
    colour = group_colour([kinds[row.name] for row in rows], "kind of layer")
    tooltip = [
        alt.Tooltip("name:N"),
        alt.Tooltip("kind:N"),
        alt.Tooltip("took:N", title="measured"),
        alt.Tooltip("ppp:Q", format=".2f", title="PPP"),
        alt.Tooltip("peak:Q", format=".1%", title="of peak FLOP/s"),
    ]
    parts = [part for part in MEASURED_PASSES if any(row["pass"] == part for row in dots)]
    panels = []
    for part in parts:
        data = inline_data([row for row in dots if row["pass"] == part])
        marks = alt.Chart(data).mark_point(filled=True, opacity=0.8)
        marks = marks.encode(
            x=alt.X(
                "place:Q",
                title="layers in the order of execution" if part == parts[-1] else None,
                scale=alt.Scale(domain=[0.5, len(positions) + 0.5], nice=False),
                axis=alt.Axis(format="d", tickMinStep=1),
            ),
            y=alt.Y(
                "ppp:Q",
                title=f"PPP, {part}",
                scale=alt.Scale(domain=[0, axis_end]),
                axis=alt.Axis(format=NUMBER_FORMAT, tickCount=4),
            ),
            color=colour,
            size=alt.Size(
                "weight:Q",
                title="share of time",
                scale=alt.Scale(range=[15, 250]),
                legend=alt.Legend(format=".1%", tickCount=3),
            ),
            tooltip=tooltip,
        )
        panel = alt.layer(*_ppp_line(alt, ppp, "y"), marks)
        panels.append(panel.properties(width=2 * _PANEL_WIDTH + 16, height=120))
    return alt.vconcat(*panels, spacing=8)


def _row_name(row: ComparisonRow) -> str:
    return row.part if row.name == row.part else f"{row.part}: {row.name.replace('_', ' ')}"


def _ppp_line(alt: Any, ppp: float, channel: str) -> list[Any]:
    """Return the layers of a line at the PPP, labelled with its value."""
    label = alt.Text("label:N")
    if channel == "x":
        data = alt.Chart(inline_data([{"share": ppp, "label": f"PPP {ppp:.3g}"}]))
        x = alt.X("share:Q")
        text = data.mark_text(align="left", dx=4, dy=-6, fontSize=10).encode(x=x, y=alt.YValue(0), text=label)
        return [data.mark_rule(strokeWidth=1.5).encode(x=x), text]
    data = alt.Chart(inline_data([{"ppp": ppp, "label": f"PPP {ppp:.3g}"}]))
    y = alt.Y("ppp:Q")
    text = data.mark_text(align="right", dy=-6, fontSize=10).encode(y=y, x=alt.XValue("width"), text=label)
    return [data.mark_rule(strokeWidth=1.5).encode(y=y), text]

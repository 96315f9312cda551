"""Charts of several predictions: one point per device with its interval, or curves over the batch size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from ...calibration.ratios import AnyPrediction, speedup
from ...distributed.pictures import PictureScaleRow, PictureScaling
from ...errors import BadValue
from ...sweeps.comparison import Comparison, are_steps
from ...text import format_plural
from ...units import format_si
from .marks import (
    BOUNDS_LEGEND,
    SERIES_AT_MOST,
    assign_colours_and_shapes,
    conditional_value,
    hollow_encoding,
    left_out_lines,
    scale_of,
    title_of_axis,
)
from .render import altair, inline_data, time_unit
from .side_by_side import side_by_side_chart

DrawnPrediction = AnyPrediction | PictureScaleRow
_Drawn = TypeVar("_Drawn", AnyPrediction, DrawnPrediction)

ROWS_AT_MOST = 60
"""Maximum number of predictions in a chart; more do not fit on a screen."""

_MAX_TITLE_LENGTH = 80

_SETTINGS = ("network", "precision", "phase", "batch_size", "devices")

_DRAWN_OPTIONS = {"network", "gpu", "precision", "phase", "batch_size", "workers"}
"""Options that tell the points of a device apart; further ones are in the names of rows."""


def devices_chart(predictions: Comparison | AnyPrediction | PictureScaling, order: Sequence[str] = ()) -> Any:
    """Draw each prediction as a point with its 90% interval, a panel per network.

    A pipeline on several numbers of devices has a point for each number. The axis is the time of a step or batch, or
    samples per second if the batch sizes differ. The order of devices determines their colours; by default it is that
    in `predictions`. Raise BadValue if there are more than `ROWS_AT_MOST` predictions.
    """
    comparison = predictions if isinstance(predictions, Comparison) else Comparison("predict", [predictions])
    compared = set(comparison.settings[0]) if comparison.settings else set()
    has_steps = are_steps([answer for answer in comparison.answers if not isinstance(answer, PictureScaling)])
    if not has_steps or not compared <= _DRAWN_OPTIONS:
        return side_by_side_chart(comparison, "Answers side by side", "time")
    unique: dict[Any, DrawnPrediction] = {}  # one of a board's GPUs may have been requested in addition to the board
    for answer in comparison.answers:
        for prediction in answer.found if isinstance(answer, PictureScaling) else (answer,):
            key = (prediction.device.id, *(getattr(prediction, name) for name in _SETTINGS))
            unique[key] = prediction
    shown, too_large_lines = _without_too_large(list(unique.values()))
    if len(shown) > ROWS_AT_MOST:
        raise BadValue(f"a chart shows at most {ROWS_AT_MOST} predictions (got {len(shown)}): select fewer")
    alt = altair()
    shows_rates = len({prediction.batch_size for prediction in shown}) > 1
    varying = _varying_settings(shown)
    if shows_rates:
        factor, title = 1.0, "samples per second"
    else:
        factor, unit = time_unit(max(prediction.time_s for prediction in shown))
        title = f"time of a {shown[0].time_of} ({unit})"
    rows = [_device_row(prediction, varying, shows_rates, factor) for prediction in shown]
    numbers = [row[name] for row in rows for name in ("value", "low", "high") if row[name]]
    scale, axis = scale_of(numbers, (1.3, 1.2))
    title = title_of_axis(title, scale)
    names = list(dict.fromkeys(row["gpu"] for row in rows))
    colours, shapes = assign_colours_and_shapes(names, order)
    colour = alt.Color("gpu:N", legend=None, scale=alt.Scale(domain=names, range=colours))
    shape = alt.Shape("gpu:N", legend=None, scale=alt.Scale(domain=names, range=shapes))
    tooltip = [
        alt.Tooltip("gpu:N", title="device"),
        alt.Tooltip("label:N", title="time"),
        alt.Tooltip("fits:N"),
        alt.Tooltip("value:Q", format=".4~r", title=title),
        alt.Tooltip("low:Q", format=".4~r", title="from, at 90%"),
        alt.Tooltip("high:Q", format=".4~r", title="to"),
    ]
    panels = []
    for network in dict.fromkeys(row["network"] for row in rows):
        panel_rows = [row for row in rows if row["network"] == network]
        base = alt.Chart(inline_data(panel_rows)).encode(
            y=alt.Y("configuration:N", sort=[row["configuration"] for row in panel_rows], title=None)
        )
        x = alt.X("value:Q", title=title, scale=scale, axis=axis)
        x_low = alt.X("low:Q", title=title, scale=scale, axis=axis)
        spread = base.mark_rule(strokeWidth=3, opacity=0.4).encode(x=x_low, x2=alt.X2("high:Q"), color=colour)
        dots = base.mark_point(filled=True, size=70, opacity=1).encode(
            x=x, color=colour, shape=shape, tooltip=tooltip, **hollow_encoding(colour)
        )
        text = base.mark_text(align="center", dy=-9, fontSize=9).encode(x=x, text=alt.Text("label:N"))
        head = alt.Title(network, fontSize=12, frame="group") if "network" in varying else ""
        panels.append(alt.layer(spread, dots, text).properties(width=460, height={"step": 26}, title=head))
    lines = [*_devices_subtitle(shown, rows), *too_large_lines, *left_out_lines(comparison.left_out)]
    return alt.vconcat(*panels, spacing=10).properties(title=alt.Title(_devices_title(shown), subtitle=lines))


_NAMED_AT_MOST = 4
"""Predictions that a subtitle names."""


def _without_too_large(predictions: Sequence[_Drawn]) -> tuple[list[_Drawn], list[str]]:
    """Return the predictions that fit into memory, and the lines that name the others; all of them if none fits.

    Tables have no times of what does not fit beside what does.
    """
    fitting = [prediction for prediction in predictions if prediction.fits is not False]
    if not fitting or len(fitting) == len(predictions):
        return list(predictions), []
    varying = _varying_settings(predictions)
    too_large = [prediction for prediction in predictions if prediction.fits is False]
    names = [_describe_settings(prediction, varying) for prediction in too_large[:_NAMED_AT_MOST]]
    more = f" and {len(too_large) - len(names)} more" if len(too_large) > len(names) else ""
    return fitting, [f"not drawn, as the memory is too small: {'; '.join(names)}{more}"]


def _varying_settings(predictions: Sequence[DrawnPrediction]) -> list[str]:
    """Return the settings that differ between predictions."""
    return [name for name in _SETTINGS if len({getattr(prediction, name) for prediction in predictions}) > 1]


def _describe_settings(prediction: DrawnPrediction, varying: Sequence[str]) -> str:
    """Return the device of a prediction with the settings that differ: ``h100-sxm, batch 8``."""
    return ", ".join([prediction.device.id, *(_format_setting(prediction, name) for name in varying)])


def _device_row(
    prediction: DrawnPrediction, varying: Sequence[str], shows_rates: bool, factor: float
) -> dict[str, Any]:
    """Return the row of a prediction: its label, its value and interval, and how it is drawn."""
    low_s, high_s = prediction.interval or (None, None)
    if shows_rates:
        value = prediction.batch_size / prediction.time_s if prediction.time_s else prediction.time_s
        low = prediction.batch_size / high_s if high_s else high_s
        high = prediction.batch_size / low_s if low_s else low_s
    else:
        value = prediction.time_s * factor
        low = low_s * factor if low_s else low_s
        high = high_s * factor if high_s else high_s
    fits = prediction.fits is not False
    label = format_si(prediction.time_s, "s", 3)
    if not prediction.is_forecast:
        label = f"at least {label}"
    if not fits:
        label += ": does not fit"
    return {
        "network": prediction.network,
        "gpu": prediction.device.id,
        "configuration": _describe_settings(prediction, [name for name in varying if name != "network"]),
        "value": value,
        "low": low,
        "high": high,
        "bound": not prediction.is_forecast,
        "fits": "yes" if fits else "no",
        "label": label,
    }


def _format_setting(prediction: DrawnPrediction, name: str) -> str:
    if name == "devices":
        return format_plural(prediction.devices, "device")
    return f"batch {prediction.batch_size}" if name == "batch_size" else str(getattr(prediction, name))


def _devices_title(predictions: Sequence[DrawnPrediction]) -> str:
    """Return the fastest device of each network, together with devices that are not significantly slower."""
    devices = {prediction.device.id for prediction in predictions}
    if len(devices) == 1:
        title = f"{', '.join(dict.fromkeys(prediction.network for prediction in predictions))} on {devices.pop()}"
        if len(predictions) == 1:
            prefix = "" if predictions[0].is_forecast else "at least "
            title += f", {prefix}{format_si(predictions[0].time_s, 's', 3)}"
        return title
    winners = _fastest_devices(predictions)
    if not winners:
        has_forecasts = any(prediction.is_forecast for prediction in predictions)
        return "Does not fit into the memory of any device" if has_forecasts else "Bounds from the data sheets"
    if len(winners) == 1:
        return f"{next(iter(winners))} is the fastest"
    title = "Fastest: " + "; ".join(f"{names} for {' and '.join(networks)}" for names, networks in winners.items())
    return title if len(title) <= _MAX_TITLE_LENGTH else "The fastest device depends on the network"


def _fastest_devices(predictions: Sequence[DrawnPrediction]) -> dict[str, list[str]]:
    """Return the names of the fastest devices, with the networks for which they are the fastest."""
    candidates = []
    for prediction in predictions:
        if prediction.is_forecast and prediction.fits is not False:
            candidates.append(prediction)
    winners: dict[str, list[str]] = {}
    for network in dict.fromkeys(prediction.network for prediction in candidates):
        best_of_device = {}
        for prediction in sorted((c for c in candidates if c.network == network), key=_throughput):
            best_of_device[prediction.device.id] = prediction  # the last one of a device is its fastest
        *others, first = sorted(best_of_device.values(), key=_throughput)
        ties = [other.device.id for other in reversed(others) if not _is_faster(first, other)]
        names = " or ".join([first.device.id, *ties][:3])
        if len(ties) > 2:
            names += " or others"
        winners.setdefault(names, []).append(network)
    return winners


def _throughput(prediction: DrawnPrediction) -> float:
    return prediction.throughput_per_s or 0.0


def _is_faster(prediction: DrawnPrediction, other: DrawnPrediction) -> bool:
    """Return whether the interval of the ratio of throughputs lies above 1, or the two intervals are apart.

    The latter decides where it is unknown which errors two predictions share.
    """
    ratio = None
    if not (isinstance(prediction, PictureScaleRow) or isinstance(other, PictureScaleRow)):
        ratio = speedup(prediction, other)
    interval = ratio.interval() if ratio else None
    if interval:
        return interval[0] > 1
    if prediction.interval is None or other.interval is None:
        return _throughput(prediction) > _throughput(other)
    fastest_other = _throughput(other) * other.time_s / other.interval[0]
    return _throughput(prediction) * prediction.time_s / prediction.interval[1] > fastest_other


def _devices_subtitle(predictions: Sequence[DrawnPrediction], rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the common settings, and the legend of intervals and bounds."""
    common = []
    for name in _SETTINGS:
        if name != "devices" and len({getattr(prediction, name) for prediction in predictions}) == 1:
            common.append(_format_setting(predictions[0], name))
    lines = [", ".join(common)] if common else []
    if any(row["low"] for row in rows):
        lines.append("lines through points: 90% intervals")
    if any(row["bound"] for row in rows):
        lines.append(BOUNDS_LEGEND)
    return lines


def batch_chart(predictions: Sequence[AnyPrediction], order: Sequence[str] = (), left_out: Sequence[str] = ()) -> Any:
    """Draw throughput and time per batch over the batch size, a curve per device with its 90% interval.

    The order of devices determines their colours; by default it is that in `predictions`. `left_out` are reasons why
    other predictions are not drawn. Raise BadValue if there is no prediction, or more than `SERIES_AT_MOST` curves.
    """
    alt = altair()
    predictions, too_large_lines = _without_too_large(predictions)
    factor, unit = time_unit(max((prediction.time_s for prediction in predictions), default=0.0))
    rows: list[dict[str, Any]] = []
    devices: dict[str, str] = {}
    has_several_precisions = len({prediction.precision for prediction in predictions}) > 1
    for prediction in predictions:
        series = prediction.device.id
        if has_several_precisions:
            series += f" {prediction.precision}"
        if not prediction.is_forecast:
            series += " (bound)"
        devices[series] = series if has_several_precisions else prediction.device.id
        rows.append(_batch_row(prediction, series, factor))
    data, names = inline_data(rows), list(devices)
    if len(names) > SERIES_AT_MOST:
        raise BadValue(f"a chart shows at most {SERIES_AT_MOST} curves (got {len(names)}): select fewer devices")
    colours, shapes = assign_colours_and_shapes(list(devices.values()), order)
    colour = alt.Color("series:N", title=None, scale=alt.Scale(domain=names, range=colours))
    shape = alt.Shape("series:N", title=None, scale=alt.Scale(domain=names, range=shapes))
    panels = [
        _batch_panel(alt, data, rows, colour, shape, "rate", "samples per second"),
        _batch_panel(alt, data, rows, colour, shape, "time", f"time per batch ({unit})"),
    ]
    line = f"{_common_settings(predictions)}; time model {', '.join(sorted({p.model.name for p in predictions}))}"
    if any(prediction.interval for prediction in predictions):
        line += "; bands: 90% intervals"
    lines = [line]
    if any(row["bound"] for row in rows):
        lines.append(BOUNDS_LEGEND)
    lines += [*too_large_lines, *left_out_lines(left_out)]
    return alt.hconcat(*panels).properties(title=alt.Title(_batch_title(predictions), subtitle=lines))


def _batch_row(prediction: AnyPrediction, series: str, factor: float) -> dict[str, Any]:
    """Return time and throughput of a prediction with the ends of their intervals (None without an interval)."""
    low_s, high_s = prediction.interval or (None, None)
    batch_size = prediction.batch_size
    return {
        "series": series,
        "batch": batch_size,
        "bound": not prediction.is_forecast,
        "time": prediction.time_s * factor,
        "time_low": low_s * factor if low_s else low_s,
        "time_high": high_s * factor if high_s else high_s,
        "rate": prediction.throughput_per_s,
        "rate_low": batch_size / high_s if high_s else high_s,
        "rate_high": batch_size / low_s if low_s else low_s,
    }


def _batch_title(predictions: Sequence[AnyPrediction]) -> str:
    """Return the device with the highest throughput and its batch size; forecasts precede bounds."""
    best = max(predictions, key=lambda prediction: (prediction.is_forecast, _throughput(prediction)))
    prefix = "" if best.is_forecast else "at most "
    rate = f"{best.throughput_per_s:,.0f} samples/s at batch {best.batch_size}"
    return f"{best.device.id} has the highest throughput: {prefix}{rate}"


def _common_settings(predictions: Sequence[AnyPrediction]) -> str:
    """Return the settings shared by all predictions."""
    common = []
    for name in ("network", "precision", "phase"):
        values = {getattr(prediction, name) for prediction in predictions}
        if len(values) == 1:
            common.append(values.pop())
    return ", ".join(common)


def _batch_panel(
    alt: Any, data: Any, rows: Sequence[dict[str, Any]], colour: Any, shape: Any, key: str, title: str
) -> Any:
    """Draw a curve per series, with a band between the fields ``{key}_low`` and ``{key}_high``."""
    batch_sizes = sorted({row["batch"] for row in rows})
    ticks = batch_sizes if len(batch_sizes) <= 9 else [n for n in batch_sizes if n & (n - 1) == 0]
    x = alt.X(
        "batch:Q",
        title="batch size",
        scale=alt.Scale(type="log", base=2, nice=False),
        axis=alt.Axis(format="d", values=ticks),
    )
    base = alt.Chart(data).encode(x=x)
    numbers = [row[name] for row in rows for name in (key, f"{key}_low", f"{key}_high") if row[name]]
    scale, axis = scale_of(numbers, (1.1, 1.1))
    title = title_of_axis(title, scale)
    y = alt.Y(f"{key}:Q", title=title, scale=scale, axis=axis)
    y_low = alt.Y(f"{key}_low:Q", title=title, scale=scale, axis=axis)
    area = base.mark_area(opacity=0.18) if len(batch_sizes) > 1 else base.mark_rule(opacity=0.4, strokeWidth=3)
    band = area.encode(y=y_low, y2=alt.Y2(f"{key}_high:Q"), color=colour)
    dash = conditional_value(alt.StrokeDashValue, "datum.bound", [5, 4], [1, 0])
    line = base.mark_line().encode(y=y, color=colour, strokeDash=dash, detail=alt.Detail("bound:N"))
    tooltip = [
        alt.Tooltip("series:N", title="device"),
        alt.Tooltip("batch:Q", title="batch size"),
        alt.Tooltip(f"{key}:Q", format=".4~r", title=title),
        alt.Tooltip(f"{key}_low:Q", format=".4~r", title="from, at 90%"),
        alt.Tooltip(f"{key}_high:Q", format=".4~r", title="to"),
    ]
    dots = base.mark_point(filled=True, size=45, opacity=1).encode(
        y=y, color=colour, shape=shape, tooltip=tooltip, **hollow_encoding(colour)
    )
    return alt.layer(band, line, dots).properties(width=330, height=260)

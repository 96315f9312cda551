"""The report of a prediction: time with its uncertainty, bounds, possible improvements and memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...architectures.pipelines.counts import count_pipeline
from ...calibration.alternatives import Alternative, Alternatives
from ...text import format_plural
from ...timing import Prediction
from ...timing.pipeline_prediction import PipelinePrediction
from ...timing.terms import TIME_LIMITS, seconds_by_limit
from ...units import format_interval, format_number, format_si
from ..answers import describe_largest, energy_figures, memory_fact, memory_tables
from ..charts.layers import PASS_NAMES, kind_chart, layer_chart, pass_chart, prediction_title
from ..charts.roofline import prediction_roofline
from ..columns import find_column, select_columns
from ..document import (
    Chart,
    Document,
    KeyFigure,
    ReportProvenance,
    Table,
    draw_chart,
)
from ..pipelines import counts_page, pipeline_headline, pipeline_page
from ..predictions import layer_table, prediction_page
from .sections import device_section, model_section, sources_section

if TYPE_CHECKING:
    from ...calibration.store import Calibration
    from ...timing.memory import MemoryFit

_PHASES = {
    "inference": "inference",
    "forward": "the forward pass of training",
    "backward": "the backward pass",
    "forward+backward": "a forward and backward pass",
    "training": "one training step",
    "prefill": "prefill",
    "decode": "decoding one token",
}

_FIGURES = {
    "prefill": ("Time to the first token", "Prompts per second"),
    "decode": ("Time per token", "Tokens per second"),
}


def prediction_report(
    prediction: Prediction,
    provenance: ReportProvenance,
    *,
    alternatives: Alternatives | None = None,  # predictions for other settings and devices
    calibration: Calibration | None = None,  # of the time model
) -> Document:
    """Return the report of a prediction for a network, with its memory."""
    alternatives = alternatives or Alternatives()
    sections = [_time_section(prediction), _roofline_section(prediction), _bounds_section(prediction, alternatives)]
    if prediction.memory is not None:
        tables = memory_tables(prediction.memory, by_part=True)
        sections.append(Document("Memory", [memory_fact(prediction.memory)], tables, name="memory"))
    sections += [
        _layers_section(prediction),
        device_section(prediction.device),
        model_section(prediction.model, calibration),
    ]
    if prediction.notes:
        sections.append(Document("Notes", notes=prediction.notes, name="notes"))
    return Document(
        title=f"{prediction.network} on {prediction.device.name}",
        question=_question(prediction),
        introduction=[_summary(prediction, calibration)],
        answers=_answers(prediction, alternatives),
        sections=[*sections, sources_section(provenance)],
        provenance=provenance,
    )


def _question(prediction: Prediction) -> str:
    """Return the question that the report answers."""
    samples = "one sample" if prediction.batch_size == 1 else f"a batch of {prediction.batch_size:,}"
    question = (
        f"How long does {_PHASES[prediction.phase]} of {prediction.network} take on one {prediction.device.name}, "
        f"in {prediction.precision}, for {samples}"
    )
    if prediction.execution != "eager":
        question += f", {prediction.execution}"
    return f"{question}?"


def _answers(prediction: Prediction, alternatives: Alternatives) -> list[KeyFigure]:
    """Return the main figures; memory comes first if the network does not fit."""
    answers = _time_figures(prediction)
    seconds = seconds_by_limit(prediction.terms, prediction.model.uses_memory)
    largest = max(seconds, key=lambda bound: seconds[bound])
    if prediction.time_s:
        share = f"{seconds[largest] / prediction.time_s:.0%} of the time"
        answers.append(KeyFigure("Main bottleneck", largest, f"{share}: {TIME_LIMITS[largest]}"))
    answers += energy_figures(prediction)
    helpful = _helpful_changes(prediction, alternatives)
    if helpful:
        gain = _format_gain(_gain(prediction, helpful[0]))
        answers.append(KeyFigure("Best improvement", helpful[0].name, f"{gain} the samples/s, on the same device"))
    if prediction.memory is not None:
        memory = _memory_figure(prediction.memory)
        if memory.is_alarm:
            answers.insert(0, memory)
        else:
            answers.append(memory)
    return answers


def _time_figures(prediction: Prediction) -> list[KeyFigure]:
    """Return time and throughput with their intervals."""
    time_name, rate_name = _figure_names(prediction)
    interval = None
    if prediction.interval:
        low, high = prediction.interval
        interval = (low, prediction.time_s, high)
    time = format_si(prediction.time_s, "s")
    figures = [KeyFigure(time_name, time, _format_time_intervals(prediction), interval)]
    throughput = prediction.throughput_per_s
    if throughput is not None:
        if prediction.interval:
            low, high = prediction.interval
            interval = (prediction.batch_size / high, throughput, prediction.batch_size / low)
        figures.append(KeyFigure(rate_name, format_number(throughput), _format_rate_intervals(prediction), interval))
    return figures


def _figure_names(prediction: Prediction) -> tuple[str, str]:
    """Return the names of time and throughput in the phase of a prediction."""
    return _FIGURES.get(prediction.phase, ("Time per batch", "Samples per second"))


def _memory_figure(fit: MemoryFit) -> KeyFigure:
    """Return the peak memory, and whether it fits."""
    usable = f"{format_si(fit.usable_bytes, 'B')} usable"
    detail = f"of {usable}" if fit.fits else f"does not fit into {usable}"
    detail += f"; {describe_largest(fit)}"
    return KeyFigure("Peak memory", format_si(fit.memory.total_bytes, "B"), detail, is_alarm=not fit.fits)


def _format_time_intervals(prediction: Prediction) -> str:
    intervals = sorted(prediction.intervals.items())
    return "; ".join(f"{format_interval(interval)} at {level}%" for level, interval in intervals)


def _format_rate_intervals(prediction: Prediction) -> str:
    texts = []
    for level, (low_s, high_s) in sorted(prediction.intervals.items()):
        low, high = prediction.batch_size / high_s, prediction.batch_size / low_s
        texts.append(f"{format_number(low)} to {format_number(high)} at {level}%")
    return "; ".join(texts)


def _summary(prediction: Prediction, calibration: Calibration | None) -> str:
    """Return a paragraph on the reliability of the prediction."""
    model = prediction.model
    if not model.is_forecast:
        text = (
            f"This is the {model.name} bound, not a forecast. Real programs take longer, by a factor that is unknown "
            "here."
        )
    elif model.ppp is not None:
        text = "The platform percent of peak was given by the user; the prediction is as accurate as this value."
    elif calibration is None or calibration.held_out_error is None:
        text = f"The parameters of the time model are {model.label or 'its own'}. The intervals give the uncertainty."
    else:
        text = (
            f"The time model was fitted to {calibration.provenance.points:,} measurements of this device. Networks "
            f"left out of the fit are predicted with {calibration.held_out_error:.1%} mean absolute error."
        )
    if _fits(prediction) is False:
        text += " The network does not fit into the device's memory; the time assumes that it did."
    return text


_TIME_AND_SHARE = select_columns("time_s", "share")


def _time_section(prediction: Prediction) -> Document:
    """Return the section on time by kind of layer and by pass."""
    page = prediction_page(prediction, top=0)
    omitted_lines = [prediction_title(prediction)]
    content: list[Chart | Table | str] = [
        draw_chart(
            "Shares of time, FLOPs and bytes by kind of layer.",
            lambda: kind_chart(prediction),
            omitted_lines=omitted_lines,
        )
    ]
    has_passes = len(prediction.terms.passes) > 1
    if has_passes:
        caption = "Time of each pass, by kind of layer."
        content.append(draw_chart(caption, lambda: pass_chart(prediction), omitted_lines=omitted_lines))
    content += [table.replace(sortable=True) for table in page.tables if table.name == "time"]
    if has_passes:
        content.append(_pass_table(prediction))
    facts = [fact for fact in page.facts if fact[0] not in ("time model", "peak memory", "at 80%")]
    return Document("Where the time goes", facts, content, name="time")


def _pass_table(prediction: Prediction) -> Table:
    """Return the time of each pass, and the overhead."""
    seconds = dict(zip(prediction.terms.passes, prediction.terms.layers_s.sum(axis=1).tolist()))
    if prediction.terms.overhead_s:
        seconds["overhead"] = prediction.terms.overhead_s
    rows = []
    if prediction.time_s:
        for name, time_s in seconds.items():
            rows.append({"pass": PASS_NAMES.get(name, name), "time_s": time_s, "share": time_s / prediction.time_s})
    return Table("Time by pass", select_columns("pass", *_TIME_AND_SHARE), rows)


def _roofline_section(prediction: Prediction) -> Document:
    caption = (
        "Each dot is a layer or kernel; larger dots take more time. The x axis is its arithmetic intensity, the y axis "
        "its attained FLOP/s. The lines are the limits set by memory bandwidth and by the arithmetic units."
    )
    chart = draw_chart(caption, lambda: prediction_roofline(prediction), omitted_lines=[prediction_title(prediction)])
    return Document("Roofline", content=[chart], name="roofline")


def _bounds_section(prediction: Prediction, alternatives: Alternatives) -> Document:
    """Return the section on bottlenecks and possible improvements."""
    seconds = seconds_by_limit(prediction.terms, prediction.model.uses_memory)
    rows = [
        {"bound": bound, "time_s": time_s, "share": time_s / prediction.time_s, "meaning": TIME_LIMITS[bound]}
        for bound, time_s in sorted(seconds.items(), key=lambda item: -item[1])
        if time_s > 0
    ]
    columns = select_columns("bound", *_TIME_AND_SHARE, "meaning")
    introduction = []
    if rows:
        largest = rows[0]
        share = f"{largest['share']:.0%} of the time"
        introduction.append(f"The main bottleneck, {share}, is {largest['bound']}: {largest['meaning']}.")
    help_text, help_tables = help_content(prediction, alternatives)
    return Document(
        "Bottlenecks and possible improvements",
        content=[Table("Bottlenecks", columns, rows), *help_tables],
        notes=[f"not compared: {text}" for text in alternatives.left_out],
        introduction=[*introduction, *help_text],
        name="bounds",
    )


def _layers_section(prediction: Prediction) -> Document:
    chart = draw_chart(
        "Time, FLOPs and bytes of each layer or kernel, in the order of execution.",
        lambda: layer_chart(prediction),
        omitted_lines=[prediction_title(prediction)],
    )
    table = layer_table(prediction, list(prediction.rows()))
    content = [chart, table.replace(sortable=True, filterable=True)]
    noun = "layer" if prediction.launched is None else "kernel"
    return Document(format_plural(len(prediction.names), noun), content=content, name="layers")


DEVICES_AT_MOST = 12
"""Maximum number of other devices that are listed."""

_MIN_GAIN = 1.02
"""Ratio of throughputs from which a change is an improvement."""


def help_content(prediction: Prediction, alternatives: Alternatives) -> tuple[list[str], list[Table | str]]:
    """Return a sentence on the best change, and tables of changes on the same device and of faster devices."""
    on_same_device = [other for other in alternatives.tried if other.change != "device"]
    on_other_devices = [other for other in alternatives.tried if other.change == "device"]
    sentences: list[str] = []
    content: list[Table | str] = []
    if on_same_device:
        title = "Changes on the same device, largest gain first"
        content.append(_alternatives_table(title, "change", prediction, on_same_device))
        sentences = ["No tested change on the same device gains more than 2%."]
    helpful = _helpful_changes(prediction, alternatives)
    if helpful:
        gain = f"{_format_gain(_gain(prediction, helpful[0]))} the samples/s"
        sentences = [f"The best tested change on the same device is {helpful[0].name}: {gain}."]
    faster = [other for other in _sort_by_gain(prediction, on_other_devices) if _gain(prediction, other) >= _MIN_GAIN]
    if faster:
        title = f"Other devices: {len(faster)} of {len(on_other_devices)} are predicted to be faster"
        if len(faster) > DEVICES_AT_MOST:
            title += f", the {DEVICES_AT_MOST} fastest"
        content.append(_alternatives_table(title, "gpu", prediction, faster[:DEVICES_AT_MOST]))
    elif on_other_devices:
        content.append(f"None of {len(on_other_devices)} other devices is predicted to be faster.")
    return sentences, content


def _helpful_changes(prediction: Prediction, alternatives: Alternatives) -> list[Alternative]:
    """Return the changes on the same device that fit into memory and gain throughput, largest gain first."""
    changes = []
    for alternative in alternatives.tried:
        if alternative.change != "device" and _fits(alternative.prediction) is not False:
            changes.append(alternative)
    return [change for change in _sort_by_gain(prediction, changes) if _gain(prediction, change) >= _MIN_GAIN]


def _fits(prediction: Prediction) -> bool | None:
    """Return whether the network fits into memory; None if unknown."""
    return None if prediction.memory is None else prediction.memory.fits


def _sort_by_gain(prediction: Prediction, alternatives: Sequence[Alternative]) -> list[Alternative]:
    return sorted(alternatives, key=lambda alternative: (-_gain(prediction, alternative), alternative.name))


def _gain(prediction: Prediction, alternative: Alternative) -> float:
    """Return the throughput of an alternative relative to the prediction."""
    return (alternative.prediction.throughput_per_s or 0.0) / (prediction.throughput_per_s or 1.0)


def _format_gain(gain: float) -> str:
    return f"{gain:.2f} times" if gain < 10 else f"{gain:,.0f} times"


def _alternatives_table(title: str, name: str, prediction: Prediction, alternatives: Sequence[Alternative]) -> Table:
    """Return a table of alternatives, largest gain first."""
    rows: list[dict[str, Any]] = []
    for alternative in _sort_by_gain(prediction, alternatives):
        other = alternative.prediction
        rows.append(
            {
                "name": alternative.name,
                "time_s": other.time_s,
                "interval": other.interval,
                "throughput_per_s": other.throughput_per_s,
                "gain": _gain(prediction, alternative),
                "rent": other.device.rent_usd_per_h,
                "fits": _fits(other),
                "model": _model_origin(other),
                "note": alternative.note or None,
            }
        )
    columns = select_columns(
        find_column(name, key="name"),
        "gain",
        "throughput_per_s",
        "time_s",
        "interval",
        "fits",
        find_column("rent_usd_per_h", key="rent"),
        "model",
        "note",
    )
    hidden = []
    if name != "gpu":
        hidden.append("rent")
    origins = {row["model"] for row in rows}
    if len(origins) == 1:
        hidden.append("model")
        title += f"; based on {origins.pop()}"
    columns = [column for column in columns if column.key not in hidden]
    return Table(f"{title} (gain: ratio of samples/s)", columns, rows).drop_empty_columns()


def _model_origin(prediction: Prediction) -> str:
    """Return a description of the data behind the time model of a prediction."""
    label = prediction.model.label
    if not label:
        return f"the {prediction.model.name} model"
    return "fits of other devices" if label.startswith("pooled") else "measurements of the device"


def pipeline_report(prediction: PipelinePrediction, provenance: ReportProvenance) -> Document:
    """Return the report of a pipeline's prediction."""
    page = pipeline_page(prediction, memory=True)
    parts, memory = page.tables
    counts = counts_page(count_pipeline(prediction.pipeline, prediction.sampling))
    denoiser = prediction.denoiser.prediction
    chart = draw_chart("Time, FLOPs and bytes of the denoiser by kind of layer.", lambda: kind_chart(denoiser))
    sections = [
        Document("Time", page.facts, [parts, chart], name="time"),
        Document("Products", content=counts.tables, name="products"),
        Document("Memory", content=[memory], name="memory"),
        device_section(prediction.device),
        model_section(prediction.model, None),
    ]
    if prediction.notes:
        sections.append(Document("Notes", notes=prediction.notes, name="notes"))
    return Document(
        title=f"{prediction.network} on {prediction.device.name}",
        question=f"How long does {prediction.network} take from text to decoded pictures?",
        introduction=[f"{pipeline_headline(prediction)}."],
        answers=_pipeline_answers(prediction),
        sections=[*sections, sources_section(provenance)],
        provenance=provenance,
    )


def _pipeline_answers(prediction: PipelinePrediction) -> list[KeyFigure]:
    """Return the main figures; memory comes first if the pipeline does not fit."""
    product = "video" if prediction.pipeline.is_video else "picture"
    interval = prediction.interval
    ends = None if interval is None else (interval[0], prediction.time_s, interval[1])
    denoiser = prediction.denoiser
    share = denoiser.time_s / prediction.time_s
    detail = f"{share:.0%} of the time: {denoiser.runs:,} runs of {format_si(denoiser.run_s, 's')}"
    memory = prediction.memory
    usable = f"of {format_si(memory.usable_bytes, 'B')} usable"
    figures = [
        KeyFigure("Time of the batch", format_si(prediction.time_s, "s"), interval=ends),
        KeyFigure(
            f"{product.capitalize()}s per hour",
            format_number(3600 * prediction.throughput_per_s),
            f"{format_si(prediction.time_per_image_s, 's')} per {product}",
        ),
        KeyFigure("Denoiser", format_si(denoiser.time_s, "s"), detail),
    ]
    fits = KeyFigure("Peak memory", format_si(memory.total_bytes, "B"), usable, is_alarm=not memory.fits)
    figures += energy_figures(prediction)
    return [*figures, fits] if memory.fits else [fits, *figures]

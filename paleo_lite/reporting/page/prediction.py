"""The report of a prediction: how long a network takes on a device, why, how sure that is, and what would help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...calibration.alternatives import Alternative, Alternatives
from ...timing import Prediction
from ...timing.models import BOUNDS, bound_seconds
from ...units import format_si, say_interval, say_number
from ..charts.layers import PASS_NAMES, kind_chart, layer_chart, pass_chart, title_of
from ..charts.roofline import prediction_roofline
from ..charts.scaling import scale_chart
from ..document import Chart, Column, Document, KeyFigure, Made, Table, drawn, say_percent, say_time, say_yes_or_no
from ..predictions import layer_table, memory_fact, memory_tables, prediction_page
from ..scale import scale_page
from .sections import all_of, device_section, model_section, sources_section

if TYPE_CHECKING:
    from ...calibration.store import Calibration
    from ...distributed.table import ScaleTable

_PHASES = {
    "inference": "inference", "forward": "the forward pass of training", "backward": "the backward pass",
    "forward+backward": "a forward and backward pass",
    "training": "one training step", "prefill": "reading a prompt", "decode": "writing a token",
}  # fmt: skip

_FIGURES = {
    "prefill": ("Time to the first token", "Prompts per second"),
    "decode": ("Time per token", "Tokens per second"),
}  # fmt: skip


def prediction_report(
    prediction: Prediction,
    made: Made,
    *,
    alternatives: Alternatives | None = None,
    scaling: ScaleTable | None = None,
    calibration: Calibration | None = None,
) -> Document:
    """The report of a prediction.

    Parameters
    ----------
    prediction : Prediction
        Of a network, with its memory.
    made : Made
        How to get it again.
    alternatives : Alternatives, optional
        What else was tried.
    scaling : ScaleTable, optional
        Training on several of the devices.
    calibration : Calibration, optional
        Which the time model's parameters are of.
    """
    alternatives = alternatives or Alternatives()
    sections = [_time(prediction), _roofline(prediction), _bounds(prediction, alternatives)]
    if prediction.memory is not None:
        tables = memory_tables(prediction.memory, by_part=True)
        sections.append(Document("Memory", [memory_fact(prediction.memory)], tables, name="memory"))
    if scaling is not None:
        sections.append(_scaling(scaling, prediction))
    sections += [
        _layers(prediction),
        device_section(prediction.device),
        model_section(prediction.model, calibration),
    ]
    if prediction.notes:
        sections.append(Document("Notes", notes=prediction.notes, name="notes"))
    return Document(
        title=f"{prediction.network} on {prediction.device.name}",
        question=_question(prediction, scaling),
        lead=[_summary(prediction, calibration)],
        answers=_answers(prediction, alternatives, scaling),
        sections=[*sections, sources_section(made)],
        made=made,
    )


def _question(prediction: Prediction, scaling: ScaleTable | None) -> str:
    samples = "one sample" if prediction.batch_size == 1 else f"a batch of {prediction.batch_size:,}"
    question = (
        f"How long does {_PHASES[prediction.phase]} of {prediction.network} take on one {prediction.device.name}, "
        f"in {prediction.precision}, for {samples}"
    )
    question += "" if prediction.execution == "eager" else f", {prediction.execution}"
    if scaling is not None:
        counts = sorted({row.workers for row in scaling.rows})
        question += f"; and on {counts[0]}" + ("" if len(counts) == 1 else f" to {counts[-1]}") + " of them together"
    return f"{question}?"


def _answers(prediction: Prediction, alternatives: Alternatives, scaling: ScaleTable | None) -> list[KeyFigure]:
    low, high = prediction.interval or (0.0, 0.0)
    span = (low, prediction.time_s, high) if prediction.interval else None
    time, per_s = _FIGURES.get(prediction.phase, ("Time per batch", "Samples per second"))
    answers = [KeyFigure(time, format_si(prediction.time_s, "s"), _spans(prediction, 1.0), span)]
    if prediction.throughput_per_s is not None:
        span = span and (prediction.batch_size / high, prediction.throughput_per_s, prediction.batch_size / low)
        rate = KeyFigure(per_s, say_number(prediction.throughput_per_s), _spans(prediction, None), span)
        answers.append(rate)
    seconds = bound_seconds(prediction.terms, prediction.model.uses_memory)
    most = max(seconds, key=lambda bound: seconds[bound])
    if prediction.time_s:
        share = f"{seconds[most] / prediction.time_s:.0%} of the time"
        answers.append(KeyFigure("What bounds it", most, f"{share}: {BOUNDS[most]}"))
    if able := _able(prediction, alternatives):
        gain = _times(_gain(prediction, able[0]))
        helped = f"{gain} the samples per second, on the same device"
        answers.append(KeyFigure("What would help most", able[0].name, helped))
    if prediction.memory is not None:
        held = prediction.memory
        usable = f"{format_si(held.usable_bytes, 'B')} that may be used"
        detail = f"of {usable}" if held.fits else f"does not fit into {usable}"
        largest = "not even one sample fits" if held.largest_batch is None else f"largest batch {held.largest_batch:,}"
        needed = KeyFigure(
            "Peak memory", format_si(held.memory.total_bytes, "B"), f"{detail}; {largest}", alarm=not held.fits
        )
        answers.insert(len(answers) if held.fits else 0, needed)  # what does not fit is said first
    if scaling is not None and scaling.rows:
        last = scaling.rows[0] if scaling.why else scaling.rows[-1]
        detail = f"{say_number(last.throughput_per_s)} {per_s.lower()}, {last.efficiency:.1%} of the ideal"
        if last.hours is not None:
            detail += f"; {say_number(last.hours)} hours" + (
                "" if last.cost is None else f", {say_number(last.cost)} USD"
            )
        answers.append(KeyFigure(f"Speed-up on {last.workers:,} workers", f"{last.speedup:.4g} ×", detail))
    return answers


def _spans(prediction: Prediction, unit: float | None) -> str:
    """The intervals in words, of the time or (without a unit) of the samples per second."""
    spans = []
    for level, (low, high) in sorted(prediction.intervals.items()):
        if unit is None:
            span = f"{say_number(prediction.batch_size / high)} to {say_number(prediction.batch_size / low)}"
        else:
            span = say_interval((low, high))
        spans.append(f"{span} at {level}%")
    return "; ".join(spans)


def _summary(prediction: Prediction, calibration: Calibration | None) -> str:
    """How sure the answer is."""
    model = prediction.model
    if not model.is_forecast:
        said = (
            f"This is the {model.name} bound, not a forecast: no real program reaches it, and how close one comes is "
        )
        said += "unknown here."
    elif model.ppp is not None:
        said = "The share of peak that the platform reaches was given, so the answer is as good as that share is."
    elif calibration is None or calibration.held_out_error is None:
        said = f"The time model's parameters are {model.label or 'its own'}. The intervals say how sure it is."
    else:
        said = f"The time model was fitted to {calibration.provenance.points:,} measurements of this device. Networks "
        said += f"left out of the fit are predicted with {calibration.held_out_error:.1%} mean absolute error."
    if _fits(prediction) is False:
        said += " It does not fit into the device's memory: the time is what it would take if it did."
    return said


def _time(prediction: Prediction) -> Document:
    page, known = prediction_page(prediction, top=0), [title_of(prediction)]
    content: list[Chart | Table | str] = [
        drawn("Shares of time, FLOPs and bytes by kind of layer.", lambda: kind_chart(prediction), known=known)
    ]
    if len(prediction.terms.passes) > 1:
        content.append(drawn("Time of each pass, by kind of layer.", lambda: pass_chart(prediction), known=known))
    content += [table.but(sortable=True) for table in page.tables if table.title.startswith("Time by")]
    if len(prediction.terms.passes) > 1:
        seconds = dict(zip(prediction.terms.passes, prediction.terms.layers_s.sum(axis=1).tolist()))
        if prediction.terms.overhead_s:
            seconds["overhead"] = prediction.terms.overhead_s
        rows = [
            {"pass": PASS_NAMES.get(part, part), "time_s": time, "share": time / prediction.time_s}
            for part, time in seconds.items()
            if prediction.time_s
        ]
        content.append(Table("Time by pass", [Column("pass", "pass", left=True), *_SECONDS_AND_SHARE], rows))
    facts = [fact for fact in page.facts if fact[0] not in ("time model", "peak memory", "at 80%")]
    return Document("Where the time goes", facts, content, name="time")


_SECONDS_AND_SHARE = [Column("time_s", "time", say_time), Column("share", "share", say_percent)]


def _roofline(prediction: Prediction) -> Document:
    caption = (
        "Each dot is a layer: to the right it computes more for every byte, further up it computes faster; the lines "
        "are the fastest that memory and arithmetic units allow. Larger dots take more of the time."
    )
    picture = drawn(caption, lambda: prediction_roofline(prediction), known=[title_of(prediction)])
    return Document("Roofline", content=[picture], name="roofline")


def _bounds(prediction: Prediction, alternatives: Alternatives) -> Document:
    seconds = bound_seconds(prediction.terms, prediction.model.uses_memory)
    rows = [
        {"bound": bound, "time_s": time, "share": time / prediction.time_s, "meaning": BOUNDS[bound]}
        for bound, time in sorted(seconds.items(), key=lambda item: -item[1])
        if time > 0
    ]
    columns = [
        Column("bound", "time goes to", left=True),
        *_SECONDS_AND_SHARE,
        Column("meaning", "that is", left=True),
    ]
    lead = (
        [f"Most of the time, {rows[0]['share']:.0%}, goes to {rows[0]['bound']}: {rows[0]['meaning']}."] if rows else []
    )
    said, content = help_content(prediction, alternatives)
    return Document(
        "What bounds it, and what would help",
        content=[Table("What bounds it", columns, rows), *content],
        notes=[f"not compared: {text}" for text in alternatives.left_out],
        lead=[*lead, *said],
        name="bounds",
    )


def _scaling(scaling: ScaleTable, prediction: Prediction) -> Document:
    page = scale_page(scaling)
    content: list[Chart | Table | str] = []
    if len(scaling.rows) > 1 and not scaling.why:
        caption = "How much faster more workers are, what a step consists of, and what it costs where prices are known."
        content.append(drawn(caption, lambda: scale_chart(scaling), known=[title_of(prediction)]))
    content += [table.but(sortable=len(table.rows) > 1) for table in page.tables]
    return Document(
        "Training on several devices" if scaling.phase == "training" else "On several devices",
        page.facts,
        content,
        [note for note in page.notes if note not in prediction.notes],
        lead=[page.title],
        name="scaling",
    )


def _layers(prediction: Prediction) -> Document:
    table = layer_table(prediction, list(prediction.rows()))
    content: list[Chart | Table | str] = [
        drawn(
            "Time, FLOPs and bytes of each layer, in the order of execution.",
            lambda: layer_chart(prediction),
            known=[title_of(prediction)],
        )
    ]
    if table is not None:
        content.append(table.but(sortable=True, filterable=True))
    return Document(all_of(len(prediction.names), "layer"), content=content, name="layers")


DEVICES_AT_MOST = 12
"""Other devices that are listed."""

_NO_MORE = 1.02  # times the throughput: less does not help


def help_content(prediction: Prediction, alternatives: Alternatives) -> tuple[list[str], list[Table | str]]:
    """A sentence on the best of them, and the tables: changes on the same device, and other devices."""
    here = [each for each in alternatives.tried if each.change != "device"]
    there = [each for each in alternatives.tried if each.change == "device"]
    said: list[str] = []
    content: list[Table | str] = []
    if here:
        content.append(_table("On the same device, most gained first", "change", prediction, here))
        said = ["Nothing that was tried on the same device gains more than 2%."]
    if able := _able(prediction, alternatives):
        gain = f"{_times(_gain(prediction, able[0]))} the samples per second"
        said = [f"Of what was tried on the same device, {able[0].name} gains most: {gain}."]
    faster = [each for each in _by_gain(prediction, there) if _gain(prediction, each) >= _NO_MORE]
    if faster:
        title = f"On another device: {len(faster)} of {len(there)} are predicted to be faster"
        if len(faster) > DEVICES_AT_MOST:
            title += f", the {DEVICES_AT_MOST} fastest of them"
        content.append(_table(title, "device", prediction, faster[:DEVICES_AT_MOST]))
    elif there:
        content.append(f"None of {len(there)} other devices is predicted to be faster.")
    return said, content


def _able(prediction: Prediction, alternatives: Alternatives) -> list[Alternative]:
    """What was tried on the same device, fits, and gains anything; what gains most first."""
    here = [each for each in alternatives.tried if each.change != "device" and _fits(each.prediction) is not False]
    return [each for each in _by_gain(prediction, here) if _gain(prediction, each) >= _NO_MORE]


def _fits(prediction: Prediction) -> bool | None:
    """Whether it fits into the device's memory; None where that was not worked out."""
    return None if prediction.memory is None else prediction.memory.fits


def _by_gain(prediction: Prediction, some: Sequence[Alternative]) -> list[Alternative]:
    return sorted(some, key=lambda each: (-_gain(prediction, each), each.name))


def _gain(prediction: Prediction, other: Alternative) -> float:
    """Samples per second relative to what was asked for."""
    return (other.prediction.throughput_per_s or 0.0) / (prediction.throughput_per_s or 1.0)


def _times(gain: float) -> str:
    return f"{gain:.2f} times" if gain < 10 else f"{gain:,.0f} times"


def _table(title: str, first: str, prediction: Prediction, some: Sequence[Alternative]) -> Table:
    rows: list[dict[str, Any]] = []
    for each in _by_gain(prediction, some):
        other = each.prediction
        rows.append({
            "name": each.name, "time_s": other.time_s, "interval": other.interval,
            "throughput_per_s": other.throughput_per_s, "gain": _gain(prediction, each),
            "rent": other.device.rent_usd_per_h, "fits": _fits(other), "model": _model(other),
            "note": each.note or None,
        })  # fmt: skip
    columns = [
        Column("name", first, left=True),
        Column("gain", "gain", lambda value: f"{value:.2f} ×"),
        Column("throughput_per_s", "samples per s", say_number),
        Column("time_s", "time per batch", say_time),
        Column("interval", "at 90%", say_interval),
        Column("fits", "fits into memory", say_yes_or_no, left=True),
        Column("rent", "rent, USD/h", "{:.2f}".format),
        Column("model", "from", left=True),
        Column("note", "mind", left=True),
    ]
    origins = {row["model"] for row in rows}
    hidden = [*([] if first == "device" else ["rent"]), *(["model"] if len(origins) == 1 else [])]
    used = [c for c in columns if c.key not in hidden and any(row[c.key] is not None for row in rows)]
    origin = f"; from {origins.pop()}" if len(origins) == 1 else ""
    return Table(f"{title}{origin} (gain: in samples per second)", used, rows)


def _model(prediction: Prediction) -> str:
    """Where a prediction's figures come from, in a few words."""
    label = prediction.model.label
    if not label:
        return f"the {prediction.model.name} model"
    return "fits of other devices" if label.startswith("pooled") else "measurements of the device"

"""The report of a pipeline for pictures or videos: time by part, the denoiser's layers, products, and memory."""

from __future__ import annotations

from ...architectures.pipelines.counts import count_pipeline
from ...timing.pipeline_prediction import PipelinePrediction
from ...units import format_number, format_si
from ..answers import energy_figures
from ..charts.layers import kind_chart
from ..document import Document, KeyFigure, ReportProvenance, draw_chart
from ..pipelines import counts_page, pipeline_headline, pipeline_page
from .sections import device_section, model_section, sources_section


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
        answers=_answers(prediction),
        sections=[*sections, sources_section(provenance)],
        provenance=provenance,
    )


def _answers(prediction: PipelinePrediction) -> list[KeyFigure]:
    """Return the main figures; memory comes first if the pipeline does not fit."""
    what = "video" if prediction.pipeline.is_video else "picture"
    interval = prediction.interval
    ends = None if interval is None else (interval[0], prediction.time_s, interval[1])
    denoiser = prediction.denoiser
    share = denoiser.time_s / prediction.time_s
    detail = f"{share:.0%} of the time: {denoiser.runs:,} runs of {format_si(denoiser.run_s, 's')}"
    memory = prediction.memory
    needed = f"of {format_si(memory.usable_bytes, 'B')} usable"
    figures = [
        KeyFigure("Time of the batch", format_si(prediction.time_s, "s"), interval=ends),
        KeyFigure(
            f"{what.capitalize()}s per hour",
            format_number(3600 * prediction.throughput_per_s),
            f"{format_si(prediction.time_per_image_s, 's')} per {what}",
        ),
        KeyFigure("Denoiser", format_si(denoiser.time_s, "s"), detail),
    ]
    fits = KeyFigure("Peak memory", format_si(memory.total_bytes, "B"), needed, is_alarm=not memory.fits)
    figures += energy_figures(prediction)
    return [*figures, fits] if memory.fits else [fits, *figures]

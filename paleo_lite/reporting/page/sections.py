"""Parts shared by the reports: the main figures, device, time model, reproduction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ...distributed.table import ScaleTable
from ...machines import Device
from ...timing import TimeModel
from ...timing.answer import Answer
from ...units import format_interval, format_number, format_si
from ..answers import cost_of_products
from ..columns import find_column, select_columns
from ..devices import device_page
from ..document import Document, KeyFigure, ReportProvenance, Table
from ..formats import format_bytes, format_time

if TYPE_CHECKING:
    from ...calibration.store import Calibration


def device_section(device: Device) -> Document:
    """Return the section with all figures of a device, their sources and disagreements between sources."""
    page = device_page(device)
    return page.replace(
        name="device",
        title=f"The device: {device.name}",
        content=[table for table in page.tables if table.rows],
        notes=[f"sources disagree: {text}" for text in page.notes],
    )


def model_section(model: TimeModel, calibration: Calibration | None) -> Document:
    """Return the section on the time model: its formula, parameters and calibration."""
    facts = [("time model", model.name), ("time of a layer", model.formula())]
    if calibration is None:
        introduction = []
        if model.label:
            facts.append(("parameters", model.label))
        else:
            introduction.append("The parameters of this model are not fitted to measurements.")
        return Document("The time model", facts, introduction=introduction, name="model")
    from ..calibrations import calibration_page

    page = calibration_page(calibration)
    date = calibration.provenance.date
    facts += page.facts
    if date:
        facts.append(("fitted", date))
    return page.replace(name="model", title="The time model and its calibration", facts=facts)


def figures_of(result: Any) -> list[KeyFigure]:
    """Return the main figures of the answer to any question; none of several answers."""
    answer = result.answering_row if isinstance(result, ScaleTable) else result
    if not isinstance(answer, Answer):
        return []
    unit = _UNITS[answer.time_of]
    figures = [KeyFigure(f"Time of a {answer.time_of}", format_time(answer.time_s), *_interval_of(answer))]
    if answer.throughput_per_s is not None and answer.tokens_per_s != answer.throughput_per_s:
        figures.append(KeyFigure("Throughput", f"{format_number(answer.throughput_per_s)} {unit}/s"))
    if answer.tokens_per_s is not None:
        figures.append(KeyFigure("Tokens", f"{format_number(answer.tokens_per_s)} per s"))
    if answer.energy_j is not None:
        figures.append(KeyFigure("Energy of the devices", format_si(answer.energy_j, "J", 3), f"per {answer.time_of}"))
    if answer.usd_per_million is not None:
        figures.append(KeyFigure("Cost", *cost_of_products(answer.usd_per_million, _PRICED[answer.time_of])))
    if answer.memory_bytes is not None:
        is_too_large = answer.fits is False
        detail = "of a device" if not is_too_large else "of a device: does not fit"
        figures.append(KeyFigure("Peak memory", format_bytes(answer.memory_bytes), detail, is_alarm=is_too_large))
    return figures


_UNITS = {"step": "samples", "batch": "samples", "token": "tokens", "request": "requests"}
"""What is counted, by what the time of an answer refers to."""

_PRICED = {"step": "sample", "batch": "sample", "token": "token", "request": "output token"}
"""What has a price, by what the time of an answer refers to."""


def _interval_of(answer: Answer) -> tuple[str, tuple[float, float, float] | None]:
    """Return the interval of the time as text, and its ends with the time between them."""
    if answer.interval is None:
        return "", None
    low_s, high_s = answer.interval
    return f"{format_interval(answer.interval)} at 90%", (low_s, answer.time_s, high_s)


def sources_section(provenance: ReportProvenance) -> Document:
    """Return the section on how to reproduce the report."""
    rows = [msgspec.structs.asdict(source) for source in provenance.sources]
    columns = select_columns("role", find_column("file", key="name"), "sha256")
    return Document(
        "Reproducing this report",
        content=[Table("Input files", columns, rows)] if rows else [],
        introduction=[
            f"Made with paleo-lite {provenance.version} on {provenance.date}. The same version, command and files "
            "give the same results."
        ],
        commands=[("This report", provenance.command), *provenance.next_commands],
        name="reproduce",
    )

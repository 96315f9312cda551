"""Sections that several reports have: the device, the time model, how to get the report again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ...hardware import Device
from ...timing import TimeModel
from ..devices import device_page
from ..sheet import Column, Sheet
from .document import Made, Section, Table

if TYPE_CHECKING:
    from ...calibration.store import Calibration


def device_section(device: Device) -> Section:
    """Every figure of a device with its source, and where sources disagree."""
    page = device_page(device)
    conflicts = [f"sources disagree: {text}" for text in page.notes]
    tables = [Table(sheet) for sheet in page.sheets if sheet.rows]
    return Section("device", f"The device: {device.name}", (), page.facts, tables, conflicts)


def model_section(model: TimeModel, calibration: Calibration | None) -> Section:
    """The time model: its formula, and what its parameters were learnt from."""
    facts = [("time model", model.name), ("each layer takes", model.formula())]
    if calibration is None:
        facts += [("parameters", model.label)] if model.label else []
        lead = [] if model.label else ["This model rests on no measurements: none of its parameters was fitted."]
        return Section("model", "The time model", lead, facts)
    from ..calibrations import calibration_page

    page = calibration_page(calibration)
    facts += list(page.facts)
    date = calibration.provenance.date
    facts += [("fitted", date)] if date else []
    return Section(
        "model",
        "The time model and its calibration",
        (),
        facts,
        [Table(sheet) for sheet in page.sheets],
        list(page.notes),
    )


def all_of(count: int, what: str) -> str:
    """``The 175 layers``, ``The one layer``."""
    return f"The one {what}" if count == 1 else f"The {count:,} {what}s"


def sources_section(made: Made) -> Section:
    """How to get the same report again."""
    rows = [msgspec.structs.asdict(source) for source in made.sources]
    return Section(
        "reproduce",
        "How to reproduce it",
        lead=[
            f"Made with paleo-lite {made.version} on {made.date}. The same version, command and files "
            "give the same figures."
        ],
        commands=[("This report", made.command), *made.further],
        content=[Table(_source_sheet(rows))] if rows else [],
    )


def _source_sheet(rows: Sequence[dict[str, Any]]) -> Sheet:
    columns = [
        Column("what", "what", left=True),
        Column("name", "file", left=True),
        Column("sha256", "SHA-256", left=True, fold=True),
    ]
    return Sheet("Files that went into it", columns, rows)

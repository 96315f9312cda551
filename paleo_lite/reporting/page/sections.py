"""Sections that several reports have: the device, the time model, how to get the report again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ...machines import Device
from ...timing import TimeModel
from ..devices import device_page
from ..document import Column, Document, Made, Table

if TYPE_CHECKING:
    from ...calibration.store import Calibration


def device_section(device: Device) -> Document:
    """Every figure of a device with its source, and where sources disagree."""
    page = device_page(device)
    return page.but(
        name="device",
        title=f"The device: {device.name}",
        content=[table for table in page.tables if table.rows],
        notes=[f"sources disagree: {text}" for text in page.notes],
    )


def model_section(model: TimeModel, calibration: Calibration | None) -> Document:
    """The time model: its formula, and what its parameters were learnt from."""
    facts = [("time model", model.name), ("each layer takes", model.formula())]
    if calibration is None:
        facts += [("parameters", model.label)] if model.label else []
        lead = [] if model.label else ["This model rests on no measurements: none of its parameters was fitted."]
        return Document("The time model", facts, lead=lead, name="model")
    from ..calibrations import calibration_page

    page = calibration_page(calibration)
    date = calibration.provenance.date
    facts += [*page.facts, *([("fitted", date)] if date else [])]
    return page.but(name="model", title="The time model and its calibration", facts=facts)


def all_of(count: int, what: str) -> str:
    """``The 175 layers``, ``The one layer``."""
    return f"The one {what}" if count == 1 else f"The {count:,} {what}s"


def sources_section(made: Made) -> Document:
    """How to get the same report again."""
    rows = [msgspec.structs.asdict(source) for source in made.sources]
    columns = [
        Column("what", "what", left=True),
        Column("name", "file", left=True),
        Column("sha256", "SHA-256", left=True, fold=True),
    ]
    return Document(
        "How to reproduce it",
        content=[Table("Files that went into it", columns, rows)] if rows else [],
        lead=[
            f"Made with paleo-lite {made.version} on {made.date}. The same version, command and files "
            "give the same figures."
        ],
        commands=[("This report", made.command), *made.further],
        name="reproduce",
    )

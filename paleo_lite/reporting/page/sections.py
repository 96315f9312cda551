"""Sections shared by the reports: device, time model, reproduction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ...machines import Device
from ...timing import TimeModel
from ..devices import device_page
from ..document import Column, Document, ReportProvenance, Table

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


def sources_section(provenance: ReportProvenance) -> Document:
    """Return the section on how to reproduce the report."""
    rows = [msgspec.structs.asdict(source) for source in provenance.sources]
    columns = [
        Column("role", "role", left=True),
        Column("name", "file", left=True),
        Column("sha256", "SHA-256", left=True, wrap=True),
    ]
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

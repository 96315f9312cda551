"""Notes of an answer on its calibration from result files: what informs it, what does not, and why."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from .power_causes import KIND as POWER
from .power_causes import power_notes

if TYPE_CHECKING:
    from ..distributed.links import Topology
    from ..machines import Device
    from .evidence_file import EvidenceCalibration


def notes_on_calibration(
    evidence: EvidenceCalibration,
    command: str,
    device: Device,  # with its learned power
    network: str,
    used: Collection[str],  # kinds of figures that inform the answer, apart from power and links
    topology: Topology | None = None,  # with its learned links; None for one device
    *,
    learns_links: bool = True,  # whether the command learns from collectives at all
) -> tuple[str, ...]:
    """Return what measured watts and collectives calibrate, and which figures the answer does not use, and why."""
    from ..distributed.link_causes import KIND as LINKS
    from ..distributed.link_causes import link_notes, why_links_are_unused

    notes_of_power = power_notes(device, network, evidence)
    notes_of_links = () if topology is None else link_notes(topology, device, evidence)
    informing = {*used}
    informing |= {POWER} if notes_of_power else set()
    informing |= {LINKS} if notes_of_links else set()
    reasons = {POWER: f"they have nothing in common with {device.name}"}
    if learns_links:
        reasons[LINKS] = why_links_are_unused(topology, evidence)
    return (*notes_of_links, *notes_of_power, *evidence.notes_on_unused(informing, command, reasons))

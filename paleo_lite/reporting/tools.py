"""Result and document of measuring with public tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from ..calibration.evidence_file import EvidenceCalibration
from ..measurement.tools import DONE
from ..result import Result
from .columns import select_columns
from .document import Document, Table
from .evidence import evidence_page


class ToolReport(Result, msgspec.Struct, frozen=True, eq=False):
    """What public benchmarks measured, and what was learned from it.

    Attributes
    ----------
    commands : list of tuple of str
        Tool, command and outcome of each command.
    calibration : EvidenceCalibration or None
        What the result files say; None if no command ran.
    notes : list of str
        Why nothing was learned.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.tools:tools_page"

    commands: Sequence[tuple[str, str, str]]
    calibration: EvidenceCalibration | None
    notes: Sequence[str]

    @property
    def rows(self) -> list[dict[str, str]]:
        """Return the commands with their outcomes."""
        return [dict(zip(("tool", "command", "outcome"), row)) for row in self.commands]

    @property
    def measured(self) -> int:
        """Number of commands that measured something."""
        return sum(outcome == DONE for _, _, outcome in self.commands)

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON."""
        calibration = None if self.calibration is None else self.calibration.to_dict()
        return {"commands": self.rows, "calibration": calibration, "notes": list(self.notes)}


def tools_page(report: ToolReport) -> Document:
    """Return the document: the commands with their outcomes, then what was learned."""
    rows = report.rows
    measured = report.measured
    table = Table("Commands", select_columns("tool", "outcome", "command"), rows)
    tables, notes = [table], list(report.notes)
    if report.calibration is not None:
        evidence = evidence_page(report.calibration)
        tables += evidence.tables
        notes += evidence.notes
    if measured < len(rows):
        notes.append(
            "run the commands that did not run where the tools are, and calibrate from their files: `paleo-lite "
            "calibrate FILE... -o mine.toml`"
        )
    return Document(f"{measured} of {len(rows)} commands measured", (), tables, notes, table)

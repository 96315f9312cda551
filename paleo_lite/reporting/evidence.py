"""Documents of calibrations from result files of benchmarks."""

from __future__ import annotations

import msgspec

from ..calibration.evidence_file import EvidenceCalibration, FigureAccuracy
from .document import Column, Document, Table, format_percent

FIGURES = {
    "tpot_s": "time per token",
    "ttft_s": "time to first token",
    "token_s": "token of the answer",
    "prompt_s": "prompt",
}
"""Names of the figures of evidence."""


def evidence_page(calibration: EvidenceCalibration) -> Document:
    """Return what measured figures taught: errors before and after, what moved, and what to measure next."""
    accuracy = calibration.accuracy()
    tables = [_accuracy_table(accuracy), _moved_table(calibration)]
    if calibration.suggested:
        tables.append(_suggested_table(calibration))
    facts = [
        ("devices", calibration.device),
        ("formats", calibration.precision),
        ("files", ", ".join(text.partition(" sha256 ")[0] for text in calibration.provenance.inputs)),
    ]
    notes = [*calibration.warnings(), *calibration.notes]
    if any(one.rows == 1 for one in accuracy):
        notes.append("a single row has no other rows that could forecast it: its error does not change")
    return Document(f"Calibration by {calibration.label}", facts, tables, notes, tables[0])


def _accuracy_table(accuracy: list[FigureAccuracy]) -> Table:
    def percent(value: float) -> str:
        return f"{value:.0%}"

    rows = [{**msgspec.to_builtins(one), "figure": FIGURES[one.figure]} for one in accuracy]
    return Table(
        "Errors of these rows, as shipped and with each row left out",
        [
            Column("kind", "kind", left=True),
            Column("figure", "figure", left=True),
            Column("rows", "rows"),
            Column("before", "error\nas shipped", format_percent),
            Column("after", "error\nafter", format_percent),
            Column("inside_before", "within 90%\nas shipped", percent),
            Column("inside_after", "within 90%\nafter", percent),
            Column("ends_before", "ratio of ends\nas shipped", "{:.2f}".format),
            Column("ends_after", "ratio of ends\nafter", "{:.2f}".format),
        ],
        rows,
    )


def _moved_table(calibration: EvidenceCalibration) -> Table:
    return Table(
        "What moved",
        [
            Column("situation", "situation", left=True),
            Column("cause", "seconds of", left=True),
            Column("factor", "times", "{:.2f}".format),
            Column("low", "from", "{:.2f}".format),
            Column("high", "to", "{:.2f}".format),
            Column("deviations", "deviations", "{:+.1f}".format),
        ],
        [msgspec.to_builtins(one) for one in calibration.moved()],
    )


def _suggested_table(calibration: EvidenceCalibration) -> Table:
    return Table(
        "What to measure next",
        [
            Column("situation", "measurement", left=True),
            Column("ends_before", "ratio of ends\nbefore", "{:.2f}".format),
            Column("ends_after", "ratio of ends\nafter", "{:.2f}".format),
        ],
        [msgspec.to_builtins(one) for one in calibration.suggested],
    )

"""Documents of calibrations from result files of benchmarks."""

from __future__ import annotations

import msgspec

from ..calibration.evidence_file import EvidenceCalibration, FigureAccuracy
from ..calibration.posterior import KINDS
from .columns import find_column, select_columns
from .document import Document, Table

FIGURES = {
    "tpot_s": "time per token",
    "ttft_s": "time to first token",
    "token_s": "token of the answer",
    "prompt_s": "prompt",
    "step_s": "step",
    "picture_s": "batch or denoising step",
    "collective_s": "collective",
    "power_w": "average power",
}
"""Names of the figures of evidence."""


def evidence_page(calibration: EvidenceCalibration) -> Document:
    """Return what was learned from measured figures: errors before and after, what moved, and what to measure next."""
    accuracy = calibration.accuracy()
    tables = [_accuracy_table(accuracy), _moved_table(calibration)]
    if calibration.suggested:
        tables.append(_suggested_table(calibration))
    facts = [
        ("devices", calibration.device),
        *((("formats", calibration.precision),) if calibration.precision else ()),
        ("files", ", ".join(text.partition(" sha256 ")[0] for text in calibration.provenance.inputs)),
    ]
    notes = [*calibration.warnings(), *calibration.notes]
    single_runs = [KINDS[kind] for kind in calibration.kinds if len(calibration.posterior(kind).runs()) == 1]
    if single_runs:
        notes.append(
            f"there is a single run of {' and '.join(single_runs)}: without a second one to forecast it from, its "
            "errors and intervals stay as they were"
        )
    return Document(f"Calibration by {calibration.label}", facts, tables, notes, tables[0])


def _accuracy_table(accuracy: list[FigureAccuracy]) -> Table:
    rows = [{**msgspec.to_builtins(row), "figure": FIGURES[row.figure]} for row in accuracy]
    columns = select_columns(
        "kind",
        "figure",
        "rows",
        find_column("error_before", key="before"),
        find_column("error_after", key="after"),
        "inside_before",
        "inside_after",
        "ends_before",
        "ends_after",
    )
    return Table("Errors of these rows, as shipped and with each run left out", columns, rows)


def _moved_table(calibration: EvidenceCalibration) -> Table:
    columns = select_columns(
        "situation",
        find_column("moved_cause", key="cause"),
        find_column("cause_factor", key="factor"),
        "low",
        "high",
        "deviations",
    )
    return Table("What moved", columns, [msgspec.to_builtins(cause) for cause in calibration.moved()])


def _suggested_table(calibration: EvidenceCalibration) -> Table:
    columns = select_columns(
        find_column("situation", title="measurement"),  # what one would measure, not what was
        find_column("ends_before", title="ratio of ends\nbefore"),  # before the measurement, not as shipped
        "ends_after",
    )
    return Table(
        "What to measure next", columns, [msgspec.to_builtins(suggestion) for suggestion in calibration.suggested]
    )

"""Errors of published steps of reinforcement learning, with networks, devices or releases held out, and by phase."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from paleo_lite.api.reinforcement import predict_rl
from paleo_lite.calibration.validate import sharpness
from paleo_lite.errors import PaleoError
from paleo_lite.files import write_atomically
from paleo_lite.reinforcement.constants import FILE, RlConstants, rl_constants
from paleo_lite.reinforcement.step import PHASES, RlStep
from paleo_lite.reporting.document import Column, Document, Table, format_percent_rounded

from ..columns import error_columns
from .fit import Pieces, hold_out, pieces_of, with_fit
from .published import Row, nemo_rows, phase_rows

NOTHING = "nothing"
"""What is held out where the constants are judged on what they are fitted to."""

NOT_FITTED = "the source"
"""What is held out where nothing is fitted to a source."""

WORTH_ORDERING = 1.2
"""Ratio of two measured steps of a network from which the forecast should order them rightly."""


class RlErrors(msgspec.Struct, frozen=True):
    """Errors of the seconds of steps, or of one phase."""

    held_out: str  # what the constants do not know
    source: str  # whose measurements are judged
    phase: str  # "step", or a phase
    points: int
    mape: float  # mean and median absolute relative error, and median relative error
    median: float
    bias: float
    coverage_90: float | None = None  # share of the steps inside their 90% interval; None of phases
    sharpness_90: float | None = None  # median ratio between the ends of the interval
    ordered: float | None = None  # share of the pairs of a network that are ordered rightly


class Judged(NamedTuple):
    """A step with its forecast."""

    row: Row
    step: RlStep


class RlValidation(NamedTuple):
    """Rows of errors, and why other measurements are left out."""

    rows: list[RlErrors]
    left_out: list[str]


def validate_rl(data: Path) -> RlValidation:
    """Return the errors of steps and phases."""
    left_out: list[str] = []
    measured = list(_pieces(nemo_rows(data), left_out))
    shipped = rl_constants()
    rows = [
        errors_of(NOTHING, _forecast([(pieces.row, shipped) for pieces in measured])),
        errors_of("network", _forecast(hold_out(measured, lambda row: row.network))),
        errors_of("device", _forecast(hold_out(measured, lambda row: row.gpu))),
        errors_of("release", _forecast(hold_out(measured, lambda row: row.version))),
    ]
    others: list[Judged] = []
    for row in phase_rows(data):
        try:
            others += _forecast([(row, shipped)])
        except PaleoError as error:
            left_out.append(f"{row.source}, {row.network} on {row.gpu}: {error}")
    for framework in sorted({judged.row.framework for judged in others}):
        of_framework = [judged for judged in others if judged.row.framework == framework]
        rows.append(errors_of(NOT_FITTED, of_framework, f"{framework}, with phases"))
        rows += [found for phase in PHASES if (found := phase_errors(phase, of_framework)) is not None]
    return RlValidation(rows, left_out)


def _pieces(rows: Iterator[Row], left_out: list[str]) -> Iterator[Pieces]:
    """Yield the pieces of steps that can be asked for."""
    for row in rows:
        try:
            yield pieces_of(row)
        except PaleoError as error:
            left_out.append(f"{row.source}, {row.network} on {row.question.workers} x {row.gpu}: {error}")


def _forecast(steps: Sequence[tuple[Row, RlConstants]]) -> list[Judged]:
    """Return forecasts under some constants."""
    return [Judged(row, predict_rl(row.question, constants).step) for row, constants in steps]


def errors_of(held_out: str, judged: Sequence[Judged], source: str = "NeMo-RL's performance summaries") -> RlErrors:
    """Return the errors of steps."""
    errors = np.array([one.step.time_s / one.row.time_s - 1 for one in judged])
    inside = [one.step.interval[0] <= one.row.time_s <= one.step.interval[1] for one in judged]
    return RlErrors(
        held_out,
        source,
        "step",
        len(judged),
        float(np.abs(errors).mean()),
        float(np.median(np.abs(errors))),
        float(np.median(errors)),
        float(np.mean(inside)),
        sharpness(*zip(*(one.step.interval for one in judged))),
        ordered_share(judged),
    )


def ordered_share(judged: Sequence[Judged]) -> float | None:
    """Return the share of the pairs of a network, of clearly different times, that are ordered rightly."""
    right = []
    for one, other in combinations(judged, 2):
        if one.row.network != other.row.network:
            continue
        measured = one.row.time_s / other.row.time_s
        if max(measured, 1 / measured) > WORTH_ORDERING:
            right.append((one.step.time_s > other.step.time_s) == (measured > 1))
    return float(np.mean(right)) if right else None


def phase_errors(phase: str, judged: Sequence[Judged]) -> RlErrors | None:
    """Return the errors of a phase; None where it is not published."""
    pairs = [(one.step.phases.get(phase, 0.0), one.row.phases[phase]) for one in judged if phase in one.row.phases]
    if not pairs:
        return None
    errors = np.array([predicted / measured - 1 for predicted, measured in pairs])
    return RlErrors(
        NOT_FITTED,
        f"{judged[0].row.framework}, with phases",
        phase,
        len(pairs),
        float(np.abs(errors).mean()),
        float(np.median(np.abs(errors))),
        float(np.median(errors)),
    )


def rl_page(validation: RlValidation) -> Document:
    """Return the document of the errors."""
    columns = [
        Column("held_out", "held out", left=True),
        Column("source", "measured by", left=True, wrap=True),
        Column("phase", "phase", left=True),
        Column("points", "points"),
        *error_columns("median", "mape", "bias", "coverage_90", "sharpness_90"),
        Column("ordered", "ordered\nrightly", format_percent_rounded),
    ]
    rows = [{name: getattr(row, name) for name in RlErrors.__struct_fields__} for row in validation.rows]
    held_out = validation.rows[1]
    title = (
        f"Steps of reinforcement learning: {held_out.points} published steps with a network held out, median error "
        f"{held_out.median:.0%}, mean {held_out.mape:.0%}"
    )
    notes = [f"left out: {text}" for text in validation.left_out]
    return Document(title, [], [Table("Errors", columns, rows)], notes)


def ship_rl(data: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Fit the constants and write them; yield their name with the error of held-out networks."""
    measured = list(_pieces(nemo_rows(data), []))
    constants = with_fit(rl_constants(), measured)
    write_constants(constants, folder / FILE)
    errors = errors_of("network", _forecast(hold_out(measured, lambda row: row.network)))
    yield "reinforcement learning", f"networks held out: {errors.mape:.1%}"


def write_constants(constants: RlConstants, path: Path) -> None:
    """Write the constants."""
    lines = ["# Fitted to published steps by python -m validation ship; docs/reinforcement.md explains them."]
    for name, value in msgspec.to_builtins(constants).items():
        text = "[" + ", ".join(f'"{item}"' for item in value) + "]" if isinstance(value, (tuple, list)) else repr(value)
        lines.append(f"{name} = {text}")
    write_atomically(path, ("\n".join(lines) + "\n").encode())

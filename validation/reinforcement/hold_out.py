"""Errors of published steps of reinforcement learning, with networks, devices, releases or sources held out.

Phases that sources publish, passes of trainers and transfers of weights are judged apart, with the source held out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from paleo_lite.api.reinforcement import predict_rl, predict_trainer, predict_transfer
from paleo_lite.calibration.accuracy import interval_accuracy, relative_errors
from paleo_lite.errors import PaleoError
from paleo_lite.files import write_atomically
from paleo_lite.reinforcement.constants import FILE, RlConstants, rl_constants
from paleo_lite.reinforcement.step import PHASES, RlStep
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.reporting.formats import format_percent_rounded

from ..columns import error_columns
from .fit import RlPieces, hold_out, pieces_of, with_fit
from .fit_parts import FittedPart, parts_of
from .framework_steps import Refused, framework_rows
from .published import TRAINER, TRANSFER, RlMeasurement, nemo_rows

NOTHING = "nothing"
"""What is held out where the constants are judged on what they are fitted to."""

SOURCE = "source"
"""What is held out where the constants of trainers and transfers do not know the rows of a source."""

ALL = "all sources but the summaries"
"""Whose measurements the phases are judged by."""

BY_NETWORK = ("old_log_probs", "update", "transfer")
"""Phases whose constants are judged with networks held out, too."""

NEAR = 1.5
"""Factor within which a forecast of a part counts as near."""

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
    near: float  # share of the forecasts within a factor of `NEAR`
    coverage_90: float | None = None  # share of the steps inside their 90% interval; None of phases
    sharpness_90: float | None = None  # median ratio between the ends of the interval
    ordered: float | None = None  # share of the pairs of a network that are ordered rightly


class Judged(NamedTuple):
    """A row with its forecast."""

    row: RlMeasurement
    phases: dict[str, float]
    step: RlStep | None = None  # None of parts of a step


class RlValidation(NamedTuple):
    """Rows of errors, and why other measurements are left out."""

    rows: list[RlErrors]
    left_out: list[str]


def validate_rl(data: Path) -> RlValidation:
    """Return the errors of steps and phases."""
    refused: list[Refused] = []
    measured = list(_pieces(nemo_rows(data), refused))
    others = list(_asked(framework_rows(data), refused))
    shipped = rl_constants()
    parts = parts_of(others, shipped)
    rows = [
        errors_of(NOTHING, [forecast(pieces.row, shipped) for pieces in measured]),
        errors_of("network", _forecasts(hold_out(measured, lambda row: row.network, parts))),
        errors_of("device", _forecasts(hold_out(measured, lambda row: row.gpu, parts))),
        errors_of("release", _forecasts(hold_out(measured, lambda row: row.version, parts))),
    ]
    judged = _judge(others, measured, parts, lambda row: row.source, refused)
    steps = [case for case in judged if case.step is not None]
    for framework in sorted({case.row.framework for case in steps if case.row.time_s is not None}):
        rows.append(errors_of(SOURCE, [case for case in steps if case.row.framework == framework], framework))
    rows.append(errors_of(SOURCE, steps, ALL))
    rows += [errors for phase in PHASES if (errors := phase_errors(phase, judged)) is not None]
    for framework in sorted({case.row.framework for case in judged if "transfer" in case.row.phases}):
        of_framework = [case for case in judged if case.row.framework == framework]
        errors = phase_errors("transfer", of_framework, source=framework)
        rows += [] if errors is None else [errors]
    judged = _judge(others, measured, parts, lambda row: row.network, [])
    rows += [errors for phase in BY_NETWORK if (errors := phase_errors(phase, judged, held_out="network")) is not None]
    return RlValidation(rows, _reasons(refused))


def _judge(
    rows: Sequence[RlMeasurement],
    measured: Sequence[RlPieces],
    parts: Sequence[FittedPart],
    group: Callable[[RlMeasurement], str],
    refused: list[Refused],
) -> list[Judged]:
    """Return the forecasts of rows with constants fitted to the parts of all other groups; append what is refused."""
    judged: list[Judged] = []
    for name in dict.fromkeys(group(row) for row in rows):
        constants = with_fit(rl_constants(), measured, [part for part in parts if group(part.row) != name])
        for row in rows:
            if group(row) != name:
                continue
            try:
                judged.append(forecast(row, constants))
            except PaleoError as error:
                refused.append(Refused(row.source, str(error)))
    return judged


def _pieces(rows: Iterator[RlMeasurement], refused: list[Refused]) -> Iterator[RlPieces]:
    """Yield the pieces of steps that can be asked for."""
    for row in rows:
        try:
            yield pieces_of(row)
        except PaleoError as error:
            refused.append(Refused(row.source, f"{row.network} on {row.question.workers} x {row.gpu}: {error}"))


def _asked(rows: Iterator[RlMeasurement | Refused], refused: list[Refused]) -> Iterator[RlMeasurement]:
    """Yield the rows that can be asked for; append the others."""
    for row in rows:
        if isinstance(row, RlMeasurement):
            yield row
        else:
            refused.append(row)


def _reasons(refused: Sequence[Refused]) -> list[str]:
    """Return why rows are not asked, each reason of a source once."""
    counts = Counter(refused)
    return [f"{row.source}, {count} {'row' if count == 1 else 'rows'}: {row.reason}" for row, count in counts.items()]


def forecast(row: RlMeasurement, constants: RlConstants) -> Judged:
    """Return the forecast of a row under some constants."""
    if row.part == TRANSFER:
        if not row.has_conversion:
            constants = msgspec.structs.replace(constants, converted_s=0.0)
        return Judged(row, {"transfer": predict_transfer(row.question, constants).time_s})
    if row.part == TRAINER:
        times = predict_trainer(row.question, constants)
        return Judged(row, {"update": times.update_s, "old_log_probs": times.forward_s})
    step = predict_rl(row.question, constants).step
    return Judged(row, step.phases, step)


def _forecasts(steps: Sequence[tuple[RlMeasurement, RlConstants]]) -> list[Judged]:
    """Return the forecasts of rows, each under its own constants."""
    return [forecast(row, constants) for row, constants in steps]


def errors_of(held_out: str, judged: Sequence[Judged], source: str = "NeMo-RL's performance summaries") -> RlErrors:
    """Return the errors of steps."""
    times = [(case.step, case.row.time_s) for case in judged if case.step is not None and case.row.time_s is not None]
    errors = _errors(held_out, source, "step", [(step.time_s, measured_s) for step, measured_s in times])
    return msgspec.structs.replace(
        errors,
        **interval_accuracy(*zip(*((measured_s, *step.interval) for step, measured_s in times))),
        ordered=ordered_share(judged),
    )


def _errors(held_out: str, source: str, phase: str, pairs: Sequence[tuple[float, float]]) -> RlErrors:
    """Return the errors of forecasts beside what was measured."""
    forecasts, measured = np.array(pairs).T
    return RlErrors(
        held_out,
        source,
        phase,
        len(pairs),
        **relative_errors(forecasts / measured - 1),
        near=float(np.mean(np.abs(np.log(forecasts / measured)) <= np.log(NEAR))),
    )


def ordered_share(judged: Sequence[Judged]) -> float | None:
    """Return the share of the pairs of a network, of clearly different times, that are ordered rightly."""
    right = []
    for one, other in combinations(judged, 2):
        if one.row.network != other.row.network or one.step is None or other.step is None:
            continue
        if one.row.time_s is None or other.row.time_s is None:
            continue
        measured = one.row.time_s / other.row.time_s
        if max(measured, 1 / measured) > WORTH_ORDERING:
            right.append((one.step.time_s > other.step.time_s) == (measured > 1))
    return float(np.mean(right)) if right else None


def phase_errors(phase: str, judged: Sequence[Judged], *, held_out: str = SOURCE, source: str = ALL) -> RlErrors | None:
    """Return the errors of a phase, of which one number is published where several passes run; None if none is."""
    pairs = [
        (case.phases.get(phase, 0.0), case.row.phases[phase])
        for case in judged
        if case.row.phases.get(phase) and case.phases.get(phase)
    ]
    return _errors(held_out, source, phase, pairs) if pairs else None


def rl_page(validation: RlValidation) -> Document:
    """Return the document of the errors."""
    columns = [
        Column("held_out", "held out", left=True),
        Column("source", "measured by", left=True, wrap=True),
        Column("phase", "phase", left=True),
        Column("points", "points"),
        *error_columns("median", "mape", "bias"),
        Column("near", f"within a\nfactor {NEAR:g}", format_percent_rounded),
        *error_columns("coverage_90", "sharpness_90"),
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
    measured, shipped = list(_pieces(nemo_rows(data), [])), rl_constants()
    parts = parts_of(list(_asked(framework_rows(data), [])), shipped)
    constants = with_fit(shipped, measured, parts)
    write_constants(constants, folder / FILE)
    errors = errors_of("network", _forecasts(hold_out(measured, lambda row: row.network, parts)))
    yield "reinforcement learning", f"networks held out: {errors.mape:.1%}"


def write_constants(constants: RlConstants, path: Path) -> None:
    """Write the constants."""
    lines = ["# Fitted to published steps by python -m validation ship; docs/reinforcement.md explains them."]
    for name, value in msgspec.to_builtins(constants).items():
        text = "[" + ", ".join(f'"{item}"' for item in value) + "]" if isinstance(value, (tuple, list)) else repr(value)
        lines.append(f"{name} = {text}")
    write_atomically(path, ("\n".join(lines) + "\n").encode())

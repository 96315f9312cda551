"""Held-out errors of kernels and of the steps of servers: by device, engine, network and source.

Kernels and steps are judged apart, so that errors of one do not hide those of the other. The step of a server is judged
by its published time per output token, with the formula of `validation.engines.steps`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from paleo_lite.calibration.accuracy import interval_accuracy, relative_errors
from paleo_lite.engines.constants import (
    Cell,
    CellFit,
    ClassFit,
    EngineConstants,
    KernelConstants,
    predict_constants,
    traits_of,
)
from paleo_lite.engines.step import STEP
from paleo_lite.machines import find_device
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.reporting.formats import format_percent, format_percent_rounded
from paleo_lite.timing.intervals import Z_90

from ..columns import GROUP_COLUMNS, GroupErrors
from .deviations import source_biases, step_deviation, with_source_deviations
from .fit import draw_rows, fit_cell, fit_constants, kernel_times
from .servers import PublishedServer, published_servers
from .steps import HELD_OUT_TOLERANCE, StepParts, fit_steps, is_fitted, parts_of, predict_steps
from .tables import TimedKernels, published_kernels

JUDGED_ROWS = 500
"""Rows of a table that are judged, drawn at random."""

SERVER_SPLITS: dict[str, Callable[[PublishedServer], str]] = {
    "device": lambda server: server.gpu,
    "engine": lambda server: server.engine,
    "network": lambda server: server.network,
    "source": lambda server: server.source,
}
"""What is held out of servers, one at a time."""


class KernelErrors(msgspec.Struct, frozen=True):
    """Errors of the kernels of a class in one format.

    Attributes
    ----------
    kernels, format : str
        Class of kernels and format of the operands.
    tables, points : int
        Tables (of a device under an engine), and kernels that are judged.
    own, own_coverage_90 : float
        Median error with the constants of the own table, and share of kernels inside the 90% interval.
    device, device_coverage_90, device_sharpness_90 : float
        The same without any table of the device, and the median ratio between the ends of the interval.
    engine, engine_coverage_90 : float
        The same without any table of the engine.
    """

    kernels: str
    format: str
    tables: int
    points: int
    own: float
    own_coverage_90: float
    device: float
    device_coverage_90: float
    device_sharpness_90: float
    engine: float
    engine_coverage_90: float


class ServerRow(GroupErrors, frozen=True, kw_only=True):
    """Errors of the times per output token of servers.

    Attributes
    ----------
    split : str
        What is held out at a time; ``nothing`` for the shipped fit.
    """

    split: str


class LogErrors(NamedTuple):
    """Logarithms of forecast over measured times, and standard deviations of the forecasts."""

    errors: Any
    deviations: Any

    def accuracy(self) -> dict[str, float]:
        """Return the relative errors, and coverage and sharpness of the 90% intervals, by their names in tables."""
        reach = Z_90 * self.deviations
        measured = np.exp(-self.errors)  # relative to the forecast
        return {**relative_errors(np.expm1(self.errors)), **interval_accuracy(measured, np.exp(-reach), np.exp(reach))}


class Judgements(NamedTuple):
    """Errors of a table of kernels by what is known.

    Attributes
    ----------
    own : LogErrors
        With the constants of the own table.
    device, engine : LogErrors
        Without any table of the device, and of the engine.
    """

    own: LogErrors
    device: LogErrors
    engine: LogErrors


def _together(parts: Sequence[LogErrors]) -> LogErrors:
    return LogErrors(*(np.concatenate([getattr(part, field) for part in parts]) for field in LogErrors._fields))


def without(constants: EngineConstants, split: str, name: str) -> EngineConstants:
    """Return constants without the tables of a device or of an engine; the variances of the effects stay."""
    classes: dict[str, ClassFit] = {}
    for kernels, fit in constants.classes.items():
        cells = tuple(cell for cell in fit.cells if _owner(cell, split) != name)
        classes[kernels] = msgspec.structs.replace(fit, cells=cells)
    return EngineConstants(classes)


def judge_kernels(timed: TimedKernels, constants: KernelConstants) -> LogErrors:
    """Return the errors of the kernels of a table at some constants."""
    expected = np.log(kernel_times(timed, constants.theta))
    squares = np.full(len(timed.time_s), constants.scatter**2)
    for index, deviation in enumerate(constants.deviation):
        shifted = constants.theta.copy()
        shifted[index] += STEP
        slope = (np.log(kernel_times(timed, shifted)) - expected) / STEP
        squares += (slope * deviation) ** 2
    return LogErrors(expected - np.log(timed.time_s), np.sqrt(squares))


def validate_kernels(data: Path) -> list[KernelErrors]:
    """Return the errors of all tables of kernels, with the device and the engine of each held out."""
    tables = published_kernels(data)
    fits = [(timed.cell, fit_cell(timed)) for timed in tables]
    constants = fit_constants(fits)
    groups: dict[tuple[str, str], list[Judgements]] = {}
    for timed in tables:
        cell, judged = timed.cell, draw_rows(timed, JUDGED_ROWS)
        fit = constants.classes[cell.kernels]
        without_device = tuple(judged for judged in fit.cells if judged.gpu != cell.gpu)
        without_engine = tuple(judged for judged in fit.cells if judged.engine != cell.engine)
        if not (without_device and without_engine):
            continue
        judgements = Judgements(
            *(
                judge_kernels(judged, _constants_of(cell, fit, cells))
                for cells in (fit.cells, without_device, without_engine)
            )
        )
        groups.setdefault((cell.kernels, cell.format), []).append(judgements)
    rows = []
    for (kernels, form), tables_of_group in sorted(groups.items()):
        own = _together([judged.own for judged in tables_of_group]).accuracy()
        device = _together([judged.device for judged in tables_of_group]).accuracy()
        engine = _together([judged.engine for judged in tables_of_group]).accuracy()
        rows.append(
            KernelErrors(
                kernels,
                form,
                tables=len(tables_of_group),
                points=sum(len(judged.own.errors) for judged in tables_of_group),
                own=own["median"],
                own_coverage_90=own["coverage_90"],
                device=device["median"],
                device_coverage_90=device["coverage_90"],
                device_sharpness_90=device["sharpness_90"],
                engine=engine["median"],
                engine_coverage_90=engine["coverage_90"],
            )
        )
    return rows


def _constants_of(cell: Cell, fit: ClassFit, cells: tuple[CellFit, ...]) -> KernelConstants:
    """Return the constants of a cell from some of the fitted cells of its class."""
    known_traits = [traits_of(find_device(cell_fit.gpu), cell_fit.engine, cell_fit.format) for cell_fit in cells]
    traits = traits_of(find_device(cell.gpu), cell.engine, cell.format)
    return predict_constants(msgspec.structs.replace(fit, cells=cells), traits, known_traits)


def validate_servers(data: Path) -> list[ServerRow]:
    """Return the errors of the times per output token of published servers, each part held out at a time."""
    fits = [(timed.cell, fit_cell(timed)) for timed in published_kernels(data)]
    alone = fit_constants(fits)
    parts = [parts_of(server, alone) for server in published_servers(data) if is_fitted(server)]
    biases = source_biases(parts, alone)
    shipped = _judge_steps(parts, with_source_deviations(fit_steps(parts, alone), biases))
    rows = list(_server_rows("nothing", [part.server for part in parts], shipped))
    for split, key in SERVER_SPLITS.items():
        servers: list[PublishedServer] = []
        judged: list[LogErrors] = []
        for name in sorted({key(part.server) for part in parts}):
            rest = [part for part in parts if key(part.server) != name]
            held_out = [part for part in parts if key(part.server) == name]
            fitted = fit_steps(rest, alone, HELD_OUT_TOLERANCE)
            if split in ("device", "engine"):
                constants = without(alone, split, name)
                held_out = [parts_of(part.server, constants) for part in held_out]
            servers += [part.server for part in held_out]
            fitted = with_source_deviations(fitted, biases, name if split == "source" else "")
            judged.append(_judge_steps(held_out, fitted))
        rows += _server_rows(split, servers, _together(judged))
    return rows


def _owner(cell: CellFit, split: str) -> str:
    return cell.gpu if split == "device" else cell.engine


def _judge_steps(parts: Sequence[StepParts], fitted: EngineConstants) -> LogErrors:
    """Return the errors of the times per output token of servers at some factors of company and hosts."""
    errors = [np.log(predict_steps(part, fitted)[0] / part.server.step_s) for part in parts]
    deviations = [step_deviation(part, fitted) for part in parts]
    return LogErrors(np.array(errors), np.array(deviations))


def _server_rows(split: str, servers: Sequence[PublishedServer], judged: LogErrors) -> Iterator[ServerRow]:
    """Return the rows of a split: of all servers, of each engine, and of those with experts divided."""
    groups: dict[str, Any] = {"all": np.ones(len(servers), dtype=bool)}
    for engine in sorted({server.engine for server in servers}):
        groups[engine] = np.array([server.engine == engine for server in servers])
    groups["expert-parallel"] = np.array([server.experts > 1 for server in servers])
    for name, chosen in groups.items():
        part = LogErrors(judged.errors[chosen], judged.deviations[chosen])
        yield ServerRow(split=split, group=name, points=int(chosen.sum()), **part.accuracy())


def kernels_page(rows: Sequence[KernelErrors]) -> Document:
    """Return a page with the errors of kernels by class and format."""

    table = Table(
        "Kernels of engines",
        [
            Column("kernels", "class", left=True),
            Column("format", "format", left=True),
            Column("tables", "tables"),
            Column("points", "kernels"),
            Column("own", "own\ntable", format_percent),
            Column("own_coverage_90", "within\n90%", format_percent_rounded),
            Column("device", "device\nheld out", format_percent),
            Column("device_coverage_90", "within\n90%", format_percent_rounded),
            Column("device_sharpness_90", "ratio of\nends", "{:.2f}".format),
            Column("engine", "engine\nheld out", format_percent),
            Column("engine_coverage_90", "within\n90%", format_percent_rounded),
        ],
        [msgspec.to_builtins(row) for row in rows],
    )
    weights = np.array([row.points for row in rows])
    held_out = float(np.average([row.device for row in rows], weights=weights))
    headline = f"{sum(row.tables for row in rows)} tables of kernels: {held_out:.1%} off with their device held out"
    return Document(headline, (), [table], ["Errors are medians; the headline is their mean over kernels."])


def servers_page(rows: Sequence[ServerRow]) -> Document:
    """Return a page with the errors of times per output token by what is held out."""
    table = Table(
        "Times per output token of servers",
        [
            Column("split", "held out", left=True),
            Column("group", "judged on", left=True),
            Column("points", "servers"),
            *GROUP_COLUMNS,
        ],
        [msgspec.to_builtins(row) for row in rows],
    )
    medians = {row.split: row.median for row in rows if row.group == "all"}
    text = ", ".join(f"{value:.1%} with {name} held out" for name, value in medians.items())
    return Document(f"{rows[0].points} servers: {text}", (), [table], [])

"""Errors of the constants of llama.cpp, MLX and ExLlama on devices and on sources that were left out of the fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from paleo_lite.calibration.accuracy import relative_errors
from paleo_lite.engines.records import BACKENDS
from paleo_lite.machines import find_device
from paleo_lite.own_machines.step import DEVIATIONS_AT_90
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.reporting.formats import format_percent

from ..columns import error_columns
from .fit import OF_OTHER_ENGINES, fit, make_constants, predict_s
from .published import LocalMeasurement, read_rows

PHASES = {"decode": 0.08, "prompt": 0.15}
"""Phases, and the least deviation of each."""

FEW_ROWS, LEAST_OF_FEW = 5, 0.3
"""Rows below which an interval is not narrower than this deviation."""


class LocalForecast(NamedTuple):
    """Predicted seconds of a row that was left out of the fit."""

    row: LocalMeasurement
    seconds: float

    @property
    def error(self) -> float:
        """Relative error of the tokens per second."""
        return self.row.seconds / self.seconds - 1

    @property
    def log_ratio(self) -> float:
        """Logarithm of predicted over measured seconds."""
        return float(np.log(self.seconds / self.row.seconds))

    def is_inside(self, deviation: float) -> bool:
        """Return whether the interval of a deviation contains the measured seconds."""
        return abs(self.log_ratio) <= DEVIATIONS_AT_90 * deviation


class LocalErrors(msgspec.Struct, frozen=True):
    """Errors of tokens per second of a phase, with a device or source left out at a time.

    Attributes
    ----------
    held_out : str
        What was left out at a time; a source with all its devices.
    backend, phase : str
        Backend, or all of a program's, and phase that are judged.
    points, devices : int
        Rows, and devices they are of, each counted once per backend.
    mape, mape_by_device, median, bias : float
        Mean absolute relative error over rows and over devices, its median over rows, and the median relative error.
    coverage_90, sharpness_90 : float
        Fraction of rows inside the 90% interval, and median ratio between its ends.
    """

    held_out: str
    backend: str
    phase: str
    points: int
    devices: int
    mape: float
    mape_by_device: float
    median: float
    bias: float
    coverage_90: float
    sharpness_90: float


def _hold_out(
    backend: str,
    rows: Sequence[LocalMeasurement],
    parts: Sequence[tuple[list[LocalMeasurement], list[LocalMeasurement]]],
) -> list[LocalForecast]:
    """Return the forecasts of the second rows of each part by a fit to the first."""
    forecasts = []
    for fitted, left_out in parts:
        constants = make_constants(backend, fit(backend, fitted))
        forecasts += [LocalForecast(row, predict_s(row, constants)) for row in left_out]
    return forecasts


def hold_out_devices(backend: str, rows: Sequence[LocalMeasurement]) -> list[LocalForecast]:
    """Return the forecast of each row, from all devices but its own."""
    devices = dict.fromkeys(row.device for row in rows)
    parts = [
        ([row for row in rows if row.device != device], [row for row in rows if row.device == device])
        for device in devices
    ]
    return _hold_out(backend, rows, parts)


def source_of(row: LocalMeasurement) -> str:
    """Return the table of a row; single published speeds count as one."""
    return "published" if "/" in row.source else row.source


def hold_out_sources(backend: str, rows: Sequence[LocalMeasurement]) -> list[LocalForecast]:
    """Return the forecast of each row, from other sources and other devices than those of its source."""
    parts = []
    for source in dict.fromkeys(map(source_of, rows)):
        of_source = [row for row in rows if source_of(row) == source]
        devices = {row.device for row in of_source}
        parts.append(([row for row in rows if source_of(row) != source and row.device not in devices], of_source))
    return _hold_out(backend, rows, parts)


def makers_of(rows: Sequence[LocalMeasurement]) -> tuple[str, ...]:
    """Return the makers of the devices of some rows, in the order of the alphabet."""
    return tuple(sorted({find_device(row.device).vendor for row in rows}))


def hold_out_makers(backend: str, rows: Sequence[LocalMeasurement]) -> list[LocalForecast]:
    """Return the forecast of each row from devices of other makers that have more rows than its own."""
    parts = []
    for maker in makers_of(rows):
        of_maker = [row for row in rows if find_device(row.device).vendor == maker]
        if 2 * len(of_maker) < len(rows):
            parts.append(([row for row in rows if row not in of_maker], of_maker))
    return _hold_out(backend, rows, parts)


HELD_OUT: dict[str, Callable[[str, Sequence[LocalMeasurement]], list[LocalForecast]]] = {
    "device": hold_out_devices,
    "source": hold_out_sources,
}
"""Functions that forecast the rows of a backend, by what they leave out at a time."""


def deviation_of(phase: str, forecasts: Sequence[LocalForecast]) -> float:
    """Return the deviation of a phase whose 90% interval covers nine of ten rows.

    `forecasts` are those with their devices held out, and those with their sources: what a new source measures differs
    by its version and settings, too.
    """
    errors = [abs(each.log_ratio) for each in forecasts if each.row.phase == phase]
    least = LEAST_OF_FEW if len(errors) < FEW_ROWS else PHASES[phase]
    return max(float(np.quantile(errors, 0.9)) / DEVIATIONS_AT_90, least) if errors else least


def mean_over_devices(forecasts: Sequence[LocalForecast]) -> float:
    """Return the mean over devices, each with its backend, of their mean absolute relative errors."""
    by_device: dict[tuple[str, str], list[float]] = {}
    for each in forecasts:
        by_device.setdefault((each.row.device, each.row.backend), []).append(abs(each.error))
    return float(np.mean([np.mean(errors) for errors in by_device.values()])) if by_device else float("nan")


def _errors(
    held_out: str, backend: str, phase: str, forecasts: Sequence[LocalForecast], deviations: dict[str, float]
) -> LocalErrors:
    return LocalErrors(
        held_out=held_out,
        backend=backend,
        phase=phase,
        points=len(forecasts),
        devices=len({(each.row.device, each.row.backend) for each in forecasts}),
        **relative_errors([each.error for each in forecasts]),
        mape_by_device=mean_over_devices(forecasts),
        coverage_90=float(np.mean([each.is_inside(deviations[each.row.backend]) for each in forecasts])),
        sharpness_90=float(
            np.median([np.exp(2 * DEVIATIONS_AT_90 * deviations[each.row.backend]) for each in forecasts])
        ),
    )


def validate_local(data: Path) -> list[LocalErrors]:
    """Return the errors by backend and phase, with a device, and with a source, left out at a time.

    The intervals are those that are shipped: as wide as the errors of devices and of sources that were left out.
    """
    by_backend = {backend: [row for row in read_rows(data) if row.backend == backend] for backend in BACKENDS}
    forecasts = {
        held_out: {backend: function(backend, rows) for backend, rows in by_backend.items()}
        for held_out, function in HELD_OUT.items()
    }
    pooled = {backend: [each for by_name in forecasts.values() for each in by_name[backend]] for backend in BACKENDS}
    deviations = {
        phase: {backend: deviation_of(phase, of_group) for backend, of_group in pooled.items()} for phase in PHASES
    }
    of_llama_cpp = [backend for backend in BACKENDS if backend not in OF_OTHER_ENGINES]
    groups = {**{backend: [backend] for backend in BACKENDS}, "llama.cpp, all": of_llama_cpp}
    rows = []
    for held_out, by_name in forecasts.items():
        for name, backends in groups.items():
            for phase in PHASES:
                of_group = [each for backend in backends for each in by_name[backend] if each.row.phase == phase]
                if of_group:
                    rows.append(_errors(held_out, name, phase, of_group, deviations[phase]))
    return rows


def local_page(rows: Sequence[LocalErrors]) -> Document:
    """Return the page of the errors."""
    table = Table(
        "Published speeds held out",
        [
            Column("held_out", "held out", left=True),
            Column("backend", "backend", left=True),
            Column("phase", "phase", left=True),
            Column("points", "rows"),
            Column("devices", "devices"),
            Column("mape_by_device", "mean over\ndevices", format_percent),
            *error_columns("mape", "median", "bias", "coverage_90", "sharpness_90"),
        ],
        [msgspec.structs.asdict(row) for row in rows],
    )
    totals = {row.phase: row for row in rows if row.backend not in BACKENDS and row.held_out == "device"}
    headline = "; ".join(
        f"{phase} {row.mape_by_device:.1%} off in the mean over {row.devices} devices, {row.coverage_90:.0%} within 90%"
        for phase, row in totals.items()
    )
    return Document(f"Tokens per second under llama.cpp: {headline}", (), [table], (), table)

"""Published figures beside their forecasts, to which little or nothing is fitted: ``python -m validation compare``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from paleo_lite.calibration.accuracy import relative_errors
from paleo_lite.errors import BadValue
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.reporting.formats import format_percent_rounded, format_time_short, format_yes_no

COMPARISONS = {
    "serving": "serving.reproduce",
    "amd": "engines.served",
    "training": "training.reproduce",
    "fine-tuning": "training.fine_tuning",
    "mixtures": "training.mixtures",
    "mlperf": "training.mlperf",
    "denoisers": "training.denoisers",
    "offloaded": "local.offloaded",
    "cards": "local.cards",
    "wall": "energy.wall",
}
"""Modules whose function ``compare_page`` takes the folder of published data and returns a page, by name."""

COMPARED = (
    Column("measured_s", "measured", format_time_short),
    Column("time_s", "forecast", format_time_short),
    Column("error", "off by", "{:+.0%}".format),
    Column("is_inside", "within\n90%", format_yes_no),
)
"""Columns of a measured and a forecast time."""

GROUPED = (
    Column("points", "points"),
    Column("mean", "mean\nerror", format_percent_rounded),
    Column("median", "median\nerror", format_percent_rounded),
    Column("bias", "median\nbias", "{:+.0%}".format),
    Column("inside", "within\n90%", format_percent_rounded),
)
"""Columns of the errors of a group."""


class JudgedForecast(Protocol):
    """A published figure with its forecast."""

    @property
    def error(self) -> float:
        """Forecast over measurement, minus 1."""

    @property
    def is_inside(self) -> bool:
        """Whether the 90% interval of the forecast contains the measurement."""


class ComparedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A published step and its forecast with the 90% interval, in seconds."""

    network: str
    workers: int
    measured_s: float
    time_s: float
    low_s: float
    high_s: float

    @property
    def error(self) -> float:
        """Forecast over measured time, minus 1."""
        return self.time_s / self.measured_s - 1

    @property
    def is_inside(self) -> bool:
        """Whether the measured time is in the interval."""
        return self.low_s <= self.measured_s <= self.high_s


def page_function(name: str) -> Callable[[Path | None], Document]:
    """Return the function that compares the figures of a name of `COMPARISONS`."""
    function: Callable[[Path | None], Document] = import_module(f".{COMPARISONS[name]}", __package__).compare_page
    return function


def require_data(data: Path | None) -> Path:
    """Return the folder of published data, in which the figures of some comparisons are.

    Raises
    ------
    BadValue
        If none is given.
    """
    if data is None:
        raise BadValue("these figures are in the folder of published data: give `--data`")
    return data


def group_errors(forecasts: Sequence[JudgedForecast]) -> dict[str, float]:
    """Return the errors of a group, by the keys of `GROUPED`."""
    errors = relative_errors([forecast.error for forecast in forecasts])
    return {
        "points": len(forecasts),
        "mean": errors["mape"],
        "median": errors["median"],
        "bias": errors["bias"],
        "inside": float(np.mean([forecast.is_inside for forecast in forecasts])),
    }


def describe_errors(forecasts: Sequence[JudgedForecast]) -> str:
    """Return the errors of a group as text."""
    errors = group_errors(forecasts)
    return (
        f"{errors['points']} forecasts, {errors['mean']:.1%} off in the mean and {errors['median']:.1%} in the median, "
        f"{errors['inside']:.0%} within 90%"
    )


def steps_page(
    title: str, columns: Sequence[Column], rows: Sequence[dict[str, Any]], steps: Sequence[JudgedForecast]
) -> Document:
    """Return the page of measured and forecast steps.

    Parameters
    ----------
    title : str
        What was measured.
    columns : sequence of Column
        Columns before those of `COMPARED`.
    rows : sequence of dict
        Values of the columns, and the seconds, by step.
    steps : sequence of JudgedForecast
        The steps.
    """
    compared = [
        {**row, "error": step.error, "is_inside": step.is_inside} for row, step in zip(rows, steps, strict=True)
    ]
    return Document(f"{title}: {describe_errors(steps)}", (), [Table(title, [*columns, *COMPARED], compared)])

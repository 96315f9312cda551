"""`MeasuredBesideForecast`: the rows of a result file beside what is forecast for the same situations."""

from __future__ import annotations

from math import exp, log
from typing import Any, ClassVar, NamedTuple

import msgspec

from ..result import Result


class Forecast(NamedTuple):
    """A figure that is forecast, with its interval."""

    figure: str
    value: float | None
    interval: Any = None
    answer: Any = None  # the answer that it is of
    bound_s: float | None = None  # the least that the data sheets of the devices allow; None where it is not known


class Beside(NamedTuple):
    """One figure of a row, measured and forecast, in SI units."""

    row: int  # number of the row in the file, from 0
    kind: str  # of the row, one of `quantities.KINDS`
    situation: str  # what identifies the row, in words
    figure: str  # name of the figure in `quantities.QUANTITIES`
    measured: float
    forecast: float
    low: float | None = None  # the interval of the forecast
    high: float | None = None

    @property
    def ratio(self) -> float:
        """Measured over forecast."""
        return self.measured / self.forecast


class MeasuredBesideForecast(Result, msgspec.Struct, frozen=True):
    """A result file beside the forecasts for its own configuration.

    Attributes
    ----------
    file, tool : str
        The file, and what wrote it.
    question : dict
        What was asked of the forecasts: network, device, precision, ...
    rows : list of Beside
        Figures of the rows, measured and forecast.
    left_out : list of str
        Why other rows are not compared.
    notes : list of str
        Doubts of the file.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.measurements:beside_page"

    file: str
    tool: str
    question: dict[str, Any]
    rows: list[Beside]
    left_out: list[str] = []
    notes: list[str] = []

    @property
    def typical_factor(self) -> float:
        """The factor by which measurements and forecasts differ, as a geometric mean."""
        return exp(sum(abs(log(row.ratio)) for row in self.rows) / len(self.rows))

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON."""
        return {
            "file": self.file,
            "tool": self.tool,
            "question": self.question,
            "rows": [{**row._asdict(), "ratio": row.ratio} for row in self.rows],
            "left_out": self.left_out,
            "notes": self.notes,
        }

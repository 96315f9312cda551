"""`Predictions`: several beside each other, with what each costs and how many times as fast as the first it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import msgspec

from ..result import Result
from ..timing import Prediction
from ..version import __version__
from .ratios import Ratio, speedup

SAMPLES = 1e6
"""Samples that a cost is of."""


class Predictions(Result, msgspec.Struct, frozen=True, eq=False):
    """Predictions beside each other.

    Attributes
    ----------
    predictions : sequence of Prediction
        In the order asked for; one or more.
    left_out : sequence of str
        What could not be predicted, and why.
    """

    _page: ClassVar[str] = "paleo_lite.report.side_by_side:side_by_side_page"

    predictions: Sequence[Prediction]
    left_out: Sequence[str] = ()

    @property
    def first(self) -> Prediction:
        """What the others are compared with: the first forecast, or the first bound where there is no forecast."""
        return next((prediction for prediction in self.predictions if prediction.is_forecast), self.predictions[0])

    def speedup(self, prediction: Prediction) -> Ratio | None:
        """How many times as many samples per second one of them has as the first: see `ratios.speedup`."""
        return speedup(prediction, self.first)

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dict per prediction; a bound has no time, throughput, cost and speed-up, unless all are bounds."""
        first = self.first
        for prediction in self.predictions:
            low, high = prediction.interval or (None, None)
            ratio = self.speedup(prediction)
            least, most = (ratio and prediction is not first and ratio.interval()) or (None, None)
            counts = prediction.is_forecast == first.is_forecast
            yield {
                "network": prediction.network,
                "gpu": prediction.device.id,
                "precision": prediction.precision,
                "phase": prediction.phase,
                "batch_size": prediction.batch_size,
                "is_forecast": prediction.is_forecast,
                "time_s": prediction.time_s if prediction.is_forecast else None,
                "low_s": low,
                "high_s": high,
                "bound_s": prediction.bound_s,
                "throughput_per_s": prediction.throughput_per_s if counts else None,
                "memory_bytes": None if prediction.memory is None else prediction.memory.memory.total_bytes,
                "fits": None if prediction.memory is None else prediction.memory.fits,
                "usd_per_million": usd(prediction) if prediction.is_forecast else None,
                "speedup": None if ratio is None else ratio.value,
                "speedup_low": least,
                "speedup_high": most,
                "time_model": prediction.model.name,
                "calibration": prediction.calibration,
                "version": __version__,
            }

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON: the rows, what each was computed from, and what was left out."""
        predictions = [prediction.to_dict() for prediction in self.predictions]
        return {"rows": list(self.rows()), "predictions": predictions, "left_out": list(self.left_out)}

    def __repr__(self) -> str:
        return f"Predictions({', '.join(map(repr, self.predictions))})"


def usd(prediction: Prediction) -> float | None:
    """US dollars for `SAMPLES` samples at the price on record; None where there is none."""
    price, throughput = prediction.device.rent_usd_per_h, prediction.throughput_per_s
    if price is None or throughput is None:
        return None
    return price / 3600 / throughput * SAMPLES

"""A prediction beside a profile, to look at."""

from __future__ import annotations

from ..calibration.beside import MEASURED_PASSES, PredictedBeside
from ..timing import Prediction, describe
from ..units import format_si
from .document import Column, Document, Table


def predicted_page(beside: PredictedBeside, top: int | None = 10) -> Document:
    """The page of a prediction beside a profile.

    Parameters
    ----------
    beside : PredictedBeside
    top : int or None
        How many layers to list; None lists all.
    """
    prediction = beside.prediction
    kinds = sorted(beside.kinds, key=lambda row: MEASURED_PASSES.index(row.part))
    total = {"kind": "total", "measured_s": beside.measured_s, "predicted_s": prediction.time_s,
             "difference_s": beside.measured_s - prediction.time_s,
             "ratio": beside.measured_s / prediction.time_s if prediction.time_s else None,
             "ppp": beside.ppp}  # fmt: skip
    tables = [Table("Per iteration, by kind of layer", _columns("kind"), [row.to_dict() for row in kinds], [total])]
    layers = beside.layers if top is None else beside.layers[:top]
    if layers:
        title = f"Layers that differ most, {len(layers)} of {len(beside.layers)} that match"
        tables.append(Table(title, _columns("layer"), [row.to_dict("layer") for row in layers]))
    worst = beside.kinds[0]
    headline = (
        f"{prediction.network} on {prediction.device.name}, batch {prediction.batch_size}, {prediction.phase}: "
        f"measured {format_si(beside.measured_s, 's')}, {prediction.model.name} predicts "
        f"{format_si(prediction.time_s, 's')}{_interval(prediction)}; they differ most in {worst.name}, {worst.part}"
    )
    return Document(
        headline,
        [
            ("profile", beside.path),
            ("time model", describe(prediction.model)),
            ("PPP", f"{beside.ppp:.3g}: (FLOPs / peak + bytes / bandwidth) / measured time"),
            ("peak", prediction.peak.describe()),
        ],
        tables,
        beside.notes,
    )


def _interval(prediction: Prediction) -> str:
    if prediction.interval is None:
        return ""
    low, high = (format_si(seconds, "s") for seconds in prediction.interval)
    return f" ({low} to {high})"


def _columns(first: str) -> list[Column]:
    def seconds(value: float) -> str:
        return format_si(value, "s")

    return [
        Column(first, first, left=True),
        Column("pass", "pass", left=True),
        Column("measured_s", "measured", seconds),
        Column("predicted_s", "predicted", seconds),
        Column("difference_s", "difference", seconds, spare=1),
        Column("ratio", "measured /\npredicted", lambda value: f"{value:.2f}"),
        Column("ppp", "PPP", lambda value: f"{value:.2f}"),
        Column("share_of_peak", "share of\npeak FLOP/s", lambda value: f"{value:.1%}", spare=2),
    ]

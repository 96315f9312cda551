"""Predictions side by side, of devices or of batch sizes: how long, what bounds it, how far apart they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..timing import Prediction
from ..units import format_si
from .document import Column, Table


def shares_by_bound(prediction: Prediction) -> dict[str, float]:
    """Share of the time of all layers that each bound takes, largest first; ``overhead`` is a step's own."""
    seconds: dict[str, float] = {}
    for row in prediction.rows():
        seconds[row["bound"]] = seconds.get(row["bound"], 0.0) + row["time_s"]
    seconds["overhead"] = prediction.terms.overhead_s
    whole = prediction.time_s
    shares = {bound: time_s / whole for bound, time_s in seconds.items() if time_s}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def bound_sentence(prediction: Prediction) -> str:
    """What bounds a prediction, in words: ``compute bounds 77% of the time, memory 22%; 1% is spent ...``."""
    shares = {bound: _percent(share) for bound, share in shares_by_bound(prediction).items()}
    overhead = shares.pop("overhead", None)
    bounds = [f"{bound} {share}" for bound, share in shares.items()]
    if bounds:
        bounds[0] = f"{bounds[0].replace(' ', ' bounds ', 1)} of the time"
    said = [", ".join(bounds)] if bounds else []
    if overhead:
        said.append(f"{overhead} is overhead")
    return "; ".join(said) or "no layer takes time"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.005 else "under 1%"


def side_by_side(predictions: Sequence[Prediction]) -> Table:
    """One row per prediction; times relative to the first where all are of one batch size."""
    first = predictions[0].time_s
    sizes = {each.batch_size for each in predictions}
    rows = [_row(each, first) for each in predictions]

    def seconds(value: float) -> str:
        return format_si(value, "s", 3)

    def share(value: float) -> str:
        return f"{value:.0%}"

    apart = (
        Column("relative", "times the first", lambda value: f"{value:.2f}", spare=1)
        if len(sizes) == 1
        else Column("batch_size", "batch")
    )
    columns = [
        Column("gpu", "device", left=True),
        apart,
        Column("time_s", "time", seconds),
        Column("low_s", "from (90 %)", seconds, spare=3),
        Column("high_s", "to (90 %)", seconds, spare=3),
        Column("throughput_per_s", "samples per s", lambda value: f"{value:,.4g}"),
        Column("compute_share", "compute bounds", share, spare=2),
        Column("memory_share", "memory bounds", share, spare=2),
        Column("memory_bytes", "memory", lambda value: format_si(value, "B", 3), spare=4),
        Column("time_model", "time model", left=True, spare=5),
    ]
    return Table("Side by side" if len(sizes) == 1 else "By batch size", columns, rows)


def _row(prediction: Prediction, first_s: float) -> dict[str, Any]:
    low, high = prediction.interval or (None, None)
    shares = shares_by_bound(prediction)
    return {
        "gpu": prediction.device.id,
        "batch_size": prediction.batch_size,
        "time_s": prediction.time_s,
        "low_s": low,
        "high_s": high,
        "relative": prediction.time_s / first_s if first_s else None,
        "throughput_per_s": prediction.throughput_per_s,
        "compute_share": shares.get("compute", 0.0),
        "memory_share": shares.get("memory", 0.0),
        "memory_bytes": None if prediction.memory is None else prediction.memory.memory.total_bytes,
        "time_model": prediction.model.name,
    }

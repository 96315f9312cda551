"""What would help: other predictions of the same network, beside the one that was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...calibration.alternatives import Alternative, Alternatives
from ...timing import Prediction
from ...units import say_interval, say_number
from ..document import Column, KeyFigure, Table, say_time, say_yes_or_no

DEVICES_AT_MOST = 12
"""Other devices that are listed."""

_NO_MORE = 1.02  # times the throughput: less does not help


def help_content(prediction: Prediction, alternatives: Alternatives) -> tuple[list[str], list[Table | str]]:
    """A sentence on the best of them, and the tables: changes on the same device, and other devices."""
    here = [each for each in alternatives.tried if each.change != "device"]
    there = [each for each in alternatives.tried if each.change == "device"]
    content: list[Table | str] = []
    if here:
        content.append(_table("On the same device, most gained first", "change", prediction, here))
    faster = [each for each in _by_gain(prediction, there) if _gain(prediction, each) >= _NO_MORE]
    if faster:
        title = f"On another device: {len(faster)} of {len(there)} are predicted to be faster"
        if len(faster) > DEVICES_AT_MOST:
            title += f", the {DEVICES_AT_MOST} fastest of them"
        content.append(_table(title, "device", prediction, faster[:DEVICES_AT_MOST]))
    elif there:
        content.append(f"None of {len(there)} other devices is predicted to be faster.")
    return [_best(prediction, alternatives)] if here else [], content


def _able(prediction: Prediction, alternatives: Alternatives) -> list[Alternative]:
    """What was tried on the same device, fits, and gains anything; what gains most first."""
    here = [each for each in alternatives.tried if each.change != "device" and fits(each.prediction) is not False]
    return [each for each in _by_gain(prediction, here) if _gain(prediction, each) >= _NO_MORE]


def what_helps(prediction: Prediction, alternatives: Alternatives) -> KeyFigure | None:
    """What gains most on the same device; None where nothing was tried or gains."""
    able = _able(prediction, alternatives)
    if not able:
        return None
    gain = _times(_gain(prediction, able[0]))
    return KeyFigure("What would help most", able[0].name, f"{gain} the samples per second, on the same device")


def _best(prediction: Prediction, alternatives: Alternatives) -> str:
    able = _able(prediction, alternatives)
    if not able:
        return "Nothing that was tried on the same device gains more than 2%."
    best = able[0]
    return (
        f"Of what was tried on the same device, {best.name} gains most: "
        f"{_times(_gain(prediction, best))} the samples per second."
    )


def fits(prediction: Prediction) -> bool | None:
    """Whether it fits into the device's memory; None where that was not worked out."""
    return None if prediction.memory is None else prediction.memory.fits


def _by_gain(prediction: Prediction, some: Sequence[Alternative]) -> list[Alternative]:
    return sorted(some, key=lambda each: (-_gain(prediction, each), each.name))


def _gain(prediction: Prediction, other: Alternative) -> float:
    """Samples per second relative to what was asked for."""
    return (other.prediction.throughput_per_s or 0.0) / (prediction.throughput_per_s or 1.0)


def _times(gain: float) -> str:
    return f"{gain:.2f} times" if gain < 10 else f"{gain:,.0f} times"


def _table(title: str, first: str, prediction: Prediction, some: Sequence[Alternative]) -> Table:
    rows: list[dict[str, Any]] = []
    for each in _by_gain(prediction, some):
        other = each.prediction
        rows.append({
            "name": each.name, "time_s": other.time_s, "interval": other.interval,
            "throughput_per_s": other.throughput_per_s, "gain": _gain(prediction, each),
            "rent": other.device.rent_usd_per_h, "fits": fits(other), "model": _model(other), "note": each.note or None,
        })  # fmt: skip
    columns = [
        Column("name", first, left=True),
        Column("gain", "gain", lambda value: f"{value:.2f} ×"),
        Column("throughput_per_s", "samples per s", say_number),
        Column("time_s", "time per batch", say_time),
        Column("interval", "at 90%", say_interval),
        Column("fits", "fits into memory", say_yes_or_no, left=True),
        Column("rent", "rent, USD/h", "{:.2f}".format),
        Column("model", "from", left=True),
        Column("note", "mind", left=True),
    ]
    origins = {row["model"] for row in rows}
    hidden = [*([] if first == "device" else ["rent"]), *(["model"] if len(origins) == 1 else [])]
    used = [c for c in columns if c.key not in hidden and any(row[c.key] is not None for row in rows)]
    origin = f"; from {origins.pop()}" if len(origins) == 1 else ""
    return Table(f"{title}{origin} (gain: in samples per second)", used, rows)


def _model(prediction: Prediction) -> str:
    """Where a prediction's figures come from, in a few words."""
    label = prediction.model.label
    if not label:
        return f"the {prediction.model.name} model"
    return "fits of other devices" if label.startswith("pooled") else "measurements of the device"

"""Predictions side by side: how long, what bounds them, what they cost, how far apart they are."""

from __future__ import annotations

from collections.abc import Sequence

from ..calibration.several import Predictions
from ..timing import Prediction
from ..units import say_number
from .document import (
    Column,
    Document,
    Table,
    raw_table,
    say_size_briefly,
    say_three_digits,
    say_time_briefly,
    say_whole_percent,
    say_yes_or_no,
)


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
    shares = {
        bound: f"{share:.0%}" if share >= 0.005 else "under 1%" for bound, share in shares_by_bound(prediction).items()
    }
    overhead = shares.pop("overhead", None)
    bounds = [f"{bound} {share}" for bound, share in shares.items()]
    if bounds:
        bounds[0] = f"{bounds[0].replace(' ', ' bounds ', 1)} of the time"
    said = [", ".join(bounds)] if bounds else []
    if overhead:
        said.append(f"{overhead} is overhead")
    return "; ".join(said) or "no layer takes time"


def side_by_side(predictions: Predictions) -> Table:
    """One row per prediction; a bound has only what the data sheet allows, and is never held against forecasts."""
    rows = list(predictions.rows())
    for row, prediction in zip(rows, predictions.predictions):
        shares = shares_by_bound(prediction) if prediction.is_forecast else {}
        row |= {"compute_share": shares.get("compute"), "memory_share": shares.get("memory")}
    several = [key for key in _ASKED if len({row[key] for row in rows}) > 1] or ["gpu"]
    columns = [Column(key, title, left=key != "batch_size") for key, title in _ASKED.items() if key in several]
    return Table("Side by side", [*columns, *_FOUND], rows, sortable=True).known(*_ASKED)


_ASKED = {"network": "network", "gpu": "device", "precision": "precision", "phase": "phase", "batch_size": "batch"}
"""Of which a table shows what differs."""

_FOUND = [
    Column("time_s", "time", say_time_briefly),
    Column("low_s", "from\n(90%)", say_time_briefly, spare=1),
    Column("high_s", "to\n(90%)", say_time_briefly, spare=1),
    Column("bound_s", "at least", say_time_briefly, spare=4),
    Column("throughput_per_s", "samples\nper s", say_number),
    Column("speedup", "times\nas fast", say_three_digits),
    Column("speedup_low", "times\nfrom", say_three_digits, spare=5),
    Column("speedup_high", "times\nto", say_three_digits, spare=5),
    Column("memory_bytes", "memory", say_size_briefly, spare=6),
    Column("fits", "fits", say_yes_or_no, left=True, spare=2),
    Column("usd_per_million", "USD per\nmillion", say_three_digits, spare=3),
    Column("time_model", "time model", left=True, spare=7),
    Column("compute_share", "compute\nbounds", say_whole_percent, spare=8),
    Column("memory_share", "memory\nbounds", say_whole_percent, spare=8),
]


def side_by_side_page(predictions: Predictions) -> Document:
    """Several predictions, with what holds for all of them and what is to be minded of some."""
    first, table = predictions.first, side_by_side(predictions)
    shown = {column.key for column in table.columns}
    same = {key: value for key, value in table.rows[0].items() if key in _ASKED and key not in shown}
    batch = f"batch {same['batch_size']}" if "batch_size" in same else ""
    alike = (str(same.get(key, "")) for key in ("network", "gpu", "precision", "phase"))
    title = f"{len(table.rows)} predictions side by side"
    said = ", ".join(filter(None, [*alike, batch]))
    facts = [("times as fast", f"samples per second over those of {_named(first)}; errors that both share cancel")]
    if not all(each.is_forecast for each in predictions.predictions):
        facts.append(("bounds", "rows without a time: the data sheet says how long it takes at least, and no more"))
    unit = next((each.peak for each in predictions.predictions if each.convention == "given"), None)
    if unit is None:
        facts.append(("at least", "what the data sheet allows, by the roofline"))
    if "usd_per_million" in shown:
        facts.append(("USD per million", "samples, at the price of an hour on record (paleo-lite hardware show)"))
    data = raw_table(list(predictions.rows()))
    notes = [*(f"left out: {sentence}" for sentence in predictions.left_out), *_notes(predictions.predictions)]
    return Document(f"{title}: {said}" if said else title, facts, [table], notes, data)


def _notes(predictions: Sequence[Prediction]) -> list[str]:
    """Every note once, with the devices and networks that it is of."""
    places: dict[str, dict[str, None]] = {}
    for each in predictions:
        for note in each.notes:
            places.setdefault(note, {})[f"{each.network} on {each.device.id}"] = None
    return [f"{', '.join(named)}: {note}" for note, named in places.items()]


def _named(prediction: Prediction) -> str:
    return f"{prediction.network} on {prediction.device.id}, {prediction.precision}, batch {prediction.batch_size}"

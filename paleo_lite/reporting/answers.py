"""Parts that the documents of all answers share: interval, memory, power, energy, price, notes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..units import format_interval, format_number, format_si
from .document import Column, KeyFigure

if TYPE_CHECKING:
    from ..sweeps.comparison import Comparison
    from ..timing import Prediction
    from ..timing.answer import Interval
    from ..timing.facility import SiteEnergy
    from ..timing.pipeline_prediction import PipelinePrediction


def format_at_90(interval_s: Interval | None) -> str:
    """Return the 90% interval of a time in parentheses, after a blank; empty without one."""
    return "" if interval_s is None else f" ({format_interval(interval_s)} at 90%)"


def format_shortage(needed_bytes: float, usable_bytes: float) -> str:
    """Return the end of a headline that says that a network does not fit."""
    needed, usable = format_si(needed_bytes, "B"), format_si(usable_bytes, "B")
    return f"; does not fit into memory: needs {needed}, {usable} usable"


def join_notes(named: Iterable[tuple[str, str]]) -> list[str]:
    """Return each of some notes with its name once, after all names that it has; an empty name is left out."""
    names_by_note: dict[str, dict[str, None]] = {}
    for name, note in named:
        names_by_note.setdefault(note, {})[name] = None
    lines = []
    for note, names in names_by_note.items():
        prefix = ", ".join(name for name in names if name)
        lines.append(f"{prefix}: {note}" if prefix else note)
    return lines


def common_notes(comparison: Comparison, notes: Sequence[Sequence[str]]) -> list[str]:
    """Return each of the notes of the answers of a comparison once, with the answers that have it if others do not."""
    indices: dict[str, list[int]] = {}
    for index, of_answer in enumerate(notes):
        for note in dict.fromkeys(of_answer):
            indices.setdefault(note, []).append(index)
    described = {note: comparison.describe(having) for note, having in indices.items()}
    return [f"{answers}: {note}" if answers else note for note, answers in described.items()]


def format_power(prediction: Prediction | PipelinePrediction) -> str:
    """Return the average power of a device with its interval."""
    if prediction.power_w is None:
        return "-"
    power = format_si(prediction.power_w, "W", 3)
    if prediction.power_interval_w is None:
        return power
    low, high = (format_si(end, "W", 3) for end in prediction.power_interval_w)
    return f"{power} ({low} to {high})"


_DEAR_USD = 0.01
"""Price of one product, such as a video, above which the price of one is given in place of that of a million."""


def cost_of_products(usd_per_million: float, product: str) -> tuple[str, str]:
    """Return the cost of products and what it is of: ``("0.35 USD", "per video")``; of cheap ones that of a million."""
    usd = usd_per_million / 1e6
    if usd > _DEAR_USD:
        return f"{format_number(usd)} USD", f"per {product}"
    return f"{format_number(usd_per_million)} USD", f"per million {product}s"


def with_price_of_one(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return columns with the price of one product, such as a video, in place of that of a million, if all are dear."""
    prices = [row["usd_per_million"] for row in rows if row.get("usd_per_million") is not None]
    if not prices or min(prices) / 1e6 <= _DEAR_USD:
        return list(columns)
    return [
        column.replace(title="USD\neach", show=lambda usd: format_number(usd / 1e6))
        if column.key == "usd_per_million"
        else column
        for column in columns
    ]


def price_facts(prediction: Prediction | PipelinePrediction) -> list[tuple[str, str]]:
    """Return the cost of a million samples, or of one if it is dear, with the price that it follows from."""
    price = prediction.device.rent
    if prediction.usd_per_million is None or price is None:
        return []
    product = "token" if prediction.phase == "decode" else getattr(prediction, "made", "sample")
    cost = " ".join(cost_of_products(prediction.usd_per_million, product))
    return [("cost", f"{cost}, at {price.describe()}")]


def energy_figures(prediction: Prediction | PipelinePrediction) -> list[KeyFigure]:
    """Return the energy of a step or a batch, and what it costs at the meter, as main figures of a report."""
    if not prediction.is_forecast or prediction.energy_j is None:
        return []
    detail = f"{format_power(prediction)} per device on average"
    figures = [KeyFigure("Energy of the devices", format_si(prediction.energy_j, "J", 3), detail)]
    for name, text in site_facts(prediction):
        energy, _, others = text.partition(", ")
        figures.append(KeyFigure(f"Energy {name}", energy, others))
    return figures


def site_facts(prediction: Prediction | PipelinePrediction) -> list[tuple[str, str]]:
    """Return the energy at the meter and what it costs, if the user describes the facility."""
    if prediction.facility is None or prediction.site is None:
        return []
    return [("at the meter", site_text(prediction.site, prediction.facility.describe()))]


SMALL_USD = 1e-3
"""Below it, a batch's cost of electricity is given for a million batches."""


def site_text(site: SiteEnergy, added: str) -> str:
    """Return an energy at the meter and what it costs as text.

    `added` is what the meter adds to the energy of the devices, as text; empty if nothing.
    """
    parts = [format_si(site.energy_j, "J", 3)]
    if site.usd is not None:
        is_small = site.usd < SMALL_USD
        amount = format_number(1e6 * site.usd if is_small else site.usd)
        parts.append(f"{amount} USD of electricity" + (" per million batches" if is_small else ""))
    if site.co2_g is not None:
        parts.append(f"{format_number(site.co2_g)} g of CO2")
    return ", ".join(parts) + (f", with {added}" if added else "")

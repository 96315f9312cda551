"""Parts that the documents of all answers share: interval, memory, power, energy, price, notes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ..units import format_interval, format_number, format_si
from .columns import find_column, part_column, select_columns
from .document import Column, Document, KeyFigure, Table
from .formats import format_bytes

if TYPE_CHECKING:
    from ..sweeps.comparison import Comparison
    from ..timing import Prediction
    from ..timing.answer import Interval
    from ..timing.facility import SiteEnergy
    from ..timing.memory import MemoryFit
    from ..timing.memory_ranges import MemoryAt, MemoryRanges
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


_MEANINGS = {
    "parameters": "weights, and running statistics of batch norms",
    "frozen parameters": "weights that are not trained",
    "gradients": "of the weights",
    "optimizer": "optimizer state",
    "activations": "saved for the backward pass",
    "inputs": "inputs of the network",
    "cache": "KV cache: keys and values of all previous tokens",
    "workspace": "temporary tensors at the peak: outputs not saved, activation gradients",
    "scratch": "what libraries of convolutions take beside the tensors",
    "logits": "logits of all tokens, and their copies and gradients in the loss",
}


def memory_fact(fit: MemoryFit) -> tuple[str, str]:
    """Return the fact about peak memory: total, usable memory, largest parts, largest batch."""
    memory = fit.memory
    parts = sorted(memory.rows(), key=lambda row: -row[1])
    largest_parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts[:4] if size)
    text = f"{format_bytes(memory.total_bytes)} of {format_bytes(fit.usable_bytes)} usable: {largest_parts}"
    text += f"; {describe_largest(fit)}"
    return "peak memory", text if fit.fits else f"DOES NOT FIT, {text}"


def describe_largest(fit: MemoryFit) -> str:
    """Return the largest batch that fits; of several micro-batches, of which every number fits, their largest size."""
    if fit.largest_batch is None:
        return "not even one sample fits"
    if fit.micro_batches > 1:
        return f"largest micro-batch {fit.largest_micro_batch:,}"
    return f"largest batch {fit.largest_batch:,}"


def describe_fitting(fit: MemoryFit) -> str:
    """Return what fits instead of what does not: the largest batch, and the first remedy that helps alone."""
    helpful = [remedy.options for remedy in fit.remedies if remedy.fits]
    remedy = f"with `{helpful[0]}`" if helpful else ""
    if fit.largest_batch is None:
        return f"fits {remedy}" if remedy else "not even one sample fits"
    # Of several micro-batches every number fits, if one does.
    batch = f"fits up to batch {fit.largest_batch:,}"
    if fit.micro_batches > 1:
        batch = f"fits up to micro-batch {fit.largest_micro_batch:,}"
    return f"{batch}, or {remedy}" if remedy else batch


def memory_tables(fit: MemoryFit, by_part: bool) -> list[Table]:
    """Return the peak memory by part, if requested, and remedies, if it does not fit."""
    tables = []
    if by_part:
        tables.append(_memory_part_table(fit))
    if not fit.fits and fit.remedies:
        command = "predict" if fit.optimizer is None else "train"
        columns = select_columns(
            find_column("remedy", key="name", drop_order=1),
            find_column("remedy_options", key="options", title=f"options of {command}"),
            find_column("memory_bytes", key="total_bytes"),
            "fits",
            "largest_batch" if fit.optimizer is None else "largest_micro_batch",
            "time_ratio",
        )
        title = f"Remedies, best first ({format_bytes(fit.usable_bytes)} usable)"
        tables.append(Table(title, columns, [msgspec.structs.asdict(remedy) for remedy in fit.remedies]))
    return tables


def _memory_part_table(fit: MemoryFit) -> Table:
    """Return the peak memory by part."""
    meanings = dict(_MEANINGS)
    if fit.optimizer is None:
        meanings["activations"] = "maximum alive at the same time"
    else:
        meanings["optimizer"] = f"{fit.optimizer}: {_MEANINGS['optimizer']}"
    total = fit.memory.total_bytes
    parts = []
    for name, size in fit.memory.rows():
        if size or name in ("parameters", "activations"):
            parts.append({"part": name, "bytes": size, "share": size / total, "meaning": meanings[name]})
    columns = select_columns("part", "bytes", "share", "meaning", drop=("meaning",))
    return Table("Peak memory", columns, parts, [{"part": "total", "bytes": total, "share": 1.0}])


def memory_ranges_page(ranges: MemoryRanges) -> Document:
    """Return the document of `MemoryRanges`: a table over the batch size, and one over the tokens."""
    title = f"{ranges.network} on {ranges.gpu_name}, {ranges.precision} {ranges.phase}: peak memory by part"
    tables = [
        _table(f"Over the batch size, {ranges.over_batch[0].tokens:,} tokens", ranges.over_batch),
        _table(f"Over the tokens per sequence, batch {ranges.over_tokens[0].batch_size}", ranges.over_tokens),
    ]
    notes = tuple(f"left out: {reason}" for reason in ranges.left_out)
    return Document(title, content=tables, notes=notes)


def _table(title: str, points: Sequence[MemoryAt]) -> Table:
    names = [name for name in dict(points[0].fit.memory.rows()) if any(dict(p.fit.memory.rows())[name] for p in points)]
    columns = select_columns("batch_size", find_column("sequence_length", key="tokens"))
    columns += [part_column(name, format_bytes) for name in names]
    columns += select_columns(find_column("memory_bytes", key="total_bytes"), "fits")
    rows = []
    for point in points:
        parts = dict(point.fit.memory.rows())
        rows.append(
            {
                "batch_size": point.batch_size,
                "tokens": point.tokens,
                **{name: parts[name] for name in names},
                "total_bytes": point.fit.memory.total_bytes,
                "fits": point.fit.fits,
            }
        )
    return Table(title, columns, rows)

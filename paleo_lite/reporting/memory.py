"""Documents of peak memory: by part, what would make it fit, and over the batch size and the length of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from .columns import find_column, part_column, select_columns
from .document import Document, Table
from .formats import format_bytes

if TYPE_CHECKING:
    from ..timing.memory import MemoryFit
    from ..timing.memory_ranges import MemoryAt, MemoryRanges

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

"""Document of the peak memory of a language model over the batch size and over the length of sequences."""

from __future__ import annotations

from collections.abc import Sequence

from ..timing.memory_ranges import MemoryAt, MemoryRanges
from .columns import find_column, part_column, select_columns
from .document import Document, Table, format_bytes


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

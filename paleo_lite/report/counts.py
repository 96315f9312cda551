"""Layer counts to look at."""

from __future__ import annotations

from ..networks import LayerCounts
from ..units import format_shape, format_si
from .document import Column, Document, Table


def counts_page(counts: LayerCounts) -> Document:
    """The layerwise table, with totals and shares by kind."""
    convention = counts.work.convention
    rows = list(counts.rows())
    ignored = len(counts.work.names) - len(rows)
    layers = Table(
        "Layers (shapes of one sample)",
        [
            Column("name", "layer", left=True),
            Column("kind", "kind", left=True, spare=1),
            Column("input_shape", "input", format_shape, spare=4),
            Column("output_shape", "output", format_shape, spare=2),
            Column("weight_shape", "weight", format_shape, spare=3),
            Column("macs", "MAC", lambda value: f"{value:,}", spare=5),
            Column("parameters", "parameters", lambda value: f"{value:,}" if value else "-"),
            Column("count", convention.unit, lambda value: f"{value:,}"),
        ],
        rows,
        [
            {
                "name": "total",
                "count": counts.total,
                "parameters": sum(row["parameters"] for row in rows),
                "macs": sum(row["macs"] for row in rows),
            }
        ],
    )
    kinds = Table(
        "By kind",
        [
            Column("kind", "kind", left=True),
            Column("layers", "layers"),
            Column("count", convention.unit, lambda value: f"{value:,}"),
            Column("share", "share", lambda value: f"{value:.2%}"),
        ],
        [{"kind": kind, **entry} for kind, entry in counts.by_kind().items()],
        [{"kind": "total", "layers": len(rows), "count": counts.total, "share": 1.0 if counts.total else 0.0}],
    )
    batch = "" if counts.batch_size == 1 else f", batch {counts.batch_size}"
    facts = [("convention", f"{convention.name}: {convention.meaning}"), ("source", counts.network.source)]
    if counts.work.execution != "eager":
        facts.append(("execution", f"{counts.work.execution}: {counts.kernels} kernels"))
    if ignored:
        facts.append(("ignored", f"{ignored} layers"))
    return Document(
        f"{counts.network.name}, {counts.phase}{batch}: {format_si(counts.total, convention.unit, 6)}, "
        f"{format_si(counts.network.parameters, '', 6)} parameters",
        facts,
        [layers, kinds],
        counts.notes,
        layers,
    )

"""Networks to look at, and their counts layer by layer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..architectures import CountsBeside, LayerCounts, Network
from ..counting import CONSTANT, INPUT
from ..units import format_shape, format_si
from .document import Column, Document, Table, raw_table, say_count, say_many


def networks_page(rows: list[dict[str, Any]]) -> Document:
    """All shipped networks, a line each."""
    table = Table(
        "",
        [
            Column("name", "name", left=True),
            Column("input_shape", "input", format_shape),
            Column("layers", "layers", spare=1),
            Column("parameters", "parameters", format_si),
            Column("macs", "MACs", format_si),
            Column("flops", "FLOPs", format_si),
            Column("source", "source", left=True, fold=True, spare=2),
        ],
        rows,
    )
    return Document(f"{len(rows)} networks; MACs and FLOPs of inference, batch 1", (), [table])


def network_dict(network: Network) -> dict[str, Any]:
    """A network as JSON: the fields of every layer by name."""
    return {
        "name": network.name,
        "source": network.source,
        "inputs": [list(shape) for shape in network.inputs],
        "parameters": network.parameters,
        "notes": list(network.notes),
        "layers": [
            {
                **layer._asdict(),
                "parents": [_parent(network, index) for index in layer.parents],
            }
            for layer in network.layers
        ],
    }


def _parent(network: Network, index: int) -> str:
    return {INPUT: "(input)", CONSTANT: "(constant)"}.get(index) or network.layers[index].name


def network_page(network: Network) -> Document:
    """The layers of a network."""
    rows = [
        {
            "name": layer.name,
            "kind": layer.kind,
            "inputs": ", ".join(format_shape(shape) for shape in layer.inputs),
            "outputs": ", ".join(format_shape(shape) for shape in layer.outputs),
            "parents": ", ".join(_parent(network, index) for index in layer.parents),
            "attributes": ", ".join(f"{name}={_short(value)}" for name, value in layer.attributes.items()),
        }
        for layer in network.layers
    ]
    table = Table(
        "Layers",
        [
            Column("name", "layer", left=True),
            Column("kind", "kind", left=True),
            Column("inputs", "input", left=True, fold=True, spare=3),
            Column("outputs", "output", left=True, fold=True, spare=1),
            Column("parents", "parents", left=True, fold=True, spare=4),
            Column("attributes", "attributes", left=True, fold=True, spare=2),
        ],
        rows,
    )
    facts = [
        ("source", network.source),
        ("input", ", ".join(format_shape(shape) for shape in network.inputs)),
        ("parameters", f"{network.parameters:,}"),
    ]
    return Document(f"{network.name}: {len(rows)} layers", facts, [table], network.notes)


def _short(value: Any) -> str:
    return format_shape(tuple(value)) if isinstance(value, list) else str(value)


def counts_page(counts: LayerCounts, depth: int | None = None, top: int | None = None) -> Document:
    """The counts of a network by module, or its largest layers, with shares by kind. CSV gives all layers.

    Parameters
    ----------
    depth : int, optional
        Levels of modules to show; without it as many as are readable.
    top : int, optional
        List so many of the layers with the largest counts instead.
    """
    unit, rows = counts.work.convention.unit, list(counts.rows())
    total = {
        "name": "total",
        "count": counts.total,
        "parameters": sum(row["parameters"] for row in rows),
        "macs": sum(row["macs"] for row in rows),
        "share": 1.0 if counts.total else None,
    }
    layers = Table("Layers (shapes of one sample)", _columns(unit), rows, [total])
    if top is not None:
        largest = sorted(rows, key=lambda row: -(row["count"] or 0))[:top]
        title = f"Largest layers, {len(largest)} of {len(rows)} (shapes of one sample)"
        shown = layers.but(title=title, rows=_shared(largest, counts), columns=[*layers.columns, _SHARE], foot=[])
    else:
        tree = counts.modules(depth)
        whole = len(rows) == sum(row["kind"] is not None for row in tree)
        levels = say_many(max((row["level"] for row in tree), default=0) + 1, "level")
        title = layers.title if whole else f"Modules, {levels} (--depth shows more)"
        indented = [
            {**row, "name": "  " * row["level"] + row["name"], "kind": row["kind"] or say_many(row["layers"], "layer")}
            for row in _shared(tree, counts)
        ]
        shown = layers.but(title=title, rows=indented, columns=[*layers.columns, _SHARE])
    kinds = Table(
        "By kind",
        [
            Column("kind", "kind", left=True),
            Column("layers", "layers"),
            Column("count", unit, say_count),
            Column("share", "share", lambda value: f"{value:.2%}"),
        ],
        [{"kind": kind, **entry} for kind, entry in counts.by_kind().items()],
        [{"kind": "total", "layers": len(rows), "count": counts.total, "share": 1.0 if counts.total else 0.0}],
    )
    batch = "" if counts.batch_size == 1 else f", batch {counts.batch_size}"
    return Document(
        f"{counts.network.name}, {counts.phase}{batch}: {format_si(counts.total, unit, 6)}, "
        f"{format_si(counts.network.parameters, '', 6)} parameters",
        _facts(counts),
        [shown, kinds],
        counts.notes,
        raw_table(rows, _KEYS),
    )


def counts_beside_page(beside: CountsBeside) -> Document:
    """Several networks, a line each, with the share of convolutions."""
    first = beside.counts[0]
    convention = first.work.convention
    columns = [
        Column("network", "network", left=True),
        Column("layers", "layers", spare=3),
        Column("parameters", "parameters", say_count),
        Column("frozen_parameters", "frozen", say_count, spare=4),
        Column("macs", "MAC", say_count, spare=2),
        Column("count", convention.unit, say_count),
        Column("convolution_count", "in convolutions", say_count, spare=1),
        Column("convolution_share", "share of\nconvolutions", lambda value: f"{value:.2%}"),
    ]
    rows = list(beside.rows())
    data = raw_table(rows)
    if convention.unit == "MAC":
        columns = [column for column in columns if column.key != "macs"]
    if not any(row["frozen_parameters"] for row in rows):
        columns = [column for column in columns if column.key != "frozen_parameters"]
    batch = "" if first.batch_size == 1 else f", batch {first.batch_size}"
    notes = (f"{counts.network.name}: {note}" for counts in beside.counts for note in counts.notes)
    facts = [("convention", f"{convention.name}: {convention.meaning}")]
    table = Table("", columns, rows, sortable=True)
    return Document(f"{len(rows)} networks, {first.phase}{batch}", facts, [table], tuple(notes), data)


_KEYS = ("name", "kind", "input_shape", "output_shape", "weight_shape", "macs", "parameters", "count")
_SHARE = Column("share", "share", lambda value: f"{value:.2%}", spare=1)


def _columns(unit: str) -> list[Column]:
    """Of layers; multiply-accumulates have a column of their own where they are not what is counted."""
    macs = [] if unit == "MAC" else [Column("macs", "MAC", say_count, spare=6)]
    return [
        Column("name", "layer", left=True),
        Column("kind", "kind", left=True, spare=2),
        Column("input_shape", "input", format_shape, spare=5),
        Column("output_shape", "output", format_shape, spare=3),
        Column("weight_shape", "weight", format_shape, spare=4),
        *macs,
        Column("parameters", "parameters", lambda value: say_count(value) if value else "-"),
        Column("count", unit, say_count),
    ]


def _shared(rows: Iterable[dict[str, Any]], counts: LayerCounts) -> list[dict[str, Any]]:
    """Rows with their share of the total."""
    total = counts.total
    return [{**row, "share": None if row["count"] is None or not total else row["count"] / total} for row in rows]


def _facts(counts: LayerCounts) -> list[tuple[str, str]]:
    convention, network = counts.work.convention, counts.network
    frozen, used = counts.frozen_parameters, sum(layer.parameters for layer in network.layers)
    facts = [("convention", f"{convention.name}: {convention.meaning}"), ("source", network.source)]
    if network.parameters:
        unused = f", {network.parameters - used:,} that no layer uses" if network.parameters > used else ""
        facts.append(("parameters", f"{used - frozen:,} trainable, {frozen:,} frozen{unused}"))
    if counts.convolution_share:
        facts.append(("convolutions", f"{counts.convolution_share:.2%} of the {convention.unit}s"))
    if counts.work.execution != "eager":
        facts.append(("execution", f"{counts.work.execution}: {counts.kernels} kernels"))
    if ignored := len(counts.work.names) - len(counts.reported):
        facts.append(("ignored", f"{ignored} layers"))
    return facts

"""Networks to look at."""

from __future__ import annotations

from typing import Any

from ..counting import CONSTANT, INPUT
from ..networks import Network
from ..units import format_shape, format_si
from .document import Column, Document, Table


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

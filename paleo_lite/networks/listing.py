"""A line for each shipped network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..counting import count
from .catalog import find_network


def network_rows(names: Iterable[str]) -> list[dict[str, Any]]:
    """Name, input shape of one sample, layers, parameters, MACs and FLOPs of inference at batch 1, source."""
    rows = []
    for name in names:
        network = find_network(name)
        work = count(network.layers)
        rows.append(
            {
                "name": network.name,
                "input_shape": list(network.inputs[0][1:]),
                "layers": len(network.layers),
                "parameters": network.parameters,
                "macs": int(work.column("macs", "inference").sum()),
                "flops": int(work.column("flops", "inference").sum()),
                "source": network.source,
            }
        )
    return rows

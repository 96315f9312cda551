"""Rows of a prediction, one for each layer or kernel, and their sums by kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..counting.work import Work
from .terms import LaunchedKernels, Terms

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


def layer_rows(
    work: Work,
    terms: Terms,
    bound_terms: Terms,
    flops: Ints,  # of each layer
    moved_bytes: Ints,  # of each layer
    *,
    uses_memory: bool,  # whether memory traffic contributes to the time of the model
) -> Iterator[dict[str, Any]]:
    """Yield the row of each layer (`Prediction.rows`)."""
    layers_s, bound_s = terms.layers_s.sum(0), bound_terms.layers_s.sum(0)
    # With several passes, the bound of the larger part of the time.
    signed_s = np.where(terms.compute_s >= terms.memory_s, terms.layers_s, -terms.layers_s).sum(0)
    is_memory_bound = (signed_s < 0) & uses_memory
    for index, name in enumerate(work.names):
        bound = "memory" if is_memory_bound[index] else "compute"
        if not work.counted[index]:
            bound = "unknown"
        elif work.carrier is not None and work.carrier[index] != index:
            bound = "fused"
        elif not layers_s[index]:
            bound = "nothing"
        yield {
            "name": name,
            "kind": work.kinds[index],
            "flops": int(flops[index]) if work.counted[index] else None,
            "bytes": int(moved_bytes[index]),
            "time_s": float(layers_s[index]),
            "bound_s": float(bound_s[index]),
            "bound": bound,
        }


def kernel_rows(launched: LaunchedKernels, terms: Terms, bound_terms: Terms) -> Iterator[dict[str, Any]]:
    """Yield the row of each kernel of an engine."""
    assert terms.floor_s is not None
    seconds, bound_s = terms.layers_s.sum(axis=0), bound_terms.layers_s.sum(axis=0)
    longest = np.argmax(np.stack([terms.compute_s, terms.memory_s, terms.floor_s]).sum(axis=1), axis=0)
    for index, name in enumerate(launched.names):
        yield {
            "name": name,
            "kind": launched.kinds[index],
            "flops": round(float(launched.flops[index])),
            "bytes": round(float(launched.bytes[index])),
            "time_s": float(seconds[index]),
            "bound_s": float(bound_s[index]),
            "bound": ("compute", "memory", "launch")[longest[index]],
            "launches": int(launched.launches[index]),
        }


def sum_by_kind(
    rows: Iterable[dict[str, Any]],
    energy_j: Floats | None,  # of each row
    time_s: float,  # of the whole step
) -> dict[str, dict[str, Any]]:
    """Return the sums of the rows of each kind, longest first."""
    kinds: dict[str, dict[str, Any]] = {}
    for index, row in enumerate(rows):
        entry = kinds.setdefault(row["kind"], {"layers": 0, "flops": 0, "bytes": 0, "time_s": 0.0})
        entry["layers"] += 1
        if energy_j is not None:
            entry["energy_j"] = entry.get("energy_j", 0.0) + float(energy_j[index])
        if "launches" in row:
            entry["launches"] = entry.get("launches", 0) + row["launches"]
        for key in ("flops", "bytes", "time_s"):
            entry[key] = None if row[key] is None or entry[key] is None else entry[key] + row[key]
    for entry in kinds.values():
        entry.setdefault("energy_j", None)
        entry["share"] = entry["time_s"] / time_s if time_s else 0.0
    return dict(sorted(kinds.items(), key=lambda item: (-item[1]["time_s"], item[0])))

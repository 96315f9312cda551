"""Counts of a pipeline: multiply-accumulates and parameters of each part, by kind of product."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from ...counting import count
from ...counting.kinds import class_of
from ...result import Result
from .records import Pipeline
from .sampling import PartRuns, Sampling, part_runs

PRODUCTS = ("convolution", "attention", "linear", "other")
"""Kinds of products, the keys of the shares."""


class PipelineCounts(Result, msgspec.Struct, frozen=True, eq=False):
    """Counts of the parts of a pipeline."""

    _page: ClassVar[str] = "paleo_lite.reporting.pipelines:counts_page"

    pipeline: Pipeline
    sampling: Sampling  # what is asked of it
    # One per part: its role, network, runs and samples; multiply-accumulates of one run and of all; the share of
    # each of `PRODUCTS` in them; parameters and layers. On a device also the seconds and joules of all runs.
    parts: list[dict[str, Any]]
    # Device, precision, seconds, joules and energy at the meter of a batch; None without a device.
    on: dict[str, Any] | None = None
    # Seconds and joules by kind of layer, most joules first; None without a device.
    by_kind: dict[str, dict[str, Any]] | None = None
    surroundings: str = ""  # what the energy at the meter adds to that of the devices, as text

    def rows(self) -> list[dict[str, Any]]:
        """Return one dict per part."""
        return self.parts

    @property
    def total(self) -> dict[str, Any]:
        """Multiply-accumulates of a batch, their shares, and the parameters that are loaded."""
        macs = sum(row["all_macs"] for row in self.parts)
        shares = {name: sum(row[name] * row["all_macs"] for row in self.parts) / macs for name in PRODUCTS}
        return {"all_macs": macs, **shares, "parameters": sum(row["parameters"] for row in self.parts)}

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON."""
        return {
            "network": self.pipeline.name,
            **msgspec.structs.asdict(self.sampling),
            "parts": self.parts,
            "total": self.total,
            "on": self.on,
            "by_kind": self.by_kind,
        }


def count_pipeline(pipeline: Pipeline, sampling: Sampling) -> PipelineCounts:
    """Count the parts of a pipeline at inference."""
    return PipelineCounts(pipeline, sampling, [_count_part(runs) for runs in part_runs(pipeline, sampling)])


def _count_part(runs: PartRuns) -> dict[str, Any]:
    layers = runs.network.layers
    macs = count(layers).column("macs", "inference", runs.samples)[0]
    by_product = dict.fromkeys(PRODUCTS, 0)
    for layer, number in zip(layers, macs.tolist()):
        by_product[_product_of(layer.kind, class_of(layer))] += number
    total = sum(by_product.values())
    is_loaded = not runs.part.is_loaded_before
    return {
        "part": runs.part.role,
        "network": runs.part.descriptor,
        "runs": runs.runs,
        "samples": runs.samples,
        "macs": total,
        "all_macs": runs.runs * total,
        **{name: number / max(total, 1) for name, number in by_product.items()},
        "parameters": runs.part.copies * runs.network.parameters if is_loaded else 0,
        "layers": len(layers),
    }


def _product_of(kind: str, work_class: str | None) -> str:
    """Return the kind of product of a layer, one of `PRODUCTS`."""
    if work_class is not None and work_class.startswith("conv"):
        return "convolution"
    return kind if kind in PRODUCTS else "other"

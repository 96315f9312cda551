"""Base of all sweep spaces: axes, and one row per combination of their values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from ..errors import BadValue
from ..result import Result
from .inputs import COMBINATIONS, files_of_network, hash_of_file, shared_inputs


class AxisSpace(Result):
    """Mixin of a space of all combinations of the values of its axes."""

    __slots__ = ()
    _page: ClassVar[str] = "paleo_lite.reporting.sweep:size_lines"
    kind: ClassVar[str]  # name of the kind of sweep
    dimensions: ClassVar[tuple[str, ...]] = ()  # attributes with the values of the axes
    titles: ClassVar[Mapping[str, str]] = {}  # names of axes in texts, where they differ from those of the attributes
    # Measured rows per second of one core, and bytes per row in Parquet, for estimates.
    rows_per_s: ClassVar[float]
    row_bytes: ClassVar[float] = 300
    hardware_files: tuple[str, ...]
    networks: tuple[str, ...]
    chunk_count: Any  # number of chunks

    def to_dict(self) -> dict[str, Any]:
        """Return the total number of combinations and of chunks."""
        return {"rows": self.size, "chunks": self.chunk_count}

    def values_by_axis(self) -> dict[str, tuple[Any, ...]]:
        """Return the values of every axis."""
        return {name: getattr(self, name) for name in self.dimensions}

    def check_axes(self) -> None:
        """Raise an error if an axis is empty or has a duplicate."""
        for name, values in self.values_by_axis().items():
            title = self.title_of(name)
            if not values:
                raise BadValue(f"the sweep needs at least one value of {title}")
            if len(set(values)) < len(values):
                duplicates = "see the ranges"
                if len(values) < 1000:
                    duplicates = ", ".join(sorted({str(value) for value in values if values.count(value) > 1}))
                raise BadValue(f"the sweep has duplicate {title}: {duplicates}")

    def title_of(self, dimension: str) -> str:
        """Return the name of an axis as shown: ``power limits``."""
        return self.titles.get(dimension, dimension.removesuffix("_w").replace("_", " "))

    def describe(self) -> str:
        """Return the number of values per axis as text: ``2 networks x 70 gpus x 11 batch sizes``."""
        axes = []
        for name, values in self.values_by_axis().items():
            if len(values) > 1:
                axes.append(f"{len(values):,} {self.title_of(name)}")
        return " x ".join(axes) or "1 of each"

    def hours(self) -> float:
        """Return the estimated time of a single core, in hours."""
        return self.size / self.rows_per_s / 3600

    def gigabytes(self) -> float:
        """Return the estimated size of the output in GB."""
        return self.size * self.row_bytes / 1e9

    @property
    def size(self) -> int:
        """Number of combinations."""
        return prod(len(values) for values in self.values_by_axis().values())

    def inputs(self) -> dict[str, str]:
        """Return a hash of everything that the results depend on, by what it is; see `sweeps.inputs`."""
        axes = json.dumps([self.kind, msgspec.to_builtins(self)])
        hashes = {COMBINATIONS: hashlib.sha256(axes.encode()).hexdigest(), **shared_inputs()}
        for path in self.hardware_files:
            hashes[str(path)] = hash_of_file(Path(path))
        for network in self.networks:
            for file in files_of_network(network):
                hashes[str(file)] = hash_of_file(file)
        return hashes

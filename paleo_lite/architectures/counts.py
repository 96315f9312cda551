"""`LayerCounts`: counts of a network per layer in one convention, and their sums per module."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import msgspec

from ..counting import KINDS, Work, count
from ..counting.kinds import user_rules_note
from ..errors import UnknownName
from ..extras import require
from ..result import Result
from ..units import format_si
from .network import Network


class LayerCosts(msgspec.Struct, frozen=True, eq=False):
    """Predicted seconds and joules of the layers of a network on a device.

    Attributes
    ----------
    gpu, precision : str
        The device and the precision.
    layers_s, layers_j : tuple of float
        Seconds and joules of each layer.
    overhead_s, overhead_j : float
        Those of the step that belong to no layer.
    site : dict or None
        Energy of the step at the meter, its cost and its CO2; None if the facility is not described.
    surroundings : str
        What the energy at the meter adds to that of the device, as text; empty if nothing.
    """

    gpu: str
    precision: str
    layers_s: tuple[float, ...]
    layers_j: tuple[float, ...]
    overhead_s: float
    overhead_j: float
    site: dict[str, float | None] | None = None
    surroundings: str = ""

    @property
    def time_s(self) -> float:
        """Seconds of the step."""
        return sum(self.layers_s) + self.overhead_s

    @property
    def energy_j(self) -> float:
        """Joules of the step."""
        return sum(self.layers_j) + self.overhead_j

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON."""
        return {
            "gpu": self.gpu,
            "precision": self.precision,
            "time_s": self.time_s,
            "energy_j": self.energy_j,
            "overhead_s": self.overhead_s,
            "overhead_j": self.overhead_j,
            "site": self.site,
        }


class LayerCounts(Result, msgspec.Struct, frozen=True, eq=False):
    """Counts per layer.

    Attributes
    ----------
    network : Network
        The counted network.
    work : Work
        Work of all layers, including the ignored ones.
    phase : str
        Phase or pass that is counted.
    batch_size : int
        Samples.
    reported : tuple of int
        Indices of the layers that are reported.
    costs : LayerCosts or None
        What the layers take on a device; None without one.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.networks:counts_page"

    network: Network
    work: Work
    phase: str
    batch_size: int
    reported: tuple[int, ...]
    costs: LayerCosts | None = None

    @property
    def total(self) -> int:
        """Sum over the reported layers that the convention has a rule for."""
        counts = self.work.counts(self.phase, self.batch_size)
        return sum(counts[list(self.reported)].tolist())

    @property
    def convolution_count(self) -> int:
        """Count of all convolutions."""
        counts = self.work.counts(self.phase, self.batch_size)
        kinds = self.work.kinds
        return sum(int(counts[index]) for index in self.reported if is_convolution(kinds[index]))

    @property
    def convolution_share(self) -> float | None:
        """Fraction of the total that is due to convolutions; None where the total is 0."""
        total = self.total
        return self.convolution_count / total if total else None

    @property
    def frozen_parameters(self) -> int:
        """Frozen parameters of the whole network."""
        return sum(layer.parameters for layer in self.network.layers if layer.is_frozen)

    @property
    def kernels(self) -> int:
        """Number of kernels that the reported layers launch."""
        kernels = self.work.column("kernels", self.phase, self.batch_size)
        return int(kernels[:, list(self.reported)].sum())

    @property
    def unknown(self) -> tuple[str, ...]:
        """Reported layers of a kind that the convention has no rule for."""
        work = self.work
        return tuple(f"{work.names[i]} ({work.kinds[i]})" for i in self.reported if not work.counted[i])

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks about the counts: those of the network, user-defined rules, and layers without a rule."""
        notes = list(self.network.notes)
        custom_rules = user_rules_note([self.work.kinds[index] for index in self.reported])
        if custom_rules:
            notes.append(custom_rules)
        unknown = self.unknown
        if unknown:
            listed = ", ".join(unknown[:10])
            if len(unknown) > 10:
                listed += f" and {len(unknown) - 10} more"
            notes.append(f"not counted, the {self.work.convention.name} convention has no rule for: {listed}")
        return tuple(notes)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Iterate over one dict per reported layer.

        ``count`` is None where the convention has no rule; shapes are those of one sample. On a device, ``time_s`` and
        ``energy_j`` are what the layer takes.
        """
        counts = self.work.counts(self.phase, self.batch_size)
        macs = self.work.column("macs", self.phase, self.batch_size).sum(axis=0)
        for index in self.reported:
            layer = self.network.layers[index]
            yield {
                "name": layer.name,
                "kind": layer.kind,
                "count": int(counts[index]) if self.work.counted[index] else None,
                "macs": int(macs[index]),
                "parameters": layer.parameters,
                "input_shape": list(layer.inputs[0]) if layer.inputs else None,
                "output_shape": list(layer.outputs[0]) if layer.outputs else None,
                "weight_shape": list(layer.weights[0]) if layer.weights else None,
                **self._costs_of(index),
            }

    def _costs_of(self, index: int) -> dict[str, float]:
        if self.costs is None:
            return {}
        return {"time_s": self.costs.layers_s[index], "energy_j": self.costs.layers_j[index]}

    def modules(self, depth: int | None = None) -> list[dict[str, Any]]:
        """Return layers and sums per module down to a depth; see `paleo_lite.architectures.counts.module_rows`."""
        return module_rows(self.rows(), depth)

    def by_kind(self) -> dict[str, dict[str, Any]]:
        """Return layers, count and share of the total per kind, largest first.

        The count is None for a kind that the convention has no rule for. On a device, each has its seconds and joules,
        and the kinds with the most joules come first.
        """
        kinds: dict[str, dict[str, Any]] = {}
        costs = () if self.costs is None else ("time_s", "energy_j")
        for row in self.rows():
            entry = kinds.setdefault(row["kind"], {"layers": 0, "count": 0, **dict.fromkeys(costs, 0.0)})
            entry["layers"] += 1
            for name in costs:
                entry[name] += row[name]
            if row["count"] is None or entry["count"] is None:
                entry["count"] = None
            else:
                entry["count"] += row["count"]
        total = self.total
        for entry in kinds.values():
            if entry["count"] is None:
                entry["share"] = None
            else:
                entry["share"] = entry["count"] / total if total else 0.0
        largest = "energy_j" if costs else "count"
        return dict(sorted(kinds.items(), key=lambda item: (-(item[1][largest] or 0), item[0])))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON representation; its keys are stable."""
        return {
            "network": self.network.name,
            "convention": self.work.convention.name,
            "unit": self.work.convention.unit,
            "phase": self.phase,
            "batch_size": self.batch_size,
            "execution": self.work.execution,
            "kernels": self.kernels,
            "total": self.total,
            "macs": sum(row["macs"] for row in self.rows()),
            "parameters": self.network.parameters,
            "frozen_parameters": self.frozen_parameters,
            "convolution_share": self.convolution_share,
            "on": None if self.costs is None else self.costs.to_dict(),
            "unknown": list(self.unknown),
            "notes": list(self.notes),
            "by_kind": self.by_kind(),
            "layers": list(self.rows()),
        }

    def to_frame(self) -> Any:
        """Return the layers as a pandas DataFrame."""
        return require("pandas", "a data frame", "profiles").DataFrame(list(self.rows()))

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [
            ("network", self.network.name),
            ("convention", self.work.convention.name),
            ("total", format_si(self.total, self.work.convention.unit, 6)),
            ("layers", len(self.reported)),
        ]

    def __repr__(self) -> str:
        return f"LayerCounts({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


class CountsComparison(Result, msgspec.Struct, frozen=True, eq=False):
    """Counts of several networks in one convention.

    Attributes
    ----------
    counts : tuple of LayerCounts
        One or more, in the order of the networks in the question.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.networks:counts_comparison_page"

    counts: tuple[LayerCounts, ...]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Iterate over one dict per network: layers, parameters, MACs, count, convolutions, seconds and joules."""
        for counts in self.counts:
            row = {
                "network": counts.network.name,
                "layers": len(counts.reported),
                "parameters": counts.network.parameters,
                "frozen_parameters": counts.frozen_parameters,
                "macs": sum(row["macs"] for row in counts.rows()),
                "count": counts.total,
                "convolution_count": counts.convolution_count,
                "convolution_share": counts.convolution_share,
            }
            if counts.costs is not None:
                row |= {"time_s": counts.costs.time_s, "energy_j": counts.costs.energy_j}
                if counts.costs.site is not None:
                    row["site_energy_j"] = counts.costs.site["energy_j"]
            yield row

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON representation: that of each network, with all its layers."""
        return {"networks": [counts.to_dict() for counts in self.counts]}

    def __repr__(self) -> str:
        return f"CountsComparison({', '.join(map(repr, self.counts))})"


def is_convolution(kind: str) -> bool:
    """Return whether layers of this kind are convolutions, including transposed ones."""
    return kind in KINDS and KINDS[kind].group == "convolution"


def count_network(
    network: Network,
    convention: str = "flops",
    *,
    phase: str = "inference",
    batch_size: int = 1,
    ignore: Sequence[str] = (),
    precision: str = "fp32",
) -> LayerCounts:
    """Count a network, layer by layer.

    Parameters
    ----------
    network : Network
        The network to count.
    convention : str
        One of `paleo_lite.counting.CONVENTIONS`.
    phase : str
        One of `PHASES` or `PASSES`.
    batch_size : int
        Samples.
    ignore : sequence of str
        Names of layers to leave out, or glob patterns; ``_`` matches ``.`` too, as pthflops prints names.
    precision : str
        Name of the precision, which decides the bytes per element.

    Raises
    ------
    UnknownName
        If the convention or phase is unknown, or a pattern matches no layer.
    """
    work = count(network.layers, precision, convention)
    work.counts(phase, batch_size)  # raise for an invalid phase or batch size before anything is reported
    ignored: set[int] = set()
    for pattern in ignore:
        matches = {
            index
            for index, name in enumerate(work.names)
            if fnmatchcase(name, pattern) or fnmatchcase(name.replace(".", "_"), pattern)
        }
        if not matches:
            raise UnknownName(f"layer of {network.name}", pattern, work.names)
        ignored |= matches
    reported = tuple(index for index in range(len(work.names)) if index not in ignored)
    return LayerCounts(network, work, phase, batch_size, reported)


MAX_READABLE_ROWS = 60
"""Number of rows up to which a tree of modules is shown at a deeper level."""

_SUMMED_COLUMNS = ("macs", "parameters", "time_s", "energy_j")


def module_rows(layers: Iterable[dict[str, Any]], depth: int | None = None) -> list[dict[str, Any]]:
    """Return layers and sums per module, each module before its contents.

    A layer ``layer1.0.conv1`` belongs to the modules ``layer1`` and ``layer1.0``; names from Caffe separate levels by
    ``/`` instead of ``.``.

    Parameters
    ----------
    layers : iterable of dict
        Rows of `LayerCounts.rows`.
    depth : int, optional
        Number of levels; by default as many as give at most `MAX_READABLE_ROWS` rows, and at least one.

    Returns
    -------
    list of dict
        Rows of layers above the depth, and one row per module with its name, the sums of count, macs and parameters,
        and None for the kind. Each row also has its ``level``, from 0, and its number of ``layers``. The count of a
        module is the sum over its counted layers, and None where none is counted.
    """
    rows = _tree(layers)
    if depth is None:
        depth = _readable_depth([row["level"] for row in rows])
    return [row for row in rows if row["level"] < depth]


def _readable_depth(levels: Sequence[int]) -> int:
    """Return the largest depth that shows at most `MAX_READABLE_ROWS` rows, at least 1."""
    for depth in range(max(levels, default=0) + 1, 1, -1):
        if sum(level < depth for level in levels) <= MAX_READABLE_ROWS:
            return depth
    return 1


def _tree(layers: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of all layers and modules; a module comes where its first layer does."""
    modules: dict[str, dict[str, Any]] = {}
    children: dict[str, list[dict[str, Any]]] = {"": []}
    for layer in layers:
        separators = [match.start() for match in re.finditer(r"[./]", layer["name"])]
        parent = ""
        for level, end in enumerate(separators):
            name = layer["name"][:end]
            if name not in modules:
                modules[name] = {
                    "name": name,
                    "kind": None,
                    "level": level,
                    "layers": 0,
                    "count": None,
                    **{column: 0 for column in _SUMMED_COLUMNS if column in layer},
                }
                children[parent].append(modules[name])
                children[name] = []
            module = modules[name]
            module["layers"] += 1
            for column in _SUMMED_COLUMNS:
                if column in layer:
                    module[column] += layer[column]
            if layer["count"] is not None:
                module["count"] = (module["count"] or 0) + layer["count"]
            parent = name
        children[parent].append({**layer, "level": len(separators), "layers": 1})

    def descendants(name: str) -> list[dict[str, Any]]:
        rows = []
        for row in children[name]:
            rows.append(row)
            is_module = row["kind"] is None
            if is_module:
                rows += descendants(row["name"])
        return rows

    return descendants("")

"""`LayerCounts`: the layerwise report of a network in one convention, also as the tree of its modules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import msgspec

from ..counting import KINDS, Work, count
from ..counting.kinds import own_note
from ..errors import UnknownName
from ..extras import need
from ..result import Result
from ..units import format_si
from .network import Network


class LayerCounts(Result, msgspec.Struct, frozen=True, eq=False):
    """Counts per layer.

    Attributes
    ----------
    work : Work
        All its layers, the ignored ones too.
    reported : tuple of int
        Indices of the layers that are reported.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.networks:counts_page"

    network: Network
    work: Work
    phase: str
    batch_size: int
    reported: tuple[int, ...]

    @property
    def total(self) -> int:
        """Sum over the reported layers that have a rule."""
        return sum(self.work.counts(self.phase, self.batch_size)[list(self.reported)].tolist())

    @property
    def convolution_count(self) -> int:
        """The part of the total that convolutions have."""
        counts, kinds = self.work.counts(self.phase, self.batch_size), self.work.kinds
        return int(sum(int(counts[index]) for index in self.reported if is_convolution(kinds[index])))

    @property
    def convolution_share(self) -> float | None:
        """Convolutions' share of the total; None where that is 0."""
        return self.convolution_count / self.total if self.total else None

    @property
    def frozen_parameters(self) -> int:
        """Parameters of the whole network that no gradient reaches, by its descriptor."""
        return sum(layer.parameters for layer in self.network.layers if layer.attributes.get("frozen", False))

    @property
    def kernels(self) -> int:
        """Kernels that the reported layers launch."""
        return int(self.work.column("kernels", self.phase, self.batch_size)[:, list(self.reported)].sum())

    @property
    def unknown(self) -> tuple[str, ...]:
        """Reported layers whose kind the convention has no rule for."""
        return tuple(f"{self.work.names[i]} ({self.work.kinds[i]})" for i in self.reported if not self.work.counted[i])

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the counts should know."""
        own = own_note([self.work.kinds[index] for index in self.reported])
        notes = (*self.network.notes, own) if own else self.network.notes
        if not self.unknown:
            return notes
        shown = ", ".join(self.unknown[:10]) + (f" and {len(self.unknown) - 10} more" if len(self.unknown) > 10 else "")
        missing = f"not counted, the {self.work.convention.name} convention has no rule for: {shown}"
        return (*notes, missing)

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dict per reported layer; count is None where no rule counts it; shapes are those of one sample."""
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
            }

    def modules(self, depth: int | None = None) -> list[dict[str, Any]]:
        """Layers and the sums of their modules down to a depth: see `paleo_lite.architectures.counts.module_rows`."""
        return module_rows(self.rows(), depth)

    def by_kind(self) -> dict[str, dict[str, Any]]:
        """Per kind its layers, count and share of the total, largest first; the count is None where no rule has it."""
        kinds: dict[str, dict[str, Any]] = {}
        for row in self.rows():
            entry = kinds.setdefault(row["kind"], {"layers": 0, "count": 0})
            entry["layers"] += 1
            entry["count"] = None if row["count"] is None or entry["count"] is None else entry["count"] + row["count"]
        total = self.total
        for entry in kinds.values():
            entry["share"] = None if entry["count"] is None else (entry["count"] / total if total else 0.0)
        return dict(sorted(kinds.items(), key=lambda item: (-(item[1]["count"] or 0), item[0])))

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON: stable names."""
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
            "unknown": list(self.unknown),
            "notes": list(self.notes),
            "by_kind": self.by_kind(),
            "layers": list(self.rows()),
        }

    def to_frame(self) -> Any:
        """The layers as a pandas DataFrame."""
        return need("pandas", "a data frame", "profiles").DataFrame(list(self.rows()))

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [
            ("network", self.network.name),
            ("convention", self.work.convention.name),
            ("total", format_si(self.total, self.work.convention.unit, 6)),
            ("layers", len(self.reported)),
        ]

    def __repr__(self) -> str:
        return f"LayerCounts({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


class CountsBeside(Result, msgspec.Struct, frozen=True, eq=False):
    """Counts of several networks in one convention, beside each other.

    Attributes
    ----------
    counts : tuple of LayerCounts
        In the order asked for; one or more.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.networks:counts_beside_page"

    counts: tuple[LayerCounts, ...]

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dict per network: layers, parameters, macs, the count, and what of it convolutions have."""
        for counts in self.counts:
            yield {
                "network": counts.network.name,
                "layers": len(counts.reported),
                "parameters": counts.network.parameters,
                "frozen_parameters": counts.frozen_parameters,
                "macs": sum(row["macs"] for row in counts.rows()),
                "count": counts.total,
                "convolution_count": counts.convolution_count,
                "convolution_share": counts.convolution_share,
            }

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON: that of each network, with all its layers."""
        return {"networks": [counts.to_dict() for counts in self.counts]}

    def __repr__(self) -> str:
        return f"CountsBeside({', '.join(map(repr, self.counts))})"


def is_convolution(kind: str) -> bool:
    """Whether layers of this kind are convolutions, transposed ones included."""
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
    convention : str
        One of `paleo_lite.counting.CONVENTIONS`.
    phase : str
        One of `PHASES` or `PASSES`.
    ignore : sequence of str
        Layer names or globs to leave out; ``_`` may stand for ``.``, as pthflops prints names.

    Raises
    ------
    UnknownName
        If convention or phase are unknown, or a pattern matches no layer.
    """
    work = count(network.layers, precision, convention)
    work.counts(phase, batch_size)  # refuse an impossible phase or batch before anything is reported
    ignored: set[int] = set()
    for pattern in ignore:
        matches = {
            index for index, name in enumerate(work.names)
            if fnmatchcase(name, pattern) or fnmatchcase(name.replace(".", "_"), pattern)
        }  # fmt: skip
        if not matches:
            raise UnknownName(f"layer of {network.name}", pattern, work.names)
        ignored |= matches
    reported = tuple(index for index in range(len(work.names)) if index not in ignored)
    return LayerCounts(network, work, phase, batch_size, reported)


READABLE = 60
"""Rows that a person reads: a tree is shown as deep as it has no more."""

_SUMMED = ("macs", "parameters")


def module_rows(layers: Iterable[dict[str, Any]], depth: int | None = None) -> list[dict[str, Any]]:
    """Layers and the sums of the modules that they belong to, each module before what it holds.

    A layer ``layer1.0.conv1`` belongs to ``layer1`` and ``layer1.0``; Caffe's names have ``/`` for ``.``.

    Parameters
    ----------
    layers : iterable of dict
        Rows of `LayerCounts.rows`.
    depth : int, optional
        Levels to go down to; without it as many as `READABLE` rows hold, and one at least.

    Returns
    -------
    list of dict
        The layers' own rows where they lie no deeper, and a row per module with its name, the sums of count, macs and
        parameters, and None for the kind; ``level``, from 0, and how many ``layers`` belong to it. A sum is of what was
        counted, and None where nothing was.
    """
    rows = _tree(layers)
    if depth is None:
        levels = [row["level"] for row in rows]
        fits = (deep for deep in range(max(levels, default=0) + 1, 1, -1) if sum(n < deep for n in levels) <= READABLE)
        depth = next(fits, 1)
    return [row for row in rows if row["level"] < depth]


def _tree(layers: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """All rows; a module stands where its first layer does, although others may run in between."""
    modules: dict[str, dict[str, Any]] = {}
    inside: dict[str, list[dict[str, Any]]] = {"": []}
    for layer in layers:
        cuts = [match.start() for match in re.finditer(r"[./]", layer["name"])]
        above = ""
        for level, cut in enumerate(cuts):
            name = layer["name"][:cut]
            if name not in modules:
                modules[name] = {"name": name, "kind": None, "level": level, "layers": 0, "count": None,
                                 **dict.fromkeys(_SUMMED, 0)}  # fmt: skip
                inside[above].append(modules[name])
                inside[name] = []
            module, above = modules[name], name
            module["layers"] += 1
            for key in _SUMMED:
                module[key] += layer[key]
            if layer["count"] is not None:
                module["count"] = (module["count"] or 0) + layer["count"]
        inside[above].append({**layer, "level": len(cuts), "layers": 1})

    def below(name: str) -> list[dict[str, Any]]:
        held = []
        for row in inside[name]:
            held += [row, *(below(row["name"]) if row["kind"] is None else ())]
        return held

    return below("")

"""A network's counts as the tree of its modules: sums by the dotted names of layers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

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

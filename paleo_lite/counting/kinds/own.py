"""Rules of a user's own: for an operation that has none, for one that has, or for a whole module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ..gemm import Gemm
from ..layer import Layer, Op
from .kind import NOTHING, Cost, Kind, PassCost, Saved, cost

OwnRule = Callable[[Layer], float | Sequence[float]]
"""From a layer, with the shapes of one sample, to what its forward pass takes, or to that of forward, data gradient
and weight gradient."""

OWN: dict[str, OwnRule] = {}
"""The kinds that a user has a rule for."""

MODULES: dict[type, str] = {}
"""Classes of modules that are one layer each, and the kind of that layer."""


def own_kind(name: str, rule: OwnRule, macs: bool) -> Kind:
    """The record of a kind that a user counts: a kernel of its own, which saves what it reads.

    Parameters
    ----------
    rule : callable
        Where it gives one number, each gradient that is wanted takes as much.
    macs : bool
        Whether it gives multiply-accumulates, which tensor cores can do, or FLOPs.
    """

    def passes(layer: Layer) -> tuple[int, int, int]:
        given = rule(layer)
        numbers = [given] * 3 if isinstance(given, (int, float)) else list(given)
        if len(numbers) != 3 or not all(number >= 0 for number in numbers):
            raise ValueError(f"a rule gives a number of 0 or more, or three, not {given!r}")
        forward, data, weight = (round(number) for number in numbers)
        return forward, data, weight

    def count(op: Op) -> Cost:
        sizes = ((op.x + op.w, op.y), (op.y + op.x + op.w, op.x), (op.y + op.x, op.w))
        forward, data, weight = (
            PassCost(number * op.samples * (2 if macs else 1), number * op.samples if macs else 0, *size)
            for number, size in zip(passes(op.layer), sizes)
        )
        return cost(op, forward, data if op.inputs else NOTHING, weight)

    def product(layer: Layer, part: str) -> Gemm:
        *rows, columns = layer.outputs[0] or (1,)
        return Gemm(prod(rows), columns, max(passes(layer)[0] // max(prod(rows) * columns, 1), 1), 1, "rows")

    return Kind(
        name, count, "gemm" if macs else "elementwise", lambda layer, *_: Saved(tuple(range(len(layer.inputs)))),
        "alone", "matrix product" if macs else "elementwise", "other", splits=False, gemm=product if macs else None,
    )  # fmt: skip

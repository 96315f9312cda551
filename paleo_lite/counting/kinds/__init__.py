"""Layer kinds: one record for each, in one list, and those that a user adds. All that is known is in it.

A kind that has no record has no default either: every function here answers None, and whoever asks says so in a note.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ...errors import CountFailed
from ..layer import NOTHING, Cost, Gemm, Kind, Layer, Op, PassCost, Saved, cost
from . import elementwise, moving, products
from .products import is_attention as is_attention
from .products import is_linear as is_linear
from .products import restores_order as restores_order

KINDS: dict[str, Kind] = {kind.name: kind for family in (products, elementwise, moving) for kind in family.KINDS}
"""Every kind, by name."""

MATRIX_KINDS = {kind.name for kind in KINDS.values() if kind.gemm is not None}
"""Kinds whose work is multiply-accumulates, which tensor cores can do."""

ELEMENTWISE = frozenset(
    kind.name for kind in KINDS.values() if kind.fusion == "pointwise" and kind.group in ("activation", "elementwise")
)
"""Activations and arithmetic on tensors of (broadcast) equal shape."""

ACTIVATIONS = frozenset(name for name in ELEMENTWISE if KINDS[name].group == "activation")
"""Activation functions of single elements."""

OwnRule = Callable[[Layer], float | Sequence[float]]
"""From a layer, with the shapes of one sample, to what its forward pass takes, or to that of forward, data gradient
and weight gradient."""

OWN: dict[str, OwnRule] = {}
"""The kinds that a user has a rule for."""

MODULES: dict[type, str] = {}
"""Classes of modules that are one layer each, and the kind of that layer."""


def add_rule(operation: str | type, rule: OwnRule, macs: bool = False) -> None:
    """Count an operation or a class of modules by a rule of the user's own; see `paleo_lite.rule`."""
    name = operation if isinstance(operation, str) else operation.__name__
    name = name if name in KINDS or "." in name or not isinstance(operation, str) else f"aten.{name}"
    made = own_kind(name, rule, macs)
    MATRIX_KINDS.discard(name)
    if macs:
        MATRIX_KINDS.add(name)
    OWN[name] = rule
    KINDS[name] = made
    if not isinstance(operation, str):
        MODULES[operation] = name


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


def own_note(kinds: Sequence[str]) -> str:
    """Which kinds among these a rule of the user's own counts; empty where none."""
    own = {kind: kinds.count(kind) for kind in OWN if kind in kinds}
    return "counted by a rule of your own: " + ", ".join(f"{k} ({n})" for k, n in own.items()) if own else ""


FAULTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What a rule raises where a layer's shapes do not fit its kind."""


def count_layer(op: Op) -> Cost | None:
    """The canonical cost of a layer, or None where its kind has no record.

    A product of complex numbers: each multiply-accumulate is four of real ones, and each number two of memory.
    """
    kind = KINDS.get(op.layer.kind)
    if kind is None:
        return None
    try:
        counted = kind.rule(op)
    except FAULTS as error:
        raise cannot_count(op, error) from error
    if not op.attributes.get("complex"):
        return counted
    return Cost(*[
        one._replace(
            flops=2 * one.flops + 4 * one.macs, macs=4 * one.macs, reads=2 * one.reads, writes=2 * one.writes
        )
        for one in counted
    ])  # fmt: skip


def cannot_count(op: Op, error: Exception) -> CountFailed:
    """That a layer's shapes do not fit its kind."""
    return CountFailed(
        f"layer {op.layer.name!r} cannot be counted as {op.layer.kind}: inputs {op.layer.inputs}, "
        f"weights {op.layer.weights}, attributes {op.layer.attributes} ({type(error).__name__}: {error})"
    )


def is_free(kind: str, convention: str) -> bool:
    """Whether a convention counts nothing of a kind."""
    return kind in KINDS and convention in KINDS[kind].free.split()


def class_of(layer: Layer) -> str | None:
    """The class of work of a layer."""
    kind = KINDS.get(layer.kind)
    return None if kind is None else kind.work_class if isinstance(kind.work_class, str) else kind.work_class(layer)


def fusion_of(layer: Layer) -> str | None:
    """Whether and how a layer becomes one kernel with others: one of `FUSIONS`."""
    kind = KINDS.get(layer.kind)
    return None if kind is None else kind.fusion if isinstance(kind.fusion, str) else kind.fusion(layer)


def gemm_of(layer: Layer, pass_name: str) -> Gemm | None:
    """The matrix product of a layer in a pass (``inference``, ``forward``, ...), or None for layers without one."""
    kind = KINDS.get(layer.kind)
    return None if kind is None or kind.gemm is None else kind.gemm(layer, pass_name)


def saved_by(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved | None:
    """What a layer saves for its gradients.

    Parameters
    ----------
    layer : Layer
        One that a backward pass reaches.
    wants_gradient : sequence of bool
        For each input whether its gradient is computed.
    trainable : bool
        Whether the layer's weights get a gradient.
    """
    kind = KINDS.get(layer.kind)
    if kind is None:
        return None
    return kind.saves if isinstance(kind.saves, Saved) else kind.saves(layer, wants_gradient, trainable)


def is_alias(layer: Layer) -> bool:
    """Whether a layer's result lies in the memory of its first operand, as far as its kind decides."""
    kind = KINDS.get(layer.kind)
    return kind is not None and (kind.alias if isinstance(kind.alias, bool) else kind.alias(layer))


def splits(layer: Layer) -> bool:
    """Whether a tensor that is split by channels or heads passes through a layer."""
    kind = KINDS.get(layer.kind)
    return kind is not None and (kind.splits if isinstance(kind.splits, bool) else kind.splits(layer))


def missing_note(unknown: Sequence[str]) -> str:
    """What is unknown of layers that a convention has no rule for, given as ``aten.sort (2)``."""
    whose = "its" if len(unknown) == 1 else "their"
    facts = [f"{whose} time"]
    if any(name.rpartition(" ")[0] not in KINDS for name in unknown):  # those of other kinds are in their records
        facts.append(f"{whose} saved tensors")
    return (
        f"not counted, no rule for {', '.join(unknown)}: {' and '.join(facts)} {'are' if facts[1:] else 'is'} unknown"
    )

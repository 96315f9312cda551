"""Layer kinds: one record for each, in one list. Everything that is known of a kind is in its record.

A kind that has no record has no default either: every function here answers None, and whoever asks says so in a note.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ...errors import CountFailed
from ..gemm import Gemm
from ..layer import Layer, Op
from . import elementwise, moving, normalisations, pooling, products
from .kind import Cost, Kind, Saved, of_complex
from .own import MODULES, OWN, OwnRule, own_kind
from .products import is_attention as is_attention
from .products import is_linear as is_linear

KINDS: dict[str, Kind] = {
    kind.name: kind for family in (products, normalisations, pooling, elementwise, moving) for kind in family.KINDS
}
"""Every kind, by name."""

MATRIX_KINDS = {kind.name for kind in KINDS.values() if kind.gemm is not None}
"""Kinds whose work is multiply-accumulates, which tensor cores can do."""

ELEMENTWISE = frozenset(
    kind.name for kind in KINDS.values() if kind.fusion == "pointwise" and kind.group in ("activation", "elementwise")
)
"""Activations and arithmetic on tensors of (broadcast) equal shape."""

ACTIVATIONS = frozenset(name for name in ELEMENTWISE if KINDS[name].group == "activation")
"""Activation functions of single elements."""

Counted = TypeVar("Counted")


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


def own_note(kinds: Sequence[str]) -> str:
    """Which kinds among these a rule of the user's own counts; empty where none."""
    own = {kind: kinds.count(kind) for kind in OWN if kind in kinds}
    return "counted by a rule of your own: " + ", ".join(f"{k} ({n})" for k, n in own.items()) if own else ""


def count_layer(op: Op) -> Cost | None:
    """The canonical cost of a layer, or None where its kind has no record."""
    kind = KINDS.get(op.layer.kind)
    cost = None if kind is None else guarded(kind.rule, op)
    return Cost(*map(of_complex, cost)) if cost is not None and op.attribute("complex") else cost


def guarded(rule: Callable[[Op], Counted], op: Op) -> Counted:
    """What a rule says of a layer; where the layer's shapes do not fit its kind, that in words."""
    try:
        return rule(op)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CountFailed(
            f"layer {op.layer.name!r} cannot be counted as {op.layer.kind}: inputs {op.layer.inputs}, "
            f"weights {op.layer.weights}, attributes {op.layer.attributes} ({type(error).__name__}: {error})"
        ) from error


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

"""The records of all layer kinds, those added by users, and functions that look up a layer's properties in them.

A kind without a record has no defaults: the functions return None for it, and predictions report it in a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod

from ...errors import CountFailed
from ..layer import NO_COST, Cost, Gemm, Kind, Layer, Op, PassCost, Saved, needed_cost
from . import activations, elementwise, moving, normalisation, pooling, products, recurrent
from .moving import is_all_reduce as is_all_reduce
from .products import cached_elements as cached_elements
from .products import copies_attention_output as copies_attention_output
from .products import is_attention as is_attention
from .products import is_cache as is_cache
from .products import is_linear as is_linear
from .products import is_score_layer as is_score_layer

_FAMILIES = (products, activations, elementwise, normalisation, moving, pooling, recurrent)
KINDS: dict[str, Kind] = {kind.name: kind for family in _FAMILIES for kind in family.KINDS}
"""All kinds by name."""

MATRIX_KINDS = {kind.name for kind in KINDS.values() if kind.gemm is not None}
"""Kinds that consist of multiply-accumulates, which tensor cores can compute."""

ELEMENTWISE = frozenset(
    kind.name for kind in KINDS.values() if kind.fusion == "pointwise" and kind.group in ("activation", "elementwise")
)
"""Activations and arithmetic on tensors of (broadcast) equal shape."""

ACTIVATIONS = frozenset(name for name in ELEMENTWISE if KINDS[name].group == "activation")
"""Elementwise activation functions."""

UserRule = Callable[[Layer], float | Sequence[float]]
"""Function from a layer, with the shapes of one sample, to its operations: one number for the forward pass, or three
for the forward pass, the data gradient and the weight gradient."""

USER_RULES: dict[str, UserRule] = {}
"""Counting rules added by the user, by kind."""

USER_MODULES: dict[type, str] = {}
"""Module classes that the user counts as one layer, and the kind of that layer."""


def add_rule(
    operation: str | type,  # kind of layer, operation of ATen (``"sort"`` or ``"aten.sort"``), or module class
    rule: UserRule,
    macs: bool,  # whether the rule returns multiply-accumulates instead of FLOPs
) -> None:
    """Register a user's counting rule for an operation or a module class; see `paleo_lite.rule`."""
    if isinstance(operation, str):
        name = operation if operation in KINDS or "." in operation else f"aten.{operation}"
    else:
        name = operation.__name__
    kind = make_user_kind(name, rule, macs)
    if macs:
        MATRIX_KINDS.add(name)
    else:
        MATRIX_KINDS.discard(name)
    USER_RULES[name] = rule
    KINDS[name] = kind
    if not isinstance(operation, str):
        USER_MODULES[operation] = name


def make_user_kind(
    name: str,
    rule: UserRule,  # if it returns one number, each required gradient costs the same
    macs: bool,  # whether the rule returns multiply-accumulates, which tensor cores can compute, or FLOPs
) -> Kind:
    """Return the record of a kind with a user's rule: one kernel of its own, which saves all its inputs."""

    def count_operations(layer: Layer) -> tuple[int, int, int]:
        result = rule(layer)
        numbers = [result] * 3 if isinstance(result, (int, float)) else list(result)
        if len(numbers) != 3 or not all(number >= 0 for number in numbers):
            raise ValueError(f"a rule must return one number or three numbers >= 0 (got {result!r})")
        forward, data, weight = (round(number) for number in numbers)
        return forward, data, weight

    def count(op: Op) -> Cost:
        forward, data, weight = count_operations(op.layer)
        forward_cost = pass_cost(op, forward, reads=op.x + op.w, writes=op.y)
        data_cost = pass_cost(op, data, reads=op.y + op.x + op.w, writes=op.x)
        weight_cost = pass_cost(op, weight, reads=op.y + op.x, writes=op.w)
        return needed_cost(op, forward_cost, data_cost if op.inputs else NO_COST, weight_cost)

    def pass_cost(op: Op, operations: int, reads: int, writes: int) -> PassCost:
        total = operations * op.samples
        if macs:
            return PassCost(2 * total, total, reads, writes)
        return PassCost(total, 0, reads, writes)

    def equivalent_gemm(layer: Layer, part: str) -> Gemm:
        *leading, columns = layer.outputs[0] or (1,)
        rows = prod(leading)
        inner = count_operations(layer)[0] // max(rows * columns, 1)
        return Gemm(rows, columns, max(inner, 1), groups=1, grows="rows")

    def saves_all(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
        return Saved(tuple(range(len(layer.inputs))))

    return Kind(
        name,
        count,
        work_class="gemm" if macs else "elementwise",
        saves=saves_all,
        fusion="alone",
        group="matrix product" if macs else "elementwise",
        profile_kind="other",
        preserves_sharding=False,
        gemm=equivalent_gemm if macs else None,
    )


def user_rules_note(kinds: Sequence[str]) -> str:
    """Return a note on the kinds that a user's rule counts, with the number of their layers; empty if there are
    none."""
    counted = [f"{kind} ({kinds.count(kind)})" for kind in USER_RULES if kind in kinds]
    if not counted:
        return ""
    return f"counted by a rule of your own: {', '.join(counted)}"


RULE_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Exceptions of a rule if the shapes of a layer do not match its kind."""


def count_layer(op: Op) -> Cost | None:
    """Return the canonical cost of a layer, or None if its kind has no record.

    For products of complex numbers (attribute ``complex``) a multiply-accumulate counts as four real ones and an
    element as two. Raise CountFailed if the shapes of the layer do not match its kind.
    """
    kind = KINDS.get(op.layer.kind)
    if kind is None:
        return None
    try:
        cost = kind.rule(op)
    except RULE_ERRORS as error:
        raise count_failure(op.layer, error) from error
    if op.attributes.get("complex"):
        return Cost(*[_complex_cost(part) for part in cost])
    return cost


def _complex_cost(cost: PassCost) -> PassCost:
    return cost._replace(
        flops=2 * cost.flops + 4 * cost.macs, macs=4 * cost.macs, reads=2 * cost.reads, writes=2 * cost.writes
    )


def count_failure(layer: Layer, error: Exception) -> CountFailed:
    """Return the exception for a layer whose shapes do not match its kind."""
    return CountFailed(
        f"layer {layer.name!r} cannot be counted as {layer.kind}: inputs {layer.inputs}, "
        f"weights {layer.weights}, attributes {layer.attributes} ({type(error).__name__}: {error})"
    )


def is_uncounted(kind: str, convention: str) -> bool:
    """Return whether a convention counts a kind as 0."""
    return kind in KINDS and convention in KINDS[kind].uncounted_by.split()


def class_of(layer: Layer) -> str | None:
    """Return the class of work of a layer, or None if its kind has no record."""
    kind = KINDS.get(layer.kind)
    if kind is None:
        return None
    return kind.work_class if isinstance(kind.work_class, str) else kind.work_class(layer)


def fusion_of(layer: Layer) -> str | None:
    """Return how a layer shares a kernel with others (one of `FUSIONS`), or None if its kind has no record."""
    kind = KINDS.get(layer.kind)
    if kind is None:
        return None
    return kind.fusion if isinstance(kind.fusion, str) else kind.fusion(layer)


def gemm_of(layer: Layer, pass_name: str) -> Gemm | None:
    """Return the matrix product of a layer in a pass (``"inference"``, ``"forward"``, ...), or None if it has none."""
    kind = KINDS.get(layer.kind)
    if kind is None or kind.gemm is None:
        return None
    return kind.gemm(layer, pass_name)


def saved_tensors(
    layer: Layer,  # that the backward pass reaches
    wants_gradient: Sequence[bool],  # for each input, whether its gradient is computed
    trainable: bool,  # whether gradients of the layer's weights are computed
) -> Saved | None:
    """Return the tensors that a layer saves for its gradients, or None if its kind has no record.

    Raise CountFailed if its shapes do not match its kind.
    """
    kind = KINDS.get(layer.kind)
    if kind is None:
        return None
    if isinstance(kind.saves, Saved):
        return kind.saves
    try:
        return kind.saves(layer, wants_gradient, trainable)
    except RULE_ERRORS as error:
        raise count_failure(layer, error) from error


def is_embedding(layer: Layer) -> bool:
    """Return whether a layer looks up rows of a table of embeddings."""
    return layer.kind == "embedding"


def is_convolution(layer: Layer) -> bool:
    """Return whether a layer is a convolution, also a transposed one."""
    return layer.kind.startswith("conv")


def is_expert_layer(layer: Layer) -> bool:
    """Return whether a layer has the matrices of all experts, of which each token selects some."""
    return "active" in layer.attributes


def is_grouped_product(layer: Layer) -> bool:
    """Return whether a layer multiplies every token with the matrices of its experts."""
    return layer.kind == "grouped_matmul"


def count_experts(layers: Iterable[Layer]) -> int:
    """Return the experts of the mixture with the most of them among layers; 1 without a mixture."""
    return max((layer.weights[0][0] for layer in layers if is_grouped_product(layer)), default=1)


def is_alias(layer: Layer) -> bool:
    """Return whether the kind of a layer makes its output share the memory of its first input."""
    kind = KINDS.get(layer.kind)
    if kind is None:
        return False
    return kind.aliases_input if isinstance(kind.aliases_input, bool) else kind.aliases_input(layer)


def preserves_sharding(layer: Layer) -> bool:
    """Return whether the output of a layer is sharded by channels or heads if its input is."""
    kind = KINDS.get(layer.kind)
    if kind is None:
        return False
    if isinstance(kind.preserves_sharding, bool):
        return kind.preserves_sharding
    return kind.preserves_sharding(layer)


def missing_rules_note(unknown: Sequence[str]) -> str:
    """Return a note on kinds without a counting rule, each with its number of layers, such as ``"aten.sort (2)"``."""
    possessive = "its" if len(unknown) == 1 else "their"
    # Kinds with a record but without a rule in the convention still have known saved tensors.
    has_unknown_kind = any(name.rpartition(" ")[0] not in KINDS for name in unknown)
    if has_unknown_kind:
        facts = f"{possessive} time and {possessive} saved tensors are unknown"
    else:
        facts = f"{possessive} time is unknown"
    return f"not counted, no rule for {', '.join(unknown)}: {facts}"

"""`Work`: the counts of every layer of a network, per pass, as arrays, for any batch size.

Every count is affine in the batch size: activations grow with it, weights do not. The rules are evaluated at batch
sizes 2 and 3, from which the counts at any batch size follow by one multiplication and one addition. Batch size 1 is
unsuitable, because the gradient of a tensor that all samples share is a sum over the batch only for two samples or
more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ..errors import BadValue, CountFailed, UnknownName, UnsupportedPhase
from ..units import check_integer, element_bytes
from .kinds import MATRIX_KINDS, RULE_ERRORS, USER_RULES, count_failure, count_layer
from .layer import NO_COST, RECURRENT_MODULES, Cost, Flow, Layer, Op, PassCost, trace_flow

PASSES = ("inference", "forward", "backward_data", "backward_weight", "update")
"""The counted passes; ``forward`` is the forward pass of a training step."""

PHASES: dict[str, tuple[str, ...]] = {
    "inference": ("inference",),
    "forward": ("forward",),
    "backward": ("backward_data", "backward_weight"),
    "forward+backward": ("forward", "backward_data", "backward_weight"),
    "training": ("forward", "backward_data", "backward_weight", "update"),
}
"""The phases of a network and their passes."""

PHASES_WITH_GRADIENTS = frozenset(
    phase for phase, passes in PHASES.items() if passes[-1] not in ("inference", "forward")
)
"""Phases that compute gradients, so that the forward pass saves tensors for them."""

GENERATION_PHASES: dict[str, tuple[str, ...]] = {"prefill": ("inference",), "decode": ("inference",)}
"""The phases of text generation and their passes: prefill computes the whole prompt, decode one token per sequence."""

ENGINE = "engine"
"""Default execution of text generation; see `paleo_lite.counting.fusion.EXECUTIONS`."""

AUTOCAST = "autocast"
"""Execution of a framework in mixed precision."""

CHANNELS_LAST = "channels-last"
"""Mixed precision with images stored as height, width, channels, the layout that tensor cores read."""

MIXED_EXECUTIONS = (AUTOCAST, CHANNELS_LAST)
"""Executions in mixed precision, in which the operands of products are cast."""

FP32_BYTES = 4
"""Bytes of a number of fp32."""

CAST_BYTES = 2
"""Bytes per element of the operands of products in mixed precision."""

COMPILED = "compiled"
"""Execution of networks compiled by PyTorch's inductor."""

MEGATRON = "megatron"
"""Execution of transformer blocks by Megatron-LM."""

UNFUSED_EXECUTIONS = ("eager", *MIXED_EXECUTIONS, MEGATRON)
"""Executions of `paleo_lite.counting.fusion.EXECUTIONS` that are also counted in training; the host launches kernels as
in eager execution."""

COLUMNS = ("flops", "macs", "bytes_read", "bytes_written", "kernels")
"""The counts of each layer and pass."""

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.int64]


Rule = Callable[[Op], int | None]


class Convention(NamedTuple):
    """A convention of counting operations."""

    name: str
    unit: str  # of its counts: FLOP, MAC or op
    meaning: str  # short description, shown in help
    # Function from `Op` to the forward count, or to None for a layer without a rule. A string
    # ``package.module:function`` is imported at first use. None: the convention is the column of the canonical costs
    # with its name, and also covers the backward pass.
    count: Rule | str | None = None  # type: ignore[assignment]


CONVENTIONS: dict[str, Convention] = {
    convention.name: convention
    for convention in (
        Convention("flops", "FLOP", "a multiply-accumulate is 2, biases and elementwise work included"),
        Convention("macs", "MAC", "multiply-accumulates of convolution, linear, matmul and attention only"),
        Convention(
            "pthflops",
            "op",
            "as the pthflops package counts, rule for rule (forward only)",
            "paleo_lite.counting.conventions:pthflops",
        ),
        Convention(
            "lu2017",
            "op",
            "as Lu et al. 2017 count, inferred from their totals (forward only)",
            "paleo_lite.counting.conventions:lu2017",
        ),
        Convention(
            "paleo",
            "FLOP",
            "as PALEO counts: its own layers, without biases (forward only)",
            "paleo_lite.paleo.layers:count_paleo",
        ),
    )
}
"""All conventions by name."""


class Work(msgspec.Struct, frozen=True, eq=False):
    """Counts per layer and pass, for any batch size.

    The count in a column of `COLUMNS` and a pass of `PASSES` is ``fixed + batch_size * per_sample``.
    """

    names: tuple[str, ...]  # of each layer
    kinds: tuple[str, ...]  # of each layer
    convention: Convention  # of the forward count
    precision: str  # determines the element size in bytes
    per_sample: Array  # shape (columns, passes, layers)
    fixed: Array  # shape (columns, passes, layers)
    count_per_sample: Array  # forward count in the convention, in the same two parts, shape (layers,)
    count_fixed: Array
    # Whether the convention has a rule for the layer, shape (layers,); without a rule the counts are 0.
    counted: NDArray[np.bool_]
    parameters: Array  # number of parameters first used by each layer, shape (layers,)
    activations_per_sample: Array  # number of output elements per sample, shape (layers,); 0 for views
    matrix: NDArray[np.bool_]  # layers whose multiply-accumulates tensor cores can compute, shape (layers,)
    unknown: tuple[str, ...]  # kinds without a rule, with the number of their layers: ``("aten.sort (2)",)``
    flow: Flow  # which tensors grow with the batch, and which receive gradients
    execution: str = "eager"  # another of `paleo_lite.counting.fusion.EXECUTIONS` after `fuse`
    # Index of the layer that holds the bytes and launches of the fused kernel a layer belongs to, shape (layers,); None
    # without fusion.
    carrier: Array | None = None
    # Products that are computed in 16 bits at inference, although the precision is narrower, shape (layers,); None if
    # there is none.
    wide: NDArray[np.bool_] | None = None

    def column(self, name: str, phase: str, batch_size: int = 1) -> Array:
        """Return a column of counts for the passes of a phase, shape (passes, layers).

        The name is one of `COLUMNS`, ``"bytes"`` for the sum of bytes read and written, or ``"count"`` for the forward
        count in the convention; the phase is one of `PHASES` or `PASSES`. Raise BadValue if the counts at this batch
        size exceed 64 bits.
        """
        check_batch_size(batch_size)
        if name == "bytes":
            return self.column("bytes_read", phase, batch_size) + self.column("bytes_written", phase, batch_size)
        passes = passes_of(phase)
        if name == "count":
            per_sample, fixed = self.count_per_sample[np.newaxis], self.count_fixed[np.newaxis]
        else:
            first = PASSES.index(passes[0])  # those of a phase follow one another
            chosen = COLUMNS.index(name), slice(first, first + len(passes))
            per_sample, fixed = self.per_sample[chosen], self.fixed[chosen]
        if max(float(per_sample.sum()), 1.0) * batch_size > 2.0**62:
            raise BadValue(f"the counts of this network overflow 64 bits at batch size {batch_size}")
        result: Array = per_sample * np.int64(batch_size) + fixed
        return result

    def counts_by_pass(self, phase: str = "inference", batch_size: int = 1) -> Array:
        """Return the counts in the convention for each pass of a phase, shape (passes, layers).

        Raise UnsupportedPhase if the convention covers the forward pass only.
        """
        name = self.convention.name
        if self.convention.count is None:
            return self.column(name, phase, batch_size)
        if passes_of(phase) not in (("inference",), ("forward",)):
            raise UnsupportedPhase(
                f"the {name} convention covers the forward pass only: use phase inference or forward, "
                f"or the flops or macs convention for {phase}"
            )
        return self.column("count", phase, batch_size)

    def counts(self, phase: str = "inference", batch_size: int = 1) -> Array:
        """Return the counts in the convention, summed over the passes of a phase, shape (layers,)."""
        total: Array = self.counts_by_pass(phase, batch_size).sum(axis=0)
        return total


def find_convention(name: str) -> Convention:
    """Return the convention of a name, with its counting function imported.

    Raise UnknownName if there is no such convention; the message lists the conventions.
    """
    if name not in CONVENTIONS:
        raise UnknownName("convention", name, CONVENTIONS)
    convention = CONVENTIONS[name]
    if not isinstance(convention.count, str):
        return convention
    from pkgutil import resolve_name

    return convention._replace(count=resolve_name(convention.count))


def check_batch_size(batch_size: int) -> None:
    """Raise BadValue unless a batch size is an integer >= 1."""
    check_integer("the batch size", batch_size, 1)


def check_execution(execution: str, phase: str, precision: str = "fp16") -> None:
    """Check that an execution supports a phase and a precision.

    Of the fusing executions only ``compiled`` supports training, whose backward pass computes again what fusion keeps
    on chip. Raise UnsupportedPhase if the execution does not support the phase, and BadValue if a mixed-precision
    execution is combined with a precision other than fp16 or bf16.
    """
    if execution in MIXED_EXECUTIONS and element_bytes(precision) != CAST_BYTES:
        raise BadValue(f"{execution} computes in fp16 or bf16, not in {precision}: use --precision fp16, for example")
    if execution not in (*UNFUSED_EXECUTIONS, COMPILED) and passes_of(phase) != ("inference",):
        raise UnsupportedPhase(f"{execution} is counted for inference only: use eager execution for {phase}")


def passes_of(phase: str) -> tuple[str, ...]:
    """Return the passes of a phase (`PHASES`, `GENERATION_PHASES`); a pass consists of itself.

    Raise UnknownName if there is no such phase.
    """
    passes = GENERATION_PHASES.get(phase) or PHASES.get(phase) or (phase,)
    if passes[0] not in PASSES:
        raise UnknownName("phase", phase, (*PHASES, *PASSES))
    return passes


def count(layers: Sequence[Layer], precision: str = "fp32", convention: str = "flops") -> Work:
    """Count layers of a network, in the order of execution, by a convention of `CONVENTIONS`.

    The precision determines the element size in bytes. Raise CountFailed if the shapes of a layer do not match its
    kind, or its counts exceed 64 bits.
    """
    chosen = find_convention(convention)
    element_size = element_bytes(precision)
    flow = trace_flow(layers)
    group_of_layer, representatives = _group_identical_layers(layers, flow)

    def count_at(samples: int) -> list[CountsOfLayer]:
        return [_count_passes(layers[index], samples, flow, index, chosen, element_size) for index in representatives]

    at_two, at_three = count_at(2), count_at(3)
    try:
        two, three = _columns_of_layers(at_two, group_of_layer), _columns_of_layers(at_three, group_of_layer)
        count_two = np.array([counts.forward_count or 0 for counts in at_two], dtype=np.int64)[group_of_layer]
        count_three = np.array([counts.forward_count or 0 for counts in at_three], dtype=np.int64)[group_of_layer]
    except OverflowError:
        raise CountFailed("the counts of a layer exceed 64 bits: check its shapes") from None
    activations = [third.activations - second.activations for second, third in zip(at_two, at_three)]
    counted = np.array([counts.forward_count is not None for counts in at_two], dtype=bool)[group_of_layer]
    work = Work(
        names=tuple(layer.name for layer in layers),
        kinds=tuple(layer.kind for layer in layers),
        convention=chosen,
        precision=precision,
        per_sample=three - two,
        fixed=3 * two - 2 * three,
        count_per_sample=count_three - count_two,
        count_fixed=3 * count_two - 2 * count_three,
        counted=counted,
        parameters=np.array([layer.parameters for layer in layers], dtype=np.int64),
        activations_per_sample=np.array(activations, dtype=np.int64)[group_of_layer],
        matrix=np.array([layer.kind in MATRIX_KINDS for layer in layers], dtype=bool),
        unknown=_kinds_without_rule(layers, counted),
        flow=flow,
    )
    if not any(layer.origin in RECURRENT_MODULES for layer in layers):
        return work
    from .recurrent import fuse_recurrences  # imported on demand, to keep cold starts fast

    fused: Work = fuse_recurrences(layers, work, COLUMNS, PASSES)
    return fused


class CountsOfLayer(NamedTuple):
    """Counts of one layer at one batch size."""

    rows: list[tuple[int, ...]]  # for each of `PASSES`, the counts in `COLUMNS`
    forward_count: int | None  # in the convention; None without a rule
    activations: int  # number of output elements; 0 for views


def _columns_of_layers(counts: Sequence[CountsOfLayer], group_of_layer: Array) -> Array:
    """Return the counts of all layers from those of their groups, shape (columns, passes, layers)."""
    by_group = np.array([group.rows for group in counts], dtype=np.int64)
    by_group = by_group.reshape(len(counts), len(PASSES), len(COLUMNS))
    columns: Array = by_group[group_of_layer].T
    return columns


def _kinds_without_rule(layers: Sequence[Layer], counted: NDArray[np.bool_]) -> tuple[str, ...]:
    """Return the kinds of uncounted layers, with the number of their layers."""
    missing: dict[str, int] = {}
    for layer, is_counted in zip(layers, counted):
        if not is_counted:
            missing[layer.kind] = missing.get(layer.kind, 0) + 1
    return tuple(f"{kind} ({number})" for kind, number in sorted(missing.items()))


def _group_identical_layers(layers: Sequence[Layer], flow: Flow) -> tuple[Array, list[int]]:
    """Group the layers that a rule cannot distinguish, so that each group is counted once.

    Networks repeat their blocks: two thirds of the layers of a ResNet equal an earlier one. Return the number of the
    group of each layer, shape (layers,), and the index of the first layer of each group.
    """
    numbers: dict[tuple[Any, ...], int] = {}
    group_of_layer: list[int] = []
    representatives: list[int] = []
    for index, layer in enumerate(layers):
        name = layer.name if layer.kind in USER_RULES else ""  # a user's rule may depend on the name
        shapes = (layer.inputs, layer.outputs, layer.weights)
        attributes = repr(layer.attributes) if layer.attributes else ""
        facts = (name, layer.kind, layer.origin, layer.parameters, attributes)
        key = (facts, shapes, flow.op_arguments[index], flow.consumers[index])
        number = numbers.setdefault(key, len(representatives))
        if number == len(representatives):
            representatives.append(index)
        group_of_layer.append(number)
    return np.array(group_of_layer, dtype=np.intp), representatives


def _count_passes(
    layer: Layer,
    samples: int,  # the batch size
    flow: Flow,  # of all layers of the network
    index: int,  # of the layer in the network
    convention: Convention,  # of the forward count
    element_size: int,  # bytes per element
) -> CountsOfLayer:
    """Count one layer at one batch size."""
    op = Op(layer, samples, *flow.op_arguments[index])
    known_cost = count_layer(op)
    cost = known_cost or Cost(NO_COST, NO_COST)
    forward_count: int | None = None
    if callable(convention.count):
        try:
            forward_count = convention.count(op)
        except RULE_ERRORS as error:
            raise count_failure(op.layer, error) from error
    elif known_cost is not None:
        forward_count = getattr(known_cost.inference, convention.name)
    backward_data = cost.backward_data
    extra_gradients = flow.consumers[index] - len(op.outputs)
    if extra_gradients > 0:
        backward_data = _with_accumulation(backward_data, op, extra_gradients)
    trainable = layer.parameters if op.trainable else 0
    # Plain gradient descent, w -= rate * gradient: 2 FLOPs and three transfers per parameter, as in PALEO.
    update = PassCost(2 * trainable, 0, 2 * trainable, trainable, 0, len(op.weights) if trainable else 0)
    costs = (cost.inference, cost.forward, backward_data, cost.backward_weight, update)
    launches = op.attributes.get("launches", 1)  # of each kernel, such as one for every expert
    rows: list[tuple[int, ...]] = []
    for part, (read_size, written_size) in zip(costs, _element_sizes(op, element_size)):
        bytes_read = round(part.reads * read_size) + part.index_bytes
        kernels = part.kernels if part is update else part.kernels * launches
        rows.append((part.flops, part.macs, bytes_read, round(part.writes * written_size), kernels))
    return CountsOfLayer(rows, forward_count, op.y if cost.forward.kernels else 0)


def _element_sizes(op: Op, element_size: int) -> list[tuple[float, float]]:
    """Return for each of `PASSES` the bytes of an element that an operation reads, and of one that it writes."""
    sizes: list[tuple[float, float]] = [(element_size, element_size)] * len(PASSES)
    if "widths" in op.attributes:  # mixed precision: bytes per element differ between layers
        read, written = op.attributes["widths"]
        mean = (read + written) / 2  # a gradient has the width of its tensor
        sizes = [(read, written), (read, written), (mean, read), (mean, read), (FP32_BYTES, FP32_BYTES)]
    if "upcast" in op.attributes:  # a 16-bit network that computes some layers in fp32
        read, written = (_upcast_bytes(element_size, factor) for factor in op.attributes["upcast"])
        sizes = [(read, written), (read, written), (written, read), (written, read), sizes[-1]]
    return sizes


def _upcast_bytes(element_size: int, factor: float) -> float:
    """Return the bytes per element of tensors that are wider than the network's, but at most fp32."""
    return max(element_size, min(element_size * factor, FP32_BYTES))


def _with_accumulation(backward_data: PassCost, op: Op, extra_gradients: int) -> PassCost:
    """Add the accumulation of the gradients of a layer's outputs: one addition per gradient beyond the first.

    The gradients are assumed to be distributed evenly over the outputs.
    """
    added = extra_gradients * (op.y // len(op.outputs))
    return backward_data._replace(
        flops=backward_data.flops + added,
        reads=backward_data.reads + 2 * added,
        writes=backward_data.writes + added,
        kernels=backward_data.kernels + extra_gradients,
    )


__all__ = [
    "COLUMNS",
    "CONVENTIONS",
    "GENERATION_PHASES",
    "PASSES",
    "PHASES",
    "PHASES_WITH_GRADIENTS",
    "Work",
    "check_batch_size",
    "check_execution",
    "count",
    "passes_of",
]

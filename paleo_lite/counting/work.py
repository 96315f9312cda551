"""`Work`: what every layer of a network computes and moves, as arrays.

Every count is affine in the batch size: activations grow with it, weights and what depends on them alone do not. The
rules are therefore asked twice, at batch 2 and 3, and any batch size follows by one multiplication and one addition.
Not at batch 1: the gradient of what all samples share is a sum over the batch from 2 on only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ..errors import BadValue, CountFailed, UnknownName, UnsupportedPhase
from ..units import element_bytes
from .kinds import FAULTS, MATRIX_KINDS, OWN, cannot_count, count_layer
from .layer import NOTHING, Cost, Flow, Layer, Op, PassCost, trace_flow

PASSES = ("inference", "forward", "backward_data", "backward_weight", "update")
"""The passes that work is counted for; ``forward`` is the forward pass of a training step."""

PHASES: dict[str, tuple[str, ...]] = {
    "inference": ("inference",),
    "forward": ("forward",),
    "backward": ("backward_data", "backward_weight"),
    "forward+backward": ("forward", "backward_data", "backward_weight"),
    "training": ("forward", "backward_data", "backward_weight", "update"),
}
"""What can be asked for, and the passes that it consists of."""

WITH_GRADIENTS = frozenset(phase for phase, passes in PHASES.items() if passes[-1] not in ("inference", "forward"))
"""Phases that compute gradients, so that a forward pass saves what they need."""

GENERATING: dict[str, tuple[str, ...]] = {"prefill": ("inference",), "decode": ("inference",)}
"""Phases of generating text, and the passes that they consist of: the whole prompt, and one token of each sequence."""

ENGINE = "engine"
"""How text is generated unless another execution is asked for: `paleo_lite.counting.fusion.EXECUTIONS`."""

AUTOCAST = "autocast"
"""How a framework in mixed precision runs a network."""

CHANNELS_LAST = "channels-last"
"""The same with images as height, width, channels in memory, which is how tensor cores read them."""

MIXED = (AUTOCAST, CHANNELS_LAST)
"""Executions in mixed precision: what products read is cast."""

CAST_BYTES = 2
"""Bytes of a number that products read under it."""

MEGATRON = "megatron"
"""How Megatron-LM trains blocks."""

UNFUSED = ("eager", *MIXED, MEGATRON)
"""Of `paleo_lite.counting.fusion.EXECUTIONS` those that are counted in training, too; their host is that of eager."""

COLUMNS = ("flops", "macs", "bytes_read", "bytes_written", "kernels")

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.int64]


Rule = Callable[[Op], int | None]


class Convention(NamedTuple):
    """A way to count.

    Attributes
    ----------
    name, unit, meaning : str
        How it is asked for, what it counts in, and what it reproduces.
    count : callable, str or None
        From `Op` to the forward count, or None without a rule; as ``package.module:function``, on a floor above for
        example, imported when it first counts. None: a column of the canonical costs, of backward passes too.
    """

    name: str
    unit: str
    meaning: str
    count: Rule | str | None = None  # type: ignore[assignment]


CONVENTIONS: dict[str, Convention] = {
    convention.name: convention
    for convention in (
        Convention("flops", "FLOP", "a multiply-accumulate is 2, biases and elementwise work included"),
        Convention("macs", "MAC", "multiply-accumulates of convolution, linear, matmul and attention only"),
        Convention("pthflops", "op", "what the pthflops package counts, rule for rule (forward only)",
                   "paleo_lite.counting.conventions:pthflops"),
        Convention("lu2017", "op", "what Lu et al. 2017 print, as far as it can be read (forward only)",
                   "paleo_lite.counting.conventions:lu2017"),
        Convention("paleo", "FLOP", "what PALEO counts: its own layers, without biases (forward only)",
                   "paleo_lite.paleo.layers:count_paleo"),
    )
}  # fmt: skip
"""Every convention, by name."""


class Work(msgspec.Struct, frozen=True, eq=False):
    """Counts per layer and pass, for any batch size.

    Attributes
    ----------
    names, kinds : tuple of str
        One per layer.
    convention : Convention
        In what unit `counts` counts.
    precision : str
        The precision whose element size the bytes assume.
    per_sample, fixed : ndarray of int64, shape (columns, passes, layers)
        The two parts of every count (`COLUMNS`, `PASSES`): ``fixed + batch_size * per_sample``.
    count_per_sample, count_fixed : ndarray of int64, shape (layers,)
        The forward count in the convention.
    counted : ndarray of bool, shape (layers,)
        False where the convention has no rule for the layer: its zeros mean "unknown".
    parameters : ndarray of int64, shape (layers,)
        Parameters first used by each layer.
    activations_per_sample : ndarray of int64, shape (layers,)
        Elements of each layer's outputs, for one sample; 0 for views.
    matrix : ndarray of bool, shape (layers,)
        Layers whose multiply-accumulates tensor cores can do.
    unknown : tuple of str
        The kinds without a rule, with how many layers have each: ``("aten.sort (2)",)``.
    execution : str
        ``eager``, or how `fuse` says that kernels are launched.
    carrier : ndarray of int, shape (layers,), or None
        For each layer the one in whose row its fused kernel stands; None where nothing was fused.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    convention: Convention
    precision: str
    per_sample: Array
    fixed: Array
    count_per_sample: Array
    count_fixed: Array
    counted: NDArray[np.bool_]
    parameters: Array
    activations_per_sample: Array
    matrix: NDArray[np.bool_]
    unknown: tuple[str, ...]
    execution: str = "eager"
    carrier: Array | None = None

    def column(self, name: str, phase: str, batch_size: int = 1) -> Array:
        """One column for the passes of a phase, shape (passes, layers).

        Parameters
        ----------
        name : str
            One of `COLUMNS`, ``"bytes"`` for read and written together, or ``"count"`` for the convention's of a
            forward pass.
        phase : str
            One of `PHASES` or `PASSES`.
        batch_size : int
            Samples per pass.
        """
        check_batch_size(batch_size)
        if name == "bytes":
            return self.column("bytes_read", phase, batch_size) + self.column("bytes_written", phase, batch_size)
        passes = passes_of(phase)
        if name == "count":
            per_sample, fixed = self.count_per_sample[np.newaxis], self.count_fixed[np.newaxis]
        else:
            which = np.ix_([COLUMNS.index(name)], [PASSES.index(part) for part in passes])
            per_sample, fixed = self.per_sample[which][0], self.fixed[which][0]
        if float(per_sample.sum()) * batch_size > 2.0**62:
            raise BadValue(f"a batch of {batch_size} overflows the counts of this network")
        result: Array = per_sample * np.int64(batch_size) + fixed
        return result

    def counts_by_pass(self, phase: str = "inference", batch_size: int = 1) -> Array:
        """The count in the convention for each pass of a phase, shape (passes, layers).

        Raises
        ------
        UnsupportedPhase
            If the convention counts a forward pass only.
        """
        name = self.convention.name
        if self.convention.count is None:
            return self.column(name, phase, batch_size)
        if passes_of(phase) not in (("inference",), ("forward",)):
            raise UnsupportedPhase(
                f"the {name} convention counts a forward pass only: ask for inference or forward, "
                f"or count {phase} by the flops or macs convention"
            )
        return self.column("count", phase, batch_size)

    def counts(self, phase: str = "inference", batch_size: int = 1) -> Array:
        """The same summed over the passes, shape (layers,)."""
        total: Array = self.counts_by_pass(phase, batch_size).sum(axis=0)
        return total


def find_convention(name: str) -> Convention:
    """The convention of that name.

    Raises
    ------
    UnknownName
        If there is none; the message names the known ones.
    """
    if name not in CONVENTIONS:
        raise UnknownName("convention", name, CONVENTIONS)
    convention = CONVENTIONS[name]
    if not isinstance(convention.count, str):
        return convention
    from pkgutil import resolve_name

    return convention._replace(count=resolve_name(convention.count))


def check_batch_size(batch_size: int) -> None:
    """Refuse anything but a whole number above 0."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
        raise BadValue(f"the batch size must be a whole number of 1 or more, not {batch_size!r}")


def check_execution(execution: str, phase: str, precision: str = "fp16") -> None:
    """Refuse to fuse for another phase than inference: a backward pass needs what fusing would keep on chip.

    Raises
    ------
    UnsupportedPhase
    BadValue
        If autocast is asked for in another precision than one of 16 bits.
    """
    if execution in MIXED and element_bytes(precision) != CAST_BYTES:
        raise BadValue(f"{execution} computes in fp16 or bf16, not in {precision}: use --precision fp16, for example")
    if execution not in UNFUSED and passes_of(phase) != ("inference",):
        raise UnsupportedPhase(f"{execution} is counted for inference only: use eager execution for {phase}")


def passes_of(phase: str) -> tuple[str, ...]:
    """The passes of one of `PHASES` or `GENERATING`; of a pass itself.

    Raises
    ------
    UnknownName
        If there is no such phase.
    """
    passes = GENERATING.get(phase) or PHASES.get(phase) or (phase,)
    if passes[0] not in PASSES:
        raise UnknownName("phase", phase, (*PHASES, *PASSES))
    return passes


def count(layers: Sequence[Layer], precision: str = "fp32", convention: str = "flops") -> Work:
    """Count a network's layers.

    Parameters
    ----------
    layers : sequence of Layer
        In the order of execution.
    precision : str
        Whose element size the bytes assume.
    convention : str
        One of `CONVENTIONS`.

    Raises
    ------
    CountFailed
        If a layer's shapes do not fit its kind, or its counts fit into no 64 bits.
    """
    chosen = find_convention(convention)
    size = element_bytes(precision)
    flow = trace_flow(layers)
    which, first = _alike(layers, flow)
    at_two, at_three = (
        [_rows(layers[index], samples, flow, index, chosen, size) for index in first] for samples in (2, 3)
    )
    shape = (len(first), len(PASSES), len(COLUMNS))
    try:
        two, three = (
            np.array([row[0] for row in rows], dtype=np.int64).reshape(shape)[which].T for rows in (at_two, at_three)
        )
        count_two, count_three = (
            np.array([row[1] or 0 for row in rows], dtype=np.int64)[which] for rows in (at_two, at_three)
        )
    except OverflowError:
        raise CountFailed("the counts of a layer do not fit into 64 bits: are its shapes right?") from None
    counted = np.array([row[1] is not None for row in at_two], dtype=bool)[which]
    missing: dict[str, int] = {}
    for layer, known in zip(layers, counted):
        if not known:
            missing[layer.kind] = missing.get(layer.kind, 0) + 1
    return Work(
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
        activations_per_sample=np.array([three[2] - two[2] for two, three in zip(at_two, at_three)], dtype=np.int64)[
            which
        ],
        matrix=np.array([layer.kind in MATRIX_KINDS for layer in layers], dtype=bool),
        unknown=tuple(f"{kind} ({number})" for kind, number in sorted(missing.items())),
    )


def _alike(layers: Sequence[Layer], flow: Flow) -> tuple[Array, list[int]]:
    """For each layer a number that those share which a rule cannot tell apart, and the first layer of each number.

    Networks repeat their blocks: two in three layers of a ResNet are like an earlier one.
    """
    numbers: dict[tuple[Any, ...], int] = {}
    which: list[int] = []
    first: list[int] = []
    for index, layer in enumerate(layers):
        name = layer.name if layer.kind in OWN else ""  # a rule of a user's may look at it
        facts = layer._replace(name=name, parents=(), attributes=repr(layer.attributes))  # type: ignore[arg-type]
        key = (facts, flow.seen[index], flow.consumers[index])
        number = numbers.setdefault(key, len(first))
        if number == len(first):
            first.append(index)
        which.append(number)
    return np.array(which, dtype=np.intp), first


def _rows(
    layer: Layer, samples: int, flow: Flow, place: int, convention: Convention, size: int
) -> tuple[list[tuple[int, ...]], int | None, int]:
    """The columns of each pass, the convention's count, and the elements kept, for one layer at one batch size."""
    op = Op(layer, samples, *flow.seen[place])
    known = count_layer(op)
    cost = known or Cost(NOTHING, NOTHING)
    if callable(convention.count):
        try:
            number = convention.count(op)
        except FAULTS as error:
            raise cannot_count(op, error) from error
    else:
        number = None if known is None else getattr(known.inference, convention.name)
    data, extra = cost.backward_data, flow.consumers[place] - len(op.outputs)
    trainable = layer.parameters if op.trainable else 0
    if extra > 0:
        # Gradients of an output's consumers are added up: one addition for each beyond the first. Of several outputs
        # each is taken to have its share of the consumers.
        added = extra * (op.y // len(op.outputs))
        data = data._replace(
            flops=data.flops + added, reads=data.reads + 2 * added, writes=data.writes + added,
            kernels=data.kernels + extra,
        )  # fmt: skip
    # Plain gradient descent, w -= rate * gradient: 2 FLOPs and three transfers per parameter, as in PALEO.
    update = PassCost(2 * trainable, 0, 2 * trainable, trainable, 0, len(op.weights) if trainable else 0)
    sizes: list[tuple[float, float]] = [(size, size)] * len(PASSES)
    if (widths := op.attributes.get("widths")) is not None:  # the layer says its own
        read, written = widths
        both = (read + written) / 2  # a gradient is as wide as what it is of
        sizes = [(read, written), (read, written), (both, read), (both, read), (4.0, 4.0)]
    rows: list[tuple[int, ...]] = [
        (one.flops, one.macs, round(one.reads * read) + one.index_bytes, round(one.writes * written), one.kernels)
        for one, (read, written) in zip((cost.inference, cost.forward, data, cost.backward_weight, update), sizes)
    ]
    return rows, number, op.y if cost.forward.kernels else 0


__all__ = [
    "COLUMNS",
    "CONVENTIONS",
    "GENERATING",
    "PASSES",
    "PHASES",
    "WITH_GRADIENTS",
    "Work",
    "check_batch_size",
    "check_execution",
    "count",
    "passes_of",
]

"""`Kind`: all that is known of one kind of layer, and the words in which its parts are said.

FLOPs: a multiply-accumulate is 2, a bias 1 per output, elementwise work as `elementwise` lists it.
Bytes: every operand once, the least that any kernel must move. A normalisation over the batch reads its input twice in
training, because its statistics are needed before its first output. Views move nothing.
Backward: gradients with respect to the inputs ("data") and to the parameters ("weight") apart.
Saved tensors: what a gradient is computed from (the formulas of PyTorch's ``derivatives.yaml``), held in the tests
against ``torch.autograd.graph.saved_tensors_hooks`` on real modules.
``docs/counting.md`` and ``docs/training.md`` say the same in words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from ..gemm import Gemm
from ..layer import Layer, Op

INDEX_BYTES = 8
"""Bytes of an index: int64, as PyTorch has it."""


class PassCost(NamedTuple):
    """What one pass over one layer takes.

    Attributes
    ----------
    flops, macs : int
        Floating-point operations, and multiply-accumulates of convolution, linear, matmul and attention.
    reads, writes : int
        Numbers of the network's precision read and written.
    index_bytes : int
        Bytes of indices and masks, whose size the precision does not change.
    kernels : int
        Kernels that an eager framework launches.
    """

    flops: int = 0
    macs: int = 0
    reads: int = 0
    writes: int = 0
    index_bytes: int = 0
    kernels: int = 1


NOTHING = PassCost(kernels=0)


class Cost(NamedTuple):
    """What a layer takes: at inference, and in the passes of a training step."""

    inference: PassCost
    forward: PassCost
    backward_data: PassCost = NOTHING
    backward_weight: PassCost = NOTHING


def cost(
    op: Op,
    forward: PassCost,
    data: PassCost = NOTHING,
    weight: PassCost = NOTHING,
    inference: PassCost | None = None,
) -> Cost:
    """A layer's cost without the gradients that are not needed."""
    return Cost(
        forward if inference is None else inference,
        forward,
        data if any(op.wants_gradient) else NOTHING,
        weight if op.trainable else NOTHING,
    )


def together(costs: Sequence[PassCost]) -> PassCost:
    """Several passes as one."""
    return PassCost(*(sum(column) for column in zip(*costs))) if costs else NOTHING


def of_complex(count: PassCost) -> PassCost:
    """A product of complex numbers: each multiply-accumulate is four of real ones, and each number two of memory."""
    rest = count.flops - 2 * count.macs
    return count._replace(
        flops=8 * count.macs + 2 * rest, macs=4 * count.macs, reads=2 * count.reads, writes=2 * count.writes
    )


class Saved(NamedTuple):
    """What a layer saves in the forward pass for its backward pass.

    Attributes
    ----------
    inputs : tuple of int
        Which of its inputs.
    output : bool
        Whether its output.
    numbers : int
        Further numbers of the network's precision that nothing else holds.
    statistics : int
        Means, deviations, logarithms of sums: saved in fp32 or wider.
    bytes : int
        Bytes of masks and indices, whose size the precision does not change.
    scales : bool
        Whether these three grow with the batch.
    """

    inputs: tuple[int, ...] = ()
    output: bool = False
    numbers: int = 0
    statistics: int = 0
    bytes: int = 0
    scales: bool = True

    def own_bytes(self, number_bytes: int) -> int:
        """Bytes that nothing else holds, for numbers of that many bytes."""
        return self.numbers * number_bytes + self.statistics * max(number_bytes, 4) + self.bytes


SAVES_NOTHING = Saved()
FIRST = Saved(inputs=(0,))
OUTPUT = Saved(output=True)

Rule = Callable[[Op], Cost]
Saves = Callable[[Layer, Sequence[bool], bool], Saved]
"""From a layer, which of its inputs want a gradient, and whether its weights get one."""
Fusion = Literal["pointwise", "folded", "reduction", "window", "start", "library", "alone"]

FUSIONS: dict[Fusion, str] = {
    "pointwise": "takes each element where it is made",
    "folded": "pointwise at inference, and folds into the weights of the library call that alone it reads",
    "reduction": "may also take what a pointwise layer makes: one to a kernel",
    "window": "a start that is cheap enough to take activations, computed once for every window",
    "start": "reads its inputs from memory, several times or from several places, and hands on what it makes",
    "library": "a call to a library, which can compute activations and sums where it writes its result",
    "alone": "one kernel of its own, or none",
}
"""Whether and how a layer becomes one kernel with others."""


class Kind(NamedTuple):
    """A kind of layer. What every kind must say has no default: nothing is assumed of a kind.

    Attributes
    ----------
    name : str
        As layers have it: ``conv2d``.
    rule : callable
        From `Op` to `Cost`.
    work_class : str or callable
        The class of work (`paleo_lite.timing.features.CLASSES`); a function of the layer where its shapes decide.
    saves : Saved or callable
        What it saves for the backward pass; a function of the layer where its shapes decide.
    fusion : str or callable
        One of `FUSIONS`; a function of the layer where its shapes decide.
    group : str
        Convolution, matrix product, attention, normalisation, activation, elementwise, pooling or data movement: its
        colour in charts.
    profiled : str
        The kind of operation in profiles (`paleo_lite.profiles.classes.OPERATIONS`).
    splits : bool or callable
        Whether a tensor that is split by channels or heads passes through it; a function of the layer where its shapes
        decide.
    gemm : callable or None
        From layer and pass to the matrix product that a library computes; None where it is none.
    statistics : bool
        Whether it has a running mean and a running variance for each channel.
    alias : bool or callable
        Whether its result lies in the memory of its first operand.
    passes_gradient : bool
        Whether the gradients of its operands are the gradient of its result, or parts of it: no new memory.
    element_bytes : int
        Bytes of an element of its result where the precision does not change them; 0 for numbers of the precision.
    autocast : {"", "fp32", "input"}
        What PyTorch's autocast computes it in: fp32, or what its input has although its weights are wider. Else
        products take 16 bits, and all others the widest of what they read.
    unfused : callable or None
        From a layer, the places of its parents and its own to the layers that compute it where no kernel does at once.
    free : str
        The conventions that count nothing of it (`paleo_lite.counting.conventions`).
    torch : dict of str to str
        The reader of a call (`paleo_lite.networks.readings`) and the names of the calls in torch that it reads.
    module : str
        The class of ``torch.nn`` that it is.
    caffe : str
        Caffe's types of layer that are this one, with an output of the shape of their input.
    paleo : str
        PALEO's type of layer that is this one, with an output of the shape of its input.
    onnx : str
        ONNX's operators that are this one.
    onnx_weights : int or None
        How many of the constants that such an operator reads are weights (a batch norm's statistics are none); without
        it all that are more than a number.
    pyprof : dict of str to str
        The reader of pyprof's parameters (`paleo_lite.efficiency.parameters`) and the operations that it reads.
    """

    name: str
    rule: Rule
    work_class: str | Callable[[Layer], str]
    saves: Saved | Saves
    fusion: Fusion | Callable[[Layer], Fusion]
    group: str
    profiled: str
    splits: bool | Callable[[Layer], bool]
    gemm: Callable[[Layer, str], Gemm | None] | None = None
    statistics: bool = False
    alias: bool | Callable[[Layer], bool] = False
    passes_gradient: bool = False
    element_bytes: int = 0
    autocast: Literal["", "fp32", "input"] = ""
    unfused: Callable[[Layer, tuple[int, ...], int], list[Layer]] | None = None
    free: str = ""
    torch: Mapping[str, str] = {}
    module: str = ""
    caffe: str = ""
    paleo: str = ""
    onnx: str = ""
    onnx_weights: int | None = None
    pyprof: Mapping[str, str] = {}

"""`Layer`, the operation that gets counted; `Op`, the view of it that rules see; `Kind`, all that is known of a kind.

A layer is described by shapes alone, so that layers of a network and kernels of a profile are counted alike.
FLOPs: a multiply-accumulate is 2, a bias 1 per output, elementwise work as `kinds.elementwise` lists it.
Bytes: every operand once, the least that any kernel must move. A normalisation over the batch reads its input twice in
training, because its statistics are needed before its first output. Views move nothing.
Backward: gradients with respect to the inputs ("data") and to the parameters ("weight") apart.
Saved tensors: what a gradient is computed from (the formulas of PyTorch's ``derivatives.yaml``), held in the tests
against ``torch.autograd.graph.saved_tensors_hooks`` on real modules.
``docs/counting.md`` and ``docs/training.md`` say the same in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any, Literal, NamedTuple

Shape = tuple[int, ...]

INPUT = -1
"""Parent of a tensor that the network is given."""
CONSTANT = -2
"""Parent of a tensor that no layer computes: a buffer, or one made from nothing."""


class Layer(NamedTuple):
    """One operation of a network, at batch 1.

    Attributes
    ----------
    name : str
        Module path (``features.0``), with the operation behind it where a module does several
        (``layer1.0.add``) and ``#2`` for the second call.
    kind : str
        ``conv2d``, ``linear``, ``batch_norm``, ... (`paleo_lite.counting.kinds.KINDS`); an operation that no rule
        knows keeps its own name (``aten.sort``).
    inputs, outputs : tuple of shapes
        Tensors read and written, in the order of the call; parameters are not among them.
    weights : tuple of shapes
        Parameters read; for convolution and linear the weight first, then the bias.
    parents : tuple of int
        For each input the index of the layer that made it, `INPUT` or `CONSTANT`.
    parameters : int
        Elements of those weights that no earlier layer uses: a shared parameter counts once.
    attributes : dict
        What the shapes do not say: ``stride``, ``padding``, ``groups``, ``kernel``, ``function``, ...
    origin : str
        Who called: ``module:Conv2d`` (the outermost layer class of ``torch.nn``), ``function``, ``operator``,
        ``method``, or ``opaque:NAME`` inside a function that torch.fx does not look into.
    """

    name: str
    kind: str
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    weights: tuple[Shape, ...] = ()
    parents: tuple[int, ...] = ()
    parameters: int = 0
    attributes: dict[str, Any] = {}  # noqa: RUF012  the default of a NamedTuple, never written to
    origin: str = "function"


class Op:
    """A layer as the rules see it: element counts at some batch size, and which inputs want a gradient.

    Attributes
    ----------
    inputs, outputs, weights : list of int
        Elements of each tensor, those that depend on the network's input multiplied by the batch size.
    x, y, w : int
        Elements of all inputs, of all outputs, of all weights.
    has_bias : bool
        Whether a convolution or linear layer adds a bias.
    wants_gradient : list of bool
        For each input whether a backward pass computes its gradient.
    trainable : bool
        Whether the weights get a gradient.
    attributes : dict
        Of the layer.
    samples : int
        How many times as large the outputs are as those of one sample.
    """

    def __init__(
        self, layer: Layer, batch_size: int, scales: Sequence[bool], output_scales: bool, wants_gradient: Sequence[bool]
    ) -> None:
        self.layer, self.attributes = layer, layer.attributes
        self.samples = batch_size if output_scales else 1
        self.inputs = [
            prod(shape) * (batch_size if scaled else 1) for shape, scaled in zip(layer.inputs, scales, strict=True)
        ]
        self.outputs = [prod(shape) * self.samples for shape in layer.outputs]
        self.weights = [prod(shape) for shape in layer.weights]
        self.x, self.y, self.w = sum(self.inputs), sum(self.outputs), sum(self.weights)
        self.has_bias = len(layer.weights) > 1
        self.wants_gradient = list(wants_gradient)
        self.trainable = bool(layer.weights) and not layer.attributes.get("frozen", False)


class Flow(NamedTuple):
    """What follows from the edges of the graph, for every layer.

    Attributes
    ----------
    output_scales : list of bool
        Whether the layer's outputs depend on the network's input, and so grow with the batch.
    output_wants_gradient : list of bool
        Whether a backward pass reaches the layer's outputs on its way to a parameter.
    consumers : list of int
        How many gradients arrive at the layer's outputs: all beyond the first of each output are added up.
    seen : list of tuple
        What `Op` is told of it: which inputs grow with the batch, whether the outputs do, and which inputs want a
        gradient.
    """

    output_scales: list[bool]
    output_wants_gradient: list[bool]
    consumers: list[int]
    seen: list[tuple[tuple[bool, ...], bool, tuple[bool, ...]]]

    def add(self, layer: Layer) -> None:
        """The next layer.

        The attribute ``scales`` says whether it grows where the graph does not: zeros for each sample depend on no
        input.
        """
        scales, gradient, attributes = self.output_scales, self.output_wants_gradient, layer.attributes
        grow = tuple([parent == INPUT or (parent >= 0 and scales[parent]) for parent in layer.parents])
        scales.append(attributes.get("scales", any(grow)))
        passes = layer.kind != "fill" and not attributes.get("no_gradient", False)
        trainable = bool(layer.weights) and not attributes.get("frozen", False)
        wants = tuple([passes and parent >= 0 and gradient[parent] for parent in layer.parents])
        gradient.append(any(wants) or (passes and trainable))
        self.consumers.append(0)
        for parent, wanted in zip(layer.parents, wants):
            if wanted:
                self.consumers[parent] += 1
        self.seen.append((grow, scales[-1], wants))


def trace_flow(layers: Iterable[Layer]) -> Flow:
    """Walk the graph once: which tensors grow with the batch, and which get gradients.

    There is no gradient into the network's input, nor through what depends on no parameter.
    """
    flow = Flow([], [], [], [])
    for layer in layers:
        flow.add(layer)
    return flow


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


class Gemm(NamedTuple):
    """`groups` products of ``rows x inner`` by ``inner x columns``, for one sample.

    Exactly one of rows, columns, inner and groups grows with the batch: `grows` names it, or is empty where none does.
    """

    rows: int
    columns: int
    inner: int
    groups: int
    grows: str


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
        The kind of operation in profiles (`paleo_lite.profiles.names.OPERATIONS`).
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
        The conventions that count nothing of it (`paleo_lite.counting.work.CONVENTIONS`).
    torch : dict of str to str
        The reader of a call (`paleo_lite.architectures.readings`) and the names of the calls in torch that it reads.
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
        The reader of pyprof's parameters (`paleo_lite.profile_analysis.parameters`) and the operations that it reads.
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

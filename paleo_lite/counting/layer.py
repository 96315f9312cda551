"""Layers described by their shapes, the cost records of a layer, and the description of a layer kind.

`Layer` is one operation of a network, `Op` is the view of it that counting rules receive, and `Kind` holds everything
the package knows about a kind of layer. Layers of a network and kernels of a profile are both described by shapes, so
that the same rules count them.

FLOPs
    A multiply-accumulate counts 2, a bias 1 per output element, elementwise work as `kinds.activations` says.
Bytes
    Every operand is moved once: the minimum of any kernel. A normalisation over the batch reads its input twice in
    training, because the statistics are needed before the first output. Views move nothing.
Backward pass
    Gradients with respect to the inputs ("data") and to the parameters ("weight") are counted separately.
Saved tensors
    The tensors from which a gradient is computed, after the formulas of PyTorch's ``derivatives.yaml``. The tests
    compare them with ``torch.autograd.graph.saved_tensors_hooks`` on real modules.

``docs/counting.md`` and ``docs/training.md`` explain these rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any, Literal, NamedTuple

Shape = tuple[int, ...]

INPUT = -1
"""Parent index of an input tensor of the network."""
CONSTANT = -2
"""Parent index of a tensor that no layer computes, such as a buffer or a tensor of zeros."""

RECURRENT_MODULES = ("module:RNN", "module:GRU", "module:LSTM")
"""Origins of the operations of modules whose steps a library computes in one call; a cell is called for every step."""


Role = Literal[
    "",  # none of the others, such as a residual addition
    "embedding",
    "norm",
    "attention",
    "indexer",  # scores all keys to select those that attention reads
    "recurrence",  # a mixer with a state of its own, or a convolution over tokens
    "feed-forward",
    "mixture",  # of experts: what is neither router nor experts, such as the sum of their results
    "router",
    "experts",
    "shared experts",
    "head",  # the product that gives the logits
]

Matrix = Literal[
    "", "query", "key", "value", "query, key and value", "query up", "key and value up", "attention output",
    "gate", "up", "gate and up", "down",
]  # fmt: skip
"""What the product of a layer gives its block; ``up`` after query, key and value is from their compressed form."""


class Place(NamedTuple):
    """Where a layer stands; an empty name stands for none."""

    role: Role = ""
    owner: str = ""  # the module that has this role: of a norm, of experts, of attention
    block: str = ""  # the outermost numbered module, such as ``model.layers.3``
    number: int | None = None  # its number
    part: str = ""  # the module of the block for attention, a recurrence or a feed-forward part
    module: str = ""  # the module that contains the layer
    matrix: Matrix = ""

    @property
    def is_in_block(self) -> bool:
        """Whether the layer is inside a block."""
        return self.number is not None

    @property
    def modules_around(self) -> tuple[str, ...]:
        """The module of the layer and those that contain it, the innermost first."""
        modules = [self.module]
        while "." in modules[-1]:
            modules.append(modules[-1].rpartition(".")[0])
        return tuple(modules)

    def of_addition(self, module: str) -> Place:
        """Return the place of a layer that belongs to this one, in a module of its own; it is no head and no router."""
        role: Role = "" if self.role in ("head", "router") else self.role
        return self._replace(role=role, module=module, matrix="")

    def within(self, prefix: str) -> Place:
        """Return the place in a network that contains the layer's own network as a module."""
        owner, block, part = (f"{prefix}.{name}" if name else "" for name in (self.owner, self.block, self.part))
        module = f"{prefix}.{self.module}" if self.module else prefix
        return self._replace(owner=owner, block=block, part=part, module=module)


NOWHERE = Place()


class Layer(NamedTuple):
    """One operation of a network, with the shapes of one sample.

    Attributes
    ----------
    name : str
        Module path (``features.0``). The operation is appended if the module performs several (``layer1.0.add``), and
        ``#2`` on the second call.
    kind : str
        ``conv2d``, ``linear``, ``batch_norm``, ... (`paleo_lite.counting.kinds.KINDS`). An operation without a rule
        keeps its own name (``aten.sort``).
    inputs, outputs : tuple of shapes
        Shapes of the tensors read and written, in the order of the call, without parameters.
    weights : tuple of shapes
        Shapes of the parameters read. Convolution and linear layers list the weight first, then the bias.
    parents : tuple of int
        For each input, the index of the layer that produces it, `INPUT` or `CONSTANT`.
    parameters : int
        Number of parameters that no earlier layer uses, so that a shared parameter counts once.
    attributes : dict
        Arguments that do not follow from the shapes: ``stride``, ``padding``, ``groups``, ``kernel``, ``function``, ...
    origin : str
        Caller of the operation: ``module:Conv2d`` (the outermost layer class of ``torch.nn``), ``function``,
        ``operator``, ``method``, or ``opaque:NAME`` inside a function that torch.fx does not trace.
    place : Place
        Its block, its module and its role.
    """

    name: str
    kind: str
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    weights: tuple[Shape, ...] = ()
    parents: tuple[int, ...] = ()
    parameters: int = 0
    attributes: dict[str, Any] = {}  # noqa: RUF012  default of a NamedTuple; never modified
    origin: str = "function"
    place: Place = NOWHERE

    @property
    def is_frozen(self) -> bool:
        """Whether the weights are not trained."""
        return bool(self.attributes.get("frozen", False))


class Op:
    """A layer at one batch size, as counting rules receive it.

    The inputs, outputs and weights are the numbers of elements of each tensor. Tensors that depend on the network's
    input are scaled by the batch size.
    """

    def __init__(
        self, layer: Layer, batch_size: int, scales: Sequence[bool], output_scales: bool, wants_gradient: Sequence[bool]
    ) -> None:
        self.layer, self.attributes = layer, layer.attributes
        # Factor by which the outputs are larger than those of one sample: the batch size, or 1 for outputs that do not
        # grow with the batch.
        self.samples = batch_size if output_scales else 1
        self.inputs = [
            prod(shape) * (batch_size if scaled else 1) for shape, scaled in zip(layer.inputs, scales, strict=True)
        ]
        self.outputs = [prod(shape) * self.samples for shape in layer.outputs]
        self.weights = [prod(shape) for shape in layer.weights]
        self.x, self.y, self.w = sum(self.inputs), sum(self.outputs), sum(self.weights)  # total elements of each
        self.has_bias = len(layer.weights) > 1  # of a convolution or linear layer
        self.wants_gradient = list(wants_gradient)  # for each input, whether the backward pass computes its gradient
        # Whether the backward pass computes gradients of the weights.
        self.trainable = bool(layer.weights) and not layer.is_frozen


class _Node(NamedTuple):
    """What the flow through a graph asks of a layer."""

    parents: tuple[int, ...]
    scales: bool | None  # whether its outputs grow with the batch; None where this follows from its inputs
    is_differentiable: bool
    is_trainable: bool

    @classmethod
    def of_layer(cls, layer: Layer) -> _Node:
        """Return the node of a layer."""
        attributes = layer.attributes
        is_differentiable = layer.kind != "fill" and not attributes.get("no_gradient", False)
        is_trainable = bool(layer.weights) and not attributes.get("frozen", False)
        return cls(layer.parents, attributes.get("scales"), is_differentiable, is_trainable)


class Flow(NamedTuple):
    """Properties of every layer that follow from the edges of the graph; each list has one entry per layer."""

    # Whether the layer's outputs depend on the network's input and therefore grow with the batch.
    output_scales: list[bool]
    # Whether the backward pass computes gradients of the layer's outputs, on the way to a parameter.
    output_wants_gradient: list[bool]
    # Number of gradients that arrive at the layer's outputs; those beyond the first of each are accumulated.
    consumers: list[int]
    # Further arguments of `Op`: which inputs grow with the batch, whether the outputs do, and which inputs want a
    # gradient.
    op_arguments: list[tuple[tuple[bool, ...], bool, tuple[bool, ...]]]

    def add(self, layer: Layer) -> None:
        """Append the next layer in the order of execution.

        The attribute ``scales`` overrides the graph: zeros that are created for each sample depend on no input, but
        grow with the batch.
        """
        self.add_node(_Node.of_layer(layer))

    def add_node(self, node: _Node) -> None:
        """Append the next node of the graph in the order of execution."""
        scales, gradient = self.output_scales, self.output_wants_gradient
        input_scales = tuple([parent == INPUT or (parent >= 0 and scales[parent]) for parent in node.parents])
        scales.append(any(input_scales) if node.scales is None else node.scales)
        wants_gradient = tuple([node.is_differentiable and parent >= 0 and gradient[parent] for parent in node.parents])
        gradient.append(any(wants_gradient) or (node.is_differentiable and node.is_trainable))
        self.consumers.append(0)
        for parent, is_wanted in zip(node.parents, wants_gradient):
            if is_wanted:
                self.consumers[parent] += 1
        self.op_arguments.append((input_scales, scales[-1], wants_gradient))


def trace_flow(layers: Iterable[Layer]) -> Flow:
    """Determine which tensors of layers, in the order of execution, grow with the batch and which receive gradients.

    No gradient is computed for the network's input, nor through tensors that depend on no parameter. Networks of one
    graph share the result, which is only read.
    """
    return _trace_nodes(tuple([_Node.of_layer(layer) for layer in layers]))


@lru_cache(64)
def _trace_nodes(nodes: tuple[_Node, ...]) -> Flow:
    flow = empty_flow()
    for node in nodes:
        flow.add_node(node)
    return flow


def empty_flow() -> Flow:
    """Return the flow of no layers, to which layers are added as they are traced."""
    return Flow([], [], [], [])


INDEX_BYTES = 8
"""Bytes of an index (int64, the default of PyTorch)."""


class PassCost(NamedTuple):
    """Cost of one pass over one layer."""

    flops: int = 0  # floating-point operations
    macs: int = 0  # multiply-accumulates of convolution, linear, matmul and attention
    reads: int = 0  # elements of the network's precision
    writes: int = 0  # elements of the network's precision
    index_bytes: int = 0  # of indices and masks, which do not depend on the precision
    kernels: int = 1  # launched in eager execution


NO_COST = PassCost(kernels=0)
"""Cost of a pass that does nothing and launches no kernel."""


class Cost(NamedTuple):
    """Cost of a layer at inference and in the passes of a training step."""

    inference: PassCost
    forward: PassCost
    backward_data: PassCost = NO_COST
    backward_weight: PassCost = NO_COST


def needed_cost(
    op: Op,  # whose `wants_gradient` and `trainable` decide which gradients are needed
    forward: PassCost,  # the forward pass
    data: PassCost = NO_COST,  # the data gradient
    weight: PassCost = NO_COST,  # the weight gradient
    inference: PassCost | None = None,  # None if it is the same as the forward pass of training
) -> Cost:
    """Return the cost of a layer without the gradients that are not needed."""
    return Cost(
        inference=forward if inference is None else inference,
        forward=forward,
        backward_data=data if any(op.wants_gradient) else NO_COST,
        backward_weight=weight if op.trainable else NO_COST,
    )


def sum_costs(costs: Sequence[PassCost]) -> PassCost:
    """Return the field-wise sum of several costs."""
    if not costs:
        return NO_COST
    return PassCost(*(sum(column) for column in zip(*costs)))


class Gemm(NamedTuple):
    """Sizes of a matrix product for one sample: `groups` products of ``rows x inner`` by ``inner x columns``.

    `grows` is the name of the size that grows with the batch (``"rows"``, ``"columns"``, ``"inner"`` or ``"groups"``);
    it is empty if none does.
    """

    rows: int
    columns: int
    inner: int
    groups: int
    grows: str


class Saved(NamedTuple):
    """Tensors that a layer saves in the forward pass for its backward pass."""

    inputs: tuple[int, ...] = ()  # positions of the saved inputs
    output: bool = False  # whether the output is saved
    numbers: int = 0  # further saved elements of the network's precision, in tensors of their own
    statistics: int = 0  # saved means, standard deviations and logarithms of sums, kept in fp32 or wider
    bytes: int = 0  # of saved masks and indices, which do not depend on the precision
    scales: bool = True  # whether `numbers`, `statistics` and `bytes` grow with the batch


WIDE = "wide"
"""Attribute of a layer that computes in fp32 and converts its result back, whatever the network's precision."""

SAVES_NOTHING = Saved()
SAVES_FIRST_INPUT = Saved(inputs=(0,))
SAVES_OUTPUT = Saved(output=True)

Rule = Callable[[Op], Cost]
Saves = Callable[[Layer, Sequence[bool], bool], Saved]
"""Function that returns the saved tensors from a layer, a flag per input that wants a gradient, and whether the weights
are trainable."""
Fusion = Literal["pointwise", "folded", "reduction", "window", "start", "library", "alone"]

FUSIONS: dict[Fusion, str] = {
    "pointwise": "joins the kernel that produces its input, element by element",
    "folded": "pointwise at inference; folded into the weights of the preceding library call if nothing else reads it",
    "reduction": "may join the kernel of a preceding pointwise layer; one reduction per kernel",
    "window": "starts a kernel; cheap enough to recompute preceding activations for every window",
    "start": "starts a kernel: it reads its inputs from memory, and later layers may join",
    "library": "a library call, which can apply activations and additions in its epilogue",
    "alone": "a kernel of its own, or no kernel",
}
"""The ways in which a layer can share a kernel with others."""


class Kind(NamedTuple):
    """Description of a kind of layer. Required properties have no default, so that every kind states them.

    A property that depends on the shapes is a function of the layer.
    """

    name: str  # in `Layer.kind`, such as ``conv2d``
    rule: Rule  # from `Op` to the canonical `Cost`
    work_class: str | Callable[[Layer], str]  # one of `paleo_lite.timing.features.CLASSES`
    saves: Saved | Saves  # tensors saved for the backward pass
    fusion: Fusion | Callable[[Layer], Fusion]  # one of `FUSIONS`
    # Group that determines the colour in charts: convolution, matrix product, attention, normalisation, activation,
    # elementwise, pooling or data movement.
    group: str
    profile_kind: str  # kind of operation in profiles (`paleo_lite.profiles.names.OPERATIONS`)
    # Whether the output of the layer is sharded by channels or heads if its input is.
    preserves_sharding: bool | Callable[[Layer], bool]
    # Function from layer and pass to the matrix product that a library computes; None if there is none.
    gemm: Callable[[Layer, str], Gemm | None] | None = None
    has_running_statistics: bool = False  # whether the layer keeps a running mean and a running variance per channel
    aliases_input: bool | Callable[[Layer], bool] = False  # whether the output shares the memory of the first input
    # Whether the gradients of the inputs are the gradient of the output or slices of it, without new memory.
    passes_gradient: bool = False
    element_bytes: int = 0  # per output element if the precision does not determine them; otherwise 0
    # Precision under PyTorch's autocast: "fp32", or "input" for the precision of the input although the weights are
    # wider. With "" matrix products use 16 bits and other layers the widest of their operands.
    autocast: Literal["", "fp32", "input"] = ""
    # Function from a layer, the indices of its parents and its own index to the layers that compute it without a fused
    # kernel.
    decompose: Callable[[Layer, tuple[int, ...], int], list[Layer]] | None = None
    # Space-separated conventions that count the kind as 0 (`paleo_lite.counting.work.CONVENTIONS`).
    uncounted_by: str = ""
    # Names of calls in torch, space-separated, by their reader (`paleo_lite.architectures.call_readers`).
    torch: Mapping[str, str] = {}
    module: str = ""  # name of the corresponding class of ``torch.nn``
    caffe: str = ""  # corresponding Caffe layer types, space-separated; the output has the shape of the input
    paleo: str = ""  # corresponding layer type of PALEO; the output has the shape of the input
    onnx: str = ""  # corresponding ONNX operators, space-separated
    # Number of constant inputs of the ONNX operator that are weights (a batch norm's statistics are not). None: all
    # constants with more than one element.
    onnx_weights: int | None = None
    # Names of operations in pyprof profiles, space-separated, by the reader of their parameters
    # (`paleo_lite.profile_analysis.parameters`).
    pyprof: Mapping[str, str] = {}

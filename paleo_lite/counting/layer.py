"""`Layer`, the operation that gets counted, and `Op`, the view of it that counting rules see.

A layer is described by shapes alone, so that layers of a network and kernels of a profile are counted alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

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
    samples : int
        How many times as large the outputs are as those of one sample.
    """

    def __init__(
        self, layer: Layer, batch_size: int, scales: Sequence[bool], output_scales: bool, wants_gradient: Sequence[bool]
    ) -> None:
        self.layer = layer
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

    @property
    def spatial_rank(self) -> int:
        """Dimensions that a pooling or interpolation works over: all but batch and channels."""
        return int(self.layer.attributes.get("dims", len(self.layer.inputs[0]) - 2))

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute of the layer."""
        return self.layer.attributes.get(name, default)


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
    """

    output_scales: list[bool]
    output_wants_gradient: list[bool]
    consumers: list[int]

    def of(self, index: int, layer: Layer) -> tuple[tuple[bool, ...], bool, tuple[bool, ...]]:
        """Which inputs of a layer grow with the batch, whether its outputs do, and which inputs want a gradient."""
        scales, wants = self.output_scales, self.output_wants_gradient
        return (
            tuple([p == INPUT or (p >= 0 and scales[p]) for p in layer.parents]),
            scales[index],
            tuple([wants[index] and p >= 0 and wants[p] for p in layer.parents]),
        )


def trace_flow(layers: Sequence[Layer]) -> Flow:
    """Walk the graph once: which tensors grow with the batch, and which get gradients.

    There is no gradient into the network's input, nor through what depends on no parameter.
    """
    scales: list[bool] = []
    gradient: list[bool] = []
    consumers = [0] * len(layers)
    for layer in layers:
        scales.append(grows(layer, scales))
        gradient.append(gets_gradient(layer, gradient))
        if _passes_gradient(layer):
            for parent in layer.parents:
                if parent >= 0 and gradient[parent]:
                    consumers[parent] += 1
    return Flow(scales, gradient, consumers)


def grows(layer: Layer, scales: Sequence[bool]) -> bool:
    """Whether a layer's outputs grow with the batch, given whether those of earlier layers do.

    The attribute ``scales`` says it where the graph does not: zeros for each sample depend on no input.
    """
    said: bool | None = layer.attributes.get("scales")
    return any(p == INPUT or (p >= 0 and scales[p]) for p in layer.parents) if said is None else said


def gets_gradient(layer: Layer, gradient: Sequence[bool]) -> bool:
    """Whether a backward pass reaches a layer's outputs on its way to a parameter, by those of earlier layers."""
    trainable = bool(layer.weights) and not layer.attributes.get("frozen", False)
    return _passes_gradient(layer) and (trainable or any(p >= 0 and gradient[p] for p in layer.parents))


def _passes_gradient(layer: Layer) -> bool:
    return layer.kind != "fill" and not layer.attributes.get("no_gradient", False)


def see(layers: Sequence[Layer], flow: Flow, batch_size: int, indices: Iterable[int] | None = None) -> list[Op]:
    """The layers, or those of some indices, as `Op` views at a batch size."""
    chosen = range(len(layers)) if indices is None else indices
    return [Op(layers[index], batch_size, *flow.of(index, layers[index])) for index in chosen]

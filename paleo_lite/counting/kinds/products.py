"""Convolution, matrix products and attention: kinds that multiply and accumulate, which tensor cores can do.

Each is also given as the matrix product that libraries compute: how well a library fills a device depends on its rows,
columns, inner size and groups. A convolution is an implicit matrix product (Chetlur et al. 2014, cuDNN): forward
``positions x Cout/groups`` over ``Cin/groups * taps``, the data gradient ``input positions x Cin/groups`` over
``Cout/groups * taps``, the weight gradient ``Cout/groups x Cin/groups * taps`` over ``positions``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..layer import FIRST, SAVES_NOTHING, Cost, Gemm, Kind, Layer, Op, PassCost, Saved, cost, together

MATRIX_CLASSES = (
    "conv_3x3", "conv_direct", "conv_1x1", "conv_grouped", "conv_depthwise", "gemm", "attention",
)  # fmt: skip
"""Classes of work that multiply and accumulate; each has its own efficiency.

``conv_3x3`` is dense, stride 1: libraries may compute it with Winograd's algorithm (Lavin and Gray 2016), which needs
2.25 (tiles of 2x2 outputs) to 4 (4x4) times fewer multiplications, so that its share of the direct count's peak may
exceed 1.
"""


def convolution(op: Op) -> Cost:
    """Convolution, 1-D to 3-D, grouped or transposed; weight ``(Cout, Cin/groups, *kernel)``.

    MACs = outputs * Cin/groups * prod(kernel). Transposed, with weight ``(Cin, Cout/groups, *kernel)``, every input
    element meets prod(weight[1:]). The gradients have the MACs of the forward pass.
    """
    taps = prod(op.layer.weights[0][1:])
    macs = (op.inputs[0] if op.attributes.get("transposed") else op.y) * taps
    return _multiply(op, macs)


def class_of_convolution(layer: Layer) -> str:
    """By groups, kernel and stride: which library routine takes it."""
    weight, attributes = layer.weights[0], layer.attributes
    groups = attributes.get("groups", 1)
    if groups > 1:
        return "conv_depthwise" if weight[1] == 1 else "conv_grouped"
    if prod(weight[2:]) == 1:
        return "conv_1x1"
    plain = (
        set(attributes.get("stride", [1])) == {1} and "dilation" not in attributes and not attributes.get("transposed")
    )
    return "conv_3x3" if plain and set(weight[2:]) == {3} and len(weight) == 4 else "conv_direct"


def is_depthwise(layer: Layer) -> bool:
    """Whether each channel is for itself."""
    return class_of_convolution(layer) == "conv_depthwise"


def linear(op: Op) -> Cost:
    """``y = x W' + b``, weight ``(out, in)``: MACs = outputs * in."""
    return _multiply(op, op.y * op.layer.weights[0][-1])


def _multiply(op: Op, macs: int) -> Cost:
    """Forward, data gradient and weight gradient: each multiplies as often, whatever the groups; a bias is added."""
    bias = op.y if op.has_bias else 0
    x = op.inputs[0]
    return cost(
        op,
        PassCost(2 * macs + bias, macs, x + op.w, op.y),
        PassCost(2 * macs, macs, op.y + op.weights[0], x),
        PassCost(2 * macs + bias, macs, x + op.y, op.w),
    )


def saved_by_linear(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Its input, for the gradient of its weight."""
    return FIRST if trainable else SAVES_NOTHING


def matmul(op: Op) -> Cost:
    """``A B`` over any batch dimensions: MACs = outputs * inner dimension; each operand's gradient costs as much.

    An operand that is a parameter is among the weights; with the attribute ``bias`` the last weight is added.
    """
    bias = op.weights[-1] if op.attributes.get("bias") else 0
    left_first = op.layer.inputs[0] if op.layer.inputs else op.layer.weights[0]
    macs = op.y * op.attributes.get("inner", left_first[-1])
    operands = op.x + op.w - bias
    data = [
        PassCost(2 * macs, macs, op.y + operands - x, x) for x, wanted in zip(op.inputs, op.wants_gradient) if wanted
    ]
    weight = [PassCost(2 * macs, macs, op.y + operands - w, w) for w in op.weights[: len(op.weights) - bool(bias)]]
    weight += [PassCost(op.y, 0, op.y, bias)] if bias else []
    forward = PassCost(2 * macs + (op.y if bias else 0), macs, op.x + op.w, op.y)
    return cost(op, forward, together(data), together(weight))


def saved_by_product(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Each factor that the gradient of another needs; of a product with a parameter or a number the first factor."""
    count = len(layer.inputs)
    if count == 1:
        return FIRST if layer.weights and trainable else SAVES_NOTHING
    wanted = sum(wants_gradient)
    return Saved(tuple(factor for factor in range(count) if trainable or wanted > wants_gradient[factor]))


def grouped_matmul(op: Op) -> Cost:
    """Rows sorted into groups, each times a matrix of its own, weight ``(groups, in, out)``: experts of a mixture.

    MACs = outputs * in. The matrices of all groups are read.
    """
    return _multiply(op, op.y * op.layer.weights[0][-2])


def attention(op: Op) -> Cost:
    """Scaled dot-product attention of queries ``(..., L, E)``, keys ``(..., S, E)`` and values ``(..., S, V)``.

    MACs = scores * (E + V) with scores = ... * L * S, whether or not a mask hides half of them, but for `half_causal`,
    which counts half of all (as the FLOP/s of FlashAttention's benchmarks do, Dao 2023). Scaling 1, softmax 5
    per score. Bytes are those of a fused kernel, which keeps the scores on chip; backward has twice the MACs (a fused
    kernel's recomputation of the scores comes on top and is not counted). In a ring of devices each part of keys and
    values comes by once, and the result is put together as often (Liu et al. 2023).
    """
    q, k, v = op.layer.inputs[:3]
    ring = op.attributes.get("ring", 1)
    scores = op.inputs[0] // q[-1] * k[-2] * ring
    macs = scores * (q[-1] + v[-1])
    passing = (ring - 1) * sum(op.inputs[1:3])

    def seen(number: int) -> int:
        return op.samples * (number // op.samples // 2) if op.attributes.get("half") else number

    forward = PassCost(seen(2 * macs + 6 * scores), seen(macs), op.x + passing, op.y * ring)
    back_read, back_written = op.x + passing + 2 * op.y, sum(op.inputs[:3]) + passing
    return cost(
        op,
        forward,
        PassCost(seen(4 * macs + 5 * scores), seen(2 * macs), back_read, back_written),
    )


def is_linear(layer: Layer) -> bool:
    """Whether a layer is fully connected."""
    return layer.kind == "linear"


def is_attention(layer: Layer) -> bool:
    """Whether a layer is attention that one kernel computes."""
    return layer.kind == "attention"


def restores_order(layers: Sequence[Layer], layer: Layer) -> bool:
    """Whether a layer copies what attention made into another order.

    Fused attention writes its result in the order of its query in memory: to put it back takes no copy.
    """
    if layer.kind != "copy" or len(layer.parents) != 1 or layer.parents[0] < 0:
        return False
    before = layers[layer.parents[0]]
    if before.kind != "view":
        return False
    while before.kind == "view" and before.parents[0] >= 0:
        before = layers[before.parents[0]]
    return is_attention(before)


def unfused_attention(layer: Layer, parents: tuple[int, ...], first: int) -> list[Layer]:
    """Scaled queries, scores, the mask's sum, softmax, their product; `first` is the place of the first of these."""
    query, key, value = layer.inputs[:3]
    turned, scores = (*key[:-2], key[-1], key[-2]), (*query[:-1], key[-2])
    made = [
        Layer(f"{layer.name}.mul", "mul", (query,), (query,), parents=parents[:1]),
        Layer(f"{layer.name}.scores", "matmul", (query, turned), (scores,), parents=(first, parents[1])),
    ]
    if len(layer.inputs) > 3:
        masked = (first + len(made) - 1, parents[3])
        made.append(Layer(f"{layer.name}.add", "add", (scores, layer.inputs[3]), (scores,), parents=masked))
    made.append(Layer(f"{layer.name}.softmax", "softmax", (scores,), (scores,), parents=(first + len(made) - 1,)))
    product = (first + len(made) - 1, parents[2])
    return [*made, Layer(layer.name, "matmul", (scores, value), layer.outputs, parents=product)]


def half_causal(layers: Sequence[Layer]) -> tuple[list[Layer], int]:
    """Layers whose causal attention counts half, and how many these are."""
    halved = [
        layer._replace(attributes={**layer.attributes, "half": True})
        if is_attention(layer) and layer.attributes.get("causal") else layer for layer in layers
    ]  # fmt: skip
    return halved, sum(layer.attributes.get("half", False) for layer in halved)


def saved_by_attention(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """All operands, the result, and a logarithm of a sum for each row."""
    return Saved(tuple(range(len(layer.inputs))), output=True, statistics=prod(layer.inputs[0][:-1]))


def of_linear(layer: Layer, pass_name: str) -> Gemm:
    """The product of a fully connected layer."""
    outputs, inputs = layer.weights[0][0], layer.weights[0][-1]
    rows = prod(layer.outputs[0]) // max(outputs, 1)
    return _turned(Gemm(rows, outputs, inputs, 1, "rows"), pass_name)


def of_matmul(layer: Layer, pass_name: str) -> Gemm | None:
    """The product of two tensors, one for each of their leading dimensions."""
    if not layer.outputs:
        return None
    shape = layer.outputs[0]
    left = layer.inputs[0] if layer.inputs else layer.weights[0]
    inner = layer.attributes.get("inner", left[-1])
    rows = shape[-2] if len(shape) > 1 else 1
    columns = shape[-1] if shape else 1
    groups = prod(shape) // max(rows * columns, 1)
    return _turned(Gemm(rows, columns, inner, groups, "groups" if groups > 1 else "rows"), pass_name)


def of_grouped(layer: Layer, pass_name: str) -> Gemm:
    """One product for each group of rows, which are taken to be of one size."""
    groups, inner, columns = layer.weights[0]
    rows = prod(layer.outputs[0]) // max(columns, 1)
    return _turned(Gemm(max(rows // max(groups, 1), 1), columns, inner, groups, "rows"), pass_name)


def of_attention(layer: Layer, pass_name: str) -> Gemm:
    """The scores of queries and keys, one product for each head; where heads share keys, one for those that do."""
    query, key = layer.inputs[0], layer.inputs[1]
    heads, groups = prod(query[:-2]), prod(key[:-2])
    together = heads // groups if groups and heads % groups == 0 else 1
    keys = key[-2] * layer.attributes.get("ring", 1)
    return _turned(Gemm(query[-2] * together, keys, query[-1], heads // max(together, 1), "groups"), pass_name)


def computed_scores(layer: Layer) -> float:
    """The share of the scores that a fused kernel computes: it leaves out what the mask hides.

    Of L queries and S keys, causal, the i-th query from the end sees S - i keys; with a window no more than that. Of a
    ring every device has early and late queries, so that all compute as many (Brandon et al. 2023, striped attention).
    """
    queries, keys = (layer.inputs[operand][-2] * layer.attributes.get("ring", 1) for operand in (0, 1))
    window = layer.attributes.get("window", keys)
    if not (layer.attributes.get("causal") or "window" in layer.attributes) or queries < 2:
        return 1.0
    short = min(max(window - (keys - queries), 0), queries)  # queries that see fewer keys than the window holds
    seen = sum((keys - queries + 1, keys - queries + short)) * short / 2 + (queries - short) * window
    return float(min(seen / (queries * keys), 1.0))


_OTHER_WAY = {"inference": "backward_data", "forward": "backward_data", "backward_data": "forward"}


def of_convolution(layer: Layer, pass_name: str) -> Gemm:
    """The implicit product of a convolution."""
    weight = layer.weights[0]
    rank = len(weight) - 2
    groups = layer.attributes.get("groups", 1)
    taps = prod(weight[2:])
    positions = prod(layer.outputs[0][-rank:])
    input_positions = prod(layer.inputs[0][-rank:])
    channels_in, channels_out = weight[1], weight[0] // groups
    if layer.attributes.get("transposed"):  # the data gradient of a convolution that goes the other way, and back
        positions, input_positions = input_positions, positions
        pass_name = _OTHER_WAY.get(pass_name, pass_name)
    if pass_name == "backward_data":
        return Gemm(input_positions, channels_in, channels_out * taps, groups, "rows")
    forward = Gemm(positions, channels_out, channels_in * taps, groups, "rows")
    return _turned(forward, pass_name) if pass_name == "backward_weight" else forward


def _turned(forward: Gemm, pass_name: str) -> Gemm:
    """The gradients of a product are products with the same three sizes in other roles."""
    rows, columns, inner, groups, grows = forward
    if pass_name == "backward_data":
        return Gemm(rows, inner, columns, groups, grows)
    if pass_name == "backward_weight":
        return Gemm(columns, inner, rows, groups, "inner" if grows == "rows" else grows)
    return forward


_CONVOLUTION: dict[str, Any] = {
    "rule": convolution, "work_class": class_of_convolution, "saves": FIRST, "fusion": "library",
    "group": "convolution", "profiled": "convolution", "splits": is_depthwise, "gemm": of_convolution,
    "onnx_weights": 2,
}  # fmt: skip

KINDS = (
    Kind("conv1d", torch={"convolution": "conv1d"}, **_CONVOLUTION),
    # ATen has one operation for all of them.
    Kind("conv2d", torch={"convolution": "conv2d", "aten_convolution": "convolution"}, module="Conv2d", onnx="Conv",
         pyprof={"conv": "conv2d"}, **_CONVOLUTION),
    Kind("conv3d", torch={"convolution": "conv3d"}, **_CONVOLUTION),
    Kind("conv_transpose1d", torch={"transposed_convolution": "conv_transpose1d"}, **_CONVOLUTION),
    Kind("conv_transpose2d", torch={"transposed_convolution": "conv_transpose2d"}, module="ConvTranspose2d",
         onnx="ConvTranspose", **_CONVOLUTION),
    Kind("conv_transpose3d", torch={"transposed_convolution": "conv_transpose3d"}, **_CONVOLUTION),
    Kind(
        "linear", linear, "gemm", saved_by_linear, "library", "matrix product", "linear", splits=False,
        gemm=of_linear, torch={"linear": "linear"}, module="Linear", pyprof={"linear": "linear"},
        onnx="Gemm", onnx_weights=2,
    ),
    Kind(
        "matmul", matmul, "gemm", saved_by_product, "alone", "matrix product", "linear", splits=True,
        gemm=of_matmul, torch={
            "matmul": "matmul mm bmm mv dot inner vdot", "matmul_added": "addmm baddbmm addmv",
            "matmul_summed": "addbmm", "matmul_scaled": "scaled_mm",
            "bilinear": "bilinear",
        }, onnx="MatMul",
    ),
    Kind(
        "grouped_matmul", grouped_matmul, "gemm", saved_by_linear, "alone", "matrix product", "linear", splits=False,
        gemm=of_grouped, torch={"grouped": "grouped_mm"},
    ),
    Kind(
        "attention", attention, "attention", saved_by_attention, "alone", "attention", "attention", splits=True,
        gemm=of_attention, torch={"attention": "scaled_dot_product_attention"}, onnx="Attention",
        onnx_weights=0, unfused=unfused_attention,
    ),
)  # fmt: skip

"""Counting rules of convolution, matrix products and attention: the kinds that consist of multiply-accumulates.

Each kind also states the matrix product that libraries compute, because the utilisation of a device depends on its
rows, columns, inner size and groups. A convolution is an implicit matrix product (Chetlur et al. 2014, cuDNN)::

    forward:          rows = positions,        columns = Cout / groups,         inner = Cin / groups * taps
    data gradient:    rows = input positions,  columns = Cin / groups,          inner = Cout / groups * taps
    weight gradient:  rows = Cout / groups,    columns = Cin / groups * taps,   inner = positions
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from ..layer import (
    SAVES_FIRST_INPUT,
    SAVES_NOTHING,
    Cost,
    Gemm,
    Kind,
    Layer,
    Op,
    PassCost,
    Saved,
    needed_cost,
    sum_costs,
)

MATRIX_CLASSES = ("conv_3x3", "conv_direct", "conv_1x1", "conv_grouped", "conv_depthwise", "gemm", "attention")
"""Classes of work that consist of multiply-accumulates; each has its own efficiency.

``conv_3x3`` is dense with stride 1. Libraries may compute it with Winograd's algorithm (Lavin and Gray 2016), which
needs 2.25 times (tiles of 2x2 outputs) to 4 times (4x4) fewer multiplications, so that its fraction of peak, based on
the direct count, may exceed 1.
"""


def convolution(op: Op) -> Cost:
    """Count a convolution in 1 to 3 dimensions, grouped or transposed, with weight ``(Cout, Cin/groups, *kernel)``.

    MACs = outputs * Cin/groups * prod(kernel). In a transposed convolution, with weight ``(Cin, Cout/groups,
    *kernel)``, every input element is multiplied by prod(weight[1:]) weights. Each gradient takes the MACs of the
    forward pass.
    """
    taps = prod(op.layer.weights[0][1:])
    macs = (op.inputs[0] if op.attributes.get("transposed") else op.y) * taps
    return _product_with_weights(op, macs)


def class_of_convolution(layer: Layer) -> str:
    """Return the class of work of a convolution, which depends on groups, kernel and stride."""
    weight, attributes = layer.weights[0], layer.attributes
    if attributes.get("groups", 1) > 1:
        return "conv_depthwise" if weight[1] == 1 else "conv_grouped"
    if prod(weight[2:]) == 1:
        return "conv_1x1"
    is_dilated, is_transposed = "dilation" in attributes, attributes.get("transposed")
    has_stride_1 = set(attributes.get("stride", [1])) == {1}
    is_3x3 = len(weight) == 4 and set(weight[2:]) == {3}
    if is_3x3 and has_stride_1 and not is_dilated and not is_transposed:
        return "conv_3x3"
    return "conv_direct"


def is_depthwise(layer: Layer) -> bool:
    """Return whether a convolution is depthwise."""
    return class_of_convolution(layer) == "conv_depthwise"


def linear(op: Op) -> Cost:
    """Count ``y = x W' + b`` with weight ``(out, in)``: MACs = outputs * in.

    A second input is a tensor to which the product is added (``addmm``), and receives the gradient of the sum.
    """
    return _product_with_weights(op, op.y * op.layer.weights[0][-1], summands=sum(op.inputs[1:]))


def _product_with_weights(op: Op, macs: int, summands: int = 0) -> Cost:
    """Return the cost of a product with weights: each gradient takes as many MACs as the forward pass.

    The summands are numbers of tensors to which the product is added.
    """
    bias = op.y if op.has_bias else 0
    x = op.inputs[0]
    return needed_cost(
        op,
        forward=PassCost(2 * macs + bias + summands, macs, x + op.w + summands, op.y),
        data=PassCost(2 * macs, macs, op.y + op.weights[0], x),
        weight=PassCost(2 * macs + bias, macs, x + op.y, op.w),
    )


def saved_by_linear(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Return the saved tensors: the input if the weight is trainable, or a library saves it in any case."""
    return SAVES_FIRST_INPUT if trainable or layer.attributes.get(SAVES_INPUT) else SAVES_NOTHING


SAVES_INPUT = "saves_input"
"""Attribute of a product whose library saves its input also where its weight is frozen."""


def matmul(op: Op) -> Cost:
    """Count ``A B`` over any batch dimensions: MACs = outputs * inner size; each gradient takes as many.

    A factor that is a parameter is one of the weights. With the attribute ``bias`` the last weight is added.
    """
    bias = op.weights[-1] if op.attributes.get("bias") else 0
    left_shape = op.layer.inputs[0] if op.layer.inputs else op.layer.weights[0]
    macs = op.y * op.attributes.get("inner", left_shape[-1])
    factors = op.x + op.w - bias
    data_costs = []
    for size, is_wanted in zip(op.inputs, op.wants_gradient):
        if is_wanted:
            data_costs.append(PassCost(2 * macs, macs, op.y + factors - size, size))
    factor_weights = op.weights[:-1] if bias else op.weights
    weight_costs = [PassCost(2 * macs, macs, op.y + factors - size, size) for size in factor_weights]
    if bias:
        weight_costs.append(PassCost(op.y, 0, op.y, bias))
    forward = PassCost(2 * macs + (op.y if bias else 0), macs, op.x + op.w, op.y)
    return needed_cost(op, forward, sum_costs(data_costs), sum_costs(weight_costs))


def saved_factors(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Return the saved tensors of a product: each factor that the gradient of another factor needs.

    The product of one tensor with a parameter or a number saves the tensor if the parameter is trainable.
    """
    count = len(layer.inputs)
    if count == 1:
        return SAVES_FIRST_INPUT if layer.weights and trainable else SAVES_NOTHING
    num_wanted = sum(wants_gradient)
    saved = []
    for factor in range(count):
        others_wanted = num_wanted - wants_gradient[factor]
        if trainable or others_wanted > 0:
            saved.append(factor)
    return Saved(tuple(saved))


def grouped_matmul(op: Op) -> Cost:
    """Count a grouped product, as in a mixture of experts: rows sorted into groups, each with its own matrix.

    MACs = outputs * in, with weight ``(groups, in, out)``. The matrices of all groups are read.
    """
    return _product_with_weights(op, op.y * op.layer.weights[0][-2])


def attention(op: Op) -> Cost:
    """Count scaled dot-product attention of queries ``(..., L, E)``, keys ``(..., S, E)`` and values ``(..., S, V)``.

    MACs = scores * (E + V) with scores = ... * L * S. A mask does not change them, except after `count_half_of_causal`,
    which counts half of everything, as the benchmarks of FlashAttention do (Dao 2023). Scaling takes 1 FLOP and softmax
    5 FLOPs per score.

    Bytes are those of a fused kernel, which keeps the scores on chip. The backward pass has twice the MACs; the
    recomputation of the scores by a fused kernel is not counted. In a ring of devices every part of keys and values
    passes by once, and the partial results are merged as often (Liu et al. 2023, ring attention).
    """
    queries, keys, values = op.layer.inputs[:3]
    ring = op.attributes.get("ring", 1)
    scores = op.inputs[0] // queries[-1] * keys[-2] * ring
    macs = scores * (queries[-1] + values[-1])
    received = (ring - 1) * sum(op.inputs[1:3])
    if op.attributes.get("shares_keys_and_values"):  # latent attention reads one vector per token as key and value
        received -= op.inputs[2]
    is_halved = op.attributes.get("half", False)

    def masked(operations: int) -> int:
        if not is_halved:
            return operations
        per_sample = operations // op.samples
        return op.samples * (per_sample // 2)

    forward = PassCost(masked(2 * macs + 6 * scores), masked(macs), op.x + received, op.y * ring)
    backward = PassCost(
        flops=masked(4 * macs + 5 * scores),
        macs=masked(2 * macs),
        reads=op.x + received + 2 * op.y,
        writes=sum(op.inputs[:3]) + received,
    )
    return needed_cost(op, forward, backward)


def is_cache(layer: Layer) -> bool:
    """Return whether a layer holds keys and values, or the state of a recurrence."""
    return layer.kind == "cache"


def cached_elements(layers: Iterable[Layer]) -> int:
    """Return the elements of one sample's KV cache and states, which the cache layers of a network hold."""
    return sum(prod(shape) for layer in layers if is_cache(layer) for shape in layer.outputs)


def is_linear(layer: Layer) -> bool:
    """Return whether a layer is fully connected."""
    return layer.kind == "linear"


def is_attention(layer: Layer) -> bool:
    """Return whether a layer is attention in one kernel."""
    return layer.kind == "attention"


def is_score_layer(layer: Layer, keys: int) -> bool:
    """Return whether a layer of eager attention reads or writes its scores, of shape (..., keys, keys)."""
    shapes = (*layer.inputs, *layer.outputs)
    return any(len(shape) == 4 and shape[-2:] == (keys, keys) for shape in shapes)


def copies_attention_output(layers: Sequence[Layer], layer: Layer) -> bool:
    """Return whether a layer copies a permuted attention output into contiguous memory.

    Fused attention can write its output in the memory order of its queries, which makes the copy unnecessary.
    """
    if layer.kind != "copy" or len(layer.parents) != 1 or layer.parents[0] < 0:
        return False
    producer = layers[layer.parents[0]]
    if producer.kind != "view":
        return False
    while producer.kind == "view" and producer.parents[0] >= 0:
        producer = layers[producer.parents[0]]
    return is_attention(producer)


def unfused_attention(
    layer: Layer,
    parents: tuple[int, ...],  # indices of the layers that produce its inputs
    first: int,  # index of the first returned layer in the network
) -> list[Layer]:
    """Return the layers of attention without a fused kernel: scaling, scores, mask, softmax, product with values."""
    query, key, value = layer.inputs[:3]
    transposed_key = (*key[:-2], key[-1], key[-2])
    scores = (*query[:-1], key[-2])
    layers = [
        Layer(f"{layer.name}.mul", "mul", (query,), (query,), parents=parents[:1]),
        Layer(f"{layer.name}.scores", "matmul", (query, transposed_key), (scores,), parents=(first, parents[1])),
    ]
    last = first + 1
    if len(layer.inputs) > 3:
        mask_inputs = (scores, layer.inputs[3])
        layers.append(Layer(f"{layer.name}.add", "add", mask_inputs, (scores,), parents=(last, parents[3])))
        last += 1
    layers.append(Layer(f"{layer.name}.softmax", "softmax", (scores,), (scores,), parents=(last,)))
    last += 1
    layers = [part._replace(place=layer.place.of_addition(layer.name)) for part in layers]
    layers.append(
        Layer(layer.name, "matmul", (scores, value), layer.outputs, parents=(last, parents[2]), place=layer.place)
    )
    return layers


def count_half_of_causal(layers: Sequence[Layer]) -> tuple[list[Layer], int]:
    """Return all layers, causal attention marked so that half of it is counted, and the number of marked layers.

    The mark is the attribute ``half``.
    """
    marked = []
    for layer in layers:
        if is_attention(layer) and layer.attributes.get("causal"):
            marked.append(layer._replace(attributes={**layer.attributes, "half": True}))
        else:
            marked.append(layer)
    return marked, sum(layer.attributes.get("half", False) for layer in marked)


def saved_by_attention(layer: Layer, wants_gradient: Sequence[bool], trainable: bool) -> Saved:
    """Return the saved tensors: all inputs, the output, and the logarithm of the softmax sum of each row."""
    return Saved(tuple(range(len(layer.inputs))), output=True, statistics=prod(layer.inputs[0][:-1]))


def linear_gemm(layer: Layer, pass_name: str) -> Gemm:
    """Return the matrix product of a fully connected layer."""
    outputs, inputs = layer.weights[0][0], layer.weights[0][-1]
    rows = prod(layer.outputs[0]) // max(outputs, 1)
    return _gemm_of_pass(Gemm(rows, outputs, inputs, groups=1, grows="rows"), pass_name)


def matmul_gemm(layer: Layer, pass_name: str) -> Gemm | None:
    """Return the matrix product of two tensors, with a group for each index of their leading dimensions."""
    if not layer.outputs:
        return None
    shape = layer.outputs[0]
    left_shape = layer.inputs[0] if layer.inputs else layer.weights[0]
    inner = layer.attributes.get("inner", left_shape[-1])
    rows = shape[-2] if len(shape) > 1 else 1
    columns = shape[-1] if shape else 1
    groups = prod(shape) // max(rows * columns, 1)
    return _gemm_of_pass(Gemm(rows, columns, inner, groups, "groups" if groups > 1 else "rows"), pass_name)


def grouped_gemm(layer: Layer, pass_name: str) -> Gemm:
    """Return the products of a grouped product, with the rows distributed evenly over the groups."""
    groups, inner, columns = layer.weights[0]
    rows = prod(layer.outputs[0]) // max(columns, 1)
    rows_per_group = max(rows // max(groups, 1), 1)
    return _gemm_of_pass(Gemm(rows_per_group, columns, inner, groups, "rows"), pass_name)


def attention_gemm(layer: Layer, pass_name: str) -> Gemm:
    """Return the product of queries and keys: a group per head, or per group of heads that share keys."""
    query, key = layer.inputs[0], layer.inputs[1]
    heads, key_heads = prod(query[:-2]), prod(key[:-2])
    heads_per_key = heads // key_heads if key_heads and heads % key_heads == 0 else 1
    keys = key[-2] * layer.attributes.get("ring", 1)
    groups = heads // max(heads_per_key, 1)
    return _gemm_of_pass(Gemm(query[-2] * heads_per_key, keys, query[-1], groups, "groups"), pass_name)


def pairs_in_chunks(tokens: Any, chunk: int) -> Any:
    """Return the pairs of a query and a key of a sequence under a causal mask within chunks; tokens may be an array."""
    chunks, rest = divmod(tokens, chunk)
    return chunks * (chunk * (chunk + 1) / 2) + rest * (rest + 1) / 2


def computed_score_fraction(layer: Layer) -> float:
    """Return the fraction of attention scores that a fused kernel computes: it skips scores that the mask hides.

    With L queries, S keys and a causal mask, the i-th query from the end attends to S - i keys; a sliding window limits
    the number of keys, and chunks leave those of the query's own chunk. In a ring every device holds early and late
    queries, so that all devices compute equally many scores (Brandon et al. 2023, striped attention).
    """
    ring = layer.attributes.get("ring", 1)
    queries, keys = layer.inputs[0][-2] * ring, layer.inputs[1][-2] * ring
    is_masked = layer.attributes.get("causal") or not layer.attributes.keys().isdisjoint(("window", "attention_chunk"))
    if not is_masked or queries < 2:
        return 1.0
    if "attention_chunk" in layer.attributes:
        chunk = layer.attributes["attention_chunk"]
        pairs = pairs_in_chunks(keys, chunk) - pairs_in_chunks(keys - queries, chunk)
        return float(min(pairs / (queries * keys), 1.0))
    window = layer.attributes.get("window", keys)
    # The first queries attend to fewer keys than the window holds.
    limited_queries = min(max(window - (keys - queries), 0), queries)
    fewest_keys, most_keys = keys - queries + 1, keys - queries + limited_queries
    computed = (fewest_keys + most_keys) * limited_queries / 2 + (queries - limited_queries) * window
    return float(min(computed / (queries * keys), 1.0))


_PASS_OF_TRANSPOSED = {"inference": "backward_data", "forward": "backward_data", "backward_data": "forward"}
"""The pass of an ordinary convolution that computes a pass of a transposed one."""


def convolution_gemm(layer: Layer, pass_name: str) -> Gemm:
    """Return the implicit matrix product of a convolution."""
    weight = layer.weights[0]
    rank = len(weight) - 2
    groups = layer.attributes.get("groups", 1)
    taps = prod(weight[2:])
    positions = prod(layer.outputs[0][-rank:])
    input_positions = prod(layer.inputs[0][-rank:])
    channels_in, channels_out = weight[1], weight[0] // groups
    if layer.attributes.get("transposed"):
        positions, input_positions = input_positions, positions
        pass_name = _PASS_OF_TRANSPOSED.get(pass_name, pass_name)
    if pass_name == "backward_data":
        return Gemm(input_positions, channels_in, channels_out * taps, groups, "rows")
    forward = Gemm(positions, channels_out, channels_in * taps, groups, "rows")
    return _gemm_of_pass(forward, pass_name) if pass_name == "backward_weight" else forward


def _gemm_of_pass(forward: Gemm, pass_name: str) -> Gemm:
    """Return the product of a pass: gradients of a product are products of the same three sizes in other roles."""
    rows, columns, inner, groups, grows = forward
    if pass_name == "backward_data":
        return Gemm(rows, inner, columns, groups, grows)
    if pass_name == "backward_weight":
        return Gemm(columns, inner, rows, groups, "inner" if grows == "rows" else grows)
    return forward


def _convolution(name: str, **properties: Any) -> Kind:
    """Return the kind of a convolution."""
    return Kind(
        name,
        rule=convolution,
        work_class=class_of_convolution,
        saves=SAVES_FIRST_INPUT,
        fusion="library",
        group="convolution",
        profile_kind="convolution",
        preserves_sharding=is_depthwise,
        gemm=convolution_gemm,
        onnx_weights=2,
        **properties,
    )


KINDS = (
    _convolution("conv1d", torch={"convolution": "conv1d"}),
    # ATen has one operation for convolutions of all ranks.
    _convolution("conv2d", torch={"convolution": "conv2d", "aten_convolution": "convolution"}, module="Conv2d",
        onnx="Conv", pyprof={"conv": "conv2d"}),
    _convolution("conv3d", torch={"convolution": "conv3d"}),
    _convolution("conv_transpose1d", torch={"transposed_convolution": "conv_transpose1d"}),
    _convolution("conv_transpose2d", torch={"transposed_convolution": "conv_transpose2d"}, module="ConvTranspose2d",
        onnx="ConvTranspose"),
    _convolution("conv_transpose3d", torch={"transposed_convolution": "conv_transpose3d"}),
    Kind("linear", rule=linear, work_class="gemm", saves=saved_by_linear, fusion="library", group="matrix product",
        profile_kind="linear", preserves_sharding=False, gemm=linear_gemm, torch={"linear": "linear"}, module="Linear",
        pyprof={"linear": "linear"}, onnx="Gemm", onnx_weights=2),
    Kind("matmul", rule=matmul, work_class="gemm", saves=saved_factors, fusion="alone", group="matrix product",
        profile_kind="linear", preserves_sharding=True, gemm=matmul_gemm,
        torch={
            "matmul": "matmul mm bmm mv dot inner vdot",
            "addmm": "addmm baddbmm addmv",
            "addbmm": "addbmm",
            "scaled_matmul": "scaled_mm",
            "bilinear": "bilinear",
        },
        onnx="MatMul"),
    Kind("grouped_matmul", rule=grouped_matmul, work_class="gemm", saves=saved_by_linear, fusion="alone",
        group="matrix product", profile_kind="linear", preserves_sharding=False, gemm=grouped_gemm,
        torch={"grouped_matmul": "grouped_mm"}),
    Kind("attention", rule=attention, work_class="attention", saves=saved_by_attention, fusion="alone",
        group="attention", profile_kind="attention", preserves_sharding=True, gemm=attention_gemm,
        torch={"attention": "scaled_dot_product_attention"}, onnx="Attention", onnx_weights=0,
        decompose=unfused_attention),
)  # fmt: skip

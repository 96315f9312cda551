"""FLOPs and bytes of the operators in a PyTorch trace, from their shapes and the counting rules of layers.

The records of the kinds list the torch operators of each kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

from ..counting.kinds import KINDS, MATRIX_KINDS, count_layer
from ..counting.layer import NO_COST, Layer, Op, PassCost, Shape
from ..errors import CountFailed
from ..units import PRECISION_BYTES
from .parameters import (
    ATTENTION,
    CONVOLUTION,
    ELEMENT_BYTES,
    FLOAT_PRECISIONS,
    INTEGER_BYTES,
    UNKNOWN,
    Call,
    CountedOperation,
    decode_arguments,
    is_shape,
    read_call,
)

_KINDS = {
    operator: (reader, kind.name)
    for kind in KINDS.values()
    for reader, operators in kind.torch.items()
    for operator in operators.split()
}
_PADDING_FIRST = ("cudnn_convolution", "miopen_convolution", "miopen_depthwise_convolution")
_KERNEL_FIRST = ("thnn_conv2d", "slow_conv2d_forward", "slow_conv3d_forward", "conv_depthwise2d", "conv_depthwise3d")

_CAUSAL_ARGUMENT = {
    ("scaled_dot_product_attention", False): 5,
    ("scaled_dot_product_flash_attention", False): 4,
    ("scaled_dot_product_flash_attention", True): 11,
    ("scaled_dot_product_efficient_attention", False): 6,
    ("scaled_dot_product_efficient_attention", True): 11,
    ("scaled_dot_product_cudnn_attention", False): 6,
    ("scaled_dot_product_cudnn_attention", True): 14,
    ("flash_attention", False): 8,
    ("flash_attention", True): 11,
}
"""Index of the argument ``is_causal``, by operator and whether it is the backward one (PyTorch 2.5 to 2.9,
`native_functions.yaml`)."""

_FORWARD, _BOTH = ("forward",), ("backward_data", "backward_weight")
_Read = tuple[Layer | None, tuple[str, ...]]
_NONE: _Read = (None, ())


def count_traced(
    operator: str,  # name, such as `aten::mm`
    params: str,  # shapes, types and numbers in the format of `paleo_lite.profiles.chrome`
    # Output shape, if the arguments do not determine it: strides were not recorded before 2022.
    after: Shape | None = None,
) -> CountedOperation:
    """Count FLOPs and bytes of one execution of an operator, by the rules of `paleo_lite.counting.kinds`.

    Integer operations have no FLOPs. Bytes are unknown if the shape of the result or the type of an operand is unknown.
    """
    call = read_call(operator, params)
    if call is None:
        return UNKNOWN
    if operator.startswith("aten::_foreach_"):
        return _add_counts([_count(part, None) for part in _split_lists(call, params)])
    return _count(call, after)


def _split_lists(call: Call, params: str) -> Iterator[Call]:
    """Yield one call per element of the tensor lists of a ``_foreach_`` operator."""
    dims = (decode_arguments(params) or ([], (), ()))[0]
    lists = [value for value in dims if isinstance(value, list) and value and all(map(is_shape, value))]
    if not lists or len({len(value) for value in lists}) > 1:
        yield call._replace(name="")
        return
    types = tuple(text for value, text in zip(dims, call.types) if value in lists)
    for shapes in zip(*lists):
        yield Call(call.name, False, tuple(map(tuple, shapes)), types, ())


def _add_counts(counts: Sequence[CountedOperation]) -> CountedOperation:
    flops = [count.flops for count in counts if count.flops is not None]
    moved = [count.bytes for count in counts if count.bytes is not None]
    return CountedOperation(
        sum(flops) if len(flops) == len(counts) else None, sum(moved) if len(moved) == len(counts) else None
    )


def _copied(call: Call) -> CountedOperation | None:
    """Count a copy, which may convert the type; None for other operators."""
    sides = [(name, shape) for name, shape in zip(call.types, call.shapes) if shape is not None][:2]
    if call.name != "copy" or len(sides) < 2 or not all(name in ELEMENT_BYTES for name, _ in sides):
        return None
    return CountedOperation(0.0, float(sum(prod(shape) * ELEMENT_BYTES[name] for name, shape in sides)))


def _count(call: Call, after: Shape | None) -> CountedOperation:
    copied = _copied(call)
    if copied is not None:
        return copied
    moves = call.name in _KINDS and KINDS[_KINDS[call.name][1]].group == "data movement" and not call.backward
    least = CountedOperation(0.0) if moves else UNKNOWN  # data movement has no FLOPs even if its bytes are unknown
    typed = [(name, shape) for name, shape in zip(call.types, call.shapes) if shape is not None]
    if any("complex" in name for name, _ in typed):
        return least
    floats = [(FLOAT_PRECISIONS[name], shape) for name, shape in typed if name in FLOAT_PRECISIONS]
    precisions = {precision for precision, shape in floats if shape}
    if not precisions:  # all operands are scalars
        precisions = {precision for precision, _ in floats}
    layer, pass_names = _layer_of(call, after)
    if layer is None or any(size < 1 for shape in layer.inputs + layer.outputs + layer.weights for size in shape):
        return least
    try:
        cost = count_layer(Op(layer, 1, [True] * len(layer.inputs), True, [True] * len(layer.inputs)))
    except CountFailed:
        return least
    if cost is None:
        return least
    if typed and not precisions:
        return CountedOperation(0.0)
    passes: list[PassCost] = [getattr(cost, name) for name in pass_names if getattr(cost, name) is not NO_COST]
    if KINDS[layer.kind].group == "normalisation":  # the type of the small weight vectors is ignored
        largest = max(prod(shape) for _, shape in typed)
        precisions = {precision for precision, shape in floats if 100 * prod(shape) >= largest}
    precision = next(iter(precisions)) if len(precisions) == 1 else None
    moved = None
    if precision is not None and layer.attributes.get("known", True):
        size = PRECISION_BYTES[precision]
        moved = float(sum((item.reads + item.writes) * size + item.index_bytes for item in passes))
    flops = float(sum(item.flops for item in passes))
    return CountedOperation(flops, moved, precision if layer.kind in MATRIX_KINDS else None)


def _layer_of(call: Call, after: Shape | None) -> _Read:
    """Return the layer of a call and the passes that it computes; None if no rule applies.

    `after` is the output shape, if the arguments do not determine it.
    """
    name = call.name
    if CONVOLUTION.search(name):
        return _convolution(call, after)
    if ATTENTION.search(name):
        return _attention(call)
    if name.startswith("upsample_"):
        return _upsampling(call)
    if name not in _KINDS or not call.tensors:
        return _NONE
    reader, kind = _KINDS[name]
    builder = _BUILDERS.get(reader, _plain)
    if KINDS[kind].group == "normalisation":
        builder = _norm
    elif KINDS[kind].group == "data movement":
        builder = _movement
    elif kind == "reduce" or (reader == "min_or_max" and len(call.tensors) == 1):
        builder, kind = _reduction, "reduce"
    elif KINDS[kind].group == "pooling":
        builder = _pooling
    return builder(kind, call, after)


def _make_layer(
    kind: str, inputs: Sequence[Shape], output: Shape, weights: Sequence[Shape] = (), **attributes: Any
) -> Layer:
    return Layer("traced", kind, tuple(inputs), (output,), tuple(weights), attributes=attributes)


def _broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """Return the shape that NumPy's rules broadcast shapes to; None if they do not fit."""
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result = []
    for axis_sizes in zip(*padded):
        sizes = set(axis_sizes) - {1}
        if len(sizes) > 1:
            return None
        result.append(sizes.pop() if sizes else 1)
    return tuple(result)


def _plain(kind: str, call: Call, after: Shape | None) -> _Read:
    """Build elementwise operators with broadcasting; in the backward pass the gradient is the first argument."""
    tensors = call.tensors
    if call.backward:
        return (_make_layer(kind, tensors[1:2], tensors[0]), _BOTH) if len(tensors) > 1 else _NONE
    if call.name.endswith("lerp") or kind in ("where", "scale") or len(tensors) > 1:
        output = _broadcast(tensors)
    else:
        output = tensors[0]
    return _NONE if output is None else (_make_layer(kind, tensors, output), _FORWARD)


def _like(kind: str, call: Call, after: Shape | None) -> _Read:
    """Build activations and softmax from the first tensor; other tensors are output buffers."""
    tensors = call.tensors
    if call.name == "gelu" and "tanh" in call.numbers:
        kind = "gelu_tanh"
    if call.backward:
        return (_make_layer(kind, tensors[1:2], tensors[0]), _BOTH) if len(tensors) > 1 else _NONE
    return _make_layer(kind, tensors[:1], tensors[0]), _FORWARD


def _product(kind: str, call: Call, after: Shape | None) -> _Read:
    """Build ``mm``, ``bmm``, ``mv``, ``dot``, and with an added tensor ``addmm``, ``baddbmm``, ``addmv``."""
    shapes = [shape for shape in call.shapes if shape is not None]
    added, shapes = (shapes[:1], shapes[1:]) if "add" in call.name else ([], shapes)
    if call.backward or len(shapes) < 2 or not shapes[0] or not shapes[1]:
        return _NONE
    left, right = shapes[:2]
    if left[-1] != right[max(len(right) - 2, 0)]:
        return _NONE
    batch = _broadcast([left[:-2], right[:-2]]) if left[:-2] or right[:-2] else ()
    if batch is None:
        return _NONE
    rows = left[-2:-1]  # empty for a vector
    columns = right[-1:] if len(right) > 1 else ()
    output = (*batch, *rows, *columns)
    return _make_layer(kind, (left, right), output, added, inner=left[-1], bias=bool(added)), _FORWARD


def _linear(kind: str, call: Call, after: Shape | None) -> _Read:
    shapes = [shape for shape in call.shapes if shape is not None]
    if call.backward or len(shapes) < 2 or len(shapes[1]) != 2 or shapes[0][-1:] != shapes[1][-1:]:
        return _NONE
    return _make_layer(kind, shapes[:1], (*shapes[0][:-1], shapes[1][0]), shapes[1:3]), _FORWARD


def _halved(kind: str, call: Call, after: Shape | None) -> _Read:
    """Build ``glu``: one half of the input gates the other half."""
    shape = call.tensors[-1]
    half = (prod(shape) // 2,)
    return _make_layer(kind, (shape,), half), _BOTH if call.backward else _FORWARD


def _norm(kind: str, call: Call, after: Shape | None) -> _Read:
    """Build a normalisation; in the backward pass a weight argument means that its gradient is computed."""
    shape = call.tensors[0]
    vectors = [vector for vector in call.shapes[1:] if vector] if call.name != "batch_norm" else []
    if kind == "batch_norm":
        vectors = [vector for vector in call.shapes[1:3] if vector == shape[1:2]]
    if call.backward:
        mask = call.gradient_mask()
        argument = {"batch_norm": 2, "layer_norm": 5, "group_norm": 4, "rms_norm": 4}.get(kind, 99)
        weight = call.shapes[argument] if argument < len(call.shapes) else None
        pass_names = [name for name, is_wanted in zip(_BOTH, mask) if is_wanted]
        weights = (weight,) * (1 if kind == "rms_norm" else 2) if weight else ()  # a bias is as long
        return _make_layer(kind, (shape,), shape, weights), tuple(pass_names)
    if kind == "batch_norm" and call.argument(5) == "False":
        return _make_layer(kind, (shape,), shape, vectors), ("inference",)
    return _make_layer(kind, (shape,), shape, vectors), _FORWARD


def _movement(kind: str, call: Call, after: Shape | None) -> _Read:
    """Build data movement; bytes are known only if the output shape follows from the inputs."""
    tensors = call.tensors
    if call.name == "copy" and len(tensors) > 1:
        return _make_layer(kind, tensors[1:2], tensors[0]), _FORWARD
    if call.backward:
        if kind == "embedding":  # the size of the table is a scalar argument
            return _make_layer(kind, (tensors[0],), tensors[0], (tensors[0][-1:],), known=False), ("backward_weight",)
        return _NONE
    if kind == "fill" and call.name in ("fill", "zero", "normal", "uniform", "random", "bernoulli", "exponential"):
        return _make_layer(kind, (), tensors[0]), _FORWARD
    is_known = kind in ("copy", "roll") and call.name in ("clone", "flip", "roll", "tril", "triu")
    weights = tensors[:1] if kind == "embedding" else ()
    return _make_layer(kind, tensors[:1], tensors[0], weights, known=is_known), _FORWARD


def _reduction(kind: str, call: Call, after: Shape | None) -> _Read:
    """Build a reduction: one operation per input element; the output size needs the reduced dimensions."""
    if call.backward:
        return _NONE
    shape = call.tensors[0]
    reader = _KINDS[call.name][0]
    per_element = {"two_per_element": 2, "three_per_element": 3}.get(reader, 1)
    lists = call.integer_lists()
    dimensions = {axis % len(shape) for axis in lists[0]} if lists and shape else set()
    output = tuple(size for axis, size in enumerate(shape) if axis not in dimensions)
    return _make_layer(kind, (shape,), output or (1,), per_element=per_element, known=bool(dimensions)), _FORWARD


def _pooling(kind: str, call: Call, after: Shape | None) -> _Read:
    tensors = call.tensors
    before = tensors[0]
    lists = call.integer_lists()
    rank = _spatial_rank(call.name)
    if not rank:
        return _NONE
    attributes: dict[str, Any] = {} if len(before) == rank + 2 else {"dims": rank}
    if not kind.startswith("adaptive"):
        if lists:
            attributes["kernel"] = _over(lists[0], rank)
        elif call.backward and kind == "max_pool":
            attributes["kernel"] = (1,) * rank  # each gradient goes to one element, for any window
        else:
            return _NONE
    if call.backward:
        return (_make_layer(kind, tensors[1:2], tensors[0], **attributes), _BOTH) if len(tensors) > 1 else _NONE
    if kind.startswith("adaptive"):
        output = (*before[:-rank], *_over(lists[0], rank)) if lists else after
    elif after is not None and len(after) == len(before) and after[:-rank] == before[:-rank]:
        output = after
    else:
        kernel, stride, padding, dilation = (
            _over(lists[index], rank) if index < len(lists) else default
            for index, default in enumerate([[], attributes["kernel"], (0,) * rank, (1,) * rank])
        )
        if kind == "avg_pool":
            dilation = (1,) * rank
        # The first flag is ceil_mode: whether a window may extend over the edge.
        flags = [text for text in call.numbers if text in ("True", "False")]
        inside = before[-rank:]
        up = flags[:1] == ["True"]
        output = (*before[:-rank], *map(_windows, inside, kernel, stride, padding, dilation, [up] * rank))
    return _NONE if output is None else (_make_layer(kind, (before,), output, **attributes), _FORWARD)


def _spatial_rank(name: str) -> int:
    """Return the number of spatial dimensions in an operator's name, such as 2 for ``avg_pool2d``; 0 without one."""
    match = re.search(r"([123])d", name)
    return int(match[1]) if match else 0


def _over(sizes: Sequence[int], rank: int) -> tuple[int, ...]:
    return tuple(sizes) * rank if len(sizes) == 1 else tuple(sizes)


def _windows(size: int, kernel: int, stride: int, padding: int, dilation: int, up: bool = False) -> int:
    """Return the number of window positions (PyTorch's documentation of ``MaxPool2d`` and ``Conv2d``)."""
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    if not up:
        return room // stride + 1
    count = -(-room // stride) + 1
    starts_outside = (count - 1) * stride >= size + padding  # the last window must begin inside
    return count - 1 if starts_outside else count


def _upsampling(call: Call) -> _Read:
    sizes = call.integer_lists()
    rank = _spatial_rank(call.name)
    mode = next((word for word in ("linear", "cubic") if word in call.name), "nearest")
    if call.backward or not sizes or len(sizes[0]) != rank:
        return _NONE
    before = call.tensors[0]
    return _make_layer("interpolate", (before,), (*before[:-rank], *sizes[0]), mode=mode), _FORWARD


def _attention(call: Call) -> _Read:
    """Build attention from queries, keys and values, preceded by the gradient in the backward pass.

    The operators of the attention kernels have the head dimension after the sequence dimension. Packed sequences of
    variable lengths are not counted, because the shapes do not contain their lengths. Half of causal attention is
    counted, because the kernels skip the scores that the mask hides.
    """
    shapes = [shape for shape in call.shapes if shape is not None]
    if (
        len(shapes) > 3
        and not call.backward
        and any(
            shape is not None and len(shape) == 1 and name in INTEGER_BYTES
            for shape, name in zip(call.shapes, call.types)
        )
    ):
        return _NONE
    gradient, shapes = (shapes[:1], shapes[1:]) if call.backward else ([], shapes)
    if len(shapes) < 3 or any(len(shape) != 4 for shape in [*gradient, *shapes[:3]]):
        return _NONE
    if call.name.startswith(("flash_attention", "efficient_attention", "fused_attention")) or "::" in call.name:
        shapes = [(a, c, b, d) for a, b, c, d in shapes[:3]]
    q, k, v = shapes[:3]
    if q[0] != k[0] or k[:3] != v[:3] or q[-1] != k[-1]:
        return _NONE
    output = (*q[:-1], v[-1])
    kind = _KINDS["scaled_dot_product_attention"][1]
    index = _CAUSAL_ARGUMENT.get((call.name, call.backward))
    is_causal = index is not None and call.argument(index) == "True"
    mask: dict[str, Any] = {"causal": True, "half": True} if is_causal else {}
    layer = _make_layer(kind, (q, k, v), output, **mask)
    return layer, _BOTH if call.backward else _FORWARD


def _convolution(call: Call, after: Shape | None) -> _Read:
    """Build any of ATen's convolutions; backward operators have the gradient before input and weight."""
    shapes, lists = call.shapes, call.integer_lists()
    if call.backward:
        return _convolution_backward(call, after)
    if len(shapes) < 2 or not shapes[0] or not shapes[1] or len(shapes[0]) != len(shapes[1]):
        return _NONE
    before, weight = shapes[0], shapes[1]
    rank = len(weight) - 2
    bias = [shape for shape in shapes[2:3] if shape and len(shape) == 1]
    transposed = "transpose" in call.name or (call.name == "convolution" and call.argument(6) == "True")
    if call.name in _KERNEL_FIRST:
        lists = lists[1:]
    is_known = True
    output: Shape | None
    if transposed:  # the work follows from the input
        output, is_known = (after, True) if after else (before[:1], False)
    elif len(lists) >= 2:
        stride, padding = (lists[1], lists[0]) if call.name in _PADDING_FIRST else (lists[0], lists[1])
        dilation = lists[2] if len(lists) > 2 else [1]
        sizes = (_over(values, rank) for values in (weight[2:], stride, padding, dilation))
        output = (before[0], weight[0], *map(_windows, before[2:], *sizes))
    else:
        output = after if after is not None and after[:2] == (before[0], weight[0]) else None
    kind = f"conv_transpose{rank}d" if transposed else f"conv{rank}d"
    if output is None or kind not in KINDS:
        return _NONE
    attributes = {"transposed": True} if transposed else {}
    return _make_layer(kind, (before,), output, (weight, *bias), known=is_known, **attributes), _FORWARD


def _convolution_backward(call: Call, after: Shape | None) -> _Read:
    tensors = [shape for shape in call.shapes if shape and len(shape) > 2]
    if len(tensors) == 2 and after is not None:  # until 2021: two operators, the second without the weight
        gradient = tensors[0]
        return _make_layer(f"conv{len(after) - 2}d", (gradient,), gradient, (after,), known=False), (call.part,)
    if len(tensors) < 3 or len({len(shape) for shape in tensors[:3]}) > 1:
        return _NONE
    gradient, before, weight = tensors[:3]
    rank = len(weight) - 2
    plain = gradient[1] == weight[0]
    if plain and before[1] == weight[0] and prod(gradient[2:]) > prod(before[2:]):
        plain = False  # only a transposed convolution has a larger output than input
    kind = f"conv{rank}d" if plain else f"conv_transpose{rank}d"
    if kind not in KINDS:
        return _NONE
    mask = call.gradient_mask()
    pass_names = tuple(name for name, is_wanted in zip(_BOTH, mask) if is_wanted)
    attributes = {} if plain else {"transposed": True}
    bias = ((weight[0] if plain else gradient[1],),) if len(mask) > 2 and mask[2] and call.numbers else ()
    return _make_layer(kind, (before,), gradient, (weight, *bias), **attributes), pass_names


_BUILDERS: dict[str, Callable[[str, Call, Shape | None], _Read]] = {
    "same_shape": _like,
    "gelu": _like,
    "matmul": _product,
    "addmm": _product,
    "linear": _linear,
    "first_tensor": _halved,
}

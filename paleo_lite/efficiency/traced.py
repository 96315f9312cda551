"""From the shapes in a PyTorch trace to FLOPs and bytes, by the counting rules that layers are counted with.

Which kind an operator is stands in the kinds' records, under the names of torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

from ..counting.kinds import KINDS, MATRIX_KINDS, count_layer
from ..counting.layer import NOTHING, Op, PassCost, Shape
from ..errors import CountFailed
from ..units import element_bytes
from .traced_call import FLOATS, WIDTHS, Call, decode, is_shape, read_call
from .traced_layers import layer_of, moves


class TracedCount(NamedTuple):
    """What one operator takes; None where shapes or rules do not tell.

    Attributes
    ----------
    precision : str or None
        Of the numbers that it multiplies, where it is a product.
    """

    flops: float | None = None
    bytes: float | None = None
    precision: str | None = None


UNKNOWN = TracedCount()


def count_traced(operator: str, params: str, after: Shape | None = None) -> TracedCount:
    """FLOPs and bytes of one execution of an operator, by the rules of `paleo_lite.counting.kinds`.

    Work on whole numbers has no FLOPs. Bytes are unknown where an operator's result, or the width of some of its
    operands, is.

    Parameters
    ----------
    operator : str
        ``aten::mm``.
    params : str
        Its shapes, types and numbers as `paleo_lite.profiles.chrome` gives them.
    after : shape, optional
        What the operator gives, for those whose arguments do not say: strides were not traced before 2022.
    """
    call = read_call(operator, params)
    if call is None:
        return UNKNOWN
    if operator.startswith("aten::_foreach_"):
        return _together([_count(part, None) for part in _each(call, params)])
    return _count(call, after)


def _each(call: Call, params: str) -> Iterator[Call]:
    """The calls that an operator on lists of tensors stands for: operands that are lists are taken side by side."""
    dims = (decode(params) or ([], (), ()))[0]
    lists = [value for value in dims if isinstance(value, list) and value and all(map(is_shape, value))]
    if not lists or len({len(value) for value in lists}) > 1:
        yield call._replace(name="")
        return
    types = tuple(text for value, text in zip(dims, call.types) if value in lists)
    for shapes in zip(*lists):
        yield Call(call.name, False, tuple(map(tuple, shapes)), types, ())


def _together(counts: Sequence[TracedCount]) -> TracedCount:
    flops = [count.flops for count in counts if count.flops is not None]
    moved = [count.bytes for count in counts if count.bytes is not None]
    return TracedCount(
        sum(flops) if len(flops) == len(counts) else None, sum(moved) if len(moved) == len(counts) else None
    )


def _copied(call: Call) -> TracedCount | None:
    """A copy reads one tensor and writes another, each in its own width: what a cast does. None of what is no copy."""
    sides = [(name, shape) for name, shape in zip(call.types, call.shapes) if shape is not None][:2]
    if call.name != "copy" or len(sides) < 2 or not all(name in WIDTHS for name, _ in sides):
        return None
    return TracedCount(0.0, float(sum(prod(shape) * WIDTHS[name] for name, shape in sides)))


def _count(call: Call, after: Shape | None) -> TracedCount:
    if (copied := _copied(call)) is not None:
        return copied
    least = TracedCount(0.0) if moves(call) else UNKNOWN
    typed = [(name, shape) for name, shape in zip(call.types, call.shapes) if shape is not None]
    if any("complex" in name for name, _ in typed):
        return least
    precisions = {FLOATS[name] for name, shape in typed if name in FLOATS and shape} or {
        FLOATS[name] for name, _ in typed if name in FLOATS
    }
    layer, wanted = layer_of(call, after)
    if layer is None or any(size < 1 for shape in layer.inputs + layer.outputs + layer.weights for size in shape):
        return least
    try:
        cost = count_layer(Op(layer, 1, [True] * len(layer.inputs), True, [True] * len(layer.inputs)))
    except CountFailed:
        return least
    if cost is None:
        return least
    if typed and not precisions:
        return TracedCount(0.0)
    passes: list[PassCost] = [one for name in wanted if (one := getattr(cost, name)) is not NOTHING]
    if KINDS[layer.kind].group == "normalisation":  # vectors of another width than the tensors beside them are nothing
        largest = max(prod(shape) for _, shape in typed)
        precisions = {FLOATS[name] for name, shape in typed if name in FLOATS and 100 * prod(shape) >= largest}
    precision = next(iter(precisions)) if len(precisions) == 1 else None
    moved = None
    if precision is not None and layer.attributes.get("known", True):
        size = element_bytes(precision)
        moved = float(sum((one.reads + one.writes) * size + one.index_bytes for one in passes))
    flops = float(sum(one.flops for one in passes))
    return TracedCount(flops, moved, precision if layer.kind in MATRIX_KINDS else None)

"""Outputs created without running a call equal those of torch's call on the meta device.

Tests: architectures/operations.py, architectures/call_readers.py.
"""

from __future__ import annotations

import itertools
import operator

import pytest

pytest.importorskip("torch")

import torch
from torch.nn import functional as F

from paleo_lite.architectures.call_outputs import make_output
from paleo_lite.architectures.operations import OPERATIONS, is_in_place, operation_name

pytestmark = pytest.mark.slow  # importing torch takes seconds


def t(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def half(*shape):
    return t(*shape, dtype=torch.float16)


def turned(*shape):
    return t(*shape).transpose(-1, -2)


IMAGE, ODD = t(2, 6, 11, 13), t(2, 6, 11, 13).to(memory_format=torch.channels_last)
CALLS = {
    "relu": (F.relu, IMAGE),
    "relu of another layout": (F.relu, ODD),
    "batch norm": (F.batch_norm, IMAGE, t(6), t(6), t(6), t(6)),
    "layer norm": (F.layer_norm, t(2, 5, 8), (8,), t(8)),
    "sigmoid of a part": (torch.sigmoid, t(4, 12).chunk(3, 1)[1]),
    "sigmoid of a matrix the other way round": (torch.sigmoid, turned(2, 3, 4)),
    "sigmoid of an expanded row": (torch.sigmoid, t(1, 3).expand(4, 3)),
    "matrices": (torch.mm, turned(4, 5), t(4, 6)),
    "pairs of matrices": (torch.bmm, t(2, 4, 5), turned(2, 6, 5)),
    "pairs that are no batch": (torch.matmul, t(2, 4, 5), t(1, 5, 6)),
    "matrices that do not fit": (torch.mm, t(4, 5), t(4, 6)),
    "matrices of two types": (torch.mm, t(4, 5), half(5, 6)),
    "matrices with a row added": (torch.addmm, t(6), t(4, 5), t(5, 6)),
    "matrices with too much added": (torch.addmm, t(2, 4, 6), t(4, 5), t(5, 6)),
    "batches of batches of matrices": (torch.matmul, t(2, 3, 4, 5), turned(2, 3, 6, 5)),
    "batches of different sizes": (torch.matmul, t(2, 3, 4, 5), t(1, 3, 5, 6)),
    "softmax": (F.softmax, turned(2, 3, 4), -1),
    "dropout": (F.dropout, IMAGE),
    "attention": (F.scaled_dot_product_attention, t(2, 4, 7, 8), t(2, 4, 9, 8), t(2, 4, 9, 16)),
    "linear": (F.linear, t(2, 5, 8), t(3, 8), t(3)),
    "linear of a vector": (F.linear, t(8), t(3, 8)),
    "a weight that is not a matrix": (F.linear, t(5, 8), t(8)),
    "conv1d": (F.conv1d, t(2, 6, 30), t(4, 6, 5), None, 3, 2, 2),
    "conv2d": (F.conv2d, IMAGE, t(4, 6, 3, 5), t(4), (2, 1), (1, 0)),
    "conv2d of a picture": (F.conv2d, t(6, 11, 13), t(4, 6, 3, 3)),
    "conv2d in groups": (F.conv2d, IMAGE, t(9, 2, 3, 3), None, 1, 1, 1, 3),
    "conv2d, same": (F.conv2d, IMAGE, t(4, 6, 3, 3), None, 1, "same"),
    "conv2d of another layout": (F.conv2d, ODD, t(4, 6, 3, 3)),
    "conv3d": (F.conv3d, t(1, 2, 7, 8, 9), t(4, 2, 3, 3, 3), None, 2, 1, (1, 2, 1)),
    "add": (torch.add, t(2, 3), t(2, 3)),
    "parts": (torch.mul, t(4, 12).chunk(3, 1)[1], t(4, 12).chunk(3, 1)[0]),
    "a part and a whole": (torch.add, t(2, 5, 12)[:, 1:, 4:8], t(4)),
    "an expanded column": (torch.add, t(4, 1).expand(4, 3), t(4, 3)),
    "a number": (operator.mul, t(2, 3), 2.5),
    "rows to columns": (torch.mul, t(4, 1), t(3)),
    "a longer shape second": (torch.sub, t(3), t(5, 4, 1)),
    "two types": (torch.add, half(2, 3), t(2, 3)),
    "whole numbers": (torch.div, t(2, dtype=torch.int64), t(2, dtype=torch.int64)),
    "a complex number": (torch.mul, t(2, 3), 2j),
    "another layout first": (torch.add, turned(3, 3), t(3, 3)),
    "a number and an expanded row": (torch.mul, t(1, 3).expand(4, 3), 2.5),
    "compared with a number": (torch.ne, t(2, 3), 0),
    "compared with a row": (torch.lt, t(4, 3), t(3)),
    "compared in another layout": (torch.eq, turned(2, 3), 0.0),
    "compared whole numbers": (torch.gt, t(2, dtype=torch.int64), 1),
    "compared with a complex number": (torch.eq, t(2, 3), 2j),
    "is finite": (torch.isfinite, t(2, 3)),
    "filled by a mask": (torch.masked_fill, t(2, 3, 3), t(3, 3, dtype=torch.bool), -1.0),
    "filled by a larger mask": (torch.masked_fill, t(3), t(2, 3, dtype=torch.bool), -1),
    "filled in another layout": (torch.masked_fill, turned(3, 3), t(3, 3, dtype=torch.bool), -1.0),
    "filled with a tensor": (torch.masked_fill, t(2, 3), t(2, 3, dtype=torch.bool), t()),
    "filled by a mask that does not fit": (torch.masked_fill, t(2, 3), t(2, 4, dtype=torch.bool), 0.0),
    "where": (torch.where, t(2, 3, dtype=torch.bool), t(2, 3), t(3)),
    "clamp": (torch.clamp, t(2, 3), 0.0, 1.0),
    "concat": (torch.cat, [t(2, 3), t(2, 5)], 1),
    "concat from behind": (torch.cat, (t(2, 3, 4), t(5, 3, 4)), -3),
    "concat of two types": (torch.cat, [t(2, 3), half(2, 3)]),
    "concat of parts": (torch.cat, [t(1, 8, 8, 6)[:, ::2, 1::2], t(1, 8, 8, 6)[:, 1::2, ::2]], -1),
    "concat of parts with one column": (torch.cat, [t(2, 8, 1, 6)[:, ::2], t(2, 8, 1, 6)[:, 1::2]], 1),
    "concat of another layout": (torch.cat, [ODD, ODD], 1),
    "roll": (torch.roll, t(2, 3), 1, 0),
    "max pool": (F.max_pool2d, IMAGE, 3, 2, 1),
    "mean": (torch.mean, IMAGE, (2, 3)),
    "matmul": (torch.matmul, t(2, 3, 4), t(4, 5)),
    "embedding": (F.embedding, t(2, 3, dtype=torch.int64), t(10, 4)),
}  # fmt: skip


@pytest.mark.spread(24)
@pytest.mark.parametrize("name", CALLS)
def test_output_equals_that_of_torch(name) -> None:
    function, *args = CALLS[name]
    call = OPERATIONS[operation_name(function)](*args)
    try:
        expected = function(*args)
    except RuntimeError as error:
        with pytest.raises(RuntimeError) as caught:
            make_output(function, False, args, {}, call)
        assert str(caught.value) == str(error)
        return
    output = make_output(function, False, args, {}, call)
    assert (output.shape, output.dtype, output.stride()) == (expected.shape, expected.dtype, expected.stride())


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_a_number_keeps_the_order_of_strides(order) -> None:
    part = t(2, 3, 4, 5, 6)[:, :, 1].permute(order)
    output = make_output(torch.mul, False, (part, 2.5), {}, OPERATIONS["mul"](part, 2.5))
    expected = part * 2.5
    assert (output.shape, output.stride()) == (expected.shape, expected.stride())


def test_comparison_with_no_number_is_left_to_torch() -> None:
    x = t(2, 3)
    assert make_output(torch.Tensor.__eq__, False, (x, None), {}, OPERATIONS["eq"](x, None)) is NotImplemented


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (F.linear, (t(5, 7), t(3, 8))),
        (F.linear, (t(5, 8), t(3, 8), t(4))),
        (F.conv2d, (IMAGE, t(4, 3, 3, 3))),
        (F.conv2d, (t(1, 6, 2, 2), t(4, 6, 3, 3))),
        (torch.add, (t(2, 3), t(2, 4))),
        (torch.cat, ([t(2, 3), t(3, 3)], 1)),
        (torch.cat, ([t(2, 3)], 2)),
    ],
)
def test_invalid_calls_raise_the_error_of_torch(function, args) -> None:
    with pytest.raises((RuntimeError, IndexError)) as expected:
        function(*args)
    with pytest.raises(expected.type) as caught:
        make_output(function, False, args, {}, OPERATIONS[operation_name(function)](*args))
    assert str(caught.value) == str(expected.value)


def test_in_place_calls_return_their_operand() -> None:
    x = t(2, 3)
    assert make_output(torch.Tensor.add_, True, (x, 1.0), {}, OPERATIONS["add"](x, 1.0)) is x
    assert make_output(F.relu, False, (x,), {"inplace": True}, OPERATIONS["relu"](x)) is x
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        make_output(torch.Tensor.add_, True, (x, t(4, 2, 3)), {}, OPERATIONS["add"](x, t(4, 2, 3)))


@pytest.mark.parametrize(
    ("function", "name", "in_place"),
    [
        (torch.add, "add", False),
        (torch.Tensor.add_, "add", True),
        (torch.Tensor.__iadd__, "add", True),
        (torch.Tensor.__radd__, "add", False),
        (torch.ops.aten.add.Tensor, "add", False),
        (torch.ops.aten.add_.Tensor, "add", True),
        (torch.Tensor.__rtruediv__, "div", False),
        (torch.Tensor.__invert__, "logical_not", False),
        (torch.Tensor.__setitem__, "setitem", True),
        (torch.Tensor.T.__get__, "T", False),
        (F.unfold, "im2col", False),  # not the method that slices
        (torch.Tensor.unfold, "unfold", False),
    ],
)
def test_operation_names(function, name, in_place) -> None:
    assert operation_name(function) == name
    assert is_in_place(function) == in_place

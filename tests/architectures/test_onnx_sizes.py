"""Shapes that the operators of an ONNX file compute are bounded before onnx computes them."""

from __future__ import annotations

from pathlib import Path

import pytest

import paleo_lite as pl
from paleo_lite.architectures.onnx_sizes import can_compute_shapes
from paleo_lite.errors import BadDescriptor

pytestmark = pytest.mark.slow
onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402


def model(nodes, opset=18):
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 4)) for name in "xy"]
    graph = helper.make_graph(nodes, "net", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def joins(levels):
    nodes = [helper.make_node("Shape", ["x"], ["s0"])]
    return nodes + [helper.make_node("Concat", [f"s{n}"] * 2, [f"s{n + 1}"], axis=0) for n in range(levels)]


RELU = helper.make_node("Relu", ["x"], ["y"])


def test_shapes_that_are_joined_with_themselves_are_not_computed(tmp_path):
    """30 levels are 2**31 numbers, which onnx computed in as many steps and 8 GB."""
    assert can_compute_shapes(model([*joins(5), RELU]).graph, Path("net.onnx"))
    assert not can_compute_shapes(model([*joins(30), RELU]).graph, Path("net.onnx"))
    path = tmp_path / "net.onnx"
    onnx.save(model([*joins(14), RELU]), path)  # small enough to be computed if they were not refused
    assert [layer.kind for layer in pl.layers(str(path)).network.layers] == ["relu"]


def test_joins_in_branches_count():
    inner = [*joins(30), helper.make_node("Relu", ["x"], ["z"])]
    branch = helper.make_graph(inner, "b", [], [helper.make_tensor_value_info("z", TensorProto.FLOAT, (1, 4))])
    node = helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)
    assert not can_compute_shapes(model([node]).graph, Path("net.onnx"))


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (
            [*joins(12), helper.make_node("Reshape", ["x", "s12"], ["y"])],
            r"net\.onnx: the operator Reshape reads a shape of up to 262,144 numbers",
        ),
        (
            [helper.make_node("Split", ["x"], ["y", "z"], num_outputs=3, axis=1)],
            r"net\.onnx: the operator Split: num_outputs is 3, but it has 2 outputs",
        ),
    ],
)
def test_impossible_shapes_are_refused(nodes, message, tmp_path):
    onnx.save(model(nodes), tmp_path / "net.onnx")
    with pytest.raises(BadDescriptor, match=message):
        pl.layers(str(tmp_path / "net.onnx"))


def test_operators_of_other_domains_compute_no_shapes():
    joined = [helper.make_node(node.op_type, node.input, node.output, domain="d") for node in joins(30)]
    assert can_compute_shapes(model([*joined, RELU]).graph, Path("net.onnx"))

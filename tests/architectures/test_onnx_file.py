"""ONNX files have the same counts as the modules that torch exported."""

from __future__ import annotations

import pytest

import paleo_lite as pl
from paleo_lite.architectures.onnx_file import KINDS_OF, LIKE_WEIGHTS
from paleo_lite.counting import KINDS
from paleo_lite.errors import BadDescriptor, BadValue

pytestmark = pytest.mark.slow
onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

PHASES = ("inference", "backward")


def test_every_operator_is_a_kind():
    kinds = {*KINDS_OF.values(), *LIKE_WEIGHTS} - {"conv", "conv_transpose"}
    assert kinds <= KINDS.keys()
    schemas = {schema.name for schema in onnx.defs.get_all_schemas()}
    assert KINDS_OF.keys() - schemas <= {"Swish"}, "newer than the installed onnx"


def macs(network, phase, batch_size):
    return pl.layers(network, convention="macs", phase=phase, batch_size=batch_size).total


@pytest.mark.parametrize("name", ["transformer", pytest.param("resnet18", marks=pytest.mark.thorough)])
def test_an_exported_module_counts_as_the_module(name, tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    from paleo_lite.architectures.torch_import import import_torchvision

    if name == "resnet18":
        module, x = import_torchvision().models.resnet18(), torch.zeros(1, 3, 64, 64)
    else:
        module = torch.nn.Sequential(*(torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True) for _ in range(2)))
        x = torch.zeros(1, 10, 32)
    path = tmp_path / f"{name}.onnx"
    torch.onnx.export(module.eval(), (x,), str(path), dynamo=True, verbose=False)
    read, traced = pl.layers(str(path)).network, pl.trace(module, x)
    assert not pl.layers(read).unknown
    for phase in PHASES:
        for batch_size in (1, 5):
            assert macs(read, phase, batch_size) == macs(traced, phase, batch_size)


def save(path, nodes, inputs, initializers=(), output=("y", None)):
    values = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs]
    made = [helper.make_tensor(name, TensorProto.FLOAT, shape, [0.0] * _size(shape)) for name, shape in initializers]
    graph = helper.make_graph(nodes, "net", values, [helper.make_tensor_value_info(output[0], 1, output[1])], made)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return str(path)


def _size(shape):
    size = 1
    for dimension in shape:
        size *= dimension
    return size


def test_symbolic_sizes(tmp_path):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Softmax", ["h"], ["y"])]
    path = save(tmp_path / "open.onnx", nodes, [("x", 1, ["rows", "tokens", 8])], [("w", (8, 4))])
    with pytest.raises(BadValue, match=r"set size 2 \(tokens\) of input x with --sequence-length"):
        pl.layers(path)
    for tokens in (5, 70):
        counts = pl.layers(path, sequence_length=tokens, convention="macs", batch_size=2)
        assert counts.total == 2 * tokens * 8 * 4
        assert counts.network.tokens == tokens
    image = save(tmp_path / "image.onnx", [helper.make_node("Conv", ["x", "k"], ["y"], strides=[2, 2], group=2)],
                 [("x", 1, [1, 4, "height", "width"])], [("k", (6, 2, 3, 3))])  # fmt: skip
    with pytest.raises(BadValue, match="of input x with --image-size"):
        pl.layers(image)
    assert pl.layers(image, image_size=9, convention="macs").total == 6 * 4 * 4 * 2 * 9
    fixed = save(tmp_path / "fixed.onnx", nodes, [("x", 1, [3, 5, 8])], [("w", (8, 4))])
    assert "x has a fixed batch of 3 samples, which are counted as one sample" in pl.layers(fixed).notes
    with pytest.raises(BadValue, match="the sizes of this file are fixed"):
        pl.layers(fixed, image_size=9)


def test_an_operator_without_a_kind_is_named(tmp_path):
    nodes = [helper.make_node("NonMaxSuppression", ["x", "s"], ["y"])]
    inputs = [("x", 1, [1, 9, 4]), ("s", 1, [1, 1, 9])]
    counts = pl.layers(save(tmp_path / "nms.onnx", nodes, inputs, output=("y", [5, 3])))
    assert counts.unknown == ("NonMaxSuppression (onnx.NonMaxSuppression)",)


@pytest.mark.parametrize("name", ["LSTM", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("GRU", "RNN"))])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}])
@pytest.mark.filterwarnings("ignore")
def test_recurrent_operators_count_as_the_modules(name, options, tmp_path):
    torch = pytest.importorskip("torch")
    module = getattr(torch.nn, name)(8, 12, batch_first=True, **options).eval()
    path = tmp_path / "net.onnx"
    torch.onnx.export(module, (torch.zeros(1, 7, 8),), str(path), dynamo=False)
    assert name in [node.op_type for node in onnx.load(path).graph.node]
    read, traced = pl.layers(str(path)).network, pl.trace(module, (1, 7, 8))
    assert read.parameters == traced.parameters and not pl.layers(read).unknown
    for batch_size in (1, 5):
        assert macs(read, "inference", batch_size) == macs(traced, "inference", batch_size)


@pytest.mark.parametrize(("equation", "shapes", "out", "expected"), [
    ("btd,dhk->bthk", [(1, 7, 8), (8, 5, 6)], (1, 7, 5, 6), 7 * 8 * 5 * 6),
    ("...td, ...sd -> ...ts", [(1, 3, 7, 8), (1, 3, 9, 8)], (1, 3, 7, 9), 3 * 7 * 9 * 8),
    ("ij,jk", [(1, 7), (7, 5)], (1, 5), 35),
])  # fmt: skip
def test_einsum_is_a_product(equation, shapes, out, expected, tmp_path):
    nodes = [helper.make_node("Einsum", ["x", "w"], ["y"], equation=equation)]
    path = save(tmp_path / "net.onnx", nodes, [(n, 1, shape) for n, shape in zip("xw", shapes)], output=("y", out))
    assert pl.layers(path, convention="macs").total == expected


def test_constants_are_folded_and_statistics_are_not_parameters(tmp_path):
    nodes = [
        helper.make_node("Transpose", ["w"], ["turned"]),
        helper.make_node("Gemm", ["x", "turned"], ["h"]),
        helper.make_node("BatchNormalization", ["h", "s", "b", "m", "v"], ["n"]),
        helper.make_node("Mul", ["n", "two"], ["y"]),
    ]
    weights = [("w", (4, 8)), *((name, (4,)) for name in "sbmv"), ("two", ())]
    counts = pl.layers(save(tmp_path / "net.onnx", nodes, [("x", 1, ["n", 8])], weights), convention="macs")
    assert [layer.kind for layer in counts.network.layers] == ["linear", "batch_norm", "mul"]
    assert counts.total == 32
    assert counts.network.parameters == 32 + 8


@pytest.mark.parametrize(("content", "message"), [(b"hello", "not an ONNX file"), (b"", "it has no operators")])
def test_invalid_files(content, message, tmp_path):
    (tmp_path / "net.onnx").write_bytes(content)
    with pytest.raises(BadDescriptor, match=message):
        pl.layers(str(tmp_path / "net.onnx"))
    with pytest.raises(BadDescriptor, match="cannot be read"):
        pl.layers(str(tmp_path / "absent.onnx"))

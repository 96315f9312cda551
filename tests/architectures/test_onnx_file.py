"""ONNX files have the same counts as the modules that torch exported.

Tests: architectures/onnx_operators.py.
"""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

import paleo_lite as pl
from paleo_lite.architectures.onnx_file import read_onnx
from paleo_lite.architectures.onnx_operators import KINDS_OF, LIKE_WEIGHTS
from paleo_lite.counting import KINDS
from paleo_lite.errors import BadDescriptor, BadValue, CountFailed

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


@pytest.mark.thorough
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


def calls(times, depth, recursive=False):
    """Functions each of which calls the next one several times; the last calls the first again if recursive."""
    functions = []
    for level in range(depth):
        last = level == depth - 1
        callee = ("Relu", "") if last and not recursive else (f"F{(level + 1) % depth}", "mine")
        names = ["x", *(f"t{i}" for i in range(times - 1)), "y"]
        nodes = [helper.make_node(callee[0], [a], [b], domain=callee[1]) for a, b in pairwise(names)]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
        functions.append(helper.make_function("mine", f"F{level}", ["x"], ["y"], nodes, opsets))
    return functions


def save_with_functions(path, functions):
    x, y = (helper.make_tensor_value_info(name, 1, [1, 8]) for name in "xy")
    graph = helper.make_graph([helper.make_node("F0", ["x"], ["y"], domain="mine")], "net", [x], [y])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    onnx.save(helper.make_model(graph, functions=functions, opset_imports=opsets), path)
    return str(path)


def test_functions_are_inlined_within_a_budget(tmp_path):
    """24 functions that each call the next one twice are 16,777,216 operators, and once took 40 s and 800 MB."""
    few = pl.layers(save_with_functions(tmp_path / "few.onnx", calls(2, 3))).network
    assert [layer.kind for layer in few.layers] == ["relu"] * 8
    with pytest.raises(BadDescriptor, match=r"functions grow to 16,777,216 operators, expected at most [\d,]+ for"):
        pl.layers(save_with_functions(tmp_path / "many.onnx", calls(2, 24)))
    assert len(pl.layers(save_with_functions(tmp_path / "small.onnx", calls(2, 12))).network.layers) == 4096
    with pytest.raises(BadDescriptor, match=r"deep\.onnx: its functions call each other at more than 64 levels"):
        pl.layers(save_with_functions(tmp_path / "deep.onnx", calls(1, 1000)))
    with pytest.raises(BadDescriptor, match=r"the function 'F[0-2]' calls itself"):
        pl.layers(save_with_functions(tmp_path / "endless.onnx", calls(1, 3, recursive=True)))


def test_wrong_functions_are_an_error_of_one_sentence(tmp_path):
    """A small function after a large one of its name hid the size of what onnx inlines."""
    functions = calls(2, 14)
    for twice in ([*functions, *calls(1, 1)], [*calls(1, 1), *functions]):
        with pytest.raises(BadDescriptor, match="the function 'F0' is there twice, expected once"):
            pl.layers(save_with_functions(tmp_path / "twice.onnx", twice))
    few = calls(2, 2)
    few[0].ClearField("input")
    with pytest.raises(BadDescriptor, match="its functions cannot be inlined") as error:
        pl.layers(save_with_functions(tmp_path / "without.onnx", few))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("node", "weights", "message"),
    [
        (helper.make_node("Gemm", ["x"], ["y"]), [], "operator Gemm lacks an operand"),
        (helper.make_node("MaxPool", ["x"], ["y"]), [], "operator MaxPool has no attribute 'kernel_shape'"),
        (helper.make_node("Conv", ["x", "w"], ["y"], "c1"), [("w", ())], "Conv 'c1' is malformed .*at least three"),
        (helper.make_node("Conv", ["x", "w"], ["y"], group=0), [("w", (3, 3, 1, 1))], "group must be an integer"),
        (helper.make_node("Conv", ["x", "w"], ["y"], strides=[0, 0]), [("w", (3, 3, 1, 1))], "strides must be"),
        (helper.make_node("Einsum", ["x"], ["y"], equation="abij,jk->ik"), [], "does not have 1 operands"),
        (helper.make_node("Einsum", ["x"], ["y"], equation="ij->i"), [], "does not fit an operand of shape"),
    ],
)  # fmt: skip
def test_a_malformed_operator_is_named(node, weights, message, tmp_path):
    path = save(tmp_path / "net.onnx", [node], [("x", 1, [1, 3, 8, 8])], weights, output=("y", [1, 3, 8, 8]))
    with pytest.raises(BadDescriptor, match=message):
        pl.layers(path)


def test_what_only_constants_give_may_have_an_unknown_shape(tmp_path):
    of_weight = helper.make_node("NonZero", ["w"], ["c"])
    nodes = [of_weight, helper.make_node("Relu", ["x"], ["y"])]
    path = save(tmp_path / "n.onnx", nodes, [("x", 1, (1, 4))], [("w", (4,))], ("y", (1, 4)))
    assert [layer.kind for layer in read_onnx(Path(path)).layers] == ["relu"]
    of_input = helper.make_node("NonZero", ["x"], ["c"])
    path = save(tmp_path / "n.onnx", [of_input, nodes[1]], [("x", 1, (1, 4))], [], ("y", (1, 4)))
    with pytest.raises(BadDescriptor, match="the shape of c, an output of NonZero, is unknown"):
        read_onnx(Path(path))


def test_a_negative_size_is_refused(tmp_path):
    path = save(
        tmp_path / "net.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], [("x", 1, [1, 8])], [("w", (8, 5))]
    )
    model = onnx.load(path)
    model.graph.initializer[0].dims[1] = -5
    onnx.save(model, path)
    with pytest.raises(BadDescriptor, match="the initializer 'w' has a negative size"):
        pl.layers(path)


@pytest.mark.parametrize(("equation", "shapes", "out", "kinds", "products"), [
    ("ij->ji", [(1, 8)], (8, 1), ["copy"], 0),
    ("ij->i", [(4, 8)], (4,), ["reduce"], 0),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)], (2, 5), ["matmul", "matmul"], 2 * 3 * 4 + 2 * 4 * 5),
    ("bij,bjk,k->bi", [(7, 2, 3), (7, 3, 4), (4,)], (7, 2), ["matmul", "matmul"], 7 * 2 * 3 * 4 + 7 * 2 * 4),
])  # fmt: skip
def test_einsums_of_any_number_of_operands_are_counted(equation, shapes, out, kinds, products, tmp_path):
    """Pairs from left to right, as numpy.einsum_path without optimisation orders them."""
    names = "xwv"[: len(shapes)]
    nodes = [helper.make_node("Einsum", list(names), ["y"], equation=equation)]
    path = save(tmp_path / "net.onnx", nodes, [(n, 1, shape) for n, shape in zip(names, shapes)], output=("y", out))
    counts = pl.layers(path, convention="macs")
    assert [layer.kind for layer in counts.network.layers] == kinds and counts.total == products
    assert counts.network.layers[-1].outputs[0] == out
    assert 0 < pl.predict(path, gpu="t4").time_s < 1


def test_a_network_of_which_nothing_is_counted_is_refused(tmp_path):
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    branch = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["o"])], "b", [], [helper.make_tensor_value_info("o", 1, [1, 8])]
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    x, y = (helper.make_tensor_value_info(name, 1, [1, 8]) for name in "xy")
    onnx.save(helper.make_model(helper.make_graph([node], "net", [x, condition], [y])), tmp_path / "if.onnx")
    with pytest.raises(CountFailed, match=r"nothing of it is counted in inference; its layers are onnx\.If"):
        pl.predict(str(tmp_path / "if.onnx"), gpu="t4")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="devices are those of POSIX")
def test_a_device_is_not_read(tmp_path):
    (tmp_path / "net.onnx").symlink_to(os.devnull)
    with pytest.raises(BadDescriptor, match=r"net\.onnx: cannot be read \(it is not a regular file\)"):
        pl.layers(str(tmp_path / "net.onnx"))


def test_a_call_with_more_operands_than_its_function_has_is_refused(tmp_path):
    path = Path(save_with_functions(tmp_path / "net.onnx", calls(1, 1)))
    model = onnx.load(path)
    model.graph.node[0].input.append("x")
    onnx.save(model, path)
    with pytest.raises(BadDescriptor, match=r"net\.onnx: its functions cannot be inlined \(.*parameters"):
        pl.layers(str(path))


@pytest.mark.parametrize("phase", ["inference", "training"])
def test_a_scalar_is_normalised_as_a_row_of_one(phase, tmp_path):
    node = helper.make_node("LayerNormalization", ["x", "w"], ["y"])
    path = save(tmp_path / "net.onnx", [node], [("x", 1, [])], [("w", (1,))], output=("y", []))
    assert pl.predict(path, gpu="k80", phase=phase).time_s > 0

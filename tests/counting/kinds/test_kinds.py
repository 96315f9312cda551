"""Records of all kinds of layers are complete, and a kind without a record is reported.

Tests: counting/kinds/__init__.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import paleo_lite as pl
from paleo_lite.architectures.network import Network
from paleo_lite.counting import INPUT, KINDS, Layer, count
from paleo_lite.counting.kinds import (
    class_of,
    fusion_of,
    gemm_of,
    is_alias,
    missing_rules_note,
    preserves_sharding,
    saved_tensors,
)
from paleo_lite.counting.kinds.products import MATRIX_CLASSES
from paleo_lite.counting.layer import FUSIONS
from paleo_lite.profiles.names import OPERATIONS
from paleo_lite.reporting.charts.render import GROUPS
from paleo_lite.timing.features import CLASSES
from strategies import layer_of_kind

PACKAGE = Path(pl.__file__).parent
FILES_AT_MOST = 4

WORDS = {
    "abs", "add", "attention", "cache", "compare", "concat", "conv2d", "copy", "div", "dropout", "embedding",
    "exchange", "exp", "fill", "gather", "gelu", "gelu_tanh", "layer_norm", "linear", "log", "matmul", "mul", "neg",
    "pow", "reduce", "relu", "rsqrt", "scale", "scan", "scatter", "select", "sigmoid", "silu", "slice", "softmax",
    "sort", "sqrt", "sub", "tanh", "view", "where",
}  # fmt: skip
"""Names that stand for other things as well, or for what every network is put together from."""

SORT = Layer("it", "aten.sort", ((1, 4),), ((1, 4),), (), (INPUT,))


ONNX_WEIGHTS = {"W", "B", "C", "scale", "Scale", "bias", "slope"}
"""Names of the inputs of ONNX operators that are weights."""


@pytest.mark.slow
def test_weights_of_an_onnx_operator_are_those_of_its_schema():
    onnx = pytest.importorskip("onnx")
    for kind in KINDS.values():
        if kind.onnx_weights is not None:
            for operator in kind.onnx.split():
                names = [entry.name for entry in onnx.defs.get_schema(operator).inputs]
                assert kind.onnx_weights == len(ONNX_WEIGHTS.intersection(names)), operator


@pytest.mark.parametrize("name", sorted(KINDS))
def test_records_of_kinds_are_complete(name):
    kind, layers = KINDS[name], layer_of_kind(name)
    layer = layers[-1]
    where = f"{name}: in its record in paleo_lite/counting/kinds"
    assert count(layers).counted.all(), f"{where} the rule must count {layer}"
    assert class_of(layer) in CLASSES, f"{where} work_class must be one of {', '.join(CLASSES)}"
    assert fusion_of(layer) in FUSIONS, f"{where} fusion must be one of {', '.join(FUSIONS)}"
    assert kind.group in GROUPS, f"{where} group must be one of {', '.join(GROUPS)}, which have a colour"
    profiled = ["other", *(one.name for one in OPERATIONS)]
    assert kind.profile_kind in profiled, f"{where} profiled must be one of {', '.join(profiled)}"
    product = gemm_of(layer, "forward") is not None
    assert product == (class_of(layer) in MATRIX_CLASSES), f"{where} a class that multiplies goes with a gemm"
    for wants in (True, False):
        saved = saved_tensors(layer, [wants] * len(layer.inputs), bool(layer.weights))
        assert saved is not None, f"{where} saves must say which tensors are saved for the backward pass"
        assert all(0 <= place < len(layer.inputs) for place in saved.inputs), f"{where} saves names no such input"
        assert min(saved.numbers, saved.statistics, saved.bytes) >= 0


def test_a_kind_without_a_record_is_not_taken_for_another():
    assert class_of(SORT) is None
    assert fusion_of(SORT) is None
    assert gemm_of(SORT, "forward") is None
    assert saved_tensors(SORT, [True], False) is None
    assert not is_alias(SORT)
    assert not preserves_sharding(SORT)


def test_unknown_kind_is_reported():
    assert missing_rules_note(["aten.sort (2)"]).endswith("aten.sort (2): its time and its saved tensors are unknown")
    assert missing_rules_note(["conv2d (16)"]).endswith("conv2d (16): its time is unknown")


def test_prediction_names_kinds_without_record():
    weighted = Layer("first", "linear", ((1, 4),), ((1, 4),), ((4, 4),), (INPUT,), 16)
    network = Network("sorted", ((1, 4),), (weighted, SORT._replace(parents=(0,))), 16)
    for phase in ("inference", "training"):
        prediction = pl.predict(network, gpu="k80-die", phase=phase, time_model="roofline")
        assert missing_rules_note(["aten.sort (1)"]) in prediction.notes


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize(
    ("kind", "function"),
    [("add", "add"), ("sub", "sub"), ("mul", "mul"), ("div", "div"), ("pow", "pow"), ("matmul", "matmul")],
)
def test_operands_are_saved_as_autograd_saves_them(kind, function, wanted):
    torch = pytest.importorskip("torch")
    operands = [torch.rand(4, 4, requires_grad=wants) for wants in wanted]
    saved: set[int] = set()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.add(tensor.data_ptr()), lambda packed: packed):
        output = getattr(torch, function)(*operands)
    layer = Layer("it", kind, ((4, 4), (4, 4)), ((4, 4),), (), (INPUT, INPUT))
    found = saved_tensors(layer, wanted, trainable=False)  # it has no weights
    assert set(found.inputs) == {place for place, operand in enumerate(operands) if operand.data_ptr() in saved}
    assert found.output == (output.data_ptr() in saved)


@pytest.mark.slow
@pytest.mark.parametrize("function", ["sum", "mean", "max", "min", "var", "prod", "logsumexp", "norm"])
def test_reductions_save_what_autograd_saves(function):
    torch = pytest.importorskip("torch")
    x = torch.rand(4, 6, requires_grad=True)
    saved: dict[int, int] = {}

    def note(tensor):
        saved[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda packed: packed):
        results = getattr(torch, function)(x, dim=1)
    result = results[0] if isinstance(results, tuple) else results
    found = saved_tensors(
        Layer("it", "reduce", ((4, 6),), ((4,),), (), (INPUT,), attributes={"function": function}), (True,), False
    )
    assert (found.inputs == (0,), found.output) == (x.data_ptr() in saved, result.data_ptr() in saved)
    others = sum(saved[place] for place in saved if place not in (x.data_ptr(), result.data_ptr()))
    assert found.bytes == others  # of the four indices, 8 bytes each


def strings(tree: ast.AST) -> set[str]:
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def questions(tree: ast.AST) -> Iterator[str]:
    """The names that something called a kind is compared with."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            names = [getattr(part, "attr", getattr(part, "id", "")) for part in ast.walk(node)]
            if any(name.endswith("kind") for name in names):
                yield from strings(node)


@pytest.fixture(scope="module")
def trees():
    """The syntax of every file of the package that has a kind's name as a string."""
    named = re.compile("|".join(rf"[\"'{{}}]{re.escape(kind)}[\"'{{}}]" for kind in KINDS))
    texts = {str(path.relative_to(PACKAGE)): path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}
    return {file: ast.parse(text) for file, text in texts.items() if named.search(text)}


def test_few_files_ask_for_a_kind_by_its_name(trees):
    asked = {file: {*questions(tree)} for file, tree in trees.items()}
    for kind in KINDS:
        files = [file for file in asked if kind in asked[file]]
        assert len(files) <= FILES_AT_MOST, (
            f"{', '.join(files)} ask whether a layer is {kind}: say what they want to know of it in a field of Kind "
            "(paleo_lite/counting/layer.py), fill it in the records, and ask the record"
        )


def test_a_kind_is_named_in_few_files(trees):
    named = {file: strings(tree) for file, tree in trees.items()}
    for kind in KINDS.keys() - WORDS:
        files = [file for file in named if kind in named[file]]
        assert len(files) <= FILES_AT_MOST, (
            f"{kind} is named in {', '.join(files)}: name it in its record (paleo_lite/counting/kinds) and where "
            "networks are put together, and ask the record (KINDS, or a function of counting.kinds) elsewhere"
        )

"""ONNX files: operators become the layers that torch's are, by the shapes that ``onnx.shape_inference`` finds.

What follows from initializers alone is a constant, as it is where a runtime folds it; an operator that has no kind here
keeps its name (``onnx.NonZero``), and is reported as not counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from ..counting import INPUT, KINDS, Layer, Shape
from ..errors import BadDescriptor, BadValue
from ..extras import need
from .network import Lengths, Network, Tokens

_QUOTED = re.compile(r"'([^']*)'")
"""A name in torch's list of them, which is text of the file's."""


class Value(NamedTuple):
    """A tensor of the graph.

    Attributes
    ----------
    shape : tuple of int
    parent : int or None
        The layer that made it, or `INPUT`; None for a constant.
    root : str
        Of a constant that is an initializer, or one in another order: the initializer.
    numbers : bool
        Whether it holds floating-point numbers.
    """

    shape: Shape
    parent: int | None
    root: str = ""
    numbers: bool = True


def read_onnx(path: Path, image_size: int | None = None, tokens: Tokens | None = None) -> Network:
    """The network of an ONNX file; weights that lie in files beside it are not needed.

    Parameters
    ----------
    image_size : int, optional
        For sizes of images that the file leaves open.
    tokens : Tokens, optional
        Their length is that of the size that the file leaves open.

    Raises
    ------
    BadDescriptor
        If the file is malformed, or shapes do not follow from it.
    """
    onnx = need("onnx", "reading ONNX files", "onnx")
    from google.protobuf.message import DecodeError  # which onnx brings

    try:
        model = onnx.load(str(path), load_external_data=False)
    except OSError as error:
        raise BadDescriptor(f"{path}: cannot be read ({error.strerror})") from None
    except (DecodeError, onnx.checker.ValidationError) as error:
        raise BadDescriptor(f"{path}: not an ONNX file ({error})") from None
    if not model.graph.node:
        raise BadDescriptor(f"{path}: not an ONNX file: it has no operators")
    if model.functions:
        from onnx.inliner import inline_local_functions

        model = inline_local_functions(model)
    length, notes = _close(model.graph, path, image_size, tokens.length if tokens else None)
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:  # InferenceError, whose place differs between versions
        raise BadDescriptor(f"{path}: its shapes do not fit ({' '.join(str(error).split())[:200]})") from None
    network = _Graph(model.graph, path, onnx).network(notes)
    return network if length is None else network._replace(lengths=Lengths(length, length))


def _close(graph: Any, path: Path, image_size: int | None, length: int | None) -> tuple[int | None, list[str]]:
    """Give sizes that the file leaves open: one sample, the sequence length, the size of images."""
    given = {initializer.name for initializer in graph.initializer}
    inputs = [value for value in graph.input if value.name not in given and value.type.HasField("tensor_type")]
    opened, notes, taken = False, [], False
    for value in inputs:
        sizes = value.type.tensor_type.shape.dim
        for axis, size in enumerate(sizes):
            if size.HasField("dim_value") and size.dim_value > 0:
                if axis == 0 and size.dim_value > 1 and value is inputs[0]:
                    notes.append(f"the file has {size.dim_value} samples in {value.name}: a sample here is all of them")
                continue
            name, opened = size.dim_param or "?", True
            image = image_size if len(sizes) == 4 and axis > 1 else None
            number = 1 if axis == 0 else image or length
            if number is None:
                option = "--image-size" if len(sizes) == 4 else "--sequence-length"
                raise BadValue(f"{path}: size {axis + 1} of input {value.name} is open ({name}): {option} says it")
            taken = taken or (axis > 0 and image is None)
            size.dim_value = number
    if image_size is not None and not opened:
        raise BadValue(f"{path}: its sizes are fixed: leave --image-size out")
    if opened:  # what was said of the sizes in between speaks of names
        del graph.value_info[:]
        for value in graph.output:
            value.type.tensor_type.ClearField("shape")
    return length if taken else None, notes


class _Graph:
    """The operators of a graph in their order, which becomes that of the layers."""

    def __init__(self, graph: Any, path: Path, onnx: Any) -> None:
        self.graph, self.path = graph, path
        self._attribute: Callable[[Any], Any] = onnx.helper.get_attribute_value
        self._floating = {getattr(onnx.TensorProto, name) for name in
                          ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2")}  # fmt: skip
        self.types = {value.name: value.type.tensor_type for value in (*graph.value_info, *graph.output)}
        self.values: dict[str, Value] = {}
        self.layers: list[Layer] = []
        self._names: dict[str, int] = {}
        self._used: set[str] = set()
        for initializer in graph.initializer:
            numbers = initializer.data_type in self._floating
            shape = tuple(initializer.dims)
            self.values[initializer.name] = Value(shape, None, initializer.name if numbers else "", numbers)
        self.inputs = [value for value in graph.input if value.name not in self.values]
        for value in self.inputs:
            shape = tuple(size.dim_value for size in value.type.tensor_type.shape.dim)
            self.values[value.name] = Value(shape, INPUT, "", value.type.tensor_type.elem_type in self._floating)

    def network(self, notes: list[str]) -> Network:
        """All of it."""
        for node in self.graph.node:
            self._add(node)
        inputs = tuple(self.values[value.name].shape for value in self.inputs)
        parameters = sum(layer.parameters for layer in self.layers)
        return Network(self.path.stem, inputs, tuple(self.layers), parameters, "ONNX", tuple(notes))

    def _made(self, node: Any, parent: int | None, root: str = "") -> list[Shape]:
        """Note what an operator makes; its shapes."""
        shapes: list[Shape] = []
        for name in filter(None, node.output):  # those that are left out have no name
            kind = self.types.get(name)
            if (
                kind is not None
                and kind.HasField("shape")
                and all(size.HasField("dim_value") for size in kind.shape.dim)
            ):
                shapes.append(tuple(size.dim_value for size in kind.shape.dim))
            elif parent is None:
                shapes.append(())
            else:
                raise BadDescriptor(f"{self.path}: the shape of {name}, which {node.op_type} makes, is not known")
            self.values[name] = Value(shapes[-1], parent, root, kind is not None and kind.elem_type in self._floating)
        return shapes

    def _add(self, node: Any) -> None:
        operands = [self.values[name] for name in node.input if name in self.values]
        data = [value for value in operands if value.parent is not None]
        if not data or node.op_type in ("Shape", "Size"):
            roots = {value.root for value in operands if value.root}
            self._made(node, None, roots.pop() if len(roots) == 1 else "")
            return
        if node.op_type in ("Identity", "Dropout"):
            self.values[node.output[0]] = operands[0]
            return
        attributes = {one.name: self._attribute(one) for one in node.attribute}
        if node.op_type in RECURRENT and [len(one.shape) for one in operands[:3]] == [3, 3, 3]:
            self._recur(node, operands, attributes)
            return
        shapes = self._made(node, len(self.layers))
        if node.op_type == "Gemm" and operands[1].parent is not None:
            self._layer(node, "matmul", data[:2], [], shapes, {"inner": operands[0].shape[-1]})
            return
        kind, extra = KINDS_OF.get(node.op_type, f"onnx.{node.op_type}"), dict[str, Any]()
        if node.op_type in READERS and node.domain in ("", "ai.onnx"):
            kind, extra = READERS[node.op_type](Operator(attributes, [value.shape for value in operands], shapes, kind))
        weights = [value for value in operands if value.parent is None and value.numbers]
        if kind in LIKE_WEIGHTS:
            weights = weights[: LIKE_WEIGHTS[kind]]
        elif kind != "matmul":
            weights = [value for value in weights if prod(value.shape) > 1]
        if node.op_type == "Gather" and operands[0].parent is None:
            kind, weights = "embedding", operands[:1]
        elif node.op_type == "Gather" and operands[1].parent is None:
            kind = "slice"
        if node.op_type == "Gemm" and attributes.get("transB", 0) == 0:
            weights[0] = weights[0]._replace(shape=weights[0].shape[::-1])
        self._layer(node, kind, data, weights, shapes, extra)

    def _recur(self, node: Any, operands: list[Value], attributes: dict[str, Any]) -> None:
        """A recurrent layer, all its steps together: the product with what comes in, that with the state, the gates."""
        gates, elementwise = RECURRENT[node.op_type]
        (x, weight, recurrence), biases = operands[:3], [one for one in operands[3:] if len(one.shape) == 2][:1]
        (ways, _, state), (steps, samples) = recurrence.shape, x.shape[:-1][:: -1 if attributes.get("layout") else 1]
        rows = (ways, steps, samples)
        made = (*rows, gates * state)
        self._layer(
            node, "linear", [x], [weight._replace(shape=(ways * gates * state, x.shape[-1])), *biases], [made], {}
        )
        of = Value(made, len(self.layers) - 1)
        product = recurrence._replace(shape=(gates * state, state))
        self._layer(node, "linear", [of._replace(shape=(*rows, state))], [product], [made], {})
        for kind, often in zip(("sigmoid", "tanh", "mul", "add"), elementwise):
            if often:
                of = Value((*rows, often * state), len(self.layers) - 1)
                self._layer(node, kind, [of], [], [of.shape], {})
        shapes = self._made(node, len(self.layers))
        self._layer(node, "copy", [Value(of.shape, len(self.layers) - 1)], [], shapes, {})

    def _layer(
        self, node: Any, kind: str, data: list[Value], weights: list[Value], shapes: list[Shape], extra: dict[str, Any]
    ) -> None:
        new = {value.root for value in weights if value.root} - self._used
        self._used |= new
        sizes = {value.root: prod(self.values[value.root].shape) for value in weights if value.root in new}
        self.layers.append(
            Layer(
                self._name(node), kind, tuple(value.shape for value in data), tuple(shapes),
                tuple(value.shape for value in weights),
                tuple(INPUT if value.parent is None else value.parent for value in data),
                sum(sizes.values()), extra,
            )
        )  # fmt: skip

    def _name(self, node: Any) -> str:
        """The module that torch's exporter names; else the operator's own name."""
        scopes = [one.value for one in node.metadata_props if one.key == "pkg.torch.onnx.name_scopes"]
        module = _QUOTED.findall(scopes[0])[-2:-1] if scopes else []
        name = (module[0] if module else "") or node.name.strip("/") or node.op_type
        count = self._names[name] = self._names.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"


class Operator(NamedTuple):
    """What an operator says: its attributes, the shapes that it reads and writes, and what kind of layer it is."""

    attributes: dict[str, Any]
    reads: Sequence[Shape]
    writes: Sequence[Shape]
    kind: str


Made = tuple[str, dict[str, Any]]
"""The kind and attributes of the layer that it becomes."""

KINDS_OF = {operator: kind.name for kind in KINDS.values() for operator in kind.onnx.split()}
LIKE_WEIGHTS = {kind.name: kind.onnx_weights for kind in KINDS.values() if kind.onnx_weights is not None}


def _convolution(operator: Operator) -> Made:
    rank = len(operator.reads[1]) - 2
    made: dict[str, Any] = {
        "stride": list(operator.attributes.get("strides", [1] * rank)),
        "padding": list(operator.attributes.get("pads", [0] * rank))[:rank],
    }
    if any(step != 1 for step in operator.attributes.get("dilations", ())):
        made["dilation"] = list(operator.attributes["dilations"])
    if operator.attributes.get("group", 1) != 1:
        made["groups"] = operator.attributes["group"]
    if "transpose" in operator.kind:
        made["transposed"] = True
    return f"{operator.kind.removesuffix('2d')}{rank}d", made


def _pool(operator: Operator) -> Made:
    kernel = list(operator.attributes["kernel_shape"])
    made = {"kernel": kernel, "stride": list(operator.attributes.get("strides", [1] * len(kernel)))}
    padding = list(operator.attributes.get("pads", []))[: len(kernel)]
    return operator.kind, made | ({"padding": padding} if any(padding) else {})


def _mean(operator: Operator) -> Made:
    """The mean of images is what torch computes it as: an adaptive pooling to one position."""
    if (
        len(operator.reads[0]) == len(operator.writes[0]) == 4
        and prod(operator.writes[0][2:]) == 1
        and operator.reads[0][:2] == operator.writes[0][:2]
    ):
        return "adaptive_avg_pool", {}
    return operator.kind, {"function": "mean"}


def _resize(operator: Operator) -> Made:
    mode = str(operator.attributes.get("mode", b"nearest"), "utf-8")
    return operator.kind, {"mode": "linear" if mode == "bilinear" else mode}


def _attention(operator: Operator) -> Made:
    """Of queries with heads apart; those whose heads lie side by side keep their name."""
    if len(operator.reads[0]) != 4:
        return "onnx.Attention", {}
    return operator.kind, {"causal": True} if operator.attributes.get("is_causal") else {}


def _einsum(operator: Operator) -> Made:
    """Of two operands a matrix product: what is in neither the result nor alike in both is summed over."""
    before, _, after = str(operator.attributes["equation"], "utf-8").replace(" ", "").partition("->")
    terms = before.replace("...", "").split(",")
    after = after.replace("...", "") or "".join(one for one in before if before.count(one) == 1)
    if len(terms) != 2:
        return operator.kind, {}
    # What an ellipsis stands for comes first, as in the result.
    sizes = {
        one: size for term, shape in zip(terms, operator.reads) for one, size in zip(reversed(term), reversed(shape))
    }
    return "matmul", {"inner": prod(sizes[one] for one in set("".join(terms)) - set(after))}


RECURRENT = {"LSTM": (4, (3, 2, 3, 5)), "GRU": (3, (2, 1, 2, 5)), "RNN": (1, (0, 1, 0, 1))}
"""Gates; and of each step so many times the state in sigmoids, tanhs, products, and sums (ONNX's formulas)."""


READERS: dict[str, Callable[[Operator], Made]] = {
    "Conv": _convolution, "ConvTranspose": _convolution, "MaxPool": _pool, "AveragePool": _pool,
    "ReduceMean": _mean, "Resize": _resize, "Upsample": _resize, "GridSample": _resize, "Attention": _attention,
    "Einsum": _einsum,
    "MatMul": lambda operator: (operator.kind, {"inner": operator.reads[0][-1]}),
    "LRN": lambda operator: (operator.kind, {"size": operator.attributes["size"]}),
    "GroupNormalization": lambda operator: (operator.kind, {"num_groups": operator.attributes["num_groups"]}),
    "Gelu": lambda operator: (
        "gelu_tanh" if operator.attributes.get("approximate") == b"tanh" else operator.kind, {}
    ),
}  # fmt: skip

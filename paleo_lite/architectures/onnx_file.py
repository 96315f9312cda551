"""Reader of ONNX files: operators become layers, with the shapes of ``onnx.shape_inference``.

Values that depend only on initializers are constants, as a runtime folds them. An operator without a layer kind keeps
its name (``onnx.NonZero``) and is reported as not counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from ..counting import INPUT, KINDS, Layer, Shape
from ..errors import BadDescriptor, BadValue
from ..extras import require
from .network import Lengths, Network, SequenceOptions

_QUOTED = re.compile(r"'([^']*)'")
"""A name in the list of module scopes that torch's exporter writes as text."""


class Value(NamedTuple):
    """A tensor of the graph."""

    shape: Shape
    parent: int | None  # index of the layer that produces it, or `INPUT`; None for a constant
    initializer: str = ""  # name of the initializer that a constant is, or is computed from; else empty
    is_floating: bool = True  # whether its elements are floating-point numbers


def read_onnx(path: Path, image_size: int | None = None, options: SequenceOptions | None = None) -> Network:
    """Read the network of an ONNX file; external files with weights are not needed.

    Parameters
    ----------
    path : Path
        The ``.onnx`` file.
    image_size : int, optional
        Value of symbolic image sizes.
    options : SequenceOptions, optional
        Its length is the value of symbolic sequence lengths.

    Raises
    ------
    BadDescriptor
        If the file is malformed, or shapes cannot be inferred.
    BadValue
        If a symbolic size has no value, or an image size is given for a file with fixed sizes.
    """
    onnx = require("onnx", "reading ONNX files", "onnx")
    from google.protobuf.message import DecodeError  # a dependency of onnx

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
    length, notes = _set_symbolic_sizes(model.graph, path, image_size, options.length if options else None)
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:  # InferenceError, which is in different modules in different versions of onnx
        raise BadDescriptor(f"{path}: inconsistent shapes ({' '.join(str(error).split())[:200]})") from None
    network = _GraphReader(model.graph, path, onnx).network(notes)
    return network if length is None else network._replace(lengths=Lengths(length, length))


def _set_symbolic_sizes(
    graph: Any, path: Path, image_size: int | None, length: int | None
) -> tuple[int | None, list[str]]:
    """Set the symbolic sizes of inputs: one sample, the sequence length, and the image size.

    Returns
    -------
    length : int or None
        The sequence length, if an input has this symbolic size.
    notes : list of str
        Notes about fixed batch sizes.
    """
    initializers = {initializer.name for initializer in graph.initializer}
    inputs = [value for value in graph.input if value.name not in initializers and value.type.HasField("tensor_type")]
    has_symbolic_sizes = False
    uses_length = False
    notes = []
    for value in inputs:
        sizes = value.type.tensor_type.shape.dim
        for axis, size in enumerate(sizes):
            if size.HasField("dim_value") and size.dim_value > 0:
                if axis == 0 and size.dim_value > 1 and value is inputs[0]:
                    notes.append(
                        f"{value.name} has a fixed batch of {size.dim_value} samples, which are counted as one sample"
                    )
                continue
            has_symbolic_sizes = True
            is_image_size = len(sizes) == 4 and axis > 1
            if axis == 0:
                size.dim_value = 1
            elif is_image_size and image_size:
                size.dim_value = image_size
            elif length:
                size.dim_value = length
                uses_length = True
            else:
                option = "--image-size" if len(sizes) == 4 else "--sequence-length"
                name = size.dim_param or "?"
                raise BadValue(f"{path}: set size {axis + 1} ({name}) of input {value.name} with {option}")
    if image_size is not None and not has_symbolic_sizes:
        raise BadValue(f"{path}: the sizes of this file are fixed: remove --image-size")
    if has_symbolic_sizes:  # stored shapes of intermediate values contain the symbols
        del graph.value_info[:]
        for value in graph.output:
            value.type.tensor_type.ClearField("shape")
    return length if uses_length else None, notes


class _GraphReader:
    """Layers of a graph, in the order of its operators."""

    def __init__(self, graph: Any, path: Path, onnx: Any) -> None:
        self.graph = graph
        self.path = path
        self._attribute: Callable[[Any], Any] = onnx.helper.get_attribute_value
        floating_types = ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2")
        self._floating = {getattr(onnx.TensorProto, name) for name in floating_types}
        self.types = {value.name: value.type.tensor_type for value in (*graph.value_info, *graph.output)}
        self.values: dict[str, Value] = {}
        self.layers: list[Layer] = []
        self._name_counts: dict[str, int] = {}
        self._counted_initializers: set[str] = set()
        for initializer in graph.initializer:
            is_floating = initializer.data_type in self._floating
            name = initializer.name if is_floating else ""
            self.values[initializer.name] = Value(tuple(initializer.dims), None, name, is_floating)
        self.inputs = [value for value in graph.input if value.name not in self.values]
        for value in self.inputs:
            shape = tuple(size.dim_value for size in value.type.tensor_type.shape.dim)
            is_floating = value.type.tensor_type.elem_type in self._floating
            self.values[value.name] = Value(shape, INPUT, "", is_floating)

    def network(self, notes: list[str]) -> Network:
        """Read all operators and return the network."""
        for node in self.graph.node:
            self._add_operator(node)
        inputs = tuple(self.values[value.name].shape for value in self.inputs)
        parameters = sum(layer.parameters for layer in self.layers)
        return Network(self.path.stem, inputs, tuple(self.layers), parameters, "ONNX", tuple(notes))

    def _add_outputs(self, node: Any, parent: int | None, initializer: str = "") -> list[Shape]:
        """Register the outputs of an operator and return their shapes."""
        shapes: list[Shape] = []
        for name in node.output:
            if not name:  # an omitted optional output
                continue
            value_type = self.types.get(name)
            has_shape = (
                value_type is not None
                and value_type.HasField("shape")
                and all(size.HasField("dim_value") for size in value_type.shape.dim)
            )
            if has_shape:
                assert value_type is not None
                shape = tuple(size.dim_value for size in value_type.shape.dim)
            elif parent is None:
                shape = ()
            else:
                raise BadDescriptor(f"{self.path}: the shape of {name}, an output of {node.op_type}, is unknown")
            is_floating = value_type is not None and value_type.elem_type in self._floating
            self.values[name] = Value(shape, parent, initializer, is_floating)
            shapes.append(shape)
        return shapes

    def _add_operator(self, node: Any) -> None:
        operands = [self.values[name] for name in node.input if name in self.values]
        data = [value for value in operands if value.parent is not None]
        if not data or node.op_type in ("Shape", "Size"):
            initializers = {value.initializer for value in operands if value.initializer}
            self._add_outputs(node, None, initializers.pop() if len(initializers) == 1 else "")
            return
        if node.op_type in ("Identity", "Dropout"):
            self.values[node.output[0]] = operands[0]
            return
        attributes = {attribute.name: self._attribute(attribute) for attribute in node.attribute}
        if node.op_type in RECURRENT and [len(operand.shape) for operand in operands[:3]] == [3, 3, 3]:
            self._add_recurrent(node, operands, attributes)
            return
        shapes = self._add_outputs(node, len(self.layers))
        if node.op_type == "Gemm" and operands[1].parent is not None:
            self._add_layer(node, "matmul", data[:2], [], shapes, {"inner": operands[0].shape[-1]})
            return
        kind = KINDS_OF.get(node.op_type, f"onnx.{node.op_type}")
        layer_attributes: dict[str, Any] = {}
        if node.op_type in READERS and node.domain in ("", "ai.onnx"):
            operator = Operator(attributes, [operand.shape for operand in operands], shapes, kind)
            kind, layer_attributes = READERS[node.op_type](operator)
        weights = [value for value in operands if value.parent is None and value.is_floating]
        if kind in LIKE_WEIGHTS:
            weights = weights[: LIKE_WEIGHTS[kind]]
        elif kind != "matmul":
            weights = [value for value in weights if prod(value.shape) > 1]
        if node.op_type == "Gather" and operands[0].parent is None:
            kind = "embedding"
            weights = operands[:1]
        elif node.op_type == "Gather" and operands[1].parent is None:
            kind = "slice"
        if node.op_type == "Gemm" and attributes.get("transB", 0) == 0:
            weights[0] = weights[0]._replace(shape=weights[0].shape[::-1])
        self._add_layer(node, kind, data, weights, shapes, layer_attributes)

    def _add_recurrent(self, node: Any, operands: list[Value], attributes: dict[str, Any]) -> None:
        """Add a recurrent operator, all steps at once: products with the input and with the state, and the gates."""
        gates, elementwise = RECURRENT[node.op_type]
        x, weight, recurrence = operands[:3]
        biases = [operand for operand in operands[3:] if len(operand.shape) == 2][:1]
        directions, _, state = recurrence.shape
        if attributes.get("layout"):
            samples, steps = x.shape[:-1]
        else:
            steps, samples = x.shape[:-1]
        gates_shape = (directions, steps, samples, gates * state)
        input_weight = weight._replace(shape=(directions * gates * state, x.shape[-1]))
        self._add_layer(node, "linear", [x], [input_weight, *biases], [gates_shape], {})
        hidden = Value((directions, steps, samples, state), len(self.layers) - 1)
        state_weight = recurrence._replace(shape=(gates * state, state))
        self._add_layer(node, "linear", [hidden], [state_weight], [gates_shape], {})
        last = Value(gates_shape, len(self.layers) - 2)
        for kind, times in zip(("sigmoid", "tanh", "mul", "add"), elementwise):
            if times:
                last = Value((directions, steps, samples, times * state), len(self.layers) - 1)
                self._add_layer(node, kind, [last], [], [last.shape], {})
        shapes = self._add_outputs(node, len(self.layers))
        self._add_layer(node, "copy", [Value(last.shape, len(self.layers) - 1)], [], shapes, {})

    def _add_layer(
        self,
        node: Any,
        kind: str,
        data: list[Value],
        weights: list[Value],
        shapes: list[Shape],
        attributes: dict[str, Any],
    ) -> None:
        parameters = 0
        for name in {value.initializer for value in weights if value.initializer}:
            if name not in self._counted_initializers:
                self._counted_initializers.add(name)
                parameters += prod(self.values[name].shape)
        self.layers.append(
            Layer(
                self._layer_name(node),
                kind,
                tuple(value.shape for value in data),
                tuple(shapes),
                tuple(value.shape for value in weights),
                tuple(INPUT if value.parent is None else value.parent for value in data),
                parameters,
                attributes,
            )
        )

    def _layer_name(self, node: Any) -> str:
        """Return the module path that torch's exporter stores, else the operator's own name."""
        name = node.name.strip("/") or node.op_type
        for property_ in node.metadata_props:
            if property_.key == "pkg.torch.onnx.name_scopes":
                scopes = _QUOTED.findall(property_.value)
                if len(scopes) > 1 and scopes[-2]:  # the last scope is the operator
                    name = scopes[-2]
                break
        count = self._name_counts.get(name, 0) + 1
        self._name_counts[name] = count
        return name if count == 1 else f"{name}#{count}"


class Operator(NamedTuple):
    """Attributes of an operator, the shapes of its operands and results, and its layer kind."""

    attributes: dict[str, Any]
    inputs: Sequence[Shape]
    outputs: Sequence[Shape]
    kind: str


KindAndAttributes = tuple[str, dict[str, Any]]
"""Kind and attributes of the layer of an operator."""

KINDS_OF = {operator: kind.name for kind in KINDS.values() for operator in kind.onnx.split()}
LIKE_WEIGHTS = {kind.name: kind.onnx_weights for kind in KINDS.values() if kind.onnx_weights is not None}


def _convolution(operator: Operator) -> KindAndAttributes:
    rank = len(operator.inputs[1]) - 2
    attributes: dict[str, Any] = {
        "stride": list(operator.attributes.get("strides", [1] * rank)),
        "padding": list(operator.attributes.get("pads", [0] * rank))[:rank],
    }
    if any(step != 1 for step in operator.attributes.get("dilations", ())):
        attributes["dilation"] = list(operator.attributes["dilations"])
    if operator.attributes.get("group", 1) != 1:
        attributes["groups"] = operator.attributes["group"]
    if "transpose" in operator.kind:
        attributes["transposed"] = True
    return f"{operator.kind.removesuffix('2d')}{rank}d", attributes


def _pool(operator: Operator) -> KindAndAttributes:
    kernel = list(operator.attributes["kernel_shape"])
    attributes = {"kernel": kernel, "stride": list(operator.attributes.get("strides", [1] * len(kernel)))}
    padding = list(operator.attributes.get("pads", []))[: len(kernel)]
    if any(padding):
        attributes["padding"] = padding
    return operator.kind, attributes


def _mean(operator: Operator) -> KindAndAttributes:
    """Read a mean; over images it is an adaptive pooling to one position, as in torch."""
    if (
        len(operator.inputs[0]) == len(operator.outputs[0]) == 4
        and prod(operator.outputs[0][2:]) == 1
        and operator.inputs[0][:2] == operator.outputs[0][:2]
    ):
        return "adaptive_avg_pool", {}
    return operator.kind, {"function": "mean"}


def _resize(operator: Operator) -> KindAndAttributes:
    mode = str(operator.attributes.get("mode", b"nearest"), "utf-8")
    return operator.kind, {"mode": "linear" if mode == "bilinear" else mode}


def _attention(operator: Operator) -> KindAndAttributes:
    """Read attention over queries of shape (1, heads, tokens, size); other layouts are not counted."""
    if len(operator.inputs[0]) != 4:
        return "onnx.Attention", {}
    attributes = {"causal": True} if operator.attributes.get("is_causal") else {}
    return operator.kind, attributes


def _einsum(operator: Operator) -> KindAndAttributes:
    """Read an einsum of two operands as a matrix product, which sums over the labels that the result does not have."""
    equation = str(operator.attributes["equation"], "utf-8").replace(" ", "").replace("...", "")
    operands, _, result = equation.partition("->")
    if not result:  # implicit form: the labels that occur once
        result = "".join(label for label in operands if operands.count(label) == 1)
    terms = operands.split(",")
    if len(terms) != 2:
        return operator.kind, {}
    sizes = {}
    for term, shape in zip(terms, operator.inputs):
        # Dimensions of an ellipsis come first, so labels are matched from the last dimension.
        for label, size in zip(reversed(term), reversed(shape)):
            sizes[label] = size
    summed = set(terms[0] + terms[1]) - set(result)
    return "matmul", {"inner": prod(sizes[label] for label in summed)}


RECURRENT = {"LSTM": (4, (3, 2, 3, 5)), "GRU": (3, (2, 1, 2, 5)), "RNN": (1, (0, 1, 0, 1))}
"""Number of gates, and sigmoids, tanhs, products and sums per element of the state (formulas of ONNX)."""


READERS: dict[str, Callable[[Operator], KindAndAttributes]] = {
    "Conv": _convolution,
    "ConvTranspose": _convolution,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "ReduceMean": _mean,
    "Resize": _resize,
    "Upsample": _resize,
    "GridSample": _resize,
    "Attention": _attention,
    "Einsum": _einsum,
    "MatMul": lambda operator: (operator.kind, {"inner": operator.inputs[0][-1]}),
    "LRN": lambda operator: (operator.kind, {"size": operator.attributes["size"]}),
    "GroupNormalization": lambda operator: (operator.kind, {"num_groups": operator.attributes["num_groups"]}),
    "Gelu": lambda operator: ("gelu_tanh" if operator.attributes.get("approximate") == b"tanh" else operator.kind, {}),
}

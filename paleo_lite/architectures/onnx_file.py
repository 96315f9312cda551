"""Reader of ONNX files: operators become layers, with the shapes of ``onnx.shape_inference``.

Values that depend only on initializers are constants, as a runtime folds them. An operator without a layer kind keeps
its name (``onnx.NonZero``) and is reported as not counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from ..counting import INPUT, Layer, Shape
from ..counting.kinds import RULE_ERRORS
from ..counting.places import place_layers
from ..errors import BadDescriptor, BadValue
from ..extras import require
from ..files import check_regular
from ..text import clean_message
from .network import Network, SequenceLengths, SequenceOptions
from .onnx_operators import (
    COUNTS,
    COUNTS_BY_DIMENSION,
    KINDS_OF,
    LIKE_WEIGHTS,
    READERS,
    RECURRENT,
    Operator,
    parse_einsum,
)
from .onnx_sizes import can_compute_shapes

_QUOTED = re.compile(r"'([^']*)'")
"""A name in the list of module scopes that torch's exporter writes as text."""


class Value(NamedTuple):
    """A tensor of the graph."""

    shape: Shape
    parent: int | None  # index of the layer that produces it, or `INPUT`; None for a constant
    initializer: str = ""  # name of the initializer that a constant is, or is computed from; else empty
    is_floating: bool = True  # whether its elements are floating-point numbers


def read_onnx(
    path: Path,  # the ``.onnx`` file
    image_size: int | None = None,  # value of symbolic image sizes
    options: SequenceOptions | None = None,  # its length is the value of symbolic sequence lengths
) -> Network:
    """Read the network of an ONNX file; external files with weights are not needed.

    Raise BadDescriptor if the file is malformed, or shapes cannot be inferred, and BadValue if a symbolic size has no
    value, or an image size is given for a file with fixed sizes.
    """
    onnx = require("onnx", "reading ONNX files", "onnx")
    from google.protobuf.message import DecodeError  # a dependency of onnx

    try:
        check_regular(path, BadDescriptor)
        model = onnx.load(str(path), load_external_data=False)
    except OSError as error:
        raise BadDescriptor(f"{path}: cannot be read ({error.strerror})") from None
    except (DecodeError, onnx.checker.ValidationError) as error:
        raise BadDescriptor(f"{path}: not an ONNX file ({error})") from None
    if not model.graph.node:
        raise BadDescriptor(f"{path}: not an ONNX file: it has no operators")
    if model.functions:
        model = _inline_functions(model, path)
    length, notes = _set_symbolic_sizes(model.graph, path, image_size, options.length if options else None)
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=can_compute_shapes(model.graph, path))
    except BadDescriptor:
        raise
    except Exception as error:  # InferenceError, which is in different modules in different versions of onnx
        raise BadDescriptor(f"{path}: inconsistent shapes ({' '.join(str(error).split())[:200]})") from None
    network = _GraphReader(model.graph, path, onnx).network(notes)
    return network if length is None else network._replace(lengths=SequenceLengths(length, length))


_Called = tuple[str, str, str]
"""Domain, name and overload of a function or an operator; versions of onnx before 1.16 have no overloads."""

NODES_PER_BYTE = 1
"""Most operators that the functions of a file may grow to, per byte of the file."""

_NODES_OF_ANY_FILE = 10_000
"""Operators to which the functions of a small file may grow, too."""

_MOST_LEVELS = 64
"""Most levels of functions that call functions, which are inlined by recursion."""


def _inline_functions(model: Any, path: Path) -> Any:
    """Return a model with its functions in place of their calls.

    Raise BadDescriptor if a function calls itself, is defined twice or is called wrongly, the calls are nested too
    deeply, or they grow to more operators than a file of this size can need: each of a chain of functions may call the
    next one twice.
    """
    from onnx.inliner import inline_local_functions

    limit = max(NODES_PER_BYTE * path.stat().st_size, _NODES_OF_ANY_FILE)
    bodies: dict[_Called, Any] = {}
    for function in model.functions:
        called = function.domain, function.name, getattr(function, "overload", "")
        if called in bodies:  # onnx would inline the other one than that whose size is checked here
            raise BadDescriptor(f"{path}: the function {function.name[:80]!r} is there twice, expected once")
        bodies[called] = function.node
    sizes: dict[_Called, int] = {}
    for name in bodies:
        _size_of_function(name, bodies, sizes, path)
    levels: dict[_Called, int] = {}
    for name in sizes:  # in the order in which they were completed: callees before their callers
        levels[name] = 1 + max((levels[call] for call in _calls(bodies[name]) if call in bodies), default=0)
    if max(levels.values()) > _MOST_LEVELS:
        raise BadDescriptor(f"{path}: its functions call each other at more than {_MOST_LEVELS} levels")
    inlined = _count_nodes(model.graph.node, sizes)
    if inlined > limit:
        raise BadDescriptor(
            f"{path}: its functions grow to {min(inlined, 10**15):,} operators, expected at most {limit:,} for a file "
            "of this size"
        )
    try:
        return inline_local_functions(model)
    except Exception as error:  # RuntimeError, or one that is in different modules in different versions of onnx
        raise BadDescriptor(f"{path}: its functions cannot be inlined ({clean_message(str(error))[-150:]})") from None


def _size_of_function(name: _Called, bodies: dict[_Called, Any], sizes: dict[_Called, int], path: Path) -> None:
    """Add the number of operators of a function, with those of the functions that it calls, to the sizes."""
    pending, active = [name], set()
    while pending:
        current = pending[-1]
        if current in sizes:
            pending.pop()
            continue
        callees = {call for call in _calls(bodies[current]) if call in bodies and call not in sizes}
        if not callees:
            sizes[current] = _count_nodes(bodies[current], sizes)
            active.discard(current)
            pending.pop()
            continue
        active.add(current)
        if not callees.isdisjoint(active):
            raise BadDescriptor(f"{path}: the function {min(callees & active)[1]!r} calls itself")
        pending += sorted(callees)


def _calls(nodes: Any) -> Iterator[_Called]:
    """Yield what every operator calls, also of those in the graphs of branches and loops."""
    pending = list(nodes)
    while pending:
        node = pending.pop()
        yield node.domain, node.op_type, getattr(node, "overload", "")
        for attribute in node.attribute:
            pending += attribute.g.node
            for graph in attribute.graphs:
                pending += graph.node


def _count_nodes(nodes: Any, sizes: dict[_Called, int]) -> int:
    """Return the number of operators when calls of functions are replaced by their operators."""
    return sum(sizes.get(call, 1) for call in _calls(nodes))


def _set_symbolic_sizes(
    graph: Any, path: Path, image_size: int | None, length: int | None
) -> tuple[int | None, list[str]]:
    """Set the symbolic sizes of inputs: one sample, the sequence length, and the image size.

    Return the sequence length, if an input has this symbolic size, and notes about fixed batch sizes.
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
            if any(size < 0 for size in initializer.dims):
                raise BadDescriptor(f"{path}: the initializer {initializer.name!r:.60} has a negative size")
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
            try:
                self._add_operator(node)
            except RULE_ERRORS as error:
                raise BadDescriptor(f"{self._describe(node)} {_describe_defect(error)}") from None
        inputs = tuple(self.values[value.name].shape for value in self.inputs)
        parameters = sum(layer.parameters for layer in self.layers)
        return Network(self.path.stem, inputs, place_layers(self.layers), parameters, "ONNX", tuple(notes))

    def _describe(self, node: Any) -> str:
        """Return the file and the operator for a message."""
        return f"{self.path}: the operator {node.op_type}{f' {node.name!r:.60}' if node.name else ''}"

    def _attributes(self, node: Any) -> dict[str, Any]:
        """Return the attributes of an operator.

        Raise BadDescriptor if a number of positions or parts is not an integer, or below 1.
        """
        attributes = {attribute.name: self._attribute(attribute) for attribute in node.attribute}
        for name in (*COUNTS, *COUNTS_BY_DIMENSION):
            if name not in attributes:
                continue
            values = attributes[name] if name in COUNTS_BY_DIMENSION else [attributes[name]]
            if not isinstance(values, list) or not all(
                isinstance(value, int) and 1 <= value < 2**31 for value in values
            ):
                expected = "integers" if name in COUNTS_BY_DIMENSION else "an integer"
                shown = f"{attributes[name]!r:.60}"
                raise BadDescriptor(f"{self._describe(node)}: {name} must be {expected} of at least 1 (got {shown})")
        return attributes

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
        attributes = self._attributes(node)
        if node.op_type == "Einsum" and node.domain in ("", "ai.onnx"):
            self._add_einsum(node, operands, attributes)
            return
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

    def _add_einsum(self, node: Any, operands: list[Value], attributes: dict[str, Any]) -> None:
        """Add an einsum: products of two operands at a time, from left to right, each summed as soon as it can be."""
        terms, result = parse_einsum(str(attributes["equation"], "utf-8"), [operand.shape for operand in operands])
        sizes: dict[str, int] = {}
        for term, operand in zip(terms, operands):
            sizes |= {label: max(size, sizes.get(label, 1)) for label, size in zip(term, operand.shape)}
        shapes = self._add_outputs(node, len(self.layers) + max(len(operands) - 2, 0))
        first, labels = operands[0], terms[0]
        if len(operands) == 1:
            is_summed = bool(set(labels) - set(result))
            kind, layer_attributes = ("reduce", {"function": "sum"}) if is_summed else ("copy", {})
            self._add_layer(node, kind, [first], [], shapes, layer_attributes)
            return
        for index, (term, operand) in enumerate(zip(terms[1:], operands[1:]), 2):
            needed_labels = set(result).union(*terms[index:])
            remaining = [label for label in dict.fromkeys([*labels, *term]) if label in needed_labels]
            summed = set(labels) | set(term)
            inner = prod(sizes[label] for label in summed - needed_labels)
            is_last = index == len(operands)
            product_shapes = shapes if is_last else [tuple(sizes[label] for label in remaining)]
            data = [value for value in (first, operand) if value.parent is not None]
            weights = [value for value in (first, operand) if value.parent is None]
            self._add_layer(node, "matmul", data, weights, product_shapes, {"inner": inner})
            first, labels = Value(product_shapes[0] if product_shapes else (), len(self.layers) - 1), remaining

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


def _describe_defect(error: Exception) -> str:
    """Return what is wrong with an operator, from the exception that reading it raised."""
    if isinstance(error, KeyError):
        return f"has no attribute {error}"
    if isinstance(error, IndexError):
        return "lacks an operand, or an operand lacks a dimension"
    return f"is malformed ({error!s:.200})"

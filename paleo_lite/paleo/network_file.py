"""Reader of PALEO's network files (github TalwalkarLab/paleo, ``nets/README.md``): NHWC layers in one JSON object.

``{"name": ..., "layers": {NAME: {"type": ..., "parents": [...], ...}}}``. A ``Block`` is a namespace: its layers
without parents have the parents of the block, and its ``endpoint`` is the output of the block. The layers of a
``ModelParallel`` block are split over workers; they are read unsplit and marked ``model_parallel``. PALEO gives every
convolution a bias. Activations and normalisations become separate layers, and batch normalisation has no parameters,
so that layers and parameters match those of PALEO.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from ..architectures import Network
from ..architectures.builder import Blob, Builder, Window, check_input_shape
from ..counting import KINDS
from ..errors import BadDescriptor

TYPES = (
    "Input", "Convolution", "Pooling", "AvgPool", "InnerProduct", "Concatenate", "Elementwise", "Reshape",
    "UpSampling2D", "Block", "ModelParallel",
)  # fmt: skip
"""Supported layer types, in addition to those in which input and output have the same shape."""

_ACTIVATIONS = ("relu", "sigmoid", "tanh", "elu", "relu6")
_ONE_TO_ONE = {kind.paleo: kind.name for kind in KINDS.values() if kind.paleo}


class _File(msgspec.Struct, frozen=True):
    """A network file; descriptors have a format field, PALEO's files do not."""

    format: Any = None
    layers: dict[str, Any] = {}


class _Spec(NamedTuple):
    """A layer with its full name and the full names of its parents."""

    name: str
    fields: dict[str, Any]
    parents: Sequence[str]
    split: bool = False


def read_paleo_json(
    data: bytes,  # contents of the file
    where: str,  # path of the file, for error messages and the source
    image_size: int | None = None,  # height and width of the input, instead of the file's
) -> Network | None:
    """Read a network file of PALEO; return None for any other file, such as a descriptor.

    Raise BadDescriptor if the network is invalid; the message names the layer and the problem.
    """
    try:
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if file.format is not None or not file.layers:
        return None
    builder = Builder(where)
    blobs: dict[str, Blob] = {}
    inputs = []
    for spec in _sort_specs(_flatten_blocks(builder, file.layers), where):
        if spec.fields["type"] == "Input":
            blobs[spec.name] = _read_input(spec, where, image_size)
            inputs.append(blobs[spec.name].shape)
        else:
            try:
                blobs[spec.name] = _add_layer(builder, spec, [blobs[parent] for parent in spec.parents])
            except (KeyError, TypeError, IndexError, ValueError) as error:
                problem = f"{type(error).__name__}: {error}"
                raise builder.fail(spec.name, f"its fields do not fit type {spec.fields['type']} ({problem})") from None
    if not inputs:
        raise BadDescriptor(f"{where}: has no layer of type Input")
    normalised = any(KINDS[layer.kind].has_running_statistics for layer in builder.layers)
    notes = ("batch normalisation has no parameters and convolutions have a bias, as PALEO counts them",)
    return builder.network(
        Path(where).stem, tuple(inputs), f"PALEO network file {Path(where).name}", notes * normalised
    )


def _flatten_blocks(builder: Builder, layers: dict[str, Any]) -> dict[str, _Spec]:
    """Return the layers of all blocks by full name."""
    specs: dict[str, _Spec] = {}
    ends: dict[str, str] = {}

    def add(name: str, fields: Any, space: str = "", outside: Sequence[str] = (), split: bool = False) -> None:
        if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
            raise builder.fail(name, "has no type")
        parents = fields.get("parents", [])
        if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
            raise builder.fail(name, "parents must be a list of names")
        # All copies of a split layer are one layer here.
        parents = [space + parent.removesuffix("@all").removesuffix("@self") for parent in parents] or outside
        if fields["type"] not in ("Block", "ModelParallel"):
            specs[name] = _Spec(name, fields, parents, split)
            return
        inside = fields.get("layers")
        if space or not isinstance(inside, dict):
            raise builder.fail(name, "nested blocks are not supported" if space else "is a block without layers")
        if "endpoint" in fields:
            ends[name] = f"{name}/{fields['endpoint']}"
        for inner, inner_fields in inside.items():
            add(f"{name}/{inner}", inner_fields, f"{name}/", parents, fields["type"] == "ModelParallel")

    for name, fields in layers.items():
        add(name, fields)
    for name, spec in specs.items():
        specs[name] = spec._replace(parents=[ends.get(parent, parent) for parent in spec.parents])
        for parent in specs[name].parents:
            if parent not in specs:
                raise builder.fail(name, f"has a parent {parent!r}, which is not in the file")
    return specs


def _sort_specs(specs: dict[str, _Spec], where: str) -> Iterator[_Spec]:
    """Yield every layer after its parents, otherwise in the order of the file."""
    sorter = TopologicalSorter({name: spec.parents for name, spec in specs.items()})
    try:
        sorter.prepare()
    except CycleError as error:
        circle = ", ".join(sorted(set(error.args[1])))
        raise BadDescriptor(f"{where}: layers depend on each other in a circle: {circle}") from None
    names = list(specs)
    position = {name: index for index, name in enumerate(names)}
    ready: list[int] = []
    while sorter.is_active():
        for name in sorter.get_ready():
            heappush(ready, position[name])
        name = names[heappop(ready)]
        yield specs[name]
        sorter.done(name)


def _read_input(spec: _Spec, where: str, image_size: int | None) -> Blob:
    tensor = spec.fields.get("tensor")
    if not isinstance(tensor, list) or len(tensor) not in (2, 4):
        raise BadDescriptor(f"{where}: layer {spec.name!r}: tensor must be [N, H, W, C] or [N, features]")
    shape = check_input_shape(f"{where}: layer {spec.name!r}", [tensor[-1], *tensor[1:-1]])
    return Blob((1, shape[1], image_size, image_size) if image_size and len(shape) == 4 else shape)


def _add_layer(builder: Builder, spec: _Spec, parents: list[Blob]) -> Blob:
    """Add one layer, with its normalisation and activation."""
    fields, name, kind = spec.fields, spec.name, spec.fields["type"]
    if not parents:
        raise builder.fail(name, "has no parents")
    blob, before = parents[0], len(builder.layers)
    if kind == "Convolution":
        result = _convolution(builder, name, fields, blob)
    elif kind in ("Pooling", "AvgPool"):
        kernel, stride = tuple(fields["ksize"][1:3]), tuple(fields["strides"][1:3])
        padding = _padding(builder, name, fields["padding"])
        result = builder.pooling(name, blob, kind == "Pooling", Window(kernel, stride, padding))
    elif kind == "InnerProduct":
        result = builder.linear(name, blob, fields["num_outputs"])
    elif kind == "Concatenate":
        axis = {0: 0, 1: 2, 2: 3, 3: 1}[fields["dim"]] if len(blob.shape) == 4 else fields["dim"]
        # A concatenation of the parts of split layers has no effect here, because the layers are not split.
        result = blob if len(parents) == 1 else builder.concat(name, parents, axis)
    elif kind == "Elementwise":
        result = builder.elementwise(name, "add", parents)
    elif kind == "Softmax":
        classes = fields.get("num_classes") or blob.shape[1]
        if classes != blob.shape[1]:
            raise builder.fail(name, f"{classes} classes from {blob.shape[1]} channels")
        result = builder.add(name, _ONE_TO_ONE[kind], [blob], (1, classes))
    elif kind == "Reshape":
        result = builder.add(name, "view", [blob], _resolve_shape(builder, name, blob, fields["output_shape"]))
    elif kind == "UpSampling2D":
        channels, height, width = builder.image_shape(name, blob)
        shape = (1, channels, height * fields["ksize"][1], width * fields["ksize"][2])
        result = builder.add(name, "interpolate", [blob], shape, (), {"mode": "nearest"})
    elif kind in _ONE_TO_ONE:
        off = kind == "Dropout" and fields.get("dropout_keep_prob") == 1
        result = builder.add(name, _ONE_TO_ONE[kind], [blob], blob.shape, (), {"p": 0} if off else None)
    else:
        raise builder.fail(name, f"type {kind!r} is not supported; supported are {', '.join([*TYPES, *_ONE_TO_ONE])}")
    if spec.split:
        builder.layers[before:] = [
            layer._replace(attributes={**layer.attributes, "model_parallel": True}) for layer in builder.layers[before:]
        ]
    return result


def _convolution(builder: Builder, name: str, fields: dict[str, Any], blob: Blob) -> Blob:
    kernel_h, kernel_w, channels_in, channels_out = fields["filter"]
    if channels_in not in (-1, blob.shape[1]):
        raise builder.fail(name, f"its filter has {channels_in} input channels, but its parent has {blob.shape[1]}")
    stride = tuple(fields["strides"][1:3])
    padding = _padding(builder, name, fields["padding"])
    result = builder.convolution(name, blob, channels_out, Window((kernel_h, kernel_w), stride, padding))
    if fields.get("normalizer_fn"):
        result = builder.add(f"{name}.batch_norm", _ONE_TO_ONE["BatchNorm"], [result], result.shape)
    function = fields.get("activation_fn", "relu")  # PALEO's default
    if function is None:
        return result
    if function not in _ACTIVATIONS:
        raise builder.fail(name, f"activation must be one of {', '.join(_ACTIVATIONS)} (got {function!r})")
    return builder.add(f"{name}.{function}", function, [result], result.shape)


def _padding(builder: Builder, name: str, padding: Any) -> tuple[int, int] | Literal["same"]:
    if padding == "VALID":
        return 0, 0
    if padding == "SAME":
        return "same"
    if isinstance(padding, list) and len(padding) == 2 and all(isinstance(n, int) and n >= 0 for n in padding):
        return padding[0], padding[1]
    raise builder.fail(name, f"padding must be VALID, SAME or two integers (got {padding!r})")


def _resolve_shape(builder: Builder, name: str, blob: Blob, shape: list[int]) -> tuple[int, ...]:
    """Return the new shape; a size of -1 is inferred from the number of elements."""
    elements = prod(blob.shape)
    rest = list(shape[1:])
    known_elements = prod(size for size in rest if size != -1)
    if (
        rest.count(-1) > 1
        or known_elements < 1
        or elements % known_elements
        or (-1 not in rest and known_elements != elements)
    ):
        raise builder.fail(name, f"{blob.shape[1:]} cannot be reshaped to {rest}")
    sizes = [elements // known_elements if size == -1 else size for size in rest]
    return (1, sizes[-1], *sizes[:-1])

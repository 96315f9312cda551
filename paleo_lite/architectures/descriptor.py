"""Descriptors: a network as one small JSON file, so that predicting it needs no torch.

The layers are columns (``name``, ``kind``, ...), each on one line. Shapes and attribute sets repeat a lot: the columns
hold numbers that point into the lists ``shapes`` and ``attributes``. A network for many sequence lengths has three
``lengths``, and what differs between them as ``[at the first, second, third]`` in shapes, ``{"by_length": [...]}`` in
attributes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec

from ..counting import CONSTANT, Layer, count
from ..errors import BadDescriptor
from ..files import write_aside
from .lengths import lengths_of, three_of, with_lengths
from .network import Lengths, Network

FORMAT = 1
_BYTES_AT_MOST = 64 * 2**20


Whole = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
ByLength = Annotated[list[Whole], msgspec.Meta(min_length=3, max_length=3)]
Size = Whole | ByLength
From0 = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


From1 = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
Sizes = Annotated[list[Whole], msgspec.Meta(min_length=1)]
Steps = Annotated[list[From1], msgspec.Meta(min_length=1)]


class Attributes(TypedDict, total=False):
    """What attributes are that rules read; others may be anything."""

    stride: Steps
    dilation: Steps
    kernel: Steps
    padding: Sizes | str
    groups: From1
    num_groups: From1
    inner: Whole
    size: Whole
    dims: From1
    window: From1
    ring: From1
    active: From1
    per_element: Whole
    p: float
    widths: Steps
    mode: str
    function: str
    bias: bool
    causal: bool
    frozen: bool
    half: bool
    in_place: bool
    no_gradient: bool
    same: bool
    scales: bool
    transposed: bool


class Columns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The layers, one list per field of `Layer`; inputs, outputs and weights point into ``shapes``."""

    name: list[str]
    kind: list[str]
    inputs: list[list[int]]
    outputs: list[list[int]]
    weights: list[list[int]]
    parents: list[list[int]]
    parameters: list[From0]
    attributes: list[int]
    origin: list[str]


class Descriptor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    format: int
    name: str
    source: str
    inputs: Annotated[list[list[Size]], msgspec.Meta(min_length=1)]
    parameters: From0
    shapes: list[list[Size]]
    attributes: list[dict[str, Any]]
    layers: Columns
    notes: list[str] = []
    macs: From0 | None = None  # of inference, one sample: in the head, so that a number can be looked up
    lengths: ByLength | None = None


def write_descriptor(network: Network, path: Path) -> None:
    """Write a network; the file appears whole or not at all."""
    three = three_of(network)
    every = zip(*(one.layers for one in three or (network,)))
    shapes, attributes = _Pool(), _Pool()
    fields: dict[str, list[Any]] = {field: [] for field in Columns.__struct_fields__}
    for alike in every:
        layer = alike[0]
        for field in ("name", "kind", "parameters", "origin"):
            fields[field].append(getattr(layer, field))
        for field in ("inputs", "outputs", "weights"):
            together = zip(*(getattr(one, field) for one in alike))
            fields[field].append([shapes.place(_beside(list, *three_shapes)) for three_shapes in together])
        fields["parents"].append(list(layer.parents))
        by_length = _beside(lambda values: {"by_length": list(values)}, *(one.attributes for one in alike))
        fields["attributes"].append(attributes.place(by_length))
    head = {
        "format": FORMAT,
        "name": network.name,
        "source": network.source,
        "notes": list(network.notes),
        "inputs": [_beside(list, *three_shapes) for three_shapes in zip(*(one.inputs for one in three or (network,)))],
        "parameters": network.parameters,
        "macs": int(count(network.layers).column("macs", "inference").sum()),
        "shapes": shapes.items,
        "attributes": attributes.items,
    }
    if three:
        head["lengths"] = lengths_of(three)
    lines = [f'"{key}": {_compact(value)}' for key, value in head.items()]
    columns = ",\n".join(f'"{key}": {_compact(value)}' for key, value in fields.items())
    body = "{\n" + ",\n".join(lines) + ',\n"layers": {\n' + columns + "\n}\n}\n"
    write_aside(path, body.encode())


def read_descriptor(path: Path) -> Network:
    """Read a network."""
    return decode_descriptor(read_bounded(path), path)


def read_bounded(path: Path) -> bytes:
    """The bytes of a file that describes a network.

    Raises
    ------
    BadDescriptor
        If it cannot be read, or is larger than any network's description.
    """
    try:
        if path.stat().st_size > _BYTES_AT_MOST:
            raise BadDescriptor(f"{path}: larger than {_BYTES_AT_MOST} bytes, too large for a descriptor")
        return path.read_bytes()
    except OSError as error:
        raise BadDescriptor(f"{path}: cannot be read ({error.strerror})") from None


def decode_descriptor(data: bytes, path: Path) -> Network:
    """A network from a descriptor's bytes; see `read_descriptor`."""
    try:
        descriptor = msgspec.json.decode(data, type=Descriptor)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadDescriptor(f"{path}: {error}") from None
    if descriptor.format != FORMAT:
        raise BadDescriptor(f"{path}: $.format is {descriptor.format}, this version of paleo-lite reads {FORMAT}")
    one = Network(descriptor.name, (), (), descriptor.parameters, descriptor.source, tuple(descriptor.notes))
    if descriptor.lengths is None:
        return _at_length(one, descriptor, path, 0)
    return with_lengths([
        _at_length(one._replace(lengths=Lengths(n, n)), descriptor, path, which)
        for which, n in enumerate(descriptor.lengths)
    ])  # fmt: skip


def _beside(mark: Any, *values: Any) -> Any:
    """One for all where they are alike; else what differs between three of them, marked."""
    first = values[0]
    if isinstance(first, dict):
        return {key: _beside(mark, *(value[key] for value in values)) for key in first}
    if isinstance(first, (tuple, list)):
        return [_beside(mark, *parts) for parts in zip(*values)]
    return first if all(value == first for value in values) else mark(values)


def _at(value: Any, which: int) -> Any:
    """An attribute at one of three lengths."""
    if isinstance(value, dict):
        by_length = value.get("by_length")
        if isinstance(by_length, list) and len(by_length) == 3:
            return by_length[which]
        return {key: _at(item, which) for key, item in value.items()}
    return [_at(item, which) for item in value] if isinstance(value, list) else value


def _at_length(network: Network, descriptor: Descriptor, path: Path, which: int) -> Network:
    """The network with the inputs and layers of one of its lengths."""
    columns = descriptor.layers
    length = len(columns.name)
    for field in Columns.__struct_fields__:
        if len(getattr(columns, field)) != length:
            raise BadDescriptor(
                f"{path}: $.layers.{field} has {len(getattr(columns, field))} entries, $.layers.name has {length}"
            )
    if len(set(columns.name)) < length:
        raise BadDescriptor(f"{path}: $.layers.name has the same name twice")
    every = [
        tuple([size if isinstance(size, int) else size[which] for size in shape])
        for shape in (*descriptor.inputs, *descriptor.shapes)
    ]
    given, shapes = every[: len(descriptor.inputs)], every[len(descriptor.inputs) :]
    attributes = [_at(one, which) for one in descriptor.attributes] if descriptor.lengths else descriptor.attributes
    try:
        msgspec.convert(attributes, list[Attributes])
    except msgspec.ValidationError as error:
        raise BadDescriptor(f"{path}: $.attributes: {error}") from None
    layers = []
    for index, (name, kind, inputs, outputs, weights, parents, parameters, alike, origin) in enumerate(
        zip(*(getattr(columns, field) for field in Columns.__struct_fields__))
    ):
        if not outputs:
            raise BadDescriptor(f"{path}: layer {name!r} has no outputs")
        if any(not 0 <= pointer < len(shapes) for pointer in (*inputs, *outputs, *weights)):
            raise BadDescriptor(f"{path}: layer {name!r} points outside $.shapes")
        if not 0 <= alike < len(attributes):
            raise BadDescriptor(f"{path}: layer {name!r} points outside $.attributes")
        if len(inputs) != len(parents) or any(not CONSTANT <= parent < index for parent in parents):
            raise BadDescriptor(f"{path}: layer {name!r}: $.layers.parents must name one earlier layer per input")
        read, made, held = (tuple([shapes[pointer] for pointer in pointers]) for pointers in (inputs, outputs, weights))
        layers.append(Layer(name, kind, read, made, held, tuple(parents), parameters, attributes[alike], origin))
    return network._replace(inputs=tuple(given), layers=tuple(layers))


class _Pool:
    """Distinct values in the order of first use."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._places: dict[str, int] = {}

    def place(self, value: Any) -> int:
        key = _compact(value)
        if key not in self._places:
            self._places[key] = len(self.items)
            self.items.append(value)
        return self._places[key]


def _compact(value: Any) -> str:
    import json  # for writing only: reading is msgspec's, and faster without

    return json.dumps(value, separators=(",", ":"))

"""Descriptors: a network as one small JSON file, so that predictions need no torch.

Layers are stored as columns (``name``, ``kind``, ...), one line each. Shapes and sets of attributes repeat often, so
the columns hold indices into the lists ``shapes`` and ``attributes``. A network for a range of sequence lengths stores
three ``lengths``; sizes that differ between them are ``[at the first, second, third]`` in shapes and
``{"by_length": [...]}`` in attributes. A network for pictures and videos of any size stores the polynomials of its
sizes (`paleo_lite.architectures.free_sizes`): ``{"hw": 1, "1": 512}`` in shapes, ``{"by_size": {...}}`` in attributes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec

from ..counting import CONSTANT, Layer, count
from ..counting.places import place_layers
from ..errors import BadDescriptor
from ..files import read_limited, typed, write_atomically
from .free_sizes import Basis, Polynomial, Quotients, check_sizes, evaluate, polynomial, with_quotients
from .network import Network, SequenceLengths
from .sequence_lengths import interpolated_network, sampled_lengths, sampled_networks

FORMAT = 1

TRACER = 3
"""Version of the tracer. Increase it when the same module gives other layers, so that cached traces are not reused."""

_MAX_BYTES = 64 * 2**20


NonNegative = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
ByLength = Annotated[list[NonNegative], msgspec.Meta(min_length=3, max_length=3)]
Size = NonNegative | ByLength | Polynomial
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


Positive = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
Sizes = Annotated[list[NonNegative], msgspec.Meta(min_length=1)]
Steps = Annotated[list[Positive], msgspec.Meta(min_length=1)]


class Attributes(TypedDict, total=False):
    """Types of the attributes that rules read; other attributes are not checked."""

    stride: Steps
    dilation: Steps
    kernel: Steps
    padding: Sizes | str
    groups: Positive
    num_groups: Positive
    inner: NonNegative
    size: NonNegative
    dims: Positive
    window: Positive
    ring: Positive
    active: Positive
    per_element: NonNegative
    p: float
    widths: Steps
    upcast: Annotated[list[Annotated[float, msgspec.Meta(ge=0.5, le=4)]], msgspec.Meta(min_length=2, max_length=2)]
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
    """Layers, one list per field of `Layer`; inputs, outputs and weights are indices into ``shapes``."""

    name: list[str]
    kind: list[str]
    inputs: list[list[int]]
    outputs: list[list[int]]
    weights: list[list[int]]
    parents: list[list[int]]
    parameters: list[Count]
    attributes: list[int]
    origin: list[str]


class Descriptor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of a descriptor file."""

    format: int
    name: str
    source: str
    inputs: Annotated[list[list[Size]], msgspec.Meta(min_length=1)]
    parameters: Count
    shapes: list[list[Size]]
    attributes: list[dict[str, Any]]
    layers: Columns
    notes: list[str] = []
    macs: Count | None = None  # of inference per sample; in the head of the file, so that networks can be found by MACs
    lengths: ByLength | None = None
    free: dict[str, Annotated[list[Positive], msgspec.Meta(min_length=2, max_length=2)]] | None = None
    quotients: Quotients = {}  # further symbols of polynomials


COMPRESSED = ".gz"
"""Suffix of compressed descriptors; a denoiser has thousands of layers."""


def write_descriptor(network: Network, path: Path) -> None:
    """Write the descriptor of a network atomically."""
    samples = sampled_networks(network) or (network,)
    head: dict[str, Any] = {"macs": int(count(network.layers).column("macs", "inference").sum())}
    if len(samples) > 1:
        head["lengths"] = sampled_lengths(samples)
    _write(samples, head, list, _by_length, path)


def write_free_descriptor(samples: Sequence[Network], basis: Basis, path: Path) -> None:
    """Write the descriptor of a network for pictures of any size, from its traces at all samples of a basis.

    Raise TraceFailed if a size is not a polynomial with whole coefficients, or the traces have different layers.
    """

    def fit(values: Any) -> Any:
        return polynomial(values, basis)

    head: dict[str, Any] = {"free": {symbol: [1, 2**16] for symbol in basis.samples[0]}}
    if basis.quotients:
        head["quotients"] = basis.quotients
    _write(samples, head, fit, lambda values: {"by_size": fit(values)}, path)


def _write(
    samples: Sequence[Network],
    more_head: Mapping[str, Any],
    mark_size: Callable[[Any], Any],
    mark_attribute: Callable[[Any], Any],
    path: Path,
) -> None:
    """Write traces of one network at several sizes; the marks merge sizes that differ."""
    network = samples[-1]
    shapes, attributes = _Pool(), _Pool()
    columns: dict[str, list[Any]] = {field: [] for field in Columns.__struct_fields__}
    for sampled_layers in zip(*(sample.layers for sample in samples)):
        layer = sampled_layers[0]
        for field in ("name", "kind", "parameters", "origin"):
            columns[field].append(getattr(layer, field))
        for field in ("inputs", "outputs", "weights"):
            indices = []
            for sampled_shapes in zip(*(getattr(sample, field) for sample in sampled_layers)):
                indices.append(shapes.index(_merge(mark_size, *sampled_shapes)))
            columns[field].append(indices)
        columns["parents"].append(list(layer.parents))
        merged_attributes = _merge(mark_attribute, *(sample.attributes for sample in sampled_layers))
        columns["attributes"].append(attributes.index(merged_attributes))
    inputs = [_merge(mark_size, *sampled_shapes) for sampled_shapes in zip(*(sample.inputs for sample in samples))]
    head = {
        "format": FORMAT,
        "name": network.name,
        "source": network.source,
        "notes": list(network.notes),
        "inputs": inputs,
        "parameters": network.parameters,
        **more_head,
        "shapes": shapes.items,
        "attributes": attributes.items,
    }
    head_lines = [f'"{key}": {_compact_json(value)}' for key, value in head.items()]
    column_lines = ",\n".join(f'"{key}": {_compact_json(value)}' for key, value in columns.items())
    text = "{\n" + ",\n".join(head_lines) + ',\n"layers": {\n' + column_lines + "\n}\n}\n"
    data = text.encode()
    if path.suffix == COMPRESSED:
        data = gzip_of(data)
    write_atomically(path, data)


def gzip_of(data: bytes) -> bytes:
    """Return data as a gzip file without a time, so that equal descriptors are equal files."""
    compressor = zlib.compressobj(9, wbits=zlib.MAX_WBITS | 16)
    return compressor.compress(data) + compressor.flush()


def read_descriptor(path: Path) -> Network:
    """Read a network from a descriptor file."""
    return decode_descriptor(read_bounded(path), path)


def read_bounded(path: Path) -> bytes:
    """Return the bytes of a network file.

    Raise BadDescriptor if the file cannot be read, or is larger than any description of a network.
    """
    try:
        data = read_limited(path, _MAX_BYTES, "descriptor", BadDescriptor)
    except OSError as error:
        raise BadDescriptor(f"{path}: cannot be read ({error.strerror})") from None
    return _decompress(data, path) if path.suffix == COMPRESSED else data


def _decompress(data: bytes, path: Path) -> bytes:
    """Return the contents of a gzip file, of which no more is expanded than a descriptor may have."""
    decompressor = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        contents = decompressor.decompress(data, _MAX_BYTES)
    except zlib.error as error:
        raise BadDescriptor(f"{path}: not a gzip file ({error})") from None
    if not decompressor.eof:
        raise BadDescriptor(f"{path}: truncated, or larger than {_MAX_BYTES} bytes")
    return contents


def decode_descriptor(
    data: bytes,  # contents of the file
    path: Path,  # path of the file, for messages
    # Values of the free sizes by their symbol, for a network for pictures of any size.
    sizes: Mapping[str, int] | None = None,
) -> Network:
    """Return the network of a descriptor's bytes; see `read_descriptor`."""
    try:
        descriptor = msgspec.json.decode(data, type=typed(Descriptor))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadDescriptor(f"{path}: {error}") from None
    if descriptor.format != FORMAT:
        raise BadDescriptor(f"{path}: $.format is {descriptor.format}, this version of paleo-lite reads {FORMAT}")
    network = Network(descriptor.name, (), (), descriptor.parameters, descriptor.source, tuple(descriptor.notes))
    if descriptor.free is not None:
        values = with_quotients(check_sizes(sizes or {}, descriptor.free, path), descriptor.quotients)
        return _decode_layers(network, descriptor, path, lambda size: evaluate(size, values, path))
    if descriptor.lengths is None:
        return _decode_layers(network, descriptor, path, itemgetter(0))
    samples = []
    for sample, length in enumerate(descriptor.lengths):
        at_length = network._replace(lengths=SequenceLengths(length, length))
        samples.append(_decode_layers(at_length, descriptor, path, itemgetter(sample)))
    return interpolated_network(samples)


def _by_length(values: Any) -> dict[str, Any]:
    return {"by_length": list(values)}


def _merge(mark: Callable[[Any], Any], *values: Any) -> Any:
    """Merge nested values of several lengths: equal ones into one, differing ones into ``mark(values)``."""
    first = values[0]
    if isinstance(first, dict):
        return {key: _merge(mark, *(value[key] for value in values)) for key in first}
    if isinstance(first, (tuple, list)):
        return [_merge(mark, *items) for items in zip(*values)]
    return first if all(value == first for value in values) else mark(values)


def _select(value: Any, select: Callable[[Any], int]) -> Any:
    """Return a nested attribute at one of three lengths, or at a size."""
    if isinstance(value, dict):
        by_length, by_size = value.get("by_length"), value.get("by_size")
        if isinstance(by_length, list) and len(by_length) == 3:
            return select(by_length)
        if isinstance(by_size, dict):
            return select(by_size)
        return {key: _select(item, select) for key, item in value.items()}
    if isinstance(value, list):
        return [_select(item, select) for item in value]
    return value


def _decode_layers(network: Network, descriptor: Descriptor, path: Path, select: Callable[[Any], int]) -> Network:
    """Return a network with the inputs and layers of a descriptor; `select` gives a size that is not fixed."""
    columns = descriptor.layers
    length = len(columns.name)
    for field in Columns.__struct_fields__:
        entries = len(getattr(columns, field))
        if entries != length:
            raise BadDescriptor(f"{path}: $.layers.{field} has {entries} entries, $.layers.name has {length}")
    if len(set(columns.name)) < length:
        raise BadDescriptor(f"{path}: $.layers.name has the same name twice")
    input_shapes = [_decode_shape(shape, select) for shape in descriptor.inputs]
    shapes = [_decode_shape(shape, select) for shape in descriptor.shapes]
    attributes = descriptor.attributes
    if descriptor.lengths or descriptor.free:
        attributes = [_select(item, select) for item in attributes]
    try:
        msgspec.convert(attributes, typed(list[Attributes]))
    except msgspec.ValidationError as error:
        raise BadDescriptor(f"{path}: $.attributes: {error}") from None
    layers = []
    rows = zip(*(getattr(columns, field) for field in Columns.__struct_fields__))
    for index, (name, kind, inputs, outputs, weights, parents, parameters, attribute_index, origin) in enumerate(rows):
        if not outputs:
            raise BadDescriptor(f"{path}: layer {name!r} has no outputs")
        if any(not 0 <= pointer < len(shapes) for pointer in (*inputs, *outputs, *weights)):
            raise BadDescriptor(f"{path}: layer {name!r} points outside $.shapes")
        if kind.startswith("conv") and weights and len(shapes[weights[0]]) < 3:
            raise BadDescriptor(f"{path}: layer {name!r}: the weights of a convolution have at least 3 dimensions")
        if not 0 <= attribute_index < len(attributes):
            raise BadDescriptor(f"{path}: layer {name!r} points outside $.attributes")
        if len(inputs) != len(parents) or any(not CONSTANT <= parent < index for parent in parents):
            raise BadDescriptor(f"{path}: layer {name!r}: $.layers.parents must name one earlier layer per input")
        layers.append(
            Layer(
                name,
                kind,
                tuple([shapes[pointer] for pointer in inputs]),
                tuple([shapes[pointer] for pointer in outputs]),
                tuple([shapes[pointer] for pointer in weights]),
                tuple(parents),
                parameters,
                attributes[attribute_index],
                origin,
            )
        )
    return network._replace(inputs=tuple(input_shapes), layers=place_layers(layers))


def _decode_shape(shape: list[Any], select: Callable[[Any], int]) -> tuple[int, ...]:
    return tuple([size if isinstance(size, int) else select(size) for size in shape])


class _Pool:
    """Distinct values, in the order of first use."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._indices: dict[str, int] = {}

    def index(self, value: Any) -> int:
        """Return the index of a value, adding it if it is new."""
        key = _compact_json(value)
        if key not in self._indices:
            self._indices[key] = len(self.items)
            self.items.append(value)
        return self._indices[key]


def _compact_json(value: Any) -> str:
    import json  # imported only for writing; reading uses msgspec and starts faster without it

    return json.dumps(value, separators=(",", ":"))

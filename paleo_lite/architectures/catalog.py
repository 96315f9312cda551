"""Finding a network by name: shipped descriptors first, torch only where they do not suffice.

Nothing here imports torch before a trace is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..counting import count
from ..errors import BadDescriptor, BadValue, MissingExtra, UnknownName
from ..files import cache_folder, is_there, shipped
from .descriptor import FORMAT, decode_descriptor, read_bounded, read_descriptor, write_descriptor
from .inputs import Input, read_input
from .network import Network, Tokens

IMPORTERS = {
    ".prototxt": "paleo_lite.architectures.prototxt:read_prototxt",
    ".json": "paleo_lite.paleo.network_file:read_paleo_json",
}
"""What reads a file that is not a descriptor, by suffix: ``package.module:function``, imported when it is first asked.

A function from the file's bytes, its path and an image size (or None) to the network; None where the format is another.
"""

MODELS = {
    ".onnx": "paleo_lite.architectures.onnx_file:read_onnx",
    ".pt2": "paleo_lite.architectures.exported:read_exported",
}
"""What reads a file with a model and its weights, by suffix: a function from path, image size and tokens."""

_TRACED = ("torchvision ", "paleo_lite.architectures.caffe")
"""Sources of the shipped networks that `trace_named` can trace again."""

_CONFIG = re.compile(rb'"(?:model_type|architectures)" *:')
"""What a config of Hugging Face's has, and neither a descriptor nor a file of PALEO's."""

_DESCRIPTOR = re.compile(rb'\s*\{\s*"format" *:')

_SIDE_AT_MOST = 2**16
_MACS, _HEAD = re.compile(rb'^"macs": *(\d+)', re.MULTILINE), 2**14

HUGGING_FACE = "hf:"
"""Before the path of a config of Hugging Face's, or of the folder that holds one."""

TIMM = "timm:"
"""Before the name of a model of timm's, which need not be installed otherwise."""

TRACER = 3
"""Raised whenever a trace of the same module would give other layers, so that cached traces are not reused."""


def network_names() -> list[str]:
    """Names of the shipped networks."""
    return sorted(path.stem for path in shipped("models").glob("*.json"))


def networks_of_macs(macs: float, share: float = 0.005) -> list[str]:
    """The shipped networks with about so many multiply-accumulates per sample, nearest first; no layers are read."""
    near = []
    for path in sorted(shipped("models").glob("*.json")):
        with path.open("rb") as file:
            head = _MACS.search(file.read(_HEAD))
        if head is not None and abs(int(head[1]) - macs) <= share * macs:
            near.append((abs(int(head[1]) - macs), len(path.stem), path.stem))
    return [name for *_, name in sorted(near)]


def normalise(name: str) -> str:
    """A network's name whatever its case, hyphens and underscores: ``ResNet-50`` and ``resnet50`` are one."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def find_network(name: str, image_size: int | None = None, tokens: Tokens | None = None) -> Network:
    """A shipped network, or one that a file describes, at its own image size or another, or for some tokens.

    Parameters
    ----------
    name : str
        ``"resnet50"``, or a path that ends in ``.json`` (a descriptor, a config of Hugging Face's, or a network file of
        PALEO's), ``.prototxt`` (Caffe), ``.onnx`` or ``.pt2`` (what ``torch.export.save`` wrote).
    image_size : int, optional
        Height and width of the images. Another size than the descriptor's needs torch once; the result is cached. For a
        file of PALEO's or Caffe's, what its input is taken to be.
    tokens : Tokens, optional
        How many tokens a network reads that a config describes, and in which phase.

    Raises
    ------
    BadValue
        If the image size is not a whole number above 0, or tokens are asked of a network that reads none.
    BadDescriptor
        If the descriptor is malformed.
    """
    if image_size is not None and (type(image_size) is not int or not 1 <= image_size <= _SIDE_AT_MOST):
        raise BadValue(f"the image size must be a whole number from 1 to {_SIDE_AT_MOST:,}, not {image_size!r}")
    file, folder = is_network_file(name), shipped("models")
    path = Path(name) if file else folder / f"{name}.json"
    if not file and ("/" in name or not is_there(path)):
        by_name = {normalise(known): known for known in network_names()}
        if normalise(name) not in by_name:
            raise UnknownName("network", name, network_names(), "'paleo-lite networks list' shows all.")
        path = folder / f"{by_name[normalise(name)]}.json"
    network = read_network_file(path, image_size, tokens)
    if network.lengths is None and tokens is not None and tokens.asked:
        raise BadValue(f"{name} reads no sequences of tokens: leave --sequence-length and --context out, and phases "
                       "of generating text")  # fmt: skip
    if image_size is None or network.inputs[0][-2:] == (image_size, image_size):
        return network
    if file or not network.source.startswith(_TRACED):
        made = f"make another from its source, {network.source}"
        raise BadDescriptor(f"{name}: a descriptor has one image size, {network.inputs[0][-1]}; {made}")
    return _retrace(network.name, image_size)


def is_network_file(name: str) -> bool:
    """Whether a network is asked for by a file that describes it."""
    return name.endswith((*IMPORTERS, *MODELS))


def read_network_file(path: Path, image_size: int | None = None, tokens: Tokens | None = None) -> Network:
    """The network that a file describes: a descriptor, a config or network file, Caffe prototxt, ONNX or a program."""
    from pkgutil import resolve_name

    if path.suffix in MODELS:
        model: Network = resolve_name(MODELS[path.suffix])(path, image_size, tokens)
        return model
    data = read_bounded(path)
    if _CONFIG.search(data, 0, _HEAD):
        from .transformers import read_config

        return read_config(data, str(path), image_size, tokens)
    if path.suffix in IMPORTERS and not _DESCRIPTOR.match(data):
        network: Network | None = resolve_name(IMPORTERS[path.suffix])(data, str(path), image_size)
        if network is not None:
            return network
    network = decode_descriptor(data, path)
    return network if network.remade is None or not (tokens and tokens.asked) else network.remade(tokens)


def _retrace(name: str, image_size: int) -> Network:
    """Trace a shipped network at another image size, or take the trace from the cache."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        versions = [version("torch"), version("torchvision")]
    except PackageNotFoundError:
        raise MissingExtra(f"{name} at an image size of {image_size}", "torch") from None
    key = "-".join(part.replace("+", "_") for part in (name, str(image_size), f"f{FORMAT}", f"t{TRACER}", *versions))
    path = cache_folder() / f"{key}.json"
    if path.is_file():
        try:
            return read_descriptor(path)
        except BadDescriptor:  # a damaged cache entry is made again, which costs time only
            path.unlink(missing_ok=True)
    network = trace_named(name, image_size)
    try:
        write_descriptor(network, path)
    except OSError as error:
        return network._replace(notes=(*network.notes, f"the trace could not be cached: {error}"))
    return network


def trace_named(name: str, image_size: int | None = None) -> Network:
    """Build a shipped network with torch and trace it."""
    from .torch_import import import_torchvision

    torchvision = import_torchvision(f"tracing {name}")
    from . import caffe
    from .build import build, torchvision_model
    from .trace import trace

    if name in caffe.NETWORKS:
        module, size, source = build(caffe.NETWORKS[name]), 224, "paleo_lite.architectures.caffe"
    else:
        module, size = torchvision_model(name, image_size)
        source = f"torchvision {torchvision.__version__.partition('+')[0]}"
    side = image_size or size
    return trace(module, (1, 3, side, side), name=name, source=source)


def trace_factory(
    reference: str, inputs: Sequence[str | Sequence[int] | Input], image_size: int | None = None,
    tokens: Tokens | None = None,
) -> Network:  # fmt: skip
    """Trace the module that ``package.module:factory`` makes, or timm's for ``timm:NAME``, with one sample per input.

    A model of timm's has an input of its own, and takes an image size; so has what ``hf:PATH`` describes. The length of
    `tokens` is that of a sequence, of which the inputs say between which two it lies.

    Raises
    ------
    BadValue
        If there are no inputs, or an image size, for another module than timm's.
    """
    given = [read_input(one) for one in inputs]
    if reference.startswith(TIMM):
        return _trace_timm(reference, given, image_size)
    if reference.startswith(HUGGING_FACE):
        from .transformers import read_hugging_face

        return read_hugging_face(reference, given, image_size, tokens)
    if image_size is not None:
        raise BadValue("the image size of a factory's module is that of its input: --input 3x320x320")
    if not given:
        raise BadValue(f"{reference} needs the shape of its inputs: --input 3x224x224")
    from .torch_import import import_torch

    import_torch(f"tracing {reference}")
    from .build import load_factory
    from .lengths import trace_inputs

    length = tokens.length if tokens else None
    return trace_inputs(load_factory(reference), given, length, name=reference, source=reference)


def _trace_timm(reference: str, given: Sequence[Input], image_size: int | None) -> Network:
    from .torch_import import import_torch

    import_torch(f"tracing {reference}")
    from .build import timm_model
    from .lengths import trace_inputs

    module, shape, version = timm_model(reference.removeprefix(TIMM), image_size)
    return trace_inputs(module, given or [Input(shape)], name=reference, source=f"timm {version}")


def all_names() -> Iterator[str]:
    """Every network that can be exported: torchvision's classification models and the Caffe ones."""
    from .build import torchvision_names
    from .caffe import NETWORKS

    yield from torchvision_names()
    yield from NETWORKS


def network_rows(names: Iterable[str]) -> list[dict[str, Any]]:
    """A line for each: name, input shape of one sample, layers, parameters, MACs and FLOPs of inference, source."""
    rows = []
    for name in names:
        network = find_network(name)
        work = count(network.layers)
        rows.append(
            {
                "name": network.name,
                "input_shape": list(network.inputs[0][1:]),
                "layers": len(network.layers),
                "parameters": network.parameters,
                "macs": int(work.column("macs", "inference").sum()),
                "flops": int(work.column("flops", "inference").sum()),
                "source": network.source,
            }
        )
    return rows

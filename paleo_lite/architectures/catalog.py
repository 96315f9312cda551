"""Networks by name: shipped descriptors first; torch only where a descriptor is not sufficient.

Importing this module does not import torch; only tracing does.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from ..errors import BadDescriptor, BadValue, FactoryFailed, MissingExtra, UnknownName
from ..files import (
    NO_SUCH_FILE,
    FileVersion,
    cache_folder,
    discard,
    file_exists,
    is_missing_path,
    shipped_folder,
    version_of,
)
from ..text import letters_and_digits, natural_order
from ..units import check_integer
from .descriptor import FORMAT, TRACER, decode_descriptor, read_bounded, read_descriptor, write_descriptor
from .inputs import Input, read_input
from .locate import (
    GGUF,
    SHARED_CONFIG,
    WEIGHTS,
    find_in_ollama,
    find_release,
    is_ollama_name,
    locate,
    published_release,
    release_names,
)
from .network import MODEL_CARDS, Network, SequenceOptions

IMPORTERS = {
    ".prototxt": "paleo_lite.architectures.prototxt:read_prototxt",
    ".json": "paleo_lite.paleo.network_file:read_paleo_json",
}
"""Readers of network files other than descriptors, by suffix: ``package.module:function``, imported on first use.

A reader takes the file's bytes, its path and an image size (or None) and returns the network, or None where the file
has another format.
"""

MODELS = {
    ".onnx": "paleo_lite.architectures.onnx_file:read_onnx",
    ".pt2": "paleo_lite.architectures.exported:read_exported",
    GGUF: "paleo_lite.architectures.gguf_network:read_gguf",
}
"""Readers of files that contain a model with its weights, by suffix: functions of path, image size and options."""

_TRACED = ("torchvision ", "paleo_lite.architectures.caffe")
"""Sources of the shipped networks that `trace_named` can trace again."""

_CONFIG = re.compile(rb'"(?:model_type|architectures)" *:')
"""Keys of a Hugging Face config, which neither a descriptor nor a PALEO file has."""

_DESCRIPTOR = re.compile(rb'\s*\{\s*"format" *:')

_MAX_IMAGE_SIZE = 2**16
_MACS = re.compile(rb'^"macs": *(\d+)', re.MULTILINE)
_HEAD_BYTES = 2**14

HUGGING_FACE = "hf:"
"""Prefix of the path of a Hugging Face config, or of its folder."""

TIMM = "timm:"
"""Prefix of the name of a timm model."""


def network_names() -> list[str]:
    """Return the names of the shipped networks."""
    return list(_read_names(version_of(shipped_folder("models"))))


@lru_cache(1)
def _read_names(models: FileVersion) -> tuple[str, ...]:
    """Return the names of the networks of a folder in natural order."""
    return tuple(sorted((path.stem for path in models.path.glob("*.json")), key=natural_order))


@lru_cache(1)
def _names_by_normalized_name(models: FileVersion) -> Mapping[str, str]:
    """Return the names of the networks of a folder by their letters and digits."""
    return {letters_and_digits(name): name for name in _read_names(models)}


def networks_with_macs(
    macs: float,  # multiply-accumulates of inference, per sample
    tolerance: float = 0.005,  # largest relative difference
) -> list[str]:
    """Return the shipped networks with about `macs` multiply-accumulates per sample, nearest first.

    Only the heads of the descriptors are read, not their layers.
    """
    candidates = []
    for path in sorted(shipped_folder("models").glob("*.json")):
        with path.open("rb") as file:
            match = _MACS.search(file.read(_HEAD_BYTES))
        if match is None:
            continue
        difference = abs(int(match[1]) - macs)
        if difference <= tolerance * macs:
            candidates.append((difference, len(path.stem), path.stem))
    return [name for _, _, name in sorted(candidates)]


def find_network(
    # ``"resnet50"``, a name in ollama's library (``"llama3.1:8b"``), or a path that ends in ``.json`` (a descriptor, a
    # Hugging Face config, or a PALEO network file), ``.prototxt`` (Caffe), ``.onnx``, ``.pt2`` (written by
    # ``torch.export.save``), ``.gguf`` or ``.safetensors`` (beside its config), a folder with a ``config.json``, or the
    # name of a model on the Hugging Face Hub, such as ``Qwen/Qwen3-8B``, whose config is shipped or in the local cache
    # of the Hub.
    name: str,
    # Height and width of the images. A shipped network is traced again for another size than its descriptor's, which
    # needs torch; the result is cached. PALEO and Caffe files are read with this input size.
    image_size: int | None = None,
    options: SequenceOptions | None = None,  # sequence length, phase and parallelism, for networks that read sequences
) -> Network:
    """Return a shipped network, or the network of a file.

    Raise BadValue if the image size is not a positive integer, or sequence options are given for a network that reads
    no sequences, BadDescriptor if the descriptor is malformed, and UnknownName if no shipped network has this name.
    """
    if image_size is not None:
        check_integer("the image size", image_size, 1, _MAX_IMAGE_SIZE)
    is_file = is_network_file(name)
    path = path_of_network(name) if is_file else _shipped_path(name)
    if is_file:
        network = read_network_file(path, image_size, options)
    else:
        network = _read_shipped(version_of(path), image_size, options)
        release = published_release(name)
        if release is None and letters_and_digits(name) != letters_and_digits(network.name):
            release = published_release(_only_name_that_continues(name) or "")
        if release is not None:
            network = _as_release(network, release)
    if network.lengths is None and options is not None and options.needs_sequences:
        raise BadValue(
            f"{name} does not read sequences: remove --sequence-length and --context, and the phases prefill and decode"
        )
    if image_size is None or network.inputs[0][-2:] == (image_size, image_size):
        return network
    if is_file or not network.source.startswith(_TRACED):
        raise BadDescriptor(
            f"{name}: a descriptor has a fixed image size, here {network.inputs[0][-1]}; make another descriptor from "
            f"its source, {network.source}"
        )
    return _trace_at_image_size(network.name, image_size)


def _as_release(network: Network, release: str) -> Network:
    """Return a shipped network under the repository of a later release with the same config."""
    note = f"{release} {SHARED_CONFIG} {network.name}, under whose name it is answered"
    publication = network.publication
    if publication is not None:
        publication = msgspec.structs.replace(publication, card=MODEL_CARDS + release)
    rebuild = None if network.rebuild is None else _RebuiltRelease(network.rebuild, release)
    return network._replace(publication=publication, notes=(*network.notes, note), rebuild=rebuild)


class _RebuiltRelease(msgspec.Struct, frozen=True):
    """The `Network.rebuild` of a release, equal for equal releases."""

    rebuild: Callable[[SequenceOptions], Network]  # of the network whose config it has
    release: str

    def __call__(self, options: SequenceOptions) -> Network:
        return _as_release(self.rebuild(options), self.release)


CACHED_NETWORKS = 32
"""Number of shipped networks kept in memory: what is counted for the layers of one is cached with them."""


@lru_cache(CACHED_NETWORKS)
def _read_shipped(version: FileVersion, image_size: int | None, options: SequenceOptions | None) -> Network:
    """Return a shipped network."""
    return read_network_file(version.path, image_size, options)


def find_network_name(name: str) -> str:
    """Return the registry's name of a shipped network without reading it; the path of a file is returned unchanged.

    Raise UnknownName if no shipped network has this name.
    """
    return name if is_network_file(name) else _shipped_path(name).stem


def _shipped_path(name: str) -> Path:
    """Return the path of a shipped descriptor; names match in any case, with or without punctuation."""
    folder = shipped_folder("models")
    in_ollama = find_in_ollama(name)
    if in_ollama is not None:
        return folder / f"{in_ollama}.json"
    path = folder / f"{name}.json"
    if "/" not in name and file_exists(path):
        return path
    shipped_name = _names_by_normalized_name(version_of(folder)).get(letters_and_digits(name))
    release = find_release(name) if shipped_name is None else None
    if shipped_name is None and release is None:
        longer = _only_name_that_continues(name)
        if longer is not None:
            return _shipped_path(longer)
    if release is not None:
        return release
    if shipped_name is None:
        if is_missing_path(name):
            raise BadDescriptor(f"{name}: {NO_SUCH_FILE}")
        hint = "'paleo-lite networks list' shows all; others are a `package.module:factory`, or a file such as .onnx."
        if name and file_exists(name, Path.exists):
            hint = f"The file of a network ends in {', '.join((*IMPORTERS, *MODELS))}."
            if Path(name).suffix in WEIGHT_FILES:
                hint = (
                    "Weights do not say how layers are connected: give the module as `package.module:factory`, or a "
                    "file that torch.export.save wrote, .pt2."
                )
        from .pipelines.records import pipelines, pipelines_by_spelling, spelling_of  # imported only for messages

        if spelling_of(name) in pipelines_by_spelling():
            raise BadValue(
                f"{name} is a pipeline of several networks: `layers` answers for one at a time, `diffusion` for several"
            )
        raise UnknownName("network", name, [*network_names(), *release_names(), *pipelines()], hint)
    return folder / f"{shipped_name}.json"


def _only_name_that_continues(name: str) -> str | None:
    """Return the only network or release whose name goes on after a given one, as with the size; None otherwise.

    ``"kimi-linear"`` is ``"kimi-linear-48b-a3b"``, and ``"llama-3"`` may be several.
    """
    start = f"{name.lower()}-"
    longer = [known for known in [*network_names(), *release_names()] if known.startswith(start)]
    return longer[0] if len(longer) == 1 else None


WEIGHT_FILES = {".pt", ".pth", ".ckpt", ".bin"}
"""Endings of files of weights alone."""


def is_factory(name: str) -> bool:
    """Return whether a network is named by a function that makes it, which is called: ``package.module:factory``."""
    return ":" in name and not is_ollama_name(name)


def is_network_file(name: str) -> bool:
    """Return whether a network is named by the path of a file or folder, or is in the local cache of the Hub."""
    return name.endswith((*IMPORTERS, *MODELS, *WEIGHTS)) or locate(name) is not None


def path_of_network(name: str) -> Path:
    """Return the file of a network for which `is_network_file` holds."""
    return locate(name) or Path(name)


def read_network_file(path: Path, image_size: int | None = None, options: SequenceOptions | None = None) -> Network:
    """Read a network file: a descriptor, Hugging Face config, PALEO file, Caffe prototxt, ONNX or exported program."""
    from pkgutil import resolve_name

    if path.suffix in MODELS:
        model: Network = resolve_name(MODELS[path.suffix])(path, image_size, options)
        return model
    data = read_bounded(path)
    if not data.strip():
        raise BadDescriptor(f"{path}: the file is empty")
    if _CONFIG.search(data, 0, _HEAD_BYTES):
        from .model_config import read_config

        return read_config(data, str(path), image_size, options)
    if path.suffix in IMPORTERS and not _DESCRIPTOR.match(data):
        network: Network | None = resolve_name(IMPORTERS[path.suffix])(data, str(path), image_size)
        if network is not None:
            return network
    network = decode_descriptor(data, path)
    if network.rebuild is None or options is None or not options.needs_sequences:
        return network
    return network.rebuild(options)


def _trace_at_image_size(name: str, image_size: int) -> Network:
    """Trace a shipped network at another image size, or read the trace from the cache."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        versions = [version("torch"), version("torchvision")]
    except PackageNotFoundError:
        raise MissingExtra(f"{name} at an image size of {image_size}", "torch") from None
    parts = [name, str(image_size), f"f{FORMAT}", f"t{TRACER}", *versions]
    key = "-".join(part.replace("+", "_") for part in parts)
    path = cache_folder() / f"{key}.json"
    if path.is_file():
        try:
            return read_descriptor(path)
        except BadDescriptor:  # a damaged cache entry is traced again
            discard(path)
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
    from .build import build_module, torchvision_model
    from .trace import trace

    if name in caffe.NETWORKS:
        module = build_module(caffe.NETWORKS[name])
        default_size = 224
        source = "paleo_lite.architectures.caffe"
    else:
        module, default_size = torchvision_model(name, image_size)
        source = f"torchvision {torchvision.__version__.partition('+')[0]}"
    size = image_size or default_size
    return trace(module, (1, 3, size, size), name=name, source=source)


def trace_factory(
    reference: str,  # ``package.module:factory``, ``timm:NAME`` (a timm model) or ``hf:PATH`` (a Hugging Face config)
    # Inputs of the module. timm models and Hugging Face configs have default inputs.
    inputs: Sequence[str | Sequence[int] | Input],
    image_size: int | None = None,  # height and width of the images, for timm models and Hugging Face configs
    # Its length is the sequence length, for inputs with a range of sequence lengths.
    options: SequenceOptions | None = None,
) -> Network:
    """Build a module and trace it with one sample per input.

    Raise BadValue if a factory has no inputs, or is given an image size.
    """
    parsed_inputs = [read_input(item) for item in inputs]
    if reference.startswith(TIMM):
        return _trace_timm(reference, parsed_inputs, image_size)
    if reference.startswith(HUGGING_FACE):
        from .hugging_face import read_hugging_face

        return read_hugging_face(reference, parsed_inputs, image_size, options)
    if image_size is not None:
        raise BadValue("give the image size of a factory's module with its input, as in --input 3x320x320")
    if not parsed_inputs:
        raise BadValue(f"{reference} needs the shape of its inputs: --input 3x224x224")
    from .torch_import import import_torch

    import_torch(f"tracing {reference}")
    from .build import load_factory
    from .sequence_lengths import trace_inputs

    length = options.length if options else None
    return trace_inputs(load_factory(reference), parsed_inputs, length, name=reference, source=reference)


def _trace_timm(reference: str, inputs: Sequence[Input], image_size: int | None) -> Network:
    from .torch_import import import_torch

    if "timm" not in sys.modules and importlib.util.find_spec("timm") is None:
        raise FactoryFailed(f"{reference} needs timm: pip install timm")
    import_torch(f"tracing {reference}")
    from .build import timm_model
    from .sequence_lengths import trace_inputs

    module, shape, version = timm_model(reference.removeprefix(TIMM), image_size)
    return trace_inputs(module, inputs or [Input(shape)], name=reference, source=f"timm {version}")


def exportable_names() -> Iterator[str]:
    """Iterate over the names of all networks with an exportable descriptor: torchvision's and the Caffe ones."""
    from .build import torchvision_names
    from .caffe import NETWORKS

    yield from torchvision_names()
    yield from NETWORKS

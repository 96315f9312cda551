"""Pipelines of folders as ``diffusers`` saves them: a ``model_index.json``, and a folder with a config for each part.

The class of the pipeline says which shipped pipeline it is like, and therefore how often each part runs and how it is
called; its networks are those of the configs, traced by the installed ``diffusers`` in a process of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ...errors import BadDescriptor
from ...files import file_exists
from ..descriptor import read_bounded
from ..network import Network, SequenceOptions
from .configs import CONFIGS
from .records import Part, Pipeline, pipelines

INDEX = "model_index.json"

_DENOISERS = ("transformer", "unet")
_DECODERS = ("vae", "vqvae")
_SECOND_DENOISER = "transformer_2"

TEXT_ENCODERS = {
    "BertModel",
    "CLIPTextModel",
    "CLIPTextModelWithProjection",
    "MT5EncoderModel",
    "T5EncoderModel",
    "UMT5EncoderModel",
}
"""Classes of text encoders that are traced; any other is read as a language model."""


def is_pipeline_folder(name: str) -> bool:
    """Return whether a name is that of a folder with a pipeline, or of its ``model_index.json``."""
    return _index_of(name) is not None


def _index_of(name: str) -> Path | None:
    if name.endswith(INDEX):
        return Path(name) if file_exists(name) else None
    return Path(name) / INDEX if name and file_exists(Path(name) / INDEX) else None


def read_pipeline_folder(name: str) -> Pipeline:
    """Return the pipeline of a folder.

    Raise BadDescriptor if the index or a config is malformed, or the class of the pipeline or of a part is not known.
    """
    index = _index_of(name)
    if index is None:
        raise BadDescriptor(f"{name}: there is no {INDEX} in the folder")
    classes = _read_index(index)
    template = _template(index, str(classes.pop("_class_name", "")))
    components = {key: value[1] for key, value in classes.items() if _is_component(value)}
    folder = index.parent
    encoders = [part for part in template.encoders if part.component in components]
    denoiser = next((key for key in _DENOISERS if key in components), None)
    decoder = next((key for key in _DECODERS if key in components), None)
    if denoiser is None or decoder is None:
        raise BadDescriptor(f"{index}: a pipeline needs a {' or '.join(_DENOISERS)} and a vae")
    replace = msgspec.structs.replace
    read = [_part_of(part, folder, part.component, components[part.component]) for part in encoders]
    denoised = _part_of(template.denoiser, folder, denoiser, components[denoiser])
    denoised = replace(denoised, copies=2 if _SECOND_DENOISER in components else 1)
    decoded = tuple(_part_of(part, folder, decoder, components[decoder]) for part in template.decoders)
    size = None if template.is_video else _sample_size(folder / denoiser / "config.json", decoded[0].grid)
    return replace(
        template,
        name=folder.resolve().name or template.name,
        card=str(folder),
        size=size or template.size,
        encoders=tuple(read),
        denoiser=denoised,
        decoders=decoded,
    )


def _read_index(path: Path) -> dict[str, Any]:
    fields = _decode(path)
    if not isinstance(fields.get("_class_name"), str):
        raise BadDescriptor(f"{path}: $._class_name must be the name of a pipeline of diffusers")
    return fields


def _decode(path: Path) -> dict[str, Any]:
    if not file_exists(path):
        raise BadDescriptor(f"{path}: there is no such file")
    try:
        return msgspec.json.decode(read_bounded(path), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise BadDescriptor(f"{path}: not a JSON object ({error})") from None


def _is_component(value: object) -> bool:
    """Return whether an entry of the index is a part: its library and its class, which are null for no part."""
    return isinstance(value, list) and len(value) == 2 and all(isinstance(item, str) for item in value)


def _template(index: Path, class_name: str) -> Pipeline:
    """Return the shipped pipeline of a class."""
    by_class = {record.class_name: record for record in pipelines().values() if record.class_name}
    if class_name not in by_class:
        known_classes = ", ".join(sorted(by_class))
        raise BadDescriptor(f"{index}: pipelines of the class {class_name!r} are not known; known are {known_classes}")
    return by_class[class_name]


def _part_of(part: Part, folder: Path, component: str, class_name: str) -> Part:
    """Return a part with the network of a component of a folder."""
    config = folder / component / "config.json"
    if not file_exists(config):
        raise BadDescriptor(f"{config}: there is no config of the {component}, which {INDEX} names")
    module = CONFIGS[part.descriptor][0] if part.descriptor in CONFIGS else ""
    if module.partition(":")[0] != class_name:
        if part.role != "text encoder":
            known_class = module.partition(":")[0]
            raise BadDescriptor(
                f"{folder / INDEX}: the {component} is a {class_name}; only {known_class} is known there"
            )
        module = class_name if class_name in TEXT_ENCODERS else ""
    grid = part.grid
    if class_name == "AutoencoderKL":
        channels = _decode(config).get("block_out_channels")
        if not isinstance(channels, list) or not 1 <= len(channels) <= 8:
            raise BadDescriptor(f"{config}: $.block_out_channels must be a list of 1 to 8 numbers")
        grid = 2 ** (len(channels) - 1)
    return msgspec.structs.replace(part, descriptor=component, config=str(config), module=module, grid=grid)


def _sample_size(config: Path, pixels: int) -> tuple[int, int] | None:
    """Return the size of the pictures for which a denoiser is made; None if its config does not say."""
    size = _decode(config).get("sample_size")
    return (size * pixels, size * pixels) if type(size) is int and 1 <= size <= 2**12 else None


def read_part_of_folder(part: Part, sizes: tuple[tuple[str, int], ...]) -> Network:
    """Return the network of a part of a folder at some sizes.

    Raise BadDescriptor, FactoryFailed, TraceFailed, MissingExtra if the config is malformed, or the libraries cannot
    build or trace the module.
    """
    path = Path(part.config)
    if not part.module:  # a language model
        from ..catalog import read_network_file

        return read_network_file(path, options=SequenceOptions(dict(sizes)["t"]))
    from ..trace_process import trace_module

    return trace_module(read_bounded(path), str(path), part.module, dict(sizes), path.parent.name)

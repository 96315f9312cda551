"""Descriptors of the parts of pipelines, traced at a few sizes."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import torch

from ...errors import BadDescriptor, MissingExtra, TraceFailed, UnknownName
from ..descriptor import write_free_descriptor
from ..network import Network
from ..remote_code import remote_code_forbidden, without_code
from ..torch_import import import_torchvision
from ..trace import trace
from .modules import MODULES


def build_module(class_name: str, config: Mapping[str, Any]) -> Any:
    """Build a module of a pipeline on the meta device.

    Raise UnknownName if the class is not known, and MissingExtra if its library is not installed.
    """
    if class_name not in MODULES:
        raise UnknownName("module of a pipeline", class_name, MODULES)
    modules = MODULES[class_name]
    try:
        import_torchvision()  # the libraries import it, also next to a CPU build of torch
        library = import_module(modules.library)
    except ImportError:
        raise MissingExtra(f"tracing a {class_name}", "diffusers") from None
    class_name = class_name.partition(":")[0]
    with remote_code_forbidden(), torch.device("meta"):
        if modules.library == "transformers":
            module_class = getattr(library, class_name)
            module = module_class(module_class.config_class(**config))
        else:
            module = getattr(library, class_name).from_config(dict(config))
    module = _in_16_bits(module)
    return module if modules.prepare is None else modules.prepare(module)


def _in_16_bits(module: Any) -> Any:
    """Convert a module to bf16, except for the parts that its class keeps in fp32, as loading it in bf16 does."""
    fp32_parts = getattr(module, "_keep_in_fp32_modules", None) or ()
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        is_kept = any(part in name.split(".") for part in fp32_parts)
        if tensor.dtype == torch.float32 and not is_kept:
            tensor.data = tensor.data.to(torch.bfloat16)
    return module


FP32_INPUTS = ("image_rotary_emb",)
"""Arguments that the pipelines of diffusers pass in fp32."""


def _as_tensors(value: Any, dtype: torch.dtype) -> Any:
    """Return nested shapes as tensors on the meta device."""
    if isinstance(value, dict):
        return {key: _as_tensors(item, dtype) for key, item in value.items()}
    if isinstance(value, tuple) and value and all(isinstance(size, int) for size in value):
        return torch.empty(value, dtype=dtype, device="meta")
    if isinstance(value, (tuple, list)):
        return type(value)(_as_tensors(item, dtype) for item in value)
    return value


def trace_part(class_name: str, config: Mapping[str, Any], sizes: Mapping[str, int], name: str) -> Network:
    """Trace a module of a pipeline at one size."""
    module = build_module(class_name, config)
    modules = MODULES[class_name]
    library = import_module(modules.library)
    source = f"{modules.library} {library.__version__}"
    arguments = {
        key: _as_tensors(value, torch.float32 if key in FP32_INPUTS else torch.bfloat16)
        for key, value in modules.inputs(module, config, sizes).items()
    }
    by_position, by_name = divide_arguments(arguments)
    return trace(module, *by_position, name=name, source=source, **by_name)


def trace_config_of_part(data: bytes, path: str, class_name: str, sizes: Mapping[str, int], name: str) -> Network:
    """Trace the module of a config in the folder of a pipeline.

    Raise BadDescriptor if the config is no JSON object.
    """
    try:
        fields = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise BadDescriptor(f"{path}: not a JSON object ({error})") from None
    config = {key: value for key, value in without_code(fields).items() if not key.startswith("_")}
    return trace_part(class_name, config, sizes, name)


def divide_arguments(arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Divide the arguments of `modules.Inputs` into those by position and those by name.

    Where ``""`` has arguments by position, the first of the others precedes them.
    """
    by_name = dict(arguments)
    further = by_name.pop("", [])
    if not further:
        return [], by_name
    first = by_name.pop(next(iter(by_name)))
    return [first, *further], by_name


def write_part(name: str, class_name: str, config: Mapping[str, Any], path: Path) -> None:
    """Trace a module at a few values of its free sizes, and write its descriptor.

    Raise TraceFailed if the layers differ between sizes.
    """
    basis = MODULES[class_name].basis
    # Each trace has a module of its own, as some keep tables of earlier sizes.
    samples = [trace_part(class_name, config, sizes, name) for sizes in basis.samples]
    for sample in samples[1:]:
        for layer, other in zip(samples[0].layers, sample.layers):
            if (layer.name, layer.kind, layer.parents) != (other.name, other.kind, other.parents):
                raise TraceFailed(f"{name}: the layers {layer.name} and {other.name} differ between two sizes")
        if len(sample.layers) != len(samples[0].layers):
            raise TraceFailed(f"{name}: the number of layers depends on the size")
    write_free_descriptor([_with_widths_of(sample, samples[-1]) for sample in samples], basis, path)


DEPENDING_ON_SIZE = ("upcast", "scales")
"""Attributes that the trace of a small picture may mistake."""


def _with_widths_of(network: Network, largest: Network) -> Network:
    """Return a network with the widths of the layers, and whether they grow with the batch, of the trace at the largest
    size.

    In small pictures an operand that is broadcast may be as large as the others.
    """
    layers = []
    for layer, other in zip(network.layers, largest.layers):
        attributes = {key: value for key, value in layer.attributes.items() if key not in DEPENDING_ON_SIZE}
        attributes |= {key: value for key, value in other.attributes.items() if key in DEPENDING_ON_SIZE}
        layers.append(layer._replace(attributes=attributes))
    return network._replace(layers=tuple(layers))

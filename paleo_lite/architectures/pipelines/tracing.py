"""Descriptors of the parts of pipelines, traced at a few sizes."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ...errors import MissingExtra, TraceFailed, UnknownName
from ..descriptor import write_free_descriptor
from ..free_sizes import combinations
from ..network import Network
from ..trace import trace
from .modules import MODULES


def build_module(class_name: str, config: Mapping[str, Any]) -> Any:
    """Build a module of a pipeline on the meta device.

    Raises
    ------
    UnknownName
        If the class is not known.
    MissingExtra
        If its library is not installed.
    """
    if class_name not in MODULES:
        raise UnknownName("module of a pipeline", class_name, MODULES)
    modules = MODULES[class_name]
    try:
        library = import_module(modules.library)
    except ImportError:
        raise MissingExtra(f"tracing a {class_name}", modules.library) from None
    class_name = class_name.partition(":")[0]
    with torch.device("meta"):
        if modules.library == "transformers":
            module_class = getattr(library, class_name)
            module = module_class(module_class.config_class(**config))
        else:
            module = getattr(library, class_name)(**config)
    return module if modules.prepare is None else modules.prepare(module)


def trace_part(class_name: str, config: Mapping[str, Any], sizes: Mapping[str, int], name: str) -> Network:
    """Trace a module of a pipeline at one size."""
    module = build_module(class_name, config)
    return trace_at(module, class_name, config, sizes, name)


def trace_at(module: Any, class_name: str, config: Mapping[str, Any], sizes: Mapping[str, int], name: str) -> Network:
    """Trace a built module at one size."""
    modules = MODULES[class_name]
    library = import_module(modules.library)
    source = f"{modules.library} {library.__version__}"
    arguments = modules.inputs(module, config, sizes)
    return trace(module, *positional(arguments), name=name, source=source, **arguments)


def positional(arguments: dict[str, Any]) -> list[Any]:
    """Remove positional arguments from those by name and return them, with the first named one before them."""
    further = arguments.pop("", [])
    return [arguments.pop(next(iter(arguments))), *further] if further else []


def write_part(name: str, class_name: str, config: Mapping[str, Any], path: Path) -> None:
    """Trace a module at the nodes of its free sizes, and write its descriptor.

    Raises
    ------
    TraceFailed
        If the layers differ between sizes.
    """
    module, nodes = build_module(class_name, config), MODULES[class_name].nodes
    samples = [trace_at(module, class_name, config, sizes, name) for sizes in combinations(nodes)]
    for sample in samples[1:]:
        for one, other in zip(samples[0].layers, sample.layers):
            if (one.name, one.kind, one.parents) != (other.name, other.kind, other.parents):
                raise TraceFailed(f"{name}: the layers {one.name} and {other.name} differ between two sizes")
        if len(sample.layers) != len(samples[0].layers):
            raise TraceFailed(f"{name}: the number of layers depends on the size")
    write_free_descriptor(samples, nodes, path)

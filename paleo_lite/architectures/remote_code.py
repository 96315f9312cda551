"""Configs that name code: the names are removed, and the libraries are kept from importing any."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

CODE_KEYS = ("auto_map", "custom_pipelines", "custom_pipeline", "trust_remote_code", "custom_object_save_parameters")
"""Keys of configs by which transformers and diffusers find Python files, or are allowed to import them."""

IMPLEMENTATION_KEYS = (
    "_attn_implementation", "attn_implementation", "_attn_implementation_internal", "_experts_implementation",
    "experts_implementation", "_experts_implementation_internal",
)  # fmt: skip
"""Keys that name an implementation, which may be a repository of kernels: ``kernels-community/flash-attn``."""

FORBIDDEN = {
    "transformers.dynamic_module_utils": (
        "get_class_from_dynamic_module", "get_class_in_module", "get_cached_module_file", "resolve_trust_remote_code",
    ),
    "transformers.integrations.hub_kernels": ("get_kernel", "load_and_register_attn_kernel", "lazy_load_kernel"),
    "diffusers.utils.dynamic_modules_utils": (
        "get_class_from_dynamic_module", "get_class_in_module", "get_cached_module_file",
    ),
}  # fmt: skip
"""Functions of the libraries that ask for permission to import code from a repository or a folder, or import it."""


def without_code(value: Any) -> Any:
    """Return a config, at any depth, without the keys that name code or a repository of kernels."""
    if isinstance(value, list):
        return [without_code(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: without_code(item) for key, item in value.items() if not _names_code(key, item)}


def _names_code(key: str, value: Any) -> bool:
    if key in CODE_KEYS:
        return True
    return key in IMPLEMENTATION_KEYS and not (isinstance(value, str) and value.isidentifier())


@contextmanager
def remote_code_forbidden() -> Iterator[None]:
    """Keep the libraries from importing code that a config names, within a ``with`` block.

    Other modules import the functions by name, so their code is replaced rather than the names, and put back at the
    end: the process may be the user's. A config with ``auto_map`` that reaches one of them ends in an error, and no
    question is asked on standard input.
    """
    replaced = [(function, function.__code__) for function in _importing_functions()]
    try:
        for function, _ in replaced:
            function.__code__ = _refuse.__code__
        yield
    finally:
        for function, code in replaced:
            function.__code__ = code


def _importing_functions() -> list[FunctionType]:
    """Return those functions of `FORBIDDEN` that the imported libraries have."""
    functions = []
    for module, names in FORBIDDEN.items():
        if module.partition(".")[0] not in sys.modules:
            continue
        try:
            loaded = importlib.import_module(module)
        except ImportError:  # another version of the library, without this module
            continue
        functions += [function for name in names if isinstance(function := getattr(loaded, name, None), FunctionType)]
    return functions


def _refuse(*arguments: Any, **named: Any) -> Any:
    """Raise an error in place of a function that imports code."""
    raise ValueError("the config names code of its own, which is not run")

"""Exported programs (``.pt2``): what ``torch.export.save`` wrote, traced with the inputs that it was exported with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from ..errors import BadDescriptor, BadValue, TraceFailed
from .network import Network, Tokens
from .torch_import import import_torch

_TENSORS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


def read_exported(path: Path, image_size: int | None = None, tokens: Tokens | None = None) -> Network:
    """The network of an exported program.

    Raises
    ------
    BadDescriptor
        If it is none, or holds what is not a tensor.
    BadValue
        If another size is asked for than it was exported with.
    """
    torch = import_torch(f"reading {path}")
    if image_size is not None or (tokens is not None and tokens.asked):
        raise BadValue(f"{path}: a program has the sizes that it was exported with: leave other sizes out")
    try:
        if not is_zipfile(path):
            raise BadDescriptor(f"{path}: not an exported program, which torch.export.save writes")
        with _no_pickles():
            program = torch.export.load(str(path))
    except OSError as error:
        raise BadDescriptor(f"{path}: cannot be read ({error.strerror})") from None
    except BadDescriptor:
        raise
    except Exception as error:  # zip, pickle and schema errors of torch's loader
        raise BadDescriptor(f"{path}: not an exported program ({type(error).__name__}: {_short(error)})") from None
    if not program.example_inputs:
        raise BadDescriptor(f"{path}: exported without example inputs, which say what it is called with")
    from .trace import trace

    args, kwargs = program.example_inputs
    names = {"name": path.stem, "source": "torch.export"}
    rows = next((value.shape[0] for value in (*args, *kwargs.values()) if _is_batch(value)), 1)

    def one(value: Any) -> Any:
        return value[:1] if _is_batch(value) and value.shape[0] == rows else value

    module = program.module()
    if rows > 1:
        try:
            return trace(module, *map(one, args), **names, **{key: one(value) for key, value in kwargs.items()})
        except TraceFailed:  # exported for that many samples and no other
            traced = trace(module, *args, **names, **kwargs)
            return traced._replace(notes=(*traced.notes, f"exported for {rows} samples: a sample here is all of them"))
    return trace(module, *args, **names, **kwargs)


@contextmanager
def _no_pickles() -> Iterator[None]:
    """torch's loader unpickles what it cannot read as tensors, and runs code of the file; its switch forbids it."""
    before = os.environ.get(_TENSORS_ONLY)
    os.environ[_TENSORS_ONLY] = "1"
    try:
        yield
    finally:
        del os.environ[_TENSORS_ONLY]
        if before is not None:
            os.environ[_TENSORS_ONLY] = before


def _is_batch(value: Any) -> bool:
    return bool(getattr(value, "shape", ()))


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]

"""Exported programs (``.pt2`` files of ``torch.export.save``), traced with their example inputs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from ..errors import BadDescriptor, BadValue, TraceFailed
from ..files import check_regular
from .network import Network, SequenceOptions
from .torch_import import import_torch

_TENSORS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


def read_exported(
    path: Path,  # the ``.pt2`` file
    # Not supported: the sizes of a program are fixed.
    image_size: int | None = None,
    options: SequenceOptions | None = None,
) -> Network:
    """Read the network of an exported program.

    Raise BadDescriptor if the file is not an exported program, or contains objects other than tensors, and BadValue if
    an image size or sequence options are given.
    """
    torch = import_torch(f"reading {path}")
    if image_size is not None or (options is not None and options.needs_sequences):
        raise BadValue(f"{path}: the sizes of an exported program are fixed: remove image size and sequence options")
    try:
        check_regular(path, BadDescriptor)
        if not is_zipfile(path):
            raise BadDescriptor(f"{path}: not an exported program, which torch.export.save writes")
        with _tensors_only():
            program = torch.export.load(str(path))
    except OSError as error:
        raise BadDescriptor(f"{path}: cannot be read ({error.strerror})") from None
    except BadDescriptor:
        raise
    except Exception as error:  # zip, pickle and schema errors of torch's loader
        raise BadDescriptor(f"{path}: not an exported program ({type(error).__name__}: {_short(error)})") from None
    if not program.example_inputs:
        raise BadDescriptor(f"{path}: exported without example inputs, which are needed to trace it")
    from .trace import trace

    args, kwargs = program.example_inputs
    labels = {"name": path.stem, "source": "torch.export"}
    samples = 1
    for value in (*args, *kwargs.values()):
        if _has_batch_dimension(value):
            samples = value.shape[0]
            break

    def first_sample(value: Any) -> Any:
        return value[:1] if _has_batch_dimension(value) and value.shape[0] == samples else value

    module = program.module()
    if samples <= 1:
        return trace(module, *args, **labels, **kwargs)
    try:
        first_args = [first_sample(value) for value in args]
        first_kwargs = {key: first_sample(value) for key, value in kwargs.items()}
        return trace(module, *first_args, **labels, **first_kwargs)
    except TraceFailed:  # exported for exactly this number of samples
        network = trace(module, *args, **labels, **kwargs)
        note = f"exported for {samples} samples, which are counted as one sample"
        return network._replace(notes=(*network.notes, note))


@contextmanager
def _tensors_only() -> Iterator[None]:
    """Forbid unpickling: torch's loader would otherwise unpickle unknown entries and run code from the file."""
    before = os.environ.get(_TENSORS_ONLY)
    os.environ[_TENSORS_ONLY] = "1"
    try:
        yield
    finally:
        del os.environ[_TENSORS_ONLY]
        if before is not None:
            os.environ[_TENSORS_ONLY] = before


def _has_batch_dimension(value: Any) -> bool:
    return bool(getattr(value, "shape", ()))


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]

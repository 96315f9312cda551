"""Types of arguments that several public functions take, and their conversion."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A path, or a sequence of paths."""

InputShapes = Sequence[str | Sequence[int]]
"""Shape of one sample for each input of a network: ``(3, 224, 224)``, ``"int64:128"`` or ``"input_ids=int64:128"``."""

_OPTION_NAMES = {
    "inputs": "--input",
    "hardware_files": "--hardware-file",
    "training": "--optimizer",
    "policy": "--engine",
    "lora_rank": "--lora",
    "overlap": "--communication overlap",
    "bucket_bytes": "--communication bucket",
}
"""Command-line options whose name differs from that of the Python argument."""


def to_paths(paths: Paths) -> list[Path]:
    """Convert a path or a sequence of paths to a list of `Path`."""
    if isinstance(paths, (str, os.PathLike)):
        return [Path(paths)]
    return [Path(path) for path in paths]


def option_name(argument: str) -> str:
    """Return the command-line option of an argument of the Python function, such as ``--batch-size``."""
    if argument in _OPTION_NAMES:
        return _OPTION_NAMES[argument]
    return f"--{argument.replace('_', '-')}"

"""What the rows of a sweep depend on, as hashes: an interrupted sweep is resumed only if none of it has changed."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..architectures.catalog import is_network_file, path_of_network
from ..architectures.pipelines.sampling import find_pipeline
from ..files import check_regular, shipped_folder
from ..version import __version__

COMBINATIONS = "the combinations"
"""Name of the hash of the question itself, among those of what it is answered from."""

SHIPPED = ("models", "hardware", "calibrations")
"""Folders of shipped data."""

LIBRARIES = ("torch", "torchvision", "transformers", "diffusers", "timm", "onnx")
"""Libraries that build or read networks, whose versions may change their layers."""

HEAD_BYTES = 2**26
"""Bytes of a file that are hashed: all of a config, the header of a file of weights."""


def shared_inputs() -> dict[str, str]:
    """Return hashes of what every sweep depends on: this version, the shipped data, and the libraries."""
    hashes = {"the version of paleo-lite": __version__}
    for name in SHIPPED:
        folder = shipped_folder(name)
        hashes[f"the shipped {name}"] = _hash_of_folder(folder, _stamps_in(folder))
    for library in LIBRARIES:
        try:
            hashes[f"the version of {library}"] = version(library)
        except PackageNotFoundError:
            hashes[f"the version of {library}"] = "none"
    return hashes


def _stamps_in(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Return the path below a folder, the time of the last change and the size of each file in it, in order."""
    paths = sorted(os.path.join(root, name) for root, _, names in os.walk(folder) for name in names)  # noqa: PTH118
    stamps = ((path, os.stat(path)) for path in paths)  # noqa: PTH116
    start = len(str(folder)) + 1
    return tuple((path[start:], status.st_mtime_ns, status.st_size) for path, status in stamps)


@lru_cache(2 * len(SHIPPED))
def _hash_of_folder(folder: Path, stamps: tuple[tuple[str, int, int], ...]) -> str:
    """Return a hash of the names and contents of files, which are read again once one of them has changed."""
    digest = hashlib.sha256()
    for name, _, _ in stamps:
        digest.update(f"{name}\0".encode() + (folder / name).read_bytes() + b"\0")
    return digest.hexdigest()


def files_of_network(name: str) -> list[Path]:
    """Return the files that a network or pipeline named by a path is read from; none of a shipped one.

    Of a folder these are its files of weights, its JSON files and those of its parts; of a config and of a file of
    weights the JSON files beside them, and the further parts of the weights.
    """
    reference = name.removeprefix("hf:")
    is_folder_of_pipeline = find_pipeline(name) is not None and Path(name).exists()
    if not (name.startswith("hf:") or is_network_file(name) or is_folder_of_pipeline):
        return []
    path = Path(reference) if Path(reference).exists() else path_of_network(reference)
    if path.is_dir():
        patterns = ["*.json", "*/*.json", "*.gguf", "*.safetensors"]
        return sorted(file for pattern in patterns for file in path.glob(pattern) if file.is_file())
    patterns = []
    if path.name == "config.json" or path.suffix in _WEIGHTS:
        patterns.append("*.json")
    if path.suffix in _WEIGHTS:
        patterns.append(f"*{path.suffix}")
    beside = {file for pattern in patterns for file in path.parent.glob(pattern) if file.is_file()}
    return sorted({path, *beside})


_WEIGHTS = (".gguf", ".safetensors")


def hash_of_file(path: Path) -> str:
    """Return a hash of a file: of its first bytes, its size, and of a longer one the time of its last change.

    Raise OSError if it cannot be read, and BadFile if it is not a regular file.
    """
    check_regular(path)
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    status = path.stat()
    digest = hashlib.sha256(head)
    digest.update(str(status.st_size).encode())
    if status.st_size > HEAD_BYTES:
        digest.update(str(status.st_mtime_ns).encode())
    return digest.hexdigest()

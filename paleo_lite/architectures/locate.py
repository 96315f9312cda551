"""Find the config of a model by its folder, its weights or its name on the Hugging Face Hub; nothing is downloaded."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import BadDescriptor
from ..files import NO_SUCH_FILE, file_exists, shipped_folder
from .releases import find_release

GGUF = ".gguf"
"""Suffix of the files of llama.cpp, whose headers describe the model."""

WEIGHTS = (".safetensors", ".safetensors.index.json")
"""Suffixes of files with weights, or of their index, which lie beside the config."""

_CONFIG = "config.json"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w][\w.-]*")
_REVISION = re.compile(r"[\w.-]+")


def locate(
    # A folder with a ``config.json``, a ``.safetensors`` file or its index, a ``.gguf`` file, or ``ORG/NAME``.
    name: str,
) -> Path | None:
    """Return the file that describes a model; None for the names of shipped networks and for other files.

    Raise BadDescriptor if there is no config in the place that the name states.
    """
    if name.endswith(GGUF):
        return Path(name)
    if name.endswith(WEIGHTS):
        return _beside_weights(Path(name))
    is_shipped = "/" not in name and file_exists(shipped_folder("models") / f"{name}.json")
    if name and not is_shipped and file_exists(name, Path.is_dir):
        return _config_in_folder(Path(name))
    if not _HUB_NAME.fullmatch(name) or file_exists(name, Path.exists) or Path(name).suffix in _OTHER_FILES:
        return None
    return None if find_release(name) else _config_in_cache(name)


_OTHER_FILES = (".json", ".prototxt", ".onnx", ".pt2", ".py", ".pt", ".bin")
"""Suffixes of files, which are never part of a name on the Hub."""


def _beside_weights(path: Path) -> Path:
    if not file_exists(path):
        raise BadDescriptor(f"{path}: {NO_SUCH_FILE}")
    config = path.parent / _CONFIG
    if not file_exists(config):
        raise BadDescriptor(f"{path}: the weights need the {_CONFIG} of the model beside them")
    return config


def _config_in_folder(folder: Path) -> Path:
    """Return the config of a folder, or its only GGUF file."""
    if file_exists(folder / _CONFIG):
        return folder / _CONFIG
    files = sorted(file for file in folder.glob(f"*{GGUF}") if file_exists(file))
    if len(files) == 1:
        return files[0]
    if files:
        raise BadDescriptor(f"{folder}: {len(files)} {GGUF} files and no {_CONFIG}; name one of the files")
    raise BadDescriptor(f"{folder}: neither a {_CONFIG} nor a {GGUF} file is in the folder")


def hub_cache() -> Path:
    """Return the folder in which ``huggingface_hub`` keeps downloaded files.

    Its rules: ``HF_HUB_CACHE``, or ``hub`` in ``HF_HOME``, or in ``huggingface`` in the folder of caches
    (https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables).
    """
    if os.environ.get("HF_HUB_CACHE"):
        return Path(os.environ["HF_HUB_CACHE"]).expanduser()
    if os.environ.get("HF_HOME"):
        return Path(os.environ["HF_HOME"]).expanduser() / "hub"
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(caches).expanduser() / "huggingface" / "hub"


def _config_in_cache(name: str) -> Path:
    """Return the config of a repository in the local cache, of its main revision."""
    repository = hub_cache() / f"models--{name.replace('/', '--')}"
    snapshot = _main_snapshot(repository)
    if snapshot is not None and file_exists(snapshot / _CONFIG):
        return snapshot / _CONFIG
    raise BadDescriptor(
        f"{name} is neither a shipped network nor in the local cache of the Hugging Face Hub ({hub_cache()}), and "
        f"nothing is downloaded: get its config with `hf download {name} {_CONFIG}`, or give the path of its {_CONFIG}"
    )


def cached_name(config: Path) -> str | None:
    """Return the name of a repository's model by the path of its config in the cache; None for other paths."""
    repository = config.parts[-4] if len(config.parts) >= 4 and config.parts[-3] == "snapshots" else ""
    return repository.split("--")[-1] if repository.startswith("models--") else None


def _main_snapshot(repository: Path) -> Path | None:
    """Return the folder of the main revision; the only one where the cache does not say which it is."""
    reference = repository / "refs" / "main"
    if file_exists(reference):
        revision = reference.read_text(encoding="utf-8", errors="replace").strip()
        return repository / "snapshots" / revision if _REVISION.fullmatch(revision) else None
    snapshots = list((repository / "snapshots").glob("*"))
    return snapshots[0] if len(snapshots) == 1 else None

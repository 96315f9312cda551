"""Find a network by a name from elsewhere: a folder, weights, the Hugging Face Hub, or ollama; nothing is downloaded.

A release on the Hub has the shape of a shipped network and other weights, which change neither its layers nor its
answers. It is named as on the Hub, with its organisation (``zai-org/GLM-4.7``) or without (``glm-4.7``). What its name
says of how the weights were tuned (``-Instruct``, ``-it``, ``-2507``) is left out before it is compared. For other
names, the config is looked for in the local cache of the Hub.

In ollama's library (https://ollama.com/library) a network is a model and a tag, ``llama3.1:70b``. A tag such as ``8b``
names a size; a tag may also name how the weights are fine-tuned, which does not change the network, and how they are
quantized, which the options of a prediction say.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from ..errors import BadDescriptor, BadValue
from ..files import NO_SUCH_FILE, FileVersion, file_exists, shipped_folder, version_of

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
    stored = _quantized_release(name)
    alike = "" if stored is None else f", or ask {stored.question}"
    raise BadDescriptor(
        f"{name} is neither a shipped network nor in the local cache of the Hugging Face Hub ({hub_cache()}), and "
        f"nothing is downloaded: get its config with `hf download {name} {_CONFIG}`, or give the path of its {_CONFIG}"
        f"{alike}"
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


RELEASES = MappingProxyType(
    {
        "deepseek-ai/DeepSeek-V3.1-Terminus": "deepseek-v3.1",
        "deepseek-ai/DeepSeek-V3.2-Exp": "deepseek-v3.2",
        "deepseek-ai/DeepSeek-V3.2-Speciale": "deepseek-v3.2",
        "inclusionAI/Ling-1T": "ring-1t",
        "MiniMaxAI/MiniMax-M2.1": "minimax-m2.5",
        "MiniMaxAI/MiniMax-M2.7": "minimax-m2.5",
        "moonshotai/Kimi-K2.6": "kimi-k2.5",
        "moonshotai/Kimi-K2.7-Code": "kimi-k2.5",
        "Qwen/Qwen3-Coder-30B-A3B-Instruct": "qwen3-30b-a3b",
        "Qwen/Qwen3-Coder-Next": "qwen3-next-80b-a3b",
        "Qwen/Qwen3.6-27B": "qwen3.5-27b",
        "Qwen/Qwen3.6-35B-A3B": "qwen3.5-35b-a3b",
        "Qwen/Qwen3.8-27B": "qwen3.5-27b",
        # Of Step 3.7 the text decoder, a `Step3p5ForCausalLM` with the config of Step 3.5.
        "stepfun-ai/Step-3.7-Flash": "step-3.5-flash",
        "zai-org/GLM-4.7": "glm-4.6",
        "zai-org/GLM-5.1": "glm-5",
        "zai-org/GLM-5.3": "glm-5.2",
    }
)
"""Shipped network by the name of a later release with the same config; the card of a network names its own release."""

OLLAMA = MappingProxyType(
    {
        "codellama": {"7b": "codellama-7b", "13b": "codellama-13b", "34b": "codellama-34b"},
        "deepseek-r1": {
            "671b": "deepseek-r1",
            # Its smaller sizes are other networks, into which R1 was distilled.
            "7b": "qwen2.5-7b",
            "8b": "qwen3-8b",
            "14b": "qwen2.5-14b",
            "32b": "qwen2.5-32b",
            "70b": "llama-3.3-70b",
        },
        "deepseek-v3": {"671b": "deepseek-v3"},
        "deepseek-v3.1": {"671b": "deepseek-v3.1"},
        "gemma2": {"2b": "gemma-2-2b", "9b": "gemma-2-9b", "27b": "gemma-2-27b"},
        "gemma3": {"1b": "gemma-3-1b", "12b": "gemma-3-12b", "27b": "gemma-3-27b"},
        "gemma4": {
            "e2b": "gemma-4-e2b",
            "e4b": "gemma-4-e4b",
            "12b": "gemma-4-12b",
            "26b": "gemma-4-26b-a4b",
            "31b": "gemma-4-31b",
        },
        "glm-4.7-flash": {"30b": "glm-4.7-flash"},
        "gpt-oss": {"20b": "gpt-oss-20b", "120b": "gpt-oss-120b"},
        "granite3.3": {"8b": "granite-3.3-8b"},
        "granite4": {"tiny-h": "granite-4.0-h-tiny", "small-h": "granite-4.0-h-small"},
        "llama2": {"7b": "llama-2-7b", "13b": "llama-2-13b", "70b": "llama-2-70b"},
        "llama3": {"8b": "llama-3-8b", "70b": "llama-3-70b"},
        "llama3.1": {"8b": "llama-3.1-8b", "70b": "llama-3.1-70b", "405b": "llama-3.1-405b"},
        "llama3.2": {"1b": "llama-3.2-1b", "3b": "llama-3.2-3b"},
        "llama3.3": {"70b": "llama-3.3-70b"},
        "llama4": {
            "16x17b": "llama-4-scout",
            "scout": "llama-4-scout",
            "128x17b": "llama-4-maverick",
            "maverick": "llama-4-maverick",
        },
        "ministral-3": {"3b": "ministral-3-3b", "8b": "ministral-3-8b", "14b": "ministral-3-14b"},
        "mistral": {"7b": "mistral-7b"},
        "mistral-large": {"123b": "mistral-large-123b"},
        "mistral-large-3": {"675b": "mistral-large-3"},
        "mistral-nemo": {"12b": "mistral-nemo-12b"},
        "mistral-small": {"24b": "mistral-small-24b"},
        "mixtral": {"8x7b": "mixtral-8x7b", "8x22b": "mixtral-8x22b"},
        "nemotron-3-nano": {"30b": "nemotron-3-nano-30b-a3b"},
        "nemotron-3-super": {"120b": "nemotron-3-super-120b-a12b"},
        "olmo-3": {"7b": "olmo-3-7b", "32b": "olmo-3-32b"},
        "olmo2": {"7b": "olmo-2-7b", "13b": "olmo-2-13b"},
        "phi4": {"14b": "phi-4"},
        "phi4-mini": {"3.8b": "phi-4-mini"},
        "qwen2.5": {
            "0.5b": "qwen2.5-0.5b",
            "1.5b": "qwen2.5-1.5b",
            "3b": "qwen2.5-3b",
            "7b": "qwen2.5-7b",
            "14b": "qwen2.5-14b",
            "32b": "qwen2.5-32b",
            "72b": "qwen2.5-72b",
        },
        "qwen3": {
            "0.6b": "qwen3-0.6b",
            "1.7b": "qwen3-1.7b",
            "4b": "qwen3-4b",
            "8b": "qwen3-8b",
            "14b": "qwen3-14b",
            "30b": "qwen3-30b-a3b",
            "32b": "qwen3-32b",
            "235b": "qwen3-235b-a22b",
        },
        "qwen3-coder": {"480b": "qwen3-coder-480b-a35b"},
        "qwen3-next": {"80b": "qwen3-next-80b-a3b"},
        "qwen3-vl": {
            "2b": "qwen3-vl-2b",
            "4b": "qwen3-vl-4b",
            "8b": "qwen3-vl-8b",
            "30b": "qwen3-vl-30b-a3b",
            "32b": "qwen3-vl-32b",
            "235b": "qwen3-vl-235b-a22b",
        },
        "qwen3.5": {
            "0.8b": "qwen3.5-0.8b",
            "2b": "qwen3.5-2b",
            "4b": "qwen3.5-4b",
            "9b": "qwen3.5-9b",
            "27b": "qwen3.5-27b",
            "35b": "qwen3.5-35b-a3b",
            "122b": "qwen3.5-122b-a10b",
        },
        "smollm2": {"1.7b": "smollm2-1.7b"},
        "starcoder2": {"15b": "starcoder2-15b"},
        "tinyllama": {"1.1b": "tinyllama-1.1b"},
        "vicuna": {"7b": "vicuna-7b", "13b": "vicuna-13b"},
    }
)
"""Shipped network by the name of a model in ollama's library and the tag of its size."""

SHARED_CONFIG = "has the config of"
"""Words of the note on a release, which is answered under the name of another network."""

_CARD = re.compile(rb'"card": *"https://huggingface\.co/([^"]+)"')
_HEAD_BYTES = 2**12
_TUNED = re.compile(r"(?:-(?:base|bf16|chat|hf|instruct|it|pt|thinking|\d{4}))+$")
_GGUF_WEIGHTS = "q4_k_m"
"""Usual format of the weights of GGUF files."""

_QUANTIZATIONS = {
    "fp8": "fp8", "mxfp8": "mxfp8", "w8a8": "int8", "w8a16": "int8", "int8": "int8", "nvfp4": "nvfp4", "fp4": "nvfp4",
    "mxfp4": "mxfp4", "w4a16": "int4", "int4": "int4", "awq": "awq", "gptq": "gptq", "bnb-4bit": "nf4",
    "gguf": _GGUF_WEIGHTS,
}  # fmt: skip
"""Format of weights by what the names of quantized releases say."""

_QUANTIZED_RELEASE = re.compile(rf"-(?:quantized\.)?({'|'.join(_QUANTIZATIONS)})(?:-|$)")
_OLLAMA_NAME = re.compile(r"(?P<model>[a-z][a-z0-9.-]*):(?P<tag>[a-z0-9][a-z0-9._-]*)")
_SIZE = re.compile(r"\d+(?:\.\d+)?(?:x\d+)?[bm](?=-|$)")
_QUANTIZED_TAG = re.compile(r"-(?:i?q\d\w*|mxfp4|int[48]|fp8)$")


def release_names() -> list[str]:
    """Return the names of the releases without their organisation, in lower case, as users give them."""
    return [release.lower().partition("/")[2] for release in RELEASES]


def published_release(name: str) -> str | None:
    """Return the repository of a later release with the config of a shipped network; None for other names."""
    lower_name = name.lower()
    plain = _TUNED.sub("", lower_name)
    return next((release for release in RELEASES if {lower_name, plain} & set(_spellings(release))), None)


def find_release(name: str) -> Path | None:
    """Return the shipped config of a release; None for other names.

    Raise BadValue if the name says how the weights of a shipped network are quantized, and has no organisation: with
    one it may be a config in the local cache.
    """
    lower_name = name.lower()
    networks = _networks_by_release()
    path = networks.get(lower_name) or networks.get(_TUNED.sub("", lower_name))
    quantized = None if path is not None or "/" in name else _quantized_release(name)
    if quantized is not None:
        raise BadValue(
            f"{name}: give the network without its quantization, and how the weights are stored: ask "
            f"{quantized.question}"
        )
    return path


class _QuantizedRelease(NamedTuple):
    """What the name of a quantized release says."""

    network: str  # shipped network
    weights: str  # format of its weights

    @property
    def question(self) -> str:
        """What to ask for instead, with the command for files of llama.cpp."""
        command = "`paleo-lite local` for " if self.weights == _GGUF_WEIGHTS else "for "
        return f"{command}{self.network} with `--weights {self.weights}`"


def _quantized_release(name: str) -> _QuantizedRelease | None:
    """Return the shipped network of a quantized release and the format of its weights; None for other names."""
    lower_name = name.lower().rpartition("/")[2]
    quantized = _QUANTIZED_RELEASE.search(lower_name)
    if quantized is None:
        return None
    plain = _TUNED.sub("", lower_name[: quantized.start()])
    networks = _networks_by_release()
    network = networks.get(plain) or networks.get(plain.removeprefix("meta-"))
    return None if network is None else _QuantizedRelease(network.stem, _QUANTIZATIONS[quantized[1]])


def _networks_by_release() -> Mapping[str, Path]:
    """Return shipped configs by the names of their releases, in lower case, as they are and without the tuning."""
    return _read_releases(version_of(shipped_folder("models")))


@lru_cache(1)
def _read_releases(models: FileVersion) -> Mapping[str, Path]:
    """Return the configs of a folder by the names of their releases: each file is opened."""
    networks: dict[str, Path] = {}
    for path in sorted(models.path.glob("*.json")):
        with path.open("rb") as file:
            card = _CARD.search(file.read(_HEAD_BYTES))
        names = [path.stem] if card is None else [path.stem, *_spellings(card[1].decode())]
        for name in names:
            networks.setdefault(name, path)
    for release, network in RELEASES.items():
        for name in _spellings(release):
            networks.setdefault(name, models.path / f"{network}.json")
    return networks


def _spellings(release: str) -> list[str]:
    """Return the names of a release with and without its organisation, each with and without its tuning."""
    lower_name = release.lower()
    names = [lower_name, lower_name.partition("/")[2]]
    return [*names, *(_TUNED.sub("", name) for name in names)]


def is_ollama_name(name: str) -> bool:
    """Return whether a text with a colon names a model and its size, rather than a module and its factory."""
    match = _OLLAMA_NAME.fullmatch(name.lower())
    if match is None:
        return False
    sizes = OLLAMA.get(match["model"], {})
    return match["tag"][0].isdecimal() or (match["tag"] in sizes) or (bool(sizes) and match["tag"] == "latest")


def find_in_ollama(name: str) -> str | None:
    """Return the shipped network of a name in ollama's library; None for other names.

    Raise BadValue if the model is in the library and its size is not shipped, or the tag says how the weights are
    quantized.
    """
    match = _OLLAMA_NAME.fullmatch(name.lower()) if is_ollama_name(name) else None
    sizes = None if match is None else OLLAMA.get(match["model"])
    if match is None or sizes is None:
        return None
    quantized = _QUANTIZED_TAG.search(match["tag"])
    if quantized is not None:
        unquantized = name[: -len(quantized[0])]
        raise BadValue(
            f"{name}: give the network without its quantization, {unquantized}, and the weights with `--weights`, "
            "as in `--execution llama.cpp --weights q4_k_m`"
        )
    size = _SIZE.match(match["tag"])
    shipped = sizes.get(match["tag"] if size is None else size[0])
    if shipped is None:
        known_tags = ", ".join(f"{match['model']}:{tag}" for tag in sizes)
        raise BadValue(f"{name}: this tag of the model is not a shipped network; those that are: {known_tags}")
    return shipped

"""Releases that have the shape of a shipped network: other weights, which change neither its layers nor its answers.

A release is named as on the Hugging Face Hub, with its organisation (``zai-org/GLM-4.7``) or without (``glm-4.7``).
What its name says of how the weights were tuned (``-Instruct``, ``-it``, ``-2507``) is left out before it is compared.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import MappingProxyType

from ..errors import BadValue
from ..files import shipped_folder

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

SHARED_CONFIG = "has the config of"
"""Words of the note on a release, which is answered under the name of another network."""

_CARD = re.compile(rb'"card": *"https://huggingface\.co/([^"]+)"')
_HEAD_BYTES = 2**12
_TUNED = re.compile(r"(?:-(?:base|bf16|chat|hf|instruct|it|pt|thinking|\d{4}))+$")
_QUANTIZED = re.compile(r"-(fp8|nvfp4|mxfp4|mxfp8|int4|int8|awq|gptq|gguf)(?:-|$)")


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
    quantized = _QUANTIZED.search(lower_name)
    if path is None and quantized is not None and "/" not in name:
        rest = _TUNED.sub("", lower_name[: quantized.start()])
        network = networks.get(rest)
        if network is not None:
            raise BadValue(
                f"{name}: give the network without its quantization, {network.stem}, and how the weights are stored "
                "with `--weights`, as in `--weights fp8`"
            )
    return path


def _networks_by_release() -> dict[str, Path]:
    """Return shipped configs by the names of their releases, in lower case, as they are and without the tuning."""
    networks: dict[str, Path] = {}
    for path in sorted(shipped_folder("models").glob("*.json")):
        with path.open("rb") as file:
            card = _CARD.search(file.read(_HEAD_BYTES))
        names = [path.stem] if card is None else [path.stem, *_spellings(card[1].decode())]
        for name in names:
            networks.setdefault(name, path)
    for release, network in RELEASES.items():
        for name in _spellings(release):
            networks.setdefault(name, shipped_folder("models") / f"{network}.json")
    return networks


def _spellings(release: str) -> list[str]:
    """Return the names of a release with and without its organisation, each with and without its tuning."""
    whole = release.lower()
    names = [whole, whole.partition("/")[2]]
    return [*names, *(_TUNED.sub("", name) for name in names)]

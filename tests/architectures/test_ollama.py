"""Names in ollama's library, against the sizes that the library and the models' cards state."""

from __future__ import annotations

import re

import pytest

from paleo_lite.api.resolve import resolve_network
from paleo_lite.architectures import find_network, network_names
from paleo_lite.architectures.catalog import is_factory
from paleo_lite.architectures.listing import network_rows
from paleo_lite.architectures.ollama import OLLAMA, find_in_ollama, is_ollama_name
from paleo_lite.errors import BadValue, UnknownName

PUBLISHED = {
    # "parameters" on the model's page at ollama.com/library, or of the model's card where that rounds to billions.
    "llama3:8b": 8.03e9,
    "llama3:70b": 70.6e9,
    "llama3.1:8b": 8.03e9,
    "llama3.1:70b": 70.6e9,
    "llama3.1:405b": 406e9,
    "llama3.2:3b": 3.21e9,
    "llama3.3:70b": 70.6e9,
    "qwen2.5:7b": 7.62e9,
    "qwen2.5:72b": 72.7e9,
    "gemma2:9b": 9.24e9,
    "mistral:7b": 7.25e9,
    "mixtral:8x7b": 46.7e9,
    "deepseek-r1:671b": 671e9,
    "gpt-oss:20b": 20.9e9,
    "qwen3:30b": 30.5e9,
    "qwen3-next:80b": 79.7e9,
    "qwen3.5:9b": 9.41e9,  # 9.65e9 with the multi-token prediction layer, which is left out
    "phi4:14b": 14.7e9,
    "codellama:7b": 6.74e9,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_name_is_a_network_of_the_published_size(name: str) -> None:
    (row,) = network_rows([name])
    assert row["parameters"] == pytest.approx(PUBLISHED[name], rel=0.005)
    assert find_network(name.upper()).name == row["name"]


def test_every_name_is_a_shipped_network_about_as_large_as_its_tag_says() -> None:
    """Publishers round: Google's card of Gemma 2 2B says 2.6 billion, and Alibaba's of Qwen3-0.6B 0.6 of 0.596."""
    names = {f"{model}:{tag}": shipped for model, sizes in OLLAMA.items() for tag, shipped in sizes.items()}
    assert {*names.values()} <= {*network_names()}
    parameters = {row["name"]: row["parameters"] for row in network_rows({*names.values()})}
    for name, shipped in names.items():
        size = re.fullmatch(r"([\d.]+)b", name.partition(":")[2])
        if size is not None:
            assert parameters[shipped] / 1e9 == pytest.approx(float(size[1]), rel=0.35), name


def test_how_a_model_is_tuned_does_not_change_it_and_its_quantization_is_an_option() -> None:
    for tag in ("8b", "8b-instruct", "8b-text", "8B-Instruct-fp16"):
        assert find_in_ollama(f"llama3:{tag}") == "llama-3-8b"
    for tag in ("8b-instruct-q4_K_M", "8b-q4_0", "8b-instruct-q8_0"):
        with pytest.raises(BadValue, match=r"without its quantization, llama3:8b(-instruct)?, and the weights with"):
            find_in_ollama(f"llama3:{tag}")
    for name in ("llama3:9b", "llama3:latest", "llama3.1:7b"):
        with pytest.raises(BadValue, match=r"not a shipped network; those that are: llama3(\.1)?:8b, llama3"):
            find_network(name)


def test_a_factory_is_not_taken_for_a_size() -> None:
    assert not any(map(is_ollama_name, ("torch.nn:ReLU", "mistral:make", "nets:Tiny.small", "hf:gpt2", "timm:vit_b")))
    assert is_factory("mistral:make") and not is_factory("mistral:7b")
    with pytest.raises(UnknownName, match="no network is called 'llama9:8b'"):
        resolve_network("llama9:8b", None, ())
    assert resolve_network("qwen2.5:7b", None, ()).name == "qwen2.5-7b"

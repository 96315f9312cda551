"""Names of releases, and those in ollama's library, find the shipped network of their shape and published size.

Tests: architectures/locate.py.
"""

from __future__ import annotations

import json
import re

import pytest

import paleo_lite as pl
from measured import DATA
from paleo_lite.api.question import resolve_network
from paleo_lite.architectures import find_network, network_names
from paleo_lite.architectures.catalog import find_network_name, is_factory
from paleo_lite.architectures.listing import network_rows
from paleo_lite.architectures.locate import OLLAMA, RELEASES, find_in_ollama, find_release, is_ollama_name
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.errors import BadDescriptor, BadValue, UnknownName


@pytest.mark.parametrize(
    ("name", "shipped"),
    [
        ("zai-org/GLM-4.7", "glm-4.6"), ("glm-4.7", "glm-4.6"), ("GLM-5.1", "glm-5"), ("GLM-5.3", "glm-5.2"),
        ("upstage/Solar-Open-100B", "solar-open-100b"), ("LGAI-EXAONE/K-EXAONE-236B-A23B", "k-exaone-236b-a23b"),
        ("Qwen/Qwen3.6-27B", "qwen3.5-27b"), ("Qwen/Qwen3.5-9B-Base", "qwen3.5-9b"), ("qwen3.5-9b-it", "qwen3.5-9b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"), ("google/gemma-4-E4B-it", "gemma-4-e4b"),
        ("mistralai/Mistral-Small-24B-Instruct-2501", "mistral-small-24b"), ("kimi-k2-thinking", "kimi-k2"),
        ("step-3.7-flash", "step-3.5-flash"), ("moonshotai/Kimi-K2.7-Code", "kimi-k2.5"),
        ("mistralai/Devstral-2-123B-Instruct-2512", "devstral-2-123b"), ("deepseek-v3.1-terminus", "deepseek-v3.1"),
        ("qwen3-coder-30b-a3b-instruct", "qwen3-30b-a3b"), ("baidu/ERNIE-4.5-300B-A47B-PT", "ernie-4.5-300b-a47b"),
        ("kimi-linear", "kimi-linear-48b-a3b"), ("step-3.7", "step-3.5-flash"),  # the only ones that go on so
    ],
)  # fmt: skip
def test_a_release_is_the_network_that_has_its_shape(name, shipped):
    assert find_network_name(name) == shipped


def test_a_release_keeps_its_repository_and_says_whose_config_it_has() -> None:
    """The launch command of a server starts the weights that were asked for."""
    network = find_network("step-3.7-flash")
    assert network.publication is not None
    assert network.publication.card == "https://huggingface.co/stepfun-ai/Step-3.7-Flash"
    assert (
        "stepfun-ai/Step-3.7-Flash has the config of step-3.5-flash, under whose name it is answered" in network.notes
    )
    own = find_network("step-3.5-flash")
    assert network.rebuild is not None
    decode = network.rebuild(SequenceOptions(phase="decode"))
    assert network.notes[-1] in decode.notes and decode.publication == network.publication
    again = find_network("step-3.7-flash").rebuild  # equal, so that what is computed for one is known for the other
    assert again == network.rebuild != own.rebuild and hash(again) == hash(network.rebuild)


def test_the_beginning_of_one_name_is_answered_as_that_name_and_of_several_refused() -> None:
    note = "stepfun-ai/Step-3.7-Flash has the config of step-3.5-flash, under whose name it is answered"
    assert note in find_network("step-3.7").notes and note not in find_network("step-3.5").notes
    with pytest.raises(UnknownName, match=r"did you mean llama-3-8b, llama-3-70b"):
        find_network("llama-3")


def test_releases_are_shipped_networks():
    assert {*RELEASES.values()} <= {*network_names()}
    assert all("/" in release for release in RELEASES)


def test_how_weights_are_quantized_is_an_option_and_not_part_of_a_name():
    for name in ("glm-4.5-air-fp8", "qwen3.5-27b-nvfp4", "qwen3-8b-instruct-awq"):
        network = name.rsplit("-", 1)[0].removesuffix("-instruct")
        with pytest.raises(BadValue, match=rf"{name}: give the network without .*: ask for {network} with `--weights"):
            find_network(name)


@pytest.mark.parametrize(
    ("repository", "network", "weights"),
    [
        ("Qwen/Qwen3.5-9B-FP8", "qwen3.5-9b", "fp8"),
        ("Qwen/Qwen3-8B-AWQ", "qwen3-8b", "awq"),
        ("nvidia/DeepSeek-R1-0528-FP4", "deepseek-r1", "nvfp4"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "llama-3.1-8b", "int4"),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "llama-3.3-70b", "fp8"),
        ("unsloth/gpt-oss-20b-GGUF", "gpt-oss-20b", "q4_k_m"),
    ],
)
def test_a_quantized_repository_names_what_answers_without_its_config(
    repository: str, network: str, weights: str
) -> None:
    """Its config, which says what is not quantized, is better, and is asked for first."""
    with pytest.raises(BadDescriptor, match="get its config with `hf download") as refused:
        find_network(repository)
    command = "`paleo-lite local` for" if weights == "q4_k_m" else "for"  # servers have no kernels for GGUF
    assert str(refused.value).endswith(f", or ask {command} {network} with `--weights {weights}`")


def test_names_that_are_almost_those_of_releases_are_completed() -> None:
    for name, release in (
        ("deepseek-v3.1-terminu", "deepseek-v3.1-terminus"),
        ("qwen3-coder-nexd", "qwen3-coder-next"),
    ):
        with pytest.raises(UnknownName, match=f"did you mean {release}"):
            find_network(name)


def test_answers_say_under_which_name_a_release_is_answered() -> None:
    served = pl.serve("step-3.7-flash", gpu="h200", tensor=8, concurrency=1, num_requests=4)
    at_home = pl.local("step-3.7-flash", gpu="apple-m3-ultra", device_memory="512GB")
    for notes in (served.notes, at_home.notes):
        assert any("has the config of step-3.5-flash" in note for note in notes)


def test_names_of_no_release_are_unknown():
    assert find_release("resnet-5000") is None and find_release("nobody/glm-4.7") is None
    for name in ("qwen3.5-10b", "unknown-fp8", "glm-4.7-instructive"):
        with pytest.raises(UnknownName):
            find_network(name)


@pytest.mark.needs_data
@pytest.mark.parametrize(
    ("release", "earlier"),
    [
        ("zai-org--GLM-5.1", "zai-org--GLM-5"),
        ("nvidia--Kimi-K2.6-NVFP4", "moonshotai--Kimi-K2.5"),
        ("nvidia--Kimi-K2.7-Code-NVFP4", "moonshotai--Kimi-K2.5"),
    ],
)
def test_published_configs_of_a_release_and_of_its_network_are_the_same(release, earlier):
    def sizes(name):
        fields = json.loads((DATA / "configs" / f"{name}_config.json").read_text())
        fields = fields.get("text_config", fields)
        return {key: value for key, value in fields.items() if type(value) is int and not key.endswith("token_id")}

    assert sizes(release).items() <= sizes(earlier).items()  # transformers 5 leaves out defaults of generation


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

"""Names of releases find the shipped network that has their shape."""

from __future__ import annotations

import json

import pytest

import paleo_lite as pl
from measured import DATA
from paleo_lite.architectures import find_network, network_names
from paleo_lite.architectures.catalog import find_network_name
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.architectures.releases import RELEASES, find_release
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


def test_releases_are_shipped_networks():
    assert {*RELEASES.values()} <= {*network_names()}
    assert all("/" in release for release in RELEASES)


def test_how_weights_are_quantized_is_an_option_and_not_part_of_a_name():
    for name in ("glm-4.5-air-fp8", "qwen3.5-27b-nvfp4", "qwen3-8b-instruct-awq"):
        network = name.rsplit("-", 1)[0].removesuffix("-instruct")
        with pytest.raises(BadValue, match=rf"{name}: give the network without its quantization, {network}, and how"):
            find_network(name)
    with pytest.raises(BadDescriptor, match="get its config with `hf download"):  # its config says how it is quantized
        find_network("Qwen/Qwen3.5-9B-FP8")


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

"""One row per network: parameters and multiply-accumulates as in torchvision's documentation.

Tests: architectures/listing.py, architectures/network.py.
"""

from __future__ import annotations

import json
import re
from math import prod
from typing import Any

import msgspec
import pytest

from paleo_lite.architectures import catalog, find_network, listing, network_names
from paleo_lite.architectures.listing import network_rows, pipeline_rows
from paleo_lite.architectures.network import Network
from paleo_lite.architectures.pipelines.records import pipelines
from paleo_lite.errors import UnknownName
from paleo_lite.files import read_typed, shipped_folder
from paleo_lite.reporting.networks import networks_page
from shipped_networks import LANGUAGE_MODELS, PUBLISHED

# ``num_params`` and ``_ops`` (10^9 multiply-accumulates) of the weights' metadata, and the size they are given for.
DOCUMENTED = {
    "alexnet": (61_100_840, 0.714, 224),
    "resnet50": (25_557_032, 4.089, 224),
    "vgg16": (138_357_544, 15.47, 224),
    "inception_v3": (27_161_264, 5.713, 299),
}


def test_rows_have_the_documented_figures_in_the_given_order() -> None:
    rows = network_rows(iter(DOCUMENTED))
    assert [row["name"] for row in rows] == list(DOCUMENTED)
    for row, (parameters, giga, size) in zip(rows, DOCUMENTED.values(), strict=True):
        assert row["parameters"] == parameters
        assert row["macs"] / 1e9 == pytest.approx(giga, rel=2e-3)
        assert row["flops"] > 2 * row["macs"]  # biases and elementwise work come on top
        assert row["input_shape"] == [3, size, size]
        assert row["source"].startswith("torchvision ")
    assert rows[0]["layers"] == len(find_network("alexnet").layers)


def shipped_rows():
    return read_typed(shipped_folder("models") / listing.FILE, list[Any], "rows", 2**22)


def family_of(name):
    """The type of a config; of another network the letters that its name begins with."""
    found = re.search(rb'"model_type": ?"(\w+)"', (shipped_folder("models") / f"{name}.json").read_bytes()[:1000])
    return found[1] if found else re.split(r"[^a-z]", name)[0]


@pytest.mark.thorough
@pytest.mark.slow
def test_shipped_rows_are_those_that_counting_gives():
    """The digests of all, and the figures of the smallest network of each family and of every eighth pipeline."""
    shipped = shipped_rows()
    names = network_names()
    digests = [listing._digest_of_network(name) for name in names]
    digests += [listing._digest_of_pipeline(pipeline) for pipeline in pipelines().values()]
    assert [(row["digest"], row["row"]["name"]) for row in shipped] == list(zip(digests, [*names, *pipelines()]))
    rows = {row["row"]["name"]: row["row"] for row in shipped}
    smallest = {family_of(name): name for name in sorted(names, key=lambda name: -rows[name]["layers"])}
    assert len(names) / 5 < len(smallest) < len(names) / 2
    for name in smallest.values():
        assert msgspec.structs.asdict(listing.row_of_network(name)) == rows[name]
    for pipeline in [*pipelines().values()][::8]:
        assert msgspec.structs.asdict(listing.row_of_pipeline(pipeline)) == rows[pipeline.name]


@pytest.mark.slow
@pytest.mark.thorough
def test_all_shipped_rows_are_those_that_counting_gives():
    """`python -m paleo_lite.architectures.listing` writes them."""
    counted = [{"digest": digest, "row": msgspec.structs.asdict(row)} for digest, row in listing.counted_rows()]
    assert shipped_rows() == counted


def test_changed_networks_are_counted(tmp_path, monkeypatch):
    """A row holds for the files it was counted from alone."""
    (tmp_path / "listing").mkdir()
    models = shipped_folder("models")
    (tmp_path / listing.FILE).write_bytes((models / listing.FILE).read_bytes())
    network = json.loads((models / "alexnet.json").read_bytes())
    (tmp_path / "alexnet.json").write_text(json.dumps({**network, "source": "changed"}))
    (tmp_path / "another.json").write_text(json.dumps({**network, "name": "another"}))
    for module in (catalog, listing):
        monkeypatch.setattr(module, "shipped_folder", lambda folder: tmp_path)
    changed, another = network_rows(["alexnet", "another"])
    assert (changed["source"], another["name"]) == ("changed", "another")
    assert changed["macs"] == another["macs"] == 714_188_480  # as the head of the descriptor says


def test_input_elements_are_summed_over_inputs() -> None:
    assert Network("two", ((1, 3, 4), (1, 5)), (), 0).input_elements == 3 * 4 + 5
    assert find_network("alexnet").input_elements == 3 * 224 * 224


def test_layer_by_name() -> None:
    network = find_network("alexnet")
    assert network.layer("features.0").weights == ((64, 3, 11, 11), (64,))
    with pytest.raises(UnknownName, match=r"no layer of alexnet is called 'feature\.0': did you mean features\.0"):
        network.layer("feature.0")


def test_files_tell_what_networks_are() -> None:
    """Tests are parametrised by what the files say, without building each network."""
    rows = network_rows(network_names())
    assert [row["name"] for row in rows if row["publisher"] is not None] == PUBLISHED
    assert [row["name"] for row in rows if row["group"] == "language models"] == LANGUAGE_MODELS


def _decode_parameters(network):
    """Return all parameters and the active ones, counted as the publisher counts them."""
    total, active = network.parameters, network.active_parameters
    if network.name != "glm-4.5":
        definition = network.publication.definition
        if definition == "with the multi-token prediction layers":
            total += network.left_out_parameters
        elif definition == "the active ones without the embedding and the output layer":
            active -= 2 * _embedding_parameters(network)
        elif definition.startswith("with the vision encoder, which is not counted here; the active ones without"):
            total += 0.7e9  # 32 layers of width 1280, and the projector
            active -= 2 * _embedding_parameters(network)
        elif definition == "without the embedding, the output layer and the multi-token prediction layer":
            total -= 2 * _embedding_parameters(network)
            active -= _embedding_parameters(network)  # of the output layer: the embedding is not among the active ones
        elif definition == "without the embedding":
            total -= _embedding_parameters(network)
        elif definition == "rounded to ten billions":
            total = round(total, -10)
        elif definition == "rounded down to billions":
            total -= total % 10**9
        elif definition == "the active ones rounded down":
            active -= active % 10**8
        elif definition == "the language model, without the vision tower":
            total -= network.tower_parameters
        elif definition == "with a dense multi-token prediction layer, which is not counted here":
            hidden = 8192
            joined = 2 * hidden * hidden
            total += joined + sum(
                prod(weight)
                for layer in network.layers
                if layer.name.startswith("model.layers.0.")
                for weight in layer.weights
            )
        elif definition == "with the audio tower, which is not counted here":
            total += 0.3e9  # the audio encoder's of the model card
        return total, active
    # The report counts the multi-token prediction layer, but neither the embedding nor the output layer.
    hidden, experts, expert_size, active = 5120, 160 + 1, 1536, 8 + 1
    embeddings = 2 * 151_552 * hidden
    attention = 2 * 96 * 128 * hidden + 2 * 8 * 128 * hidden
    joined = 2 * hidden * hidden
    expert = 3 * hidden * expert_size
    total = network.parameters - embeddings + attention + joined + experts * expert
    return total, network.active_parameters - embeddings + attention + joined + active * expert


@pytest.mark.spread(45)
@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_equal_the_published_figures(name):
    """Totals of the model cards and reports, within 0.1% or as the publisher rounds them."""
    network = find_network(name)
    total, active = _decode_parameters(network)
    publication = network.publication
    assert total == pytest.approx(publication.parameters, rel=1e-3, abs=_half_unit(publication.parameters))
    if publication.active_parameters is None:
        assert network.active_parameters == network.parameters
        return
    half_unit = _half_unit(publication.active_parameters)
    assert active == pytest.approx(publication.active_parameters, rel=0.03, abs=half_unit)


def _embedding_parameters(network):
    """Of the embedding, or of an output layer that does not share them."""
    return sum(prod(weight) for layer in network.layers if layer.kind == "embedding" for weight in layer.weights)


def _half_unit(figure):
    """Most publishers round to 10^9: a figure of 22 B stands for 21.5 to 22.5 B, 1.6 T for 1.55 to 1.65 T."""
    if figure >= 10**12 and figure % 10**11 == 0:
        return 0.5 * 10**11
    digits = f"{figure / 1e9:.9g}"
    return 0.5 * 10.0 ** (9 - len(digits.partition(".")[2]))


def test_the_names_people_know_are_shipped():
    assert len(PUBLISHED) >= 40
    known = {"llama-3.1-8b", "llama-3.2-1b", "llama-3.3-70b", "llama-3.1-405b", "qwen2.5-0.5b", "qwen2.5-72b",
             "qwen3-0.6b", "qwen3-32b", "qwen3-30b-a3b", "qwen3-235b-a22b", "mistral-7b", "mixtral-8x22b", "gemma-2-9b",
             "gemma-3-27b", "phi-4", "deepseek-v3", "deepseek-r1", "kimi-k2", "gpt-oss-20b", "gpt-oss-120b", "glm-4.5",
             "olmo-2-32b"}  # fmt: skip
    assert known <= set(PUBLISHED)


def test_pipelines_are_listed_with_the_parameters_of_their_parts():
    """SDXL: the model cards' 2.57 G of the U-Net, 123 M and 695 M of the text encoders, and 84 M of the VAE."""
    rows = {row["name"]: row for row in pipeline_rows()}
    assert set(rows) == set(pipelines())
    sdxl = rows["sdxl"]
    assert sdxl["parameters"] == pytest.approx(2.567e9 + 0.123e9 + 0.695e9 + 0.05e9, rel=0.02)  # the decoder alone
    assert (sdxl["publisher"], sdxl["year"], sdxl["input_shape"]) == ("Stability AI", 2023, [1024, 1024])
    assert rows["wan-2.1-14b"]["group"] == "pipelines for videos"
    for name, group in (("wan-2.1-1.3b", "pipelines for videos"), ("pixart-sigma", "pipelines for pictures")):
        assert listing.row_of_pipeline(pipelines()[name]).group == rows[name]["group"] == group


def test_networks_are_listed_by_publisher_and_year():
    page = networks_page(network_rows(["llama-3.1-8b", "llama-2-7b", "qwen3-8b", "resnet50"]))
    titles = [table.title for table in page.tables]
    assert titles == ["Language models by Alibaba Qwen, 1", "Language models by Meta, 2", "Image networks, 1"]
    assert [row["name"] for row in page.tables[1].rows] == ["llama-2-7b", "llama-3.1-8b"]
    assert [row["name"] for row in page.data.rows][:2] == ["llama-3.1-8b", "llama-2-7b"]  # in the order of the question


GROUPS = {
    "resnet50": "image networks", "bert-base": "text encoders", "llama-3-8b": "language models",
    "whisper-tiny": "speech models",
}  # fmt: skip


def test_networks_are_listed_in_groups():
    groups = {row["name"]: row["group"] for row in network_rows(list(GROUPS))}
    assert groups == GROUPS

"""Places of layers: what builders state, and what names tell."""

from __future__ import annotations

import json

import pytest

from paleo_lite.architectures.model_config import read_config
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.counting import Layer
from paleo_lite.counting.layer import NOWHERE, Place
from paleo_lite.counting.places import is_in_tower, matches_module, parts_of, place_layers

MIXTRAL = {
    "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 64, "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_local_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip


def product(name, parent=-1, **attributes):
    return Layer(name, "linear", ((4, 8),), ((4, 8),), ((8, 8),), (parent,), 64, attributes)


@pytest.fixture(scope="module")
def mixtral():
    """Return the layers of a small mixture of experts, by name."""
    options = SequenceOptions(length=8)
    network = read_config(json.dumps(MIXTRAL).encode(), "small.json", options=options)
    return {layer.name: layer for layer in network.layers}


@pytest.mark.parametrize(
    ("name", "role", "part", "matrix"),
    [
        ("model.embed_tokens", "embedding", "", ""),
        ("model.layers.1.input_layernorm.pow", "norm", "", ""),
        ("model.layers.1.self_attn.q_proj", "attention", "model.layers.1.self_attn", "query"),
        ("model.layers.1.mlp.gate", "router", "model.layers.1.mlp", ""),
        ("model.layers.1.mlp.gate.topk", "router", "model.layers.1.mlp", ""),
        ("model.layers.1.mlp.experts.down_proj", "experts", "model.layers.1.mlp", "down"),
        ("model.layers.1.add#2", "", "", ""),
        ("lm_head", "head", "", ""),
    ],
)
def test_builder_states_block_role_part_and_matrix(mixtral, name, role, part, matrix):
    place = mixtral[name].place
    assert (place.role, place.part, place.matrix) == (role, part, matrix)
    in_block = ".layers.1." in name
    assert (place.block, place.number) == (("model.layers.1", 1) if in_block else ("", None))


def test_names_tell_what_the_builder_states(mixtral):
    """The reader of names agrees with the builder on blocks, modules, matrices, and the roles that names tell."""
    layers = list(mixtral.values())
    for built, read in zip(layers, place_layers(layers), strict=True):
        for field in ("block", "number", "module", "matrix"):
            assert getattr(read.place, field) == getattr(built.place, field), built.name
        if built.place.role in ("norm", "attention", "head", "experts"):
            assert read.place.role == built.place.role, built.name
        if built.place.role in ("norm", "attention", "experts"):
            assert read.place.owner == built.place.owner, built.name
    assert parts_of(place_layers(layers), True) == parts_of(layers, True)


def test_last_product_outside_blocks_is_the_head():
    inside = place_layers([product("stem"), product("blocks.0.fc")])
    assert [layer.place.role for layer in inside] == ["", ""]
    outside = place_layers([product("blocks.0.fc"), product("classifier", 0)])
    assert parts_of(outside, reads_tokens=True) == ("dense", "head")
    assert parts_of(outside, reads_tokens=False) == ("dense", "dense")


def test_product_before_the_choice_of_the_largest_is_a_router():
    chosen = Layer("blocks.0.moe.topk", "slice", ((4, 8),), ((4, 2),), (), (0,), 0, {"function": "topk"})
    layers = place_layers([product("blocks.0.moe.scorer"), chosen, product("blocks.0.fc")])
    assert parts_of(layers, reads_tokens=True) == ("router", None, "dense")


def test_shared_experts_are_inside_the_mixture():
    names = ("b.0.mlp.experts.w1", "b.0.mlp.shared_expert.w1", "b.0.mlp.add", "b.0.mlp2.w1")
    roles = [layer.place.role for layer in place_layers([product(name) for name in names])]
    assert roles == ["experts", "shared experts", "mixture", "feed-forward"]


def test_numbered_layer_is_a_block():
    (layer,) = place_layers([product("features.3")])
    assert (layer.place.block, layer.place.number, layer.place.part) == ("features.3", 3, "")


def test_place_within_a_module():
    place = Place("norm", "blocks.0.norm1", "blocks.0", 0, "", "blocks.0").within("vision")
    assert place == Place("norm", "vision.blocks.0.norm1", "vision.blocks.0", 0, "", "vision.blocks.0")
    assert NOWHERE.within("vision").module == "vision"


def test_addition_to_the_head_is_no_head():
    assert Place("head", "lm_head").of_addition("lm_head").role == ""
    assert Place("norm", "n").of_addition("n").role == "norm"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("q_proj", True), ("model.layers.0", True), ("layers.0", False), ("*.q_proj", True), ("proj", False)],
)
def test_names_that_users_give_match_modules(pattern, expected):
    assert matches_module("model.layers.0.self_attn.q_proj#2", pattern) is expected


def test_builder_states_matrices_whose_names_do_not_tell_them():
    fields = {"model_type": "gpt2", "n_layer": 1, "n_embd": 32, "n_head": 4, "vocab_size": 64, "n_positions": 16}
    network = read_config(json.dumps(fields).encode(), "small.json", options=SequenceOptions(length=8))
    matrices = {layer.name: layer.place.matrix for layer in network.layers if layer.weights}
    assert matrices["transformer.h.0.attn.c_proj"] == "attention output"
    assert matrices["transformer.h.0.mlp.c_fc"] == "up"
    assert matrices["transformer.h.0.mlp.c_proj"] == "down"


@pytest.mark.parametrize(("name", "expected"), [("visual.blocks.0.norm1", True), ("model.visual.norm", False)])
def test_layers_of_an_encoder_before_the_model_are_in_a_tower(name, expected):
    assert is_in_tower(product(name)) is expected

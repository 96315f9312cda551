"""Configs of unknown model types are read as guesses, which the name of the network says.

Tests: architectures/families/guess.py.
"""

from __future__ import annotations

import json

import pytest

from paleo_lite.architectures import trace_process
from paleo_lite.architectures.families.guess import NOT_GUESSED
from paleo_lite.architectures.model_config import read_config
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.errors import BadDescriptor

LLAMA_3_8B = {
    "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8,
}  # fmt: skip
PUBLISHED = {
    # Parameters of the checkpoints of known types, which are read here under an unknown one.
    "llama": (8_030_261_248, LLAMA_3_8B),
    "qwen2": (7_615_616_512, {"vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "qkv_bias": True,
              "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4}),
    "mixtral": (46_702_792_704, {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
                "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
                "num_local_experts": 8, "num_experts_per_tok": 2}),
    "qwen3_moe": (30_532_122_624, {"vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 48,
                  "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
                  "intermediate_size": 6144, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
                  "decoder_sparse_step": 1, "mlp_only_layers": [], "use_qk_norm": True}),
    "deepseek_v3": (671_026_419_200, {"vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
                    "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
                    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "kv_lora_rank": 512,
                    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
                    "first_k_dense_replace": 3, "scoring_func": "sigmoid", "n_group": 8}),
    "gpt2": (124_439_808 - 1024 * 768, {"vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12,
             "activation_function": "gelu_new", "tie_word_embeddings": True, "use_bias": True}),
}  # fmt: skip


def network(config, options=None, model_type="never_heard_of"):
    return read_config(json.dumps({**config, "model_type": model_type}).encode(), "a/config.json", None, options)


@pytest.mark.parametrize("like", PUBLISHED)
def test_the_keys_of_a_config_give_the_parameters_within_one_percent(like):
    parameters, config = PUBLISHED[like]
    assert network(config).parameters == pytest.approx(parameters, rel=0.01)


@pytest.mark.parametrize(
    ("classes", "mapped", "has_head"),
    [
        (["NeverHeardOfForCausalLM"], None, True),
        (["NeverHeardOfModel"], None, False),  # as transformers names what ends with the hidden states
        (["NeverHeardOfModel"], {"AutoModelForCausalLM": "modeling.NeverHeardOfModel"}, True),
        ([], None, True),
    ],
)
def test_the_class_of_a_guess_says_whether_it_has_a_head(classes, mapped, has_head):
    config = {**LLAMA_3_8B, "architectures": classes, **({"auto_map": mapped} if mapped else {})}
    missing = 0 if has_head else 128256 * 4096
    assert network(config).parameters == 8_030_261_248 - missing


@pytest.mark.parametrize(
    "options",
    [SequenceOptions(phase="prefill"), SequenceOptions(phase="decode", tensor_parallel=2), SequenceOptions(64)],
)
def test_the_name_says_that_it_is_a_guess_with_so_many_parameters(options):
    found = network(LLAMA_3_8B, options)
    assert found.name == "a, a guess with 8.03 G parameters,"
    assert found.notes[0].startswith("the model type never_heard_of is unknown: its layers are guessed")
    assert found.rebuild(options).name == found.name


@pytest.mark.parametrize("auto_map", [1, [1], "AutoModelForCausalLM", None, {"AutoModel": 1}])
def test_any_value_of_the_map_of_classes_is_accepted(auto_map):
    """A number ended in an internal error; the map names code, which is not run."""
    found = network({**LLAMA_3_8B, "auto_map": auto_map})
    assert found.parameters == network(LLAMA_3_8B).parameters


def test_a_linear_layer_type_is_read_as_a_gated_delta_net():
    kinds = ["linear_attention", "full_attention"] * 2
    more = {"linear_num_value_heads": 32, "linear_num_key_heads": 16, "layer_types": kinds}
    layers = network({**LLAMA_3_8B, **more, "num_hidden_layers": 4}, SequenceOptions(64)).layers
    assert [layer.name.split(".")[2] for layer in layers if layer.kind == "gated_delta_rule"] == ["0", "2"]
    assert [layer.name.split(".")[2] for layer in layers if layer.kind == "attention"] == ["1", "3"]


def test_the_text_part_of_an_unknown_vision_language_model_is_guessed():
    whole = {"text_config": {**LLAMA_3_8B, "model_type": "some_text"}, "vision_config": {"model_type": "some_vision"}}
    found = network(whole, SequenceOptions(64), "some_vlm")
    assert found.parameters == pytest.approx(8_030_261_248, rel=1e-4)
    assert "a guess with 8.03 G parameters" in found.name
    assert found.notes[0] == "the text part of a some_vlm; its vision encoder is not included"


@pytest.mark.parametrize(
    "config", [{}, {"vocab_size": 10}, {**LLAMA_3_8B, "is_encoder_decoder": True}, {**LLAMA_3_8B, "type_vocab_size": 2}]
)
def test_a_config_without_the_keys_of_a_decoder_is_not_guessed(config):
    with pytest.raises(BadDescriptor, match="'never_heard_of', which is not read"):
        network(config)


@pytest.mark.parametrize("model_type", NOT_GUESSED)
def test_types_whose_keys_do_not_tell_their_parts_are_not_guessed(model_type, monkeypatch):
    monkeypatch.setattr(trace_process, "traceable_types", frozenset)  # as without transformers
    with pytest.raises(BadDescriptor, match=rf"{model_type}', which is not read; the usual keys do not tell its parts"):
        network(LLAMA_3_8B, model_type=model_type)


@pytest.mark.parametrize(("key", "value"), [("hidden_size", 4095), ("num_key_value_heads", 3), ("vocab_size", "many")])
def test_a_guess_of_contradictory_keys_raises_one_sentence(key, value):
    with pytest.raises(BadDescriptor, match=rf"a/config.json: \$\..*{key}"):
        network({**LLAMA_3_8B, key: value})


@pytest.mark.parametrize("keys", [{"num_experts": 8}, {"num_experts": 8, "num_experts_per_tok": 2, "is_moe": False}])
def test_a_config_that_does_not_say_how_many_experts_are_active_is_dense(keys):
    """8,030,261,248 parameters, as without experts."""
    assert network({**LLAMA_3_8B, **keys}).parameters == pytest.approx(8_030_261_248, rel=0.01)

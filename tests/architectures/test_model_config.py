"""Hugging Face configs: published sizes, the formulas of papers, and invalid configs.

Tests: architectures/config.py, architectures/families/network.py, architectures/tape.py.
"""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from paleo_lite.architectures import find_network
from paleo_lite.architectures.model_config import read_config
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.cli import main
from paleo_lite.counting import count
from paleo_lite.errors import BadDescriptor, BadValue

LLAMA = {
    "model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2,
}  # fmt: skip
PLAIN = {
    "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "vocab_size": 1000, "n_embd": 64, "n_layer": 2, "n_head": 8}
T5 = {"model_type": "t5", "vocab_size": 1000, "d_model": 64, "d_ff": 256, "d_kv": 8, "num_layers": 2, "num_heads": 8}
OPT = {"model_type": "opt", "hidden_size": 64, "ffn_dim": 256, "num_hidden_layers": 2, "num_attention_heads": 8,
       "vocab_size": 1000, "word_embed_proj_dim": 64}  # fmt: skip


def network(config, options=None, **changes):
    return read_config(json.dumps({**config, **changes}).encode(), "some/model/config.json", None, options)


def total(found, column, phase="inference"):
    return int(count(found.layers).column(column, phase).sum())


# Published figures ---------------------------------------------------------------------------------------------------

SHIPPED = {
    "bert-base": 109_514_298, "bert-large": 335_174_458, "gpt2": 124_439_808, "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616, "llama-3-8b": 8_030_261_248, "llama-3-70b": 70_553_706_496,
    "mixtral-8x7b": 46_702_792_704,
}  # fmt: skip
"""Parameters of the checkpoints of Hugging Face (``safetensors`` metadata, tied weights once)."""

OTHERS = {
    "mistral": (7_241_732_096, {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
                "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
                "sliding_window": 4096}),
    "qwen2": (7_615_616_512, {"vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
              "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
              "use_sliding_window": False}),
    "internlm3": (8_804_241_408, {"vocab_size": 128512, "hidden_size": 4096, "intermediate_size": 10240,
                  "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128}),
    "dbrx": (131_596_523_520, {"vocab_size": 100352, "d_model": 6144, "n_heads": 48, "n_layers": 40,
             "attn_config": {"kv_n_heads": 8}, "ffn_config": {
                 "ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}}),
    "gemma": (8_537_680_896, {"vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576,
              "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256}),
    "gpt_neox": (20_554_567_680, {"vocab_size": 50432, "hidden_size": 6144, "intermediate_size": 24576,
                 "num_hidden_layers": 44, "num_attention_heads": 64, "rotary_pct": 0.25}),
    "opt": (6_658_473_984, {"vocab_size": 50272, "hidden_size": 4096, "ffn_dim": 16384, "num_hidden_layers": 32,
            "num_attention_heads": 32, "word_embed_proj_dim": 4096}),
    "t5": (222_903_552, {"vocab_size": 32128, "d_model": 768, "d_ff": 3072, "d_kv": 64, "num_layers": 12,
           "num_heads": 12}),
    "clip": (151_277_313, {"projection_dim": 512, "text_config": {
        "vocab_size": 49408, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12,
        "num_attention_heads": 8}, "vision_config": {"hidden_size": 768, "intermediate_size": 3072,
        "num_hidden_layers": 12, "num_attention_heads": 12, "patch_size": 32}}),
    "siglip": (877_960_498, {"text_config": {
        "vocab_size": 32000, "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
        "num_attention_heads": 16}, "vision_config": {"hidden_size": 1152, "intermediate_size": 4304,
        "num_hidden_layers": 27, "num_attention_heads": 16, "image_size": 384, "patch_size": 14}}),
    "bart": (406_291_456, {"vocab_size": 50265, "d_model": 1024, "encoder_layers": 12, "decoder_layers": 12,
             "encoder_attention_heads": 16, "decoder_attention_heads": 16, "encoder_ffn_dim": 4096,
             "decoder_ffn_dim": 4096}),
    "xlm-roberta": (278_295_186, {"vocab_size": 250002, "hidden_size": 768, "intermediate_size": 3072,
                    "num_hidden_layers": 12, "num_attention_heads": 12, "type_vocab_size": 1,
                    "max_position_embeddings": 514}),
    "deberta-v2": (184_423_682, {"architectures": ["DebertaV2ForSequenceClassification"], "vocab_size": 128100,
                   "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
                   "type_vocab_size": 0, "position_biased_input": False, "relative_attention": True,
                   "position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True,
                   "pos_att_type": "p2c|c2p"}),
    "vit": (304_326_632, {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
            "num_attention_heads": 16, "num_labels": 1000}),
}  # fmt: skip


@pytest.mark.parametrize(("name", "parameters"), SHIPPED.items())
def test_shipped_networks_have_the_published_parameters(name, parameters):
    assert find_network(name).parameters == parameters


FLAN_T5 = {"vocab_size": 32128, "d_model": 768, "d_ff": 2048, "d_kv": 64, "num_layers": 12, "num_heads": 12,
           "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}  # fmt: skip


def test_t5_with_untied_head_has_the_published_parameters():
    """flan-t5-base."""
    assert network(FLAN_T5, model_type="t5").parameters == 247_577_856


@pytest.mark.parametrize("model", OTHERS)
def test_parameters_of_other_families_are_the_published_ones(model):
    parameters, config = OTHERS[model]
    assert network(config, model_type=model).parameters == parameters


def test_longcat_has_the_published_sizes():
    """LongCat-Flash, 2025: 560 B parameters, of which a token uses 27 B on average, as a third of the experts idle."""
    config = {"vocab_size": 131072, "hidden_size": 6144, "num_layers": 28, "num_attention_heads": 64,
              "ffn_hidden_size": 12288, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
              "qk_rope_head_dim": 64, "v_head_dim": 128}  # fmt: skip
    found = network(config, model_type="longcat_flash")
    assert found.parameters == pytest.approx(560e9, rel=0.01)
    assert found.active_parameters == pytest.approx(27e9, rel=0.03)


def test_gpt3_has_the_size_of_its_paper():
    """Brown et al. 2020, table 2.1, rounded there."""
    sizes = {"125m": 0.125, "350m": 0.356, "1.3b": 1.3, "6.7b": 6.7, "13b": 13.0, "175b": 175.0}
    for name, billions in sizes.items():
        assert find_network(f"gpt3-{name}").parameters == pytest.approx(billions * 1e9, rel=0.015)


def test_forward_flops_match_the_formula():
    """Narayanan et al. 2021, eq. 2: forward and backward, without recomputation, 72 l h^2 s (1 + s/6h + V/12lh)."""
    found = find_network("gpt3-175b")
    layers, hidden, tokens, rows = 96, 12288, 2048, 50257
    formula = 72 * layers * tokens * hidden**2 * (1 + tokens / (6 * hidden) + rows / (12 * layers * hidden))
    assert 2 * 3 * total(found, "macs") == pytest.approx(formula, rel=1e-12)


def test_the_vision_transformer_multiplies_as_often_as_that_of_torchvision():
    """torchvision writes the same network with one product for queries, keys and values."""
    _, config = OTHERS["vit"]
    ours, theirs = network(config, model_type="vit"), find_network("vit_l_16")
    assert (ours.parameters, total(ours, "macs")) == (theirs.parameters, total(theirs, "macs"))


# Layers ---------------------------------------------------------------------------------------------------------------


def test_a_decoder_layer_equals_one_written_with_torch():
    torch = pytest.importorskip("torch")
    from torch.nn import functional

    from paleo_lite.architectures.trace import trace

    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (torch.nn.Linear(64, size, bias=False) for size in (64, 16, 16))
            self.o = torch.nn.Linear(64, 64, bias=False)

        def forward(self, x):
            heads = [part(x).view(x.shape[0], 16, -1, 8).transpose(1, 2) for part in (self.q, self.k, self.v)]
            made = functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
            return self.o(made.transpose(1, 2).contiguous().view(x.shape[0], 16, 64))

    theirs = trace(Attention(), (1, 16, 64))
    kinds = ("linear", "attention")
    ours = [layer for layer in network(LLAMA, SequenceOptions(16)).layers if "layers.0.self_attn" in layer.name]
    for kind in kinds:
        left, right = ([layer for layer in layers if layer.kind == kind] for layers in (ours, theirs.layers))
        assert [layer[2:5] for layer in left] == [layer[2:5] for layer in right]
    assert sum(layer.parameters for layer in ours) == theirs.parameters


# Generating text ------------------------------------------------------------------------------------------------------


def test_a_decode_step_attends_to_the_cache_and_to_itself():
    found = network(LLAMA, SequenceOptions(context=100, phase="decode"))
    attention = [layer for layer in found.layers if layer.kind == "attention"]
    assert [layer.inputs for layer in attention] == [((1, 8, 1, 8), (1, 2, 101, 8), (1, 2, 101, 8))] * 2
    products = 2 * (64 * (64 + 16 + 16 + 64) + 3 * 64 * 176) + 64 * 1000
    assert total(found, "macs") == products + 2 * 2 * 8 * 101 * 8


def test_a_sliding_window_bounds_the_cache():
    found = network(LLAMA, SequenceOptions(context=100, phase="decode"), model_type="mistral", sliding_window=64)
    caches = [layer.outputs for layer in found.layers if layer.kind == "cache"]
    assert caches == [((1, 2, 64, 8), (1, 2, 64, 8))] * 2


def test_a_window_of_zero_tokens_is_none():
    options = SequenceOptions(context=100, phase="decode")
    found = network(LLAMA, options, model_type="mistral", sliding_window=0)
    assert [layer.outputs[0][2] for layer in found.layers if layer.kind == "cache"] == [101] * 2


def test_a_prompt_computes_the_logits_of_its_last_token():
    prompt, whole = (network(LLAMA, SequenceOptions(16, phase=phase)) for phase in ("prefill", "inference"))
    assert prompt.layers[-1].outputs == ((1, 1, 1000),)
    assert total(whole, "macs") - total(prompt, "macs") == 15 * 64 * 1000


def test_a_mixture_multiplies_by_the_active_experts():
    """Mixtral: two of eight, as large as if each token had a feed-forward part of twice the size, and the router."""
    config = LLAMA | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    mixture, dense = (
        network(config, SequenceOptions(16)),
        network(LLAMA, SequenceOptions(16), intermediate_size=2 * 176),
    )
    assert total(mixture, "macs") - total(dense, "macs") == 2 * 16 * 64 * 8


# Bad input ------------------------------------------------------------------------------------------------------------

BAD = [
    ({"model_type": "mambo"}, r"\$.model_type is 'mambo', which is not read; the nearest known types are mamba"),
    ({"architectures": ["LlamaForCausalLM"]}, r"\$.model_type is None"),
    ({**LLAMA, "architectures": ["LlamaForNothing"]}, "LlamaForCausalLM or LlamaModel is read"),
    ({key: value for key, value in LLAMA.items() if key != "hidden_size"}, r"\$.hidden_size is missing: .* llama"),
    ({**LLAMA, "num_hidden_layers": 0}, r"\$.num_hidden_layers must be an integer >= 1 \(got 0\)"),
    ({**LLAMA, "num_hidden_layers": True}, r"\(got True\)"),
    ({**LLAMA, "num_hidden_layers": 10**9}, r"\$.num_hidden_layers is 1000000000; no more than 10,000 layers are read"),
    ({**LLAMA, "model_type": "nemotron-nas"}, r"\$.block_configs must list an object for each layer"),
    ({**LLAMA, "model_type": "nemotron-nas", "block_configs": [{"attention": {}, "ffn": {"ffn_mult": 1.0}}]},
     "the keys of 1 layers are listed, but there are 2"),
    ({**LLAMA, "model_type": "mllama", "vision_config": {"model_type": "mllama_vision_model", "image_size": 560,
                                                         "supported_aspect_ratios": 7}},
     r"\$.supported_aspect_ratios must be a list \(got 7\)"),
    ({"model_type": "qwen2_audio", "text_config": {**LLAMA, "model_type": "qwen2"},
      "audio_config": {"model_type": "qwen2_audio_encoder", "d_model": -1}},
     r"\$.d_model must be an integer >= 1 \(got -1\)"),
    ({"model_type": "gemma3n", "text_config": {**LLAMA, "model_type": "gemma3n_text"},
      "audio_config": {"model_type": "gemma3n_audio", "sscp_conv_channel_size": ["a"]}},
     r"\$.sscp_conv_channel_size must list integers"),
    (
        {**LLAMA, "num_attention_heads": 7},
        r"\$.num_key_value_heads is 2, which does not divide \$.num_attention_heads, 7",
    ),
    ({**LLAMA, "num_key_value_heads": 3}, r"\$.num_key_value_heads is 3, which does not divide"),
    ({**LLAMA, "hidden_act": 3}, r"\$.hidden_act must be the name of an activation function, .* \(got 3\)"),
    ({**LLAMA, "attention_bias": 1}, r"true or false \(got 1\)"),
    ({**LLAMA, "attention_dropout": 2}, r"a number from 0 to 1 \(got 2\)"),
    ({**OPT, "word_embed_proj_dim": 32}, "OPT is read only if it equals"),
    ({**LLAMA, "model_type": "mixtral", "num_local_experts": 1}, "more than"),
    ({**LLAMA, "model_type": "nemotron_h"}, "no key says what layer 0 is: a mixer or a feed-forward part"),
    ({**LLAMA, "model_type": "bamba", "attn_layer_indices": 3}, "attn_layer_indices must be a list of layers"),
]  # fmt: skip


def test_a_config_that_is_nested_deeply_raises_one_sentence():
    data = b'{"model_type": "llama", "text_config": ' + 100_000 * b'{"a":' + b"1" + 100_000 * b"}" + b"}"
    with pytest.raises(BadDescriptor, match=r"c\.json: the objects of a config are nested too deeply"):
        read_config(data, "c.json")


@pytest.mark.spread(8)
@pytest.mark.parametrize(("config", "message"), BAD)
def test_a_bad_config_raises_one_sentence(config, message, traced_here):
    with pytest.raises(BadDescriptor, match=rf"some/model/config.json: .*{message}"):
        network(config)


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (
            LLAMA,
            SequenceOptions(4096),
            r"knows 2048 positions \(\$.max_position_embeddings\); a sequence of 4096 tokens is too long",
        ),
        (LLAMA, SequenceOptions(context=2048, phase="decode"), "a context of 2048 and one more token is too long"),
        (LLAMA, SequenceOptions(context=8), "is for --phase decode, not for inference"),
        (LLAMA, SequenceOptions(8, phase="decode"), "computes one token of each sequence"),
        (LLAMA, SequenceOptions(0), r"--sequence-length must be an integer >= 1 \(got 0\)"),
        (
            PLAIN | {"model_type": "bert"},
            SequenceOptions(phase="decode"),
            "needs a model that writes text; bert does not",
        ),
        (PLAIN | {"model_type": "vit"}, SequenceOptions(16), "vit reads images"),
    ],
)
def test_lengths_that_do_not_fit_raise_one_sentence(config, options, message):
    with pytest.raises(BadValue, match=message):
        network(config, options)


def test_the_infinity_of_python_is_read(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "time_step_limit": [0.0, float("inf")]}))
    assert find_network(str(path)).parameters == network(LLAMA).parameters


def test_a_file_that_is_no_json_object_raises(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('["model_type":')
    with pytest.raises(BadDescriptor, match=r"config\.json"):
        find_network(str(path))


def test_a_network_of_images_has_no_sequence_length():
    with pytest.raises(BadValue, match="resnet50 does not read sequences"):
        find_network("resnet50", None, SequenceOptions(512))


def test_a_config_is_named_after_its_folder(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(LLAMA))
    assert find_network(str(tmp_path / "mine" / "config.json")).name == "mine"


ROUTED = {
    **LLAMA, "model_type": "deepseek_v3", "num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 16,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "key", "known"),
    [
        (LLAMA, "hidden_act", "silu"),
        (ROUTED, "hidden_act", "silu"),
        ({**LLAMA, "model_type": "kimi_k9"}, "hidden_act", "silu"),
        ({**LLAMA, "model_type": "bert"}, "hidden_act", "silu"),
        (T5, "feed_forward_proj", "silu"),
    ],
)
def test_an_unknown_activation_costs_as_silu_and_a_note_says_so(config, key, known):
    """Kimi K3's ``situ`` is such an activation: a new name changes no time to speak of."""
    known_network = network(config | {key: known})
    found = network(config | {key: "situ"})
    assert found.layers == known_network.layers
    (note,) = set(found.notes) - set(known_network.notes)
    assert note == f"the activation function 'situ' ($.{key}) is unknown: it costs as SiLU"


def test_the_activation_of_a_tower_may_be_unknown():
    vision = {"model_type": "qwen2_5_vl", "depth": 2, "hidden_size": 64, "num_heads": 4, "out_hidden_size": 64,
              "intermediate_size": 128, "patch_size": 14, "hidden_act": "situ"}  # fmt: skip
    text = {**LLAMA, "model_type": "qwen2", "hidden_size": 64}
    found = network({"model_type": "qwen2_5_vl", "text_config": text, "vision_config": vision})
    assert "the activation function 'situ' ($.hidden_act) is unknown: it costs as SiLU" in found.notes


def test_an_unknown_norm_costs_as_the_known_one_and_a_note_says_so():
    gte = {**LLAMA, "model_type": "gte", "type_vocab_size": 2}
    known, found = network(gte), network({**gte, "layer_norm_type": "dynamic_tanh"})
    assert found.layers == known.layers
    (note,) = set(found.notes) - set(known.notes)
    assert note == "the value 'dynamic_tanh' of $.layer_norm_type is unknown: it costs as 'layer_norm'"


def test_the_answer_says_that_an_activation_is_unknown(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | {"hidden_act": "situ"}))
    answer = CliRunner().invoke(main, ["predict", str(path), "--gpu", "h100-sxm"])
    assert answer.exit_code == 0
    assert "costs as SiLU" in " ".join(answer.output.split())


@pytest.mark.parametrize("name", [
    "llama-3.2-1b", "gemma-4-e2b", "deepseek-v3", "qwen3-next-80b-a3b", "nemotron-nano-9b-v2", "gpt-oss-20b",
])  # fmt: skip
@pytest.mark.parametrize("blocks", [1, 4])
def test_the_first_blocks_are_those_of_the_whole_network(name, blocks):
    """Layer by layer, also where one table has values for all blocks (Gemma's embeddings per layer)."""
    whole = {layer.name: layer for layer in find_network(name, options=SequenceOptions(8)).layers}
    part = find_network(name, options=SequenceOptions(8, blocks=blocks)).layers
    assert {layer.place.number for layer in part if layer.place.block} == set(range(blocks))
    for layer in part:
        same = whole[layer.name]
        assert (layer.kind, layer.inputs, layer.outputs) == (same.kind, same.inputs, same.outputs), layer.name
        assert (layer.weights, layer.attributes, layer.parameters) == (same.weights, same.attributes, same.parameters)

"""Decoders without experts since 2025, and a few older ones."""

from __future__ import annotations

from ...blocks.traits import Norms, Projection
from ...keys import Activation, Flag, Fraction, HeadSize, Integer, ObjectOf, QuotientOf, Record, RoundedUp
from ...layer_rules import Marked, Not
from ..family import BIASED, NEXT_TOKEN, POST_NORMS, QWEN_WINDOW, TIED, Family, all_but_every, heads_of

_WIDE_HEADS = heads_of(128)
_ONE_BIAS = {"bias": Flag("use_bias"), "output_bias": Flag("use_bias")}

FAMILIES: dict[str, Family] = {
    "mimo": Family(
        name="MiMo", longest=32768, attention={"bias": Flag("attention_bias", True)},
        window=Integer("sliding_window", None), windowed=QWEN_WINDOW, next_token=NEXT_TOKEN,
    ),
    "olmo3": Family(
        name="Olmo3", block={"norms": POST_NORMS}, attention={**BIASED, "query_key_norm": "full_width"},
        window=Integer("sliding_window", 4096),
        windowed=all_but_every(4),
    ),
    "seed_oss": Family(
        name="SeedOss", longest=524288, block={"dropout": Fraction("residual_dropout", 0.1)},
        attention={
            **_WIDE_HEADS, "bias": Flag("attention_bias", True), "output_bias": Flag("attention_out_bias"),
            "dropout": Fraction("attention_dropout", 0.1),
        },
        feed_forward={"bias": Flag("mlp_bias")},
    ),
    "ernie4_5": Family(
        name="Ernie4_5", longest=131072, decoder={"is_tied": TIED},
        attention={**_ONE_BIAS, **_WIDE_HEADS}, feed_forward={"bias": Flag("use_bias")},
    ),
    "hunyuan_v1_dense": Family(
        name="HunYuanDenseV1", attention={**BIASED, "query_key_norm": "per_head_after_rotary"},
    ),
    "ministral3": Family(
        name="Ministral3", longest=262144, attention=_WIDE_HEADS, window=Integer("sliding_window", None),
    ),
    "apertus": Family(
        name="Apertus", longest=65536, attention={**BIASED, "query_key_norm": "per_head"},
        block={"norms": Norms("attention_layernorm", before_feed_forward="feedforward_layernorm")},
        feed_forward={"is_gated": False, "activation": Activation(default="xielu")},
    ),
    "arcee": Family(
        name="Arcee", longest=4096, attention=BIASED,
        feed_forward={"is_gated": False, "bias": Flag("mlp_bias"), "activation": Activation(default="relu2")},
    ),
    "bitnet": Family(
        name="BitNet", attention={**BIASED, "output_norm": "attn_sub_norm"},
        feed_forward={"inner_norm": "ffn_sub_norm", "activation": Activation(default="relu2")},
    ),
    "helium": Family(
        name="Helium", longest=4096, attention={**_WIDE_HEADS, "bias": Flag("attention_bias")},
        feed_forward={"bias": Flag("mlp_bias")},
    ),
    "glm": Family(
        name="Glm", longest=131072,
        attention={
            "bias": Flag("attention_bias", True), **heads_of(128, 0.5),
        },
        feed_forward={"packed": "gate_up_proj", "activation_module": "activation_fn"},
    ),
    "internlm3": Family(
        name="InternLM3", other_classes=("LlamaForCausalLM",), longest=32768,  # as transformers names it
        attention={**_WIDE_HEADS, "bias": Flag("qkv_bias"), "output_bias": Flag("bias")},
        feed_forward={"bias": Flag("bias")},
    ),
    "molmo_text": Family(
        name="Molmo", longest=4096,
        feed_forward={"inner_size": QuotientOf(Integer("intermediate_size"), Integer("", 2))},
        attention={"bias": Flag("qkv_bias", True)}, decoder={"is_tied": Flag("weight_tying")},
        unread=(("norm_after", (False,)), ("attention_layer_norm", (False,))),
    ),
    "nemotron-nas": Family(  # Puzzle: layers with heads and inner sizes of their own, or without a part
        name="DeciLM", longest=131072, own_keys=ObjectOf("block_configs"),
        mixes=Not(Marked("block_configs", "attention", "no_op")),
        replacing=((
            Marked("block_configs", "attention", "replace_with_linear"),
            Record(Projection, {"module": "self_attn", "bias": Flag("attention_bias")}),
        ),),
        feeds=Not(Marked("block_configs", "ffn", "no_op")),
        feeds_plainly=Marked("block_configs", "ffn", "replace_with_linear"),
        plain_part={"module": "mlp", "bias": Flag("mlp_bias")},
        attention={
            **BIASED, "head_size": HeadSize(key=""),
            "kv_heads": QuotientOf(Integer("num_attention_heads"), Integer("attention_n_heads_in_group", 1)),
        },
        feed_forward={
            "bias": Flag("mlp_bias"), "inner_size": RoundedUp("hidden_size", "ffn_ffn_mult", 1.0, "", 256, 2 / 3),
        },
    ),
    "cwm": Family(
        name="Cwm", longest=131072, attention=_WIDE_HEADS, window=Integer("sliding_window", 8192),
        windowed=all_but_every(4, "global_window_period", 0),
    ),
}  # fmt: skip

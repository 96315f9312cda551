"""Decoders without experts since 2025, and a few older ones."""

from __future__ import annotations

from ...blocks.traits import Norms, Projections
from ...keys import Activation, Choice, EveryNth, Flag, Fraction, HeadSize, Integer, Listed, Multiple, Not, RotarySize
from ..family import BIASED, NEXT_TOKEN, POST_NORMS, QWEN_WINDOW, Family

_WIDE_HEADS = {"head_size": HeadSize(128), "rotary_size": RotarySize(head_size=HeadSize(128))}
_ONE_BIAS = {"bias": Flag("use_bias"), "output_bias": Flag("use_bias")}

FAMILIES: dict[str, Family] = {
    "mimo": Family(
        name="MiMo", longest=32768, attention={"bias": Flag("attention_bias", True)},
        window=Integer("sliding_window", None), windowed=QWEN_WINDOW, next_token=NEXT_TOKEN,
    ),
    "olmo3": Family(
        name="Olmo3", block={"norms": POST_NORMS}, attention={**BIASED, "query_key_norm": "full_width"},
        window=Integer("sliding_window", 4096),
        windowed=Listed("sliding_attention", otherwise=Not(EveryNth(Integer("sliding_window_pattern", 4)))),
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
        name="Ernie4_5", longest=131072, decoder={"is_tied": Flag("tie_word_embeddings", True)},
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
            "bias": Flag("attention_bias", True), "head_size": HeadSize(128),
            "rotary_size": RotarySize(0.5, HeadSize(128)),
        },
        feed_forward={"packed": "gate_up_proj", "activation_module": "activation_fn"},
    ),
    "internlm3": Family(
        name="InternLM3", longest=32768,
        attention={**_WIDE_HEADS, "bias": Flag("qkv_bias"), "output_bias": Flag("bias")},
        feed_forward={"bias": Flag("bias")},
    ),
    "cwm": Family(
        name="Cwm", longest=131072, attention=_WIDE_HEADS, window=Integer("sliding_window", 8192),
        windowed=Listed("sliding_attention", otherwise=Not(EveryNth(Integer("global_window_period", 4), 0))),
    ),
    "gpt_bigcode": Family(
        name="GPTBigCode", layer_count="n_layer", positions="n_positions", longest=1024,
        decoder={
            "hidden_size": Integer("n_embd"), "root": "transformer", "block_list": "h", "embedding": "wte",
            "final_norm": "ln_f", "norm": "layer", "learned_positions": Integer("n_positions", 1024),
            "is_tied": Flag("tie_word_embeddings", True), "dropout": Fraction("embd_pdrop", 0.1),
        },
        block={"norm": "layer", "norms": Norms("ln_1", "", "ln_2"), "dropout": Fraction("resid_pdrop", 0.1)},
        attention={
            "heads": Integer("n_head"), "kv_heads": Choice("multi_query", {True: 1, False: Integer("n_head")}, True),
            "head_size": HeadSize(key="", hidden="n_embd", heads="n_head"), "module": "attn",
            "projections": Projections(packed="c_attn", output="c_proj"), "rotary_size": 0,
            "packed_layout": Choice("multi_query", {True: "split", False: "heads"}, True),
            "dropout": Fraction("attn_pdrop", 0.1), "bias": True, "output_bias": True,
        },
        feed_forward={
            "is_gated": False, "up": "c_fc", "down": "c_proj", "bias": True, "activation_module": "act",
            "inner_size": Multiple("n_inner", 4, "n_embd"),
            "activation": Activation(("activation_function",), "gelu_pytorch_tanh"),
        },
    ),
    "codegen": Family(
        name="CodeGen", layer_count="n_layer", positions="n_positions",
        decoder={
            "hidden_size": Integer("n_embd"), "root": "transformer", "block_list": "h", "embedding": "wte",
            "final_norm": "ln_f", "norm": "layer", "head_bias": True, "dropout": Fraction("embd_pdrop"),
        },
        block={
            "norm": "layer", "norms": Norms("ln_1", "", ""), "is_parallel": True, "dropout": Fraction("resid_pdrop"),
        },
        attention={
            "heads": Integer("n_head"), "kv_heads": Integer("n_head"),
            "head_size": HeadSize(key="", hidden="n_embd", heads="n_head"), "module": "attn",
            "projections": Projections(packed="qkv_proj", output="out_proj"), "rotary_size": Integer("rotary_dim", 64),
            "dropout": Fraction("attn_pdrop"),
        },
        feed_forward={
            "is_gated": False, "up": "fc_in", "down": "fc_out", "bias": True, "activation_module": "act",
            "inner_size": Multiple("n_inner", 4, "n_embd"),
            "activation": Activation(("activation_function",), "gelu_new"),
        },
    ),
}  # fmt: skip

"""Decoders up to 2025: one record of the parts of a block for each ``model_type`` of a config.

Each record says which key of the config gives each field of the records in `traits`, where it differs from
the standards of `family`, which are LLaMA's. Sources are the modules of ``transformers`` 5 of the
same names, with which tests compare every family.
"""

from __future__ import annotations

import msgspec

from ...blocks.traits import Norms, Projections
from ...keys import Activation, Choice, Flag, Fraction, Integer, IsSet, KeyValueHeads, RotarySize
from ...layer_rules import All, EveryNth, From, Listed, Not, Numbered, When
from ..family import (
    BIASED,
    DEEPSEEK_EXPERTS,
    DEEPSEEK_SHARED,
    GRANITE_EXPERTS,
    LOCAL_EXPERTS,
    NEXT_TOKEN,
    ONE_NORM,
    POST_NORMS,
    QWEN_SPARSE,
    QWEN_WINDOW,
    SANDWICH,
    TIED,
    TWO_LAYER,
    Family,
    all_but_every,
    heads_of,
)  # fmt: skip

FAMILIES: dict[str, Family] = {
    "llama": Family(name="Llama", attention=BIASED, feed_forward={"bias": Flag("mlp_bias")}),
    "mistral": Family(name="Mistral", longest=131072, window=Integer("sliding_window", None)),
    "ministral": Family(
        name="Ministral", longest=131072, window=Integer("sliding_window", None),
        windowed=Listed("sliding_attention", otherwise=All()),
    ),
    "mixtral": Family(
        name="Mixtral", longest=131072, window=Integer("sliding_window", None),
        experts={**LOCAL_EXPERTS, "active": Integer("num_experts_per_tok", 2)},
    ),
    "qwen2": Family(
        name="Qwen2", longest=32768, attention={"bias": True}, window=Integer("sliding_window", None),
        windowed=QWEN_WINDOW,
    ),
    "qwen2_moe": Family(
        name="Qwen2Moe", longest=32768, attention={"bias": Flag("qkv_bias", True)},
        window=Integer("sliding_window", None), windowed=QWEN_WINDOW,
        experts={"has_shared_gate": True},
        shared={"module": "shared_expert", "inner_size": Integer("shared_expert_intermediate_size")},
        sparse=QWEN_SPARSE,
    ),
    "qwen3": Family(
        name="Qwen3", longest=32768,
        attention={
            **BIASED, "query_key_norm": "per_head", **heads_of(128),
        },
        window=Integer("sliding_window", None), windowed=QWEN_WINDOW,
    ),
    "qwen3_moe": Family(
        name="Qwen3Moe", longest=32768, attention={**BIASED, "query_key_norm": "per_head"},
        window=Integer("sliding_window", None), windowed=QWEN_WINDOW,
        experts={"count": Integer("num_experts num_local_experts")},
        sparse=QWEN_SPARSE,
    ),
    "gemma": Family(
        name="Gemma", longest=8192, block={"norm": "rms_one_plus"},
        decoder={
            "norm": "rms_one_plus", "has_embedding_scale": True, "is_tied": TIED,
        },
        attention={
            **BIASED, **heads_of(256),
        },
        feed_forward={"activation": "gelu_pytorch_tanh"},
    ),
    "gemma2": Family(
        name="Gemma2", longest=8192, block={"norm": "rms_one_plus", "norms": SANDWICH},
        decoder={
            "norm": "rms_one_plus", "has_embedding_scale": True, "is_tied": TIED,
            "has_logit_softcap": IsSet("final_logit_softcapping", 30.0),
        },
        attention={
            **BIASED, **heads_of(256),
            "has_softcap": IsSet("attn_logit_softcapping", 50.0),
        },
        feed_forward={"activation": Activation(("hidden_activation",), "gelu_pytorch_tanh")},
        window=Integer("sliding_window", 4096),
        windowed=Listed("sliding_attention", otherwise=EveryNth(Integer("sliding_window_pattern", 2), 0)),
    ),
    "gemma3_text": Family(
        name="Gemma3", model_class="Gemma3TextModel", longest=131072,
        block={"norm": "rms_one_plus", "norms": SANDWICH},
        decoder={
            "norm": "rms_one_plus", "has_embedding_scale": True, "is_tied": TIED,
            "has_logit_softcap": IsSet("final_logit_softcapping"), "vocabulary": Integer("vocab_size", 262208),
        },
        attention={
            **BIASED, "heads": Integer("num_attention_heads", 8),
            "kv_heads": KeyValueHeads(4, heads_default=8), **heads_of(256), "query_key_norm": "per_head",
            "norm": "rms_one_plus", "has_softcap": IsSet("attn_logit_softcapping"),
        },
        feed_forward={"activation": Activation(("hidden_activation",), "gelu_pytorch_tanh")},
        window=Integer("sliding_window", 4096),
        windowed=all_but_every(6),
    ),
    "phi": Family(
        name="Phi", block={"norm": "layer", "norms": ONE_NORM, "is_parallel": True, "dropout": Fraction("resid_pdrop")},
        decoder={"norm": "layer", "final_norm": "final_layernorm", "head_bias": True,
                 "dropout": Fraction("embd_pdrop")},
        attention={
            "bias": True, "output_bias": True, "projections": Projections(output="dense"),
            "rotary_size": RotarySize(0.5),
        },
        feed_forward={**TWO_LAYER, "bias": True, "activation": Activation(("hidden_act",), "gelu_new")},
        unread=(("qk_layernorm", (False,)),),
    ),
    "phi3": Family(
        name="Phi3", longest=131072, block={"dropout": Fraction("resid_pdrop")},
        attention={"projections": Projections(packed="qkv_proj")},
        feed_forward={"packed": "gate_up_proj", "activation_module": "activation_fn"},
        window=Integer("sliding_window", None),
    ),
    "phimoe": Family(
        name="Phimoe", longest=131072, attention=BIASED, block={"norm": "layer"},
        decoder={"norm": "layer", "head_bias": Flag("lm_head_bias")},
        window=Integer("sliding_window", None),
        experts={
            **LOCAL_EXPERTS, "router": "router", "is_normalised": False, "active": Integer("num_experts_per_tok", 2),
        },
    ),
    "deepseek_v2": Family(
        name="DeepseekV2", embedding_is_active=False, longest=163840, latent={"rotary_style": "complex"},
        experts={**DEEPSEEK_EXPERTS, "scoring": "softmax", "score_correction": False,
                 "is_normalised": Flag("norm_topk_prob")},
        shared={**DEEPSEEK_SHARED, "multiple": Integer("n_shared_experts", 2)},
        sparse=From(Integer("first_k_dense_replace", 0)),
    ),
    "deepseek_v3": Family(
        name="DeepseekV3", embedding_is_active=False,
        longest=163840, latent={}, experts=DEEPSEEK_EXPERTS, shared=DEEPSEEK_SHARED,
        sparse=From(Integer("first_k_dense_replace", 3)), next_token=NEXT_TOKEN,
    ),
    "minicpm3": Family(
        name="MiniCPM3", longest=32768, latent={}, block={"has_residual_scale": True},
        decoder={"has_embedding_scale": True, "has_logit_scale": True, "is_tied": TIED},
        feed_forward={"bias": Flag("mlp_bias")},
    ),
    "gpt_oss": Family(
        name="GptOss", embedding_is_active=False, longest=131072,
        attention={"bias": Flag("attention_bias", True), "output_bias": Flag("attention_bias", True),
                   "has_sinks": True},
        window=Integer("sliding_window", 128),
        windowed=Listed("sliding_attention", otherwise=EveryNth(Integer("sliding_window_pattern", 2), 0)),
        experts={
            **LOCAL_EXPERTS, "active": Integer("num_experts_per_tok experts_per_token", 4), "router": "router",
            "router_bias": True, "bias": True, "scoring": "softmax_of_chosen", "is_normalised": False,
            "is_clamped": True,
        },
    ),
    "glm4": Family(
        name="Glm4", longest=131072,
        block={"norms": Norms("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm",
                              "post_mlp_layernorm")},
        attention={"bias": Flag("attention_bias", True), "rotary_size": RotarySize(0.5)},
        feed_forward={"packed": "gate_up_proj", "activation_module": "activation_fn"},
    ),
    "glm4_moe": Family(
        name="Glm4Moe", embedding_is_active=False, longest=131072,
        attention={
            "bias": Flag("attention_bias"), "rotary_size": RotarySize(0.5),
            "query_key_norm": Choice("use_qk_norm", {True: "per_head", False: ""}, False),
        },
        experts=DEEPSEEK_EXPERTS, shared=DEEPSEEK_SHARED, sparse=From(Integer("first_k_dense_replace", 1)),
        next_token=NEXT_TOKEN,
    ),
    "olmo": Family(
        name="Olmo", block={"norm": "layer_plain"}, decoder={"norm": "layer_plain"}, attention=BIASED,
        unread=(("clip_qkv", (None,)),),
    ),
    "olmo2": Family(
        name="Olmo2", longest=4096, block={"norms": POST_NORMS}, attention={**BIASED, "query_key_norm": "full_width"},
    ),
    "olmoe": Family(
        name="Olmoe", longest=4096, attention={**BIASED, "query_key_norm": "full_width"},
        experts={"inner_size": Integer("intermediate_size")}, unread=(("clip_qkv", (None,)),),
    ),
    "granite": Family(
        name="Granite", attention=BIASED, feed_forward={"bias": Flag("mlp_bias")},
        block={"has_residual_scale": True}, decoder={"has_embedding_scale": True, "has_logit_scale": True},
    ),
    "granitemoe": Family(
        name="GraniteMoe", attention={"bias": Flag("attention_bias"), "output_bias": Flag("attention_bias")},
        block={"has_residual_scale": True}, decoder={"has_embedding_scale": True, "has_logit_scale": True},
        experts=GRANITE_EXPERTS,
    ),
    "stablelm": Family(
        name="StableLm", longest=4096, decoder={"norm": "layer"},
        block={
            "norm": "layer", "dropout": Fraction("hidden_dropout"), "is_parallel": Flag("use_parallel_residual"),
            "norms": Choice("use_parallel_residual", {True: ONE_NORM, False: Norms()}, False),
        },
        attention={
            "bias": Flag("use_qkv_bias"), "rotary_size": RotarySize(0.25), "norm": "layer_no_bias",
            # A norm for each head, with weights of its own: as many as of a norm over all heads
            "query_key_norm": Choice("qk_layernorm", {True: "full_width", False: ""}, False),
        },
    ),
    "starcoder2": Family(
        name="Starcoder2", longest=16384, block={"norm": "layer", "dropout": Fraction("residual_dropout")},
        decoder={"norm": "layer", "is_tied": TIED,
                 "dropout": Fraction("embedding_dropout")},
        attention={"bias": Flag("use_bias", True), "output_bias": Flag("use_bias", True)},
        feed_forward={
            "is_gated": False, "up": "c_fc", "down": "c_proj", "activation_module": "act",
            "bias": Flag("use_bias", True), "activation": Activation(("hidden_act",), "gelu_pytorch_tanh"),
        },
        window=Integer("sliding_window", None),
    ),
    "cohere": Family(
        name="Cohere", longest=8192,
        block={"norm": "layer_written_out", "norms": ONE_NORM, "is_parallel": True},
        decoder={
            "norm": "layer_written_out", "is_tied": TIED, "has_logit_scale": True,
        },
        attention={
            **BIASED, "query_key_norm": Choice("use_qk_norm", {True: "per_head", False: ""}, False),
            "norm": "layer_written_out",
        },
    ),
    "cohere2": Family(
        name="Cohere2", longest=131072,
        block={"norm": "layer_written_out", "norms": ONE_NORM, "is_parallel": True},
        decoder={
            "norm": "layer_written_out", "is_tied": TIED, "has_logit_scale": True,
        },
        attention=BIASED, window=Integer("sliding_window", 4096),
        windowed=all_but_every(4),
        rotated=all_but_every(4),
    ),
    "nemotron": Family(
        name="Nemotron", longest=4096, block={"norm": "layer_one_plus"}, decoder={"norm": "layer_one_plus"},
        attention={**BIASED, "rotary_size": RotarySize(0.5)},
        feed_forward={
            "is_gated": False, "bias": Flag("mlp_bias"), "activation": Activation(("hidden_act",), "relu2"),
        },
    ),
    "exaone4": Family(
        name="Exaone4", longest=131072, block={"norms": POST_NORMS}, attention={"query_key_norm": "per_head"},
        window=Integer("sliding_window", None),
        windowed=all_but_every(4),
        rotated=When(IsSet("sliding_window"), Listed("sliding_attention", otherwise=All()), otherwise=All()),
    ),
    "smollm3": Family(
        name="SmolLM3", longest=65536, attention=BIASED, feed_forward={"bias": Flag("mlp_bias")},
        decoder={"is_tied": TIED},
        rotated=Listed(1, "no_rope_layers", otherwise=Not(EveryNth(Integer("no_rope_layer_interval", 4)))),
        window=Integer("sliding_window", None), windowed=When(Flag("use_sliding_window"), Listed("sliding_attention")),
    ),
    "llama4_text": Family(
        name="Llama4", model_class="Llama4TextModel", longest=131072,
        attention={**BIASED, "query_key_norm": Choice("use_qk_norm", {True: "after_rotary", False: ""}, True),
                   "rotary_style": "complex"},
        rotated=Listed(1, "no_rope_layers", otherwise=Not(EveryNth(Integer("no_rope_layer_interval", 4)))),
        chunk=Integer("attention_chunk_size", 8192),
        chunked=Listed("chunked_attention", otherwise=Not(EveryNth(Integer("no_rope_layer_interval", 4)))),
        dense_feed_forward={"inner_size": Integer("intermediate_size_mlp"), "module": "feed_forward",
                            "activation_module": "activation_fn"},
        experts={**LOCAL_EXPERTS, "module": "feed_forward", "router": "router", "scoring": "sigmoid_of_chosen",
                 "is_normalised": False, "active": Integer("num_experts_per_tok", 1)},
        shared={"module": "shared_expert", "activation_module": "activation_fn"},
        sparse=Numbered("moe_layers", otherwise=EveryNth(Integer("interleave_moe_layer_step", 1))),
    ),
}  # fmt: skip
FAMILIES["kimi_k2"] = FAMILIES["deepseek_v3"]  # its configs name DeepSeek's classes
FAMILIES["Dream"] = msgspec.structs.replace(FAMILIES["qwen2"], name="Dream", head_class="DreamModel")

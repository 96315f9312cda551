"""Decoders up to 2025: one record of the parts of a block for each ``model_type`` of a config.

Each record says which key of the config gives each field of the records in `traits`, where it differs from
`STANDARD_ATTENTION` and the other standards, which are LLaMA's. Sources are the modules of ``transformers`` 5 of the
same names, with which tests compare every family.
"""

from __future__ import annotations

from ...blocks.traits import Norms, Projections
from ...keys import (
    Activation,
    All,
    Both,
    Choice,
    EveryNth,
    FalconHeads,
    Flag,
    Fraction,
    From,
    HeadSize,
    Integer,
    IsSet,
    KeyValueHeads,
    Listed,
    Multiple,
    Not,
    Numbered,
    RotarySize,
    Sum,
    When,
)  # fmt: skip
from ..family import (
    BIASED,
    CONV1D_PART,
    DEEPSEEK_EXPERTS,
    DEEPSEEK_SHARED,
    GPT_PROJECTIONS,
    LOCAL_EXPERTS,
    NEXT_TOKEN,
    ONE_NORM,
    POST_NORMS,
    QWEN_WINDOW,
    SANDWICH,
    TWO_LAYER,
    Family,
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
        sparse=Both(EveryNth(Integer("decoder_sparse_step", 1)), Not(Numbered("mlp_only_layers"))),
    ),
    "qwen3": Family(
        name="Qwen3", longest=32768,
        attention={
            **BIASED, "query_key_norm": "per_head", "head_size": HeadSize(128),
            "rotary_size": RotarySize(head_size=HeadSize(128)),
        },
        window=Integer("sliding_window", None), windowed=QWEN_WINDOW,
    ),
    "qwen3_moe": Family(
        name="Qwen3Moe", longest=32768, attention={**BIASED, "query_key_norm": "per_head"},
        window=Integer("sliding_window", None), windowed=QWEN_WINDOW,
        experts={"count": Integer("num_experts num_local_experts")},
        sparse=Both(EveryNth(Integer("decoder_sparse_step", 1)), Not(Numbered("mlp_only_layers"))),
    ),
    "gemma": Family(
        name="Gemma", longest=8192, block={"norm": "rms_one_plus"},
        decoder={
            "norm": "rms_one_plus", "has_embedding_scale": True, "is_tied": Flag("tie_word_embeddings", True),
        },
        attention={
            **BIASED, "head_size": HeadSize(256), "rotary_size": RotarySize(head_size=HeadSize(256)),
        },
        feed_forward={"activation": "gelu_pytorch_tanh"},
    ),
    "gemma2": Family(
        name="Gemma2", longest=8192, block={"norm": "rms_one_plus", "norms": SANDWICH},
        decoder={
            "norm": "rms_one_plus", "has_embedding_scale": True, "is_tied": Flag("tie_word_embeddings", True),
            "has_logit_softcap": IsSet("final_logit_softcapping", 30.0),
        },
        attention={
            **BIASED, "head_size": HeadSize(256), "rotary_size": RotarySize(head_size=HeadSize(256)),
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
            "norm": "rms_one_plus", "has_embedding_scale": True, "is_tied": Flag("tie_word_embeddings", True),
            "has_logit_softcap": IsSet("final_logit_softcapping"), "vocabulary": Integer("vocab_size", 262208),
        },
        attention={
            **BIASED, "heads": Integer("num_attention_heads", 8),
            "kv_heads": KeyValueHeads(4, heads_default=8), "head_size": HeadSize(256),
            "rotary_size": RotarySize(head_size=HeadSize(256)), "has_softcap": IsSet("attn_logit_softcapping"),
            "query_key_norm": "per_head", "norm": "rms_one_plus",
        },
        feed_forward={"activation": Activation(("hidden_activation",), "gelu_pytorch_tanh")},
        window=Integer("sliding_window", 4096),
        windowed=Listed("sliding_attention", otherwise=Not(EveryNth(Integer("sliding_window_pattern", 6)))),
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
        decoder={"has_embedding_scale": True, "has_logit_scale": True, "is_tied": Flag("tie_word_embeddings", True)},
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
        experts={
            **LOCAL_EXPERTS, "module": "block_sparse_moe", "router": "router", "scoring": "softmax_of_chosen",
            "is_normalised": False,
        },
    ),
    "stablelm": Family(
        name="StableLm", longest=4096, block={"norm": "layer", "dropout": Fraction("hidden_dropout")},
        decoder={"norm": "layer"}, attention={"bias": Flag("use_qkv_bias"), "rotary_size": RotarySize(0.25)},
        unread=(("qk_layernorm", (False,)), ("use_parallel_residual", (False,))),
    ),
    "starcoder2": Family(
        name="Starcoder2", longest=16384, block={"norm": "layer", "dropout": Fraction("residual_dropout")},
        decoder={"norm": "layer", "is_tied": Flag("tie_word_embeddings", True),
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
            "norm": "layer_written_out", "is_tied": Flag("tie_word_embeddings", True), "has_logit_scale": True,
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
            "norm": "layer_written_out", "is_tied": Flag("tie_word_embeddings", True), "has_logit_scale": True,
        },
        attention=BIASED, window=Integer("sliding_window", 4096),
        windowed=Listed("sliding_attention", otherwise=Not(EveryNth(Integer("sliding_window_pattern", 4)))),
        rotated=Listed("sliding_attention", otherwise=Not(EveryNth(Integer("sliding_window_pattern", 4)))),
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
        windowed=Listed("sliding_attention", otherwise=Not(EveryNth(Integer("sliding_window_pattern", 4)))),
        rotated=When(IsSet("sliding_window"), Listed("sliding_attention", otherwise=All()), otherwise=All()),
    ),
    "smollm3": Family(
        name="SmolLM3", longest=65536, attention=BIASED, feed_forward={"bias": Flag("mlp_bias")},
        decoder={"is_tied": Flag("tie_word_embeddings", True)},
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
    "gpt2": Family(
        name="GPT2", head_class="GPT2LMHeadModel", layer_count="n_layer", positions="n_positions", longest=1024,
        decoder={
            "hidden_size": Integer("n_embd"), "root": "transformer", "block_list": "h", "embedding": "wte",
            "final_norm": "ln_f", "norm": "layer", "learned_positions": Integer("n_positions", 1024),
            "is_tied": Flag("tie_word_embeddings", True), "dropout": Fraction("embd_pdrop", 0.1),
        },
        block={"norm": "layer", "norms": Norms("ln_1", "", "ln_2"), "dropout": Fraction("resid_pdrop", 0.1)},
        attention={
            "heads": Integer("n_head"), "kv_heads": Integer("n_head"),
            "head_size": HeadSize(key="", hidden="n_embd", heads="n_head"), "module": "attn",
            "projections": GPT_PROJECTIONS, "transposed_weights": True, "rotary_size": 0,
            "dropout": Fraction("attn_pdrop", 0.1), "bias": True, "output_bias": True,
        },
        feed_forward=CONV1D_PART,
    ),
    "gpt_neo": Family(
        name="GPTNeo", layer_count="num_layers",
        decoder={
            "root": "transformer", "block_list": "h", "embedding": "wte", "final_norm": "ln_f", "norm": "layer",
            "learned_positions": Integer("max_position_embeddings", 2048), "dropout": Fraction("embed_dropout"),
            "is_tied": Flag("tie_word_embeddings", True),
        },
        block={"norm": "layer", "norms": Norms("ln_1", "", "ln_2"), "dropout": Fraction("resid_dropout")},
        attention={
            "heads": Integer("num_heads"), "kv_heads": Integer("num_heads"),
            "head_size": HeadSize(key="", heads="num_heads"), "module": "attn.attention", "rotary_size": 0,
            "projections": Projections(output="out_proj"), "output_bias": True, "is_always_unfused": True,
        },
        feed_forward={
            "is_gated": False, "up": "c_fc", "down": "c_proj", "bias": True, "activation_module": "act",
            "inner_size": Multiple("intermediate_size", 4, "hidden_size"),
            "activation": Activation(("activation_function",), "gelu_new"),
        },
        window=Integer("window_size", 256),
        windowed=Listed("local", "attention_layers", otherwise=EveryNth(Integer("local_period", 2))),
    ),
    "gptj": Family(
        name="GPTJ", layer_count="n_layer", positions="n_positions",
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
            "projections": Projections(output="out_proj"), "rotary_size": Integer("rotary_dim", 64),
            "rotary_style": "interleaved", "is_always_unfused": True, "dropout": Fraction("attn_pdrop"),
        },
        feed_forward={
            "is_gated": False, "up": "fc_in", "down": "fc_out", "bias": True, "activation_module": "act",
            "inner_size": Multiple("n_inner", 4, "n_embd"),
            "activation": Activation(("activation_function",), "gelu_new"),
        },
    ),
    "opt": Family(
        name="OPT",
        decoder={
            "root": "model.decoder", "norm": "layer", "final_norm": "final_layer_norm",
            "learned_positions": Sum("max_position_embeddings", 2048, 2), "position_embedding": "embed_positions",
            "is_tied": Flag("tie_word_embeddings", True),
        },
        block={"norm": "layer", "norms": Norms("self_attn_layer_norm", "", "final_layer_norm"),
               "dropout": Fraction("dropout", 0.1)},
        attention={
            "bias": Flag("enable_bias", True), "output_bias": Flag("enable_bias", True), "rotary_size": 0,
            "kv_heads": Integer("num_attention_heads"), "projections": Projections(output="out_proj"),
        },
        feed_forward={
            **TWO_LAYER, "module": "", "bias": Flag("enable_bias", True), "inner_size": Integer("ffn_dim"),
            "activation": Activation(("activation_function",), "relu"),
        },
        unread=(("do_layer_norm_before", (True,)),), same=(("word_embed_proj_dim", "hidden_size"),),
    ),
    "falcon": Family(
        name="Falcon",
        decoder={
            "root": "transformer", "block_list": "h", "embedding": "word_embeddings", "final_norm": "ln_f",
            "norm": "layer", "is_tied": Flag("tie_word_embeddings", True),
        },
        block={
            "norm": "layer", "is_parallel": Flag("parallel_attn", True), "dropout": Fraction("hidden_dropout"),
            "norms": Choice(
                "new_decoder_architecture",
                {True: Norms("ln_attn", "", "ln_mlp"), False: Norms(before_feed_forward="")}, False,
            ),
        },
        attention={
            "module": "self_attention", "projections": Projections(packed="query_key_value", output="dense"),
            "packed_layout": "groups", "kv_heads": FalconHeads(), "bias": Flag("bias"), "output_bias": Flag("bias"),
            "has_alibi": Flag("alibi"), "head_size": HeadSize(key=""),
            "rotary_size": RotarySize(head_size=HeadSize(key="")),
        },
        feed_forward={
            "is_gated": False, "up": "dense_h_to_4h", "down": "dense_4h_to_h", "bias": Flag("bias"),
            "activation_module": "act", "inner_size": Multiple("ffn_hidden_size", 4, "hidden_size"),
            "activation": Activation(("activation",), "gelu"),
        },
        unread=(("num_ln_in_parallel_attn", (None, 2)),),
    ),
    "bloom": Family(
        name="Bloom", layer_count="n_layer num_hidden_layers", positions="seq_length", longest=2048,
        decoder={
            "hidden_size": Integer("hidden_size n_embed"), "root": "transformer", "block_list": "h",
            "embedding": "word_embeddings", "embedding_norm": "word_embeddings_layernorm", "final_norm": "ln_f",
            "norm": "layer", "is_tied": Flag("tie_word_embeddings", True),
        },
        block={"norm": "layer", "dropout": Fraction("hidden_dropout")},
        attention={
            "heads": Integer("n_head num_attention_heads"), "kv_heads": Integer("n_head num_attention_heads"),
            "head_size": HeadSize(key="", hidden="hidden_size n_embed", heads="n_head num_attention_heads"),
            "module": "self_attention", "projections": Projections(packed="query_key_value", output="dense"),
            "packed_layout": "heads", "bias": True, "output_bias": True, "rotary_size": 0, "has_alibi": True,
            "is_always_unfused": True,
        },
        feed_forward={
            "is_gated": False, "up": "dense_h_to_4h", "down": "dense_4h_to_h", "bias": True,
            "activation_module": "gelu_impl", "inner_size": Multiple("", 4, "hidden_size n_embed"),
            "activation": "gelu_new",
        },
        unread=(("apply_residual_connection_post_layernorm", (False,)),),
    ),
    "mpt": Family(
        name="Mpt", layer_count="n_layers", positions="max_seq_len",
        decoder={
            "hidden_size": Integer("d_model"), "root": "transformer", "block_list": "blocks", "embedding": "wte",
            "final_norm": "norm_f", "norm": "layer_no_bias", "is_tied": Flag("tie_word_embeddings", True),
        },
        block={"norm": "layer_no_bias", "norms": Norms("norm_1", "", "norm_2"), "dropout": Fraction("resid_pdrop")},
        attention={
            "heads": Integer("n_heads"), "kv_heads": Integer("n_heads"),
            "head_size": HeadSize(key="", hidden="d_model", heads="n_heads"), "module": "attn",
            "projections": Projections(packed="Wqkv", output="out_proj"), "packed_layout": "chunk",
            "rotary_size": 0, "has_alibi": True, "is_always_unfused": True,
        },
        feed_forward={
            "module": "ffn", "is_gated": False, "activation_module": "act", "activation": "gelu",
            "inner_size": Multiple("", Integer("expansion_ratio", 4), "d_model"),
        },
        unread=(("no_bias", (True,)),),
    ),
    "gpt_neox": Family(
        name="GPTNeoX",
        decoder={"root": "gpt_neox", "embedding": "embed_in", "final_norm": "final_layer_norm", "norm": "layer",
                 "dropout": Fraction("hidden_dropout")},
        block={"norm": "layer", "is_parallel": Flag("use_parallel_residual", True),
               "dropout": Fraction("hidden_dropout")},
        attention={
            "module": "attention", "projections": Projections(packed="query_key_value", output="dense"),
            "packed_layout": "heads", "bias": Flag("attention_bias", True),
            "output_bias": Flag("attention_bias", True), "rotary_size": RotarySize(0.25),
            "kv_heads": Integer("num_attention_heads"),
        },
        feed_forward={"is_gated": False, "up": "dense_h_to_4h", "down": "dense_4h_to_h", "bias": True,
                      "activation_module": "act", "activation": Activation(("hidden_act",), "gelu")},
    ),
}  # fmt: skip
FAMILIES["kimi_k2"] = FAMILIES["deepseek_v3"]  # its configs name DeepSeek's classes

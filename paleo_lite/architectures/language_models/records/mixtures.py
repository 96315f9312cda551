"""Mixtures of experts since 2025: sparse attention with an indexer, windows with heads of their own, plain ones."""

from __future__ import annotations

import msgspec

from ...blocks.traits import Compression, HyperConnection, Indexer, Norms, Projections
from ...keys import (
    REQUIRED,
    Activation,
    Choice,
    Flag,
    HeadSize,
    IfSet,
    Integer,
    IsSet,
    ItemOf,
    Multiple,
    Natural,
    Product,
    Record,
    RotarySize,
    ShareOf,
    Uniform,
    Within,
)  # fmt: skip
from ...layer_rules import (
    All,
    Between,
    Both,
    EveryNth,
    From,
    LayerSelection,
    Lettered,
    Listed,
    Not,
    NumberedText,
    Sharing,
    When,
)  # fmt: skip
from ..family import (
    BIASED,
    DEEPSEEK_EXPERTS,
    DEEPSEEK_SHARED,
    GRANITE_EXPERTS,
    LOCAL_EXPERTS,
    NEXT_TOKEN,
    POST_NORMS,
    TIED,
    Family,
    all_but_every,
)  # fmt: skip


def sparse_from(first: int) -> LayerSelection:
    """Return the rule of layers with experts: those that a list names, else all from a given one on."""
    return Listed("sparse", "mlp_layer_types", otherwise=From(Integer("first_k_dense_replace", first)))


_EXAONE_WINDOWS = all_but_every(4)
_AFMOE_WINDOWS = all_but_every(4, "global_attn_every_n_layers")
_INDEXED = {"selected": Integer("index_topk", 2048)}
_INDEXER = {"heads": Integer("index_n_heads", 64), "head_size": Integer("index_head_dim", 128)}
_MIMO_ROTARY = RotarySize(0.334, HeadSize(192))


def _compressed(name: str, ratio: int) -> LayerSelection:
    """Return the rule of DeepSeek-V4's layers with a compression, by its name or by its ratio."""
    return Listed(name, "layer_types", otherwise=Listed(ratio, "compress_ratios"))


def _rate(name: str, key: str, default: int) -> Within:
    """Return the reader of the tokens per compressed key."""
    return Within("compress_rates", Integer(name), Integer(key, default))


FAMILIES: dict[str, Family] = {
    "deepseek_v32": Family(
        name="DeepseekV32", embedding_is_active=False,
        longest=163840, latent=_INDEXED, indexer=_INDEXER, experts=DEEPSEEK_EXPERTS,
        shared=DEEPSEEK_SHARED, sparse=sparse_from(3), next_token=NEXT_TOKEN,
    ),
    "glm_moe_dsa": Family(
        name="GlmMoeDsa", embedding_is_active=False,
        longest=202752, latent=_INDEXED, experts=DEEPSEEK_EXPERTS, shared=DEEPSEEK_SHARED,
        indexer={**_INDEXER, "heads": Integer("index_n_heads", 32)}, sparse=sparse_from(3), next_token=NEXT_TOKEN,
        indexes=Listed("full", "indexer_types", otherwise=Lettered("F", "index_topk_pattern", otherwise=Sharing())),
    ),
    "deepseek_v4": Family(
        name="DeepseekV4", embedding_is_active=False, longest=1048576,
        block={"hyper_connection": Record(HyperConnection, {"streams": Integer("hc_mult", 4)})},
        compressed={
            "heads": Integer("num_attention_heads"), "head_size": Integer("head_dim", 512),
            "rotary_size": Multiple("qk_rope_head_dim", 0.125, "head_dim"), "query_rank": Integer("q_lora_rank", 1024),
            "output_groups": Integer("o_groups", 8), "output_rank": Integer("o_lora_rank", 1024),
            "window": Integer("sliding_window", 128),
        },
        compressions=(
            (_compressed("compressed_sparse_attention", 4), Record(Compression, {
                "rate": _rate("compressed_sparse_attention", "compress_rate_csa", 4), "overlaps": True,
                "selected": Integer("index_topk", 512), "indexer": Record(Indexer, _INDEXER),
            })),
            (_compressed("heavily_compressed_attention", 128), Record(Compression, {
                "rate": _rate("heavily_compressed_attention", "compress_rate_hca", 128),
            })),
        ),
        feed_forward={"is_limited": True},
        experts={**DEEPSEEK_EXPERTS, "scoring": "sqrtsoftplus", "groups": 1, "is_normalised": True, "is_limited": True},
        shared=DEEPSEEK_SHARED, next_token=NEXT_TOKEN, has_plain_next_token=False,
        hashed=Listed("hash_moe", "mlp_layer_types", otherwise=Not(From(Integer("num_hash_layers", 3)))),
    ),
    "glm4_moe_lite": Family(
        name="Glm4MoeLite", embedding_is_active=False,
        longest=202752, latent={}, experts=DEEPSEEK_EXPERTS, shared=DEEPSEEK_SHARED,
        sparse=sparse_from(1), next_token=NEXT_TOKEN,
    ),
    "minimax_m2": Family(
        name="MiniMaxM2", embedding_is_active=False, longest=196608,
        attention={
            "query_key_norm": "full_width", "head_size": HeadSize(128), "rotary_size": Integer("rotary_dim", 64),
        },
        experts={**LOCAL_EXPERTS, "active": Integer("num_experts_per_tok", 8), "scoring": "sigmoid",
                 "score_correction": True},
        next_token="num_mtp_modules",
    ),
    "mimo_v2_flash": Family(
        name="MiMoV2Flash", embedding_is_active=False, longest=131072,
        attention={
            "bias": Flag("attention_bias"), "head_size": HeadSize(192), "value_size": Integer("v_head_dim", 128),
            "rotary_size": _MIMO_ROTARY, "has_value_scale": True, "has_sinks": True,
            "kv_heads": Multiple("swa_num_key_value_heads", 2, "num_key_value_heads"),
        },
        full_attention={"kv_heads": Integer("num_key_value_heads"), "has_sinks": False},
        window=Integer("sliding_window", 129),
        windowed=Listed(1, "hybrid_layer_pattern", otherwise=Listed("sliding_attention")),
        experts=DEEPSEEK_EXPERTS, sparse=Listed(1, "moe_layer_freq", otherwise=sparse_from(1)),
    ),
    "ernie4_5_moe": Family(
        name="Ernie4_5_Moe", longest=131072,
        decoder={"is_tied": TIED, "head_bias": Flag("use_bias")},
        attention={"bias": Flag("use_bias"), "output_bias": Flag("use_bias"), "dropout": 0.0},
        feed_forward={"bias": Flag("use_bias")},
        experts={
            "count": Integer("moe_num_experts num_experts", 64), "active": Integer("moe_k num_experts_per_tok", 6),
            "score_correction": True, "correction_is_parameter": True, "is_normalised": True,
        },
        shared={"module": "shared_experts", "inner_size": Integer("moe_intermediate_size"),
                "multiple": Natural("moe_num_shared_experts", 2)},
        sparse=Both(EveryNth(Integer("moe_layer_interval", 1)),
                    Between("moe_layer_start_index", "moe_layer_end_index", (1, -1))),
    ),
    "hunyuan": Family(
        name="HunYuan", longest=131072, head_class="HunYuanForCausalLM",
        attention={
            **BIASED, "query_key_norm": Choice("use_qk_norm", {True: "per_head_after_rotary", False: ""}, False),
            "head_size": HeadSize(key="attention_head_dim"),
            "rotary_size": RotarySize(head_size=HeadSize(key="attention_head_dim")),
        },
        reuses=When(Flag("use_cla"), EveryNth(Integer("cla_share_factor", 2))),
        experts={
            "router": "gate.wg", "active": Uniform("moe_topk", 1), "is_normalised": True,
            "inner_size": Uniform("moe_intermediate_size intermediate_size", REQUIRED),
        },
        shared={"module": "shared_mlp", "inner_size": Uniform("moe_intermediate_size intermediate_size", REQUIRED),
                "multiple": Uniform("num_shared_expert", 1)},
    ),
    "arctic": Family(
        name="Arctic", longest=4096,
        experts={**LOCAL_EXPERTS, "active": Integer("num_experts_per_tok", 2), "module": "block_sparse_moe"},
        shared={"module": "residual_mlp", "inner_size": Integer("hidden_size")},
        sparse=EveryNth(Integer("moe_layer_frequency", 2)),
    ),
    "step3_text": Family(
        name="Step3Text", positions="max_seq_len max_position_embeddings", longest=65536, embedding_is_active=False,
        attention={
            "kv_heads": Integer("num_attention_groups", 1), "query_rank": Integer("share_q_dim", 2048),
            "head_size": Integer("head_dim", 256), "rotary_size": Integer("head_dim", 256),
        },
        experts={
            "count": Integer("moe_num_experts", 48), "active": Integer("moe_top_k", 3), "module": "moe",
            "is_normalised": Flag("norm_expert_weight", True),
        },
        shared={"module": "share_expert", "inner_size": Integer("share_expert_dim", 5120)},
        sparse=NumberedText("moe_layers_enum", otherwise=From(Integer("", 1))),
    ),
    "hunyuan_v1_moe": Family(
        name="HunYuanMoEV1", attention={**BIASED, "query_key_norm": "per_head_after_rotary"},
        experts={
            "router": "gate.wg", "active": Uniform("moe_topk", 1), "inner_size": Integer("intermediate_size"),
            "is_normalised": True,
        },
        shared={"module": "shared_mlp"},
    ),
    "dots1": Family(
        name="Dots1", attention={**BIASED, "query_key_norm": "per_head"}, experts={
            **DEEPSEEK_EXPERTS, "is_normalised": Flag("norm_topk_prob"),
        },
        shared=DEEPSEEK_SHARED, sparse=From(Integer("first_k_dense_replace", 0)),
        window=Integer("sliding_window", 4096),
        windowed=Listed("sliding_attention", otherwise=From(Integer("max_window_layers", 62))),
    ),
    "exaone_moe": Family(
        name="ExaoneMoe", attention={"query_key_norm": "per_head"}, window=Integer("sliding_window", 4096),
        windowed=_EXAONE_WINDOWS, rotated=When(IsSet("sliding_window", 4096), _EXAONE_WINDOWS, All()),
        experts={**DEEPSEEK_EXPERTS, "count": Integer("num_experts")},
        shared={**DEEPSEEK_SHARED, "multiple": Integer("num_shared_experts", 1)}, sparse=sparse_from(1),
        next_token=NEXT_TOKEN,
    ),
    "mistral4": Family(
        name="Mistral4", longest=1048576, latent={},
        experts={**DEEPSEEK_EXPERTS, "scoring": "softmax", "score_correction": False}, shared=DEEPSEEK_SHARED,
        sparse=From(Integer("first_k_dense_replace", 0)),
    ),
    "afmoe": Family(
        name="Afmoe", longest=16384,
        block={"norms": Norms("input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm",
                              "post_mlp_layernorm")},
        decoder={"has_embedding_scale": Flag("mup_enabled")},
        attention={
            **BIASED, "query_key_norm": "per_head", "head_size": HeadSize(128), "gate_projection": "gate_proj",
            "rotary_size": RotarySize(head_size=HeadSize(128)),
        },
        window=Integer("sliding_window", 1024), windowed=_AFMOE_WINDOWS, rotated=_AFMOE_WINDOWS,
        experts={
            "router": "router.gate", "scoring": "sigmoid", "score_correction": True, "correction_is_parameter": True,
            "is_normalised": True,
        },
        shared={**DEEPSEEK_SHARED, "multiple": Integer("num_shared_experts", 2)},
        sparse=From(Integer("num_dense_layers", 1)),
    ),
    "jetmoe": Family(
        name="JetMoe", longest=4096, decoder={"is_tied": TIED},
        attention={
            "heads": Product(Integer("num_key_value_heads", 16), Integer("num_experts_per_tok", 2)),
            "kv_heads": Integer("num_key_value_heads", 16), "head_size": Integer("kv_channels", 128),
            "rotary_size": Integer("kv_channels", 128), "module": "self_attention",
            "projections": Projections(packed="kv_proj"),
        },
        head_experts={"count": Integer("num_local_experts", 8), "active": Integer("num_experts_per_tok", 2)},
        experts={
            **LOCAL_EXPERTS, "router": "router.layer", "scoring": "softmax_of_chosen", "is_normalised": False,
            "has_output_bias": True, "activation": Activation(("activation_function",)),
        },
    ),
    "dbrx": Family(
        name="Dbrx", layer_count="n_layers", positions="max_seq_len",
        decoder={
            "hidden_size": Integer("d_model"), "root": "transformer", "block_list": "blocks", "embedding": "wte",
            "final_norm": "norm_f", "norm": "layer_no_bias",
        },
        block={
            "norm": "layer_no_bias",
            "norms": Norms("norm_attn_norm.norm_1", before_feed_forward="norm_attn_norm.norm_2"),
        },
        attention={
            "heads": Integer("n_heads"), "head_size": HeadSize(key="", hidden="d_model", heads="n_heads"),
            "kv_heads": Within("attn_config", Integer("kv_n_heads"), Integer("kv_n_heads", 1)),
            "rotary_size": HeadSize(key="", hidden="d_model", heads="n_heads"), "module": "norm_attn_norm.attn",
            "projections": Projections(packed="Wqkv", output="out_proj"),
        },
        experts={
            "module": "ffn", "router": "router.layer", "activation": "silu", "is_normalised": True,
            "count": Within("ffn_config", Integer("moe_num_experts"), Integer("moe_num_experts", 4)),
            "active": Within("ffn_config", Integer("moe_top_k"), Integer("moe_top_k", 1)),
            "inner_size": Within("ffn_config", Integer("ffn_hidden_size"), Integer("ffn_hidden_size", 3584)),
        },
    ),
    "granitemoeshared": Family(
        name="GraniteMoeShared", attention=BIASED, block={"has_residual_scale": True},
        decoder={"has_embedding_scale": True, "has_logit_scale": True},
        feed_forward={"packed": "input_linear", "down": "output_linear"},
        experts=GRANITE_EXPERTS,
        shared={
            "module": "shared_mlp", "inner_size": Natural("shared_intermediate_size", 0),
            "multiple": IfSet("shared_intermediate_size", 1),
        },
    ),
    "flex_olmo": Family(
        name="FlexOlmo", longest=4096, block={"norms": POST_NORMS},
        attention={**BIASED, "query_key_norm": "full_width"},
        experts={"inner_size": Integer("intermediate_size")},
    ),
    "longcat_flash": Family(
        name="LongcatFlash", embedding_is_active=False,
        layer_count=Multiple("", 2, "num_layers num_hidden_layers"), longest=131072, latent={},
        feed_forward={"module": "mlps", "inner_size": Integer("ffn_hidden_size intermediate_size")},
        side_experts={
            "module": "mlp", "router": "router.classifier", "score_correction": True, "is_normalised": False,
            "count": Integer("n_routed_experts", 512), "idle": Natural("zero_expert_num", 256),
            "active": ShareOf(Integer("moe_topk", 12), Integer("n_routed_experts", 512),
                              Natural("zero_expert_num", 256)),
            "inner_size": Integer("expert_ffn_hidden_size", 2048),
        },
        side_norms={"norm_before": "", "norm_after": "", "other_norm_after": ""},
        has_side_experts=EveryNth(Integer("", 2), 0),
    ),
}  # fmt: skip

_ERNIE = FAMILIES["ernie4_5_moe"]
FAMILIES["ernie4_5_vl_moe_text"] = msgspec.structs.replace(
    _ERNIE, name="Ernie4_5_VLMoe", head_class="Ernie4_5_VLMoeForConditionalGeneration",
    model_class="Ernie4_5_VLMoeTextModel",
    decoder={**_ERNIE.decoder, "root": "model.language_model"},
    experts={
        **(_ERNIE.experts or {}), "module": "mlp.text_moe", "count": ItemOf("moe_num_experts", 0),
        "inner_size": ItemOf("moe_intermediate_size", 0), "other_count": ItemOf("moe_num_experts", 1),
        "other_inner_size": ItemOf("moe_intermediate_size", 1),
    },
    shared={**(_ERNIE.shared or {}), "inner_size": ItemOf("moe_intermediate_size", 0)},
    sparse=Listed("sparse", "mlp_layer_types",
                  otherwise=Between("moe_layer_start_index", "moe_layer_end_index", (1, -1))),
)  # fmt: skip

"""Decoders in which most layers have a state of fixed size instead of attention."""

from __future__ import annotations

import msgspec

from ...blocks.traits import (
    DeltaNet,
    KimiDelta,
    LightningAttention,
    LinearRecurrence,
    Mamba,
    Mamba2,
    MatrixMemory,
    Norms,
    Projections,
    ShortConvolution,
    TimeMix,
)  # fmt: skip
from ...keys import (
    Activation,
    AdjustedSize,
    CeilOf,
    Choice,
    CountOf,
    Flag,
    HeadSize,
    HeadsOf,
    IfSet,
    Integer,
    IsSet,
    Multiple,
    PerHead,
    Record,
    RotarySize,
    RoundedUp,
    Within,
    record,
)  # fmt: skip
from ...layer_rules import All, At, Both, Cycled, EveryNth, From, Lettered, Listed, Not, Numbered, OneBased, When
from ..family import (
    BIASED,
    DEEPSEEK_EXPERTS,
    DEEPSEEK_SHARED,
    GRANITE_EXPERTS,
    LOCAL_EXPERTS,
    NEXT_TOKEN,
    QWEN_SPARSE,
    TIED,
    Family,
    heads_of,
)  # fmt: skip

_SQUARED = Activation(("mlp_hidden_act",), "relu2")
_LISTS = ("hybrid_override_pattern", "layers_block_type", "layer_types")


def _nemotron_layers(letters: str, names: str) -> Lettered:
    """Return the rule of Nemotron-H's layers with some letters in the pattern, or some names in the list of layers."""
    listed = Listed(names, "layers_block_type", otherwise=Listed(names, "layer_types"))
    return Lettered(letters, "hybrid_override_pattern", listed)


_GEMMA_ACTIVATION = Activation(("hidden_activation",), "gelu_pytorch_tanh")
_KIMI_ATTENTION = Both(From(Integer("", 1)), EveryNth(Integer("", 4), 0))
_LFM_ATTENTION = Not(Listed("conv", otherwise=Not(Numbered("full_attn_idxs", otherwise=All()))))
_LFM_DECODER = {"final_norm": "embedding_norm", "is_tied": Flag("tie_embedding", True)}
_LFM_BLOCK = {"norms": Norms("operator_norm", before_feed_forward="ffn_norm")}
_LFM_HEADS = {"projections": Projections(output="out_proj"), "query_key_norm": "per_head", "dropout": 0.0}
_LFM_CONVOLUTION = Record(ShortConvolution, {
    "convolution": Integer("conv_L_cache", 3), "bias": Flag("conv_bias"),
})  # fmt: skip
_LFM_PART = {"module": "feed_forward", "gate": "w1", "up": "w3", "down": "w2", "activation": "silu"}

_ZAMBA_HEAD = HeadSize(key="attention_head_dim", factor=2)
_ZAMBA_PERIODIC = At((2, *range(7, 76, 6)))
_ZAMBA_NUMBERED = Numbered("hybrid_layer_ids", At((*range(6, 43, 6), 47, 51)))
_ZAMBA_LAYERS = Listed("hybrid", "layers_block_type", Listed("hybrid", "layer_types", _ZAMBA_NUMBERED))
_IS_PACKED = Choice("weight_mode", {"single": False, "fused": True}, "single")

_MAMBA = {
    "inner_size": Multiple("intermediate_size d_inner", Integer("expand", 2), "hidden_size"),
    "state_size": Integer("state_size", 16), "convolution": Integer("conv_kernel", 4),
    "step_rank": CeilOf("time_step_rank", "hidden_size", 16), "bias": Flag("use_bias"),
    "convolution_bias": Flag("use_conv_bias", True),
}  # fmt: skip
_BAMBA_MIXER = {
    "heads": Integer("mamba_n_heads", 128), "head_size": HeadsOf("mamba_d_head", "", "mamba_n_heads"),
    "groups": Integer("mamba_n_groups", 1), "state_size": Integer("mamba_d_state", 256),
    "convolution": Integer("mamba_d_conv", 4), "chunk": Integer("mamba_chunk_size", 256),
    "bias": Flag("mamba_proj_bias"), "convolution_bias": Flag("mamba_conv_bias", True), "module": "mamba",
}  # fmt: skip
DELTA_NET = {
    "key_heads": Integer("linear_num_key_heads", 16), "value_heads": Integer("linear_num_value_heads", 32),
    "key_size": Integer("linear_key_head_dim", 128), "value_size": Integer("linear_value_head_dim", 128),
    "convolution": Integer("linear_conv_kernel_dim", 4),
}  # fmt: skip
QWEN_ATTENTION = {
    **BIASED, "query_key_norm": "per_head", "norm": "rms_one_plus", "has_output_gate": True,
    **heads_of(256, 0.25),
}  # fmt: skip
QWEN_ATTENDS = Listed("full_attention", otherwise=EveryNth(Integer("full_attention_interval", 4)))

FAMILIES: dict[str, Family] = {
    "mamba": Family(
        name="Mamba", positions="", longest=None, attends=All(False), feeds=All(False),
        decoder={"root": "backbone", "embedding": "embeddings", "final_norm": "norm_f",
                 "is_tied": TIED},
        block={"norms": Norms(before_mixer="norm")},
        other=Record(Mamba, _MAMBA),
    ),
    "mamba2": Family(
        name="Mamba2", positions="", longest=None, attends=All(False), feeds=All(False),
        decoder={"root": "backbone", "embedding": "embeddings", "final_norm": "norm_f"},
        block={"norms": Norms(before_mixer="norm")},
        other=Record(Mamba2, {
            "heads": Integer("num_heads", 128), "head_size": Integer("head_dim", 64), "groups": Integer("n_groups", 8),
            "state_size": Integer("state_size", 128), "convolution": Integer("conv_kernel", 4),
            "chunk": Integer("chunk_size", 256), "bias": Flag("use_bias"),
            "convolution_bias": Flag("use_conv_bias", True),
        }),
    ),
    "jamba": Family(
        name="Jamba", longest=262144, decoder={"final_norm": "final_layernorm"},
        attends=EveryNth(Integer("attn_layer_period", 8), Integer("attn_layer_offset", 4)),
        attention={"rotary_size": 0}, block={"norms": Norms(before_feed_forward="pre_ff_layernorm")},
        other=Record(Mamba, {
            "inner_size": Multiple("", Integer("mamba_expand", 2), "hidden_size"),
            "state_size": Integer("mamba_d_state", 16), "convolution": Integer("mamba_d_conv", 4),
            "step_rank": CeilOf("mamba_dt_rank", "hidden_size", 16), "bias": Flag("mamba_proj_bias"),
            "convolution_bias": Flag("mamba_conv_bias", True), "has_norms": True, "module": "mamba",
        }),
        feed_forward={"module": "feed_forward"},
        experts={
            "module": "feed_forward", "router": "router", "count": Integer("num_experts", 16),
            "active": Integer("num_experts_per_tok", 2), "inner_size": Integer("intermediate_size"),
            "is_normalised": False,
        },
        sparse=EveryNth(Integer("expert_layer_period", 2), Integer("expert_layer_offset", 1)),
    ),
    "falcon_h1": Family(
        name="FalconH1", longest=8192, decoder={"final_norm": "final_layernorm", "has_embedding_scale": True,
                                                "has_logit_scale": True},
        has_both_mixers=True, attention=BIASED,
        block={"norms": Norms(before_feed_forward="pre_ff_layernorm")},
        feed_forward={"module": "feed_forward", "bias": Flag("mlp_bias")},
        other=record(Mamba2, _BAMBA_MIXER, head_size=HeadsOf("mamba_d_head", "mamba_d_ssm", "mamba_n_heads"),
                     has_norm=Flag("mamba_rms_norm")),
    ),
    "granitemoehybrid": Family(
        name="GraniteMoeHybrid", longest=131072,
        attends=Listed("attention full_attention", otherwise=All(False)),
        attention={**BIASED, "rotary_size": Choice(
            "position_embedding_type", {"rope": RotarySize(), None: 0, "nope": 0}, None)},
        block={"has_residual_scale": True}, decoder={"has_embedding_scale": True, "has_logit_scale": True},
        feed_forward={"module": "shared_mlp", "packed": "input_linear", "down": "output_linear",
                      "inner_size": Integer("shared_intermediate_size", 1024)},
        other=Record(Mamba2, _BAMBA_MIXER),
        experts=GRANITE_EXPERTS,
        shared={}, sparse=When(IsSet("num_local_experts", 8, (None, 0))),
    ),
    "qwen3_next": Family(
        name="Qwen3Next", longest=262144,
        block={"norm": "rms_one_plus"}, decoder={"norm": "rms_one_plus"},
        attends=QWEN_ATTENDS,
        attention=QWEN_ATTENTION,
        other=Record(DeltaNet, DELTA_NET),
        experts={"has_shared_gate": True, "is_normalised": Flag("norm_topk_prob", True)},
        shared={"module": "shared_expert", "inner_size": Integer("shared_expert_intermediate_size")},
        sparse=QWEN_SPARSE,
    ),
    "nemotron_h": Family(
        name="NemotronH", layer_count=CountOf("num_hidden_layers", _LISTS), longest=4096,
        decoder={"embedding": "embeddings", "final_norm": "norm_f"},
        block={"norms": Norms("norm", before_feed_forward="norm")},
        mixes=_nemotron_layers("M*", "linear_attention full_attention mamba attention"),
        attends=_nemotron_layers("*", "full_attention attention"),
        feeds=_nemotron_layers("-E", "mlp moe"), sparse=_nemotron_layers("E", "moe"),
        attention={"module": "mixer", "rotary_size": 0},
        feed_forward={"module": "mixer", "is_gated": False, "bias": Flag("mlp_bias"), "activation": _SQUARED},
        other=Record(Mamba2, {
            "heads": Integer("mamba_num_heads", 128), "head_size": Integer("mamba_head_dim", 64),
            "groups": Integer("mamba_n_groups n_groups", 8), "state_size": Integer("ssm_state_size", 128),
            "convolution": Integer("mamba_d_conv conv_kernel", 4),
            "chunk": Integer("mamba_chunk_size chunk_size", 128),
            "bias": Flag("use_bias"), "convolution_bias": Flag("use_conv_bias", True),
        }),
        experts={**DEEPSEEK_EXPERTS, "module": "mixer", "is_gated": False, "activation": _SQUARED,
                 "latent_size": Integer("moe_latent_size", None)},
        shared={"module": "shared_experts", "inner_size": Integer("moe_shared_expert_intermediate_size")},
        next_token=NEXT_TOKEN, has_plain_next_token=False,
    ),
    "bamba": Family(
        name="Bamba", longest=262144, attends=Numbered("attn_layer_indices"), decoder={"final_norm": "final_layernorm"},
        block={"norms": Norms(before_feed_forward="pre_ff_layernorm")},
        attention={**BIASED, "rotary_size": RotarySize(0.5)},
        feed_forward={"module": "feed_forward", "bias": Flag("mlp_bias")},
        other=Record(Mamba2, _BAMBA_MIXER),
    ),
    "lfm2": Family(
        name="Lfm2", longest=128000, attends=_LFM_ATTENTION, decoder=_LFM_DECODER, block=_LFM_BLOCK,
        attention=_LFM_HEADS, other=_LFM_CONVOLUTION,
        feed_forward={**_LFM_PART, "inner_size": AdjustedSize()},
    ),
    "lfm2_moe": Family(
        name="Lfm2Moe", longest=128000, attends=_LFM_ATTENTION, decoder=_LFM_DECODER, block=_LFM_BLOCK,
        attention=_LFM_HEADS, other=_LFM_CONVOLUTION, feed_forward=_LFM_PART,
        experts={
            "module": "feed_forward", "scoring": "sigmoid", "score_correction": Flag("use_expert_bias", True),
            "is_normalised": Flag("norm_topk_prob", True), "activation": "silu",
        },
        sparse=From(Integer("num_dense_layers", 2)),
    ),
    "kimi_linear": Family(
        name="KimiLinear", positions="max_position_embeddings model_max_length", longest=1048576,
        attends=Listed("full_attention", otherwise=OneBased("linear_attn_config", "full_attn_layers", _KIMI_ATTENTION)),
        latent={"is_rotated": False},
        other=Record(KimiDelta, {
            "heads": Within("linear_attn_config", Integer("num_heads"), Integer("linear_num_heads", 32)),
            "head_size": Within("linear_attn_config", Integer("head_dim"), Integer("linear_head_dim", 128)),
            "convolution": Within("linear_attn_config", Integer("short_conv_kernel_size"),
                                  Integer("linear_conv_kernel_dim", 4)),
        }),
        experts={
            **DEEPSEEK_EXPERTS, "count": Integer("num_experts num_local_experts n_routed_experts", 256),
            "active": Integer("num_experts_per_token num_experts_per_tok", 8),
            "groups": Integer("num_expert_group n_group", 1),
            "is_normalised": Flag("moe_renormalize", True),
        },
        shared={**DEEPSEEK_SHARED, "multiple": Integer("num_shared_experts n_shared_experts", 1)},
        sparse=Listed("sparse", "mlp_layer_types", otherwise=From(Integer("first_k_dense_replace", 1))),
    ),
    "recurrent_gemma": Family(
        name="RecurrentGemma", positions="", longest=None,
        decoder={
            "norm": "rms_one_plus", "final_norm": "final_norm", "has_embedding_scale": True,
            "is_tied": TIED, "has_logit_softcap": IsSet("logits_soft_cap", 30.0),
        },
        block={
            "norm": "rms_one_plus", "norms": Norms("temporal_pre_norm", before_feed_forward="channel_pre_norm"),
        },
        attends=Cycled("attention", "block_types", ("recurrent", "recurrent", "attention")),
        attention={
            "module": "temporal_block", "bias": Flag("attention_bias"), "output_bias": True,
            "rotary_size": RotarySize(0.5),
        },
        window=Integer("attention_window_size sliding_window", 2048),
        other=Record(LinearRecurrence, {
            "width": Integer("lru_width hidden_size"), "heads": Integer("num_attention_heads"),
            "convolution": Integer("conv1d_width", 4), "activation": _GEMMA_ACTIVATION,
        }),
        feed_forward={
            "module": "mlp_block", "bias": True, "inner_size": Multiple("", 0.5, "intermediate_size"),
            "activation": _GEMMA_ACTIVATION,
        },
    ),
    "zamba": Family(  # its heads are computed as one, with as many products
        name="Zamba", longest=4096, attends=All(False), feeds=All(False),
        decoder={"final_norm": "final_layernorm", "is_tied": TIED},
        other=Record(Mamba, {
            "inner_size": Multiple("", Integer("mamba_expand", 2), "hidden_size"),
            "state_size": Integer("mamba_d_state", 16), "convolution": Integer("mamba_d_conv", 4),
            "step_rank": CeilOf("mamba_dt_rank", "hidden_size", 16), "bias": Flag("mamba_proj_bias"),
            "convolution_bias": Flag("mamba_conv_bias", True), "module": "mamba",
        }),
        shared_attention={"head_size": _ZAMBA_HEAD, "rotary_size": 0, "output_size": Integer("hidden_size")},
        shared_feed_forward={"module": "feed_forward", "activation": Activation(default="gelu")},
        has_shared=Listed("hybrid", "layers_block_type", Listed("hybrid", "layer_types", _ZAMBA_PERIODIC)),
    ),
    "zamba2": Family(
        name="Zamba2", longest=4096, attends=All(False),
        decoder={"final_norm": "final_layernorm", "is_tied": TIED},
        feeds=All(False),
        other=Record(Mamba2, {
            "heads": Integer("n_mamba_heads", 8), "head_size": HeadsOf("mamba_headdim", "", "n_mamba_heads"),
            "groups": Integer("mamba_ngroups", 1), "state_size": Integer("mamba_d_state", 64),
            "convolution": Integer("mamba_d_conv", 4), "chunk": Integer("chunk_size", 256),
            "bias": Flag("add_bias_linear"), "module": "mamba",
        }),
        shared_attention={
            "head_size": _ZAMBA_HEAD, "rotary_size": IfSet("use_mem_rope", _ZAMBA_HEAD),
            "adapter_rank": IfSet("use_shared_attention_adapter", Integer("adapter_rank", 128), None),
            "output_size": Integer("hidden_size"),
        },
        shared_feed_forward={
            "inner_size": Multiple("intermediate_size", 4, "hidden_size"), "bias": Flag("add_bias_linear"),
            "module": "feed_forward", "packed": "gate_up_proj", "activation": Activation(default="gelu"),
            "adapter_rank": Integer("adapter_rank", 128),
        },
        has_shared=_ZAMBA_LAYERS,
        shared_copies=Integer("num_mem_blocks", 1),
    ),
    "xlstm": Family(
        name="xLSTM", layer_count=Integer("num_hidden_layers num_blocks"), positions="", longest=None,
        attends=All(False),
        decoder={
            "root": "backbone", "block_list": "blocks", "embedding": "embeddings", "final_norm": "out_norm",
            "hidden_size": Integer("hidden_size embedding_dim"), "has_logit_softcap": True, "is_tied": False,
        },
        block={"norms": Norms("norm_mlstm", before_feed_forward="norm_ffn")},
        other=Record(MatrixMemory, {
            "heads": Integer("num_heads", 8), "chunk": Integer("chunk_size", 64),
            "key_size": PerHead("hidden_size embedding_dim", "qk_dim_factor", 0.5, "num_heads", 8),
            "value_size": PerHead("hidden_size embedding_dim", "v_dim_factor", 1.0, "num_heads", 8),
            "has_packed_projections": _IS_PACKED,
        }),
        feed_forward={
            "module": "ffn", "gate": "proj_up_gate", "up": "proj_up", "down": "proj_down", "activation": "silu",
            "packed": Choice("weight_mode", {"single": "", "fused": "proj_up_gate_z"}, "single"),
            "inner_size": RoundedUp("hidden_size embedding_dim", "ffn_proj_factor", 2.667,
                                    "ffn_round_up_to_multiple_of", 64),
        },
        unread=(("use_bias", (False, None)),),
    ),
    "rwkv": Family(
        name="Rwkv", positions="", longest=None, attends=All(False),
        decoder={"root": "rwkv", "block_list": "blocks", "embedding": "embeddings", "embedding_norm": "blocks.0.pre_ln",
                 "final_norm": "ln_out", "norm": "layer", "head": "head"},
        block={"norm": "layer", "norms": Norms("ln1", before_feed_forward="ln2")},
        other=Record(TimeMix, {"width": Integer("attention_hidden_size hidden_size")}),
        channel_mix={"inner_size": Multiple("intermediate_size", 4, "hidden_size")},
    ),
}  # fmt: skip

_LIGHTNING = {"heads": Integer("num_attention_heads"), "head_size": HeadSize()}

FAMILIES["minimax"] = Family(
    name="MiniMax", longest=10240000, embedding_is_active=False,
    attention={"head_size": HeadSize(), "rotary_size": Integer("rotary_dim head_dim", 64)},
    attends=Listed(1, "attn_type_list", otherwise=Listed("full_attention", otherwise=EveryNth(Integer("", 2)))),
    other=record(LightningAttention, _LIGHTNING, activation=Activation(), chunk=Integer("block_size", 256)),
    block={"has_residual_scale": True},
    experts={**LOCAL_EXPERTS, "active": Integer("num_experts_per_tok", 2), "module": "block_sparse_moe"},
    window=Integer("sliding_window", None), unread=(("shared_intermediate_size", (None, 0, [0])),),
)  # fmt: skip
for _alias, _name in (("minimax_m1", "MiniMaxM1"), ("minimax_text_01", "MiniMaxText01")):
    FAMILIES[_alias] = msgspec.structs.replace(FAMILIES["minimax"], name=_name)

FAMILIES["bailing_moe_linear"] = Family(  # Ring-linear 2.0
    name="BailingMoeLinearV2", longest=131072,
    decoder={"embedding": "word_embeddings"},
    attention={
        "module": "attention", "projections": Projections(packed="query_key_value", output="dense"),
        "query_key_norm": "per_head", "bias": Flag("use_qkv_bias"), "output_bias": Flag("use_bias"),
    },
    attends=EveryNth(Integer("layer_group_size", 1)),
    other=record(LightningAttention, _LIGHTNING, module="attention", projection="query_key_value", gate="g_proj",
                 norm="g_norm", output="dense", has_head_norms=True),
    experts={**DEEPSEEK_EXPERTS, "count": Integer("num_experts")},
    shared={**DEEPSEEK_SHARED, "multiple": Integer("num_shared_experts", 1)},
    sparse=From(Integer("first_k_dense_replace", 0)), next_token=NEXT_TOKEN,
)  # fmt: skip

FAMILIES["falcon_mamba"] = msgspec.structs.replace(
    FAMILIES["mamba"], name="FalconMamba", other=record(Mamba, _MAMBA, has_norms=True, norms_have_weights=False)
)

"""Gemma 3n and 4: heads of two sizes, shared caches, per-layer embeddings, and experts beside a dense part."""

from __future__ import annotations

import msgspec

from ...blocks.traits import Alternating
from ...keys import (
    Activation,
    Choice,
    Flag,
    HeadSize,
    IfSet,
    Integer,
    IsSet,
    KeyValueHeads,
    Multiple,
    Record,
    RotarySize,
    Uniform,
)  # fmt: skip
from ...layer_rules import All, LastOf, Positive, When
from ..family import BIASED, SANDWICH, TIED, Family, all_but_every

_ACTIVATION = Activation(("hidden_activation",), "gelu_pytorch_tanh")

FAMILIES: dict[str, Family] = {
    "gemma3n_text": Family(
        name="Gemma3n", model_class="Gemma3nTextModel", longest=32768,
        block={
            "norms": SANDWICH, "alternating": Record(Alternating, {
                "streams": Integer("altup_num_inputs", 4), "laurel_rank": Integer("laurel_rank", 64),
            }),
        },
        decoder={
            "has_embedding_scale": True, "is_tied": TIED,
            "has_logit_softcap": IsSet("final_logit_softcapping", 30.0),
            "vocabulary": Integer("vocab_size", 262400),
            "per_layer_vocabulary": Integer("vocab_size_per_layer_input", 262144),
        },
        attention={
            **BIASED, "kv_heads": KeyValueHeads(2), "head_size": HeadSize(256), "query_key_norm": "per_head",
            "rotary_size": RotarySize(head_size=HeadSize(256)), "has_value_norm": True,
        },
        feed_forward={"activation": _ACTIVATION, "inner_size": Uniform("intermediate_size", 16384)},
        sparsely_active=Positive("activation_sparsity_pattern", 10, 10),
        window=Integer("sliding_window", 512),
        windowed=all_but_every(5),
        reuses=LastOf("num_kv_shared_layers", 15),
        per_layer_input={"size": Integer("hidden_size_per_layer_input", 256), "activation": _ACTIVATION},
    ),
    "gemma4_text": Family(
        name="Gemma4", model_class="Gemma4TextModel", longest=131072,
        block={"norms": SANDWICH, "has_output_scale": True},
        decoder={
            "has_embedding_scale": True, "is_tied": TIED,
            "has_logit_softcap": IsSet("final_logit_softcapping"),
            "per_layer_vocabulary": IfSet(
                "hidden_size_per_layer_input", Integer("vocab_size_per_layer_input", 262144), default=256
            ),
        },
        attention={
            **BIASED, "kv_heads": KeyValueHeads(4), "head_size": HeadSize(256), "query_key_norm": "per_head",
            "rotary_size": RotarySize(head_size=HeadSize(256)), "has_value_norm": True,
        },
        full_attention={
            "head_size": Integer("global_head_dim", 512), "rotary_size": Integer("global_head_dim", 512),
            "shares_key_and_value": Flag("attention_k_eq_v"),
            "kv_heads": Choice(
                "attention_k_eq_v",
                {True: Integer("num_global_key_value_heads num_key_value_heads", 4), False: KeyValueHeads(4)}, False,
            ),
        },
        feed_forward={"activation": _ACTIVATION},
        window=Integer("sliding_window", 512),
        windowed=all_but_every(6),
        reuses=LastOf("num_kv_shared_layers"),
        reusing_feed_forward={
            "inner_size": IfSet("use_double_wide_mlp", Multiple("", 2, "intermediate_size"),
                                otherwise=Integer("intermediate_size")),
        },
        per_layer_input={"size": Integer("hidden_size_per_layer_input", 256), "activation": _ACTIVATION},
        has_per_layer_input=When(IsSet("hidden_size_per_layer_input", 256, (None, 0)), All()),
        side_experts={
            "module": "", "router": "router", "active": Integer("top_k_experts"), "activation": _ACTIVATION,
            "is_normalised": True, "has_scaled_router": True,
        },
        has_side_experts=When(Flag("enable_moe_block"), All()),
    ),
}  # fmt: skip

_GEMMA_4 = FAMILIES["gemma4_text"]
FAMILIES["gemma4_unified_text"] = msgspec.structs.replace(
    _GEMMA_4, name="Gemma4Unified", model_class="Gemma4UnifiedTextModel", longest=262144, per_layer_input=None,
    decoder={key: value for key, value in _GEMMA_4.decoder.items() if key != "per_layer_vocabulary"},
    side_experts=None, window=Integer("sliding_window", 1024),
)  # fmt: skip

"""Mixtures of experts since 2025: sparse attention with an indexer, windows with heads of their own, plain ones."""

from __future__ import annotations

from ..family import DEEPSEEK_EXPERTS, DEEPSEEK_SHARED, LOCAL_EXPERTS, NEXT_TOKEN, Family
from ..keys import (
    Flag,
    From,
    HeadSize,
    Integer,
    Layers,
    Lettered,
    Listed,
    Multiple,
    Not,
    Record,
    RotarySize,
    Sharing,
    Within,
)  # fmt: skip
from ..traits import Compression, HyperConnection, Indexer


def sparse_from(first: int) -> Layers:
    """Return the rule of layers with experts: those that a list names, else all from a given one on."""
    return Listed("sparse", "mlp_layer_types", otherwise=From(Integer("first_k_dense_replace", first)))


_INDEXED = {"selected": Integer("index_topk", 2048)}
_INDEXER = {"heads": Integer("index_n_heads", 64), "head_size": Integer("index_head_dim", 128)}
_MIMO_ROTARY = RotarySize(0.334, HeadSize(192))


def _compressed(name: str, ratio: int) -> Layers:
    """Return the rule of DeepSeek-V4's layers with a compression, by its name or by its ratio."""
    return Listed(name, "layer_types", otherwise=Listed(ratio, "compress_ratios"))


def _rate(name: str, key: str, default: int) -> Within:
    """Return the reader of the tokens per compressed key."""
    return Within("compress_rates", Integer(name), Integer(key, default))


FAMILIES: dict[str, Family] = {
    "deepseek_v32": Family(
        name="DeepseekV32", longest=163840, latent=_INDEXED, indexer=_INDEXER, experts=DEEPSEEK_EXPERTS,
        shared=DEEPSEEK_SHARED, sparse=sparse_from(3), next_token=NEXT_TOKEN,
    ),
    "glm_moe_dsa": Family(
        name="GlmMoeDsa", longest=202752, latent=_INDEXED, experts=DEEPSEEK_EXPERTS, shared=DEEPSEEK_SHARED,
        indexer={**_INDEXER, "heads": Integer("index_n_heads", 32)}, sparse=sparse_from(3), next_token=NEXT_TOKEN,
        indexes=Listed("full", "indexer_types", otherwise=Lettered("F", "index_topk_pattern", otherwise=Sharing())),
    ),
    "deepseek_v4": Family(
        name="DeepseekV4", longest=1048576,
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
        name="Glm4MoeLite", longest=202752, latent={}, experts=DEEPSEEK_EXPERTS, shared=DEEPSEEK_SHARED,
        sparse=sparse_from(1), next_token=NEXT_TOKEN,
    ),
    "minimax_m2": Family(
        name="MiniMaxM2", longest=196608,
        attention={
            "query_key_norm": "full_width", "head_size": HeadSize(128), "rotary_size": Integer("rotary_dim", 64),
        },
        experts={**LOCAL_EXPERTS, "active": Integer("num_experts_per_tok", 8), "scoring": "sigmoid",
                 "score_correction": True},
        next_token="num_mtp_modules",
    ),
    "mimo_v2_flash": Family(
        name="MiMoV2Flash", longest=131072,
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
}  # fmt: skip

"""Decoders whose code their publishers ship on the Hub: MiniCPM, Ling, Step 3.5, OpenELM and Phi-4-mini-flash."""

from __future__ import annotations

from typing import NamedTuple

from ...blocks.traits import GatedMemory, Mamba, Norms, Projections
from ...config import Config
from ...keys import (
    Choice,
    Flag,
    HeadSize,
    Integer,
    IsSet,
    ListsOf,
    Multiple,
    Natural,
    Record,
    Within,
)  # fmt: skip
from ...layer_rules import All, EveryNth, From, Listed, NumberedText, When
from ..family import DEEPSEEK_EXPERTS, DEEPSEEK_SHARED, NEXT_TOKEN, TIED, Family


class RotatedOf(NamedTuple):
    """The rotated elements of a head in the layers of a kind, by the entry of the first such layer in a list."""

    kind: str
    default: float

    def read(self, config: Config) -> int:
        """Return the number of elements."""
        size, share = config.positive_integer("head_dim"), self.default
        kinds, listed = config.fields.get("layer_types"), config.fields.get("partial_rotary_factors")
        rope = config.fields.get("rope_parameters")
        if isinstance(kinds, list) and isinstance(listed, list) and self.kind in kinds[: len(listed)]:
            share = listed[kinds.index(self.kind)]
        elif isinstance(rope, dict) and isinstance(rope.get(self.kind), dict):
            share = rope[self.kind].get("partial_rotary_factor", 1.0)
        if not isinstance(share, (int, float)) or not 0 < share <= 1:
            raise config.fail(f"the rotated share of a head must be a number above 0, at most 1 (got {share!r})")
        return int(size * share)


class NearestMultiple(NamedTuple):
    """An integer times a factor of the config, rounded to the nearest multiple, but by less than a tenth downwards."""

    of: str
    factor: str
    multiple: str
    multiple_default: int

    def read(self, config: Config) -> int:
        """Return the integer."""
        multiple = config.positive_integer(self.multiple, self.multiple_default)
        scaled = config.positive_integer(self.of) * config.number(self.factor, 1.0)
        nearest = max(int(scaled + multiple / 2) // multiple * multiple, multiple)
        return nearest + multiple if nearest < 0.9 * scaled else nearest


class CrossLayers(NamedTuple):
    """The layers of the second decoder of SambaY, which attends to the keys and values of the first one.

    The first decoder ends with one full attention, in the second layer after the middle (Ren et al. 2025, section 3).
    """

    has_attention: bool

    def choose(self, config: Config, count: int) -> list[bool]:
        """Return whether each layer is chosen."""
        period = config.positive_integer("mb_per_layer", 2)
        is_attention = [index % period == 1 for index in range(count)]
        return [index >= count // 2 + 2 and is_attention[index] == self.has_attention for index in range(count)]


class Windows(NamedTuple):
    """The window of SambaY, and the layers with one: an entry of a list for each layer, or one number."""

    def read(self, config: Config) -> int | None:
        """Return the window."""
        listed = config.fields.get("sliding_window")
        if not isinstance(listed, list):
            return config.optional_integer("sliding_window")
        return max((size for size in listed if isinstance(size, int)), default=None)

    def choose(self, config: Config, count: int) -> list[bool]:
        """Return whether each layer has a window."""
        listed = config.fields.get("sliding_window")
        if not isinstance(listed, list):
            return list(Listed("sliding_attention").choose(config, count))
        if len(listed) != count:
            raise config.fail(f"$.sliding_window must list the {count} layers (got {len(listed)})")
        return [isinstance(size, int) for size in listed]


_STEP_WINDOWS = Listed("sliding_attention")

FAMILIES: dict[str, Family] = {
    "minicpm": Family(  # Hu et al. 2024, section 3: scaled embedding, residuals and logits
        name="MiniCPM", longest=32768, block={"has_residual_scale": True},
        decoder={"has_embedding_scale": True, "has_logit_scale": True, "is_tied": TIED},
        attention={"bias": Flag("attention_bias"), "output_bias": Flag("attention_bias")},
        experts={"inner_size": Integer("intermediate_size"), "is_normalised": True},
        sparse=When(IsSet("num_experts", 0, (None, 0)), All()),
    ),
    "bailing_moe": Family(  # Ling 1 and 2: the second normalises queries and keys, and chooses groups of experts first
        name="BailingMoe", other_classes=("BailingMoeV2ForCausalLM", "BailingMoeV2Model"), longest=32768,
        decoder={"embedding": "word_embeddings"},
        attention={
            "module": "attention", "projections": Projections(packed="query_key_value", output="dense"),
            "query_key_norm": Choice("use_qk_norm", {True: "per_head", False: ""}, False),
            "bias": Flag("use_qkv_bias"), "output_bias": Flag("use_bias"),
        },
        experts={
            **DEEPSEEK_EXPERTS, "count": Integer("num_experts"),
            "scoring": Choice("score_function", {"sigmoid": "sigmoid", "softmax": "softmax", None: "softmax"}, None),
            "score_correction": Flag("moe_router_enable_expert_bias"),
            "correction_is_parameter": Flag("moe_router_enable_expert_bias"),
        },
        shared={
            "module": "shared_experts", "multiple": Natural("num_shared_experts", 1),
            "inner_size": Integer("moe_shared_expert_intermediate_size moe_intermediate_size"),
        },
        sparse=From(Integer("first_k_dense_replace", 0)), next_token=NEXT_TOKEN,
    ),
    "deepseek_ocr_text": Family(  # DeepSeek's experts behind usual attention
        name="DeepseekOCR", longest=8192, embedding_is_active=False,
        experts={**DEEPSEEK_EXPERTS, "scoring": "softmax", "score_correction": False,
                 "is_normalised": Flag("norm_topk_prob")},
        shared=DEEPSEEK_SHARED, sparse=From(Integer("first_k_dense_replace", 0)),
    ),
    "step3p5": Family(  # more heads in layers with a window, and a gate for each head
        name="Step3p5", model_class="Step3p7TextModel", longest=262144, embedding_is_active=False,
        positions="max_position_embeddings max_seq_len",
        block={"norm": "rms_one_plus"}, decoder={"norm": "rms_one_plus"},
        attention={
            "heads": Within("attention_other_setting", Integer("num_attention_heads"),
                            Integer("num_sliding_attention_heads num_attention_heads")),
            "kv_heads": Integer("num_attention_groups num_key_value_heads", 8), "head_size": HeadSize(128),
            "rotary_size": RotatedOf("sliding_attention", 1.0), "bias": Flag("attention_bias"),
            "output_bias": Flag("attention_bias"), "query_key_norm": "per_head", "norm": "rms_one_plus",
            "gate_projection": "g_proj", "gate_is_per_head": True,
        },
        full_attention={
            "heads": Integer("num_attention_heads"), "rotary_size": RotatedOf("full_attention", 0.5),
        },
        window=Integer("sliding_window", 512), windowed=_STEP_WINDOWS,
        feed_forward={"bias": Flag("mlp_bias")},
        experts={
            "count": Integer("moe_num_experts n_routed_experts", 288),
            "active": Integer("moe_top_k num_experts_per_tok", 8), "scoring": "sigmoid", "score_correction": True,
            "is_normalised": True,
        },
        shared={"module": "shared_experts", "inner_size": Integer("share_expert_dim share_expert_dims")},
        sparse=Listed("sparse", "mlp_layer_types",
                      otherwise=NumberedText("moe_layers_enum", otherwise=From(Integer("", 3)))),
        next_token=NEXT_TOKEN,
    ),
    "openelm": Family(  # Mehta et al. 2024, section 2.1: heads and inner sizes that grow from layer to layer
        name="OpenELM", layer_count="num_transformer_layers", positions="max_context_length",
        own_keys=ListsOf(("num_query_heads", "num_kv_heads", "ffn_multipliers")),
        decoder={
            "hidden_size": Integer("model_dim"), "root": "transformer", "embedding": "token_embeddings",
            "is_tied": Flag("share_input_output_layers", True),
        },
        block={"norms": Norms("attn_norm", before_feed_forward="ffn_norm")},
        attention={
            "heads": Integer("num_query_heads"), "kv_heads": Integer("num_kv_heads"), "head_size": Integer("head_dim"),
            "rotary_size": Integer("head_dim"), "module": "attn", "dropout": 0.0,
            "query_key_norm": Choice("normalize_qk_projections", {True: "per_head", False: ""}, True),
            "projections": Projections(packed="qkv_proj", output="out_proj"),
        },
        feed_forward={
            "module": "ffn", "packed": "proj_1", "down": "proj_2", "activation": "silu",
            "inner_size": NearestMultiple("model_dim", "ffn_multipliers", "ffn_dim_divisor", 256),
        },
        unread=(("ffn_with_glu", (True,)),),
    ),
    "phi4flash": Family(  # SambaY (Ren et al. 2025): gated memories, and attention to one cache, in the second half
        name="Phi4Flash", longest=262144, decoder={"norm": "layer", "final_norm": "final_layernorm", "is_tied": TIED,
                                                   "head_bias": Flag("lm_head_bias")},
        block={"norm": "layer"},
        attention={
            "module": "attn", "projections": Projections(packed="Wqkv", output="out_proj"), "rotary_size": 0,
            "bias": True, "output_bias": True, "is_differential": True,
        },
        attends=EveryNth(Integer("mb_per_layer", 2), 1),
        other=Record(Mamba, {
            "inner_size": Multiple("", Integer("mamba_expand", 2), "hidden_size"),
            "state_size": Integer("mamba_d_state", 16), "convolution": Integer("mamba_d_conv", 4),
            "step_rank": Integer("mamba_dt_rank", 160), "bias": Flag("mamba_proj_bias"),
            "convolution_bias": Flag("mamba_conv_bias", True), "module": "attn",
        }),
        replacing=((CrossLayers(False), Record(GatedMemory, {
            "width": Multiple("", Integer("mamba_expand", 2), "hidden_size"), "module": "attn",
        })),),
        reuses=CrossLayers(True),
        window=Windows(), windowed=Windows(),
        feed_forward={"packed": "fc1", "down": "fc2", "bias": Flag("mlp_bias")},
    ),
}  # fmt: skip
FAMILIES["bailing_moe_v2"] = FAMILIES["bailing_moe"]

"""The record of a decoder whose model type is unknown, guessed from the keys of its config.

Configs name the same sizes by a few keys. A guess takes the traits that these keys name; what a type does without a key
of its own, such as another place of the norms, it does not see. The answer says that it is a guess.
"""

from __future__ import annotations

from typing import Any

from ..blocks.mixer_records import DeltaNet, Mamba2
from ..config import Config
from ..keys import (
    Activation,
    CountOf,
    Fields,
    FirstFlag,
    Fraction,
    HeadSize,
    HeadsOf,
    Integer,
    KeyValueHeads,
    Multiple,
    Record,
    RotarySize,
)  # fmt: skip
from ..layer_rules import All, At, Both, EveryNth, From, LayerSelection, Listed, Not, Numbered, When
from .family import Family, decoder_model

_HIDDEN = "hidden_size n_embd d_model"
_HEADS = "num_attention_heads n_head n_heads num_heads"
_LAYERS = "num_hidden_layers n_layer n_layers num_layers"
_KV_HEADS = "num_key_value_heads num_kv_heads n_kv_heads kv_n_heads multi_query_group_num num_attention_groups"
_VOCABULARY = "vocab_size padded_vocab_size"
_INNER = "intermediate_size ffn_hidden_size ffn_dim n_inner mlp_hidden_size block_ff_dim"
_HEAD_SIZE = "head_dim attention_head_dim kv_channels"
_POSITIONS = "max_position_embeddings n_positions max_seq_len seq_length max_sequence_length"
_EXPERTS = "n_routed_experts num_experts num_local_experts moe_num_experts"
_ACTIVE = "num_experts_per_tok num_experts_per_token moe_k moe_topk moe_top_k top_k_experts num_selected_experts"
_EXPERT_SIZE = "moe_intermediate_size expert_ffn_hidden_size intermediate_size ffn_hidden_size"
_SHARED_SIZE = (
    "shared_expert_intermediate_size moe_shared_expert_intermediate_size shared_intermediate_size share_expert_dim"
)
_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act", "activation", "afn",
                "ff_activation")  # fmt: skip
_BIAS = "attention_bias qkv_bias use_bias bias add_qkv_bias add_bias_linear use_qkv_bias"
_PLAIN_ACTIVATIONS = ("relu", "relu2", "gelu_new", "gelu_fast", "xielu")
"""Activations of feed-forward parts without a gate."""

_ENCODER_LIKE = ("hidden_act", "gelu")
"""The key and the activation of decoders that descend from BERT, whose feed-forward parts have no gate."""


NOT_GUESSED = {
    "moshi": "several heads", "hrm_text": "blocks that are repeated",
    "dory": "other blocks", "xlnet": "two streams", "git": "an image encoder", "cpmant": "other positions",
}  # fmt: skip
"""Model types whose keys do not tell what they have, in the table of model types: their guesses were far off."""


def guess_family(config: Config) -> Family | None:
    """Return the record that the keys of a config name; None if the usual keys of a decoder are missing."""
    if config.fields.get("model_type") in NOT_GUESSED and not _is_of_another_type(config):
        return None
    required = (_HIDDEN, _HEADS, _LAYERS, _VOCABULARY)
    if not all(_first_key(config, keys) for keys in required) or _is_no_decoder(config):
        return None
    decoder = {"hidden_size": Integer(_HIDDEN), "vocabulary": Integer(_VOCABULARY)}
    blocks: dict[str, Any] = {
        "layer_count": CountOf(str(_first_key(config, _LAYERS)), ()), "feed_forward": _feed_forward(config),
        **_attention(config), **_experts(config), **_other_mixer(config),
    }  # fmt: skip
    return Family(
        name="Guess",
        model=decoder_model(decoder, blocks),
        positions=_first_key(config, _POSITIONS) or "",
        longest=None,
        next_token=_first_key(config, "num_nextn_predict_layers", "mtp_num_hidden_layers") or "",
    )


def _first_key(config: Config, *keys: str) -> str | None:
    """Return the first of some keys that the config contains."""
    names = (name for key in keys for name in key.split())
    return next((name for name in names if config.fields.get(name) not in (None, [], {})), None)


def _is_no_decoder(config: Config) -> bool:
    """Return whether keys say that the model is an encoder, or has an encoder."""
    return bool(config.fields.get("is_encoder_decoder") or config.fields.get("type_vocab_size"))


def _is_of_another_type(config: Config) -> bool:
    """Return whether the class does not belong to the model type, which a publisher then stated by mistake (Grok 2)."""
    classes = config.fields.get("architectures") or [""]
    name = str(classes[0]).lower() if isinstance(classes, list) else ""
    return bool(name) and not name.startswith(str(config.fields["model_type"]).replace("_", ""))


def _head_size(config: Config) -> HeadSize:
    return HeadSize(key=_first_key(config, _HEAD_SIZE) or "", hidden=_HIDDEN, heads=_HEADS)


def _feed_forward(config: Config) -> Fields:
    """Return the fields of the feed-forward part; an inner size that no key gives is four times the hidden size."""
    key = _first_key(config, *_ACTIVATIONS)
    activation = config.fields.get(key) if key else "silu"
    name = config.known_activation(str(key), activation) if isinstance(activation, str) else "silu"
    older_keys = ("activation_function", "afn", "ff_activation")
    is_plain = name in _PLAIN_ACTIVATIONS or (key in older_keys and name != "silu") or (key, name) == _ENCODER_LIKE
    return {
        "inner_size": Multiple(_first_key(config, _INNER) or "", 4, _HIDDEN), "activation": Activation((), name),
        "is_gated": not is_plain, "bias": FirstFlag("mlp_bias use_mlp_bias use_bias bias add_bias_linear"),
    }  # fmt: skip


def _attention(config: Config) -> dict[str, Any]:
    """Return the fields of attention: latent where a key names its rank, with windows and norms by their keys."""
    if _first_key(config, "kv_lora_rank"):
        latent: dict[str, Any] = {"latent": {}}
        if _first_key(config, "index_topk"):
            heads, size = Integer("index_n_heads", 64), Integer("index_head_dim", 128)
            latent = {"latent": {"selected": Integer("index_topk")}, "indexer": {"heads": heads, "head_size": size}}
        return latent
    has_norm = FirstFlag("use_qk_norm qk_norm qk_layernorm use_qk_layernorm").read(config)
    head_size = _head_size(config)
    attention: dict[str, Any] = {
        "heads": Integer(_HEADS), "head_size": head_size, "rotary_size": RotarySize(1.0, head_size),
        "kv_heads": KeyValueHeads(key=_first_key(config, _KV_HEADS) or "", heads=str(_first_key(config, _HEADS))),
        "bias": FirstFlag(_BIAS), "output_bias": FirstFlag("attention_bias attention_out_bias use_bias bias"),
        "query_key_norm": "per_head" if has_norm else "", "dropout": Fraction("attention_dropout"),
    }  # fmt: skip
    if config.fields.get("alibi") or config.fields.get("use_alibi"):
        attention |= {"rotary_size": 0, "has_alibi": True}
    is_windowed = Listed("sliding_attention", otherwise=All())
    period = _first_key(config, "sliding_window_pattern", "global_attn_every_n_layers")
    if period and isinstance(config.fields[period], int):
        is_windowed = Listed("sliding_attention", otherwise=Not(EveryNth(Integer(period))))
    windowed: LayerSelection = is_windowed
    if "use_sliding_window" in config.fields:
        windowed = When(FirstFlag("use_sliding_window"), is_windowed)
    window = Integer("sliding_window", None) if config.fields.get("sliding_window") else None
    listed = config.fields.get("sliding_window")
    if isinstance(listed, list):  # a window for each layer, or none (Phi-4-mini-flash)
        sizes = [size for size in listed if isinstance(size, int)]
        window = Integer("", max(sizes)) if sizes else None
        windowed = At(tuple(index for index, size in enumerate(listed) if isinstance(size, int)))
    return {"attention": attention, "window": window, "windowed": windowed}


def _experts(config: Config) -> dict[str, Any]:
    """Return the fields of a mixture of experts, where keys name the number of experts and of those per token."""
    count, active = _first_key(config, _EXPERTS), _first_key(config, _ACTIVE)
    is_mixture = count and active and config.fields.get("is_moe", True)
    if not is_mixture or not all(isinstance(config.fields[str(key)], int) for key in (count, active)):
        return {}
    if config.fields[str(count)] < 2:
        return {}
    is_sigmoid = config.fields.get("scoring_func", config.fields.get("score_func")) == "sigmoid"
    experts: dict[str, Any] = {
        "count": Integer(_EXPERTS), "active": Integer(_ACTIVE), "inner_size": Integer(_EXPERT_SIZE),
        "activation": Activation((), str(_feed_forward(config)["activation"].read(config))),
        "is_normalised": FirstFlag("norm_topk_prob", True), "groups": Integer("n_group", 1),
    }  # fmt: skip
    if is_sigmoid:
        experts |= {"scoring": "sigmoid", "score_correction": True}
    first = _first_key(config, "first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
    sparse: LayerSelection = Listed("sparse", "mlp_layer_types", otherwise=From(Integer(first, 0)) if first else All())
    if isinstance(config.fields.get("moe_layer_freq"), list):
        sparse = Listed(1, "moe_layer_freq")
    listed = config.fields.get("moe_layers_enum")
    if isinstance(listed, str):  # Step 3
        sparse = At(tuple(int(index) for index in listed.split(",") if index.strip().isdecimal()))
    if _first_key(config, "decoder_sparse_step"):
        sparse = Both(EveryNth(Integer("decoder_sparse_step", 1)), Not(Numbered("mlp_only_layers")))
    shared = _first_key(config, _SHARED_SIZE)
    shared_count = _first_key(config, "n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    fields: dict[str, Any] = {"experts": experts, "sparse": sparse}
    if config.fields.get("residual_moe") is True:  # a dense part beside the experts (Grok)
        fields["shared"] = {"module": "residual", "inner_size": Integer("intermediate_size")}
    elif shared and config.fields[shared]:
        fields["shared"] = {"module": "shared_expert", "inner_size": Integer(shared)}
    elif shared_count and isinstance(config.fields[shared_count], int) and config.fields[shared_count]:
        size = Integer(_EXPERT_SIZE)
        fields["shared"] = {"module": "shared_experts", "inner_size": size, "multiple": Integer(shared_count)}
    return fields


def _other_mixer(config: Config) -> dict[str, Any]:
    """Return the fields of a mixer without attention: gated delta nets or Mamba 2, where the keys name one."""
    attends: LayerSelection = Listed("full_attention attention sliding_attention", otherwise=_attention_layers(config))
    if _first_key(config, "linear_num_value_heads"):
        return {
            "other": Record(DeltaNet, {
                "key_heads": Integer("linear_num_key_heads", 16), "value_heads": Integer("linear_num_value_heads"),
                "key_size": Integer("linear_key_head_dim", 128), "value_size": Integer("linear_value_head_dim", 128),
                "convolution": Integer("linear_conv_kernel_dim", 4),
            }),
            "attends": attends,
        }  # fmt: skip
    if _first_key(config, "mamba_n_heads", "mamba_num_heads"):
        size = _first_key(config, "mamba_head_dim")
        return {
            "other": Record(Mamba2, {
                "heads": Integer("mamba_n_heads mamba_num_heads"),
                "head_size": Integer(size) if size else HeadsOf("mamba_d_head", "", "mamba_n_heads"),
                "groups": Integer("mamba_n_groups n_groups", 1),
                "state_size": Integer("mamba_d_state ssm_state_size", 128),
                "convolution": Integer("mamba_d_conv conv_kernel", 4), "module": "mamba",
            }),
            "attends": attends,
        }  # fmt: skip
    return {}


def _attention_layers(config: Config) -> LayerSelection:
    """Return the rule of the layers with attention where no list names them: a period, a list of indices, or all."""
    for key in ("full_attention_interval", "attn_layer_period"):
        if _first_key(config, key):
            return EveryNth(Integer(key))
    indices = _first_key(config, "attn_layer_indices", "full_attn_idxs", "attention_layers_idx")
    return Numbered(indices) if indices else All()

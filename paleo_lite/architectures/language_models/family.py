"""The record of a model type, the standard fields that it changes, and fields that several model types have."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from .keys import (
    Activation,
    All,
    Flag,
    Fraction,
    From,
    HeadSize,
    Integer,
    KeyValueHeads,
    Layers,
    Listed,
    Multiple,
    Reader,
    Record,
    RotarySize,
    When,
)  # fmt: skip
from .traits import Norms, Projections

Fields = Mapping[str, Any]
NOTHING: Fields = MappingProxyType({})

STANDARD_DECODER: Fields = {
    "vocabulary": Integer("vocab_size"), "hidden_size": Integer("hidden_size"), "is_tied": Flag("tie_word_embeddings"),
}  # fmt: skip
STANDARD_ATTENTION: Fields = {
    "heads": Integer("num_attention_heads"), "kv_heads": KeyValueHeads(), "head_size": HeadSize(),
    "rotary_size": RotarySize(), "dropout": Fraction("attention_dropout"),
}  # fmt: skip
STANDARD_FEED_FORWARD: Fields = {"inner_size": Integer("intermediate_size"), "activation": Activation()}
STANDARD_EXPERTS: Fields = {
    "count": Integer("num_experts"), "active": Integer("num_experts_per_tok"),
    "inner_size": Integer("moe_intermediate_size"), "activation": Activation(), "is_normalised": Flag("norm_topk_prob"),
}  # fmt: skip
STANDARD_LATENT: Fields = {
    "heads": Integer("num_attention_heads"), "query_rank": Integer("q_lora_rank", None),
    "kv_rank": Integer("kv_lora_rank"), "plain_size": Integer("qk_nope_head_dim"),
    "rotary_size": Integer("qk_rope_head_dim"), "value_size": Integer("v_head_dim"), "bias": Flag("attention_bias"),
    "dropout": Fraction("attention_dropout"),
}  # fmt: skip


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """A model type.

    Attributes
    ----------
    name : str
        Stem of its classes in ``transformers``: ``Llama`` for ``LlamaForCausalLM`` and ``LlamaModel``.
    layer_count : str or Reader
        The key of the number of blocks, or a reader.
    positions : str
        The key of the number of positions that the model knows.
    longest : int or None
        That number where the config does not give it; None: unlimited.
    decoder, attention, feed_forward, block : Mapping
        Fields of `Decoder`, `Attention`, `FeedForward` and `Block` that differ from the standard: a constant, or a
        reader of `keys`.
    full_attention : Mapping
        Fields of `Attention` that are different in the layers without a window.
    latent : Mapping or None
        Fields of `LatentAttention`; None: the family has `Attention`.
    indexer : Mapping or None
        Fields of `Indexer`; None: there is none.
    indexes : Layers
        The layers with an indexer of their own.
    reuses : Layers
        The layers that attend to the keys and values of a layer before.
    reusing_feed_forward : Mapping
        Fields of their `FeedForward` that are different.
    channel_mix : Mapping or None
        Fields of `ChannelMix`; None: the family has another feed-forward part.
    per_layer_input, side_experts : Mapping or None
        Fields of `PerLayerInput`, and of the `Experts` of `SideExperts`; None: there are none.
    side_norms : Mapping
        Further fields of `SideExperts`.
    has_per_layer_input, has_side_experts : Layers
        The layers with these.
    shared_attention : Mapping or None
        Fields of the `Attention` of a `SharedTransformer`; None: there is none.
    shared_feed_forward : Mapping
        Fields of its `FeedForward`.
    has_shared : Layers
        The layers with one.
    shared_copies : Integer
        How many there are, which take turns.
    head_experts : Mapping or None
        Fields of `HeadExperts`; None: attention has no experts.
    experts : Mapping or None
        Fields of `Experts`; None: there are none.
    shared : Mapping or None
        Fields of the shared experts, a `FeedForward`.
    compressed : Mapping or None
        Fields of `CompressedAttention`; None: the family has another mixer.
    compressions : tuple of (Layers, Record)
        The layers with a `Compression`, and its record.
    sparsely_active : Layers
        The layers with a sparse activation.
    hashed : Layers
        The layers with experts that a table chooses.
    mamba, mamba2, delta_net, kimi_delta, short_convolution : Mapping or None
        Fields of the mixer of layers without attention; None: there are none.
    linear_recurrence, time_mix, matrix_memory : Mapping or None
        Likewise.
    attends : Layers
        The layers with attention, where the family has another mixer.
    has_both_mixers : bool
        Whether every layer has attention and the other mixer side by side.
    mixes : Layers
        The layers with a mixer; others are a feed-forward part alone.
    feeds : Layers
        The layers with a feed-forward part.
    sparse : Layers
        The layers with experts.
    window : Integer or None
        The key of the sliding window.
    windowed : Layers
        The layers to which it applies.
    rotated : Layers
        The layers with rotary positions.
    head_class, model_class : str
        Names of the classes where they are not ``...ForCausalLM`` and ``...Model``.
    unread : tuple of (str, tuple)
        Keys with the only values that are read: a config with others is refused.
    same : tuple of (str, str)
        Pairs of keys that must have the same value, where the first is given.
    embedding_is_active : bool
        Whether the publishers of such models count the embedding of the inputs, of which a token reads one row, among
        the active parameters.
    next_token : str
        Keys of the number of multi-token prediction layers, which are left out; empty: the model has none.
    has_plain_next_token : bool
        Whether such a layer is one more block, so that its parameters are known.
    """

    name: str
    layer_count: str | Reader = "num_hidden_layers"
    positions: str = "max_position_embeddings"
    longest: int | None = 2048
    decoder: Fields = NOTHING
    attention: Fields = NOTHING
    full_attention: Fields = NOTHING
    head_experts: Fields | None = None
    latent: Fields | None = None
    indexer: Fields | None = None
    indexes: Layers = All()
    reuses: Layers = All(False)
    reusing_feed_forward: Fields = NOTHING
    per_layer_input: Fields | None = None
    has_per_layer_input: Layers = All()
    shared_attention: Fields | None = None
    shared_feed_forward: Fields = NOTHING
    has_shared: Layers = All(False)
    shared_copies: Integer = Integer("", 1)
    side_experts: Fields | None = None
    side_norms: Fields = NOTHING
    has_side_experts: Layers = All()
    feed_forward: Fields = NOTHING
    dense_feed_forward: Fields = NOTHING
    block: Fields = NOTHING
    compressed: Fields | None = None
    compressions: tuple[tuple[Layers, Record], ...] = ()
    hashed: Layers = All(False)
    sparsely_active: Layers = All(False)
    mamba: Fields | None = None
    mamba2: Fields | None = None
    delta_net: Fields | None = None
    kimi_delta: Fields | None = None
    short_convolution: Fields | None = None
    linear_recurrence: Fields | None = None
    time_mix: Fields | None = None
    matrix_memory: Fields | None = None
    channel_mix: Fields | None = None
    attends: Layers = All()
    has_both_mixers: bool = False
    mixes: Layers = All()
    feeds: Layers = All()
    experts: Fields | None = None
    shared: Fields | None = None
    sparse: Layers = All()
    window: Integer | None = None
    windowed: Layers = All()
    chunk: Integer | None = None
    chunked: Layers = All()
    rotated: Layers = All()
    head_class: str = ""
    model_class: str = ""
    unread: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    same: tuple[tuple[str, str], ...] = ()
    embedding_is_active: bool = True
    next_token: str = ""
    has_plain_next_token: bool = True

    @property
    def classes(self) -> tuple[str, str]:
        """The class with a head, and the one without."""
        return self.head_class or f"{self.name}ForCausalLM", self.model_class or f"{self.name}Model"


BIASED = {"bias": Flag("attention_bias"), "output_bias": Flag("attention_bias")}
"""Attention biases that the config decides."""

SANDWICH = Norms(
    after_mixer="post_attention_layernorm", before_feed_forward="pre_feedforward_layernorm",
    after_feed_forward="post_feedforward_layernorm",
)  # fmt: skip
POST_NORMS = Norms("", "post_attention_layernorm", "", "post_feedforward_layernorm")
ONE_NORM = Norms(before_feed_forward="")
TWO_LAYER = {"is_gated": False, "up": "fc1", "down": "fc2", "activation_module": "activation_fn"}
"""A feed-forward part without a gate."""

QWEN_WINDOW = When(
    Flag("use_sliding_window"), Listed("sliding_attention", otherwise=From(Integer("max_window_layers", 28)))
)
LOCAL_EXPERTS = {
    "count": Integer("num_local_experts"),
    "inner_size": Integer("intermediate_size"),
    "is_normalised": True,
}
DEEPSEEK_EXPERTS = {
    "count": Integer("n_routed_experts"), "scoring": "sigmoid", "score_correction": True,
    "groups": Integer("n_group", 1), "is_normalised": Flag("norm_topk_prob", True),
}  # fmt: skip
DEEPSEEK_SHARED = {
    "module": "shared_experts", "inner_size": Integer("moe_intermediate_size"),
    "multiple": Integer("n_shared_experts", 1),
}  # fmt: skip
NEXT_TOKEN = "num_nextn_predict_layers"
GPT_PROJECTIONS = Projections(packed="c_attn", output="c_proj")
CONV1D_PART = {
    "is_gated": False, "up": "c_fc", "down": "c_proj", "activation_module": "act", "transposed_weights": True,
    "inner_size": Multiple("n_inner", 4, "n_embd"),
    "activation": Activation(("activation_function",), "gelu_new"),
}  # fmt: skip

"""The record of a model type of decoders, and fields that several model types have."""

from __future__ import annotations

from typing import Any

from ..blocks.rules import BlockRules
from ..blocks.traits import Norms
from ..keys import NOTHING, Fields, Flag, HeadSize, Integer, RotarySize
from ..layer_rules import Both, EveryNth, From, Listed, Not, Numbered, When

STANDARD_DECODER: Fields = {
    "vocabulary": Integer("vocab_size"), "hidden_size": Integer("hidden_size"), "is_tied": Flag("tie_word_embeddings"),
}  # fmt: skip


class Family(BlockRules, frozen=True, kw_only=True):
    """A model type of decoders."""

    name: str  # stem of its classes in ``transformers``: ``Llama`` for ``LlamaForCausalLM`` and ``LlamaModel``
    positions: str = "max_position_embeddings"  # the key of the number of positions that the model knows
    longest: int | None = 2048  # that number where the config does not give it; None: unlimited
    decoder: Fields = NOTHING  # fields of `Decoder` that differ from the standard
    # Names of the classes where they are not ``...ForCausalLM`` and ``...Model``.
    head_class: str = ""
    model_class: str = ""
    other_classes: tuple[
        str, ...
    ] = ()  # further classes of the same record, each with a head but those of ``...Model``
    # Keys with the only values that are read: a config with others is refused.
    unread: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    same: tuple[tuple[str, str], ...] = ()  # pairs of keys with the same value, where the first is given
    # Whether the publishers of such models count the embedding of the inputs, of which a token reads one row, among
    # the active parameters.
    embedding_is_active: bool = True
    # Keys of the number of multi-token prediction layers, which are left out; empty: the model has none.
    next_token: str = ""
    has_plain_next_token: bool = True  # whether such a layer is one more block, so that its parameters are known

    @property
    def classes(self) -> tuple[str, ...]:
        """The class with a head, the one without, and others."""
        named = self.head_class or f"{self.name}ForCausalLM", self.model_class or f"{self.name}Model"
        return (*named, *self.other_classes)


TIED = Flag("tie_word_embeddings", True)
"""Whether the head's weight is that of the embedding, which is usual in these models."""

BIASED = {"bias": Flag("attention_bias"), "output_bias": Flag("attention_bias")}
"""Attention biases that the config decides."""


def heads_of(size: int, rotated: float = 1.0) -> Fields:
    """Return the fields of attention with heads of a size, where the config gives no other, and their rotated part."""
    return {"head_size": HeadSize(size), "rotary_size": RotarySize(rotated, HeadSize(size))}


def all_but_every(period: int, key: str = "sliding_window_pattern", offset: int = -1) -> Listed:
    """Return the layers with a window: those that a list names, else all but one in a period."""
    return Listed("sliding_attention", otherwise=Not(EveryNth(Integer(key, period), offset)))


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
QWEN_SPARSE = Both(EveryNth(Integer("decoder_sparse_step", 1)), Not(Numbered("mlp_only_layers")))
LOCAL_EXPERTS = {
    "count": Integer("num_local_experts"), "inner_size": Integer("intermediate_size"), "is_normalised": True,
}  # fmt: skip
GRANITE_EXPERTS = {
    **LOCAL_EXPERTS, "module": "block_sparse_moe", "router": "router", "scoring": "softmax_of_chosen",
    "is_normalised": False,
}  # fmt: skip
DEEPSEEK_EXPERTS = {
    "count": Integer("n_routed_experts"), "scoring": "sigmoid", "score_correction": True,
    "groups": Integer("n_group", 1), "is_normalised": Flag("norm_topk_prob", True),
}  # fmt: skip
DEEPSEEK_SHARED = {
    "module": "shared_experts", "inner_size": Integer("moe_intermediate_size"),
    "multiple": Integer("n_shared_experts", 1),
}  # fmt: skip
NEXT_TOKEN = "num_nextn_predict_layers"

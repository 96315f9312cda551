"""Text encoders with rotary positions in blocks like BERT's, as embedding models have them: Nomic BERT and GTE."""

from __future__ import annotations

from typing import Any

from ...blocks.rules import BlockRules
from ...blocks.traits import Norms, Projections, Sums
from ...keys import (
    Activation,
    Choice,
    Fields,
    Flag,
    Fraction,
    HeadSize,
    Integer,
    IsSet,
    KeyReader,
    Natural,
    Record,
    record,
)  # fmt: skip
from ...layer_rules import EveryNth, When
from ..family import ATTENTION, BlocksOf, EncoderFamily, Labels, words_head
from ..traits import Activate, Dense, Drop, EncoderModel, Normalise, Stack, TextEmbedding
from .text import bert_pooler

_BLOCK: Fields = {
    "norm": "layer",
    "norms": Norms("", "", "", after_mixer_sum="post_attention_layernorm", after_feed_forward_sum="post_mlp_layernorm"),
    "sums": Sums(mixer_dropout="post_attention_dropout", feed_forward_dropout="post_mlp_dropout"),
}  # fmt: skip


def _model(
    hidden: str, heads: str, layers: str, dropout: Fraction, types: KeyReader, attention: Fields, **parts: Any
) -> Record:
    """Return the record of an encoder by the keys of its sizes; `parts` are rules of its blocks."""
    size = Integer(hidden)
    head_size = HeadSize(key="", hidden=hidden, heads=heads)
    rules = BlockRules(
        layer_count=layers, block={**_BLOCK, "dropout": dropout},
        attention={
            **ATTENTION, "heads": Integer(heads), "kv_heads": Integer(heads), "head_size": head_size,
            "rotary_size": head_size, "dropout": Fraction("attention_probs_dropout_prob attn_pdrop"), **attention,
        },
        **parts,
    )  # fmt: skip
    return record(
        EncoderModel,
        embedding=record(
            TextEmbedding, vocabulary=Integer("vocab_size"), size=size, token_types=types, dropout=dropout
        ),
        blocks=record(
            Stack,
            name="layers",
            hidden_size=size,
            blocks=BlocksOf(rules),
            has_indexed_positions=True,
        ),
    )


def _heads(root: str, dropout: float, words: tuple[Any, ...]) -> dict[str, tuple[Any, ...]]:
    """Return the layers after the blocks by the rest of the class's name, with the usual dropout before classes."""
    classes = (
        record(Drop, name="dropout", probability=Fraction("classifier_dropout hidden_dropout_prob", dropout)),
        record(Dense, name="classifier", outputs=Labels()),
    )
    return {
        "Model": (), "ForMaskedLM": words, "ForSequenceClassification": (*bert_pooler(f"{root}."), *classes),
        "ForTokenClassification": classes,
    }  # fmt: skip


# Nomic BERT (Nussbaum et al. 2024, section 4.1): no biases, SwiGLU. Published configs have the keys of GPT-2; those of
# version 2 are mixtures of experts in every other block, without a gate and with biases (Nussbaum et al. 2025).

_NOMIC_ACTIVATION = Choice(
    "activation_function",
    {"swiglu": "silu", "geglu": "gelu", "gelu": "gelu", None: Activation()}, None,
)  # fmt: skip
_NOMIC_GATED = Choice("activation_function", {"swiglu": True, "geglu": True, "gelu": False, None: True}, None)
_NOMIC = EncoderFamily(
    name="NomicBert",
    root="nomic_bert",
    positions="max_position_embeddings n_positions",
    longest=2048,
    model=_model(
        "hidden_size n_embd", "num_attention_heads n_head", "num_hidden_layers n_layer",
        Fraction("hidden_dropout_prob resid_pdrop"),
        Natural("type_vocab_size", 2), {"bias": Flag("qkv_proj_bias"), "output_bias": Flag("qkv_proj_bias")},
        feed_forward={
            "inner_size": Integer("intermediate_size n_inner"), "activation": _NOMIC_ACTIVATION,
            "is_gated": _NOMIC_GATED, "bias": Flag("mlp_fc1_bias"),
        },
        experts={
            "count": Integer("num_experts"), "active": Integer("moe_top_k"), "inner_size": Integer("n_inner"),
            "activation": "gelu", "is_gated": False, "is_normalised": Flag("moe_normalize_expert_weights"),
            "has_output_bias": True, "router": "router.layer",
        },
        sparse=When(IsSet("moe_every_n_layers", 0, (None, 0)), EveryNth(Integer("moe_every_n_layers"))),
    ),
    heads=_heads("nomic_bert", 0.0, (
        Dense(name="cls.predictions.transform.dense"),
        record(Activate, name="cls.predictions.transform.transform_act_fn", function=_NOMIC_ACTIVATION),
        Normalise(name="cls.predictions.transform.layer_norm"), words_head("cls.predictions.decoder"),
    )),
)  # fmt: skip

# GTE (Zhang et al. 2024, section 3.1): gated by GELU, and biases but in the gated projections. Publishers' configs name
# the type "new" and pack projections.

_GTE_ATTENTION: Fields = {"bias": True, "output_bias": True}
_GTE_PART: Fields = {
    "inner_size": Integer("intermediate_size"), "activation": Activation(default="gelu"), "output_bias": True,
    "inner_dropout": Fraction("hidden_dropout_prob", 0.1),
}  # fmt: skip


def _gte(name: str, root: str, attention: Fields, part: Fields) -> EncoderFamily:
    """Return the record of GTE by a name."""
    return EncoderFamily(
        name=name,
        root=root,
        longest=8192,
        model=_model(
            "hidden_size", "num_attention_heads", "num_hidden_layers", Fraction("hidden_dropout_prob", 0.1),
            Natural("type_vocab_size", 1), {**_GTE_ATTENTION, **attention}, feed_forward={**_GTE_PART, **part},
        ),
        heads=_heads(root, 0.1, (
            Dense(name="lm_head.dense"), Activate(name="lm_head.GELUActivation", function="gelu"),
            Normalise(name="lm_head.layer_norm"), words_head("lm_head.decoder"),
        )),
        unread=(
            ("position_embedding_type", ("rope", None)), ("layer_norm_type", ("layer_norm", None)),
            ("logn_attention_scale", (False,)),
        ),
    )  # fmt: skip


FAMILIES: dict[str, EncoderFamily] = {
    "nomic_bert": _NOMIC,
    "gte": _gte("Gte", "gte", {}, {}),
    "new": _gte(
        "New", "new", {"projections": Projections(packed="qkv_proj")}, {"packed": "up_gate_proj"},
    ),
}  # fmt: skip

"""Encoders of text: BERT and its successors."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ...blocks.rules import BlockRules
from ...blocks.traits import Disentangled, Norms, Projections, Sums
from ...config import Config
from ...keys import Activation, Choice, Fields, Flag, Fraction, HeadSize, Integer, IsSet, Natural, record
from ...layer_rules import EveryNth, Listed, Not
from ..family import ATTENTION, FEED_FORWARD, BlocksOf, EncoderFamily, Labels, words_head
from ..traits import (
    Activate,
    Dense,
    Drop,
    EncoderModel,
    FirstToken,
    KeptTokens,
    MeanOfTokens,
    Normalise,
    SplitAnswer,
    Squeeze,
    Stack,
    Step,
    TextEmbedding,
)  # fmt: skip


class DropoutUnlessZero(NamedTuple):
    """A dropout probability; None where it is 0, and the model has no such module."""

    key: str

    def read(self, config: Config) -> float | None:
        """Return the probability or None."""
        return config.fraction(self.key, 0.0) or None


class HalfOf(NamedTuple):
    """Half of an integer, rounded down."""

    key: str
    default: int

    def read(self, config: Config) -> int:
        """Return the half."""
        return config.positive_integer(self.key, self.default) // 2


class ProjectedSize(NamedTuple):
    """The hidden size where the embedding has another one, else 0."""

    embedding: Integer

    def read(self, config: Config) -> int:
        """Return the size."""
        hidden_size = config.positive_integer("hidden_size")
        return 0 if self.embedding.read(config) == hidden_size else hidden_size


class RelativeSpan(NamedTuple):
    """Number of distances that DeBERTa distinguishes: buckets, or the longest distance; 0 without any."""

    def read(self, config: Config) -> int:
        """Return the number."""
        if not config.boolean("relative_attention", False):
            return 0
        for key in ("position_buckets", "max_relative_positions"):
            value = config.fields.get(key)
            if isinstance(value, int) and value > 0:
                return config.positive_integer(key)
        return config.positive_integer("max_position_embeddings", 512)


class PositionTerms(NamedTuple):
    """The terms of disentangled attention, as a list or separated by ``|``."""

    def read(self, config: Config) -> tuple[str, ...]:
        """Return the names of the terms."""
        terms = config.fields.get("pos_att_type") or ()
        if isinstance(terms, str):
            terms = terms.split("|")
        names = tuple(str(term).strip() for term in terms) if isinstance(terms, (list, tuple)) else ("",)
        if not set(names) <= {"c2p", "p2c"}:
            raise config.fail(f"$.pos_att_type must hold c2p and p2c (got {config.fields['pos_att_type']!r})")
        return names


# BERT

_DROPOUT = Fraction("hidden_dropout_prob", 0.1)
_CLASSIFIER_DROPOUT = Fraction("classifier_dropout hidden_dropout_prob", 0.1)
_PROJECTIONS = Projections("query", "key", "value")
_ATTENTION: Fields = {
    **ATTENTION, "module": "attention.self", "projections": _PROJECTIONS,
    "outer_projection": "attention.output.dense", "is_causal": Flag("is_decoder"),
    "dropout": Fraction("attention_probs_dropout_prob", 0.1),
}  # fmt: skip
_BLOCKS = BlockRules(
    attention=_ATTENTION,
    feed_forward={
        **FEED_FORWARD, "up": "intermediate.dense", "activation_module": "intermediate.intermediate_act_fn",
        "down": "output.dense",
    },
    block={
        "norm": "layer", "dropout": _DROPOUT,
        "norms": Norms("", "", "", after_mixer_sum="attention.output.LayerNorm",
                       after_feed_forward_sum="output.LayerNorm"),
        "sums": Sums(
            mixer="attention.output.add", mixer_dropout="attention.output.dropout", feed_forward="output.add",
            feed_forward_dropout="output.dropout",
        ),
    },
)  # fmt: skip
_STACK = record(Stack, name="encoder.layer", hidden_size=Integer("hidden_size"), blocks=BlocksOf(_BLOCKS))
_EMBEDDING: Fields = {
    "vocabulary": Integer("vocab_size"), "size": Integer("hidden_size"),
    "positions": Integer("max_position_embeddings", 512), "position_kind": "buffer",
    "token_types": Integer("type_vocab_size", 2), "dropout": _DROPOUT,
}  # fmt: skip
_ANSWERS = (Dense(name="qa_outputs", outputs=2), SplitAnswer())
_TOKEN_CLASSES = (record(Drop, name="dropout", probability=_CLASSIFIER_DROPOUT),
                  record(Dense, name="classifier", outputs=Labels()))  # fmt: skip
_CLASS_HEAD = (
    FirstToken(module="classifier"), record(Drop, name="classifier.dropout", probability=_CLASSIFIER_DROPOUT),
    Dense(name="classifier.dense"),
)  # fmt: skip
_CLASS_OUTPUT = (record(Drop, name="classifier.dropout", probability=_CLASSIFIER_DROPOUT),
                 record(Dense, name="classifier.out_proj", outputs=Labels()))  # fmt: skip
_BERT_WORDS = (
    Dense(name="cls.predictions.transform.dense"),
    record(Activate, name="cls.predictions.transform.transform_act_fn", function=Activation(default="gelu")),
    Normalise(name="cls.predictions.transform.LayerNorm"), words_head("cls.predictions.decoder"),
)  # fmt: skip


def bert_pooler(prefix: str) -> tuple[Step, ...]:
    """Return the linear layer and the activation of the first token."""
    name = f"{prefix}pooler"
    dense = Dense(name=f"{name}.dense")
    return FirstToken(module=name), dense, Activate(name=f"{name}.activation", function="tanh", is_module=True)


_BERT = EncoderFamily(
    name="Bert",
    root="bert",
    model=record(EncoderModel, embedding=record(TextEmbedding, _EMBEDDING), blocks=_STACK),
    heads={
        "ForMaskedLM": _BERT_WORDS,
        "LMHeadModel": (KeptTokens(), *_BERT_WORDS),
        "ForSequenceClassification": (*bert_pooler("bert."), *_TOKEN_CLASSES),
        "ForTokenClassification": _TOKEN_CLASSES,
        "ForQuestionAnswering": _ANSWERS,
        "Model": bert_pooler(""),
    },
)
_ROBERTA = EncoderFamily(
    name="Roberta",
    root="roberta",
    model=record(
        EncoderModel, embedding=record(TextEmbedding, _EMBEDDING, position_kind="padded"), blocks=_STACK
    ),
    heads={
        "ForMaskedLM": (
            Dense(name="lm_head.dense"), Activate(name="lm_head.GELUActivation", function="gelu"),
            Normalise(name="lm_head.layer_norm"), words_head("lm_head.decoder"),
        ),
        "ForSequenceClassification": (
            *_CLASS_HEAD, Activate(name="classifier.tanh", function="tanh"), *_CLASS_OUTPUT,
        ),
        "ForTokenClassification": _TOKEN_CLASSES,
        "ForQuestionAnswering": _ANSWERS,
        "Model": bert_pooler(""),
    },
)  # fmt: skip
_ELECTRA_SIZE = Integer("embedding_size", 128)
_ELECTRA = EncoderFamily(
    name="Electra",
    root="electra",
    model=record(
        EncoderModel,
        embedding=record(
            TextEmbedding, _EMBEDDING, size=_ELECTRA_SIZE, projected_size=ProjectedSize(_ELECTRA_SIZE)
        ),
        blocks=_STACK,
    ),
    heads={
        "ForMaskedLM": (
            record(Dense, name="generator_predictions.dense", outputs=_ELECTRA_SIZE),
            Activate(name="generator_predictions.activation", function="gelu"),
            Normalise(name="generator_predictions.LayerNorm"), words_head("generator_lm_head"),
        ),
        "ForPreTraining": (
            Dense(name="discriminator_predictions.dense"),
            record(Activate, name="discriminator_predictions.activation", function=Activation(default="gelu")),
            Dense(name="discriminator_predictions.dense_prediction", outputs=1),
            Squeeze(name="discriminator_predictions"),
        ),
        "ForSequenceClassification": (
            *_CLASS_HEAD, Activate(name="classifier.activation", function="gelu"), *_CLASS_OUTPUT,
        ),
        "ForTokenClassification": _TOKEN_CLASSES,
        "ForQuestionAnswering": _ANSWERS,
        "Model": (),
    },
)  # fmt: skip

# DistilBERT

_DISTIL_DROPOUT = Fraction("dropout", 0.1)
_DISTILBERT = EncoderFamily(
    name="DistilBert",
    root="distilbert",
    model=record(
        EncoderModel,
        embedding=record(
            TextEmbedding, vocabulary=Integer("vocab_size"), size=Integer("dim"),
            positions=Integer("max_position_embeddings", 512), position_kind="buffer", dropout=_DISTIL_DROPOUT,
        ),
        blocks=record(
            Stack, name="transformer.layer", hidden_size=Integer("dim"),
            blocks=BlocksOf(BlockRules(
                layer_count="n_layers",
                attention={
                    **ATTENTION, "heads": Integer("n_heads"), "kv_heads": Integer("n_heads"),
                    "head_size": HeadSize(key="", hidden="dim", heads="n_heads"), "module": "attention",
                    "projections": Projections("q_lin", "k_lin", "v_lin", "out_lin"),
                    "dropout": Fraction("attention_dropout", 0.1),
                },
                feed_forward={
                    **FEED_FORWARD, "inner_size": Integer("hidden_dim"), "module": "ffn", "up": "lin1", "down": "lin2",
                    "activation": Activation(("activation",), "gelu"), "activation_module": "activation",
                    "dropout": _DISTIL_DROPOUT,
                },
                block={
                    "norm": "layer",
                    "norms": Norms("", "", "", after_mixer_sum="sa_layer_norm",
                                   after_feed_forward_sum="output_layer_norm"),
                },
            )),
        ),
    ),
    heads={
        "ForMaskedLM": (
            Dense(name="vocab_transform"),
            record(Activate, name="activation", function=Activation(("activation",), "gelu")),
            Normalise(name="vocab_layer_norm"), words_head("vocab_projector"),
        ),
        "ForSequenceClassification": (
            FirstToken(), Dense(name="pre_classifier"), Activate(name="ReLU", function="relu"),
            record(Drop, name="dropout", probability=Fraction("seq_classif_dropout", 0.2)),
            record(Dense, name="classifier", outputs=Labels()),
        ),
        "ForTokenClassification": (
            record(Drop, name="dropout", probability=_DISTIL_DROPOUT),
            record(Dense, name="classifier", outputs=Labels()),
        ),
        "ForQuestionAnswering": (record(Drop, name="dropout", probability=Fraction("qa_dropout", 0.1)), *_ANSWERS),
        "Model": (),
    },
)  # fmt: skip

# ModernBERT

_MODERN_NORM = Choice("norm_bias", {False: "layer_no_bias", True: "layer"}, False)
_MODERN_HEAD = (
    record(Dense, name="head.dense", has_bias=Flag("classifier_bias")),
    record(Activate, name="head.act", function=Activation(("classifier_activation",), "gelu")),
    record(Normalise, name="head.norm", kind=_MODERN_NORM),
)  # fmt: skip
_MODERN_CLASSES = (record(Drop, name="drop", probability=Fraction("classifier_dropout")),
                   record(Dense, name="classifier", outputs=Labels()))  # fmt: skip
_MODERNBERT = EncoderFamily(
    name="ModernBert",
    root="model",
    longest=8192,
    model=record(
        EncoderModel,
        embedding=record(
            TextEmbedding, vocabulary=Integer("vocab_size"), size=Integer("hidden_size"), norm=_MODERN_NORM,
            dropout=Fraction("embedding_dropout"), words_name="embeddings.tok_embeddings",
            norm_name="embeddings.norm", dropout_name="embeddings.drop",
        ),
        blocks=record(
            Stack, name="layers", hidden_size=Integer("hidden_size"), final_norm="final_norm",
            blocks=BlocksOf(BlockRules(
                attention={
                    **ATTENTION, "rotary_size": HeadSize(key=""), "bias": Flag("attention_bias"),
                    "output_bias": Flag("attention_bias"), "module": "attn",
                    "projections": Projections(packed="Wqkv", output="Wo"), "packed_layout": "parts",
                    "output_dropout": DropoutUnlessZero("attention_dropout"),
                },
                window=HalfOf("local_attention", 128),
                windowed=Listed(
                    "sliding_attention", otherwise=Not(EveryNth(Integer("global_attn_every_n_layers", 3), 0))
                ),
                feed_forward={
                    "module": "mlp", "packed": "Wi", "down": "Wo", "activation_module": "act",
                    "activation": Activation(("hidden_activation",), "gelu"), "bias": Flag("mlp_bias"),
                    "inner_dropout": Fraction("mlp_dropout"), "inner_dropout_module": "drop",
                },
                block={"norm": _MODERN_NORM, "norms": Norms("attn_norm", "", "mlp_norm")},
            ), has_first_norm=False),
        ),
    ),
    heads={
        "ForMaskedLM": (*_MODERN_HEAD, words_head("decoder", Flag("decoder_bias", True))),
        "ForSequenceClassification": (
            Choice("classifier_pooling", {"cls": FirstToken(), "mean": MeanOfTokens()}, "cls"),
            *_MODERN_HEAD, *_MODERN_CLASSES,
        ),
        "ForTokenClassification": (*_MODERN_HEAD, *_MODERN_CLASSES),
        "ForQuestionAnswering": (
            *_MODERN_HEAD, _MODERN_CLASSES[0], Dense(name="classifier", outputs=2), SplitAnswer(),
        ),
        "Model": (),
    },
)  # fmt: skip

# DeBERTa

_DEBERTA_CLASSES = (
    record(Drop, name="dropout", probability=Fraction("cls_dropout hidden_dropout_prob", 0.1)),
    record(Dense, name="classifier", outputs=Labels()),
)  # fmt: skip
_DEBERTA_ATTENTION: Fields = {
    **_ATTENTION, "projections": Projections("query_proj", "key_proj", "value_proj"), "is_causal": False,
    "disentangled": record(
        Disentangled, span=RelativeSpan(), has_log_buckets=IsSet("position_buckets", -1, (None, -1, 0)),
        shares_projections=Flag("share_att_key"), terms=PositionTerms(), dropout=_DROPOUT,
        has_norm=Choice("norm_rel_ebd", {"layer_norm": True, "none": False}, "none"),
    ),
}  # fmt: skip
_DEBERTA = EncoderFamily(
    name="DebertaV2",
    root="deberta",
    unread=(("conv_kernel_size", (0, None)), ("legacy", (True,))),
    model=record(
        EncoderModel,
        embedding=record(
            TextEmbedding, _EMBEDDING, has_mask=True, token_types=Natural("type_vocab_size", 0),
            position_kind=Choice("position_biased_input", {True: "buffer", False: "none"}, True),
        ),
        blocks=record(
            Stack, _STACK.fields, blocks=BlocksOf(msgspec.structs.replace(_BLOCKS, attention=_DEBERTA_ATTENTION))
        ),
    ),
    heads={
        "ForMaskedLM": _BERT_WORDS,
        "ForSequenceClassification": (
            FirstToken(module="pooler"), record(Drop, name="pooler.dropout", probability=Fraction("pooler_dropout")),
            Dense(name="pooler.dense"),
            record(Activate, name="pooler.GELUActivation", function=Activation(("pooler_hidden_act",), "gelu")),
            *_DEBERTA_CLASSES,
        ),
        "ForTokenClassification": _TOKEN_CLASSES,
        "ForQuestionAnswering": _ANSWERS,
        "Model": (),
    },
)  # fmt: skip

FAMILIES: dict[str, EncoderFamily] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": msgspec.structs.replace(_ROBERTA, name="XLMRoberta"),
    "electra": _ELECTRA,
    "distilbert": _DISTILBERT,
    "modernbert": _MODERNBERT,
    "deberta-v2": _DEBERTA,
}

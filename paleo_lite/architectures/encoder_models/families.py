"""Families of encoders: for each ``model_type`` of a config one record of its parts.

Each record says which key of the config gives each field of the records in `traits`. Sources are the modules of
``transformers`` 5 of the same names, with which tests compare every family.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from ..language_models.keys import Activation, Choice, Flag, Fraction, HeadSize, Integer, IsSet, Sum
from ..tape import ACTIVATIONS, Config
from .traits import (
    Activate,
    AddConstant,
    AudioEmbedding,
    BlockNames,
    Blocks,
    Dense,
    Disentangled,
    Drop,
    EncoderModel,
    EncoderPair,
    FirstToken,
    ImageEmbedding,
    KeptTokens,
    MarkedToken,
    MeanOfTokens,
    Normalise,
    PoolByAttention,
    RelativeBias,
    Scale,
    SplitAnswer,
    Squeeze,
    Step,
    TextEmbedding,
)  # fmt: skip

Fields = Mapping[str, Any]
NOTHING: Fields = MappingProxyType({})


class Part(NamedTuple):
    """A record of `traits` with fields that are constants, readers of config values, or parts.

    Attributes
    ----------
    kind : type
    fields : Mapping
    """

    kind: type[msgspec.Struct]
    fields: Fields

    def read(self, config: Config) -> Any:
        """Return the record for a config."""
        values = {}
        for name, value in self.fields.items():
            values[name] = value.read(config) if hasattr(value, "read") else value
        return self.kind(**values)


def part(kind: type[msgspec.Struct], /, *fields: Fields, **more: Any) -> Part:
    """Return a part with all the fields, of which later ones replace earlier ones."""
    merged: dict[str, Any] = {}
    for mapping in (*fields, more):
        merged.update(mapping)
    return Part(kind, merged)


# Readers of values that only encoders have


class Labels(NamedTuple):
    """The number of classes: given, else one for each label, else 2."""

    def read(self, config: Config) -> int:
        """Return the number."""
        labels = config.fields.get("id2label")
        return config.positive_integer("num_labels", len(labels) if isinstance(labels, dict) and labels else 2)


class FractionOf(NamedTuple):
    """A number from 0 to 1: the first of several keys that is not null."""

    keys: tuple[str, ...]
    default: float = 0.0

    def read(self, config: Config) -> float:
        """Return the number."""
        for key in self.keys:
            if config.fields.get(key) is not None:
                return config.fraction(key, self.default)
        return self.default


class DropoutUnlessZero(NamedTuple):
    """A dropout probability; None where it is 0, and the model has no such module."""

    key: str

    def read(self, config: Config) -> float | None:
        """Return the probability or None."""
        return config.fraction(self.key, 0.0) or None


class SideWindows(NamedTuple):
    """ModernBERT's windows: in each block all tokens, or half of ``local_attention`` to either side."""

    def read(self, config: Config) -> tuple[int | None, ...]:
        """Return the window of each block."""
        count = config.positive_integer("num_hidden_layers")
        window = config.positive_integer("local_attention", 128) // 2
        types = config.fields.get("layer_types")
        if types is not None:
            if not isinstance(types, list) or len(types) < count:
                raise config.fail(f"$.layer_types must be a list of {count} types (got {types!r})")
            return tuple(window if kind == "sliding_attention" else None for kind in types[:count])
        every = config.positive_integer("global_attn_every_n_layers", 3)
        return tuple(None if index % every == 0 else window for index in range(count))


class ProjectedSize(NamedTuple):
    """The hidden size where the embedding has another one, else 0."""

    embedding: Integer

    def read(self, config: Config) -> int:
        """Return the size."""
        hidden_size = config.positive_integer("hidden_size")
        return 0 if self.embedding.read(config) == hidden_size else hidden_size


class RelativeSpan(NamedTuple):
    """The number of relative distances that DeBERTa distinguishes: its buckets, else its longest distance.

    It is 0 without relative positions.
    """

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


class FeedForwardProjection(NamedTuple):
    """The activation or the gating of T5's feed-forward layer, such as ``gated-gelu``.

    Attributes
    ----------
    returns_gating : bool
        Whether the gating is read, not the activation.
    """

    returns_gating: bool

    def read(self, config: Config) -> str:
        """Return the name of the activation, or the gating."""
        projection = str(config.fields.get("feed_forward_proj", "relu"))
        is_gated, function = projection.startswith("gated-"), projection.rpartition("-")[2]
        if function not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise config.fail(f"$.feed_forward_proj is {projection!r}, known are {known}, also gated-")
        if self.returns_gating:
            return "separate" if is_gated else "none"
        return "gelu_new" if projection == "gated-gelu" else function


class UpName(NamedTuple):
    """The name of T5's first projection, which differs if there is a gate.

    Attributes
    ----------
    module : str
        Name of the feed-forward module.
    """

    module: str

    def read(self, config: Config) -> str:
        """Return the name."""
        is_gated = FeedForwardProjection(returns_gating=True).read(config) == "separate"
        return f"{self.module}.wi_1" if is_gated else f"{self.module}.wi"


class TypeCount(NamedTuple):
    """The number of token types of DeBERTa, which may be 0."""

    def read(self, config: Config) -> int:
        """Return the number."""
        if config.fields.get("type_vocab_size", 0) == 0:
            return 0
        return config.positive_integer("type_vocab_size")


def nested_fields(config: Config, key: str) -> dict[str, Any]:
    """Return a nested config; raise BadDescriptor if it is missing."""
    fields = config.fields.get(key)
    if not isinstance(fields, dict):
        raise config.fail(f"$.{key} is missing: a config of {config.fields['model_type']} needs it")
    return fields


class Nested(NamedTuple):
    """The model of a nested config.

    Attributes
    ----------
    key : str
        Key of the nested config.
    model_type : str
    """

    key: str
    model_type: str

    def read(self, config: Config) -> EncoderModel:
        """Return the model."""
        nested = Config({**nested_fields(config, self.key), "model_type": self.model_type}, config.where)
        family = FAMILIES[self.model_type]
        model = describe_encoder(family, nested, family.classes[-1])
        assert isinstance(model, EncoderModel)
        return model


# Families


class EncoderFamily(msgspec.Struct, frozen=True, kw_only=True):
    """A model type.

    Attributes
    ----------
    name : str
        Stem of its classes in ``transformers``: ``Bert`` for ``BertForMaskedLM`` and ``BertModel``.
    model : Part
        An `EncoderModel` without head, or an `EncoderPair`.
    heads : Mapping of str to tuple of Part
        The layers after the blocks by the rest of the class's name; of the first class where a config names none.
    root : str
        Name of the module around the encoder in classes with a head.
    positions : str
        The key of the number of positions that the model knows.
    longest : int or None
        That number where the config does not give it; None: unlimited.
    reads : {"text", "images", "audio", "text and images"}
    layer_count : str
        The key of the number of blocks.
    inputs : int
        Number of sequences that the model reads.
    generates : bool
        Whether the model has a decoder with a KV cache.
    unread : tuple of (str, tuple)
        Keys with the only values that are read: a config with others is refused.
    """

    name: str
    model: Part
    heads: Mapping[str, tuple[Any, ...]]
    root: str = ""
    positions: str = "max_position_embeddings"
    longest: int | None = 512
    reads: str = "text"
    layer_count: str = "num_hidden_layers"
    inputs: int = 1
    generates: bool = False
    unread: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes that are read."""
        return tuple(f"{self.name}{suffix}" for suffix in self.heads)

    def root_of(self, class_name: str) -> str:
        """Return the name of the module around the encoder in a class, with a dot, or nothing."""
        is_bare = class_name == f"{self.name}Model"
        return "" if is_bare or not self.root else f"{self.root}."


def describe_encoder(family: EncoderFamily, config: Config, class_name: str) -> EncoderModel | EncoderPair:
    """Return the record of the model that a config describes.

    Raises
    ------
    BadDescriptor
        If a key is missing or malformed, or has a value that is not read.
    """
    for key, values in family.unread:
        if config.fields.get(key, values[0]) not in values:
            raise config.fail(f"$.{key} is {config.fields[key]!r}; {family.name} is read with {values[0]!r} only")
    model: EncoderModel | EncoderPair = family.model.read(config)
    if isinstance(model, EncoderPair):
        return model
    head: list[Step] = []
    for step in family.heads[class_name.removeprefix(family.name)]:
        head.append(step.read(config) if hasattr(step, "read") else step)
    return msgspec.structs.replace(model, head=tuple(head))


BERT_DROPOUT = Fraction("hidden_dropout_prob", 0.1)
CLASSIFIER_DROPOUT = FractionOf(("classifier_dropout", "hidden_dropout_prob"), 0.1)
STANDARD_BLOCKS: Fields = {
    "count": Integer("num_hidden_layers"), "hidden_size": Integer("hidden_size"),
    "heads": Integer("num_attention_heads"),
    "head_size": HeadSize(key=""), "intermediate_size": Integer("intermediate_size"),
    "activation": Activation(default="gelu"),
}  # fmt: skip
BERT_NAMES = BlockNames(
    attention="attention.self", query="query", key="key", value="value", output="attention.output.dense",
    attention_dropout="attention.output.dropout", attention_sum="attention.output.add",
    attention_norm="attention.output.LayerNorm", up="intermediate.dense",
    activation="intermediate.intermediate_act_fn", down="output.dense", dropout="output.dropout", sum="output.add",
    norm="output.LayerNorm",
)  # fmt: skip
BERT_BLOCKS: Fields = {
    **STANDARD_BLOCKS, "name": "encoder.layer", "names": BERT_NAMES, "is_causal": Flag("is_decoder"),
    "attention_dropout": Fraction("attention_probs_dropout_prob", 0.1), "attention_output_dropout": BERT_DROPOUT,
    "dropout": BERT_DROPOUT,
}  # fmt: skip
BERT_EMBEDDING: Fields = {
    "vocabulary": Integer("vocab_size"), "size": Integer("hidden_size"),
    "positions": Integer("max_position_embeddings", 512), "position_kind": "buffer",
    "token_types": Integer("type_vocab_size", 2), "dropout": BERT_DROPOUT,
}  # fmt: skip
IS_TIED = Flag("tie_word_embeddings", True)
ANSWERS = (Dense(name="qa_outputs", outputs=2), SplitAnswer())
TOKEN_CLASSES = (part(Drop, name="dropout", probability=CLASSIFIER_DROPOUT),
                 part(Dense, name="classifier", outputs=Labels()))  # fmt: skip
CLASS_HEAD = (
    FirstToken(module="classifier"), part(Drop, name="classifier.dropout", probability=CLASSIFIER_DROPOUT),
    Dense(name="classifier.dense"),
)  # fmt: skip
CLASS_OUTPUT = (part(Drop, name="classifier.dropout", probability=CLASSIFIER_DROPOUT),
                part(Dense, name="classifier.out_proj", outputs=Labels()))  # fmt: skip


def bert_words(prefix: str) -> tuple[Any, ...]:
    """Return the head for masked words of BERT and DeBERTa."""
    return (
        Dense(name=f"{prefix}.transform.dense"),
        part(Activate, name=f"{prefix}.transform.transform_act_fn", function=Activation(default="gelu")),
        Normalise(name=f"{prefix}.transform.LayerNorm"),
        part(Dense, name=f"{prefix}.decoder", outputs=Integer("vocab_size"), is_tied=IS_TIED),
    )


def bert_pooler(prefix: str) -> tuple[Step, ...]:
    """Return the linear layer and the activation of the first token."""
    name = f"{prefix}pooler"
    dense = Dense(name=f"{name}.dense")
    return FirstToken(module=name), dense, Activate(name=f"{name}.activation", function="tanh", is_module=True)


ROBERTA_WORDS = (
    Dense(name="lm_head.dense"), Activate(name="lm_head.GELUActivation", function="gelu"),
    Normalise(name="lm_head.layer_norm"),
    part(Dense, name="lm_head.decoder", outputs=Integer("vocab_size"), is_tied=IS_TIED),
)  # fmt: skip
BERT = EncoderFamily(
    name="Bert",
    root="bert",
    model=part(EncoderModel, embedding=part(TextEmbedding, BERT_EMBEDDING), blocks=part(Blocks, BERT_BLOCKS)),
    heads={
        "ForMaskedLM": bert_words("cls.predictions"),
        "LMHeadModel": (KeptTokens(), *bert_words("cls.predictions")),
        "ForSequenceClassification": (*bert_pooler("bert."), *TOKEN_CLASSES),
        "ForTokenClassification": TOKEN_CLASSES,
        "ForQuestionAnswering": ANSWERS,
        "Model": bert_pooler(""),
    },
)
ROBERTA = EncoderFamily(
    name="Roberta",
    root="roberta",
    model=part(
        EncoderModel,
        embedding=part(TextEmbedding, BERT_EMBEDDING, position_kind="padded"),
        blocks=part(Blocks, BERT_BLOCKS),
    ),
    heads={
        "ForMaskedLM": ROBERTA_WORDS,
        "ForSequenceClassification": (*CLASS_HEAD, Activate(name="classifier.tanh", function="tanh"), *CLASS_OUTPUT),
        "ForTokenClassification": TOKEN_CLASSES,
        "ForQuestionAnswering": ANSWERS,
        "Model": bert_pooler(""),
    },
)
ELECTRA_SIZE = Integer("embedding_size", 128)
ELECTRA = EncoderFamily(
    name="Electra",
    root="electra",
    model=part(
        EncoderModel,
        embedding=part(TextEmbedding, BERT_EMBEDDING, size=ELECTRA_SIZE, projected_size=ProjectedSize(ELECTRA_SIZE)),
        blocks=part(Blocks, BERT_BLOCKS),
    ),
    heads={
        "ForMaskedLM": (
            part(Dense, name="generator_predictions.dense", outputs=ELECTRA_SIZE),
            Activate(name="generator_predictions.activation", function="gelu"),
            Normalise(name="generator_predictions.LayerNorm"),
            part(Dense, name="generator_lm_head", outputs=Integer("vocab_size"), is_tied=IS_TIED),
        ),
        "ForPreTraining": (
            Dense(name="discriminator_predictions.dense"),
            part(Activate, name="discriminator_predictions.activation", function=Activation(default="gelu")),
            Dense(name="discriminator_predictions.dense_prediction", outputs=1),
            Squeeze(name="discriminator_predictions"),
        ),
        "ForSequenceClassification": (
            *CLASS_HEAD, Activate(name="classifier.activation", function="gelu"), *CLASS_OUTPUT,
        ),
        "ForTokenClassification": TOKEN_CLASSES,
        "ForQuestionAnswering": ANSWERS,
        "Model": (),
    },
)  # fmt: skip
DISTIL_DROPOUT = Fraction("dropout", 0.1)
DISTILBERT = EncoderFamily(
    name="DistilBert",
    root="distilbert",
    layer_count="n_layers",
    model=part(
        EncoderModel,
        embedding=part(
            TextEmbedding, vocabulary=Integer("vocab_size"), size=Integer("dim"),
            positions=Integer("max_position_embeddings", 512), position_kind="buffer", dropout=DISTIL_DROPOUT,
        ),
        blocks=part(
            Blocks, name="transformer.layer", count=Integer("n_layers"), hidden_size=Integer("dim"),
            heads=Integer("n_heads"), head_size=HeadSize(key="", hidden="dim", heads="n_heads"),
            intermediate_size=Integer("hidden_dim"), activation=Activation(("activation",), "gelu"),
            attention_dropout=Fraction("attention_dropout", 0.1), dropout=DISTIL_DROPOUT,
            names=BlockNames(
                attention="attention", query="q_lin", key="k_lin", value="v_lin", output="attention.out_lin",
                attention_norm="sa_layer_norm", up="ffn.lin1", activation="ffn.activation", down="ffn.lin2",
                dropout="ffn.dropout", norm="output_layer_norm",
            ),
        ),
    ),
    heads={
        "ForMaskedLM": (
            Dense(name="vocab_transform"),
            part(Activate, name="activation", function=Activation(("activation",), "gelu")),
            Normalise(name="vocab_layer_norm"),
            part(Dense, name="vocab_projector", outputs=Integer("vocab_size"), is_tied=IS_TIED),
        ),
        "ForSequenceClassification": (
            FirstToken(), Dense(name="pre_classifier"), Activate(name="ReLU", function="relu"),
            part(Drop, name="dropout", probability=Fraction("seq_classif_dropout", 0.2)),
            part(Dense, name="classifier", outputs=Labels()),
        ),
        "ForTokenClassification": (
            part(Drop, name="dropout", probability=DISTIL_DROPOUT), part(Dense, name="classifier", outputs=Labels()),
        ),
        "ForQuestionAnswering": (part(Drop, name="dropout", probability=Fraction("qa_dropout", 0.1)), *ANSWERS),
        "Model": (),
    },
)  # fmt: skip
MODERN_NORM = Choice("norm_bias", {False: "layer_no_bias", True: "layer"}, False)
MODERN_HEAD = (
    part(Dense, name="head.dense", has_bias=Flag("classifier_bias")),
    part(Activate, name="head.act", function=Activation(("classifier_activation",), "gelu")),
    part(Normalise, name="head.norm", kind=MODERN_NORM),
)  # fmt: skip
MODERN_CLASSES = (part(Drop, name="drop", probability=Fraction("classifier_dropout")),
                  part(Dense, name="classifier", outputs=Labels()))  # fmt: skip
MODERNBERT = EncoderFamily(
    name="ModernBert",
    root="model",
    longest=8192,
    model=part(
        EncoderModel,
        embedding=part(
            TextEmbedding, vocabulary=Integer("vocab_size"), size=Integer("hidden_size"), norm=MODERN_NORM,
            dropout=Fraction("embedding_dropout"), words_name="embeddings.tok_embeddings",
            norm_name="embeddings.norm", dropout_name="embeddings.drop",
        ),
        blocks=part(
            Blocks, STANDARD_BLOCKS, name="layers", activation=Activation(("hidden_activation",), "gelu"),
            norm=MODERN_NORM, is_pre_norm=True, has_first_norm=False, final_norm="final_norm", gating="packed",
            has_bias=Flag("attention_bias"), has_query_bias=Flag("attention_bias"),
            has_feed_forward_bias=Flag("mlp_bias"), rotary_size=HeadSize(key=""), windows=SideWindows(),
            attention_dropout=Fraction("attention_dropout"),
            attention_output_dropout=DropoutUnlessZero("attention_dropout"), inner_dropout=Fraction("mlp_dropout"),
            names=BlockNames(
                attention="attn", packed="Wqkv", output="attn.Wo", attention_dropout="attn.out_drop",
                attention_norm="attn_norm", feed_forward="mlp", up="mlp.Wi", activation="mlp.act", down="mlp.Wo",
                inner_dropout="mlp.drop", norm="mlp_norm",
            ),
        ),
    ),
    heads={
        "ForMaskedLM": (
            *MODERN_HEAD,
            part(Dense, name="decoder", outputs=Integer("vocab_size"), has_bias=Flag("decoder_bias", True),
                 is_tied=IS_TIED),
        ),
        "ForSequenceClassification": (
            Choice("classifier_pooling", {"cls": FirstToken(), "mean": MeanOfTokens()}, "cls"),
            *MODERN_HEAD, *MODERN_CLASSES,
        ),
        "ForTokenClassification": (*MODERN_HEAD, *MODERN_CLASSES),
        "ForQuestionAnswering": (*MODERN_HEAD, MODERN_CLASSES[0], Dense(name="classifier", outputs=2), SplitAnswer()),
        "Model": (),
    },
)  # fmt: skip
DEBERTA_CLASSES = (part(Drop, name="dropout", probability=FractionOf(("cls_dropout", "hidden_dropout_prob"), 0.1)),
                   part(Dense, name="classifier", outputs=Labels()))  # fmt: skip
DEBERTA_NAMES = msgspec.structs.replace(BERT_NAMES, query="query_proj", key="key_proj", value="value_proj")
DEBERTA = EncoderFamily(
    name="DebertaV2",
    root="deberta",
    unread=(("conv_kernel_size", (0, None)), ("legacy", (True,))),
    model=part(
        EncoderModel,
        embedding=part(
            TextEmbedding, BERT_EMBEDDING, has_mask=True, token_types=TypeCount(),
            position_kind=Choice("position_biased_input", {True: "buffer", False: "none"}, True),
        ),
        blocks=part(
            Blocks, BERT_BLOCKS, names=DEBERTA_NAMES, is_causal=False,
            disentangled=part(
                Disentangled, span=RelativeSpan(), has_log_buckets=IsSet("position_buckets", -1, (None, -1, 0)),
                shares_projections=Flag("share_att_key"), terms=PositionTerms(),
                has_norm=Choice("norm_rel_ebd", {"layer_norm": True, "none": False}, "none"),
            ),
        ),
    ),
    heads={
        "ForMaskedLM": bert_words("cls.predictions"),
        "ForSequenceClassification": (
            FirstToken(module="pooler"), part(Drop, name="pooler.dropout", probability=Fraction("pooler_dropout")),
            Dense(name="pooler.dense"),
            part(Activate, name="pooler.GELUActivation", function=Activation(("pooler_hidden_act",), "gelu")),
            *DEBERTA_CLASSES,
        ),
        "ForTokenClassification": TOKEN_CLASSES,
        "ForQuestionAnswering": ANSWERS,
        "Model": (),
    },
)  # fmt: skip
IMAGE_SIZES: Fields = {
    "hidden_size": Integer("hidden_size"), "image_size": Integer("image_size", 224),
    "channels": Integer("num_channels", 3),
}  # fmt: skip
VIT = EncoderFamily(
    name="ViT",
    root="vit",
    positions="image_size",
    longest=None,
    reads="images",
    model=part(
        EncoderModel,
        embedding=part(
            ImageEmbedding, IMAGE_SIZES, patch_size=Integer("patch_size", 16), adds_position_parameter=True,
            dropout=Fraction("hidden_dropout_prob"), projection="embeddings.patch_embeddings.projection",
            patches="embeddings.patch_embeddings", class_token="embeddings.cls_token",
            positions_name="embeddings.position_embeddings",
        ),
        blocks=part(
            Blocks, STANDARD_BLOCKS, name="layers", is_pre_norm=True, final_norm="layernorm",
            has_query_bias=Flag("qkv_bias", True), attention_dropout=Fraction("attention_probs_dropout_prob"),
            attention_output_dropout=Fraction("hidden_dropout_prob"), dropout=Fraction("hidden_dropout_prob"),
            names=BlockNames(
                attention="attention", output="attention.o_proj", attention_norm="layernorm_before", up="mlp.fc1",
                activation="mlp.activation_fn", down="mlp.fc2", norm="layernorm_after",
            ),
        ),
    ),
    heads={
        "ForImageClassification": (FirstToken(), part(Dense, name="classifier", outputs=Labels())),
        "Model": bert_pooler(""),
    },
)  # fmt: skip
CLIP_NAMES = BlockNames(
    attention_norm="layer_norm1", up="mlp.fc1", activation="mlp.activation_fn", down="mlp.fc2", norm="layer_norm2"
)
CLIP_BLOCKS: Fields = {
    **STANDARD_BLOCKS, "name": "encoder.layers", "names": CLIP_NAMES, "is_pre_norm": True,
    "activation": Activation(default="quick_gelu"), "attention_dropout": Fraction("attention_dropout"),
}  # fmt: skip
CLIP_TEXT: Fields = {
    "vocabulary": Integer("vocab_size", 49408), "size": Integer("hidden_size"),
    "position_kind": "buffer", "positions": Integer("max_position_embeddings", 77), "norm_name": "",
    "is_reshaped": True, "words_name": "embeddings.token_embedding", "positions_name": "embeddings.position_embedding",
}  # fmt: skip
SIGLIP_ACTIVATION = Activation(default="gelu_pytorch_tanh")
IMAGES: Fields = {"positions": "image_size", "longest": None, "reads": "images"}
CLIP_VISION = EncoderFamily(
    name="CLIPVision",
    **IMAGES,
    model=part(
        EncoderModel,
        embedding=part(
            ImageEmbedding, IMAGE_SIZES, patch_size=Integer("patch_size", 32), has_bias=False,
            class_token="embeddings.class_embedding", norm_name="pre_layrnorm",
        ),
        blocks=part(Blocks, CLIP_BLOCKS),
    ),
    heads={"Model": (FirstToken(), Normalise(name="post_layernorm"))},
)  # fmt: skip
SIGLIP_VISION = EncoderFamily(
    name="SiglipVision",
    **IMAGES,
    model=part(
        EncoderModel,
        embedding=part(ImageEmbedding, IMAGE_SIZES, patch_size=Integer("patch_size", 16)),
        blocks=part(Blocks, CLIP_BLOCKS, activation=SIGLIP_ACTIVATION, final_norm="post_layernorm"),
    ),
    heads={
        "Model": (
            part(
                PoolByAttention, heads=Integer("num_attention_heads"), intermediate_size=Integer("intermediate_size"),
                activation=SIGLIP_ACTIVATION, applies=Flag("vision_use_head", True),
            ),
        )
    },
)  # fmt: skip
CLIP_TEXT_ENCODER = EncoderFamily(
    name="CLIPText",
    longest=77,
    model=part(
        EncoderModel,
        embedding=part(TextEmbedding, CLIP_TEXT),
        blocks=part(Blocks, CLIP_BLOCKS, is_causal=True, final_norm="final_layer_norm"),
    ),
    heads={"Model": (MarkedToken(),)},
)
SIGLIP_TEXT_ENCODER = EncoderFamily(
    name="SiglipText",
    longest=64,
    model=part(
        EncoderModel,
        embedding=part(
            TextEmbedding, CLIP_TEXT, vocabulary=Integer("vocab_size", 32000),
            positions=Integer("max_position_embeddings", 64),
        ),
        blocks=part(Blocks, CLIP_BLOCKS, activation=SIGLIP_ACTIVATION, final_norm="final_layer_norm"),
    ),
    heads={"Model": (FirstToken(), part(Dense, name="head", outputs=Integer("projection_size hidden_size")))},
)  # fmt: skip
CLIP = EncoderFamily(
    name="CLIP",
    reads="text and images",
    inputs=2,
    model=part(
        EncoderPair, text=Nested("text_config", "clip_text_model"), image=Nested("vision_config", "clip_vision_model"),
        projection_size=Integer("projection_dim", 512),
    ),
    heads={"Model": ()},
)  # fmt: skip
SIGLIP = EncoderFamily(
    name="Siglip",
    reads="text and images",
    inputs=2,
    model=part(
        EncoderPair, text=Nested("text_config", "siglip_text_model"),
        image=Nested("vision_config", "siglip_vision_model"), has_bias=True,
    ),
    heads={"Model": ()},
)  # fmt: skip


def two_stacks(side: str, fields: Fields) -> Part:
    """Return the blocks of BART's or Whisper's encoder or decoder."""
    heads = f"{side}_attention_heads"
    return part(
        Blocks,
        fields,
        name=f"{side}.layers",
        count=Integer(f"{side}_layers"),
        hidden_size=Integer("d_model"),
        heads=Integer(heads),
        head_size=HeadSize(key="", hidden="d_model", heads=heads),
        intermediate_size=Integer(f"{side}_ffn_dim"),
        activation=Activation(("activation_function",), "gelu"),
        is_causal=side == "decoder",
        mask_module="decoder",
        attention_dropout=Fraction("attention_dropout"),
        inner_dropout=Fraction("activation_dropout"),
        dropout_origin="function",
    )


def bart_embedding(side: str) -> Part:
    """Return the embedding of BART's encoder or decoder."""
    return part(
        TextEmbedding,
        vocabulary=Integer("vocab_size"),
        size=Integer("d_model"),
        positions=Sum("max_position_embeddings", 1024, 2),
        position_kind="counted" if side == "encoder" else "continued",
        origin="function",
        is_scaled=True,
        dropout=Fraction("dropout", 0.1),
        dropout_origin="function",
        module=side,
        words_name="shared",
        scale_name=f"{side}.embed_tokens",
        positions_name=f"{side}.embed_positions",
        norm_name=f"{side}.layernorm_embedding",
        dropout_name=f"{side}.dropout",
    )


BART_BLOCKS: Fields = {"attention_output_dropout": Fraction("dropout", 0.1), "dropout": Fraction("dropout", 0.1)}
BART = EncoderFamily(
    name="Bart",
    root="model",
    longest=1024,
    layer_count="encoder_layers",
    inputs=2,
    generates=True,
    model=part(
        EncoderModel, embedding=bart_embedding("encoder"), blocks=two_stacks("encoder", BART_BLOCKS),
        decoder_embedding=bart_embedding("decoder"), decoder_blocks=two_stacks("decoder", BART_BLOCKS),
        has_shared_embedding=True,
    ),
    heads={
        "ForConditionalGeneration": (
            part(Dense, name="lm_head", outputs=Integer("vocab_size"), has_bias=False, is_tied=IS_TIED), AddConstant(),
        ),
        "Model": (),
    },
)  # fmt: skip
WHISPER_BLOCKS: Fields = {
    "is_pre_norm": True, "has_key_bias": False, "scales_queries": True,
    "attention_output_dropout": Fraction("dropout"), "dropout": Fraction("dropout"),
}  # fmt: skip
WHISPER = EncoderFamily(
    name="Whisper",
    root="model",
    positions="max_target_positions",
    longest=448,
    reads="audio",
    layer_count="encoder_layers",
    inputs=2,
    generates=True,
    model=part(
        EncoderModel,
        embedding=part(
            AudioEmbedding, hidden_size=Integer("d_model"), bins=Integer("num_mel_bins", 80),
            positions=Integer("max_source_positions", 1500), dropout=Fraction("dropout"),
        ),
        blocks=two_stacks("encoder", {**WHISPER_BLOCKS, "final_norm": "encoder.layer_norm"}),
        decoder_embedding=part(
            TextEmbedding, vocabulary=Integer("vocab_size"), size=Integer("d_model"),
            positions=Integer("max_target_positions", 448), position_kind="rows", dropout=Fraction("dropout"),
            dropout_origin="function", module="decoder", words_name="decoder.embed_tokens",
            positions_name="decoder.embed_positions", norm_name="", dropout_name="decoder.dropout",
        ),
        decoder_blocks=two_stacks(
            "decoder", {**WHISPER_BLOCKS, "final_norm": "decoder.layer_norm", "checks_packing": True}
        ),
    ),
    heads={
        "ForConditionalGeneration": (
            part(Dense, name="proj_out", outputs=Integer("vocab_size"), has_bias=False, is_tied=IS_TIED),
        ),
        "Model": (),
    },
)  # fmt: skip
T5_DROPOUT = Fraction("dropout_rate", 0.1)


def t5_embedding(side: str) -> Part:
    """Return the embedding of T5's encoder or decoder."""
    return part(
        TextEmbedding,
        vocabulary=Integer("vocab_size"),
        size=Integer("d_model"),
        dropout=T5_DROPOUT,
        module=side,
        words_name=f"{side}.embed_tokens",
        norm_name="",
        dropout_name=f"{side}.dropout",
    )


def t5_blocks(side: str) -> Part:
    """Return the blocks of T5's encoder or decoder."""
    feed_forward = "layer.1" if side == "encoder" else "layer.2"
    dense = f"{feed_forward}.DenseReluDense"
    count = Integer("num_layers") if side == "encoder" else Integer("num_decoder_layers num_layers")
    return part(
        Blocks,
        name=f"{side}.block",
        count=count,
        hidden_size=Integer("d_model"),
        heads=Integer("num_heads"),
        head_size=Integer("d_kv"),
        intermediate_size=Integer("d_ff"),
        activation=FeedForwardProjection(returns_gating=False),
        gating=FeedForwardProjection(returns_gating=True),
        norm="rms",
        is_pre_norm=True,
        final_norm=f"{side}.final_layer_norm",
        final_dropout=f"{side}.dropout",
        has_bias=False,
        has_query_bias=False,
        has_feed_forward_bias=False,
        is_causal=side == "decoder",
        mask_module="decoder",
        relative_bias=part(RelativeBias, buckets=Integer("relative_attention_num_buckets", 32)),
        attention_output_dropout=T5_DROPOUT,
        inner_dropout=T5_DROPOUT,
        dropout=T5_DROPOUT,
        names=t5_names(feed_forward, dense),
    )


def t5_names(feed_forward: str, dense: str) -> Part:
    """Return the names of the modules of a block."""
    return part(
        BlockNames,
        attention="layer.0.SelfAttention",
        query="q",
        key="k",
        value="v",
        output="layer.0.SelfAttention.o",
        attention_dropout="layer.0.dropout",
        attention_sum="layer.0.add",
        attention_norm="layer.0.layer_norm",
        cross_attention="layer.1.EncDecAttention",
        cross_output="layer.1.EncDecAttention.o",
        cross_dropout="layer.1.dropout",
        cross_sum="layer.1.add",
        cross_norm="layer.1.layer_norm",
        feed_forward=dense,
        gate=f"{dense}.wi_0",
        up=UpName(dense),
        activation=f"{dense}.act",
        down=f"{dense}.wo",
        inner_dropout=f"{dense}.dropout",
        dropout=f"{feed_forward}.dropout",
        sum=f"{feed_forward}.add",
        norm=f"{feed_forward}.layer_norm",
    )


T5_LOGITS = part(Dense, name="lm_head", outputs=Integer("vocab_size"), has_bias=False, is_tied=IS_TIED)
T5 = EncoderFamily(
    name="T5",
    positions="n_positions",
    longest=None,
    layer_count="num_layers",
    inputs=2,
    generates=True,
    model=part(
        EncoderModel, embedding=t5_embedding("encoder"), blocks=t5_blocks("encoder"),
        decoder_embedding=t5_embedding("decoder"), decoder_blocks=t5_blocks("decoder"), has_shared_embedding=True,
    ),
    heads={
        "ForConditionalGeneration": (
            part(Scale, applies=IS_TIED), T5_LOGITS,
        ),
        "Model": (),
    },
)  # fmt: skip
FAMILIES: dict[str, EncoderFamily] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": msgspec.structs.replace(ROBERTA, name="XLMRoberta"),
    "electra": ELECTRA,
    "distilbert": DISTILBERT,
    "modernbert": MODERNBERT,
    "deberta-v2": DEBERTA,
    "vit": VIT,
    "siglip_vision_model": SIGLIP_VISION,
    "siglip_text_model": SIGLIP_TEXT_ENCODER,
    "siglip": SIGLIP,
    "clip_vision_model": CLIP_VISION,
    "clip_text_model": CLIP_TEXT_ENCODER,
    "clip": CLIP,
    "bart": BART,
    "whisper": WHISPER,
    "t5": T5,
    "mt5": msgspec.structs.replace(T5, name="MT5", heads={"ForConditionalGeneration": (T5_LOGITS,), "Model": ()}),
}

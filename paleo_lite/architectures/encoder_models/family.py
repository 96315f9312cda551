"""The record of a model type of encoders, and fields that several model types have.

A record says which key of a config gives each field of the records in `traits`. Sources are the modules of
``transformers`` 5 of the same names, with which tests compare every family.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from ..blocks.rules import BlockRules, describe_blocks
from ..blocks.traits import Block
from ..config import Config
from ..keys import Activation, Fields, Flag, HeadSize, Integer, Record, read_value, record, refuse_unread
from .traits import Dense, EncoderModel, EncoderPair


class EncoderFamily(msgspec.Struct, frozen=True, kw_only=True):
    """A model type."""

    name: str  # stem of its classes in ``transformers``: ``Bert`` for ``BertForMaskedLM`` and ``BertModel``
    model: Record  # an `EncoderModel` without head, or an `EncoderPair`
    # The layers after the blocks by the rest of the class's name; of the first class where a config names none.
    heads: Mapping[str, tuple[Any, ...]]
    root: str = ""  # name of the module around the encoder in classes with a head
    positions: str = "max_position_embeddings"  # the key of the number of positions that the model knows
    longest: int | None = 512  # that number where the config does not give it; None: unlimited
    reads: str = "text"  # or images, audio, or text and images
    inputs: int = 1  # number of sequences that the model reads
    generates: bool = False  # whether the model has a decoder with a KV cache
    # Keys with the only values that are read: a config with others is refused.
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
    refuse_unread(family.name, family.unread, config)
    model: EncoderModel | EncoderPair = family.model.read(config)
    if isinstance(model, EncoderPair):
        return model
    head = read_value(family.heads[class_name.removeprefix(family.name)], config)
    return msgspec.structs.replace(model, head=head)


def nested_fields(config: Config, key: str) -> dict[str, Any]:
    """Return a nested config; raise BadDescriptor if it is missing."""
    fields = config.fields.get(key)
    if not isinstance(fields, dict):
        raise config.fail(f"$.{key} is missing: a config of {config.fields['model_type']} needs it")
    return fields


class Nested(NamedTuple):
    """The model of a nested config."""

    key: str
    model_type: str
    family: EncoderFamily

    def read(self, config: Config) -> EncoderModel | EncoderPair:
        """Return the model."""
        nested = Config({**nested_fields(config, self.key), "model_type": self.model_type}, config.where)
        return describe_encoder(self.family, nested, self.family.classes[-1])


class BlocksOf(NamedTuple):
    """The blocks that rules describe; the first one may have no norm before attention (ModernBERT)."""

    rules: BlockRules
    has_first_norm: bool = True

    def read(self, config: Config) -> tuple[Block, ...]:
        """Return the blocks."""
        first, *others = describe_blocks(self.rules, config)
        if not self.has_first_norm:
            first = msgspec.structs.replace(first, norms=msgspec.structs.replace(first.norms, before_mixer=""))
        return (first, *others)


class Labels(NamedTuple):
    """The number of classes: given, else one for each label, else 2."""

    def read(self, config: Config) -> int:
        """Return the number."""
        labels = config.fields.get("id2label")
        return config.positive_integer("num_labels", len(labels) if isinstance(labels, dict) and labels else 2)


ATTENTION: Fields = {
    "head_size": HeadSize(key=""), "rotary_size": 0, "bias": True, "output_bias": True, "is_causal": False,
}  # fmt: skip
"""Attention to all tokens, with biases and without rotary positions."""

FEED_FORWARD: Fields = {
    "module": "", "is_gated": False, "up": "fc1", "down": "fc2", "activation_module": "activation_fn", "bias": True,
    "activation": Activation(default="gelu"),
}  # fmt: skip

IS_TIED = Flag("tie_word_embeddings", True)


def words_head(name: str, has_bias: bool | Flag = True) -> Record:
    """Return the projection to the vocabulary."""
    return record(Dense, name=name, outputs=Integer("vocab_size"), has_bias=has_bias, is_tied=IS_TIED)

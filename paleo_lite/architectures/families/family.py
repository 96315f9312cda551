"""The record of a model type, and `FAMILIES`, which reads it from a file of its own in ``models/families``.

A record says which key of a config gives each field of the records that describe a network: a `Decoder`, an
`EncoderModel` or an `EncoderPair`, with their blocks (`blocks.block_records`). Sources are the modules of the same
names of ``transformers`` 5, with which tests compare every family.

In a file, a table with one capitalised key is a reader of `keys`, `layer_rules` or `rare_keys` with its arguments, such
as ``{Integer = ["num_experts", 8]}``, or a record of which readers give the fields. ``"null"`` is the null of JSON, and
``like`` names a family of which a file states only what differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from ...errors import BadDescriptor
from ...files import shipped_folder
from .. import keys, layer_rules, rare_keys
from ..blocks import block_records, mixer_records
from ..blocks.rules import BlockRules
from ..config import Config
from ..keys import NOTHING, Fields, Flag, Integer, KnownValues, Record, other_values, read_value
from . import encoder_records
from .decoder import Decoder
from .encoder_records import EncoderModel, EncoderPair, Stack

STANDARD_DECODER: Fields = {
    "vocabulary": Integer("vocab_size"), "hidden_size": Integer("hidden_size"), "is_tied": Flag("tie_word_embeddings"),
}  # fmt: skip

Model = Decoder | EncoderModel | EncoderPair


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """A model type."""

    name: str  # stem of its classes in ``transformers``: ``Llama`` for ``LlamaForCausalLM`` and ``LlamaModel``
    model: Record  # a `Decoder`, an `EncoderModel` without head, or an `EncoderPair`
    positions: str = "max_position_embeddings"  # the key of the number of positions that the model knows
    longest: int | None = 2048  # that number where the config does not give it; None: unlimited
    # Keys with the only values that are read: a config with others is refused; and keys of which others, such as
    # another norm, change no time to speak of, which a note says.
    unread: KnownValues = ()
    alike: KnownValues = ()
    same: tuple[tuple[str, str], ...] = ()  # pairs of keys with the same value, where the first is given
    # Sizes that a nested text config of this type may leave out, as publishers write only what differs from the
    # defaults of ``transformers``; a config of its own has all keys, so that a missing one is a mistake there.
    nested_defaults: Mapping[str, int] = NOTHING
    reads: Literal["text", "images", "audio", "text and images"] = "text"
    inputs: int = 1  # number of sequences that the model reads
    generates: bool = True  # whether the model writes text, with a KV cache
    # Of encoders: the layers after the blocks by the rest of the class's name, of the first class where a config names
    # none; and the name of the module around the encoder in classes with a head.
    heads: Mapping[str, tuple[Any, ...]] = NOTHING
    root: str = ""
    # Of decoders: names of the classes where they are not ``...ForCausalLM`` and ``...Model``, and further classes,
    # each with a head but those of ``...Model``.
    head_class: str = ""
    model_class: str = ""
    other_classes: tuple[str, ...] = ()
    # Whether the publishers of such models count the embedding of the inputs, of which a token reads one row, among
    # the active parameters.
    embedding_is_active: bool = True
    # Keys of the number of multi-token prediction layers, which are left out; empty: the model has none.
    next_token: str = ""
    has_plain_next_token: bool = True  # whether such a layer is one more block, so that its parameters are known

    @property
    def is_decoder(self) -> bool:
        """Whether the model is a decoder alone."""
        return self.model.kind is Decoder

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes that are read, of a decoder first the one with a head."""
        if not self.is_decoder:
            return tuple(f"{self.name}{suffix}" for suffix in self.heads)
        named = self.head_class or f"{self.name}ForCausalLM", self.model_class or f"{self.name}Model"
        return (*named, *self.other_classes)

    def describe(self, config: Config, class_name: str) -> Model:
        """Return the record of the model that a config describes.

        Raise BadDescriptor if a key is missing or malformed, or has a value that is not read.
        """
        for key, value, known_value in other_values(self.unread, config):
            raise config.fail(f"$.{key} is {value!r}; {self.name} is read with {known_value!r} only")
        for key, value, known_value in other_values(self.alike, config):
            config.notes[f"the value {value!r} of $.{key} is unknown: it costs as {known_value!r}"] = None
        for first, second in self.same:
            value = config.fields.get(first)
            if value not in (None, config.fields.get(second)):
                raise config.fail(f"$.{first} is {value!r}; {self.name} is read only if it equals $.{second}")
        model: Model = self.model.read(config)
        if isinstance(model, EncoderModel):
            head = read_value(self.heads[class_name.removeprefix(self.name)], config)
            return msgspec.structs.replace(model, head=head)
        return model


class Nested(NamedTuple):
    """The model of a nested config."""

    key: str
    model_type: str

    def read(self, config: Config) -> Model:
        """Return the model."""
        nested = config.with_fields({**nested_fields(config, self.key), "model_type": self.model_type})
        family = FAMILIES[self.model_type]
        return family.describe(nested, family.classes[-1])


def nested_fields(config: Config, key: str) -> dict[str, Any]:
    """Return a nested config; raise BadDescriptor if it is missing."""
    fields = config.fields.get(key)
    if not isinstance(fields, dict):
        raise config.fail(f"$.{key} is missing: a config of {config.fields['model_type']} needs it")
    return fields


def decoder_model(decoder: Fields, blocks: Fields) -> Record:
    """Return the record of a decoder by the fields that differ from the standard, and the rules of its blocks."""
    return Record(Decoder, {"blocks": BlockRules(**blocks), **STANDARD_DECODER, **decoder})


class Families(Mapping[str, Family]):
    """Families by model type, each read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, model_type: str) -> Family:
        if model_type not in _model_types(self._folder):  # a config may name any file
            raise KeyError(model_type)
        return read_family_file(self._folder / f"{model_type}.toml")

    def __iter__(self) -> Iterator[str]:
        return iter(_model_types(self._folder))

    def __len__(self) -> int:
        return len(_model_types(self._folder))

    def decoder(self, model_type: object) -> Family | None:
        """Return the family of a model type of decoders; None for others."""
        family = self.get(str(model_type))
        return family if family is not None and family.is_decoder else None


_WHOLE = ("heads", "nested_defaults")
"""Tables of a family that replace those of the family that it is like, without joining them."""


@cache
def _model_types(folder: Path) -> dict[str, None]:
    return dict.fromkeys(sorted(path.stem for path in folder.glob("*.toml")))


@cache
def read_family_file(path: Path) -> Family:
    """Return the family of a file.

    Raise BadDescriptor if the file names an unknown reader or field, or lacks a required one.
    """
    tables = _read_tables(path)
    try:
        return _make_family(tables)
    except (TypeError, LookupError) as error:
        raise BadDescriptor(f"{path}: {error.args[0]}") from None


def _read_tables(path: Path) -> dict[str, Any]:
    """Return the tables of a file, over those of the family that it is like."""
    try:
        tables: dict[str, Any] = msgspec.toml.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        raise BadDescriptor(f"{path}: {error}") from None
    if "like" not in tables:
        return tables
    base = path.with_stem(str(tables.pop("like")))
    if not base.is_file():
        raise BadDescriptor(f"{path}: like names {base.stem}, but there is no {base.name} beside it")
    return _merge(_read_tables(base), tables)


def _merge(tables: Any, overrides: dict[str, Any]) -> dict[str, Any]:
    """Return tables with the entries of others, which join tables of the same kind and replace other entries."""
    merged = dict(tables)
    for key, value in overrides.items():
        entry = tables.get(key)
        are_tables = isinstance(entry, dict) and isinstance(value, dict)
        is_joined = are_tables and key not in _WHOLE and _constructor(entry) == _constructor(value)
        merged[key] = _merge(entry, value) if is_joined else value
    return merged


def _constructor(table: Any) -> str:
    """Return the name of the reader or record that a table is; empty for a table of fields."""
    name = next(iter(table), "")
    return name if len(table) == 1 and name[0].isupper() else ""


def _make_family(tables: dict[str, Any]) -> Family:
    """Return the family of the tables of a file."""
    if "decoder_blocks" in tables:
        tables["decoder_blocks"] = _merge(tables["blocks"], tables["decoder_blocks"])
        tables["decoder_stack"] = _merge(tables["stack"], tables["decoder_stack"])
    heads = {suffix: _decode(steps) for suffix, steps in tables.pop("heads", {}).items()}
    fields = {key: _decode(value) for key, value in tables.items()}
    blocks, stack = fields.pop("blocks", {}), fields.pop("stack", {})
    decoder_blocks, decoder_stack = fields.pop("decoder_blocks", None), fields.pop("decoder_stack", {})
    if "pair" in fields:
        fields |= {"model": Record(EncoderPair, fields.pop("pair")), "generates": False}
    elif "encoder" in fields:
        encoder_fields = {"blocks": Record(Stack, {**stack, "blocks": BlockRules(**blocks)}), **fields.pop("encoder")}
        if decoder_blocks is not None:
            encoder_fields["decoder_blocks"] = Record(Stack, {**decoder_stack, "blocks": BlockRules(**decoder_blocks)})
        fields |= {"model": Record(EncoderModel, encoder_fields), "generates": decoder_blocks is not None}
    else:
        fields["model"] = decoder_model(fields.pop("decoder", {}), blocks)
    return Family(heads=heads, **fields)


def _decode(value: Any) -> Any:
    """Return a value of a file, with its readers and records."""
    if isinstance(value, dict):
        name = _constructor(value)
        return _construct(name, value[name]) if name else {key: _decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple([_decode(item) for item in value])
    return None if value == "null" else value


def _construct(name: str, arguments: Any) -> Any:
    """Return a reader with its arguments: one, a list, or a table of their names; or a record with its fields."""
    kind = _find_kind(name)
    decoded = _decode(arguments)
    if issubclass(kind, msgspec.Struct):
        for field in decoded:
            if field not in kind.__struct_fields__:
                raise LookupError(f"{name} has no field {field}, its fields are {', '.join(kind.__struct_fields__)}")
        return Record(kind, decoded)
    if isinstance(arguments, list):
        return kind(*decoded)
    is_named = isinstance(arguments, dict) and not _constructor(arguments)
    return kind(**decoded) if is_named else kind(decoded)


def _find_kind(name: str) -> type[Any]:
    """Return the reader or record of a name."""
    if name == "Nested":
        return Nested
    for module in (keys, layer_rules, rare_keys, block_records, mixer_records, encoder_records):
        if hasattr(module, name):
            kind: type[Any] = getattr(module, name)
            return kind
    readers = "keys.py, layer_rules.py or rare_keys.py"
    records = "block_records.py, mixer_records.py or encoder_records.py"
    raise LookupError(f"{name} is not a reader of {readers}, and no record of {records}")


FAMILIES = Families(shipped_folder("models") / "families")
"""Families by model type."""

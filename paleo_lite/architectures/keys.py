"""Readers of values in model configs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from .config import Config

REQUIRED = -1
"""Default of an integer that the config must contain."""


class KeyReader(Protocol):
    """Reads one value from a config."""

    def read(self, config: Config) -> Any:
        """Return the value; raise BadDescriptor if it is missing or malformed."""


Fields = Mapping[str, Any]
"""Fields of a record: constants, readers, and tuples of these."""
NOTHING: Fields = MappingProxyType({})


def read_value(value: Any, config: Config) -> Any:
    """Return a constant, or what a reader or a tuple of readers reads."""
    if hasattr(value, "read"):
        return value.read(config)
    if isinstance(value, tuple):
        return tuple([read_value(part, config) for part in value])
    return value


def read_fields(fields: Fields, config: Config) -> dict[str, Any]:
    """Return the fields with every reader replaced by the value that it reads."""
    return {name: read_value(value, config) for name, value in fields.items()}


KnownValues = tuple[tuple[str, tuple[Any, ...]], ...]
"""Keys with the values of each that are known; the first one is that of a config without the key."""


def other_values(known_values: KnownValues, config: Config) -> list[tuple[str, Any, Any]]:
    """Return the keys of a config whose values are not among the known ones: key, value, and the first known value."""
    differing = []
    for key, values in known_values:
        value = config.fields.get(key, values[0])
        if (tuple(value) if isinstance(value, list) else value) not in values:
            differing.append((key, value, values[0]))
    return differing


class Integer(NamedTuple):
    """An integer >= 1."""

    key: str  # key of the value, or several keys separated by spaces; the first key that the config contains is read
    default: int | None = REQUIRED  # value if the config contains no key; `REQUIRED` raises an error instead

    def read(self, config: Config) -> int | None:
        """Return the integer, or the default."""
        keys = self.key.split()
        for key in keys:
            if config.fields.get(key) is not None:
                return config.positive_integer(key)
        if self.default == REQUIRED:
            return config.positive_integer(keys[0])  # raises the error for a missing key
        return self.default


class Flag(NamedTuple):
    """A Boolean value; `is_inverted` negates it."""

    key: str
    default: bool = False
    is_inverted: bool = False

    def read(self, config: Config) -> bool:
        """Return the Boolean value."""
        return config.boolean(self.key, self.default) != self.is_inverted


class FirstFlag(NamedTuple):
    """A Boolean value, read from the first of several keys, separated by spaces, that has one."""

    keys: str
    default: bool = False

    def read(self, config: Config) -> bool:
        """Return the Boolean value."""
        for key in self.keys.split():
            value = config.fields.get(key)
            if isinstance(value, bool):
                return value
        return self.default


class Fraction(NamedTuple):
    """A number from 0 to 1, read from the first of several keys, separated by spaces, that has one."""

    key: str
    default: float = 0.0

    def read(self, config: Config) -> float:
        """Return the number, or the default."""
        for key in self.key.split():
            if config.fields.get(key) is not None:
                return config.fraction(key, self.default)
        return self.default


class Activation(NamedTuple):
    """The name of an activation function, read from the first of the keys that the config contains."""

    keys: tuple[str, ...] = ("hidden_act",)
    default: str = "silu"

    def read(self, config: Config) -> str:
        """Return the name."""
        for key in self.keys:
            if config.fields.get(key) is not None:
                return config.activation_name(key, self.default)
        return self.default


class IsSet(NamedTuple):
    """Whether a value of the config has an effect: it is not among the `neutral` values, such as null or false."""

    key: str
    default: Any = None
    neutral: tuple[Any, ...] = (None, False, 1, 1.0)

    def read(self, config: Config) -> bool:
        """Return whether the value has an effect."""
        return config.fields.get(self.key, self.default) not in self.neutral


class Choice(NamedTuple):
    """A value selected by the value of a key; a selected reader is read from the config."""

    key: str
    cases: tuple[tuple[Any, Any], ...]  # each value of the key, with what it selects
    default: Any

    def read(self, config: Config) -> Any:
        """Return the selected value; raise BadDescriptor if the value of the key is unknown."""
        selector = config.fields.get(self.key, self.default)
        for value, selected in self.cases:
            if value == selector:
                return read_value(selected, config)
        known_values = ", ".join(repr(value) for value, _ in self.cases)
        raise config.fail(f"$.{self.key} must be one of {known_values} (got {selector!r})")


class IfSet(NamedTuple):
    """The value of one reader if a key is set, to neither null, false nor 0; otherwise another value."""

    key: str
    value: Any
    otherwise: Any = 0
    default: Any = None

    def read(self, config: Config) -> Any:
        """Return the selected value."""
        return read_value(self.value if config.fields.get(self.key, self.default) else self.otherwise, config)


class Record(NamedTuple):
    """A record whose fields are given by readers."""

    kind: type
    fields: Fields

    def read(self, config: Config) -> Any:
        """Return the record."""
        return self.kind(**read_fields(self.fields, config))


class Within(NamedTuple):
    """A value read from a nested object of the config, if it is there; otherwise from the config itself."""

    key: str
    inner: Integer
    otherwise: Integer

    def read(self, config: Config) -> int | None:
        """Return the value."""
        nested = config.fields.get(self.key)
        if isinstance(nested, dict) and nested.get(self.inner.key) is not None:
            return self.inner.read(config.with_fields(nested))
        return self.otherwise.read(config)


class HeadSize(NamedTuple):
    """The size per attention head: the value of its key, else the hidden size divided by the number of heads.

    The hidden size is multiplied by a factor where attention reads a wider input.
    """

    default: int | None = None
    key: str = "head_dim"
    hidden: str = "hidden_size"
    heads: str = "num_attention_heads"
    factor: int = 1

    def read(self, config: Config) -> int:
        """Return the size."""
        size = config.optional_integer(self.key) if self.key else None
        size = size or self.default
        if size:
            return size
        hidden_size = Integer(self.hidden).read(config)
        heads = Integer(self.heads).read(config)
        assert hidden_size is not None and heads is not None
        width = self.factor * hidden_size
        if width % heads:
            raise config.fail(f"$.{self.heads} is {heads}, which does not divide $.{self.hidden}, {hidden_size}")
        return width // heads


class KeyValueHeads(NamedTuple):
    """The number of key and value heads, which must divide the number of query heads."""

    default: int | None = None
    heads_default: int | None = None
    key: str = "num_key_value_heads"
    heads: str = "num_attention_heads"

    def read(self, config: Config) -> int:
        """Return the number."""
        heads = config.positive_integer(self.heads, self.heads_default)
        kv_heads = config.optional_integer(self.key) or self.default or heads
        if heads % kv_heads:
            raise config.fail(f"$.{self.key} is {kv_heads}, which does not divide $.{self.heads}, {heads}")
        return kv_heads


class RotarySize(NamedTuple):
    """The number of rotated elements per head: a fraction, read from one of several keys, of the head size."""

    default: float = 1.0
    head_size: HeadSize = HeadSize()
    keys: tuple[str, ...] = ("partial_rotary_factor", "rotary_pct")

    def read(self, config: Config) -> int:
        """Return the number of elements, rounded down to an even number."""
        fraction = self.default
        rope = config.fields.get("rope_parameters")
        for fields in (rope if isinstance(rope, dict) else {}, config.fields):
            for key in self.keys:
                if fields.get(key) is not None:
                    fraction = config.with_fields(fields).fraction(key, self.default)
        return int(self.head_size.read(config) * fraction) // 2 * 2


class Sum(NamedTuple):
    """An integer plus a constant, such as the number of positions plus rows reserved for padding."""

    key: str
    default: int
    constant: int

    def read(self, config: Config) -> int:
        """Return the sum."""
        return config.positive_integer(self.key, self.default) + self.constant


class CeilOf(NamedTuple):
    """An integer; if it is absent or ``"auto"``, another integer (`of`) divided by a constant and rounded up."""

    key: str
    of: str
    divisor: int

    def read(self, config: Config) -> int:
        """Return the integer."""
        if config.fields.get(self.key) in (None, "auto"):
            return -(-config.positive_integer(self.of) // self.divisor)
        return config.positive_integer(self.key)


class HeadsOf(NamedTuple):
    """The size of Mamba's heads; if it is absent or ``"auto"``, the channels divided by the number of heads."""

    key: str
    channels: str
    heads: str

    def read(self, config: Config) -> int:
        """Return the size."""
        if config.fields.get(self.key) not in (None, "auto"):
            return config.positive_integer(self.key)
        channels = config.optional_integer(self.channels) if self.channels else None
        if channels is None:
            channels = config.positive_integer("mamba_expand", 2) * config.positive_integer("hidden_size")
        return channels // config.positive_integer(self.heads, 128)


class CountOf(NamedTuple):
    """The number of layers: an integer, or the length of a list or a pattern that names the kind of each layer."""

    key: str
    lists: tuple[str, ...]

    def read(self, config: Config) -> int:
        """Return the number of layers."""
        for name in self.lists:
            listed = config.fields.get(name)
            if isinstance(listed, (list, str)) and listed:
                return len(listed)
        return config.positive_integer(self.key)


class Length(NamedTuple):
    """The number of entries of a list; 0 if it is absent."""

    key: str

    def read(self, config: Config) -> int:
        """Return the number."""
        listed = config.fields.get(self.key) or []
        if not isinstance(listed, list):
            raise config.fail(f"$.{self.key} must be a list (got {listed!r})")
        return len(listed)


class Natural(NamedTuple):
    """An integer >= 0, such as a number of shared experts."""

    key: str
    default: int

    def read(self, config: Config) -> int:
        """Return the integer."""
        return config.positive_integer(self.key, self.default) if config.fields.get(self.key, self.default) else 0


class Uniform(NamedTuple):
    """An integer, or a list that repeats it for every layer."""

    key: str  # or several keys separated by spaces, of which the first that the config contains is read
    default: int

    def read(self, config: Config) -> int:
        """Return the integer; raise BadDescriptor if the layers differ."""
        keys = self.key.split()
        key = next((name for name in keys if config.fields.get(name) is not None), keys[0])
        listed = config.fields.get(key)
        if not isinstance(listed, list):
            return config.positive_integer(key, None if self.default == REQUIRED else self.default)
        if not listed or any(value != listed[0] for value in listed):
            raise config.fail(f"$.{key} must be the same for every layer (got {listed!r})")
        return config.with_fields({**config.fields, key: listed[0]}).positive_integer(key)


class RoundedUp(NamedTuple):
    """An integer times a factor of the config, rounded up to a multiple that the config gives."""

    of: str
    factor: str
    factor_default: float
    multiple: str
    multiple_default: int
    share: float = 1.0  # a constant by which the integer is multiplied, too

    def read(self, config: Config) -> int:
        """Return the integer."""
        multiple = config.positive_integer(self.multiple, self.multiple_default)
        scaled = (Integer(self.of).read(config) or 0) * config.number(self.factor, self.factor_default) * self.share
        return int((scaled + multiple - 1) // multiple) * multiple


class Product(NamedTuple):
    """The product of two integers of the config."""

    first: Integer
    second: Integer

    def read(self, config: Config) -> int:
        """Return the product."""
        return (self.first.read(config) or 0) * (self.second.read(config) or 0)


class Multiple(NamedTuple):
    """An integer; if it is absent, another integer (`of`) times a factor."""

    key: str
    factor: float | Integer
    of: str

    def read(self, config: Config) -> int:
        """Return the integer."""
        stated = Integer(self.key, None).read(config) if self.key else None
        factor = self.factor.read(config) if isinstance(self.factor, Integer) else self.factor
        base = Integer(self.of).read(config)
        assert factor is not None and base is not None
        return stated or int(factor * base)


class ObjectOf(NamedTuple):
    """For each layer, the keys of an object in a list, where those of a part are named after it, as ``ffn_no_op``."""

    key: str

    def read(self, config: Config) -> list[dict[str, Any]]:
        """Return the keys of each layer, without those that are null."""
        listed = config.fields.get(self.key)
        if not isinstance(listed, list) or not all(isinstance(layer, dict) for layer in listed):
            raise config.fail(f"$.{self.key} must list an object for each layer")
        parts = [(part for part in layer.items() if isinstance(part[1], dict)) for layer in listed]
        return [
            {f"{name}_{key}": value for name, keys in layer for key, value in keys.items() if value is not None}
            for layer in parts
        ]


class ListsOf(NamedTuple):
    """For each layer, its entries of several lists, by the keys of the lists."""

    keys: tuple[str, ...]

    def read(self, config: Config) -> list[dict[str, Any]]:
        """Return the keys of each layer."""
        lists = [config.fields.get(key) for key in self.keys]
        if not all(isinstance(listed, list) and len(listed) == len(lists[0] or ()) for listed in lists):
            raise config.fail(f"{', '.join(f'$.{key}' for key in self.keys)} must be lists of the same length")
        return [dict(zip(self.keys, entries)) for entries in zip(*(listed or () for listed in lists))]


class QuotientOf(NamedTuple):
    """An integer by another one, which must divide it."""

    whole: Integer
    part: Integer

    def read(self, config: Config) -> int:
        """Return the quotient."""
        whole, part = self.whole.read(config) or 0, self.part.read(config) or 1
        if whole % part:
            raise config.fail(f"$.{self.part.key} is {part}, which does not divide $.{self.whole.key}, {whole}")
        return whole // part

"""Readers of config values, by key, type and default; and rules that choose the layers to which a trait applies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ..tape import Config

REQUIRED = -1
"""Default of a `Whole` without which the config is invalid."""


class Reader(Protocol):
    """Interface of the readers, each of which reads one value from a config."""

    def read(self, config: Config) -> Any:
        """Return the value; raise BadDescriptor if it is missing or malformed."""


class Whole(NamedTuple):
    """An integer >= 1.

    Attributes
    ----------
    key : str
        Key of the value, or several keys separated by spaces; the first one in the config is used.
    default : int or None
        Value if the config has none of the keys; may be None.
    """

    key: str
    default: int | None = REQUIRED

    def read(self, config: Config) -> int | None:
        """Return the integer."""
        keys = self.key.split()
        for key in keys:
            if config.fields.get(key) is not None:
                return config.positive_integer(key)
        return config.positive_integer(keys[0]) if self.default == REQUIRED else self.default


class Flag(NamedTuple):
    """A Boolean; inverted if the key has the opposite meaning of the trait."""

    key: str
    default: bool = False
    is_inverted: bool = False

    def read(self, config: Config) -> bool:
        """Return the flag."""
        return config.boolean(self.key, self.default) != self.is_inverted


class Share(NamedTuple):
    """A number from 0 to 1."""

    key: str
    default: float = 0.0

    def read(self, config: Config) -> float:
        """Return the number."""
        return config.fraction(self.key, self.default)


class Activation(NamedTuple):
    """The name of an activation function, from the first key that is in the config."""

    keys: tuple[str, ...] = ("hidden_act",)
    default: str = "silu"

    def read(self, config: Config) -> str:
        """Return the name."""
        for key in self.keys:
            if config.fields.get(key) is not None:
                return config.activation_name(key, self.default)
        return self.default


class IsSet(NamedTuple):
    """Whether a value is set; null, false and values without effect, such as a factor of 1, count as not set."""

    key: str
    default: Any = None
    neutral: tuple[Any, ...] = (None, False, 1, 1.0)

    def read(self, config: Config) -> bool:
        """Return whether the value is set."""
        return config.fields.get(self.key, self.default) not in self.neutral


class Choice(NamedTuple):
    """A trait that depends on the value of a key; the trait may itself be a reader."""

    key: str
    values: Mapping[Any, Any]
    default: Any

    def read(self, config: Config) -> Any:
        """Return the trait; raise BadDescriptor for an unknown value of the key."""
        chosen = config.fields.get(self.key, self.default)
        if chosen not in list(self.values):
            known = ", ".join(repr(value) for value in self.values)
            raise config.fail(f"$.{self.key} must be one of {known} (got {chosen!r})")
        value = self.values[chosen]
        return value.read(config) if hasattr(value, "read") else value


class HeadSize(NamedTuple):
    """The size per head: the value of its key, otherwise the hidden size divided by the number of heads."""

    default: int | None = None
    key: str = "head_dim"
    hidden: str = "hidden_size"
    heads: str = "num_attention_heads"

    def read(self, config: Config) -> int:
        """Return the size."""
        size = config.optional_integer(self.key) if self.key else None
        size = size or self.default
        if size:
            return size
        hidden_size = Whole(self.hidden).read(config)
        heads = Whole(self.heads).read(config)
        assert hidden_size is not None and heads is not None
        if hidden_size % heads:
            raise config.fail(f"$.{self.heads} is {heads}, which does not divide $.{self.hidden}, {hidden_size}")
        return hidden_size // heads


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
    """Number of elements per head with rotary embedding: a fraction of the head size, from one of several keys."""

    default: float = 1.0
    head_size: HeadSize = HeadSize()
    keys: tuple[str, ...] = ("partial_rotary_factor", "rotary_pct")

    def read(self, config: Config) -> int:
        """Return the number of elements, rounded down to an even number."""
        fraction = self.default
        rope = config.fields.get("rope_parameters")
        rope_fields = rope if isinstance(rope, dict) else {}
        for fields in (rope_fields, config.fields):  # later values take precedence
            for key in self.keys:
                if fields.get(key) is not None:
                    fraction = Config(fields, config.where).fraction(key, self.default)
        return int(self.head_size.read(config) * fraction) // 2 * 2


class Sum(NamedTuple):
    """An integer plus a constant, such as the number of positions plus the rows reserved for padding."""

    key: str
    default: int
    constant: int

    def read(self, config: Config) -> int:
        """Return the sum."""
        return config.positive_integer(self.key, self.default) + self.constant


class FalconHeads(NamedTuple):
    """Number of key and value heads of Falcon.

    In the new decoder architecture the config states it; otherwise it is 1 with multi-query attention, and equal to the
    number of query heads without.
    """

    def read(self, config: Config) -> int:
        """Return the number."""
        heads = config.positive_integer("num_attention_heads")
        if config.boolean("new_decoder_architecture", False):
            return KeyValueHeads(key="num_kv_heads").read(config)
        return 1 if config.boolean("multi_query", True) else heads


class CeilOf(NamedTuple):
    """An integer; if absent or ``"auto"``, another integer divided by a constant and rounded up."""

    key: str
    of: str
    divisor: int

    def read(self, config: Config) -> int:
        """Return the integer."""
        if config.fields.get(self.key) in (None, "auto"):
            return -(-config.positive_integer(self.of) // self.divisor)
        return config.positive_integer(self.key)


class HeadsOf(NamedTuple):
    """The size of the heads of Mamba; if absent or ``"auto"``, the channels divided by the number of heads."""

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


class Multiple(NamedTuple):
    """An integer; if absent, a multiple of another integer."""

    key: str
    factor: float | Whole
    of: str

    def read(self, config: Config) -> int:
        """Return the integer."""
        explicit = Whole(self.key, None).read(config) if self.key else None
        factor = self.factor.read(config) if isinstance(self.factor, Whole) else self.factor
        base = Whole(self.of).read(config)
        assert factor is not None and base is not None
        return explicit or int(factor * base)


# Rules that choose the layers to which a trait applies.


class Layers(Protocol):
    """Interface of the rules that choose layers."""

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return, for each of `count` layers, whether it is chosen."""


class All(NamedTuple):
    """Every layer, or none."""

    is_chosen: bool = True

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return the same value for each layer."""
        return [self.is_chosen] * count


class When(NamedTuple):
    """The layers of one rule if a flag of the config is set, otherwise those of another rule."""

    flag: Flag | IsSet
    layers: Layers = All()
    otherwise: Layers = All(False)

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return whether each layer is chosen."""
        rule = self.layers if self.flag.read(config) else self.otherwise
        return rule.choose(config, count)


class Listed(NamedTuple):
    """The layers for which a list in the config has a certain value; without the list, those of another rule.

    `value` may contain several equivalent values, separated by spaces.
    """

    value: str | int
    key: str = "layer_types"
    otherwise: Layers = All(False)

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return whether each layer is chosen."""
        listed = config.fields.get(self.key)
        if listed is None:
            return self.otherwise.choose(config, count)
        if not isinstance(listed, list) or len(listed) < count:
            raise config.fail(f"$.{self.key} must list the {count} layers")
        values = self.value.split() if isinstance(self.value, str) else [self.value]
        return [value in values for value in listed[:count]]


class Numbered(NamedTuple):
    """The layers with their number in a list of the config; without the list, those of another rule."""

    key: str
    otherwise: Layers = All(False)

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return whether each layer is chosen."""
        numbers = config.fields.get(self.key)
        if not numbers:
            return self.otherwise.choose(config, count)
        return [index in numbers for index in range(count)]


class From(NamedTuple):
    """All layers from a number on."""

    first: Whole

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return whether each layer is chosen."""
        value = config.fields.get(self.first.key, self.first.default)
        first = 0 if value in (None, 0) else self.first.read(config)
        assert first is not None
        return [index >= first for index in range(count)]


class EveryNth(NamedTuple):
    """Every n-th layer: those with ``index % n == offset``, where an offset of -1 means n - 1."""

    period: Whole
    offset: Whole | int = -1

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return whether each layer is chosen."""
        period = self.period.read(config) or 1
        offset = self.offset
        if isinstance(offset, Whole):
            value = config.fields.get(offset.key, offset.default)
            offset = value if isinstance(value, int) else 0
        return [index % period == offset % period for index in range(count)]


class Not(NamedTuple):
    """The layers that another rule does not choose."""

    layers: Layers

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return whether each layer is chosen."""
        return [not is_chosen for is_chosen in self.layers.choose(config, count)]


class Both(NamedTuple):
    """The layers that two rules choose."""

    first: Layers
    second: Layers

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return whether each layer is chosen."""
        return [a and b for a, b in zip(self.first.choose(config, count), self.second.choose(config, count))]

"""Readers of values in the configs of one or a few model types, and selections of their layers."""

from __future__ import annotations

from typing import Any, NamedTuple

from .config import Config
from .keys import Integer, KeyValueHeads, Natural
from .layer_rules import Listed


class RotatedOf(NamedTuple):
    """The rotated elements of a head in the layers of a kind, by the entry of the first such layer in a list."""

    kind: str
    default: float

    def read(self, config: Config) -> int:
        """Return the number of elements."""
        size, share = config.positive_integer("head_dim"), self.default
        kinds, listed = config.fields.get("layer_types"), config.fields.get("partial_rotary_factors")
        rope = config.fields.get("rope_parameters")
        if isinstance(kinds, list) and isinstance(listed, list) and self.kind in kinds[: len(listed)]:
            share = listed[kinds.index(self.kind)]
        elif isinstance(rope, dict) and isinstance(rope.get(self.kind), dict):
            share = rope[self.kind].get("partial_rotary_factor", 1.0)
        if not isinstance(share, (int, float)) or not 0 < share <= 1:
            raise config.fail(f"the rotated share of a head must be a number above 0, at most 1 (got {share!r})")
        return int(size * share)


class NearestMultiple(NamedTuple):
    """An integer times a factor of the config, rounded to the nearest multiple, but by less than a tenth downwards."""

    of: str
    factor: str
    multiple: str
    multiple_default: int

    def read(self, config: Config) -> int:
        """Return the integer."""
        multiple = config.positive_integer(self.multiple, self.multiple_default)
        scaled = config.positive_integer(self.of) * config.number(self.factor, 1.0)
        nearest = max(int(scaled + multiple / 2) // multiple * multiple, multiple)
        return nearest + multiple if nearest < 0.9 * scaled else nearest


class CrossLayers(NamedTuple):
    """The layers of the second decoder of SambaY, which attends to the keys and values of the first one.

    The first decoder ends with one full attention, in the second layer after the middle (Ren et al. 2025, section 3).
    """

    has_attention: bool

    def choose(self, config: Config, count: int) -> list[bool]:
        """Return whether each layer is chosen."""
        period = config.positive_integer("mb_per_layer", 2)
        is_attention = [index % period == 1 for index in range(count)]
        return [index >= count // 2 + 2 and is_attention[index] == self.has_attention for index in range(count)]


class Windows(NamedTuple):
    """The window of SambaY, and the layers with one: an entry of a list for each layer, or one number."""

    def read(self, config: Config) -> int | None:
        """Return the window."""
        listed = config.fields.get("sliding_window")
        if not isinstance(listed, list):
            return config.optional_integer("sliding_window")
        return max((size for size in listed if isinstance(size, int)), default=None)

    def choose(self, config: Config, count: int) -> list[bool]:
        """Return whether each layer has a window."""
        listed = config.fields.get("sliding_window")
        if not isinstance(listed, list):
            return list(Listed("sliding_attention").choose(config, count))
        if len(listed) != count:
            raise config.fail(f"$.sliding_window must list the {count} layers (got {len(listed)})")
        return [isinstance(size, int) for size in listed]


class FeedForwardProjection(NamedTuple):
    """The activation of T5's feed-forward part, such as the last word of ``gated-gelu``."""

    def read(self, config: Config) -> str:
        """Return the name of the activation."""
        projection = str(config.fields.get("feed_forward_proj", "relu"))
        if projection == "gated-gelu":
            return "gelu_new"
        return config.known_activation("feed_forward_proj", projection.removeprefix("gated-"))


class IfGated(NamedTuple):
    """One value where T5's feed-forward part is gated, and another one where it is not."""

    gated: Any = True
    plain: Any = False

    def read(self, config: Config) -> Any:
        """Return the value."""
        return self.gated if str(config.fields.get("feed_forward_proj")).startswith("gated-") else self.plain


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


class Labels(NamedTuple):
    """The number of classes: given, else one for each label, else 2."""

    def read(self, config: Config) -> int:
        """Return the number."""
        labels = config.fields.get("id2label")
        return config.positive_integer("num_labels", len(labels) if isinstance(labels, dict) and labels else 2)


class FalconHeads(NamedTuple):
    """The number of Falcon's key and value heads.

    The newer architecture gives the number; the older one has one head (multi-query attention) or as many as queries.
    """

    def read(self, config: Config) -> int:
        """Return the number."""
        heads = config.positive_integer("num_attention_heads")
        if config.boolean("new_decoder_architecture", False):
            return KeyValueHeads(key="num_kv_heads").read(config)
        return 1 if config.boolean("multi_query", True) else heads


class AdjustedSize(NamedTuple):
    """The inner size of LFM2: two thirds of a given size times a factor, rounded up to a multiple."""

    keys: str = "block_ff_dim intermediate_size"

    def read(self, config: Config) -> int:
        """Return the size."""
        size = Integer(self.keys).read(config)
        assert size is not None
        if not config.boolean("block_auto_adjust_ff_dim", True):
            return size
        factor = config.fields.get("block_ffn_dim_multiplier", 1.0)
        adjusted = int((1.0 if factor is None else factor) * int(2 * size / 3))
        multiple = config.positive_integer("block_multiple_of", 256)
        return -(-adjusted // multiple) * multiple


class PerHead(NamedTuple):
    """The size per head of a width that a factor of the config gives."""

    of: str
    factor: str
    factor_default: float
    heads: str
    heads_default: int

    def read(self, config: Config) -> int:
        """Return the size."""
        heads = config.positive_integer(self.heads, self.heads_default)
        width = int((Integer(self.of).read(config) or 0) * config.number(self.factor, self.factor_default))
        if not width or width % heads:
            raise config.fail(f"$.{self.heads} is {heads}, which does not divide a width of {width}")
        return width // heads


class ItemOf(NamedTuple):
    """One entry of a list of integers, or an integer that holds for all entries."""

    key: str
    entry: int

    def read(self, config: Config) -> int:
        """Return the integer."""
        listed = config.fields.get(self.key)
        if isinstance(listed, list) and len(listed) > self.entry:
            return config.with_fields({**config.fields, self.key: listed[self.entry]}).positive_integer(self.key)
        return config.positive_integer(self.key)


class ShareOf(NamedTuple):
    """The experts that a token passes on average, where some of those it may choose are idle."""

    active: Integer
    experts: Integer
    idle: Natural

    def read(self, config: Config) -> int:
        """Return the number, rounded."""
        active, count = self.active.read(config) or 1, self.experts.read(config) or 1
        return max(round(active * count / (count + self.idle.read(config))), 1)

"""Rules that select the layers of a model to which a trait applies, by what its config says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from .config import Config
from .keys import FirstFlag, Flag, Integer, IsSet, Natural, ObjectOf


class LayerSelection(Protocol):
    """A rule that selects layers."""

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return for each of `count` layers whether it is selected."""


class All(NamedTuple):
    """Every layer, or none."""

    is_selected: bool = True

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return the same value for each layer."""
        return [self.is_selected] * count


class When(NamedTuple):
    """The layers of one rule if a flag of the config is set, and those of another rule if it is not."""

    flag: Flag | FirstFlag | IsSet
    layers: LayerSelection = All()
    otherwise: LayerSelection = All(False)

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return whether each layer is chosen."""
        rule = self.layers if self.flag.read(config) else self.otherwise
        return rule.choose(config, count)


class Listed(NamedTuple):
    """The layers with a given value in a list of the config; without the list, the layers of another rule.

    Several valid values are separated by spaces.
    """

    value: str | int
    key: str = "layer_types"
    otherwise: LayerSelection = All(False)

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return whether each layer is chosen."""
        listed = config.fields.get(self.key)
        if listed is None:
            return self.otherwise.choose(config, count)
        if not isinstance(listed, list) or len(listed) < count:
            raise config.fail(f"$.{self.key} must list the {count} layers")
        values = self.value.split() if isinstance(self.value, str) else [self.value]
        return [value in values for value in listed[:count]]


class Lettered(NamedTuple):
    """The layers with one of the given letters in a pattern of the config, which has a letter for each layer."""

    letters: str
    key: str
    otherwise: LayerSelection = All(False)

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return whether each layer is chosen."""
        pattern = config.fields.get(self.key)
        if pattern is None:
            return self.otherwise.choose(config, count)
        if not isinstance(pattern, str) or len(pattern) < count:
            raise config.fail(f"$.{self.key} must have a letter for each of the {count} layers")
        return [letter in self.letters for letter in pattern[:count]]


class Sharing(NamedTuple):
    """The layers that select tokens by themselves; the others take the selection of the layer before (GLM-5.2)."""

    period: Integer = Integer("index_topk_freq", 1)
    offset: Integer = Integer("index_skip_topk_offset", 2)

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return whether each layer is chosen."""
        period, offset = self.period.read(config) or 1, self.offset.read(config) or 0
        return [max(index - offset + 1, 0) % period == 0 for index in range(count)]


class Numbered(NamedTuple):
    """The layers with their index in a list of the config; if it is empty or absent, the layers of another rule."""

    key: str
    otherwise: LayerSelection = All(False)

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return whether each layer is chosen."""
        numbers = config.fields.get(self.key)
        if not numbers:
            return self.otherwise.choose(config, count)
        if not isinstance(numbers, list):
            raise config.fail(f"$.{self.key} must be a list of layers (got {numbers!r})")
        return [index in numbers for index in range(count)]


class NumberedText(NamedTuple):
    """The layers with their index in a text of the config, separated by commas; without it, those of another rule."""

    key: str
    otherwise: LayerSelection = All(False)

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return whether each layer is chosen."""
        text = config.fields.get(self.key)
        if text is None:
            return self.otherwise.choose(config, count)
        if not isinstance(text, str) or not all(number.strip().isdecimal() for number in text.split(",")):
            raise config.fail(f"$.{self.key} must be layers separated by commas (got {text!r})")
        numbers = {int(number) for number in text.split(",")}
        return [index in numbers for index in range(count)]


class At(NamedTuple):
    """The layers with the given indices."""

    indices: tuple[int, ...]

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return whether each layer is chosen."""
        return [index in self.indices for index in range(count)]


class From(NamedTuple):
    """All layers from a given index on."""

    first: Integer

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return whether each layer is chosen."""
        value = config.fields.get(self.first.key, self.first.default)
        first = 0 if value in (None, 0) else self.first.read(config)
        assert first is not None
        return [index >= first for index in range(count)]


class EveryNth(NamedTuple):
    """Every n-th layer: those with ``index % n == offset``; an offset of -1 means n - 1."""

    period: Integer
    offset: Integer | int = -1

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return whether each layer is chosen."""
        period = self.period.read(config) or 1
        offset = self.offset
        if isinstance(offset, Integer):
            value = config.fields.get(offset.key, offset.default)
            offset = value if isinstance(value, int) else 0
        return [index % period == offset % period for index in range(count)]


class Positive(NamedTuple):
    """The layers with a number above 0 in a list of the config; without the list, the first ones of many layers."""

    key: str
    first: int
    of_more_than: int

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return whether each layer is chosen."""
        listed = config.fields.get(self.key)
        if isinstance(listed, list) and len(listed) >= count:
            return [isinstance(value, (int, float)) and value > 0 for value in listed[:count]]
        return [count > self.of_more_than and index < self.first for index in range(count)]


class Cycled(NamedTuple):
    """The layers with a given value in a list that is repeated until every layer has one."""

    value: str
    key: str
    default: tuple[str, ...]

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return whether each layer is chosen."""
        listed = config.fields.get(self.key, list(self.default))
        if not isinstance(listed, list) or not listed:
            raise config.fail(f"$.{self.key} must be a list of kinds of layers (got {listed!r})")
        return [listed[index % len(listed)] == self.value for index in range(count)]


class Between(NamedTuple):
    """The layers from one index to another one; -1 stands for the last layer. Of lists the first entries count."""

    first: str
    last: str
    defaults: tuple[int, int] = (0, -1)

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return whether each layer is chosen."""
        first, last = (config.fields.get(key, default) for key, default in zip((self.first, self.last), self.defaults))
        first, last = (value[0] if isinstance(value, list) and value else value for value in (first, last))
        if not all(isinstance(value, int) for value in (first, last)):
            raise config.fail(f"$.{self.first} and $.{self.last} must be integers (got {first!r} and {last!r})")
        last = count - 1 if last == -1 else last
        return [first <= index <= last for index in range(count)]


class OneBased(NamedTuple):
    """The layers with their number, from 1, in a list inside another object of the config; else those of a rule."""

    key: str
    inner: str
    otherwise: LayerSelection = All(False)

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return whether each layer is chosen."""
        nested = config.fields.get(self.key)
        numbers = nested.get(self.inner) if isinstance(nested, dict) else None
        if not isinstance(numbers, list):
            return self.otherwise.choose(config, count)
        return [index + 1 in numbers for index in range(count)]


class Marked(NamedTuple):
    """The layers with a flag set in the part of an object that a list of the config has for each layer."""

    key: str
    part: str
    flag: str

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return whether each layer is chosen."""
        parts = [keys.get(f"{self.part}_{self.flag}") for keys in ObjectOf(self.key).read(config)]
        if len(parts) != count:
            raise config.fail(f"$.{self.key} must list the {count} layers (got {len(parts)})")
        return [value is True for value in parts]


class LastOf(NamedTuple):
    """The last layers, whose number is the value of a key."""

    key: str
    default: int = 0

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return whether each layer is chosen."""
        last = Natural(self.key, self.default).read(config)
        return [index >= count - last for index in range(count)]


class Not(NamedTuple):
    """The layers that another rule does not select."""

    layers: LayerSelection

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return whether each layer is chosen."""
        return [not is_selected for is_selected in self.layers.choose(config, count)]


class Both(NamedTuple):
    """The layers that both of two rules select."""

    first: LayerSelection
    second: LayerSelection

    def choose(self, config: Config, count: int) -> Sequence[bool]:
        """Return whether each layer is chosen."""
        return [a and b for a, b in zip(self.first.choose(config, count), self.second.choose(config, count))]

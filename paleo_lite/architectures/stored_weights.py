"""Formats in which a checkpoint stores the weights of its modules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate
from math import prod

import msgspec

from ..counting import Layer
from ..counting.kinds import is_convolution
from ..counting.places import is_in_tower
from ..errors import BadDescriptor
from ..formats import Format, Part

CONVERTED_PARTS: tuple[Part, ...] = ("dense", "experts")
"""Parts of a network that methods convert, unless the config says otherwise."""


class StoredModules(msgspec.Struct, frozen=True):
    """Modules by name, by the first names of the modules that contain them, or by a pattern.

    Names begin at the number of the block, so that the prefixes of vision-language models do not matter.
    """

    names: frozenset[str] = frozenset()  # names of modules; what they contain belongs to them
    pattern: str = ""  # regular expression that is matched from the beginning of a name; empty for none

    def contain(self, name: str) -> bool:
        """Return whether a module is among these."""
        return any(self._contain(alias) for alias in _aliases(name))

    def _contain(self, name: str) -> bool:
        parts = name.split(".")
        for begin in range(len(parts)):
            for end in range(begin + 1, len(parts) + 1):
                if ".".join(parts[begin:end]) in self.names:
                    return True
        return bool(self.pattern) and re.match(self.pattern, name) is not None


_ALIASES = ((".self_attn.", ".attn."), (".mlp.", ".ffn."), (".mlp.", ".block_sparse_moe."), (".mlp.", ".feed_forward."))
"""Names of modules in ``transformers``, and in the repositories of some publishers."""


def _aliases(name: str) -> list[str]:
    """Return the names under which a config may list a layer."""
    short = _name_from_block(name) or name
    return [short, *(short.replace(ours, theirs) for ours, theirs in _ALIASES if ours in short)]


_TEXT_PREFIXES = ("model.", "language_model.", "backbone.", "transformer.", "decoder.", "text_model.")
"""Names of modules that contain the blocks and tables of the part that writes text."""


def _name_from_block(name: str) -> str | None:
    """Return a name from the list of blocks on; None for a block outside the part that writes text."""
    before, separator, rest = name.partition("layers.")
    if separator and not before.startswith("*"):
        is_text = not _without_prefixes(before)
        return separator + rest if is_text else None
    return _without_prefixes(name)


def _without_prefixes(name: str) -> str:
    """Return a name without the modules that contain the part that writes text."""
    while name.startswith(_TEXT_PREFIXES):
        name = name.partition(".")[2]
    return name


def modules_of(
    # Names such as ``lm_head``, globs such as ``model.layers.0.self_attn*``, or ``re:`` with a regular expression.
    patterns: Iterable[str],
) -> StoredModules:
    """Return the modules that a list of a config names.

    Raise BadDescriptor if an entry is no text, or no regular expression.
    """
    names, expressions = set(), []
    for text in patterns:
        if not isinstance(text, str):
            raise BadDescriptor(f"the names of modules must be texts (got {text!r})")
        if text.startswith("re:"):
            expressions.append(f"(?:{_expression_from_block(text[3:])})")
            continue
        short = _name_from_block(text)
        if short is None:
            continue
        if any(mark in short for mark in "*?["):
            expression = translate(short).removesuffix(r"\Z").removesuffix(r"\z")
            expressions.append(rf"{expression}(?:\..*)?\Z")
        else:
            names.add(short)
    return StoredModules(frozenset(names), "|".join(expressions))


def _expression_from_block(text: str) -> str:
    """Return a regular expression of a whole name as one of a name from its block on."""
    if len(text) > 10_000:
        raise BadDescriptor("a regular expression of a module's name is too long")
    begin = text.rfind("layers")
    text = text[begin:] if begin > 0 and "(" not in text[:begin] else text
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadDescriptor(f"{text!r} is not a regular expression of modules' names ({error})") from None
    return text


class FormatRule(msgspec.Struct, frozen=True):
    """A format for some modules; None for 16 bits."""

    modules: StoredModules
    stored: Format | None


class StoredWeights(msgspec.Struct, frozen=True):
    """Formats of the weight matrices of a checkpoint."""

    method: str  # method of quantization, for messages
    stored: Format | None  # format of the modules that no rule names; None for 16 bits
    rules: tuple[FormatRule, ...] = ()  # rules for modules, the first of which that contains a module holds
    parts: tuple[Part, ...] = CONVERTED_PARTS  # parts of a network for which `stored` holds
    # Whether activations are quantized as well, so that products run in the precision of the format.
    has_narrow_activations: bool = False
    # Bytes that the files of the checkpoint have, relative to those of the formats, by part; empty without files.
    ratios: tuple[tuple[Part, float], ...] = ()

    def format_of(
        self,
        layer: Layer,
        part: Part | None,  # its part of the network, as `paleo_lite.counting.places.parts_of` tells it
    ) -> Format | None:
        """Return the format of a layer's weight matrix, with the bytes of the files; None if it has 16 bits."""
        if part is None or part == "router" or is_convolution(layer) or is_in_tower(layer):
            return None
        stored = self.stored if part in self.parts else None
        for rule in self.rules:
            if rule.modules.contain(layer.name):
                stored = rule.stored
                break
        ratio = dict(self.ratios).get(part, 1.0)
        if stored is None or ratio == 1.0:
            return stored
        return msgspec.structs.replace(stored, bits=stored.bits_per_number * ratio, group=0)

    def formats_of(self, layers: Sequence[Layer], parts: Sequence[Part | None]) -> list[Format | None]:
        """Return the format of each layer's weight matrix; None for those of 16 bits."""
        return [self.format_of(layer, part) for layer, part in zip(layers, parts)]

    def main_format(self, layers: Sequence[Layer], parts: Sequence[Part | None]) -> Format | None:
        """Return the format of most weights of some layers."""
        numbers: dict[Format | None, int] = {}
        for layer, stored in zip(layers, self.formats_of(layers, parts)):
            if layer.weights:
                numbers[stored] = numbers.get(stored, 0) + prod(layer.weights[0])
        return max(numbers, key=lambda stored: numbers[stored], default=None)

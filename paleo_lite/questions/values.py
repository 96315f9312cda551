"""Types of values that options take, each with its conversion and check: numbers, quantities, lists, settings."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ..arguments import LARGEST_INTEGER, LARGEST_WORDS, as_plain, as_whole, quote_value
from ..errors import BadQuantity, BadValue, UnknownName
from ..files import file_exists
from ..units import check_positive, is_integer, parse_duration, parse_quantity, parse_range, spell_out_tokens
from .completion import DEVICE, NETWORK, PlatformText
from .names import Names, parameter_name, quote

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_MAX_DIGITS = 4000  # Python raises ValueError for integers with more than about 4300 digits


class WholeNumber(click.ParamType):  # type: ignore[type-arg]
    """An integer that is at least the minimum, and at most the maximum if there is one."""

    name = "number"

    def __init__(self, maximum: int | None = None, minimum: int = 1) -> None:
        self.maximum = maximum
        self.minimum = minimum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the integer; raise BadValue if it is out of range."""
        text = str(as_whole(value)).strip()
        is_integer_text = text.isascii() and text.isdecimal() and not isinstance(value, bool)
        largest = self.maximum or LARGEST_INTEGER
        if is_integer_text and len(text) <= _MAX_DIGITS and self.minimum <= int(text) <= largest:
            return int(text)
        is_too_large = is_integer_text and (len(text) > _MAX_DIGITS or int(text) > largest)
        expected = f"at most {LARGEST_WORDS}" if is_too_large and self.maximum is None else self.expected
        given = value if isinstance(value, bool) else quote(text)
        raise BadValue(f"{parameter_name(param)} must be {expected} (got {given})")

    @property
    def expected(self) -> str:
        """What a value must be, for the error message."""
        if self.maximum is None:
            return f"an integer >= {self.minimum}"
        return f"an integer from {self.minimum} to {self.maximum:,}"


class TokenCount(WholeNumber):
    """A number of tokens, also in thousands and millions: 8k is 8,000 and 8K is 8,192, as in vLLM."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the integer; raise BadValue if it is out of range."""
        return super().convert(spell_out_tokens(value) if isinstance(value, str) else value, param, ctx)

    @property
    def expected(self) -> str:
        """What a value must be, for the error message."""
        return f"{super().expected}, such as 8192, 8k (8,000) or 8K (8,192)"


class BatchSize(WholeNumber):
    """An integer >= 1, or ``fit`` for the largest batch that fits into the memory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the integer, or the word."""
        return FIT if str(value).strip() == FIT else super().convert(value, param, ctx)


FIT = "fit"
"""Batch size for the largest batch that fits into the memory."""


class PictureSize(WholeNumber):
    """Pixels of a square image, or width x height of a picture as text."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the integer, or the text of width x height."""
        text = str(as_whole(value)).strip().lower().replace("×", "x")
        if text.isdecimal():
            return super().convert(text, param, ctx)
        from ..architectures.pipelines.sampling import parse_image_size

        parse_image_size(text)
        return text

    def spell_pairs(self, value: Any, name: str) -> Any:
        """Return a value of Python with every tuple of width and height as text; a list is several sizes."""
        if isinstance(value, list):
            return [self.spell_pairs(item, name) for item in value]
        if not isinstance(value, tuple):
            return value
        sizes = list(map(as_whole, value))
        if len(sizes) != 2 or not all(map(is_integer, sizes)):
            self.refuse(value, name)
        return f"{sizes[0]}x{sizes[1]}"

    def refuse(self, value: Any, name: str) -> NoReturn:
        """Raise BadValue for a value that is no size, or that can be meant as one size and as several."""
        raise BadValue(
            f"`{name}` takes a tuple of width and height, such as (1024, 768), or a list of several sizes "
            f"(got {quote_value(value)})"
        )


class Number(click.ParamType):  # type: ignore[type-arg]
    """A number > 0, or a number between two inclusive limits; the example is a valid value for the error message."""

    name = "number"

    def __init__(self, minimum: float | None = None, maximum: float | None = None, example: str = "") -> None:
        self.minimum = minimum
        self.maximum = maximum
        self.example = example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; raise BadValue if it is out of range."""
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        example = f", such as {self.example}" if self.example else ""
        if self.minimum is not None and self.maximum is not None:
            expected = f"a number from {self.minimum:g} to {self.maximum:,.0f}{example}"
            if not self.minimum <= number <= self.maximum:
                raise BadValue(f"{parameter_name(param)} must be {expected} (got {quote(str(value))})")
        else:
            check_positive(parameter_name(param), number, quote(str(value)), f"a number > 0{example}")
        return number


class AnyNumber(click.types.FloatParamType):
    """A number, whose limits are those of what it is for."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; raise BadValue for anything else."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            raise BadValue(f"{parameter_name(param)} must be a number, such as 0.5 (got {quote(str(value))})") from None


NUMBER = AnyNumber()


class MeanTokens(Number):
    """A mean number of tokens > 0, also in thousands as `TokenCount`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; raise BadValue if it is out of range."""
        return super().convert(spell_out_tokens(value) if isinstance(value, str) else value, param, ctx)


class SplitProportions(click.ParamType):  # type: ignore[type-arg]
    """Proportions of parts, such as 3,1: numbers that are not negative, and not all 0."""

    name = "proportions"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """Return the numbers; raise BadValue if they are no proportions."""
        try:
            numbers = tuple(float(part) for part in str(value).split(","))
        except ValueError:
            numbers = (math.nan,)
        if not (all(0 <= number < math.inf for number in numbers) and any(numbers)):
            raise BadValue(f"{parameter_name(param)} must be proportions such as 3,1 (got {quote(str(value))})")
        return numbers


class SharesByPosition(Number):
    """A share from 0 to 1, or several of them separated by commas."""

    name = "share"

    def __init__(self) -> None:
        super().__init__(0, 1)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the share, or a tuple of them."""
        shares = tuple(
            super(SharesByPosition, self).convert(part.strip(), param, ctx) for part in str(value).split(",")
        )
        return shares if len(shares) > 1 else shares[0]


class CommaSeparated(click.ParamType):  # type: ignore[type-arg]
    """One value, or several values separated by commas; the name of an existing file may contain commas.

    Integers may also be given as a range such as ``1:128:x2``.
    """

    def __init__(self, item_type: Any = click.STRING) -> None:
        self.item_type = item_type

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name of the item type."""
        name: str = self.item_type.name
        return name

    def get_metavar(self, *arguments: Any, **named: Any) -> str | None:
        """Return the placeholder in the help text."""
        metavar: str | None = self.item_type.get_metavar(*arguments, **named)
        if metavar is None:
            return None
        return f"{metavar}[,...]"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the completions of the item type."""
        completions: list[CompletionItem] = self.item_type.shell_complete(ctx, param, incomplete)
        return completions

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a single value, or a list if there are several distinct values."""
        if isinstance(value, list):
            return value  # converted before
        text = spell_out_tokens(str(value)) if isinstance(self.item_type, TokenCount) else str(value)
        if text.strip() == "all" and (names := self._all_names()):
            parts = names
        elif self._is_range(text):
            parts = [str(number) for number in parse_range(text, parameter_name(param))]
        elif "," in text and (
            (isinstance(self.item_type, PlatformText) and "@" in text) or file_exists(text, Path.exists)
        ):
            parts = [text]
        else:
            parts = [part.strip() for part in text.split(",")]
        converted = [self.item_type.convert(part, param, ctx) for part in parts]
        unique = list(dict.fromkeys(converted))
        return unique if len(unique) > 1 else unique[0]

    def _is_range(self, text: str) -> bool:
        """Return whether a text is several integers or a range of them; sizes as width x height are names."""
        if isinstance(self.item_type, PictureSize) or FIT in text:
            return ":" in text or "..." in text
        return isinstance(self.item_type, WholeNumber) and re.search("[,:]", text) is not None

    def _all_names(self) -> list[str]:
        """Return what ``all`` stands for: the names of a list, unless one of them is all; none for other types."""
        names: list[str] = []
        if isinstance(self.item_type, Names):
            names = list(self.item_type.choices)
        elif self.item_type in (NETWORK, DEVICE):
            names = list(self.item_type.first_names())
        return [] if "all" in names else names


def to_list(value: Any) -> list[Any]:
    """Return a list unchanged, and any other value as a list with one element."""
    return value if isinstance(value, list) else [value]


def join_listed(value: Any) -> Any:
    """Return a list of words or numbers as the text with commas that the command line takes; others unchanged."""
    is_listed = type(value) in (list, tuple) and all(isinstance(item, (str, int, float)) for item in value)
    return ",".join(map(str, value)) if value and is_listed else value


def flatten(values: Iterable[Any]) -> list[Any]:
    """Return all values of a `CommaSeparated` option that may be given several times."""
    return [item for value in values for item in to_list(value)]


class Quantity(click.ParamType):  # type: ignore[type-arg]
    """A quantity > 0 in a unit, such as 110k or 25 MiB; `unit_required` as in `parse_quantity`."""

    name = "quantity"

    def __init__(self, unit: str, *, unit_required: bool = False) -> None:
        self.unit = unit
        self.unit_required = unit_required

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the quantity in its unit; raise BadValue if it is not > 0."""
        try:
            number = parse_quantity(value, self.unit, unit_required=self.unit_required)
        except BadQuantity as error:
            raise BadQuantity(f"{parameter_name(param)}: {error}") from None
        check_positive(parameter_name(param), number, quote(str(value)), "> 0")
        return number


class DurationText(click.ParamType):  # type: ignore[type-arg]
    """A duration > 0 such as 36h or 10d, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds; raise BadValue for a number without a unit."""
        try:
            seconds = math.nan if isinstance(value, str) and value.strip().isdecimal() else parse_duration(value)
        except BadQuantity:
            seconds = math.nan
        check_positive(parameter_name(param), seconds, quote(str(value)), "a duration such as 36h or 10d")
        return seconds


class PriceOrCloud(Quantity):
    """A price in USD per hour, or the name of a cloud, or cheapest."""

    name = "price"

    def __init__(self) -> None:
        super().__init__("USD/h")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the price, or the name of the cloud."""
        text = str(value).strip()
        if text[:1].isdigit() or text[:1] in ".-+":
            return super().convert(value, param, ctx)
        from ..machines.prices import CHEAPEST, cloud_names, find_cloud_name
        from ..text import normalize_name

        if normalize_name(text) == CHEAPEST:
            return CHEAPEST
        try:
            return find_cloud_name(text)
        except UnknownName:
            clouds = ", ".join(cloud_names()[:3])
            raise BadValue(
                f"{parameter_name(param)} must be USD per hour, such as '2.50 USD/h', or a cloud, such as {clouds} "
                f"or cheapest (got {quote(text)})"
            ) from None

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the clouds whose names begin so."""
        from click.shell_completion import CompletionItem

        from ..machines.prices import cloud_names

        return [CompletionItem(name) for name in cloud_names() if name.lower().startswith(incomplete.lower())]


class YesNo(click.ParamType):  # type: ignore[type-arg]
    """Yes or no, in Python also True and False."""

    name = "yes|no"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """Return whether it is yes; raise BadValue for any other word than the two."""
        if isinstance(value, bool):
            return value
        if value not in ("yes", "no"):
            raise BadValue(f"{parameter_name(param)} must be yes or no (got {quote(str(value))})")
        return bool(value == "yes")


class KeyValues(click.ParamType):  # type: ignore[type-arg]
    """Settings as ``key=value,key=value``, which become a dict; the last value may contain commas.

    The types are Click's, of each key.
    """

    name = "settings"

    def __init__(self, types: dict[str, Any]) -> None:
        self.types = types

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """Return the converted settings; raise BadValue for one without a key, twice, or of an unknown key."""
        if isinstance(value, dict):
            texts = {str(key).replace("_", "-"): as_plain(item) for key, item in value.items()}
        else:
            texts = self.split(str(value), param)
        settings: dict[str, Any] = {}
        for key, item in texts.items():
            if key not in self.types:
                raise UnknownName(f"setting of {parameter_name(param)}", key, self.types, lists_all=True)
            if item is None:
                continue  # as an option that is None, it is not given
            kind, text = self.types[key], join_listed(item)
            if isinstance(text, (str, list, tuple)) and not text:
                raise BadValue(f"{parameter_name(param)} takes settings such as {key}=... (got no value of {key})")
            if not isinstance(text, (str, bool, int, float)):
                settings[key] = text  # in Python an object, such as a network
                continue
            try:
                settings[key] = kind.convert(text, None, ctx)
            except (click.BadParameter, BadValue, BadQuantity) as error:
                reason = error.message if isinstance(error, click.BadParameter) else str(error)
                reason = reason.removeprefix(f"{parameter_name(None)}: ").rstrip(".")
                raise BadValue(f"{parameter_name(param)}, {key}: {reason}") from None
        return settings

    def split(self, text: str, param: click.Parameter | None) -> dict[str, str]:
        """Return the texts by key."""
        parts: list[str] = []
        for part in text.split(","):
            if re.match(r"\s*[a-z-]+=", part) or not parts:
                parts.append(part)
            else:
                parts[-1] += f",{part}"
        texts: dict[str, str] = {}
        for part in parts:
            key, equals, item = part.strip().partition("=")
            if not equals or not item:
                example = next(iter(self.types))
                raise BadValue(f"{parameter_name(param)} takes settings such as {example}=... (got {quote(part)})")
            if key in texts:
                raise BadValue(f"{parameter_name(param)} has {key} twice")
            texts[key] = item
        return texts


class TimeLimits(click.ParamType):  # type: ignore[type-arg]
    """Limits of times as ``name=500ms,name=2s``; in Python also a dict of names to seconds, or to such times."""

    name = "limits"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the limits as text; raise BadValue for a limit that is neither a number nor text."""
        if not isinstance(value, dict):
            return str(value)
        limits = []
        for key, item in value.items():
            limit = as_plain(item)
            if isinstance(limit, bool) or not isinstance(limit, (str, int, float)):
                raise BadValue(f"{parameter_name(param)} takes seconds, or times such as 500ms (got {item!r} of {key})")
            limits.append(f"{key}={limit if isinstance(limit, str) else f'{limit!r}s'}")
        if not limits:
            raise BadValue(f"{parameter_name(param)} has no limit: give one, or leave it out")
        return ",".join(limits)


class ModuleInput(click.ParamType):  # type: ignore[type-arg]
    """An input of a module, such as 3x224x224, int64:128 or input_ids=int64:128."""

    name = "input"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the parsed input."""
        from ..architectures.inputs import read_input

        return read_input(value)


class Shape(click.ParamType):  # type: ignore[type-arg]
    """A shape such as 3x224x224."""

    name = "shape"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the sizes of the dimensions."""
        from ..units import parse_shape

        return parse_shape(value) if isinstance(value, str) else tuple(value)


INTEGER = WholeNumber()
TOKENS = TokenCount()
BATCH_SIZE = BatchSize()
DURATION = DurationText()
PICTURE_SIZE = PictureSize()
PPP = Number(example="0.62")
SHAPE = Shape()

"""Options of a question, written once: `option` declares a field, from which every face of the option is made.

A record of options is a frozen dataclass that inherits `Options`. Its fields are declared with `option`; the command
line gets its parameters from `parameters_of`, and Python its signature from the dataclass itself. Values given in
Python are converted by the same types as those of the command line, so that both have the same errors.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar, Union

import click

from ..arguments import LARGEST_INTEGER, LARGEST_WORDS, as_plain, check_argument, has_class, quote_value
from ..errors import BadValue
from .names import documented_name
from .values import CommaSeparated, KeyValues, PictureSize, Shape, flatten, join_listed

T = TypeVar("T")

if TYPE_CHECKING:

    class Several(Generic[T]):
        """A field that is given one value, or several that are compared; where a question is answered it has one."""

        def __get__(self, question: object, record: Any) -> T: ...
        def __set__(self, question: object, values: T | Sequence[T]) -> None: ...

else:
    Several = Union[T, Sequence[T]]  # noqa: UP007

_KEY = "option"
_CONVERTED = (str, bool, int, float)


class OutputOption(click.Option):
    """An option for the output of a result, which the Python function and `paleo-lite plot` do not have."""


class SeveralOption(click.Option):
    """An option whose values are compared: separated by commas, or each after the option given again."""

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Return a single value, or a list if there are several distinct values; None if there is none."""
        if value is None or value == self.default:
            return value  # the default is one valid value: do not convert it, which would import lists of names
        values = list(dict.fromkeys(flatten(super().type_cast_value(ctx, value))))
        return values if len(values) > 1 else next(iter(values), None)


class Option(NamedTuple):
    """What is known of an option besides the name, type and default of its field."""

    help: str  # sentences for help and reference, without the default
    type: Any = click.STRING  # click type of one value
    metavar: str | None = None
    group: str = ""  # heading in the help
    spellings: tuple[str, ...] = ()  # names on the command line, the documented one first; empty for the field's
    is_common: bool = False  # whether `--help` shows it; `--help-all` shows every option
    is_single: bool = False  # a comma is part of the value; of other options it separates values to compare
    is_repeatable: bool = False  # the option may be given again, which adds a value
    bare: str | None = None  # value where the option is given without one; None if it needs one
    # The option is about an output file, which a chart of the result does not have; flags are parsed before the names
    # of files, to which they apply.
    is_output: bool = False

    @property
    def takes_several(self) -> bool:
        """Whether values separated by commas, or a range, are a comparison."""
        return not (self.is_single or self.is_repeatable or isinstance(self.type, KeyValues))


def option(default: Any = None, **settings: Any) -> Any:
    """Return a field of a record of options; the settings are the fields of `Option`.

    A default of False makes the option a flag, which has no value.
    """
    if default is False:
        settings["is_single"] = True
    return dataclasses.field(default=default, metadata={_KEY: Option(**settings)}, kw_only=True)


def argument(help: str, default: Any = dataclasses.MISSING) -> Any:
    """Return a field of a record that is a positional argument."""
    return dataclasses.field(default=default, metadata={"help": help})


def options_of(record: Any) -> dict[str, Option]:
    """Return the options of a record by the names of their fields, in the order of the help."""
    return _options_of(record)


@cache
def _options_of(record: Any) -> dict[str, Option]:
    options = {field.name: field.metadata[_KEY] for field in dataclasses.fields(record) if _KEY in field.metadata}
    if record.compares:
        return options
    return {name: declared._replace(is_single=True) for name, declared in options.items()}


def documented_spelling(name: str, declared: Option) -> str:
    """Return the name of an option in help and messages."""
    return declared.spellings[0] if declared.spellings else "--" + name.replace("_", "-")


def make_parameter(name: str, declared: Option, default: Any) -> click.Option:
    """Return the command-line parameter of an option."""
    is_flag = default is False
    settings: dict[str, Any] = {"help": _with_default(declared, default)}
    if is_flag:
        settings["is_flag"] = True
        settings["is_eager"] = declared.is_output
    else:
        settings["type"] = CommaSeparated(declared.type) if declared.takes_several else declared.type
        settings["metavar"] = declared.metavar
        if declared.bare is not None:
            settings["is_flag"], settings["flag_value"] = False, declared.bare
        settings["multiple"] = declared.is_repeatable or declared.takes_several
        if default not in (None, ()) and not declared.takes_several:
            settings["default"] = default
    spellings = declared.spellings or (documented_spelling(name, declared),)
    if declared.takes_several:
        parameter = SeveralOption([*spellings, name], **settings)
        parameter.default = default  # set afterwards: it is one value, not a list of values
        return parameter
    option_class = OutputOption if declared.is_output else click.Option
    return option_class([*spellings, name], **settings)


def parameters_of(record: type[Any], *names: str) -> list[click.Parameter]:
    """Return the command-line parameters of the options of a record: of all, or of the named ones."""
    defaults = {field.name: field.default for field in dataclasses.fields(record)}
    return [
        make_parameter(name, declared, defaults[name])
        for name, declared in options_of(record).items()
        if not names or name in names
    ]


def _with_default(declared: Option, default: Any) -> str:
    """Return the help of an option with its default, unless the text explains it."""
    if default in (None, False, ()) or "[default:" in declared.help:
        return declared.help
    return f"{declared.help} [default: {default}]"


class Options:
    """Base of the records of options, which converts and checks the values when a record is made.

    Raises
    ------
    PaleoError
        If a value is not one of its option.
    """

    compares: ClassVar[bool] = True
    """Whether several values of an option are a comparison."""

    def __post_init__(self) -> None:
        record: Any = type(self)
        parameters, declared = _parameters_by_name(record), options_of(record)
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            given = getattr(self, field.name)
            value = as_plain(given)
            if field.name not in parameters:
                if isinstance(value, Path):  # a network is named by its path
                    value = str(value)
                else:
                    check_argument(field.name, str(field.type), value)
                object.__setattr__(self, field.name, value)
                continue
            if value is None:
                object.__setattr__(self, field.name, field.default)  # not given
            elif given is not field.default:
                kind = declared[field.name].type
                if isinstance(kind, PictureSize):
                    if isinstance(value, list) and not isinstance(given, (list, Iterator)):
                        kind.refuse(given, documented_name(parameters[field.name]))  # an array is a size or several
                    value = kind.spell_pairs(value, documented_name(parameters[field.name]))
                annotation = str(field.type)
                _check_objects(value, annotation, parameters[field.name])
                if not _classes_in(annotation) & {"Path", "Paths", "Any"}:
                    value = _paths_as_texts(value)
                object.__setattr__(self, field.name, _convert(value, declared[field.name], parameters[field.name]))

    def given(self) -> Iterator[str]:
        """Yield the names of the options whose value is not the default."""
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            if _KEY in field.metadata and getattr(self, field.name) != field.default:
                yield field.name

    def several(self) -> dict[str, list[Any]]:
        """Return the options that have several values, with the values."""
        return {
            name: getattr(self, name)
            for name, declared in options_of(type(self)).items()
            if declared.takes_several and isinstance(getattr(self, name), list)
        }


@cache
def _parameters_by_name(record: Any) -> dict[str, Any]:
    return {parameter.name or "": parameter for parameter in parameters_of(record)}


def _check_objects(value: Any, annotation: str, parameter: click.Option) -> None:
    """Raise BadValue for a value, or one in a list, that is too large or of a class that the option does not take."""
    if isinstance(value, (set, frozenset, bytes, bytearray)):
        raise BadValue(f"`{documented_name(parameter)}` takes a value or a list of values (got {quote_value(value)})")
    classes = _classes_in(annotation)
    is_list_value = "Sequence" in classes and isinstance(parameter.type, CommaSeparated)  # as of tools
    for item in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(item, (list, tuple)) and is_list_value:
            _check_objects(item, annotation, parameter)
            continue
        if isinstance(item, int) and abs(item) > LARGEST_INTEGER:
            raise BadValue(f"`{documented_name(parameter)}` must be at most {LARGEST_WORDS} (got {quote_value(item)})")
        is_plain = item is None or isinstance(item, (*_CONVERTED, dict, range))
        is_path = isinstance(item, os.PathLike)
        if not (is_plain or is_path or "Any" in classes or any(has_class(item, name) for name in classes)):
            raise _no_such_value(parameter, item)


@cache
def _classes_in(annotation: str) -> set[str]:
    """Return the names of the classes in an annotation, without those of the values of a dictionary."""
    return set(re.findall(r"[A-Za-z]+", annotation.replace("dict[str, Any]", "")))


def _paths_as_texts(value: Any) -> Any:
    """Return a path, or each path in a list, as its text."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_paths_as_texts, value))
    return os.fsdecode(value) if isinstance(value, os.PathLike) else value


def _convert(value: Any, declared: Option, parameter: click.Option) -> Any:
    """Return a value as the command line would convert it; objects such as a `Device` are kept."""
    if parameter.is_flag:
        if value not in (True, False):
            raise BadValue(f"`{documented_name(parameter)}` must be True or False (got {quote_value(value)})")
        return bool(value)
    if isinstance(value, (list, tuple)) and not value and not declared.is_repeatable:
        raise BadValue(f"`{documented_name(parameter)}` has no value: give one, or leave it out")
    if isinstance(value, bool) and declared.bare is not None:
        return declared.bare if value else None
    if declared.is_repeatable:
        several = [value] if isinstance(value, _CONVERTED) or not isinstance(value, Sequence) else value
        return tuple(_convert_one(item, declared.type, parameter) for item in several)
    if isinstance(declared.type, Shape):
        return _convert_by(declared.type, value, parameter)  # a sequence is one value
    if not declared.takes_several:
        joined = join_listed(value)
        if isinstance(joined, (list, tuple, range)):
            raise BadValue(f"`{documented_name(parameter)}` takes one value (got {quote_value(value)})")
        return _convert_one(joined, declared.type, parameter)
    if isinstance(value, str):
        return _convert_by(parameter.type, value, parameter)
    if isinstance(value, (list, tuple, range)):
        converted = _distinct([_convert_one(item, declared.type, parameter) for item in value])
        return converted[0] if len(converted) == 1 else converted
    return _convert_one(value, declared.type, parameter)


def _distinct(values: list[Any]) -> list[Any]:
    """Return the values without repetitions, as of the command line; all of them if they are records or settings."""
    return list(dict.fromkeys(values)) if all(isinstance(value, _CONVERTED) for value in values) else values


def _convert_one(value: Any, kind: Any, parameter: click.Option) -> Any:
    if value is None or not isinstance(value, (*_CONVERTED, dict)):
        return value
    return _convert_by(kind, value, parameter)


def _convert_by(kind: Any, value: Any, parameter: click.Option) -> Any:
    """Return a value that a click type has converted; raise BadValue where click would say how to call a command."""
    try:
        return kind.convert(value, parameter, None)
    except click.BadParameter as error:
        raise BadValue(f"`{documented_name(parameter)}`: {error.message.rstrip('.')}") from None
    except (TypeError, ValueError, OverflowError):  # of a builtin type such as int
        raise _no_such_value(parameter, value) from None


def _no_such_value(parameter: click.Option, value: Any) -> BadValue:
    return BadValue(
        f"`{documented_name(parameter)}` takes no such value: give text, a number or a list of them "
        f"(got {quote_value(value)})"
    )


def command_words(command: str, question: Options) -> list[str]:
    """Return the words of the command line that asks a question; objects are written by their names."""
    words = ["paleo-lite", command]
    network = getattr(question, "network", None)
    if network is not None:
        words.append(_text_of(network))
    declared = options_of(type(question))
    for name in question.given():
        spelling, value = documented_spelling(name, declared[name]), getattr(question, name)
        if value is True:
            words.append(spelling)
        elif declared[name].is_repeatable:
            for item in value:
                words += [spelling, _text_of(item)]
        else:
            words += [spelling, _text_of(value)]
    return words


def _text_of(value: Any) -> str:
    """Return a value as it is written on the command line."""
    if isinstance(value, dict):
        return ",".join(f"{key}={_text_of(item)}" for key, item in value.items())
    if type(value) in (list, tuple, range):
        return ",".join(_text_of(item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, tuple):  # the shape of an input
        from ..units import format_shape

        return format_shape(value)
    return str(getattr(value, "id", getattr(value, "name", value)) if not isinstance(value, Path) else value)

"""`View`: the question that the page asks, and its conversion to and from the address, the command line and Python.

Values of options are kept as the texts of the command line, which the record of the question converts and checks.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import click
import msgspec

from ..errors import BadValue, PaleoError, UnknownName
from ..questions.names import Names
from ..questions.option import Option, documented_spelling, options_of
from ..questions.values import FIT, BatchSize, CommaSeparated, KeyValues, TokenCount, WholeNumber
from ..units import parse_range, spell_out_tokens
from .uploads import NETWORKS
from .wanted import (
    ANSWERS_AT_MOST,
    AT_MOST,
    AT_MOST_ELSE,
    COUNTS_AT_MOST,
    DEVICES_AT_MOST,
    FIRST_DEVICES,
    FREE_CHOICES,
    NOT_OFFERED,
    PROFILE,
    WANTED,
    applies,
    label_of,
    offered_options,
    record_of,
    takes_several,
)
from .words import on_page

FIRST = next(iter(WANTED))
"""The question with which the page opens."""

_LONGEST_TEXT = 200


class View(msgspec.Struct, frozen=True):
    """The question that the controls ask."""

    asked: str = FIRST  # a key of `WANTED`
    network: str = WANTED[FIRST].network  # empty for the question about a profile
    gpu: tuple[str, ...] = FIRST_DEVICES  # ids of the devices
    options: dict[str, str] = {}  # text of each option that is given
    shown: str = ""  # the device of the details; empty for the first

    @property
    def device(self) -> str:
        """The device of the details; empty if no device is chosen."""
        return self.shown if self.shown in self.gpu else next(iter(self.gpu), "")

    def normalized(self) -> View:
        """Return the view with the options that apply, and without `shown` if it is the first device or none."""
        shown = self.shown if self.shown in self.gpu[1:] else ""
        stated = {name: text for name, text in self.options.items() if text}
        options = {name: text for name, text in stated.items() if applies(self.asked, name, self.network, stated)}
        return msgspec.structs.replace(self, shown=shown, options=options)

    def of_device(self, gpu: str) -> View:
        """Return the question about one of the devices."""
        return msgspec.structs.replace(self, gpu=(gpu,), shown="")

    def to_query(self) -> dict[str, list[str]]:
        """Return the parameters of the address."""
        query = {"ask": [self.asked], "network": [self.network], "gpu": list(self.gpu) or [""]}
        query |= {name: [text] for name, text in self.options.items()}
        if self.shown:
            query["shown"] = [self.shown]
        return {name: texts for name, texts in query.items() if texts != [""] or name == "gpu"}

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the Python call that asks the same."""
        gpu: Any = self.gpu[0] if len(self.gpu) == 1 else list(self.gpu)
        declared = offered_options(self.asked)
        options = {name: _python_value(self.asked, name, text, declared[name]) for name, text in self.options.items()}
        return {"network": self.network, "gpu": gpu, **options, **WANTED[self.asked].always}

    def command(self, files: Sequence[str] = ()) -> str:
        """Return the command line that asks the same, with additional hardware files."""
        words = ["paleo-lite", self.asked, self.network, "--gpu", ",".join(self.gpu)]
        declared = options_of(record_of(self.asked))
        always = dict.fromkeys(WANTED[self.asked].always, "yes")
        for name, text in {**self.options, **always}.items():
            spelling = documented_spelling(name, declared[name])
            if is_flag(self.asked, name):
                words.append(spelling)
            else:
                for item in _items(text, declared[name]):
                    words += [spelling, item]
        return shlex.join([*words, *(word for file in files for word in ("--hardware-file", file))])

    def python(self, files: Sequence[str] = ()) -> str:
        """Return the Python that asks the same, with additional hardware files."""
        arguments = self.arguments()
        if files:
            arguments["hardware_files"] = list(files)
        network = arguments.pop("network")
        named = [f"{name}={_literal(value)}" for name, value in arguments.items()]
        return f"import paleo_lite as pl\n\npl.{self.asked}({', '.join([_literal(network), *named])})"


def first_view(kind: str = FIRST) -> View:
    """Return the view with which a question starts."""
    wanted = WANTED[kind]
    return View(kind, wanted.network, FIRST_DEVICES, dict(wanted.options))


def is_flag(kind: str, name: str) -> bool:
    """Return whether an option is given or not, without a value."""
    return default_of(kind, name) is False


def default_of(kind: str, name: str) -> Any:
    """Return the default of an option in its record."""
    fields = {field.name: field for field in dataclasses.fields(record_of(kind))}  # type: ignore[arg-type]
    return fields[name].default


def _items(text: str, declared: Option) -> list[str]:
    """Return the values of an option that may be given again; a line is a value."""
    return text.splitlines() if declared.is_repeatable else [text]


def _literal(value: Any) -> str:
    """Return a value as Python writes it, texts in double quotes."""
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    is_plain = isinstance(value, str) and value.isascii() and value.isprintable()
    return json.dumps(value) if is_plain else repr(value)


def _python_value(kind: str, name: str, text: str, declared: Option) -> Any:
    """Return the value that Python would be given: numbers as numbers, several values as a list."""
    if is_flag(kind, name):
        return True
    if declared.is_repeatable:
        return _items(text, declared)
    values = [_number_or_text(part.strip()) for part in text.split(",")]
    is_range = any(value == "..." for value in values)
    if len(values) == 1 or is_range or not takes_several(kind, name):
        return _number_or_text(text)
    return values


def _number_or_text(text: str) -> int | float | str:
    """Return the number that a text is, or the text."""
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    return float(text) if re.fullmatch(r"[0-9]{1,18}\.[0-9]{1,18}", text) else text


def check_option(kind: str, name: str, text: str, uploaded: Sequence[str] = ()) -> str:
    """Return the text of an option if it is one; it names neither a file nor more than the page computes.

    Raise PaleoError if it is not, with the label of its control.
    """
    if text in uploaded:
        return text
    label, declared = label_of(kind, name), offered_options(kind)[name]
    try:
        if len(text) > _LONGEST_TEXT:
            raise BadValue(f"the value is longer than {_LONGEST_TEXT} characters")
        if is_flag(kind, name):
            if text != "yes":
                raise BadValue(f"must be yes (got {text!r})")
            return text
        _check_names(kind, name, text)
        if type(declared.type) in (WholeNumber, TokenCount) or (type(declared.type) is BatchSize and text != FIT):
            _check_counts(_in_full(text, declared), AT_MOST.get(name, AT_MOST_ELSE))
        value_type = CommaSeparated(declared.type) if takes_several(kind, name) else declared.type
        for item in _items(text, declared):
            value_type.convert(item, None, None)
    except click.BadParameter as error:
        raise BadValue(f"“{label}”: {on_page(error.message, kind)}") from None
    except PaleoError as error:
        raise BadValue(f"“{label}”: {on_page(str(error), kind)}") from None
    return text


def _check_names(kind: str, name: str, text: str) -> None:
    """Check that a text contains names of shipped objects only, and no file names."""
    declared = offered_options(kind)[name]
    if isinstance(declared.type, KeyValues):
        _check_names_of_settings(declared.type, text)
        return
    if name in FREE_CHOICES:
        if text.strip().endswith(".toml"):
            raise BadValue(f"the page opens no file (got {text!r})")
        return
    names = shipped_names(kind, name)
    is_checked_by_type = isinstance(declared.type, click.Choice)
    if names and not is_checked_by_type and text not in names:
        raise UnknownName("value", text, names)


def _check_names_of_settings(settings: KeyValues, text: str) -> None:
    """Check that no setting names a file."""
    for key, item in settings.split(text, None).items():
        if getattr(settings.types.get(key), "files", False):
            names = [
                completion.value
                for completion in settings.types[key].shell_complete(None, None, "")
                if completion.type == "plain"
            ]
            if item not in names:
                raise UnknownName(key, item, names)


@cache
def shipped_names(kind: str, name: str) -> tuple[str, ...]:
    """Return the names that an option may have; none if it is not a name."""
    declared = offered_options(kind)[name]
    if isinstance(declared.type, click.Choice):
        return tuple(declared.type.choices)
    items = declared.type.shell_complete(None, None, "")
    return tuple(item.value for item in items if item.type == "plain")


def _in_full(text: str, declared: Option) -> str:
    """Return the text of a value, with numbers of tokens in full."""
    return spell_out_tokens(text) if isinstance(declared.type, TokenCount) else text


def _check_counts(text: str, limit: int) -> None:
    """Check the numbers of a text, or of a range."""
    if not re.search("[,:]", text):
        WholeNumber(limit).convert(text, None, None)
        return
    counts = parse_range(text, "numbers")
    if len(counts) > COUNTS_AT_MOST or max(counts) > limit:
        raise BadValue(
            f"the page takes up to {COUNTS_AT_MOST} numbers of up to {limit:,} (got {text!r}): the command line "
            "takes more"
        )


def check_amount(view: View) -> None:
    """Raise BadValue if a question compares more than the page computes."""
    combinations = max(len(view.gpu), 1)
    declared = offered_options(view.asked)
    for name, text in view.options.items():
        if text.strip() == "all":
            combinations *= max(len(shipped_names(view.asked, name)), 1)
        elif takes_several(view.asked, name) and re.search("[,:]", text):
            in_full = _in_full(text, declared[name])
            is_number = isinstance(declared[name].type, WholeNumber) and re.fullmatch(r"[\d,.:x ]+", in_full)
            combinations *= len(parse_range(in_full, "numbers")) if is_number else text.count(",") + 1
    if combinations > ANSWERS_AT_MOST:
        raise BadValue(
            f"the page compares up to {ANSWERS_AT_MOST} combinations (got {combinations:,}): give fewer values"
        )


def read_query(
    query: Mapping[str, Sequence[str]],  # values of each parameter
    # Returns the names of uploaded files that a control offers.
    own_names: Callable[[str], Sequence[str]] = lambda control: (),
) -> tuple[View, list[str]]:
    """Return the view of an address, and a message for each invalid parameter, which is left out.

    Only shipped names and those of uploaded files are accepted, so that an address cannot open files.
    """
    problems: list[str] = []

    def read(name: str, parse: Callable[[Sequence[str]], Any], default: Any) -> Any:
        if name not in query:
            return default
        try:
            return parse(query[name])
        except PaleoError as error:
            problems.append(f"In the address, {name[:40]!r}: {error}")
            return default

    kind = read("ask", lambda texts: _QUESTIONS.convert(_only_value(texts), None, None), FIRST)
    first = first_view(kind)
    options = {
        name: read(name, lambda texts, name=name: _read_option(kind, name, texts, own_names), "")  # type: ignore[misc]
        for name in query
        if name not in _OTHERS
    }
    if "network" not in query and not any(options.values()):
        options |= first.options
    view = View(
        kind,
        read("network", lambda texts: _read_network(kind, _only_value(texts), own_names("network")), first.network),
        read("gpu", lambda texts: _read_devices(texts, own_names("gpu")), first.gpu),
        options,
        read("shown", lambda texts: _read_devices([_only_value(texts)], own_names("gpu"))[0], ""),
    )
    for name, text in options.items():
        if text and not applies(view.asked, name, view.network, options):
            problems.append(f"In the address, {name!r}: “{label_of(kind, name)}” does not apply to this question")
    return view.normalized(), problems


_QUESTIONS = Names("question", ".web.wanted:WANTED")
_DEVICES = Names("device", ".questions.completion:device_ids")
_OTHERS = frozenset({"ask", "network", "gpu", "shown"})


def _only_value(texts: Sequence[str]) -> str:
    """Return the only value of a parameter."""
    if len(texts) != 1:
        raise BadValue(f"must have one value (got {len(texts)})")
    return texts[0]


def _read_option(kind: str, name: str, texts: Sequence[str], own_names: Callable[[str], Sequence[str]]) -> str:
    offered = offered_options(kind)
    if name in NOT_OFFERED and name not in offered:
        raise BadValue(f"the page has no control for it: {NOT_OFFERED[name]}")
    if name not in offered:
        raise UnknownName("control", name, [*_OTHERS, *offered])
    return check_option(kind, name, _only_value(texts), own_names(name))


def _read_network(kind: str, text: str, uploaded: Sequence[str]) -> str:
    if kind == PROFILE:
        raise BadValue("a profile is uploaded, not named")
    names = [*uploaded, *NETWORKS[WANTED[kind].networks]()]
    if text not in names:
        raise UnknownName("network", text, names)
    return text


def _read_devices(texts: Sequence[str], uploaded: Sequence[str]) -> tuple[str, ...]:
    """Return the devices of a parameter, each once."""
    names = dict.fromkeys(text for text in texts if text)
    gpus = tuple(gpu if gpu in uploaded else _DEVICES.convert(gpu, None, None) for gpu in names)
    if len(gpus) > DEVICES_AT_MOST:
        raise BadValue(f"at most {DEVICES_AT_MOST} devices can be compared (got {len(gpus)})")
    return gpus

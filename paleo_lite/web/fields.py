"""One control per option: which widget an option of a record becomes, and how its value is read and set."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import streamlit as st

from ..questions.option import Option
from ..questions.values import WholeNumber
from .show import escape_markdown
from .view import default_of, is_flag, shipped_names
from .wanted import AT_MOST, AT_MOST_ELSE, EXAMPLES, FREE_CHOICES, label_of, offered_options, takes_several
from .words import on_page

KEY = "control "
"""Prefix of the controls' keys in the session state."""

_DEFAULT = re.compile(r"\s*\[default: (.*)\]$", re.DOTALL)
_LONGEST_DEFAULT = 24
"""Longest default that a control shows; the help shows every one."""


class Field(NamedTuple):
    """What is needed to draw the control of an option."""

    widget: str  # a key of `_WIDGETS`
    label: str
    help: str
    default: str = ""  # what an empty control means; empty where only the help can say it
    choices: Sequence[str] = ()
    example: str = ""
    most: int = AT_MOST_ELSE


def field_of(kind: str, name: str, choices: Sequence[str] | None = None) -> Field:
    """Return the control of an option of a question; the choices are by default those of the option's type."""
    declared = offered_options(kind)[name]
    default = default_of(kind, name)
    names = shipped_names(kind, name) if choices is None else choices
    stated = _DEFAULT.search(declared.help)
    default_text = "" if default in (None, False, ()) else str(default)
    shown = on_page(stated[1] if stated else default_text, kind)
    help_text = on_page(declared.help, kind)
    if shown and not stated:
        help_text += f" [default: {shown}]"
    return Field(
        widget=_widget_of(kind, name, declared, names),
        label=label_of(kind, name),
        help=escape_markdown(help_text),
        default=shown if len(shown) <= _LONGEST_DEFAULT else "",
        choices=names,
        example=EXAMPLES.get(name, ""),
        most=AT_MOST.get(name, AT_MOST_ELSE),
    )


def _widget_of(kind: str, name: str, declared: Option, names: Sequence[str]) -> str:
    """Return the kind of control that fits the type of an option."""
    if is_flag(kind, name):
        return "yes or no"
    if declared.is_repeatable:
        return "lines"
    if names or declared.type.name == "choice":
        if takes_several(kind, name):
            return "several names"
        return "name or text" if name in FREE_CHOICES else "name"
    if isinstance(declared.type, WholeNumber) and not takes_several(kind, name):
        return "number"
    return "text"


def _placeholder(field: Field) -> str:
    """Return what an empty field shows: its default, or an example."""
    return f"default: {field.default}" if field.default else field.example


def _draw_flag(field: Field, key: str) -> None:
    st.checkbox(field.label, key=key, help=field.help)


def _draw_name(field: Field, key: str, *, free: bool = False) -> None:
    empty = f"default: {field.default}" if field.default else "default"
    names = list(field.choices)
    chosen = st.session_state.get(key)
    if chosen and chosen not in names:
        names.insert(0, chosen)
    st.selectbox(
        field.label,
        ["", *names],
        key=key,
        format_func=lambda name: name or empty,
        accept_new_options=free,
        help=field.help,
    )


def _draw_name_or_text(field: Field, key: str) -> None:
    _draw_name(field, key, free=True)


def _draw_names(field: Field, key: str) -> None:
    empty = f"default: {field.default}" if field.default else "default"
    st.multiselect(field.label, list(field.choices), key=key, placeholder=empty, help=field.help)


def _draw_number(field: Field, key: str) -> None:
    # An empty field means the default, which is not a number that a person has chosen.
    st.number_input(
        field.label, 1, field.most, value=None, step=1, key=key, placeholder=_placeholder(field), help=field.help
    )


def _draw_text(field: Field, key: str) -> None:
    st.text_input(field.label, key=key, placeholder=_placeholder(field), help=field.help)


def _draw_lines(field: Field, key: str) -> None:
    st.text_area(field.label, key=key, placeholder=field.example, help=f"{field.help} One per line\\.")


class _Widget(NamedTuple):
    """How a kind of control is drawn, read and set."""

    draw: Callable[[Field, str], None]
    read: Callable[[Any], str]  # from its value to the text of the option
    write: Callable[[str], Any]  # and back


def _read_text(value: Any) -> str:
    return (value or "").strip()


_WIDGETS = {
    "yes or no": _Widget(_draw_flag, lambda value: "yes" if value else "", bool),
    "name": _Widget(_draw_name, _read_text, str),
    "name or text": _Widget(_draw_name_or_text, _read_text, str),
    "several names": _Widget(_draw_names, ",".join, lambda text: text.split(",") if text else []),
    "number": _Widget(
        _draw_number, lambda value: "" if value is None else str(value), lambda text: int(text) if text else None
    ),
    "text": _Widget(_draw_text, _read_text, str),
    "lines": _Widget(_draw_lines, _read_text, str),
}


def key_of(kind: str, name: str) -> str:
    """Return the key of a control in the session state."""
    return f"{KEY}{kind} {name}"


def draw_field(kind: str, name: str, choices: Sequence[str] | None = None) -> None:
    """Draw the control of an option."""
    field = field_of(kind, name, choices)
    _WIDGETS[field.widget].draw(field, key_of(kind, name))


def read_field(kind: str, name: str) -> str:
    """Return the text of the option that its control holds; empty for the default."""
    value = st.session_state.get(key_of(kind, name))
    return "" if value is None else _WIDGETS[field_of(kind, name).widget].read(value)


def write_field(kind: str, name: str, text: str) -> None:
    """Set the control of an option; an empty text is the default."""
    st.session_state[key_of(kind, name)] = _WIDGETS[field_of(kind, name).widget].write(text)

"""Kinds of question: `QuestionKind`, the list `KINDS`, and `ask`, which answers a question of any kind."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import Any, NamedTuple, ParamSpec, TypeVar

from .option import Options, documented_spelling, options_of

P = ParamSpec("P")
Q = TypeVar("Q", bound=Options)
A = TypeVar("A")


class QuestionKind(NamedTuple):
    """One kind of question: what it asks, which options it has, and how it is answered."""

    name: str  # command, and function of the package
    record: type[Options]
    answer: Callable[[Any], Any]  # from the record to a result
    summary: str  # one line of the list of commands
    examples: tuple[str, ...]  # command lines, the simplest one first
    document: Callable[[Any, Mapping[str, Any]], Any] | None = None  # from result and output options to a document
    shown: tuple[str, ...] = ()  # options of the output: "explain", "top"
    listed: int = 10  # rows of a table that are listed without `--top`
    moved: Mapping[str, str] = {}  # old options, with the sentence that names the new ones
    default_chart: str = ""  # kind of chart; empty for the first one of the command
    chart: Callable[[Any], str] | None = None  # kind of chart of a result; empty for the default
    order: tuple[str, ...] = ()  # options of a comparison, from the one that varies slowest to the fastest
    # Files that reports may be besides pages and tables: the end of the name, with a function of question, answer and
    # path that returns the content, as ``"module:function"`` of this folder, and what it is.
    files: Mapping[str, tuple[str, str]] = {}


KINDS = {
    "predict": "predict:PREDICT",
    "train": "train:TRAIN",
    "serve": "serve:SERVE",
    "local": "local:LOCAL",
    "diffusion": "diffusion:DIFFUSION",
    "rl": "rl:RL",
}
"""Module and record of each kind of question, which are imported when it is asked."""


def find_kind(name: str) -> QuestionKind:
    """Return a kind of question."""
    module, _, record = KINDS[name].partition(":")
    kind: QuestionKind = getattr(importlib.import_module(f".{module}", __package__), record)
    return kind


def make_function(name: str, record: Callable[P, Q], answer: Callable[[Q], A]) -> Callable[P, A]:
    """Return the public function of a kind: its parameters are those of the record's constructor."""

    def ask(*arguments: P.args, **options: P.kwargs) -> A:
        _check_names(name, record, options)  # type: ignore[arg-type]  # the constructor is the class
        try:
            question = record(*arguments, **options)
        except TypeError as error:  # an argument too many or too few
            constructor = f"{record.__name__}.__init__()"
            raise TypeError(str(error).replace(constructor, f"{name}()")) from None
        return answer(question)

    ask.__name__ = ask.__qualname__ = name
    ask.__module__ = "paleo_lite"
    ask.__doc__ = describe(record)  # type: ignore[arg-type]  # the constructor is the class
    returned = inspect.signature(answer).return_annotation
    ask.__signature__ = inspect.signature(record).replace(return_annotation=returned)  # type: ignore[attr-defined]
    return ask


def _check_names(function: str, record: type[Options], arguments: Collection[str]) -> None:
    """Raise TypeError for a name that no option has, with the option that is meant: one of that spelling, or close."""
    names = [field.name for field in fields(record)]  # type: ignore[arg-type]  # every record is a dataclass
    for unknown in arguments:
        if unknown in names:
            continue
        from difflib import get_close_matches

        from .upgrade import find_moved

        spelling = "--" + unknown.replace("_", "-")
        same = [name for name, declared in options_of(record).items() if spelling in declared.spellings]
        near = same or get_close_matches(unknown, names, n=1)
        meant = f": did you mean {near[0]}?" if near else ""
        moved = find_moved(function, spelling, is_question=function in KINDS)
        if moved is not None and not same:
            meant = f": {moved}"
        raise TypeError(f"{function}() got an unexpected keyword argument {unknown!r}{meant}")


def describe(record: type[Options]) -> str:
    """Return the documentation of a kind's function: that of its record, and a line per option."""
    lines = [inspect.getdoc(record) or "", "", "Parameters", "----------"]
    declared = options_of(record)
    for field in fields(record):  # type: ignore[arg-type]  # every record is a dataclass
        if field.name == "network":
            lines += ["network", "    The network, or a list of networks that are compared."]
        elif field.name not in declared:  # an argument
            lines += [f"{field.name} : {field.type}", f"    {field.metadata['help']}"]
        else:
            text = declared[field.name].help
            option_name = documented_spelling(field.name, declared[field.name])
            lines += [f"{field.name} : {field.type}", f"    {text} (`{option_name}`)"]
    return "\n".join([*lines, "", "Raises", "------", "PaleoError", "    For an unknown name or an invalid value."])

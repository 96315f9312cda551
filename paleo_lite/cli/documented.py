"""Options whose help is what the function of the same name says of the argument in its documentation: said once."""

from __future__ import annotations

import inspect
import re
from typing import Any

import click


class Documented(click.Option):
    """An option of an argument of the Python face.

    Parameters
    ----------
    of : str
        The function of `paleo_lite` whose argument has the option's name. Its text is read when help is asked for.
    """

    def __init__(self, *words: Any, of: str, **settings: Any) -> None:
        super().__init__(*words, **settings)
        self.of = of

    @property
    def help(self) -> str | None:
        """Help of its own, where it has some; else what the function says."""
        return self._own_help or _meaning(self.of, self.name or "")

    @help.setter
    def help(self, text: str | None) -> None:
        self._own_help = text


def _meaning(function: str, argument: str) -> str:
    """What the documentation of a function says of one argument, in the words of a terminal."""
    import paleo_lite

    text = inspect.getdoc(paleo_lite.__getattr__(function))
    if text is None:  # Python runs without any: -OO
        return ""
    entry = re.search(rf"^{argument} : .*\n((?: +.*\n)+)", text, re.MULTILINE)
    assert entry is not None, f"the documentation of paleo_lite.{function} says nothing of {argument}"
    plain = re.sub(r'``"?(.*?)"?``', _as_typed, " ".join(entry[1].split()))
    return re.sub(r"`(\w+)`", lambda name: f"--{name[1].replace('_', '-')}", plain)


def _as_typed(value: re.Match[str]) -> str:
    """A value as a shell wants it."""
    return f"'{value[1]}'" if " " in value[1] else value[1]

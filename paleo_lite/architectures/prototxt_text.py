"""The text format of protocol buffers, as far as Caffe's network files use it: fields, messages, lists, scalars.

A parser of its own: the protobuf library needs Caffe's schema (a thousand lines, another one in every fork) to read a
file, and this grammar has a dozen productions. What a file says is data: nothing is looked up or evaluated, depth and
size are bounded, and errors name the line. https://protobuf.dev/reference/protobuf/textformat-spec/
"""

from __future__ import annotations

import re
from typing import Any

from ..errors import BadDescriptor

Scalar = int | float | bool | str
Message = dict[str, list[Any]]
"""Field to all its values in order: scalars and messages."""

_DEPTH_AT_MOST = 32
_VALUES_AT_MOST = 2_000_000
_TOKEN = re.compile(
    r"""(?P<skip>[\s,;]+|\#[^\n]*)
      | (?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<word>[A-Za-z_][\w./-]*)
      | (?P<number>-?\s*(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[fF]?|inf(?:inity)?\b|nan\b))
      | (?P<mark>[{}<>\[\]:])""",
    re.VERBOSE,
)
_CLOSE = {"{": "}", "<": ">"}
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}
_WORDS: dict[str, Scalar] = {"true": True, "false": False}


def parse_text(data: bytes, where: str) -> Message:
    """The message that a file holds.

    Parameters
    ----------
    where : str
        The file, for messages.

    Raises
    ------
    BadDescriptor
        If it is not such a text: the message says in which line.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadDescriptor(f"{where}: is not text ({error.reason} at byte {error.start})") from None
    return _Parser(text, where).message("", 0)


class _Parser:
    """Takes token after token."""

    def __init__(self, text: str, where: str) -> None:
        self.text, self.where = text, where
        self.position, self.values = 0, 0
        self.kind, self.token = "", ""
        self.advance()

    def fail(self, problem: str) -> BadDescriptor:
        line = self.text.count("\n", 0, max(self.position - len(self.token), 0)) + 1
        return BadDescriptor(f"{self.where}: line {line}: {problem}")

    def advance(self) -> None:
        while True:
            if self.position >= len(self.text):
                self.kind = self.token = ""
                return
            match = _TOKEN.match(self.text, self.position)
            if match is None:
                self.token = ""
                raise self.fail(f"unexpected {self.text[self.position : self.position + 20]!r}")
            self.position = match.end()
            self.kind, self.token = match.lastgroup or "", match.group()
            if self.kind != "skip":
                return

    def take(self) -> str:
        token = self.token
        self.advance()
        return token

    def message(self, close: str, depth: int) -> Message:
        """Fields up to the closing bracket, or the end of the file."""
        if depth > _DEPTH_AT_MOST:
            raise self.fail(f"messages nested more than {_DEPTH_AT_MOST} deep")
        fields: Message = {}
        while self.token != close or self.kind not in ("mark", ""):
            if self.kind != "word":
                missing = (
                    f"{close!r} is missing" if not self.token else f"expected the name of a field, not {self.token!r}"
                )
                raise self.fail(missing)
            name = self.take()
            colon = self.token == ":" and self.kind == "mark"
            if colon:
                self.advance()
            values = fields.setdefault(name, [])
            if self.kind == "mark" and self.token == "[":
                self.advance()
                while not (self.kind == "mark" and self.token == "]"):
                    values.append(self.value(depth))
                self.advance()
            elif not colon and not (self.kind == "mark" and self.token in _CLOSE):
                raise self.fail(f"expected ':' or a message after {name!r}, not {self.token!r}")
            else:
                values.append(self.value(depth))
        if close:
            self.advance()
        return fields

    def value(self, depth: int) -> Any:
        self.values += 1
        if self.values > _VALUES_AT_MOST:
            raise self.fail(f"more than {_VALUES_AT_MOST} values")
        kind = self.kind
        if kind == "mark" and self.token in _CLOSE:
            close = _CLOSE[self.take()]
            return self.message(close, depth + 1)
        if kind == "text":
            parts = []
            while self.kind == "text":  # texts side by side are one
                parts.append(_ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), self.take()[1:-1]))
            return "".join(parts)
        if kind == "number":
            return _number(self.take().replace(" ", ""))
        if kind == "word":
            word = self.take()
            return _WORDS.get(word, word)
        raise self.fail(
            f"expected a value, not {self.token!r}" if self.token else "the file ends where a value should be"
        )


def _number(token: str) -> int | float:
    if token.lower().lstrip("-").startswith("0x"):
        return int(token, 16)
    try:
        return int(token[:400])
    except ValueError:
        return float(token.rstrip("fF")) if token.lower().lstrip("-")[:3] != "inf" else float(token)


__all__ = ["Message", "Scalar", "parse_text"]

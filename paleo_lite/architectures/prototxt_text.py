"""Parser of the protocol buffer text format, as far as Caffe's network files use it.

The protobuf library would need Caffe's schema (a thousand lines, different in every fork), whereas this grammar has a
dozen productions: fields, messages, lists and scalars. Nothing is evaluated, depth and size are bounded, and errors
name the line. https://protobuf.dev/reference/protobuf/textformat-spec/
"""

from __future__ import annotations

import re
from typing import Any

from ..errors import BadDescriptor

Scalar = int | float | bool | str
Message = dict[str, list[Any]]
"""All values of each field in order: scalars and messages."""

_MAX_DEPTH = 32
_MAX_VALUES = 2_000_000
_TOKEN = re.compile(
    r"""(?P<skip>[\s,;]+|\#[^\n]*)
      | (?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<word>[A-Za-z_][\w./-]*)
      | (?P<number>-?\s*(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[fF]?|inf(?:inity)?\b|nan\b))
      | (?P<mark>[{}<>\[\]:])""",
    re.VERBOSE,
)
_CLOSING_BRACKETS = {"{": "}", "<": ">"}
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_CONTROL_CHARACTERS = {"n": "\n", "t": "\t", "r": "\r"}
_BOOLEANS: dict[str, Scalar] = {"true": True, "false": False}


def parse_text(
    data: bytes,  # contents of the file
    where: str,  # path of the file, for error messages
) -> Message:
    """Parse a file in text format.

    Raise BadDescriptor if the text is malformed; the message names the line.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadDescriptor(f"{where}: is not text ({error.reason} at byte {error.start})") from None
    return _PrototxtParser(text, where).message("", 0)


def _unescape(match: re.Match[str]) -> str:
    return _CONTROL_CHARACTERS.get(match[1], match[1])


class _PrototxtParser:
    """Recursive-descent parser with one token of lookahead."""

    def __init__(self, text: str, where: str) -> None:
        self.text = text
        self.where = where
        self.position = 0
        self.value_count = 0
        self.kind = ""
        self.token = ""
        self.advance()

    def fail(self, problem: str) -> BadDescriptor:
        """Return the error for a problem at the current token."""
        line = self.text.count("\n", 0, max(self.position - len(self.token), 0)) + 1
        return BadDescriptor(f"{self.where}: line {line}: {problem}")

    def advance(self) -> None:
        """Read the next token; its kind is empty at the end of the file."""
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
        """Return the current token and advance."""
        token = self.token
        self.advance()
        return token

    def message(self, close: str, depth: int) -> Message:
        """Parse fields up to the closing bracket, or up to the end of the file if `close` is empty."""
        if depth > _MAX_DEPTH:
            raise self.fail(f"messages nested more than {_MAX_DEPTH} deep")
        fields: Message = {}
        while self.token != close or self.kind not in ("mark", ""):
            if self.kind != "word":
                if not self.token:
                    raise self.fail(f"{close!r} is missing")
                raise self.fail(f"expected the name of a field (got {self.token!r})")
            name = self.take()
            has_colon = self.token == ":" and self.kind == "mark"
            if has_colon:
                self.advance()
            values = fields.setdefault(name, [])
            if self.kind == "mark" and self.token == "[":
                self.advance()
                while not (self.kind == "mark" and self.token == "]"):
                    values.append(self.value(depth))
                self.advance()
            elif not has_colon and not (self.kind == "mark" and self.token in _CLOSING_BRACKETS):
                raise self.fail(f"expected ':' or a message after {name!r} (got {self.token!r})")
            else:
                values.append(self.value(depth))
        if close:
            self.advance()
        return fields

    def value(self, depth: int) -> Any:
        """Parse a scalar or a message."""
        self.value_count += 1
        if self.value_count > _MAX_VALUES:
            raise self.fail(f"more than {_MAX_VALUES} values")
        kind = self.kind
        if kind == "mark" and self.token in _CLOSING_BRACKETS:
            close = _CLOSING_BRACKETS[self.take()]
            return self.message(close, depth + 1)
        if kind == "text":
            parts = []
            while self.kind == "text":  # adjacent strings are concatenated
                parts.append(_ESCAPE.sub(_unescape, self.take()[1:-1]))
            return "".join(parts)
        if kind == "number":
            return _number(self.take().replace(" ", ""))
        if kind == "word":
            word = self.take()
            return _BOOLEANS.get(word, word)
        if not self.token:
            raise self.fail("the file ends where a value is expected")
        raise self.fail(f"expected a value (got {self.token!r})")


def _number(token: str) -> int | float:
    if token.lower().lstrip("-").startswith("0x"):
        return int(token, 16)
    try:
        return int(token[:400])
    except ValueError:
        is_infinity = token.lower().lstrip("-").startswith("inf")
        return float(token) if is_infinity else float(token.rstrip("fF"))


__all__ = ["Message", "Scalar", "parse_text"]

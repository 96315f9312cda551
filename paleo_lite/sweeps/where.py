"""Conditions on rows: ``time_s < 0.1 and (gpu == k80 or cost <= 2)``, parsed here and never evaluated as code."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

from ..errors import BadValue, UnknownName

FORM = "column op value with and, or, and parentheses, such as 'time_s < 0.1 and gpu == k80'"
_LENGTH_AT_MOST = 10_000
_TOKEN = re.compile(r"""\s*(?:(<=|>=|==|!=|<|>|=|\(|\))|"([^"]*)"|'([^']*)'|([^\s<>=!()"']+))""")
_COMPARE = {"<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal", "==": "equal", "!=": "not_equal"}


class Condition(NamedTuple):
    """A comparison of a column with a value or, without one, with what is absent; or conditions that are joined.

    `function` is pyarrow's that does it.
    """

    function: str
    column: str = ""
    value: str | float | None = None
    parts: tuple[Condition, ...] = ()

    def mask(self, rows: Any) -> Any:
        """Of a pyarrow table or batch a boolean array, null where a value is absent."""
        import pyarrow as pa
        import pyarrow.compute as pc

        function = getattr(pc, self.function)
        if self.parts:
            return reduce(function, (part.mask(rows) for part in self.parts))
        values = rows.column(self.column)
        if self.value is None:
            return function(values)
        if isinstance(self.value, str) and pa.types.is_dictionary(values.type):
            values = values.cast(pa.string())
        return function(values, pa.scalar(self.value))


def parse_where(text: str, columns: dict[str, bool]) -> Condition:
    """Read a condition.

    Parameters
    ----------
    text : str
        Comparisons of a column with a number or a word; ``null`` is what is absent.
    columns : dict of str to bool
        Every column, and whether it holds numbers.

    Raises
    ------
    BadValue
        If the text has another form, or compares words with numbers.
    """
    if len(text) > _LENGTH_AT_MOST:
        raise BadValue(f"the condition is longer than {_LENGTH_AT_MOST} characters")
    parser = _Parser(_tokens(text), columns, text)
    condition = parser.alternatives(0)
    if parser.rest:
        raise parser.wrong(f"{parser.rest[0][1]!r} is unexpected")
    return condition


def column_of(name: str, columns: Sequence[str]) -> str:
    """A column by its name, or by its name without the unit: ``energy`` is ``energy_j``.

    Raises
    ------
    UnknownName
        If there is none, or more than one.
    """
    if name in columns:
        return name
    matches = [column for column in columns if re.fullmatch(rf"{re.escape(name)}(_s|_j|_per_s|_bytes)", column)]
    if len(matches) != 1:
        raise UnknownName("column", name, columns)
    return matches[0]


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, place = [], 0
    text = text.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise BadValue(f"the condition {text!r} cannot be read at {text[place:]!r}: expected {FORM}")
        sign, double, single, word = match.groups()
        quoted = double if double is not None else single
        tokens.append(("sign", sign) if sign else ("text", quoted) if quoted is not None else ("word", word))
        place = match.end()
    return tokens


class _Parser:
    """Recursive descent: alternatives of conjunctions of comparisons."""

    def __init__(self, tokens: list[tuple[str, str]], columns: dict[str, bool], text: str) -> None:
        self.rest, self.columns, self.text = tokens, columns, text

    def wrong(self, what: str) -> BadValue:
        """That the text has another form."""
        return BadValue(f"the condition {self.text!r} cannot be read, {what}: expected {FORM}")

    def next(self) -> tuple[str, str]:
        """The next token."""
        if not self.rest:
            raise self.wrong("it ends too early")
        return self.rest.pop(0)

    def _follows(self, word: str) -> bool:
        if self.rest and self.rest[0][0] == "word" and self.rest[0][1].lower() == word:
            self.rest.pop(0)
            return True
        return False

    def alternatives(self, depth: int) -> Condition:
        """``a or b or ...``"""
        return self._joined(lambda: self._joined(lambda: self._factor(depth), "and", "and_kleene"), "or", "or_kleene")

    def _joined(self, part: Callable[[], Condition], word: str, function: str) -> Condition:
        parts = [part()]
        while self._follows(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else Condition(function, parts=tuple(parts))

    def _factor(self, depth: int) -> Condition:
        kind, name = self.next()
        if (kind, name) == ("sign", "("):
            if depth > 50:
                raise self.wrong("its parentheses are nested too deeply")
            inner = self.alternatives(depth + 1)
            if self.next() != ("sign", ")"):
                raise self.wrong("a parenthesis is not closed")
            return inner
        if kind != "word":
            raise self.wrong(f"{name!r} stands where a column was expected")
        column = column_of(name, list(self.columns))
        kind, sign = self.next()
        sign = "==" if sign == "=" else sign
        if kind != "sign" or sign not in _COMPARE:
            raise self.wrong(f"{sign!r} stands where one of < <= > >= == != was expected")
        kind, value = self.next()
        if kind == "sign":
            raise self.wrong(f"{value!r} stands where a value was expected")
        return self._comparison(column, sign, value, kind == "word")

    def _comparison(self, column: str, sign: str, value: str, bare: bool) -> Condition:
        if bare and value.lower() == "null":
            if sign not in ("==", "!="):
                raise self.wrong("null can only be compared by == or !=")
            return Condition("is_null" if sign == "==" else "is_valid", column)
        if not self.columns[column]:
            if sign not in ("==", "!="):
                raise BadValue(f"{column} holds words, which can only be compared by == or !=, not by {sign}")
            return Condition(_COMPARE[sign], column, value)
        try:
            return Condition(_COMPARE[sign], column, float(value))
        except ValueError:
            raise BadValue(f"{column} holds numbers, and {value!r} is not one") from None

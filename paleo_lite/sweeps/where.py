"""Conditions on rows: ``time_s < 0.1 and (gpu == k80 or cost <= 2)``, parsed here and never evaluated as code."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import BadValue, UnknownName

FORM = "column op value with and, or, and parentheses, such as 'time_s < 0.1 and gpu == k80'"
_LENGTH_AT_MOST = 10_000
_TOKEN = re.compile(r"""\s*(?:(<=|>=|==|!=|<|>|=|\(|\))|"([^"]*)"|'([^']*)'|([^\s<>=!()"']+))""")
_COMPARE = {"<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal", "==": "equal", "!=": "not_equal"}

Mask = Callable[[Any], Any]
"""From a pyarrow table or batch to a boolean array, null where a value is absent."""


def parse_where(text: str, columns: dict[str, bool]) -> tuple[Mask, set[str]]:
    """Read a condition.

    Parameters
    ----------
    text : str
        Comparisons of a column with a number or a word; ``null`` is what is absent.
    columns : dict of str to bool
        Every column, and whether it holds numbers.

    Returns
    -------
    callable
        The mask of a batch.
    set of str
        The columns that it looks at.

    Raises
    ------
    BadValue
        If the text has another form, or compares words with numbers.
    """
    if len(text) > _LENGTH_AT_MOST:
        raise BadValue(f"the condition is longer than {_LENGTH_AT_MOST} characters")
    parser = _Parser(_tokens(text), columns, text)
    mask = parser.alternatives(0)
    if parser.rest:
        raise parser.wrong(f"{parser.rest[0][1]!r} is unexpected")
    return mask, parser.used


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
        self.used: set[str] = set()

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

    def alternatives(self, depth: int) -> Mask:
        """``a or b or ...``"""
        return self._joined(lambda: self._joined(lambda: self._factor(depth), "and", "and_kleene"), "or", "or_kleene")

    def _joined(self, part: Callable[[], Mask], word: str, function: str) -> Mask:
        parts = [part()]
        while self._follows(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else _combined(parts, function)

    def _factor(self, depth: int) -> Mask:
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
        self.used.add(column)
        kind, sign = self.next()
        sign = "==" if sign == "=" else sign
        if kind != "sign" or sign not in _COMPARE:
            raise self.wrong(f"{sign!r} stands where one of < <= > >= == != was expected")
        kind, value = self.next()
        if kind == "sign":
            raise self.wrong(f"{value!r} stands where a value was expected")
        return self._comparison(column, sign, value, kind == "word")

    def _comparison(self, column: str, sign: str, value: str, bare: bool) -> Mask:
        if bare and value.lower() == "null":
            if sign not in ("==", "!="):
                raise self.wrong("null can only be compared by == or !=")
            return _absent(column, sign == "==")
        if not self.columns[column]:
            if sign not in ("==", "!="):
                raise BadValue(f"{column} holds words, which can only be compared by == or !=, not by {sign}")
            return _compared(column, sign, value)
        try:
            number = float(value)
        except ValueError:
            raise BadValue(f"{column} holds numbers, and {value!r} is not one") from None
        return _compared(column, sign, number)


def _combined(parts: list[Mask], function: str) -> Mask:
    def mask(batch: Any) -> Any:
        import pyarrow.compute as pc

        result = parts[0](batch)
        for part in parts[1:]:
            result = getattr(pc, function)(result, part(batch))
        return result

    return mask


def _absent(column: str, wanted: bool) -> Mask:
    def mask(batch: Any) -> Any:
        import pyarrow.compute as pc

        return pc.is_null(batch.column(column)) if wanted else pc.is_valid(batch.column(column))

    return mask


def _compared(column: str, sign: str, value: str | float) -> Mask:
    def mask(batch: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        values = batch.column(column)
        if isinstance(value, str) and pa.types.is_dictionary(values.type):
            values = values.cast(pa.string())
        return getattr(pc, _COMPARE[sign])(values, pa.scalar(value))

    return mask

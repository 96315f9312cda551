"""Parser of conditions on rows: ``time_s < 0.1 and (gpu == k80 or cost <= 2)``. They are never evaluated as code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import reduce
from typing import Any, NamedTuple

from ..errors import BadQuantity, BadValue, UnknownName
from ..units import SECONDS_PER_HOUR, parse_duration, parse_quantity
from .words import WORDS, kind_of_rows

FORM = "comparisons joined by and, or and parentheses, such as 'time_s < 0.1 and gpu == k80'"
_MAX_LENGTH = 10_000
_TOKEN = re.compile(r"""\s*(?:(<=|>=|==|!=|<|>|=|\(|\))|"([^"]*)"|'([^']*)'|([^\s<>=!()"']+))""")
_COMPARE = {"<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal", "==": "equal", "!=": "not_equal"}

_UNITS = {
    "per_s": "", "s": "s", "hours": "h", "bytes": "B", "usd": "USD", "usd_per_h": "USD/h", "w": "W", "watts": "W",
    "hz": "Hz", "flops": "FLOP", "per_million": "",
}  # fmt: skip
"""Unit of the columns whose names end so, the longer ends first."""

_UNIT_EXAMPLES = {
    "s": "10ms", "h": "3d", "B": "24GB", "USD": "$100", "USD/h": "'2 USD/h'", "W": "300W", "Hz": "1.2GHz",
    "FLOP": "1GFLOP", "": "1.5k",
}  # fmt: skip


class Condition(NamedTuple):
    """A comparison, a test for null, or a combination of conditions."""

    function: str  # name of the pyarrow function
    column: str = ""  # column of a comparison or test
    value: str | float | None = None  # value of a comparison; None for a test for null
    parts: tuple[Condition, ...] = ()  # conditions to combine

    @property
    def columns(self) -> list[str]:
        """Columns that are compared, as often as they are."""
        return [name for part in self.parts for name in part.columns] if self.parts else [self.column]

    def mask(self, rows: Any) -> Any:
        """Return a boolean array for a pyarrow table or batch, null where a value is absent."""
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
    """Parse a condition: comparisons of a column with a number or a string; ``null`` stands for an absent value.

    `columns` says of all columns whether each has numbers. Raise BadValue if the text has another form, or compares
    strings with numbers.
    """
    if len(text) > _MAX_LENGTH:
        raise BadValue(f"`--where` must have at most {_MAX_LENGTH} characters (got {len(text)})")
    parser = _ConditionParser(_tokenize(text), columns, text)
    condition = parser.parse_alternatives(0)
    if parser.rest:
        raise parser.error(f"{parser.rest[0][1]!r} is unexpected")
    return condition


def find_column(name: str, columns: Mapping[str, bool]) -> str:
    """Return a column by its name, by its name without the unit, or by a word of `WORDS`: ``cost`` for ``cost_usd``.

    `columns` says of all columns whether each has numbers. Raise UnknownName if no column, or more than one, matches,
    and BadValue for a word of rows of other kinds.
    """
    if name in columns:
        return name
    kind = kind_of_rows(columns)
    meant = [column for column in kind.words.get(name, ()) if column in columns]
    if meant:
        return meant[0]
    matches = [column for column in columns if re.fullmatch(rf"{re.escape(name)}(_s|_usd|_per_s|_bytes)", column)]
    if len(matches) == 1:
        return matches[0]
    if name in WORDS:
        reason = f" ({kind.reasons[name]})" if name in kind.reasons else ""
        raise BadValue(f"{kind.rows} have no {name}{reason}: choose from {', '.join(kind.words)}, or name a column")
    similar = [column for column in columns if name and name in column and not column.endswith(("_low", "_high"))]
    if len(similar) > 1:
        raise BadValue(f"no column is called {name!r}: did you mean {' or '.join(similar[:4])}?")
    error = UnknownName("column", name, columns)
    if error.near:
        raise error
    raise UnknownName("column", name, columns, hint=f"Columns of numbers: {', '.join(columns_of_numbers(columns))}.")


def columns_of_numbers(columns: Mapping[str, bool]) -> list[str]:
    """Return the names of the columns that have numbers, without the ends of intervals."""
    return [name for name, has_numbers in columns.items() if has_numbers and not name.endswith(("_low", "_high"))]


def _tokenize(text: str) -> list[tuple[str, str]]:
    """Return (kind, text) of each token; the kind is ``sign``, ``text`` (quoted) or ``word``."""
    tokens, position = [], 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise BadValue(f"condition {text!r} has a syntax error at {text[position:]!r}: expected {FORM}")
        sign, double_quoted, single_quoted, word = match.groups()
        if sign:
            tokens.append(("sign", sign))
        elif double_quoted is not None:
            tokens.append(("text", double_quoted))
        elif single_quoted is not None:
            tokens.append(("text", single_quoted))
        else:
            tokens.append(("word", word))
        position = match.end()
    return tokens


class _ConditionParser:
    """Recursive descent parser: alternatives of conjunctions of comparisons."""

    def __init__(self, tokens: list[tuple[str, str]], columns: dict[str, bool], text: str) -> None:
        self.rest, self.columns, self.text = tokens, columns, text

    def error(self, problem: str) -> BadValue:
        """Return the exception for a syntax error."""
        return BadValue(f"condition {self.text!r} has a syntax error: {problem}; expected {FORM}")

    def next_token(self) -> tuple[str, str]:
        """Remove and return the next token."""
        if not self.rest:
            raise self.error("it ends too early")
        return self.rest.pop(0)

    def _skip_word(self, word: str) -> bool:
        """Skip the next token if it is this word; return whether it is."""
        if self.rest and self.rest[0][0] == "word" and self.rest[0][1].lower() == word:
            self.rest.pop(0)
            return True
        return False

    def parse_alternatives(self, depth: int) -> Condition:
        """Parse ``a or b or ...``; `depth` is the number of open parentheses."""
        parts = [self._parse_conjunction(depth)]
        while self._skip_word("or"):
            parts.append(self._parse_conjunction(depth))
        return parts[0] if len(parts) == 1 else Condition("or_kleene", parts=tuple(parts))

    def _parse_conjunction(self, depth: int) -> Condition:
        """Parse ``a and b and ...``."""
        parts = [self._parse_factor(depth)]
        while self._skip_word("and"):
            parts.append(self._parse_factor(depth))
        return parts[0] if len(parts) == 1 else Condition("and_kleene", parts=tuple(parts))

    def _parse_factor(self, depth: int) -> Condition:
        """Parse a comparison, or alternatives in parentheses."""
        kind, name = self.next_token()
        if (kind, name) == ("sign", "("):
            if depth > 50:
                raise self.error("its parentheses are nested too deeply")
            inner = self.parse_alternatives(depth + 1)
            if self.next_token() != ("sign", ")"):
                raise self.error("a parenthesis is not closed")
            return inner
        if kind != "word":
            raise self.error(f"a column is missing before {name!r}")
        column = find_column(name, self.columns)
        kind, sign = self.next_token()
        sign = "==" if sign == "=" else sign
        if kind != "sign" or sign not in _COMPARE:
            raise self.error(f"{sign!r} must be one of < <= > >= == !=")
        kind, value = self.next_token()
        if kind == "sign":
            raise self.error(f"a value is missing before {value!r}")
        return self._make_comparison(column, sign, value, is_quoted=kind == "text")

    def _make_comparison(self, column: str, sign: str, value: str, is_quoted: bool) -> Condition:
        is_equality = sign in ("==", "!=")
        if not is_quoted and value.lower() == "null":
            if not is_equality:
                raise self.error("null can be compared by == or != only")
            return Condition("is_null" if sign == "==" else "is_valid", column)
        if not self.columns[column]:
            if not is_equality:
                raise BadValue(f"{column} has strings, which can be compared by == or != only (got {sign})")
            return Condition(_COMPARE[sign], column, value)
        # The unit may stand apart from its number, as in 10 ms.
        if not is_quoted and self.rest and _is_unit(*self.rest[0]):
            value = f"{value} {self.next_token()[1]}"
        return Condition(_COMPARE[sign], column, _number_in_unit(column, value))


def _is_unit(kind: str, word: str) -> bool:
    """Return whether a token after a number is its unit."""
    return kind == "word" and not word[0].isdecimal() and word.lower() not in ("and", "or")


def _number_in_unit(column: str, text: str) -> float:
    """Return the number of a text in the unit of a column, which the end of the column's name says."""
    try:
        return float(text)
    except ValueError:
        pass
    unit = next((unit for ending, unit in _UNITS.items() if re.search(rf"(^|_){ending}(_low|_high)?$", column)), None)
    if unit is None:
        raise BadValue(f"{column} must be compared with a number (got {text!r})")
    try:
        if unit in ("s", "h"):
            seconds = parse_duration(text)
            return seconds / SECONDS_PER_HOUR if unit == "h" else seconds
        return parse_quantity(text.removeprefix("$").removesuffix("$"), unit)
    except BadQuantity:
        example = _UNIT_EXAMPLES[unit]
        raise BadValue(
            f"{column} must be compared with a number or a quantity such as {example} (got {text!r})"
        ) from None

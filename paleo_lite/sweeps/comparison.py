"""`Comparison`: answers of any kind side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from ..extras import require
from ..result import Result
from .questions import OPTION_COLUMNS


class Comparison(Result, msgspec.Struct, frozen=True, eq=False):
    """Answers to all combinations of the values of a question, a row each."""

    kind: str  # kind of question: "serve"
    compared: tuple[str, ...]  # options that have several values
    rows: list[dict[str, Any]]  # the compared options and what `rows.answer_row` says of the answer
    answers: Sequence[Any]  # of the combinations that have one
    settings: Sequence[dict[str, Any]]  # compared options of each answer; a table of several numbers has more rows
    left_out: tuple[str, ...] = ()  # combinations without an answer, with the reasons
    samples: float | None = None  # number that hours, cost and energy refer to; None if each row has its own

    _page: ClassVar[str] = "paleo_lite.reporting.sweep:comparison_page"

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON: the rows, the answers that they come from, and the left-out combinations."""
        return {
            "rows": self.rows,
            "answers": [answer.to_dict() for answer in self.answers],
            "left_out": list(self.left_out),
        }

    def to_frame(self) -> Any:
        """Return the rows as a pandas DataFrame."""
        pandas = require("pandas", "a data frame", "profiles")
        return pandas.DataFrame(self.rows)

    def labels(self) -> list[str]:
        """Return what tells each answer apart from the others, as text: ``l40s, rate 4``."""
        return [", ".join(_label(row, name) for name in self.compared) for row in self.rows]

    def __len__(self) -> int:
        return len(self.answers)


_SPEAKING = ("network", "gpu", "platform", "engine", "precision")
"""Options whose values need no name beside them."""


def _label(row: dict[str, Any], name: str) -> str:
    """Return the value of a compared option in a row, with the name of the option where it needs it."""
    column = OPTION_COLUMNS[name][0] if name in OPTION_COLUMNS else name
    value = row.get(column)
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if name in _SPEAKING else f"{name.replace('_', ' ')} {text}"

"""`Comparison`: answers of any kind side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from ..extras import require
from ..result import Result


class Comparison(Result, msgspec.Struct, frozen=True, eq=False):
    """Answers to all combinations of the values of a question, a row each."""

    kind: str  # kind of question: "serve"
    compared: tuple[str, ...]  # options that have several values
    rows: list[dict[str, Any]]  # the compared options and what `rows.answer_row` says of the answer
    answers: Sequence[Any]  # of the combinations that have one
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

    def __len__(self) -> int:
        return len(self.answers)

"""Answers that a rebuilding must not change: words of the command line, with the numbers or the sentence they gave.

``python tests/test_golden.py`` writes the answers anew, after a change that is meant to change them; the
difference of `answers.json` then shows what changed. Numbers that differ as processors round stay as they are.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paleo_lite.cli import main

FILE = Path(__file__).parent / "golden" / "answers.json"
STORED: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
TESTED = 247
"""Questions that `make test` asks, the first ones: they are in the order of the branches of the package that each adds
to those before it, per second, and these run all but a thousandth of the branches that all questions run. A question
that runs further ones belongs to the front."""

ROUNDING = 1e-9
"""Relative difference of numbers that are the same."""

SMALLEST = 1e-9
"""Number below which what differs may be rounding; no shorter time is predicted."""

pytestmark = pytest.mark.slow


def ask(words: str) -> Any:
    """Return the numbers of an answer, or the sentence of a refusal; paths begin at the root of the repository."""
    with chdir(FILE.parents[2]):
        said = CliRunner().invoke(main, [*shlex.split(words), "--format", "json"])
    if said.exit_code:
        return said.stderr.strip().splitlines()[-1]
    answer = json.loads(said.stdout)
    return {**numbers_of(answer), **sums_of(answer), "notes": answer.get("notes", []), **notes_of_rows(answer)}


def notes_of_rows(answer: dict[str, Any]) -> dict[str, list[str]]:
    """Return the notes of the rows of a table, which are about single numbers of devices."""
    notes = [note for row in answer.get("rows") or () for note in row.get("notes") or ()]
    return {"notes of rows": notes} if notes else {}


def sums_of(answer: dict[str, Any]) -> dict[str, float]:
    """Return a sum over all numbers of each part of an answer, which a change of any of them changes.

    It is one of logarithms, so that seconds weigh as much as bytes, and rounding weighs nothing.
    """
    parts = {name: list(numbers_in(part)) for name, part in answer.items() if isinstance(part, (dict, list))}
    return {
        f"all {name}": math.fsum(math.copysign(math.log1p(abs(number) / SMALLEST), number) for number in numbers)
        for name, numbers in parts.items()
        if numbers
    }


def numbers_in(part: Any) -> Iterator[float]:
    """Yield all numbers of a part of an answer."""
    if isinstance(part, (int, float)):
        yield part
    elif isinstance(part, (dict, list)):
        for value in part.values() if isinstance(part, dict) else part:
            yield from numbers_in(value)


def numbers_of(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers and names of an answer, of the first row of a table and of the medians of a server."""
    found = {
        name: value for name, value in answer.items() if isinstance(value, (str, int, float)) and name != "version"
    }
    parts = {
        "row": next(iter(answer.get("rows") or ()), {}),
        "figure": {name: figure["value"] for name, figure in (answer.get("figures") or {}).items()},
        "latency": {name: figures["p50"]["value"] for name, figures in (answer.get("latencies") or {}).items()},
    }
    for part, values in parts.items():
        for name, value in values.items():
            if isinstance(value, (int, float)):
                found[f"{part} {name}"] = value
    return found


def is_same(found: Any, stored: Any) -> bool:
    """Return whether two values are the same, numbers up to rounding."""
    if isinstance(found, float) and isinstance(stored, float):
        return math.isclose(found, stored, rel_tol=ROUNDING)
    return bool(found == stored)


def ask_anew(words: str) -> Any:
    """Return an answer with the stored values where they are the same."""
    found, stored = ask(words), STORED[words]
    if isinstance(found, str) or isinstance(stored, str):
        return found
    return {name: stored[name] if is_same(value, stored.get(name)) else value for name, value in found.items()}


@pytest.mark.parametrize(
    "words",
    [pytest.param(words, marks=() if place < TESTED else pytest.mark.thorough) for place, words in enumerate(STORED)],
)
def test_the_answer_is_as_it_was(words: str) -> None:
    expected, found = STORED[words], ask(words)
    if isinstance(expected, str):
        assert found == expected
        return
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert is_same(found[name], value), f"{name}: {value} is now {found[name]}"


if __name__ == "__main__":
    answers = {words: ask_anew(words) for words in STORED}
    FILE.write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")

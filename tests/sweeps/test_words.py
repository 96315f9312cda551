"""Words for quantities, in rows of every kind of question: their columns, their scope and their labels."""

from __future__ import annotations

import pytest

from paleo_lite.errors import BadValue
from paleo_lite.sweeps.rows import COLUMNS, STRINGS
from paleo_lite.sweeps.where import find_column
from paleo_lite.sweeps.words import KINDS, WORDS, column_label, describe_amount


def numbers_of(kind: str) -> dict[str, bool]:
    return {name: name not in STRINGS for name in COLUMNS[kind]}


SAME_SCOPE = {
    "predict": ("hours", "kwh", "cost_usd"),
    "train": ("hours", "kwh", "cost_usd"),
    "diffusion": ("hours", "kwh", "cost_usd"),
    "rl": ("time_s", "energy_j", "usd_per_step"),
    "local": ("time_s", "energy_j", None),
}
"""Columns of the time, the energy and the cost of one thing: of an amount of samples, of a step, of a token."""


@pytest.mark.parametrize("kind", SAME_SCOPE)
def test_time_energy_and_cost_are_of_the_same_thing(kind) -> None:
    words = [word for word, column in zip(("time", "energy", "cost"), SAME_SCOPE[kind]) if column]
    assert [find_column(word, numbers_of(kind)) for word in words] == [name for name in SAME_SCOPE[kind] if name]


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("word", WORDS)
def test_a_word_is_a_column_or_refused_with_those_that_are(kind, word) -> None:
    """Only servers and one's own machine have latencies of tokens, and one's own machine alone has no cost."""
    absent = word in ("ttft", "tpot") and kind not in ("serve", "local")
    if absent or (kind, word) == ("local", "cost"):
        with pytest.raises(BadValue, match=rf"^rows of .* have no {word}.*: choose from (cost, )?energy, joules, time"):
            find_column(word, numbers_of(kind))
    else:
        assert find_column(word, numbers_of(kind)) in COLUMNS[kind]


def test_words_of_ones_own_machine() -> None:
    columns = numbers_of("local")
    assert find_column("tpot", columns) == "time_s" and find_column("ttft", columns) == "prompt_s"
    assert (
        column_label("time_s", columns) == "time of a token"
        and column_label("energy_j", columns) == "energy of a token"
    )
    assert column_label("prompt_s", columns) == "time of the prompt"
    assert column_label("tokens_per_s", columns) == "tokens per second"
    with pytest.raises(BadValue, match=r"rows of one's own machine have no cost \(`local` takes no price\)"):
        find_column("cost", columns)


def test_a_mark_is_a_column_of_one_kind_alone() -> None:
    for kind in KINDS[:-1]:
        assert sum(kind.mark in columns for columns in COLUMNS.values()) == 1, kind.mark


def test_an_amount_is_stated_if_all_rows_have_the_same() -> None:
    """Two hours at 10 samples per second, and one at 20, are 72,000 samples."""
    rows = [{"hours": 2.0, "throughput_per_s": 10.0}, {"hours": 1.0, "throughput_per_s": 20.0}]
    assert describe_amount("cost_usd", rows) == "72 k samples"
    assert describe_amount("kwh", [*rows, {"hours": 1.0, "throughput_per_s": 10.0}]) == "the run"
    assert describe_amount("cost_usd", [{"cost_usd": 1.0}]) == "the run"
    assert describe_amount("time_s", rows) == ""
    assert describe_amount("site_kwh", [dict.fromkeys(COLUMNS["serve"])]) == ""

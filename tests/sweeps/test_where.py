"""Names and words for columns."""

from __future__ import annotations

import pytest

from paleo_lite.errors import UnknownName
from paleo_lite.sweeps.best import is_better_larger
from paleo_lite.sweeps.rows import COLUMNS, STRINGS
from paleo_lite.sweeps.where import columns_of_numbers, find_column


def numbers_of(kind: str) -> dict[str, bool]:
    return {name: name not in STRINGS for name in COLUMNS[kind]}


def test_a_word_is_the_quantity_that_rows_state_first() -> None:
    assert find_column("cost", numbers_of("serve")) == "usd_per_million_output_tokens"
    assert find_column("cost", numbers_of("train")) == "cost_usd"
    assert find_column("energy", numbers_of("local")) == "energy_j"
    assert find_column("memory", numbers_of("rl")) == "memory_bytes"


def test_an_unknown_word_is_answered_with_the_columns_of_numbers() -> None:
    columns = numbers_of("serve")
    with pytest.raises(UnknownName, match=r"no column is called 'weather': .* Columns of numbers: devices, power_lim"):
        find_column("weather", columns)
    assert {"engine", "ttft_p50_s_low"}.isdisjoint(columns_of_numbers(columns))


def test_the_end_of_an_interval_is_better_as_its_column_is() -> None:
    assert is_better_larger("output_tokens_per_s_low") and is_better_larger("tokens_per_s_per_device")
    assert not is_better_larger("ttft_p50_s_high")

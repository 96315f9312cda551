"""Charts of steps of reinforcement learning."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("altair")

import paleo_lite as pl
from paleo_lite.reporting.charts.reinforcement import rl_chart

SMALL = {
    "network": "qwen3-0.6b", "gpu": "h100-sxm", "workers": 8, "prompts": 16, "samples_per_prompt": 8,
    "response_tokens": 200,
}  # fmt: skip


def drawn(**changes: Any) -> dict[str, Any]:
    chart: dict[str, Any] = rl_chart(pl.rl(**{**SMALL, **changes})).to_dict()
    return chart


def test_phases_in_turns_are_one_row_above_the_live_sequences() -> None:
    chart = drawn()
    phases, live = chart["vconcat"]
    marks = phases["data"]["values"]
    assert {mark["devices"] for mark in marks} == {"all devices"}
    assert all(one["end"] == pytest.approx(two["start"]) for one, two in pairwise(marks))
    counts = [point["live"] for point in live["data"]["values"]]
    assert max(counts) == 128 and counts[-1] == 0


def test_trainer_and_engines_work_at_the_same_time_off() -> None:
    marks = drawn(rollout_workers=4, steps_off=1)["vconcat"][0]["data"]["values"]
    starts = {mark["devices"]: mark["start"] for mark in reversed(marks) if mark["devices"] != "all devices"}
    assert starts == {"trainer": 0, "engines": 0}


@pytest.mark.thorough
def test_divisions_are_labelled_bars_the_fastest_first() -> None:
    """Where all divisions take turns, the number of engines' devices would be one place for all of them."""
    bars, ticks, _ = drawn(advise=True, steps_off=0)["layer"]
    rows = bars["data"]["values"]
    names = [row["division"] for row in rows]
    assert bars["encoding"]["y"]["sort"] == names and len(set(names)) == len(names) == 15
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
    assert names[0].startswith(("in turns, tensor ", "engines on "))
    assert {tick["side"] for tick in ticks["data"]["values"]} == {"trainer", "engines"}


def test_steps_side_by_side_are_bars() -> None:
    layers = drawn(rollout_tensor=[1, 2])["layer"]
    assert len(layers) == 3  # bars, intervals and times


def test_pairs_have_no_live_sequences() -> None:
    assert len(drawn(algorithm="dpo")["vconcat"]) == 1

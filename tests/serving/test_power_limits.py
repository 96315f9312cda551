"""Servers under a power limit: steps that draw less are not slowed, and no device draws more than the limit.

Tests: serving/timer.py.
"""

from __future__ import annotations

import pytest

import paleo_lite as pl
from paleo_lite.errors import BadValue
from paleo_lite.serving.answers import Serving

LOOP = {"gpu": "h100-sxm", "concurrency": 8, "input_tokens": 64, "output_tokens": 256, "num_requests": 32}


def serve(limit: str | None) -> Serving:
    return pl.serve("llama-3.1-8b", power_limit=limit, **LOOP)


def test_a_limit_above_the_power_of_decoding_changes_little() -> None:
    free, limited = serve(None), serve("600W")
    speed = limited.figures["output_tokens_per_s"].value / free.figures["output_tokens_per_s"].value
    assert 0.97 < speed < 1.002  # requests meet iterations at other times
    assert any(note.startswith("the power limit 600 W leaves") for note in limited.notes)


def test_lower_limits_are_slower_and_the_knee_saves_energy() -> None:
    """Half of the dynamic power leaves 0.5 ** (1 / 3) = 79% of the speed."""
    servers = [serve(limit) for limit in ("650W", "450W", "350W", "250W")]
    rates = [server.figures["output_tokens_per_s"].value for server in servers]
    watts = [server.figures["watts_per_gpu"].value for server in servers]
    joules = [server.figures["joules_per_million_output_tokens"].value for server in servers]
    assert rates == sorted(rates, reverse=True) and watts == sorted(watts, reverse=True)
    assert watts[2] < 350 and watts[3] < 250
    assert rates[3] > 0.3 * rates[0] and min(joules) < 0.9 * joules[0]


@pytest.mark.thorough
def test_a_limit_above_the_rated_one_changes_nothing() -> None:
    free, higher = serve(None), serve("900W")
    assert higher.figures == free.figures
    assert any("is above that of the data sheet" in note for note in higher.notes)


def test_a_limit_below_the_idle_power_is_told_in_one_sentence() -> None:
    with pytest.raises(BadValue, match=r"above the \d+ W that H100 SXM5 80GB draws while it waits \(got 50 W\)"):
        serve("50W")

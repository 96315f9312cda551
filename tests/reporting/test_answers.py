"""Texts that the documents of all answers share: intervals, what does not fit, notes of several rows."""

from __future__ import annotations

import pytest

import paleo_lite as pl
from paleo_lite.reporting.answers import (
    format_at_90,
    format_power,
    format_shortage,
    join_notes,
    price_facts,
    site_facts,
)


def test_an_interval_stands_in_parentheses() -> None:
    assert format_at_90((0.018, 0.0214)) == " (18 ms to 21.4 ms at 90%)"
    assert format_at_90(None) == ""
    assert format_shortage(5e9, 4e9) == "; does not fit into memory: needs 5 GB, 4 GB usable"


def test_a_note_stands_once_after_all_that_have_it() -> None:
    named = [("", "for all"), ("2 workers", "slow"), ("4 workers", "slow"), ("4 workers", "slow"), ("8 workers", "one")]
    assert join_notes(named) == ["for all", "2 workers, 4 workers: slow", "8 workers: one"]


def test_power_energy_and_price_of_an_answer() -> None:
    site = {"electricity": "0.30 USD/kWh", "pue": 1.2}
    prediction = pl.predict("resnet18", gpu="v100-sxm2", batch_size=32, price="3 USD/h", site=site)
    low_w, high_w = prediction.power_interval_w
    assert format_power(prediction) == f"{prediction.power_w:.3g} W ({low_w:.3g} W to {high_w:.3g} W)"
    usd = prediction.device.rent_usd_per_h / 3600 / prediction.throughput_per_s * 1e6
    [(name, text)] = price_facts(prediction)
    assert name == "cost" and float(text.split()[0]) == pytest.approx(usd, rel=1e-3)
    [(name, text)] = site_facts(prediction)
    assert name == "at the meter" and "USD of electricity" in text
    bound = pl.predict("resnet18", gpu="v100-sxm2", time_model="roofline")
    assert price_facts(bound) == []

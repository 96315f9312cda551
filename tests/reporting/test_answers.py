"""Texts that the documents of all answers share: intervals, what does not fit, notes of several rows."""

from __future__ import annotations

import pytest

import paleo_lite as pl
from paleo_lite.errors import BadValue, UnknownName
from paleo_lite.reporting.answers import (
    common_notes,
    cost_of_products,
    format_at_90,
    format_power,
    format_shortage,
    join_notes,
    price_facts,
    site_facts,
    with_price_of_one,
)
from paleo_lite.reporting.columns import find_column
from paleo_lite.sweeps.comparison import Comparison


def test_an_interval_stands_in_parentheses() -> None:
    assert format_at_90((0.018, 0.0214)) == " (18 ms to 21.4 ms at 90%)"
    assert format_at_90(None) == ""
    assert format_shortage(5e9, 4e9) == "; does not fit into memory: needs 5 GB, 4 GB usable"


def test_a_note_stands_once_after_all_that_have_it() -> None:
    named = [("", "for all"), ("2 workers", "slow"), ("4 workers", "slow"), ("4 workers", "slow"), ("8 workers", "one")]
    assert join_notes(named) == ["for all", "2 workers, 4 workers: slow", "8 workers: one"]


def test_a_note_of_some_answers_says_of_which() -> None:
    devices, formats = ("rtx3060", "m4"), ("q4_k_m", "q8_0")
    settings = [{"gpu": gpu, "weights": weights} for gpu in devices for weights in formats]
    comparison = Comparison("local", [None] * 4, settings)
    notes = [["all", "first device"], ["all", "first device", "one"], ["all", "q4"], ["all", "three"]]
    notes[0] += ["q4", "three"]
    notes[1] += ["three"]
    assert common_notes(comparison, notes) == [
        "all",
        "rtx3060: first device",
        "weights q4_k_m: q4",
        "rtx3060, weights q4_k_m; rtx3060, weights q8_0; m4, weights q8_0: three",
        "rtx3060, weights q8_0: one",
    ]
    many = Comparison("serve", [None] * 9, [{"tensor": size, "rate": size % 4} for size in range(9)])
    assert many.describe([1, 2, 3, 4, 6]) == "tensor 1, 2, 3, 4, 6"
    pairs = Comparison("serve", [None] * 9, [{"tensor": size % 3, "rate": size // 3} for size in range(9)])
    assert pairs.describe([0, 1, 3, 4]) == "tensor 0, rate 0; tensor 1, rate 0; tensor 0, rate 1 and 1 more, of 9"


def test_notes_of_steps_that_differ_in_more_than_the_device_say_in_what() -> None:
    notes = pl.predict("resnet18", gpu="b200", precision=["fp16", "fp4"]).document().notes
    assert any(note.startswith("fp4: a bound, not a forecast") for note in notes)


@pytest.mark.parametrize(
    ("usd_per_million", "said"),
    [(349_234.0, "0.3492 USD per video"), (10_001.0, "0.01 USD per video"), (9_999.0, "9,999 USD per million videos")],
)
def test_what_costs_more_than_a_cent_has_a_price_of_its_own(usd_per_million: float, said: str) -> None:
    assert " ".join(cost_of_products(usd_per_million, "video")) == said


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


def test_tables_give_the_price_of_one_where_products_are_dear() -> None:
    """A video of 1.88 USD is not one of 1,878,766 USD per million; pictures of a tenth of a cent are."""
    column = find_column("usd_per_million")
    (of_one,) = with_price_of_one([column], [{"usd_per_million": 1_878_766.0}, {"usd_per_million": None}])
    assert (of_one.heading, of_one.text({"usd_per_million": 1_878_766.0})) == ("USD each", "1.879")
    assert with_price_of_one([column], [{"usd_per_million": 1_000.0}, {"usd_per_million": 2e6}]) == [column]
    assert with_price_of_one([column], [{"usd_per_million": None}]) == [column]


def test_an_unknown_pipeline_is_called_so() -> None:
    with pytest.raises(UnknownName, match=r"^no pipeline is called 'foo': valid names: cogvideox-1\.5-5b, "):
        pl.diffusion("foo", gpu="h100-sxm")
    with pytest.raises(BadValue, match="resnet50 is not one: use `predict`, `train` or `local`"):
        pl.diffusion("resnet50", gpu="h100-sxm")

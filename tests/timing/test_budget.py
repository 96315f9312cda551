"""Amounts of training in people's units: hours, cost and energy by hand."""

from __future__ import annotations

import pytest

from asked import predict_any
from paleo_lite.errors import BadValue
from paleo_lite.machines import find_device
from paleo_lite.timing.budget import Amount, Budget, make_budget, parse_count, training_run

H100 = find_device("h100-sxm")


@pytest.mark.parametrize(("text", "number"), [("15B", 15e9), ("52k", 52e3), (1281167, 1281167), ("1.5T", 1.5e12)])
def test_counts_are_read_as_people_write_them(text, number) -> None:
    assert parse_count(text) == number


def test_tokens_are_divided_among_sequences() -> None:
    assert Amount(tokens="15B").samples_per_epoch(2048) == 15e9 / 2048
    assert Amount(images="300B tokens").samples_per_epoch(2048) == 300e9 / 2048
    assert Amount(samples="52k").samples_per_epoch(2048) == 52_000
    assert Amount().samples_per_epoch(None) is None


def test_hours_cost_and_energy_of_a_run_by_hand() -> None:
    """1,000 samples in 10 steps per epoch, 3 epochs, 2 s per step: 60 s on 8 devices of 2 USD/h and 500 W."""
    run = training_run(Budget(1000, 3, 2.0), 2.0, (1.0, 4.0), 100, 8, 500.0)
    assert run is not None
    assert (run.samples, run.steps) == (3000, 30)
    assert run.hours == pytest.approx(60 / 3600)
    assert run.cost_usd == pytest.approx(60 / 3600 * 8 * 2)
    assert run.kwh == pytest.approx(60 / 3600 * 8 * 0.5)
    amounts = ((run.hours, run.hours_interval), (run.cost_usd, run.cost_interval), (run.kwh, run.kwh_interval))
    for value, interval in amounts:
        assert interval == pytest.approx((value / 2, value * 2))
    assert training_run(Budget(), 2.0, None, 100, 8, 500.0) is None
    without = training_run(Budget(1000), 2.0, None, 100, 8, None)
    assert without is not None and (without.cost_usd, without.kwh, without.hours_interval) == (None, None, None)


BAD = [
    ({"images": "many"}, 2048, "`--images` must be a number such as 52k or 15B"),
    ({"tokens": "-1B"}, 2048, "`--tokens` must be a number > 0"),
    ({"samples": "inf"}, 2048, "`--samples` must be a number"),
    ({"images": 1, "tokens": 1}, 2048, "give one of"),
    ({"tokens": "1B", "samples": 3}, 2048, "give one of"),
    ({"tokens": "1B"}, None, "`--tokens` is for networks that read tokens"),
    ({"samples": 0}, 2048, "`--samples` must be a number > 0"),
]


@pytest.mark.parametrize(("amount", "tokens", "message"), BAD)
def test_impossible_amounts_are_refused(amount, tokens, message) -> None:
    with pytest.raises(BadValue, match=message):
        Amount(**amount).samples_per_epoch(tokens)


def test_epochs_need_samples() -> None:
    with pytest.raises(BadValue, match="hours and cost need an amount of training"):
        make_budget(H100, Amount(epochs=3))
    assert make_budget(H100, Amount(samples=10), "3 USD/h") == Budget(10, 1.0, 3.0)


def test_a_prediction_answers_in_hours_dollars_and_kilowatt_hours() -> None:
    prediction = predict_any("resnet50", gpu="h100-sxm", precision="bf16", phase="training", batch_size=64,
                            samples="1.28M", epochs=90)  # fmt: skip
    answer = prediction.to_dict()["run"]
    assert answer["hours"] == pytest.approx(1.28e6 * 90 / 64 * prediction.time_s / 3600)
    assert answer["cost_usd"] == pytest.approx(answer["hours"] * H100.rent_usd_per_h)
    assert answer["kwh"] == pytest.approx(1.28e6 * 90 / 64 * prediction.energy_j / 3.6e6)
    assert 0.2 * 0.7 < answer["kwh"] / answer["hours"] < 0.7  # 700 W by the data sheet
    assert answer["kwh_interval"][0] < answer["kwh"] < answer["kwh_interval"][1]
    assert answer["hours_interval"][0] < answer["hours"] < answer["hours_interval"][1]

"""Which price an answer uses, and what it says about it.

Tests: machines/prices.py.
"""

from __future__ import annotations

from datetime import date

import msgspec
import pytest

import paleo_lite as pl
from asked import scaling
from paleo_lite.errors import BadValue, UnknownName
from paleo_lite.machines import Price, find_device
from paleo_lite.machines.prices import choose_price, cloud_names, find_cloud_name, price_of_group, prices_of

H100 = find_device("h100-sxm")


def test_a_device_has_prices_of_several_clouds() -> None:
    """Lists of September 2026: AWS 55.04, Azure 98.32 and Lambda 31.92 for eight, Gcore 2.50 for one."""
    usd_per_h = {price.cloud: price.usd_per_h for price in prices_of(H100)}
    assert usd_per_h["AWS"] == pytest.approx(55.04 / 8)
    assert usd_per_h["Azure"] == pytest.approx(98.32 / 8)
    assert usd_per_h["Lambda"] == pytest.approx(31.92 / 8)
    assert usd_per_h["Gcore"] == 2.5
    assert all(price.date and price.source for price in prices_of(H100))


@pytest.mark.parametrize(
    ("price_of", "cloud"), [(None, "AWS"), ("lambda labs", "Lambda"), ("gcp", "Google Cloud"), ("cheapest", "Gcore")]
)
def test_the_price_of_a_cloud_is_chosen_by_name(price_of: str | None, cloud: str) -> None:
    price = choose_price(H100, price_of)
    assert price is not None and price.cloud == cloud


def test_a_platform_is_rented_at_its_own_price() -> None:
    own = Price("1 USD/h", "x", date(2026, 1, 1))
    assert choose_price(H100, None, own) is own
    assert choose_price(H100, "Azure", own) != own


def test_a_device_without_a_price_in_its_file_has_the_cheapest() -> None:
    price = choose_price(find_device("a10g"))
    assert price is not None and price.usd_per_h == 1.006 and price.note == "g5.xlarge, on demand, host included"
    assert choose_price(find_device("gtx580")) is None


def test_unknown_clouds_and_devices_are_one_sentence() -> None:
    with pytest.raises(UnknownName, match="did you mean Lambda"):
        find_cloud_name("lamda")
    with pytest.raises(BadValue, match="Lambda has no price of Tesla T4 on record: use `--price` with AWS"):
        choose_price(find_device("t4"), "Lambda")
    assert "Google Cloud" in cloud_names() and cloud_names()[-1] == "cheapest"


def test_a_price_says_whose_it_is_and_when_it_is_old() -> None:
    price = Price("2 USD/h", "x", date(2025, 6, 1), "on demand", "AWS")
    assert price.describe() == "2 USD/h (AWS, 2025-06-01: on demand)"
    assert price.notes(date(2026, 6, 1)) == []
    (note,) = price.notes(date(2026, 6, 2))
    assert note.startswith("the price, 2 USD/h (AWS, 2025-06-01: on demand), is older than a year")


def test_answers_name_the_price_that_they_use() -> None:
    """The P4 is listed once, in July 2022."""
    asked = {"precision": "fp32", "batch_size": 32, "samples": 1e6}
    lent = pl.train("resnet18", gpu="h100-sxm", price="Lambda", **asked)
    run = lent.run
    assert run is not None and run.cost_usd == pytest.approx(run.hours * 31.92 / 8)
    assert run.price is not None and run.price.startswith("3.99 USD/h (Lambda, 2026-09-20")
    old = pl.train("resnet18", gpu="p4", **asked)
    assert any("Google Cloud, 2022-07-19" in note and "older than a year" in note for note in old.notes)
    table = scaling("resnet18", gpu="p4", workers=1, batch_size=32, samples=1e6)
    assert any("older than a year" in note for note in table.notes) and "Google Cloud" in (table.price or "")
    with pytest.raises(BadValue, match="exclude each other"):
        scaling("resnet18", gpu="p4", workers=1, batch_size=32, samples=1e6, price=1, price_of="AWS")


def test_a_sweep_uses_the_prices_of_a_cloud(tmp_path) -> None:
    path = tmp_path / "sweep.parquet"
    swept = pl.sweep(pl.Predict("resnet18", gpu="h100-sxm,t4", batch_size=32, price="lambda"), path, jobs=1)
    rows = swept.to_frame().set_index("gpu")
    assert rows.cost_usd["h100-sxm"] == pytest.approx(rows.hours["h100-sxm"] * 31.92 / 8)
    assert msgspec.to_builtins(rows.price["h100-sxm"]).startswith("3.99 USD/h (Lambda")
    assert (rows.cost_usd.isna()["t4"] and rows.price["t4"] is None) or rows.price.isna()["t4"]


def test_serving_costs_name_their_price() -> None:
    asked = {"rate": 1, "num_requests": 20, "input_tokens": 64, "output_tokens": 8}
    served = pl.serve("qwen2.5-0.5b", gpu="a10g", **asked)
    assert "costs are at 1.006 USD/h (AWS, 2026-08-17: g5.xlarge, on demand, host included)" in served.notes


@pytest.mark.parametrize(
    ("devices", "usd_per_h"), [(1, 1.861), (2, 10.49264 / 4), (4, 10.49264 / 4), (8, 10.49264 / 4)]
)
def test_devices_that_work_as_one_are_rented_in_one_instance(devices: int, usd_per_h: float) -> None:
    """AWS has one L40S in g6e.xlarge at 1.861 USD/h and four in g6e.12xlarge at 10.49264, on demand, August 2026."""
    price = choose_price(find_device("l40s"), "AWS")
    assert price is not None
    assert price_of_group("l40s", price, devices).usd_per_h == pytest.approx(usd_per_h)

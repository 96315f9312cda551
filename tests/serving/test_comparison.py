"""Several values of an option are deployments side by side, with prices of one cloud where one lists all devices.

Tests: serving/price_basis.py.
"""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from click.testing import CliRunner

import paleo_lite as pl
from paleo_lite.cli import main
from paleo_lite.errors import BadValue, DoesNotFit
from paleo_lite.machines import find_device
from paleo_lite.serving.price_basis import (
    PricedDevice,
    choose_listings,
    describe_mixed,
    describe_prices,
    whole_instances_notes,
)
from paleo_lite.sweeps.comparison import Comparison

SHORT: dict[str, Any] = {"num_requests": 20, "input_tokens": 256, "output_tokens": 16}
WORDS = ["serve", "llama-3-8b", "--rate", "2", "--num-requests", "20", "--input-tokens", "256", "--output-tokens", "16"]


def compare(network: Any, **question: Any) -> Comparison:
    result = pl.serve(network, **SHORT, **question)
    assert isinstance(result, Comparison)
    return result


def listings_of(*names: str) -> list[PricedDevice]:
    devices = [find_device(name) for name in names]
    listings = choose_listings(devices)
    return [
        PricedDevice(name, None if listing is None else listing.usd_per_h, None if listing is None else listing.cloud)
        for name, listing in listings.items()
    ]


@pytest.mark.parametrize("words", [["--gpu", "h100-sxm", "--gpu", "l40s"], ["--gpu", "h100-sxm,l40s"]])
def test_several_devices_are_rows_with_prices_in_every_format(words: list[str]) -> None:
    page = CliRunner().invoke(main, [*WORDS, *words])
    assert page.exit_code == 0, page.output
    assert "2 answers side by side" in page.stdout and "of AWS: h100-sxm 6.88" in page.stdout
    rows = list(csv.DictReader(io.StringIO(CliRunner().invoke(main, [*WORDS, *words, "--format", "csv"]).stdout)))
    assert [row["gpu"] for row in rows] == ["h100-sxm", "l40s"] and all(float(row["usd_per_h"]) > 0 for row in rows)
    answers = json.loads(CliRunner().invoke(main, [*WORDS, *words, "--format", "json"]).stdout)
    assert [one["gpu"] for one in answers["answers"]] == ["h100-sxm", "l40s"]


def test_each_row_is_the_answer_of_its_question() -> None:
    result = compare("llama-3-8b", gpu="h100-sxm", rate=[1, 4], tensor=[1, 2])
    assert result.labels() == ["tensor 1, rate 1", "tensor 1, rate 4", "tensor 2, rate 1", "tensor 2, rate 4"]
    assert result.answers[3].to_dict() == pl.serve("llama-3-8b", gpu="h100-sxm", rate=4, tensor=2, **SHORT).to_dict()


def test_networks_are_compared() -> None:
    result = compare(("llama-3-8b", "llama-3.2-1b"), gpu="h100-sxm", rate=1)
    assert [one.network for one in result.answers] == ["llama-3-8b", "llama-3.2-1b"]


def test_a_device_on_which_nothing_fits_has_no_number() -> None:
    result = compare("llama-3-8b", gpu=["t4", "l40s"], rate=1, precision="fp16")
    assert [row["gpu"] for row in result.rows] == ["l40s"]
    page = CliRunner().invoke(main, [*WORDS, "--gpu", "t4,l40s", "--precision", "fp16"]).stdout
    assert not [line for line in page.splitlines() if line.startswith("t4 ")]
    assert "left out: llama-3-8b on t4 in fp16" in page
    with pytest.raises(DoesNotFit):
        pl.serve("llama-3-8b", gpu=["t4", "rtx2080"], rate=1, precision="fp16", **SHORT)


def test_an_unknown_device_is_an_error_of_all() -> None:
    with pytest.raises(pl.PaleoError, match="no GPU is called 'h1000'"):
        pl.serve("llama-3-8b", gpu=["h100-sxm", "h1000"], rate=1, **SHORT)


def test_prices_are_of_one_cloud_where_one_has_all() -> None:
    assert {row.cloud for row in listings_of("h100-sxm", "l40s")} == {"AWS"}
    usual = {find_device(name).rent.cloud for name in ("b200", "h100-sxm")}  # type: ignore[union-attr]
    assert len(usual) == 2
    assert len({row.cloud for row in listings_of("b200", "h100-sxm")}) == 1
    text = describe_prices(listings_of("h100-sxm", "mi300x"))
    assert text.startswith("of different clouds, which compares their offers too: h100-sxm 6.88 (AWS), mi300x ")


def test_the_price_of_a_cloud_is_unknown_where_it_has_none() -> None:
    result = compare("llama-3-8b", gpu=["l40s", "mi300x"], rate=1, price="AWS")
    assert [row["usd_per_h"] is None for row in result.rows] == [False, True]
    assert ("prices", "of AWS: l40s 1.861, mi300x unknown USD/h") in result.document().facts
    with pytest.raises(BadValue, match="Lambda has no price of"):
        choose_listings([find_device("mi300x"), find_device("k80")], "Lambda")


def test_given_and_unknown_prices_are_described() -> None:
    assert describe_prices([PricedDevice("t4", 1.0, None)]) == "as given: t4 1 USD/h"
    assert describe_prices([PricedDevice("t4", None, None)]) == "unknown: give `--price`"


@pytest.mark.parametrize(
    ("priced", "clouds"),
    [
        ([("t4", 1.0, "AWS"), ("l4", 2.0, "Vultr"), ("t4", 1.0, "AWS")], "AWS, Vultr"),
        ([("t4", 1.0, "AWS"), ("l4", None, "Vultr")], ""),  # none of Vultr's is known
        ([("t4", 1.0, "AWS"), ("l4", 2.0, None)], ""),  # one was given
        ([("t4", None, "AWS"), ("l4", None, "Vultr")], ""),
        ([], ""),
    ],
)
def test_only_known_prices_of_several_clouds_are_mixed(priced: list[tuple[Any, ...]], clouds: str) -> None:
    note = describe_mixed([PricedDevice(*row) for row in priced])
    assert f"offers of {clouds}, none" in note if clouds else note == ""


def test_devices_that_do_not_fill_an_instance_say_what_whole_ones_cost() -> None:
    """AWS asks 55.04 USD/h for a p5.48xlarge with eight H100 (September 2026), and lists single L40S."""
    h100, l40s = PricedDevice("h100-sxm", 55.04 / 8, "AWS"), PricedDevice("l40s", 1.861, "AWS")
    assert whole_instances_notes([(h100, 3), (h100, 4), (l40s, 3)]) == [
        "7 x h100-sxm are priced as 7 of the 8 in 1 x p5.48xlarge, which are rented whole for 55.04 USD/h"
    ]
    assert (
        "9 of the 16 in 2 x p5.48xlarge, which are rented whole for 110.1 USD/h"
        in whole_instances_notes([(h100, 9)])[0]
    )
    assert whole_instances_notes([(h100, 8), (l40s, 1)]) == []
    assert whole_instances_notes([(PricedDevice("h100-sxm", 6.88, None), 7)]) == []  # a price that was given


def test_a_comparison_has_a_chart() -> None:
    pytest.importorskip("altair")
    from paleo_lite.reporting.charts.serving import serving_chart

    found = compare("llama-3-8b", gpu=["h100-sxm", "l40s"], rate=1)
    drawn = serving_chart(found).to_dict()
    assert drawn["title"]["text"] == "h100-sxm answers fastest"
    assert f"llama-3-8b, vllm, {found.answers[0].traffic}" in drawn["title"]["subtitle"]
    tokens, saturation = (panel["data"]["values"] for panel in drawn["vconcat"][1:])
    for mark, row in zip(tokens, found.rows, strict=True):
        figures = [1e3 * row[f"tpot_p50_s{end}"] for end in ("_low", "", "_high")]
        assert [mark["low"], mark["value"], mark["high"]] == pytest.approx(figures)
    assert [mark["name"] for mark in saturation] == ["h100-sxm", "l40s"]
    assert "(ms)" in json.dumps(drawn["vconcat"][1])


@pytest.mark.thorough
def test_each_device_says_whether_it_meets_the_objectives() -> None:
    """By hand: 16.06 GB of weights are read in 4.8 ms at 3.35 TB/s, and take 18.6 ms at the 864 GB/s of an L40S."""
    asked: dict[str, Any] = {"gpu": ["h100-sxm", "h200-sxm", "l40s"], "rate": 1}
    found = compare("llama-3-8b", **asked, slo="tpot=15ms")
    meets = {row["gpu"]: row["meets"] for row in found.rows}
    assert meets == {"h100-sxm": "yes", "h200-sxm": "yes", "l40s": "no"}
    page = found.document()
    assert "meets" in {column.key for column in page.tables[0].columns}
    facts = dict(page.facts)
    without = compare("llama-3-8b", **asked)
    assert facts["cheapest"].startswith("h") and dict(without.document().facts)["cheapest"].startswith("l40s")
    assert {row["meets"] for row in without.rows} == {None}
    assert "meets" not in {column.key for column in without.document().tables[0].columns}

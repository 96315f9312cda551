"""Documents of layer counts: one network by modules or largest layers, and several networks."""

from __future__ import annotations

import csv
import io
import json

import pytest

import paleo_lite as pl
from paleo_lite.architectures import Network
from paleo_lite.errors import BadValue
from paleo_lite.reporting.networks import counts_comparison_page, counts_page

PTHFLOPS = {
    "vgg16": (15_516_752_872, "98.99%"),
    "vgg19": (19_682_464_744, "99.19%"),
    "resnet50": (4_143_375_336, "98.64%"),
    "googlenet": (1_516_015_624, "98.77%"),
}
"""Totals that pthflops prints, and the share of its rows of convolutions, of a course on PALEO (2022)."""


def test_the_convolutions_of_four_networks():
    comparison = pl.layers(list(PTHFLOPS), convention="pthflops")
    page = counts_comparison_page(comparison)
    share = page.tables[0].columns[-1]
    shown = {row["network"]: (row["count"], share.text(row)) for row in page.tables[0].rows}
    assert shown == PTHFLOPS
    assert [each["network"] for each in comparison.to_dict()["networks"]] == list(PTHFLOPS)
    assert len(comparison.to_dict()["networks"][0]["layers"]) == len(pl.layers("vgg16").reported)
    assert "98.64%" in page.markdown()


def test_macs_have_one_column():
    """By hand: 16 convolutions of VGG19 take 19,508,428,800 of 19,632,062,464."""
    page = counts_comparison_page(pl.layers(("vgg19",), convention="macs"))
    assert [column.title for column in page.tables[0].columns].count("MAC") == 1
    row = page.tables[0].rows[0]
    assert (row["count"], row["convolution_count"]) == (19_632_062_464, 19_508_428_800)
    assert row["macs"] == row["count"]  # CSV has both all the same
    alone = counts_page(pl.layers("vgg19", convention="macs"))
    assert [column.title for column in alone.tables[0].columns].count("MAC") == 1


def test_an_empty_list_of_networks_raises():
    with pytest.raises(BadValue, match="the list of networks is empty"):
        pl.layers([])
    pandas = pytest.importorskip("pandas")
    assert isinstance(pl.layers(["alexnet"]).to_frame(), pandas.DataFrame)
    assert repr(pl.layers(["alexnet"])).startswith("CountsComparison(LayerCounts(network='alexnet'")


def written(page):
    out = io.StringIO()
    page.write_csv(out)
    return list(csv.DictReader(io.StringIO(out.getvalue())))


def test_modules_are_shown_and_csv_has_every_layer():
    counts = pl.layers("resnet50")
    page = counts_page(counts)
    assert page.tables[0].title == "Modules, 2 levels (--depth shows more)"
    names = [row["name"] for row in page.tables[0].rows]
    assert names[names.index("layer1") + 1] == "  layer1.0"
    assert page.tables[0].rows[names.index("layer1")]["kind"] == "32 layers"  # 3 blocks of 10, and a shortcut of 2
    assert len(written(page)) == len(counts.reported) == 175
    assert counts_page(counts, depth=9).tables[0].title == "Layers (shapes of one sample)"


def test_the_largest_layers():
    """VGG16's first linear layer holds 25,088 x 4,096 weights; 3x3 layers of equal channels and size the most work."""
    page = counts_page(pl.layers("vgg16", convention="macs"), top=3)
    assert page.tables[0].title == "Largest layers, 3 of 40 (shapes of one sample)"
    assert {row["count"] for row in page.tables[0].rows} == {64 * 64 * 9 * 224 * 224}
    assert page.tables[0].columns[-1].text(page.tables[0].rows[0]) == "11.96%"  # of 15,470,264,320
    assert len(written(page)) == 40


def test_trainable_and_frozen_parameters():
    alexnet = pl.layers("alexnet").network
    first, *rest = alexnet.layers
    frozen = first._replace(attributes={**first.attributes, "frozen": True})  # 64 x 3 x 11 x 11 weights, 64 biases
    network = Network("half", alexnet.inputs, (frozen, *rest), alexnet.parameters + 5)
    assert dict(counts_page(pl.layers(network)).facts)["parameters"] == (
        "61,077,544 trainable, 23,296 frozen, 5 unused"
    )
    assert pl.layers(network).to_dict()["frozen_parameters"] == 23_296
    page = counts_comparison_page(pl.layers([network, "alexnet"]))
    assert [row["frozen_parameters"] for row in page.tables[0].rows] == [23_296, 0]
    assert "frozen" in [column.title for column in page.tables[0].columns]


def test_an_empty_network_has_no_shares():
    counts = pl.layers(Network("nothing", ((1, 3),), (), 0))
    assert counts.convolution_share is None
    assert counts_page(counts).tables[0].rows == []
    json.dumps(counts.to_dict(), allow_nan=False)


def test_several_networks_on_a_device_have_their_times_and_joules():
    """The same as each network alone."""
    comparison = pl.layers(["alexnet", "vgg16"], gpu="h100-sxm", precision="fp16")
    (table,) = counts_comparison_page(comparison).tables
    assert [column.key for column in table.columns][-2:] == ["time_s", "energy_j"]
    for row in table.rows:
        alone = pl.layers(row["network"], gpu="h100-sxm", precision="fp16").costs
        assert (row["time_s"], row["energy_j"]) == (alone.time_s, alone.energy_j)
    assert "time_s" not in next(iter(pl.layers(["alexnet", "vgg16"]).rows()))

"""Chart of several predictions: points equal the rows of the table, and the title respects the intervals."""

from __future__ import annotations

import pytest

pytest.importorskip("altair")

import paleo_lite as pl
from paleo_lite.errors import BadValue
from paleo_lite.reporting.charts.devices import ROWS_AT_MOST, batch_chart, devices_chart

pytestmark = pytest.mark.slow


def drawn(chart):
    """The chart's description, and the rows of all its panels."""
    spec = chart.to_dict()
    tables = [part["data"]["values"] for part in (spec, *spec["vconcat"]) if "data" in part]
    return spec, [row for table in tables for row in table]


def test_dots_are_the_rows_of_the_table():
    several = pl.predict(["alexnet", "vgg16"], gpu=["k80-die", "v100-sxm2"], batch_size=[1, 64])
    spec, dots = drawn(devices_chart(several))
    rows = list(several.rows)
    assert [dot["value"] for dot in dots] == pytest.approx([row["throughput_per_s"] for row in rows])
    assert [dot["low"] for dot in dots] == pytest.approx([row["batch_size"] / row["high_s"] for row in rows])
    assert [panel["title"]["text"] for panel in spec["vconcat"]] == ["alexnet", "vgg16"]
    assert spec["title"]["text"] == "v100-sxm2 is the fastest"
    assert dots[1]["configuration"] == "k80-die, batch 64"


def test_one_batch_size_shows_times_and_ties_share_the_title():
    several = pl.predict("resnet50", gpu=["mi300x", "h100-sxm", "k80-die"], batch_size=[32])
    spec, dots = drawn(devices_chart(several))
    assert [dot["value"] / 1e3 for dot in dots] == pytest.approx([row["time_s"] for row in several.rows])
    title = spec["title"]["text"]
    assert title.endswith(" is the fastest") and "k80-die" not in title
    assert {"mi300x", "h100-sxm"} == set(title.removesuffix(" is the fastest").split(" or "))


def test_a_device_whose_interval_lies_below_the_others_is_the_fastest():
    """Kernels of an engine have no interval of a ratio: their own intervals decide."""
    comparison = pl.predict("llama-3-8b", gpu=["h100-sxm", "l40s", "rtx4090"], phase="decode", context=2047)
    (_, slowest_of_first), *others = (answer.interval for answer in comparison.answers)
    assert all(slowest_of_first < fastest for fastest, _ in others)
    assert devices_chart(comparison).to_dict()["title"]["text"] == "h100-sxm is the fastest"


def test_bounds_are_not_ranked_and_are_labelled_as_bounds():
    several = pl.predict("alexnet", gpu=["k80-die", "v100-sxm2"], time_model="roofline")
    spec, dots = drawn(devices_chart(several))
    assert spec["title"]["text"] == "Bounds from the data sheets"
    assert all(dot["bound"] and dot["label"].startswith("at least ") for dot in dots)


def test_predictions_that_do_not_fit_are_labelled_and_not_the_fastest():
    several = pl.predict("vgg16", gpu=["k40m", "gtx1080"], batch_size=[512])
    spec, dots = drawn(devices_chart(several))
    fits = {dot["gpu"]: dot["fits"] for dot in dots}
    assert fits == {"k40m": "no", "gtx1080": "no"}
    assert all(dot["label"].endswith("does not fit") for dot in dots)
    assert spec["title"]["text"] == "Does not fit into the memory of any device"


@pytest.mark.parametrize(
    "chart", [devices_chart, lambda several: batch_chart(several.answers)], ids=["devices", "batch"]
)
def test_what_does_not_fit_beside_what_does_is_named_and_not_drawn(chart) -> None:
    several = pl.predict("vgg16", gpu="k40m", batch_size=[16, 4096])
    spec = chart(several).to_dict()
    assert "not drawn, as the memory is too small: k40m, batch 4096" in spec.pop("title")["subtitle"]
    assert "4096" not in str(spec) and "k40m" in str(spec)


def test_too_many_predictions_raise():
    several = pl.predict("alexnet", gpu=["k40m"], batch_size=range(1, ROWS_AT_MOST + 2))
    with pytest.raises(BadValue, match="61\\): select fewer"):
        devices_chart(several)


def test_a_pipeline_on_several_numbers_of_devices_has_a_point_for_each():
    """Of four pictures the copies draw two on two devices: the time is that of a copy, the batch that of all."""
    scaled = pl.diffusion("sd-1.5", gpu="h100-sxm", workers=[1, 2], batch_size=4)
    spec, dots = drawn(devices_chart(scaled))
    assert [dot["configuration"] for dot in dots] == ["h100-sxm, 1 device", "h100-sxm, 2 devices"]
    assert [dot["value"] / 1e3 for dot in dots] == pytest.approx([row.time_s for row in scaled.found])
    assert "batch 4" in spec["title"]["subtitle"][0]


@pytest.mark.parametrize(
    ("several", "labels"),
    [
        (lambda: pl.predict("resnet50", gpu="t4", image_size=[224, 384]), ["image size 224", "image size 384"]),
        (lambda: pl.predict("llama-3-8b", gpu="l4", phase="decode", context=[1024, 4096]), ["ext 1024", "ext 4096"]),
        (lambda: pl.diffusion("sdxl", gpu="rtx4090", steps=[20, 50]), ["steps 20", "steps 50"]),
        (lambda: pl.diffusion("flux.1-dev", gpu="rtx4090", weights=["fp8", "int4"]), ["fp8", "int4"]),
    ],
)
def test_every_value_of_any_option_is_drawn(several, labels):
    """One of two points at the same place hid the other."""
    spec = str(devices_chart(several()).to_dict())
    assert [label for label in labels if label not in spec] == []

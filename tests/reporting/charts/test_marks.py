"""Shared chart elements: hollow bounds, colours of series, placement of labels."""

from __future__ import annotations

import msgspec
import pytest

pytest.importorskip("altair")

import paleo_lite as pl
from asked import scaling
from paleo_lite.errors import BadValue
from paleo_lite.reporting.charts.devices import batch_chart
from paleo_lite.reporting.charts.layers import kind_chart, layer_chart, pass_chart
from paleo_lite.reporting.charts.marks import (
    BOUNDS_LEGEND,
    SERIES_AT_MOST,
    AxisSpan,
    assign_colours_and_shapes,
    place_labels,
)
from paleo_lite.reporting.charts.pareto import pareto_chart
from paleo_lite.reporting.charts.render import SERIES, render
from paleo_lite.reporting.charts.roofline import prediction_roofline
from paleo_lite.reporting.charts.scaling import scale_chart
from paleo_lite.sweeps.best import Best


@pytest.fixture(scope="module")
def asked():
    """The same question answered by a forecast and by a bound."""
    return {model: pl.predict("alexnet", gpu="t4", batch_size=8, phase="training", time_model=model)
            for model in ("calibrated", "roofline")}  # fmt: skip


@pytest.mark.spread(1)
@pytest.mark.slow
@pytest.mark.parametrize("chart", [prediction_roofline, layer_chart, kind_chart, pass_chart])
def test_only_bounds_are_hollow_and_labelled(asked, chart):
    for model, prediction in asked.items():
        drawn = chart(prediction).to_dict()
        subtitle = drawn["title"]["subtitle"]
        text = subtitle if isinstance(subtitle, str) else " ".join(subtitle)
        assert (BOUNDS_LEGEND in text) == ("at least" in text) == (model == "roofline")
        svg = render(chart(prediction), ".svg").decode()
        assert ('fill-opacity="0.1"' in svg) == (model == "roofline")


def test_a_bound_among_forecasts_is_a_dashed_curve_named_one(asked):
    drawn = batch_chart(list(asked.values())).to_dict()
    assert BOUNDS_LEGEND in drawn["title"]["subtitle"]
    rows = drawn["data"]["values"]
    assert [(row["series"], row["bound"]) for row in rows] == [("t4", False), ("t4 (bound)", True)]
    assert "[5, 4]" in str(drawn)


def test_scaling_by_data_sheets_is_dashed():
    for model in ("calibrated", "roofline"):
        table = scaling("alexnet", gpu="t4", link="10 Gbit/s", workers=[1, 2], time_model=model)
        text = " ".join(scale_chart(table).to_dict()["title"]["subtitle"])
        assert (BOUNDS_LEGEND in text) == (model == "roofline")
        assert ("bands: 90% intervals" in text) == (model == "calibrated")


def test_a_front_marks_bounds_and_draws_intervals_of_forecasts():
    row = {"network": "alexnet", "precision": "fp32", "workers": 1, "low_s": 0.5, "high_s": 2.0, "answer": "forecast"}
    rows = [
        {**row, "gpu": "a", "batch_size": 1, "time_s": 1.0, "cost_usd": 9.0},
        {**row, "gpu": "b", "batch_size": 2, "time_s": 3.0, "cost_usd": 4.0, "answer": "bound", "low_s": None},
    ]
    chart = pareto_chart(Best(rows, "front", 20, 10, ("time_s", "cost_usd"), front=2))
    drawn = {each["device"]: each for each in chart.to_dict()["data"]["values"]}
    assert [drawn[gpu]["bound"] for gpu in "ab"] == [False, True]
    assert [drawn[gpu]["configuration"] for gpu in "ab"] == ["batch 1", "batch 2"]  # only settings that differ
    assert {key: drawn["a"][key] for key in ("y_low", "y_high")} == {"y_low": 4.5, "y_high": 18.0}  # cost goes as time
    assert "y_low" not in drawn["b"]
    text = " ".join(chart.to_dict()["title"]["subtitle"])
    assert BOUNDS_LEGEND in text and "alexnet, fp32: 2 rows in the front" in text
    left_out = msgspec.structs.replace(Best(rows[:1], "front", 20, 10, ("time_s", "cost_usd"), front=1), bounds=7)
    assert "7 bounds from the data sheets are left out" in " ".join(
        pareto_chart(left_out).to_dict()["title"]["subtitle"]
    )


def test_a_device_keeps_its_colour_if_others_fail(asked):
    assert assign_colours_and_shapes(["t4", "p4"])[0] == [SERIES[0], SERIES[1]]
    assert assign_colours_and_shapes(["p4"], ["t4", "p4"])[0] == [SERIES[1]]
    pairs = list(zip(*assign_colours_and_shapes([str(place) for place in range(20)])))
    assert len(set(pairs)) == 20
    drawn = batch_chart([asked["calibrated"]], ["v100-sxm2", "t4"]).to_dict()
    assert SERIES[1] in str(drawn) and SERIES[0] not in str(drawn)


def test_too_many_curves_raise(asked):
    many = [
        msgspec.structs.replace(
            asked["calibrated"],
            machine=msgspec.structs.replace(
                asked["calibrated"].machine,
                device=msgspec.structs.replace(asked["calibrated"].device, id=f"gpu{place}"),
            ),
        )
        for place in range(SERIES_AT_MOST + 1)
    ]
    with pytest.raises(BadValue, match=r"at most 12 curves \(got 13\): select fewer devices"):
        batch_chart(many)


def test_labels_do_not_cover_labels_points_or_the_edge():
    x, y = AxisSpan(1.0, 100.0, 300), AxisSpan(0.0, 10.0, 200, log=False)
    assert [x.fraction(10.0), y.fraction(5.0), x.value_at(0.5), y.value_at(0.5)] == pytest.approx([0.5, 0.5, 10.0, 5.0])
    alone = [{"x": 10.0, "y": 5.0, "label": "one"}]
    (layer,), named = place_labels(alone, x, y, "label")
    assert named == 1 and layer.to_dict()["mark"]["align"] == "left"
    crowd = [{"x": 10.0 + place / 100, "y": 5.0, "label": "a name"} for place in range(20)]
    layers, named = place_labels(crowd, x, y, "label")
    assert 0 < named <= 8
    leader, *labels = [layer.to_dict() for layer in layers]
    far = [label for label in labels if label["mark"]["dx"] and abs(label["mark"]["dy"]) > 13]
    assert leader["mark"]["type"] == "rule"
    assert len(leader["data"]["values"]) == sum(len(label["data"]["values"]) for label in far) > 0
    edge = place_labels([{"x": 99.0, "y": 5.0, "label": "a long name"}], x, y, "label")[0]
    assert edge[0].to_dict()["mark"]["align"] == "right"

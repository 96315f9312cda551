"""Bounds are hollow and dashed in every chart of forecasts, colours follow the asker, and names find room."""

from __future__ import annotations

import msgspec
import pytest

pytest.importorskip("altair")

import paleo_lite as pl
from paleo_lite.errors import BadValue
from paleo_lite.reporting.charts.devices import batch_chart
from paleo_lite.reporting.charts.layers import kind_chart, layer_chart, pass_chart
from paleo_lite.reporting.charts.marks import BOUNDS_ARE, SERIES_AT_MOST, Span, names_beside, told_apart
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


@pytest.mark.slow
@pytest.mark.parametrize("chart", [prediction_roofline, layer_chart, kind_chart, pass_chart])
def test_the_bound_says_so_and_is_hollow_and_the_forecast_is_not(asked, chart):
    for model, prediction in asked.items():
        drawn = chart(prediction).to_dict()
        subtitle = drawn["title"]["subtitle"]
        said = subtitle if isinstance(subtitle, str) else " ".join(subtitle)
        assert (BOUNDS_ARE in said) == ("at least" in said) == (model == "roofline")
        svg = render(chart(prediction), ".svg").decode()
        assert ('fill-opacity="0.1"' in svg) == (model == "roofline")


def test_a_bound_among_forecasts_is_a_dashed_curve_named_one(asked):
    drawn = batch_chart(list(asked.values())).to_dict()
    assert BOUNDS_ARE in drawn["title"]["subtitle"]
    rows = drawn["data"]["values"]
    assert [(row["series"], row["bound"]) for row in rows] == [("t4", False), ("t4 (bound)", True)]
    assert "[5, 4]" in str(drawn)


def test_scaling_by_data_sheets_is_dashed():
    for model in ("calibrated", "roofline"):
        table = pl.scale("alexnet", gpu="t4", link="10 Gbit/s", workers=[1, 2], time_model=model)
        said = " ".join(scale_chart(table).to_dict()["title"]["subtitle"])
        assert (BOUNDS_ARE in said) == (model == "roofline")
        assert ("bands: 90% intervals" in said) == (model == "calibrated")


def test_a_front_with_bounds_says_which_and_draws_intervals_of_the_others():
    row = {"network": "alexnet", "precision": "fp32", "workers": 1, "low_s": 0.5, "high_s": 2.0, "answer": "forecast"}
    rows = [
        {**row, "gpu": "a", "batch_size": 1, "time_s": 1.0, "cost": 9.0},
        {**row, "gpu": "b", "batch_size": 2, "time_s": 3.0, "cost": 4.0, "answer": "bound", "low_s": None},
    ]
    chart = pareto_chart(Best(rows, "front", 20, 10, ("time_s", "cost"), front=2))
    drawn = {each["device"]: each for each in chart.to_dict()["data"]["values"]}
    assert [drawn[gpu]["bound"] for gpu in "ab"] == [False, True]
    assert [drawn[gpu]["what"] for gpu in "ab"] == ["batch 1", "batch 2"]  # what differs; the rest is said once
    assert {key: drawn["a"][key] for key in ("y_low", "y_high")} == {"y_low": 4.5, "y_high": 18.0}  # cost goes as time
    assert "y_low" not in drawn["b"]
    said = " ".join(chart.to_dict()["title"]["subtitle"])
    assert BOUNDS_ARE in said and "alexnet, fp32: 2 rows in the front" in said
    left_out = msgspec.structs.replace(Best(rows[:1], "front", 20, 10, ("time_s", "cost"), front=1), bounds=7)
    assert "7 bounds of the data sheet are left out" in " ".join(pareto_chart(left_out).to_dict()["title"]["subtitle"])


def test_a_device_keeps_its_colour_where_others_do_not_answer(asked):
    assert told_apart(["t4", "p4"])[0] == [SERIES[0], SERIES[1]]
    assert told_apart(["p4"], ["t4", "p4"])[0] == [SERIES[1]]
    pairs = list(zip(*told_apart([str(place) for place in range(20)])))
    assert len(set(pairs)) == 20
    drawn = batch_chart([asked["calibrated"]], ["v100-sxm2", "t4"]).to_dict()
    assert SERIES[1] in str(drawn) and SERIES[0] not in str(drawn)


def test_too_many_curves_are_refused_in_words(asked):
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
    with pytest.raises(BadValue, match=r"tells 12 curves apart, not 13: name fewer devices"):
        batch_chart(many)


def test_names_cover_neither_each_other_nor_points_nor_the_edge():
    x, y = Span(1.0, 100.0, 300), Span(0.0, 10.0, 200, log=False)
    assert [x.share(10.0), y.share(5.0), x.value(0.5), y.value(0.5)] == pytest.approx([0.5, 0.5, 10.0, 5.0])
    alone = [{"x": 10.0, "y": 5.0, "what": "one"}]
    (layer,), named = names_beside(alone, x, y, "what")
    assert named == 1 and layer.to_dict()["mark"]["align"] == "left"
    crowd = [{"x": 10.0 + place / 100, "y": 5.0, "what": "a name"} for place in range(20)]
    assert 0 < names_beside(crowd, x, y, "what")[1] <= 8
    edge = names_beside([{"x": 99.0, "y": 5.0, "what": "a long name"}], x, y, "what")[0]
    assert edge[0].to_dict()["mark"]["align"] == "right"

"""Charts of scaling, sweeps and accuracy: numbers equal to those of the result, and reports of omitted points.

Tests: reporting/charts/accuracy.py, reporting/charts/pareto.py, reporting/charts/ranking.py,
reporting/charts/scaling.py.
"""

from __future__ import annotations

import io
import math
import re

import msgspec
import numpy as np
import pytest

pytest.importorskip("altair")

import paleo_lite as pl
from asked import scaling
from paleo_lite.api.plotting import Plot
from paleo_lite.calibration.accuracy import error_statistics
from paleo_lite.calibration.fit import calibrate
from paleo_lite.calibration.measurements import Measurement
from paleo_lite.calibration.validate import AccuracyRow, Point, Validation
from paleo_lite.distributed.table import ScaleRow
from paleo_lite.errors import BadValue
from paleo_lite.machines import find_device
from paleo_lite.reporting.charts.accuracy import BARS_AT_MOST, Pair, accuracy_chart, fitted_pairs, network_pairs
from paleo_lite.reporting.charts.pareto import pareto_chart
from paleo_lite.reporting.charts.ranking import best_chart
from paleo_lite.reporting.charts.render import POINTS_AT_MOST, log_ticks, render
from paleo_lite.reporting.charts.scaling import scale_chart, scaling_chart
from paleo_lite.sweeps.best import Best

pytestmark = pytest.mark.slow


def specs(chart):
    """All parts of a chart that have data, deepest last."""
    found = []

    def walk(spec):
        if isinstance(spec, dict):
            if isinstance(spec.get("data"), dict) and "values" in spec["data"]:
                found.append(spec)
            for each in spec.values():
                walk(each)
        elif isinstance(spec, list):
            for each in spec:
                walk(each)

    walk(chart.to_dict())
    return found


def data(chart, key):
    """The inline rows that have a key."""
    return [row for spec in specs(chart) for row in spec["data"]["values"] if key in row]


def subtitle(chart):
    lines = chart.to_dict()["title"]["subtitle"]
    return lines if isinstance(lines, str) else " ".join(lines)


def title(chart):
    return chart.to_dict()["title"]["text"]


@pytest.mark.thorough
def test_scaling_curves_are_the_rows():
    table = scaling("alexnet", gpu="k80-die", link="ethernet20", workers="1,2,4,8", price="0.9 USD/h", images="1M")
    chart = scale_chart(table)
    points = data(chart, "speedup")
    drawn = {row["workers"]: row for row in points if "series" in row}
    assert {n: row["speedup"] for n, row in drawn.items()} == {row.workers: row.speedup for row in table}
    assert {row["series"] for row in drawn.values()} == {"data"}  # one worker has no collective, and is on the curve
    parts = data(chart, "part")
    assert sum(row["time"] for row in parts if row["workers"] == 8) == pytest.approx(table[3].time_s)
    assert sum(row["share"] for row in parts if row["workers"] == 8) == pytest.approx(1)
    assert "cost (USD)" in str(chart.to_dict())
    assert render(chart, ".svg", "dark").startswith(b"<svg")


def test_several_collectives_are_several_curves():
    rows = [
        ScaleRow(0.4, 0.1, 0.1, workers=n, batch_size=32 * n, single_worker_per_s=64.0, collective=each)
        for n in (2, 4) for each in ("ring", "tree")
    ]  # fmt: skip
    drawn = data(scaling_chart(rows), "series")
    assert {row["series"] for row in drawn} == {"data ring", "data tree"}


def test_title_names_the_best_series_and_forecasts_precede_bounds():
    rows = [
        ScaleRow(compute_s, 0.1, 0.1, workers=4, batch_size=32, single_worker_per_s=64.0, strategy=gpu)
        for gpu, compute_s in (("t4", 0.4), ("k80", 0.1))
    ]  # fmt: skip
    bounds = ((), ("k80",), ("k80", "t4"))
    titles = [scaling_chart(rows, bounds=some).to_dict()["title"]["text"] for some in bounds]
    # 32 samples in 0.2 and 0.5 s, where one worker does 64 in a second
    assert titles[0] == "k80 scales best: speed-up 2.5 on 4 workers; 50% of a step is exposed communication"
    assert titles[1] == "t4 scales best: speed-up 1 on 4 workers; 20% of a step is exposed communication"
    assert titles[2].startswith("k80 scales best: speed-up at most 2.5 on 4 workers")
    unsure = [msgspec.structs.replace(row, cluster_interval=(row.time_s / 2, row.time_s * 2)) for row in rows]
    assert (
        scaling_chart(unsure)
        .to_dict()["title"]["text"]
        .startswith("No significant difference: speed-up 1 to 2.5 on 4 workers")
    )


def test_advice_is_a_bar_for_each_strategy():
    table = scaling("alexnet", gpu="k80-die", link="ethernet20", workers="4", advise="time")
    chart = scale_chart(table)
    parts = data(chart, "part")
    sums = {}
    for row in parts:
        sums[row["strategy"]] = sums.get(row["strategy"], 0.0) + row["time"]
    unit = {"s": 1.0, "ms": 1e3}[re.search(r"time of a step \((\w+)\)", str(chart.to_dict())).group(1)]
    assert list(sums.values()) == pytest.approx([row.time_s * unit for row in table.rows])
    assert next(iter(sums)).startswith(f"1. {table.rows[0].strategy}")


@pytest.mark.parametrize(
    ("network", "ranked", "order"),
    [
        ("llama-3.1-8b", "time", "by time"),
        ("llama-3.1-8b", "joules", "by energy per sample"),
        ("alexnet", "time", "by time; within 2%, simpler ones first"),
    ],
)
def test_the_chart_of_advice_says_how_it_is_ordered(network: str, ranked: str, order: str) -> None:
    """Divisions of blocks are ordered by time or energy alone; of strategies of layers the simpler come first."""
    table = pl.train(network, gpu="h100-sxm", workers=8, advise=ranked)
    text = subtitle(scale_chart(table))
    assert f"order: those that fit into memory, then {order}" in text
    assert ("within 2%" in text) is ("within 2%" in order)
    fitting = [row for row in table.rows if row.fits]
    if network == "llama-3.1-8b":
        keys = [row.time_s if ranked == "time" else row.energy_per_sample_j for row in fitting]
        assert keys == sorted(keys)


def test_no_rows_and_one_row():
    with pytest.raises(BadValue, match="nothing to draw"):
        scaling_chart([])
    one = scaling("alexnet", gpu="k80-die", link="ethernet20", workers="1")
    chart = scale_chart(one)
    assert render(chart, ".svg")
    (step_s,) = {row["time"] / 1e3 for row in data(chart, "label")}
    assert step_s == pytest.approx(one.rows[0].time_s) and title(chart).endswith(" per step")


FRONT = [
    {"network": "resnet50", "gpu": gpu, "precision": "fp32", "batch_size": 1, "workers": 1, "hours": hours,
     "cost_usd": cost, "throughput_per_s": 1 / hours}
    for gpu, hours, cost in (("a", 1.0, 9.0), ("b", 2.0, 4.0), ("c", 40.0, 1.0))
]  # fmt: skip


def front(columns=("hours", "cost_usd"), rows=FRONT, sample=((1.0, 9.0), (3.0, 8.0))):
    return Best(list(rows), "front", 20, 10, tuple(columns), list(sample), front=len(rows))


def test_a_front_is_drawn_as_steps():
    chart = pareto_chart(front())
    drawn = data(chart, "configuration")
    assert [(row["x"], row["y"], row["device"]) for row in drawn] == [
        (1.0, 9.0, "a"),
        (2.0, 4.0, "b"),
        (40.0, 1.0, "c"),
    ]
    assert "step-after" in str(chart.to_dict())
    assert {(row["x"], row["y"]) for row in data(chart, "x") if len(row) == 2} == {(1.0, 9.0), (3.0, 8.0)}
    assert "3 rows in the front, of 10 rows that fit, of 20 in all" in subtitle(chart)
    assert "hours, low is better" in str(chart.to_dict())
    assert "step-before" in str(pareto_chart(front(("throughput_per_s", "cost_usd"), sample=())).to_dict())


def test_many_devices_share_the_last_colour_and_many_rows_are_thinned(monkeypatch):
    monkeypatch.setattr("paleo_lite.reporting.charts.pareto.POINTS_AT_MOST", 300)
    rows = [
        {**FRONT[0], "gpu": f"gpu{place % 20}", "hours": 1.0 + place, "cost_usd": 1e6 - place} for place in range(600)
    ]
    chart = pareto_chart(front(rows=rows))
    drawn = data(chart, "configuration")
    assert len(drawn) == 300
    assert "1 in 2 rows of the front is drawn" in subtitle(chart)
    assert len({row["gpu"] for row in drawn}) == 8
    assert len(render(chart, ".svg")) < 5e6


def test_a_ranking_by_one_column_is_drawn_as_bars():
    rows = [{**row, "time_s": 1.0, "low_s": 0.5, "high_s": 3.0} for row in FRONT]
    spec = best_chart(front(("throughput_per_s",), rows=rows)).to_dict()
    drawn = spec["data"]["values"]
    assert [(row["row"], row["value"]) for row in drawn] == [("a", 1.0), ("b", 0.5), ("c", 0.025)]
    assert [(row["low"], row["high"], row["end"]) for row in drawn[:2]] == [(2.0, 1 / 3, 2.0), (1.0, 1 / 6, 1.0)]
    assert spec["title"]["text"] == "Front: a" and "high is better" in str(spec)
    assert best_chart(front()).to_dict()["title"]["text"] == pareto_chart(front()).to_dict()["title"]["text"]


def test_labels_of_a_ranking_are_data_and_told_apart_by_their_place():
    """A name of a file is no part of an expression that the chart evaluates."""
    hostile = "x'][datum.value]+alert(1)+['"
    spec = best_chart(front(("throughput_per_s",), rows=[{**FRONT[0], "gpu": hostile}] * 2)).to_dict()
    drawn = spec["data"].pop("values")
    assert [row["row"] for row in drawn] == [f"{hostile}, row 1", f"{hostile}, row 2"]
    assert "Expr" not in str(spec)


def test_rows_that_are_not_a_front_raise():
    with pytest.raises(BadValue, match="nothing to draw"):
        pareto_chart(front(rows=[]))


def pairs(number, interval=True):
    return [
        Pair(f"p{i}", "fp32", 0.01 * 1.01**i, 0.012 * 1.01**i, (0.01 * 1.01**i, 0.014 * 1.01**i) if interval else None)
        for i in range(number)
    ]


def test_points_errors_and_guides():
    chart = accuracy_chart([*pairs(3), Pair("off", "fp16", 0.1, 0.05)], "title", "said")
    points = {row["name"]: row for row in data(chart, "name")}
    assert (points["off"]["measured"], points["off"]["predicted"]) == (pytest.approx(100), pytest.approx(50))
    assert points["off"]["error"] == pytest.approx(-0.5)
    assert points["off"]["low"] is None and points["p0"]["high"] == pytest.approx(14)
    guides = [spec["data"]["values"] for spec in specs(chart) if "error" not in spec["data"]["values"][0]]
    ratios = sorted(end["predicted"] / end["measured"] for line in guides for end in line if "predicted" in end)
    assert ratios == pytest.approx([1 / 1.2] * 2 + [1.0] * 2 + [1.2] * 2)
    assert "said; dashed: a factor of 1.2 to either side; bars: 90% intervals" in subtitle(chart)


def test_accuracy_title_has_mean_error_and_coverage():
    exact, off = Pair("exact", "fp16", 0.1, 0.1, (0.08, 0.12)), Pair("off", "fp16", 0.1, 0.05, (0.04, 0.06))
    chart = accuracy_chart([exact, off], "title")
    assert chart.to_dict()["title"]["text"] == "Mean error 25.0% over 2 points; 90% intervals contain 50%"


def test_the_title_of_held_out_groups_is_that_of_their_table():
    """Two groups, of one and of three points: (40% + 0%) / 2, while the mean of the points would be 10%."""
    rows, points = [], []
    for gpu, errors in (("t4", [0.4]), ("k40m", [0.0, 0.0, 0.0])):
        measurements = [Measurement(gpu, "alexnet", 2**i, "inference", "fp32", 0.01 * 2**i) for i in range(len(errors))]
        own = [Point(m, m.time_s * (1 + error), 0.05) for m, error in zip(measurements, errors)]
        times = [np.array(column) for column in zip(*((p.measurement.time_s, p.predicted_s, p.deviation) for p in own))]
        rows.append(
            AccuracyRow("network", gpu, "fp32", "inference", len(own), **error_statistics(*times), baselines={})
        )
        points += own
    validation = Validation("network", rows, points)
    spec = Plot("accuracy", validation).chart.to_dict()
    document = validation.document()
    assert spec["title"]["text"] == "Mean error 20.0% over 2 groups of measurements; 90% intervals contain 75%"
    assert "20.0% mean absolute error over 2 groups of measurements" in document.title
    assert dict(document.facts)["coverage"] == "75% of 4 points lie in their 90% interval"


def test_a_picture_has_its_title_in_its_metadata():
    from PIL import Image

    chart = accuracy_chart(pairs(3), "title")
    assert Image.open(io.BytesIO(render(chart, ".png"))).text["Title"] == chart.to_dict()["title"]["text"]


@pytest.mark.spread(2)
@pytest.mark.parametrize("number", [1, BARS_AT_MOST + 1, 3 * POINTS_AT_MOST])
def test_one_many_and_too_many_points(number):
    chart = accuracy_chart(pairs(number) if number < 1000 else pairs(500) * (number // 500), "title")
    text = subtitle(chart)
    assert ("90% intervals" in text) == (number == 1)
    assert ("points are drawn" in text) == (number > POINTS_AT_MOST)
    assert len(render(chart, ".svg")) < 5e6


def test_no_points_raise():
    with pytest.raises(BadValue, match="nothing to draw"):
        accuracy_chart([], "title")


def test_fitted_pairs_follow_from_the_residuals():
    times = {"alexnet": 0.03, "resnet18": 0.06, "resnet34": 0.11}
    measured = [Measurement("k40m", name, 32, "inference", "fp32", time_s) for name, time_s in times.items()]
    ordered, fit = calibrate(measured, find_device("k40m"), "fp32")
    drawn = {pair.name.partition(",")[0]: pair for pair in fitted_pairs(ordered, fit)}
    for each, residual in zip(ordered, fit.residuals):
        assert drawn[each.network].measured_s == times[each.network]
        assert math.log(drawn[each.network].predicted_s / each.time_s) == pytest.approx(residual)


def test_an_interval_is_the_deviation_of_the_logarithm_either_way():
    measurement = Measurement("k40m", "alexnet", 32, "inference", "fp32", 0.03)
    (pair,) = network_pairs([Point(measurement, 0.04, 0.1)])
    low, high = pair.interval
    assert math.sqrt(low * high) == pytest.approx(0.04)
    assert math.log(high / low) == pytest.approx(2 * 2.015 * 0.1)  # Student's t of 5 degrees of freedom, 90%


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0.3, 2000, [1, 10, 100, 1000]), (3.0, 300, [5, 10, 20, 50, 100, 200]), (1.5, 4.0, [2])],
)
def test_log_ticks(low, high, ticks):
    assert log_ticks(low, high) == pytest.approx(ticks)


def test_png_recompression_is_lossless():
    import vl_convert
    from PIL import Image

    from paleo_lite.reporting.charts.render import _recompress_png

    packed = vl_convert.vegalite_to_png(accuracy_chart(pairs(50), "title").to_dict(), scale=2)
    small = _recompress_png(packed)
    assert len(small) < len(packed) / 2
    first, second = (Image.open(io.BytesIO(each)) for each in (packed, small))
    assert second.tobytes() == first.tobytes()
    assert second.info == first.info


@pytest.mark.thorough
def test_a_scaling_chart_says_which_rows_do_not_fit():
    table = scaling("llama-3-8b", platform="dgx-h100", workers="1,2", precision="bf16", batch_size=32)
    assert [row.fits for row in table.rows] == [False, False]
    chart = scale_chart(table)
    assert "does not fit into memory: 1, 2 workers" in subtitle(chart)
    assert title(chart).startswith("Does not fit into memory")
    alone = scaling("llama-3-8b", platform="dgx-h100", workers="1", precision="bf16", batch_size=32)
    assert title(scale_chart(alone)).startswith("Does not fit into memory")
    question = {"precision": "bf16", "batch_size": 16, "scaling": "strong"}
    some = scaling("llama-3-8b", platform="dgx-h100", workers="2,8", **question)
    assert [row.fits for row in some.rows] == [False, True]
    assert re.match(r"Speed-up [\d.]+ on 8 workers", title(scale_chart(some)))

"""Times of several answers as points: tables of training, machines of one's own, steps of reinforcement learning."""

from __future__ import annotations

import pytest

import paleo_lite as pl
from paleo_lite.api.plotting import Plot, chart_of_comparison
from paleo_lite.errors import BadValue
from paleo_lite.reporting.charts.side_by_side import side_by_side_chart
from paleo_lite.sweeps.comparison import Comparison


def test_tables_of_several_networks_have_a_chart() -> None:
    asked = {"gpu": "v100-sxm2", "workers": [1, 2], "batch_size": 8}
    compared = pl.train(["resnet18", "alexnet"], **asked)
    assert isinstance(compared, Comparison) and chart_of_comparison(compared) == "devices"
    drawn = Plot("devices", compared).chart.to_dict()
    (rows,) = drawn["datasets"].values() if "datasets" in drawn else (drawn["data"]["values"],)
    times_s = [row.time_s for table in compared.answers for row in table]
    assert [row["step"] for row in rows] == ["resnet18, devices 1", "resnet18, devices 2", "alexnet, devices 1",
                                             "alexnet, devices 2"]  # fmt: skip
    factor = rows[0]["time"] / times_s[0]
    assert [row["time"] for row in rows] == pytest.approx([time_s * factor for time_s in times_s])
    assert all(row["low"] < row["time"] < row["high"] for row in rows)


def test_answers_without_a_time_have_no_chart() -> None:
    with pytest.raises(BadValue, match="none of its answers has a time"):
        side_by_side_chart(Comparison("train", []), "Steps side by side", "step")

"""Splitting of charts into panels, and escaping of Markdown."""

from __future__ import annotations

import pytest

pytest.importorskip("streamlit")
pytest.importorskip("altair")

import paleo_lite as pl
from asked import scaling
from paleo_lite.reporting.charts.devices import batch_chart
from paleo_lite.reporting.charts.layers import kind_chart, layer_chart, pass_chart
from paleo_lite.reporting.charts.reinforcement import rl_chart
from paleo_lite.reporting.charts.roofline import prediction_roofline
from paleo_lite.reporting.charts.scaling import scaling_chart
from paleo_lite.web.show import escape_markdown, split_panels, table_to_frame


@pytest.fixture(scope="module")
def prediction():
    return pl.predict("mobilenet_v2", gpu="titan-rtx", batch_size=8, phase="training")


def rows_of(panel):
    inside = panel["layer"][0]
    return inside["data"]["values"]


@pytest.mark.slow
def test_panels_keep_all_data_and_lose_their_widths(prediction):
    charts = {
        prediction_roofline: 1,
        layer_chart: 3,
        kind_chart: 3,
        pass_chart: 1,
        lambda each: batch_chart([each]): 2,
    }
    for make, number in charts.items():
        panels = split_panels(make(prediction).to_dict())
        assert len(panels) == number
        assert not any("width" in panel or "width" in panel["layer"][0] for panel in panels)
        assert all(isinstance(panel["height"], (int, float)) for panel in panels)
    for panel in split_panels(layer_chart(prediction).to_dict()):
        assert sum(row["flops"] for row in rows_of(panel)) == prediction.flops


def test_facets_divide_the_rows(prediction):
    chart = kind_chart(prediction).to_dict()
    panels = split_panels(chart)
    assert [panel["title"] for panel in panels] == ["time", "FLOPs", "bytes"]
    for panel in panels:
        assert {row["quantity"] for row in rows_of(panel)} == {panel["title"]}
        assert panel["height"] == 19 * len({row["kind"] for row in rows_of(panel)})
    assert sum(len(rows_of(panel)) for panel in panels) == len(chart["data"]["values"])


def test_panels_below_one_another_have_one_legend(prediction):
    legends = [panel["layer"][0]["encoding"]["color"].get("legend", "present") for panel in split_panels(
        layer_chart(prediction).to_dict())]  # fmt: skip
    assert legends == [None, None, "present"]


def test_a_panel_keeps_the_legend_that_no_later_one_repeats():
    answer = pl.rl("qwen3-0.6b", gpu="h100-sxm", response_tokens=200)
    phases, live = split_panels(rl_chart(answer).to_dict())
    assert phases["layer"][0]["encoding"]["color"]["legend"]["orient"] == "bottom"
    assert "color" not in live["layer"][0]["encoding"]


def test_scaling_of_several_strategies_is_a_curve_each():
    rows = []
    for strategy in ("data", "zero-1"):
        rows += scaling("alexnet", gpu="t4", link="25 GB/s", workers=[1, 2], strategy=strategy).rows
    _, communication = split_panels(scaling_chart(rows).to_dict())
    shares = {(row["series"], row["workers"]): row["exposed"] for row in rows_of(communication)}
    assert shares == {(row.strategy, row.workers): pytest.approx(row.exposed_s / row.time_s) for row in rows}


def test_columns_of_one_heading_keep_their_own_values():
    """The intervals of times and of speed-ups have the same headings."""
    answer = pl.predict("resnet50", gpu=["k80-die", "v100-sxm2"], batch_size=32)
    frame = table_to_frame(answer.document().tables[0])
    first, second = answer.answers
    assert list(frame["from (90%)"]) == [first.interval[0], second.interval[0]]
    assert list(frame["to (90%)"]) == [first.interval[1], second.interval[1]]
    low, high = frame["speed-up from"][1], frame["speed-up to"][1]
    assert low < first.time_s / second.time_s < high


@pytest.mark.parametrize(
    "text", ["a*b*_c_", "void f<4>(int*)", "1 $ and 2 $", "[x](y)", "`rm`", ":red[x]", "~~a~~", "# a"]
)
def test_markdown_in_names_is_escaped(text):
    shown = escape_markdown(text)
    assert shown.replace("\\", "") == text
    for sign in "*_<>$[]`~#":
        assert sign not in shown.replace(f"\\{sign}", "")

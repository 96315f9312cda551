"""Cost over time of several devices: the recorded prices, the Pareto front, and what is left out."""

from __future__ import annotations

import pytest

pytest.importorskip("altair")

import paleo_lite as pl
from paleo_lite.errors import BadValue
from paleo_lite.machines.prices import choose_price
from paleo_lite.reporting.charts.cost import cost_chart, pareto_front, select_priced
from paleo_lite.reporting.charts.render import render

GPUS = ["v100-sxm2", "t4", "a100-sxm-80gb", "k40m"]


@pytest.fixture(scope="module")
def predictions():
    return pl.predict("resnet50", gpu=GPUS, batch_size=32)


def rows_of(chart):
    return {row["device"]: row for layer in chart.to_dict()["layer"] for row in layer["data"]["values"]
            if "device" in row}  # fmt: skip


def test_cost_is_time_per_sample_times_the_price_of_the_device(predictions):
    """A V100 is 3.06 USD/h (p3.2xlarge on demand, hardware/v100-sxm2.toml); 32 samples per step."""
    rows = rows_of(cost_chart(predictions))
    time_s = pl.predict("resnet50", gpu="v100-sxm2", batch_size=32).time_s
    assert rows["v100-sxm2"]["y"] == pytest.approx(3.06 / 3600 * time_s / 32 * 1e6)
    row = rows["v100-sxm2"]
    assert row["y_high"] / row["y_low"] == pytest.approx(row["x_high"] / row["x_low"])


def test_no_other_device_is_faster_and_cheaper_than_one_on_the_front(predictions):
    rows = rows_of(cost_chart(predictions)).values()
    front = [row for row in rows if row["front"]]
    assert front
    for row in rows:
        is_dominated = any(other["x"] < row["x"] and other["y"] < row["y"] for other in rows)
        assert row["front"] == (not is_dominated)


def test_a_device_without_price_is_named(predictions):
    drawn, reasons = select_priced(predictions.answers)
    assert [prediction.device.id for prediction in drawn] == GPUS[:3]
    assert reasons == ["k40m (no recorded price)"]
    assert "left out: k40m (no recorded price)" in cost_chart(predictions).to_dict()["title"]["subtitle"]
    assert len(pareto_front(drawn[:1])) == 1


def test_nothing_to_draw_is_one_sentence():
    with pytest.raises(BadValue, match=r"^there is nothing to draw: k40m \(no recorded price\)$"):
        cost_chart(pl.predict("alexnet", gpu=["k40m"]))
    with pytest.raises(BadValue, match=r"t4 \(does not fit into memory\)$"):
        cost_chart(pl.predict("llama-3-8b", gpu=["t4"], precision="fp16", phase="decode", batch_size=8))
    with pytest.raises(BadValue, match=r"t4 \(a bound, not a forecast\)$"):
        cost_chart(pl.predict("alexnet", gpu=["t4"], time_model="roofline"))


@pytest.mark.slow
def test_by_default_all_devices_with_a_price_are_drawn():
    predictions = pl.plot("cost", "resnet50", batch_size=8).answer
    priced = {device.id for device in pl.devices() if choose_price(device) is not None}
    assert set(rows_of(cost_chart(predictions))) <= priced
    assert render(cost_chart(predictions), ".svg", "dark").startswith(b"<svg")

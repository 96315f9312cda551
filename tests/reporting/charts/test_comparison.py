"""PPP chart: measured times and times predicted by one PPP, by class and by layer."""

from __future__ import annotations

import pytest

pytest.importorskip("altair")

import paleo_lite as pl
from paleo_lite.calibration.comparison import compare_with_profile
from paleo_lite.calibration.ppp import AT_PEAK
from paleo_lite.errors import BadValue
from paleo_lite.profile_analysis.compare import RunComparison
from paleo_lite.profile_analysis.pass_times import PassTimes
from paleo_lite.reporting.charts.comparison import comparison_chart, ppp_chart
from paleo_lite.reporting.charts.render import render
from tests.reporting.charts.test_profile_charts import data


@pytest.fixture(scope="module")
def beside():
    """VGG-16 with convolutions at half and linear layers at a quarter of the peak rates."""
    prediction = pl.predict("vgg16", gpu="k40m", batch_size=8, time_model="ppp", ppp=0.4)
    at_peak = AT_PEAK.evaluate(prediction.workload, prediction.machine).layers_s.sum(axis=0)
    times = {}
    for kind, own, share in (("convolution", "conv2d", 0.5), ("linear", "linear", 0.25)):
        times[kind, "forward"] = tuple(
            float(seconds) / share for seconds, is_of in zip(at_peak, prediction.kinds) if is_of == own
        )
    sums = {key: sum(layers) for key, layers in times.items()}
    return compare_with_profile("run", PassTimes("inference", 3, 3, sums, times, True), prediction)


def test_share_of_peak_by_class_and_layer(beside):
    rows = data(ppp_chart(beside))
    shares = {row["class"]: row["share"] for row in rows if str(row.get("measure", "")).startswith("PPP")}
    assert shares == {"forward: convolution": pytest.approx(0.5), "forward: linear": pytest.approx(0.25)}
    layers = {row["name"]: row["ppp"] for row in rows if "place" in row}
    assert len(layers) == 16
    assert layers["features.0"] == pytest.approx(0.5) and layers["classifier.0"] == pytest.approx(0.25)


def test_time_predicted_by_the_ppp_is_time_at_peak_over_ppp(beside):
    rows = data(ppp_chart(beside))
    times = {(row["class"], row["side"]): row["time"] for row in rows if "side" in row}
    for what, share in (("forward: convolution", 0.5), ("forward: linear", 0.25)):
        assert times[what, "by the PPP"] / times[what, "measured"] == pytest.approx(share / 0.4)
    assert "PPP 0.4" in str(ppp_chart(beside).to_dict())


@pytest.mark.thorough
@pytest.mark.slow
def test_comparison_with_a_ppp_model_is_the_ppp_chart_and_two_profiles_raise(beside):
    assert comparison_chart(beside).to_dict() == ppp_chart(beside).to_dict()
    assert render(ppp_chart(beside), ".svg", "dark").startswith(b"<svg")
    with pytest.raises(BadValue, match="compares one profile with a prediction: --predict NETWORK"):
        ppp_chart(RunComparison.__new__(RunComparison))

"""Suggested alternatives of a prediction equal the results of `predict` with their arguments."""

from __future__ import annotations

import pytest

from asked import predict_any
from paleo_lite.architectures import find_network
from paleo_lite.calibration.alternatives import try_alternatives
from paleo_lite.timing.training_options import TrainingOptions

ASKED = {
    "gpu": "v100-sxm2",
    "precision": "fp32",
    "batch_size": 8,
    "phase": "training",
    "time_model": None,
    "ppp": None,
    "clock": None,
    "unit": None,
    "calibration": None,
    "execution": "eager",
    "hardware_files": (),
    "fit_batch": False,
    "training": TrainingOptions("adam"),
    "memory": True,
}


@pytest.mark.slow
def test_alternatives_match_predict():
    asked = {**ASKED, "network": find_network("resnet18")}
    found = try_alternatives(predict_any(**asked), asked["time_model"])
    by_name = {each.name: each for each in found.tried}
    for size in (16, 32, 64):
        again = predict_any(**{**asked, "batch_size": size})
        assert by_name[f"batch {size}"].prediction.time_s == pytest.approx(again.time_s)
    mixed = TrainingOptions("adam", mixed_precision=True)
    again = predict_any(**{**asked, "precision": "fp16", "training": mixed})
    assert by_name["mixed precision in fp16"].prediction.time_s == pytest.approx(again.time_s)
    for device in ("Tesla K40m", "H100 SXM5 80GB"):
        again = predict_any(**{**asked, "gpu": device})
        other = by_name[device].prediction
        assert (other.time_s, other.memory.fits) == (pytest.approx(again.time_s), again.memory.fits)
    assert not any("compiled" in name for name in by_name)  # training is not fused
    assert "Apple M3 Ultra" not in by_name  # only a bound is known of it


@pytest.mark.parametrize("model", ["roofline", "peak"])
def test_a_bound_is_compared_with_bounds(model):
    asked = {**ASKED, "network": find_network("alexnet"), "phase": "inference", "training": None, "time_model": model}
    found = try_alternatives(predict_any(**asked), asked["time_model"])
    assert {each.prediction.model.name for each in found.tried} == {model}
    by_name = {each.name: each for each in found.tried}
    again = predict_any(**{**asked, "gpu": "mi300x"})
    assert by_name["Instinct MI300X"].prediction.time_s == pytest.approx(again.time_s)
    assert "folded: batch norms in convolutions, chains fused" in by_name


def test_where_only_a_bound_is_known_all_alternatives_are_bounds():
    """No measurement covers the Apple M3 Ultra, so that the default is the bound, and that of the others as well."""
    asked = {**ASKED, "network": find_network("alexnet"), "phase": "inference", "training": None, "gpu": "m3-ultra"}
    prediction = predict_any(**asked)
    assert prediction.model.name == "bound"
    found = try_alternatives(prediction)
    (on_v100,) = [each.prediction for each in found.tried if each.name == "Tesla V100 SXM2"]
    bound = predict_any(**{**asked, "gpu": "v100-sxm2", "time_model": "bound"})
    assert on_v100.time_s == pytest.approx(bound.time_s)


def test_ppp_does_not_apply_to_other_platforms():
    asked = {**ASKED, "network": find_network("alexnet"), "phase": "inference", "training": None, "ppp": 0.5}
    found = try_alternatives(predict_any(**asked), asked["time_model"])
    assert {each.change for each in found.tried} == {"batch", "execution"}
    assert any("a PPP holds only for the platform" in text for text in found.left_out)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_batch_that_does_not_fit_is_compared_with_the_largest_that_does():
    asked = {**ASKED, "network": find_network("vgg16"), "batch_size": 4096}
    prediction = predict_any(**asked)
    assert not prediction.memory.fits
    largest = prediction.memory.largest_batch
    names = [each.name for each in try_alternatives(prediction).tried if each.change == "batch"]
    assert names == [f"batch {largest:,}, the largest that fits"]


def test_narrower_precisions_are_tried_and_training_stays_mixed():
    asked = {**ASKED, "network": find_network("alexnet"), "time_model": "roofline"}
    (training,) = [
        each for each in try_alternatives(predict_any(**asked), "roofline").tried if each.change == "precision"
    ]
    assert training.name == "mixed precision in fp16"
    assert training.prediction.workload.options.mixed_precision
    inference = predict_any(**{**asked, "phase": "inference", "training": None})
    names = [each.name for each in try_alternatives(inference, "roofline").tried if each.change == "precision"]
    assert names == ["fp16"]

"""Comparison of a prediction with measured passes: the operations that correspond to each layer."""

from __future__ import annotations

import pytest

import paleo_lite as pl
from asked import predict_any
from paleo_lite.calibration.comparison import compare_with_profile, kind_of_layer
from paleo_lite.profile_analysis.pass_times import PassTimes


def measured(seconds, layers=None, has_ops=True):
    return PassTimes("training", 10, 12, seconds, layers or {}, has_ops)


@pytest.fixture(scope="module")
def alexnet():
    return predict_any("alexnet", gpu="k40m", batch_size=8, phase="training", time_model="roofline")


def test_layers_are_matched_in_order_and_backwards_in_reverse(alexnet):
    convolutions = [name for name, kind in zip(alexnet.names, alexnet.kinds) if kind == "conv2d"]
    times = tuple(float(place) for place in range(1, len(convolutions) + 1))
    layers = {("convolution", "forward"): times, ("convolution", "backward"): times, ("linear", "forward"): (1.0,)}
    beside = compare_with_profile("run", measured({("convolution", "forward"): 15.0}, layers), alexnet)
    rows = {(row.name, row.part): row for row in beside.layers}
    assert {row.name for row in beside.layers} == set(convolutions)  # one linear operation cannot be three layers
    assert rows[convolutions[0], "forward"].measured_s == 1 and rows[convolutions[-1], "backward"].measured_s == 1
    first = alexnet.names.index(convolutions[0])
    assert rows[convolutions[0], "forward"].predicted_s == pytest.approx(alexnet.terms.layers_s[0, first])


def test_kinds_meet_and_totals_hold(alexnet):
    beside = compare_with_profile(
        "run", measured({("convolution", "forward"): 0.5, ("input", "forward"): 0.1}), alexnet
    )
    rows = {(row.name, row.part): row for row in beside.kinds}
    assert rows["input", "forward"].predicted_s is None and rows["input", "forward"].ratio is None
    assert rows["linear", "forward"].measured_s is None
    assert sum(row.predicted_s or 0 for row in beside.kinds) == pytest.approx(alexnet.time_s)
    assert beside.kinds[0].name == "convolution"  # they differ most there


def test_a_profile_of_something_else_is_faster_than_the_data_sheet_allows(alexnet):
    def doubts(seconds: float) -> bool:
        notes = compare_with_profile("run", measured({("convolution", "forward"): seconds}), alexnet).notes
        return any("the data sheet allows no less than" in note for note in notes)

    assert doubts(alexnet.bound_s / 10) and not doubts(alexnet.bound_s * 0.9)


def test_without_operations_matrix_products_are_one(alexnet):
    seconds = {("convolution", "forward"): 0.5, ("gemm", "forward"): 0.25}
    beside = compare_with_profile("run", measured(seconds, has_ops=False), alexnet)
    (row,) = [row for row in beside.kinds if row.name == "convolution and linear" and row.part == "forward"]
    assert row.measured_s == pytest.approx(0.75) and row.predicted_s is not None
    assert any("does not name operations" in note for note in beside.notes)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("conv2d", "convolution"),
        ("conv_transpose2d", "convolution"),
        ("max_pool", "pooling"),
        ("batch_norm", "batch_norm"),
        ("layer_norm", "normalization"),
        ("linear", "linear"),
        ("relu", "elementwise"),
        ("attention", "attention"),
    ],
)
def test_kinds_of_layers(kind, expected):
    assert kind_of_layer(kind) == expected


def test_waits_for_the_host_are_gaps_on_both_sides() -> None:
    """A device that waits for its host: kinds and layers have the time of the device alone, and the rest are gaps."""
    waiting = pl.predict("resnet50", gpu="h100-sxm", precision="fp16")
    assert waiting.terms.host_slowdown > 1.5
    times = PassTimes("inference", 3, 3, {("convolution", "forward"): 1e-3}, {}, True, gap_s=4e-3)
    beside = compare_with_profile("a", times, waiting)
    assert (beside.measured_s, beside.predicted_s) == (pytest.approx(5e-3), waiting.time_s)
    (gaps,) = [row for row in beside.kinds if row.name == "gaps"]
    device_s = waiting.terms.layers_s.sum() / waiting.terms.host_slowdown
    assert gaps.measured_s == 4e-3 and gaps.predicted_s == pytest.approx(waiting.time_s - device_s)
    assert sum(row.predicted_s or 0.0 for row in beside.kinds) == pytest.approx(beside.predicted_s)


def test_without_start_times_kernels_alone_are_compared() -> None:
    alexnet = pl.predict("alexnet", gpu="k40m", batch_size=8)
    times = PassTimes("inference", 3, 3, {("convolution", "forward"): 1e-3}, {}, True)
    beside = compare_with_profile("a", times, alexnet)
    assert beside.predicted_s == pytest.approx(sum(row.predicted_s or 0.0 for row in beside.kinds))
    assert beside.predicted_s < alexnet.time_s and beside.measured_s == 1e-3
    assert any("has no start times" in note for note in beside.notes)

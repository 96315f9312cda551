"""Calibrations at work: intervals against Student's t and derivatives by finite differences, rates off data sheets."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from paleo_lite.counting import count
from paleo_lite.errors import UnknownPrecision
from paleo_lite.hardware import find_device
from paleo_lite.networks import find_network
from paleo_lite.timing.calibrated import NAMES
from paleo_lite.timing.features import features_of
from paleo_lite.timing.fitted import QUANTILES, CalibratedModel, rates_of, step_of

NETWORK = find_network("resnet18")
WORK = count(NETWORK.layers, "fp32")
SIZE = len(NAMES)


@pytest.fixture(scope="module")
def model():
    """Parameters that no device has, each in the order of its unit, with errors that go together."""
    seconds = [name.endswith("_s") for name in NAMES]
    theta = np.log(np.where(seconds, 5e-6, 0.6)) + np.linspace(-0.3, 0.3, SIZE)
    root = np.random.default_rng(1).normal(0, 0.02, (SIZE, SIZE))
    return CalibratedModel("made", theta, root @ root.T, 0.05)


def test_quantiles_are_students() -> None:
    stats = pytest.importorskip("scipy.stats")
    for level, quantile in QUANTILES.items():
        assert quantile == pytest.approx(stats.t.ppf((1 + level) / 2, df=5), abs=5e-4)


@pytest.mark.parametrize("phase", ["inference", "training"])
def test_an_interval_is_that_of_the_linearised_logarithm(model, phase) -> None:
    """By the delta method: the derivatives of log(time) are taken here by finite differences."""
    features = features_of(NETWORK.layers, WORK, phase, 4)
    rates = rates_of(find_device("p100-sxm2"), "fp32")
    step = model.step(features, rates)

    def total(theta):
        return msgspec.structs.replace(model, theta=theta).step(features, rates).total_s

    width = 1e-4
    steps = np.eye(SIZE) * width
    slopes = np.log([total(model.theta + to) / total(model.theta - to) for to in steps]) / (2 * width)
    deviation = math.sqrt(slopes @ model.covariance @ slopes + 0.05**2 + 0.07**2)  # scatter, and other software
    assert step.deviation == pytest.approx(deviation, rel=1e-5)
    low, high = step.interval(0.9)
    assert high / low == pytest.approx(math.exp(2 * 2.015 * deviation), rel=1e-4)
    assert low * high == pytest.approx(total(model.theta) ** 2)


def test_layers_together_are_the_step_without_its_constant(model) -> None:
    step, arrays = step_of(model, NETWORK.layers, WORK, find_device("p100-sxm2"), "fp32", "training", 4)
    constant = math.exp(model.theta[NAMES.index("step_s")])
    assert arrays["time"].shape == (4, len(NETWORK.layers))
    assert arrays["time"].sum() + constant == pytest.approx(step.total_s)
    assert (arrays["time"] >= np.maximum(arrays["compute"], arrays["memory"])).all()


@pytest.mark.parametrize(
    ("device", "precision", "matrix_flops", "vector_flops"),
    [
        # TFLOP/s of the data sheets, at the clock that predictions take
        ("v100-sxm2", "fp16", 125e12, 15.7e12),
        ("v100-sxm2", "fp64", 7.8e12, 7.8e12),
        ("p100-sxm2", "fp16", 21.2e12, 10.6e12),
        # fp16 at 1/64 of fp32: cuDNN's pseudo-half computes in fp32
        ("gtx1080ti", "fp16", 11.34e12, 11.34e12),
    ],
)
def test_rates_are_those_that_libraries_compute_at(device, precision, matrix_flops, vector_flops) -> None:
    found = rates_of(find_device(device), precision)
    assert found.matrix_per_s == pytest.approx(matrix_flops, rel=0.01)
    assert found.vector_per_s == pytest.approx(vector_flops, rel=0.01)


def test_a_precision_that_a_device_lacks_has_no_rate() -> None:
    with pytest.raises(UnknownPrecision):
        rates_of(find_device("k40m"), "bf16")


def test_terms_alone_are_not_enough_for_it(model) -> None:
    with pytest.raises(TypeError, match=r"use CalibratedModel\.step"):
        model.time_s(np.ones(1), np.ones(1))

"""Calibrations at work: intervals against Student's t and derivatives by finite differences, rates off data sheets.

Tests: timing/calibrated.py, timing/intervals.py.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from paleo_lite.architectures import find_network
from paleo_lite.errors import BadValue, UnknownPrecision
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing import predict
from paleo_lite.timing.calibrated import CalibratedModel, rates_of, step_times
from paleo_lite.timing.features import features_of
from paleo_lite.timing.parameters import NAMES
from paleo_lite.timing.workload import Workload

NETWORK = find_network("resnet18")
SIZE = len(NAMES)


@pytest.fixture(scope="module")
def model():
    """Parameters that no device has, each in the order of its unit, with errors that go together."""
    seconds = [name.endswith("_s") for name in NAMES]
    theta = np.log(np.where(seconds, 5e-6, 0.6)) + np.linspace(-0.3, 0.3, SIZE)
    root = np.random.default_rng(1).normal(0, 0.02, (SIZE, SIZE))
    return CalibratedModel("made", theta, root @ root.T, 0.05)


@pytest.mark.parametrize("phase", ["inference", "training"])
def test_an_interval_is_that_of_the_linearised_logarithm(model, phase) -> None:
    """By the delta method: the derivatives of log(time) are taken here by finite differences."""
    asked, machine = Workload(NETWORK, batch_size=4, phase=phase), Machine(find_device("p100-sxm2"))
    terms = model.evaluate(asked, machine)

    def total(theta):
        return msgspec.structs.replace(model, theta=theta).evaluate(asked, machine).time_s

    width = 1e-4
    steps = np.eye(SIZE) * width
    slopes = np.log([total(model.theta + to) / total(model.theta - to) for to in steps]) / (2 * width)
    deviation = math.sqrt(slopes @ model.covariance @ slopes + 0.05**2 + 0.09**2)  # scatter, and other software
    assert terms.deviation == pytest.approx(deviation, rel=1e-5)
    assert terms.slopes == pytest.approx(slopes, rel=1e-5, abs=1e-8)
    low, high = terms.interval(0.9)
    assert high / low == pytest.approx(math.exp(2 * 2.015 * deviation), rel=1e-4)
    assert low * high == pytest.approx(total(model.theta) ** 2)


def test_layers_together_are_the_step_without_its_constant(model) -> None:
    asked, machine = Workload(NETWORK, batch_size=4, phase="training"), Machine(find_device("p100-sxm2"))
    terms = model.evaluate(asked, machine)
    features, rates = features_of(asked), rates_of(machine, "fp32")
    (total_s,) = step_times(features, rates, np.exp(model.theta), np.zeros(len(features.flops), dtype=int), 1)
    assert terms.overhead_s == pytest.approx(math.exp(model.theta[NAMES.index("step_s")]))
    assert terms.layers_s.shape == (4, len(NETWORK.layers))
    assert terms.time_s == pytest.approx(total_s)
    assert (terms.layers_s >= np.maximum(terms.compute_s, terms.memory_s)).all()


@pytest.mark.parametrize(
    ("device", "precision", "matrix_flops", "vector_flops"),
    [
        # TFLOP/s of the data sheets, at the clock that predictions take
        ("v100-sxm2", "fp16", 125e12, 15.7e12),
        ("v100-sxm2", "fp64", 7.8e12, 7.8e12),
        ("p100-sxm2", "fp16", 21.2e12, 10.6e12),
        # its tensor cores reach 19.5 in fp64, convolutions do not use them
        ("a100-sxm-80gb", "fp64", 9.7e12, 9.7e12),
        # fp16 at 1/64 of fp32: cuDNN's pseudo-half computes in fp32
        # other arithmetic runs at 1.81 GHz instead of the listed 1.582
        ("gtx1080ti", "fp16", 11.34e12, 11.34e12 * 1.81 / 1.582),
    ],
)
def test_rates_are_those_that_libraries_compute_at(device, precision, matrix_flops, vector_flops) -> None:
    found = rates_of(Machine(find_device(device)), precision)
    assert found.matrix_per_s == pytest.approx(matrix_flops, rel=0.01)
    assert found.vector_per_s == pytest.approx(vector_flops, rel=0.01)


def test_a_count_without_layers_has_no_bytes_to_time(model) -> None:
    with pytest.raises(BadValue, match="the calibrated model requires a network"):
        predict(Workload.from_flops(1e9), Machine(find_device("p100-sxm2")), model)


def test_a_precision_that_a_device_lacks_has_no_rate() -> None:
    with pytest.raises(UnknownPrecision):
        rates_of(Machine(find_device("k40m")), "bf16")

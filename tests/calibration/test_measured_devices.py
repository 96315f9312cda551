"""Measured devices inform the priors of other devices, without using held-out measurements.

Tests: calibration/validate.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from paleo_lite.architectures import find_network
from paleo_lite.calibration.accuracy import error_statistics
from paleo_lite.calibration.fit import calibrate, runs_of
from paleo_lite.calibration.measured_devices import GroupKey, MeasuredDevices
from paleo_lite.calibration.measurements import Measurement
from paleo_lite.calibration.prior import device_prior
from paleo_lite.calibration.validate import Point, explain_error, validate
from paleo_lite.errors import BadValue
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing import RooflineModel, Workload, predict
from paleo_lite.timing.parameters import NAMES

pytest.importorskip("scipy")

GPUS = ("titanx-pascal", "gtx1080ti", "titan-xp")
NETWORKS = ("resnet18", "vgg11", "squeezenet1_1", "resnext50_32x4d")


def simulate(gpu: str, theta: np.ndarray, networks: tuple[str, ...] = NETWORKS) -> list[Measurement]:
    steps = [
        Measurement(gpu, network, batch_size, "inference", "fp32", 1.0, source="me 1")
        for network in networks
        for batch_size in (1, 8, 64)
    ]
    times = runs_of(steps, find_device(gpu), "fp32").predict_s(theta)
    return [
        Measurement(m.gpu, m.network, m.batch_size, m.phase, m.precision, float(t), source=m.source)
        for m, t in zip(steps, times)
    ]


def slow_grouped(gpu: str) -> np.ndarray:
    """Simulate a device that computes grouped convolutions four times as slowly as the prior expects."""
    theta = device_prior(find_device(gpu), "fp32").mean.copy()
    theta[NAMES.index("efficiency_conv_grouped")] -= np.log(4)
    return theta


def test_missing_class_of_work_is_learned_from_other_devices() -> None:
    own = simulate("gtx1080ti", slow_grouped("gtx1080ti"), NETWORKS[:3])
    others = [m for gpu in GPUS if gpu != "gtx1080ti" for m in simulate(gpu, slow_grouped(gpu))]
    device, index = find_device("gtx1080ti"), NAMES.index("efficiency_conv_grouped")
    truth = slow_grouped("gtx1080ti")[index]
    alone = calibrate(own, device, "fp32")[1].theta[index]
    devices = MeasuredDevices([*others, *own])
    among = calibrate(own, device, "fp32", devices.prior(GroupKey("gtx1080ti", "fp32", "me 1")))[1].theta[index]
    assert abs(among - truth) < abs(alone - truth) - 0.2


def test_held_out_measurements_are_not_used() -> None:
    """The only network with grouped convolutions is held out, so that their slowness is unknown."""
    everything = [m for gpu in GPUS for m in simulate(gpu, slow_grouped(gpu))]
    devices = MeasuredDevices(everything, lambda measurement: measurement.network)
    index, key = NAMES.index("efficiency_conv_grouped"), GroupKey("gtx1080ti", "fp32", "me 1")
    base = device_prior(find_device("gtx1080ti"), "fp32")
    assert devices.prior(key, "resnext50_32x4d").mean[index] == pytest.approx(base.mean[index], abs=1e-3)
    assert devices.prior(key).mean[index] < base.mean[index] - 0.3


@pytest.mark.thorough
def test_asking_for_one_device_changes_no_row() -> None:
    everything = [m for gpu in GPUS for m in simulate(gpu, slow_grouped(gpu))]
    rows, _ = validate(everything, "network")
    (own,), _ = validate(everything, "network", ["titan-xp"])
    assert own == next(row for row in rows if row.gpu == "titan-xp") and len(rows) == 3


def test_single_device_starts_from_the_prior_of_its_kind() -> None:
    own = simulate("gtx1080ti", slow_grouped("gtx1080ti"))
    base = device_prior(find_device("gtx1080ti"), "fp32")
    assert np.array_equal(MeasuredDevices(own).prior(GroupKey("gtx1080ti", "fp32", "me 1")).mean, base.mean)


def test_split_ignores_held_out_measurements() -> None:
    everything = [m for gpu in GPUS for m in simulate(gpu, slow_grouped(gpu))]
    devices, key = MeasuredDevices(everything), GroupKey("gtx1080ti", "fp32", "me 1")
    assert np.array_equal(
        devices.prior(key, ignore=lambda other: True).mean, device_prior(find_device(key.gpu), "fp32").mean
    )
    rows, _ = validate(everything, "gpu")
    assert {row.gpu for row in rows} == set(GPUS)
    with pytest.raises(BadValue, match="nothing to hold out"):
        validate(everything, "source")  # nobody else measured any of them


@pytest.mark.parametrize("split", ["network", "gpu"])
def test_roofline_error_of_a_row_matches_its_predictions(split: str) -> None:
    everything = [m for gpu in GPUS for m in simulate(gpu, slow_grouped(gpu))]
    for row in validate(everything, split)[0]:
        machine, errors = Machine(find_device(row.gpu)), []
        for m in everything:
            if m.gpu == row.gpu:
                asked = Workload(find_network(m.network), m.precision, m.batch_size, m.phase)
                errors.append(predict(asked, machine, RooflineModel()).time_s / m.time_s - 1)
        assert row.baselines["roofline"] == pytest.approx(np.mean(np.abs(errors)), rel=1e-12)


def point(network: str, precision: str = "fp32", batch_size: int = 64, time_s: float = 1.0, gpu: str = "v100-sxm2"):
    """Return a validation point for a measured step with an arbitrary prediction."""
    return Point(Measurement(gpu, network, batch_size, "inference", precision, time_s, source="me 1"), time_s, 0.1)


OTHERS = [point(network) for network in ("resnet18", "alexnet", "googlenet", "inception_v3", "vgg19", "densenet121")]


@pytest.mark.parametrize(
    ("hard", "says"),
    [
        (point("resnet18", "fp16", time_s=1.3), "a suspicious row: the same step takes 1 s in fp32"),
        (point("resnet18", "fp16", time_s=1.1), "the software or clocks of the source"),  # less than a fifth slower
        (point("resnet50", "fp16", time_s=1.3), "the software or clocks of the source"),  # another network in fp32
        (point("resnet18", "fp16", 32, time_s=1.3), "the software or clocks of the source"),  # another batch
        (point("vgg11", time_s=1.3), "a suspicious row: slower per sample than VGG19"),
        (point("vgg11", batch_size=256, time_s=4.1), "a suspicious row: slower per sample than VGG19"),
        (point("vgg11", batch_size=8, time_s=0.2), "the software or clocks of the source"),  # a smaller batch
        (point("vgg11", "fp64", time_s=1.3), "fp64 kernels: their efficiency"),
        (point("resnet50", "fp16", gpu="gtx1080ti"), "fp16 without tensor cores"),
        (point("resnet50", gpu="gtx1080ti"), "the only network of its source"),
        (point("resnet50", batch_size=2), "a small batch"),
        (point("resnext50_32x4d"), "grouped convolutions"),
        (point("resnet50", "fp64"), "fp64 kernels: their efficiency"),
        (point("mobilenet_v2"), "many short kernels"),
        (point("resnet50"), "the software or clocks of the source"),
    ],
)
def test_why_a_point_is_hard(hard: Point, says: str) -> None:
    assert explain_error(hard, [*OTHERS, hard]).startswith(says)


def test_errors_and_coverage_by_hand() -> None:
    """Errors of 0, +100%, -50% and +10%, which are 0, 1.5, 3 and 0.14 deviations away.

    80% of Student's distribution with five degrees of freedom lie within 1.476 deviations, 90% within 2.015.
    """
    measured = np.array([1.0, 2.0, 4.0, 10.0])
    predicted = np.array([1.0, 4.0, 2.0, 11.0])
    deviation = np.log(2) / np.array([1.0, 1.5, 3.0, 1.0])
    found = error_statistics(measured, predicted, deviation)
    assert found["mape"] == pytest.approx((0 + 1 + 0.5 + 0.1) / 4)
    assert found["median"] == pytest.approx(0.3)
    assert found["bias"] == pytest.approx(0.05)
    assert found["p90"] == pytest.approx(0.5 + 0.7 * 0.5)  # of four sorted values, 0.9 * 3 = 2.7 along
    assert (found["coverage_80"], found["coverage_90"]) == (0.5, 0.75)
    reach = 2.015 * deviation
    assert found["width_90"] == pytest.approx(np.mean(np.exp(reach) - np.exp(-reach)), rel=1e-3)
    # The median of four ratios is the mean of the two in the middle.
    middle = np.exp(2 * 2.015 * np.sort(deviation)[1:3])
    assert found["sharpness_90"] == pytest.approx(middle.mean(), rel=1e-3)
    assert found["rank_correlation"] == pytest.approx(0.8)  # Spearman: 1 - 6 * 2 / (4 * 15), ranks 1, 3, 2 and 4

"""Fit of calibrations: derivatives, recovery of known parameters within the intervals, robustness, and invariances."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paleo_lite.calibration.fit import calibrate, fit, runs_of
from paleo_lite.calibration.measurements import Measurement
from paleo_lite.calibration.prior import BASE, Prior, base_prior, device_prior
from paleo_lite.errors import CalibrationFailed
from paleo_lite.machines import find_device
from paleo_lite.timing.calibrated import sensitivities, step_times
from paleo_lite.timing.parameters import NAMES, PARAMETERS
from strategies import MORE, costly

pytestmark = pytest.mark.slow

pytest.importorskip("scipy")

NETWORKS = [
    "vgg11",
    "resnet18",
    "resnet50",
    "mobilenet_v2",
    "squeezenet1_1",
    "densenet121",
    "resnext50_32x4d",
    "alexnet",
]
DEVICE = find_device("titan-rtx")


def measured(networks: list[str], phases: tuple[str, ...] = ("inference", "forward+backward")) -> list[Measurement]:
    """Steps without times yet."""
    return [
        Measurement(DEVICE.id, network, 12, phase, "fp32", 1.0, source="simulated")
        for network in networks
        for phase in phases
    ]


def simulate(theta: np.ndarray, noise: float, rng: np.random.Generator) -> list[Measurement]:
    """What a machine with these parameters would have measured."""
    steps = measured(NETWORKS)
    times = runs_of(steps, DEVICE, "fp32").predict_s(theta) * np.exp(noise * rng.standard_normal(len(steps)))
    return [Measurement(m.gpu, m.network, 12, m.phase, "fp32", float(t), source="x") for m, t in zip(steps, times)]


def test_every_parameter_has_a_prior_and_a_unit() -> None:
    assert set(BASE) == set(PARAMETERS) == set(NAMES)


@pytest.mark.parametrize("phase", ["inference", "training"])
def test_derivatives_equal_finite_differences(phase: str) -> None:
    steps = measured(["resnext50_32x4d", "mobilenet_v2", "vit_b_16"], (phase,))
    runs = runs_of(steps, DEVICE, "fp32")
    theta = base_prior(False).mean
    _, gradient = sensitivities(runs.features, runs.rates, np.exp(theta), runs.run, len(runs))
    for index in range(len(NAMES)):
        up, down = theta.copy(), theta.copy()
        up[index] += 1e-5
        down[index] -= 1e-5
        change = [step_times(runs.features, runs.rates, np.exp(t), runs.run, len(runs)) for t in (up, down)]
        assert gradient[:, index] == pytest.approx((change[0] - change[1]) / 2e-5, rel=1e-5, abs=1e-10)


@costly
@given(st.lists(st.floats(-3, 3), min_size=len(NAMES), max_size=len(NAMES)), MORE)
def test_time_does_not_decrease_with_work(away: list[float], more: float) -> None:
    """More FLOPs, bytes or kernels, with any parameters."""
    runs = runs_of(measured(["resnet50"]), DEVICE, "fp32")
    values = np.exp(base_prior(False).mean + away)
    before = step_times(runs.features, runs.rates, values, runs.run, len(runs))
    for column in ("flops", "bytes", "kernels"):
        grown = msgspec.structs.replace(runs.features, **{column: getattr(runs.features, column) * more})
        assert (step_times(grown, runs.rates, values, runs.run, len(runs)) >= before * (1 - 1e-12)).all()


def test_a_larger_batch_takes_longer() -> None:
    values = np.exp(base_prior(False).mean)
    times = []
    for batch in (1, 2, 3, 8, 9, 64, 65, 1000):
        runs = runs_of([Measurement(DEVICE.id, "resnet50", batch, "training", "fp32", 1.0)], DEVICE, "fp32")
        assert len(runs.features.flops) == len(runs.run)
        times.append(step_times(runs.features, runs.rates, values, runs.run, 1)[0])
    assert times == sorted(times)


def test_fit_recovers_the_parameters_of_simulated_data() -> None:
    """Without noise, and with priors that are wrong, the times come back; parameters within their intervals."""
    rng = np.random.default_rng(1)
    prior = base_prior(False)
    truth = prior.mean + 0.5 * prior.deviation * rng.standard_normal(len(NAMES))
    measurements, found = calibrate(simulate(truth, 0.0, rng), DEVICE, "fp32", prior)
    predicted = runs_of(measurements, DEVICE, "fp32").predict_s(found.theta)
    assert predicted == pytest.approx([m.time_s for m in measurements], rel=0.02)


@pytest.mark.thorough
@pytest.mark.slow
def test_intervals_of_parameters_cover_a_known_truth() -> None:
    """Truth drawn from the prior, 5% noise, 200 times: 90% intervals hold it 85 to 95% of the time.

    Layers are counted once, and the fit starts at the truth, which saves half of its steps on the way to the same end.
    """
    rng = np.random.default_rng(2)
    prior = base_prior(False)
    runs = runs_of(measured(NETWORKS), DEVICE, "fp32")
    inside = []
    for _ in range(200):
        truth = prior.mean + prior.deviation * rng.standard_normal(len(NAMES))
        times = runs.predict_s(truth) * np.exp(0.05 * rng.standard_normal(len(runs)))
        found = fit(msgspec.structs.replace(runs, measured_s=times), prior, start=truth)
        away = np.abs(found.theta - truth) / np.sqrt(np.diag(found.covariance))
        inside.append(away < 1.645)
    assert 0.85 <= np.mean(inside) <= 0.95


def test_the_unit_of_time_scales_the_fit() -> None:
    """A machine twice as slow in everything measures twice the time: only rates and overheads move."""
    rng = np.random.default_rng(3)
    wide = Prior(base_prior(False).mean, np.full(len(NAMES), 20.0))
    once = simulate(wide.mean, 0.02, rng)
    twice = [Measurement(m.gpu, m.network, 12, m.phase, "fp32", 2 * m.time_s) for m in once]
    ordered, first = calibrate(once, DEVICE, "fp32", wide)
    again, second = calibrate(twice, DEVICE, "fp32", wide)
    one, two = (
        dict(zip(((m.network, m.phase) for m in steps), runs_of(steps, DEVICE, "fp32").predict_s(found.theta)))
        for steps, found in ((ordered, first), (again, second))
    )
    for key, time in one.items():
        assert two[key] == pytest.approx(2 * time, rel=0.01)


def test_the_order_of_rows_does_not_matter() -> None:
    steps = simulate(base_prior(False).mean, 0.05, np.random.default_rng(4))
    _, forward = calibrate(steps, DEVICE, "fp32")
    _, backward = calibrate(steps[::-1], DEVICE, "fp32")
    assert np.array_equal(forward.theta, backward.theta)


def test_one_wild_measurement_does_not_spoil_the_fit() -> None:
    rng = np.random.default_rng(5)
    truth = base_prior(False).mean
    steps = simulate(truth, 0.0, rng)
    wild = [
        Measurement(m.gpu, m.network, 12, m.phase, "fp32", m.time_s * (10 if i == 3 else 1))
        for i, m in enumerate(steps)
    ]
    _, found = calibrate(wild, DEVICE, "fp32")
    clean = runs_of(steps, DEVICE, "fp32")
    assert np.median(np.abs(clean.predict_s(found.theta) / clean.measured_s - 1)) < 0.05


def test_without_measurements_of_a_class_its_prior_stays() -> None:
    steps = [m for m in simulate(base_prior(False).mean, 0.02, np.random.default_rng(6)) if m.network == "vgg11"]
    _, found = calibrate(steps, DEVICE, "fp32")
    held = NAMES.index("efficiency_conv_depthwise")
    assert found.theta[held] == base_prior(False).mean[held]
    assert found.learned_fraction[held] == pytest.approx(0)
    assert found.learned_fraction[NAMES.index("efficiency_conv_3x3")] > 0.3


@pytest.mark.parametrize("time_s", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_time_is_an_error(time_s: float) -> None:
    with pytest.raises(CalibrationFailed, match="must be a number of seconds above 0"):
        calibrate([Measurement(DEVICE.id, "alexnet", 1, "inference", "fp32", time_s)], DEVICE, "fp32")


def test_no_measurements_or_another_precision_are_an_error() -> None:
    with pytest.raises(CalibrationFailed, match="no measurement"):
        calibrate([], DEVICE, "fp32")
    with pytest.raises(CalibrationFailed, match="in fp16 cannot calibrate fp32"):
        calibrate([Measurement(DEVICE.id, "alexnet", 1, "inference", "fp16", 1.0)], DEVICE, "fp32")


def test_an_empty_fit_is_the_prior() -> None:
    runs = runs_of(measured(["alexnet"]), DEVICE, "fp32").select(np.array([], dtype=np.int64))
    found = fit(runs, device_prior(DEVICE, "fp32"))
    assert np.array_equal(found.theta, base_prior(False).mean)

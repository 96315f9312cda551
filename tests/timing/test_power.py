"""The sustained clock: its formula by hand, its limits, and achievable rates that were published.

Tests: timing/power.py.
"""

from __future__ import annotations

import re

import msgspec
import numpy as np
import pytest

import paleo_lite as pl
from asked import predict_any, scaling
from paleo_lite.errors import BadValue
from paleo_lite.machines import Machine, SourcedFigure, find_device, list_devices
from paleo_lite.machines.registry import limit_power
from paleo_lite.reporting.predictions import prediction_page
from paleo_lite.timing.calibrated import library_peak
from paleo_lite.timing.power import (
    PowerModel,
    boost_fraction,
    convolution_fraction,
    limited_fraction,
    node_nm_of,
    power_model,
    sustained_fraction,
)
from paleo_lite.units import parse_quantity

MODEL = PowerModel(
    energy_j_per_flop={"vector": 10e-12, "tensor": 1e-12},
    node_exponent=1.0,
    clock_exponent=0.5,
    efficiency={"vector": 1.0, "tensor": 1.0},
    convolution_activity=0.5,
    idle_share=0.2,
    base_share={"HBM": 0.1, "GDDR": 0.3},
    busy_share=0.9,
    low_voltage_slope={"older": 1.6, "recent": 2.8},
    waiting_floor=1.0,
    deviation=0.1,
    limit_deviation=0.1,
    devices=[],
    sources=[],
)


def rate_of(name, precision):
    return library_peak(Machine(find_device(name)), precision)


def test_a_limit_of_a_quarter_of_the_power_halves_the_clock():
    """At 7 nm 10 pJ per FLOP: 19.5 TFLOP/s of an A100 draw 195 W, and 80% of 60.9 W is a quarter of that."""
    rate = rate_of("a100-sxm-40gb", "fp32")
    assert node_nm_of(find_device("a100-sxm-40gb")) == 7
    limit = SourcedFigure(f"{195 / 4 / 0.8} W", "a rated limit")
    device = msgspec.structs.replace(find_device("a100-sxm-40gb"), power=limit)
    fraction = sustained_fraction(device, rate, MODEL)
    assert rate.per_s == pytest.approx(19.5e12, rel=2e-3)
    assert fraction == pytest.approx(0.5, rel=2e-3)


def test_convolutions_of_half_the_activity_keep_more_of_the_clock():
    """The limit that halves the clock of products is half of what convolutions draw: they keep the root of a half."""
    rate = rate_of("a100-sxm-40gb", "fp32")
    limit = SourcedFigure(f"{195 / 4 / 0.8} W", "a rated limit")
    device = msgspec.structs.replace(find_device("a100-sxm-40gb"), power=limit)
    assert convolution_fraction(device, rate, MODEL) == pytest.approx(0.5**0.5, rel=2e-3)


@pytest.mark.parametrize(
    ("gpu", "measured_flops_per_s"),
    [("gtx1080", 9262.55e9), ("rtx4090", 2.655e9 * 2 * 16384), ("v100-pcie", 14135.97e9)],
)
def test_chains_of_multiply_adds_run_at_the_unlimited_clock(gpu, measured_flops_per_s):
    """Single precision in clpeak's results/NVIDIA_CUDA for a GTX 1080 and a V100, and the clock of an RTX 4090 in
    nvbench's pull request 207."""
    rate = rate_of(gpu, "fp32")
    assert rate.per_s * boost_fraction(find_device(gpu), rate) == pytest.approx(measured_flops_per_s, rel=0.01)


def test_a_locked_clock_is_not_exceeded():
    device = find_device("rtx2080ti")
    assert boost_fraction(device, rate_of("rtx2080ti", "fp32")) == pytest.approx(1.94 / 1.545)
    for clock in ("base", "1.2 GHz"):
        assert boost_fraction(device, library_peak(Machine(device, clock), "fp32")) == 1


def test_an_answer_shows_the_clock_of_products_and_of_convolutions():
    limited = dict(prediction_page(pl.predict("resnet50", gpu="t4")).facts)["clock"]
    assert re.fullmatch(r"\d+ MHz of 1.59 GHz in matrix products, [\d.]+ GHz in convolutions \(70 W limit\)", limited)
    boosting = dict(prediction_page(pl.predict("resnet50", gpu="rtx2080ti")).facts)["clock"]
    assert boosting.endswith("in matrix products, above the 1.54 GHz of the data sheet")


def test_energy_follows_the_width_and_the_process():
    """Half the bits take half the energy; at 14 nm with an exponent of 1 a FLOP takes twice that of 7 nm."""
    assert MODEL.energy_per_flop_j("tensor", "fp8", 7) == MODEL.energy_per_flop_j("tensor", "fp16", 7) / 2
    assert MODEL.energy_per_flop_j("vector", "fp32", 14) == pytest.approx(20e-12)


def test_a_lower_limit_and_a_higher_clock_bind_more():
    device = find_device("t4")
    fractions = [
        sustained_fraction(limit_power(device, f"{watts} W"), rate_of("t4", "fp32")) for watts in (30, 70, 999)
    ]
    assert 0 < fractions[0] < fractions[1] == fractions[2] < 1
    slow = library_peak(Machine(device, "600 MHz"), "fp32")
    assert slow.per_s == pytest.approx(8.1e12 * 600 / 1590, rel=0.01)
    assert sustained_fraction(device, slow) > fractions[1]


@pytest.mark.parametrize(
    ("limit_w", "expected"),
    [(400, 1), (480, 1), (40 + 320 * 0.729, 0.9), (40 + 320 * 0.25, 0.4), (30, 0.1)],
)
def test_a_limit_below_the_rated_one_slows_all_kernels(limit_w, expected):
    """An A100 of 400 W: 40 W while waiting, 360 W while busy. A voltage proportional to the clock gives 0.9 of the
    clock at 0.729 of the dynamic power; at 0.25 of it the voltage is the lowest, and the slope is 1.6."""
    device = limit_power(find_device("a100-sxm-40gb"), limit_w)
    assert device.rated_power_w == 400
    assert limited_fraction(device, MODEL) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("gpu", "limit_w", "measured_slowdown"),
    [
        ("v100-pcie", 175, 3945.8 / 3603.6),
        ("v100-pcie", 125, 5158.95 / 3603.6),
        ("a40", 200, 3992.39 / 3739.5),
        ("a40", 150, 6147.46 / 3739.5),
        ("p100-pcie-16gb", 150, 6678.76 / 6277.98),
    ],
)
def test_measured_slowdowns_under_a_power_limit_are_inside_the_interval(gpu, limit_w, measured_slowdown):
    """ResNet-50 at batch size 128 in the power traces of Zeus (You et al., NSDI 2023)."""
    asked = {"precision": "fp32", "batch_size": 128, "phase": "training"}
    slowdown = pl.predict("resnet50", gpu=gpu, power_limit=limit_w, **asked).time_s
    slowdown /= pl.predict("resnet50", gpu=gpu, **asked).time_s
    assert abs(np.log(slowdown / measured_slowdown)) < 2.015 * power_model().limit_deviation


@pytest.mark.parametrize(
    ("gpu", "precision", "epoch_s", "power_w"),
    [("v100-pcie", "fp32", 3603.6, 222.4), ("a40", "tf32", 3739.5, 244.3), ("p100-pcie-16gb", "fp32", 6278.0, 165.5)],
)
def test_measured_energies_are_inside_the_interval(gpu, precision, epoch_s, power_w):
    """ResNet-50 at batch size 128 in the power traces of Zeus; ImageNet has 1,281,167 images."""
    prediction = pl.predict("resnet50", gpu=gpu, precision=precision, batch_size=128, phase="training")
    low_j, high_j = prediction.energy_interval_j
    assert low_j < epoch_s * 128 / 1281167 * power_w < high_j
    assert low_j < prediction.energy_j < high_j


@pytest.mark.parametrize("limit", ["0 W", "-3 W", "many", "300 GB"])
def test_an_invalid_power_limit_is_refused(limit):
    with pytest.raises(BadValue, match="`--power-limit` must be"):
        limit_power(find_device("t4"), limit)


@pytest.mark.parametrize(
    "ask",
    [
        lambda limit: pl.predict("vgg16", gpu="h100-sxm", power_limit=limit),
        lambda limit: predict_any("sd-1.5", gpu="h100-sxm", power_limit=limit),
        lambda limit: pl.serve("llama-3.1-8b", gpu="h100-sxm", rate=1, power_limit=limit),
        lambda limit: scaling("vgg16", workers=[1], gpu="h100-sxm", power_limit=limit),
        lambda limit: pl.gemm(512, 512, 512, gpu="h100-sxm", power_limit=limit),
        lambda limit: pl.feeding("vgg16", gpu="h100-sxm", power_limit=limit),
        lambda limit: pl.sweep(pl.Predict("vgg16", gpu="h100-sxm", power_limit=[500, limit]), "x.csv", dry_run=True),
    ],
    ids=["predict", "pictures", "serve", "scale", "gemm", "feeding", "sweep"],
)
def test_a_limit_below_the_idle_power_is_refused(ask):
    """H100 without work draw 73 to 74 W (xypp3/gpu_glasses); of the power of waiting 0.7 stay at any clock."""
    sentence = r"`--power-limit` must be above the \d+ W that H100 SXM5 80GB draws while it waits \(got 50 W\)"
    with pytest.raises(BadValue, match=sentence):
        ask(50)


def test_a_capped_card_and_a_locked_clock_take_longer():
    asked = {"gpu": "t4", "precision": "fp32", "batch_size": 8, "sequence_length": 128}
    free, capped = pl.predict("bert-base", **asked), pl.predict("bert-base", power_limit="45 W", **asked)
    locked = pl.predict("bert-base", clock="600 MHz", **asked)
    assert free.time_s < capped.time_s < 3 * free.time_s
    assert free.time_s < locked.time_s
    assert capped.energy_j < free.energy_j


@pytest.mark.parametrize("name", [device.id for device in list_devices() if device.measured])
def test_published_rates_of_matrix_products_are_within_the_sustained_clock(name):
    """``mamf-finder`` (Bekman, ml-engineering) and aiconfigurator: the best rate found is no more than sustained."""
    device = find_device(name)
    checked = 0
    for measured in device.measured:
        if not measured.startswith("gemm_"):
            continue
        precision = measured.removeprefix("gemm_")
        rate = library_peak(Machine(device), precision)
        found = parse_quantity(device.measured[measured].value, "OP/s" if precision == "int8" else "FLOP/s")
        assert found <= 1.05 * rate.per_s * sustained_fraction(device, rate)
        checked += 1
    if not checked:
        pytest.skip("no measured rate of matrix products")


def test_devices_of_an_unknown_process_are_not_limited():
    device = msgspec.structs.replace(find_device("t4"), architecture="Unknown")
    assert sustained_fraction(device, rate_of("t4", "fp32")) == 1


def test_scale_reports_the_energy_of_predict():
    """A large batch does not wait for the host, so that a single worker of `scale` draws what `predict` says."""
    asked = {"gpu": "v100-sxm2", "precision": "fp32", "batch_size": 128}
    prediction = pl.predict("resnet50", phase="training", **asked)
    (row,) = scaling("resnet50", workers=[1], samples="1M", **asked)
    assert row.power_w == pytest.approx(prediction.energy_j / prediction.time_s, rel=0.03)
    assert row.kwh == pytest.approx(1e6 / 128 * prediction.energy_j / 3.6e6, rel=0.03)
    assert row.run.kwh_interval[0] < row.kwh < row.run.kwh_interval[1]

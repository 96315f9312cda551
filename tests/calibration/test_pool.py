"""Predictions from the shipped pool for measured and unmeasured devices, and devices without a prediction.

Tests: calibration/choose.py.
"""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import paleo_lite as pl
from measured import DATA
from paleo_lite.architectures import find_network
from paleo_lite.calibration.fit import calibrate, runs_of
from paleo_lite.calibration.pool import NotPooled, Pool, pool_prior, pooled_model, read_pool, why_not_pooled
from paleo_lite.calibration.prior import HOST_PARAMETERS, SINGLE_OPERATIONS, prior_from_evidence, traits_of
from paleo_lite.cli import main
from paleo_lite.errors import BadFile, BadValue
from paleo_lite.machines import Device, Machine, find_device, list_devices
from paleo_lite.timing.calibrated import CalibratedModel, rates_of
from paleo_lite.timing.parameters import NAMES
from paleo_lite.timing.workload import Workload
from strategies import costly
from validation.ordering import are_comparable, is_better, make_pool, write_pool
from validation.steps.networks import published_networks

MEASURED = DATA / "measured"
POOL = read_pool()
SINGLE = [device for device in list_devices([]) if not why_not_pooled(device)]
NETWORKS = ("resnet18", "vgg11", "mobilenet_v2", "vit_b_16")


def model_of(gpu: str, precision: str, **asked: str) -> CalibratedModel:
    found = pooled_model(find_device(gpu), precision, **asked)
    assert isinstance(found, CalibratedModel)
    return found


def test_a_measured_device_is_surer_than_one_that_was_not() -> None:
    device = find_device("titan-rtx")
    others = Pool(POOL.format, POOL.parameters, [one for one in POOL.fits if one.id != device.id])
    known, unknown = (pool_prior(device, "fp32", pool=pool) for pool in (POOL, others))
    assert (known.deviation <= unknown.deviation + 1e-12).all()
    index = NAMES.index("efficiency_conv_1x1")
    assert known.deviation[index] < 0.8 * unknown.deviation[index]
    assert pool_prior(find_device("xeon-8380"), "fp32") is None


def test_a_model_is_pooled_from_the_pool_that_is_given() -> None:
    """The prior of other evidence, here without the device's own, has another mean."""
    device = find_device("titan-rtx")
    others = Pool(POOL.format, POOL.parameters, [one for one in POOL.fits if one.id != device.id])
    found = pooled_model(device, "fp32", pool=others)
    assert isinstance(found, CalibratedModel)
    expected = prior_from_evidence(traits_of(device, "fp32"), others.fits).mean
    assert found.theta == pytest.approx(expected)
    assert model_of("titan-rtx", "fp32").theta != pytest.approx(expected)


def test_saturation_may_differ_only_on_devices_that_the_pool_does_not_contain() -> None:
    device = find_device("titan-rtx")
    others = [one for one in POOL.fits if one.id != device.id]
    saturation = np.array([name in ("half", "half_3x3") for name in NAMES])
    for fits, is_wider in ((POOL.fits, False), (others, True)):
        expected = prior_from_evidence(traits_of(device, "fp32"), fits)
        of_fit = pool_prior(device, "fp32", pool=Pool(POOL.format, POOL.parameters, fits))
        assert of_fit is not None
        assert np.array_equal(of_fit.mean, expected.mean)
        extra = np.sqrt(of_fit.deviation**2 - expected.deviation**2)
        assert extra[saturation] == pytest.approx(0.5 if is_wider else 0.0)
        assert not extra[~saturation].any()


@pytest.mark.parametrize("gpu", ["vega-fe", "mi25"])
def test_vgg16_in_fp64_is_not_forecast_below_its_bound(gpu: str) -> None:
    """In fp64 libraries do not use Winograd's algorithm, which multiplies less than is counted."""
    prediction = pl.predict("vgg16", gpu=gpu, precision="fp64")
    assert prediction.is_forecast and prediction.time_s > prediction.bound_s


def test_prediction_states_that_the_device_was_not_measured() -> None:
    prediction = pl.predict("resnet50", gpu="gtx1080", time_model="calibrated")
    low, high = prediction.interval or (0, 0)
    assert low < prediction.time_s < high and high / low > 1.5
    narrow, wide = prediction.to_dict()["intervals"].values()
    assert wide[0] < narrow[0] < narrow[1] < wide[1] and wide == [low, high]
    text = CliRunner(env={"COLUMNS": "100"}).invoke(main, ["predict", "resnet50", "--gpu", "gtx1080"]).stdout
    measured = {one.id for one in POOL.fits if (one.precision, one.unit) == ("fp32", "NVIDIA vector")}
    steps = {
        one.id
        for one in POOL.fits
        if one.id in measured and one.precision == "fp32" and one.software != SINGLE_OPERATIONS
    }
    assert f"pooled from {len(steps)} devices in fp32, not including this one" in text
    assert "no network was measured on GeForce GTX 1080 in fp32" in text and "at 80%" in text


@pytest.mark.parametrize(
    ("gpu", "precision", "asked", "words"),
    [
        ("a100-sxm-40gb", "tf32", {}, []),
        ("a100-sxm-40gb", "bf16", {}, ["measured in fp16: bf16 uses the same kernels, at its own peak"]),
        ("m40", "fp32", {}, ["M40 was measured under mxnet eager, not under pytorch eager"]),
        ("m40", "fp32", {"software": "mxnet"}, []),
        ("t4", "fp32", {}, []),
        ("t4", "fp32", {"execution": "folded", "software": "tensorrt"}, []),
        ("t4", "fp32", {"execution": "compiled"}, ["not under pytorch compiled: the interval is wider"]),
    ],
)
def test_prediction_states_the_software_of_the_measurements(gpu, precision, asked, words) -> None:
    model = model_of(gpu, precision, **asked)
    assert model.label.startswith(gpu) and model.label.endswith(" measurements")
    assert len(model.notes) == len(words)
    assert all(word in note for word, note in zip(words, model.notes))


def test_amd_s_are_known_from_single_operations() -> None:
    model = model_of("mi100", "fp16")
    assert model.label.startswith("pooled from single operations on ") and "not including" not in model.label
    assert model.notes[0].startswith("no network was measured on Instinct MI100 in 16 bits")
    assert model_of("mi250x-gcd", "fp32").label.endswith(", not including this one")


@pytest.mark.parametrize(
    ("gpu", "precision", "reason"),
    [
        ("xeon-8380", "fp32", "only GPUs of NVIDIA and AMD"),
        ("b200", "fp4", "no device was measured in fp4 on tensor units"),
    ],
)
def test_device_without_evidence_gets_a_marked_bound(gpu: str, precision: str, reason: str) -> None:
    prediction = pl.predict("resnet18", gpu=gpu, precision=precision)
    assert prediction.model.name == "bound" and prediction.interval is None
    assert prediction.notes[0].startswith("a bound, not a forecast") and reason in prediction.notes[0]
    with pytest.raises(BadValue, match=reason):
        pl.predict("resnet18", gpu=gpu, precision=precision, time_model="calibrated")
    asked = pl.predict("resnet18", gpu=gpu, precision=precision, time_model="bound")
    assert asked.time_s == prediction.time_s and not any("a bound" in note for note in asked.notes)


@cache
def known_models(precision: str) -> list[tuple[Device, CalibratedModel]]:
    """Return the devices of which models are known, on hosts of desktops and servers: those of Jetsons are slower."""
    known = [device for device in SINGLE if precision in device.precisions and not device.name.startswith("Jetson")]
    models = [(device, pooled_model(device, precision)) for device in known]
    return [(device, model) for device, model in models if isinstance(model, CalibratedModel)]


@pytest.mark.spread(2)
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "tf32", "fp64"])
def test_all_devices_of_a_precision_have_one_host(precision: str) -> None:
    host = [NAMES.index(name) for name in HOST_PARAMETERS]
    known = [model.theta[host] for _, model in known_models(precision)]
    assert len(known) > 5 and np.allclose(known, known[0], atol=1e-9)


COMPARED = {
    ("fp32", "training"), ("fp16", "inference"), ("bf16", "training"), ("tf32", "inference"), ("fp64", "training"),
}  # fmt: skip
"""Each precision in one phase; `make thorough` compares it in the other, too."""


@pytest.mark.spread(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "phase"),
    [
        pytest.param(precision, phase, marks=() if (precision, phase) in COMPARED else pytest.mark.thorough)
        for precision in ("fp32", "fp16", "bf16", "tf32", "fp64")
        for phase in ("inference", "training")
    ],
)
@costly
@given(name=st.sampled_from(NETWORKS), batch_size=st.sampled_from([1, 2, 8, 32, 128]))
def test_a_device_better_in_every_figure_is_never_slower(precision, phase, name, batch_size) -> None:
    """Of all pairs: in the peaks, bandwidth, and peak of a multiprocessor, under one software."""
    workload = Workload(find_network(name), precision, batch_size, phase)
    timed = [
        (rates_of(Machine(device), precision), model.evaluate(workload, Machine(device)).time_s, device)
        for device, model in known_models(precision)
    ]
    pairs = [
        (one, other)
        for one, other in itertools.permutations(timed, 2)
        if are_comparable(one[2], other[2]) and is_better(one[0], other[0])
    ]
    assert len(pairs) > 5
    wrong = [
        f"{one[2].id} {one[1]} > {other[2].id} {other[1]}" for one, other in pairs if one[1] > other[1] * (1 + 1e-4)
    ]
    assert not wrong


def test_a_pool_is_written_and_read_and_a_bad_one_named(tmp_path: Path) -> None:
    path = tmp_path / "pool.json"
    write_pool(make_pool(POOL.fits[:3]), path)
    assert read_pool(path) == make_pool(reversed(POOL.fits[:3]))
    good = path.read_text()
    for old, new, message in (
        ('"format":2', '"format":3', "another version"),
        ('"half",', "", "another version"),
        ('"year":20', '"year":"old"20', "Expected `int`"),
        ('"theta":[', '"theta":[0.5,', "18 numbers"),
        ("{", "", "Expected `object`"),
    ):
        path.write_text(good.replace(old, new, 1))
        with pytest.raises(BadFile, match=message) as caught:
            read_pool(path)
        assert str(path) in str(caught.value)
    with pytest.raises(BadFile, match="cannot be read"):
        read_pool(tmp_path / "absent.json")
    empty = make_pool([])
    assert isinstance(pooled_model(find_device("t4"), "fp32", pool=empty), NotPooled)


@pytest.mark.needs_data
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_few_rows_of_a_device_s_own_make_it_no_worse(rows: int) -> None:
    """Fitting some rows of MXNet on a K80, which the pool already contains, does not increase the error."""
    pytest.importorskip("scipy")
    own = [m for m in published_networks(MEASURED).measurements if m.gpu == "k80-die" and "1.2.0.rc1" in m.source]
    device = find_device("k80-die")
    prior = pool_prior(device, "fp32", software="mxnet")
    runs = runs_of(own, device, "fp32")

    def error(theta: np.ndarray) -> float:
        return float(np.mean(np.abs(runs.predict_s(theta) / runs.measured_s - 1)))

    draw = np.random.default_rng(rows)
    picked = [draw.choice(len(own), rows, replace=False) for _ in range(20)]
    after = [error(calibrate([own[i] for i in some], device, "fp32", prior)[1].theta) for some in picked]
    assert np.mean(after) < error(prior.mean) + 0.01

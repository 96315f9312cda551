"""Devices without measurements: what the pool says of them, how honestly, and where it says nothing."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import paleo_lite as pl
from measured import DATA
from paleo_lite.calibration.calibrate import on_tensor_cores, prior_of, runs_of
from paleo_lite.calibration.fit import Fit, fit
from paleo_lite.calibration.measurements import Measurement
from paleo_lite.calibration.pooled import NotPooled, make_pool, pooled_model, read_pool, write_pool
from paleo_lite.calibration.prior import Neighbour, prior_from_others
from paleo_lite.calibration.store import read_calibration, shipped_calibrations
from paleo_lite.cli import main
from paleo_lite.errors import BadFile, BadValue
from paleo_lite.hardware import find_device
from paleo_lite.timing.calibrated import sensitivities
from paleo_lite.timing.fitted import QUANTILES, CalibratedModel

MEASURED = DATA / "measured"


def model_of(gpu: str, precision: str) -> CalibratedModel:
    found = pooled_model(find_device(gpu), precision)
    assert isinstance(found, CalibratedModel)
    return found


@pytest.mark.parametrize(
    ("gpu", "precision"), [("t4", "fp32"), ("k20", "fp32"), ("a100-sxm-80gb", "fp16"), ("k80-die", "fp64")]
)
def test_the_pool_is_what_a_fit_of_no_measurement_says(gpu: str, precision: str) -> None:
    """As `validate --split gpu` does it: the prior from the others' fits, and a fit to nothing."""
    pytest.importorskip("scipy")
    device = find_device(gpu)
    others = [
        Neighbour(
            find_device(e.id),
            e.source,
            Fit(np.array(e.theta), np.diag(e.variance), 0.05, np.zeros(0), np.array(e.moved)),
        )
        for e in read_pool().fits
        if e.precision == precision
        and on_tensor_cores(find_device(e.id), precision) == on_tensor_cores(device, precision)
    ]
    step = Measurement(gpu, "alexnet", 1, "inference", precision, 1.0)
    nothing = runs_of([step], device, precision).choose(np.array([], dtype=np.int64))
    found = fit(nothing, prior_from_others(prior_of(device, precision), device, "", others))
    model = model_of(gpu, precision)
    assert np.array_equal(model.theta, found.theta)
    assert model.covariance == pytest.approx(found.covariance)
    assert model.scatter == found.scatter


def test_every_shipped_calibration_is_in_the_pool() -> None:
    assert {f"{each.id}-{each.precision}" for each in read_pool().fits} == set(shipped_calibrations())


def test_a_prediction_says_that_nobody_measured_the_device() -> None:
    prediction = pl.predict("resnet50", gpu="t4")
    assert prediction.model.name == "calibrated"
    low, high = prediction.interval or (0, 0)
    assert low < prediction.time_s < high and high / low > 2
    narrow, wide = prediction.to_dict()["intervals"].values()
    assert wide[0] < narrow[0] < narrow[1] < wide[1] and wide == [low, high]
    text = CliRunner(env={"COLUMNS": "100"}).invoke(main, ["predict", "resnet50", "--gpu", "t4"]).stdout
    assert "pooled from 12 devices in fp32, not including this one" in text
    assert "no measurements of Tesla T4 in fp32" in text and "at 80 %" in text


def test_another_rate_of_fp64_is_told() -> None:
    """The K80 computes fp64 at a third of fp32 (its data sheet), every measured card at 1/32."""
    (note,) = model_of("k80-die", "fp64").notes
    assert "at 1/32 of their fp32 rate, this one at 1/3" in note
    assert "1/32" not in model_of("gtx980", "fp64").notes[0]


@pytest.mark.parametrize(
    ("gpu", "precision", "reason"),
    [
        ("k80", "fp64", "k80 is a board of 2"),
        ("mi100", "fp32", "only GPUs of NVIDIA"),
        ("a100-sxm-80gb", "tf32", "no other device was measured in tf32 on tensor units"),
        ("h100-sxm", "fp8", "in fp8"),
    ],
)
def test_where_no_fit_speaks_of_a_device_it_gets_a_bound_that_says_so(gpu: str, precision: str, reason: str) -> None:
    prediction = pl.predict("resnet18", gpu=gpu, precision=precision)
    assert prediction.model.name == "roofline" and prediction.interval is None
    assert prediction.notes[0].startswith("a bound, not a forecast") and reason in prediction.notes[0]
    with pytest.raises(BadValue, match=reason):
        pl.predict("resnet18", gpu=gpu, precision=precision, time_model="calibrated")
    asked = pl.predict("resnet18", gpu=gpu, precision=precision, time_model="roofline")
    assert asked.time_s == prediction.time_s and not any("a bound" in note for note in asked.notes)


@pytest.mark.needs_data
def test_nine_of_ten_measurements_lie_in_their_90_percent_interval() -> None:
    """Every measured device as if nobody had measured it, and under whatever software: 85 to 95 % lie inside."""
    datasets = pytest.importorskip("paleo_lite.calibration.datasets")
    groups = defaultdict(list)
    for each in datasets.published(MEASURED).measurements:
        groups[each.gpu, each.precision].append(each)
    inside: dict[float, list[bool]] = {0.8: [], 0.9: []}
    for (gpu, precision), group in groups.items():
        model = model_of(gpu, precision)
        runs = runs_of(group, find_device(gpu), precision)
        times, gradient = sensitivities(runs.features, runs.rates, np.exp(model.theta), runs.run, len(runs))
        relative = gradient / times[:, None]
        deviation = np.sqrt(np.einsum("ij,jk,ik->i", relative, model.covariance, relative) + model.own_variance)
        for level, found in inside.items():
            found += list(np.abs(np.log(times / runs.measured_s)) < QUANTILES[level] * deviation)
    assert 0.85 <= np.mean(inside[0.9]) <= 0.95
    assert 0.75 <= np.mean(inside[0.8]) <= 0.85


def test_a_pool_is_written_and_read_and_a_bad_one_named(tmp_path: Path) -> None:
    path = tmp_path / "pool.json"
    calibrations = [read_calibration(path) for path in list(shipped_calibrations().values())[:3]]
    write_pool(make_pool(calibrations), path)
    assert read_pool(path) == make_pool(reversed(calibrations))
    good = path.read_text()
    for old, new, message in (
        ('"format":1', '"format":2', "another version"),
        ('"half",', "", "another version"),
        ('"year":2017', '"year":"old"', "year"),
        ('"moved":[', '"moved":[0.5,', "18 numbers"),
        ("{", "", "Expected `object`"),
    ):
        path.write_text(good.replace(old, new, 1))
        with pytest.raises(BadFile, match=message) as caught:
            read_pool(path)
        assert str(path) in str(caught.value)
    with pytest.raises(BadFile, match="cannot be read"):
        read_pool(tmp_path / "absent.json")
    empty = make_pool([])
    assert isinstance(pooled_model(find_device("t4"), "fp32", empty), NotPooled)

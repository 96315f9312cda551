"""Fit of the power that devices draw: constants that are known, held-out errors, and the rows of the evidence."""

from __future__ import annotations

import csv
from functools import cache

import numpy as np
import pytest

from measured import DATA
from paleo_lite.machines import find_device
from paleo_lite.timing.activity import Activity, Shares
from paleo_lite.timing.energy import below_limit, demand, power_of
from validation.energy.fit import (
    DEVICE_DEVIATION,
    GENERATION_DEVIATION,
    MEMORY_DEVIATION,
    PRIORS,
    Scatters,
    fit_energy,
    robust,
    shipped_scatters,
)
from validation.energy.hold_out import folds_of, hold_out, points_of, scatters_of
from validation.energy.measured import KINDS, MeasuredPower, measured_powers, trained_powers
from validation.energy.wall import machines

KNOWN = np.log([0.15, 0.6, 0.5, 0.1, 0.5])


def synthetic(device: str, model: str, factor: float = 1.0) -> list[MeasuredPower]:
    """Return steps whose powers follow the formula at known constants."""
    measured = []
    for arithmetic, memory, peak in np.random.default_rng(len(model)).uniform(0.0, 0.45, (12, 3)):
        shares = Shares(arithmetic, memory, 0.05, peak)
        found = find_device(device)
        power_w = found.power_w * float(below_limit(demand(KNOWN, shares), 1.0)) * factor
        activity = Activity(arithmetic, memory, 0.05, peak)
        measured.append(MeasuredPower("made up", found, model, "task", "dense", 1, activity, 1.0, power_w))
    return measured


def test_the_fit_finds_known_powers_of_an_unseen_model() -> None:
    evidence = [one for name in ("a", "bb", "ccc") for one in synthetic("h100-sxm", name)]
    power = power_of(find_device("h100-sxm"), model=fit_energy(evidence))
    assert power is not None
    for one in synthetic("h100-sxm", "dddd"):
        assert power.watts(one.activity.shares_of(1.0)) == pytest.approx(one.power_w, rel=0.03)


def test_errors_count_linearly_far_out_as_scipy_says() -> None:
    """The loss `soft_l1`: 2 (sqrt(1 + z) - 1) of the squared error z (scipy.optimize.least_squares)."""
    errors = np.array([-30.0, -1.0, 0.0, 0.1, 5.0])
    assert robust(errors) ** 2 == pytest.approx(2 * (np.sqrt(1 + errors**2) - 1))
    assert (np.sign(robust(errors)) == np.sign(errors)).all()


def test_priors_are_normal_however_far_a_measurement_lies() -> None:
    """An idle device that draws a millionth of its rated power.

    Far out the slope of the loss is 1 per deviation of a measurement, 10 per unit of the logarithm, and that of a
    normal prior is the distance over the variance: the four effects together move by 10 times the sum of their
    variances, less what the utilisation, which is never 0, draws.
    """
    device = find_device("h100-sxm")
    assert device.power_w is not None
    idle = MeasuredPower("made up", device, "a", "task", "dense", 1, Activity(), 1.0, 1e-6 * device.power_w)
    moved = fit_energy([idle]).devices["h100-sxm"].theta[0] - np.log(PRIORS["idle"][0])
    variance = PRIORS["idle"][1] ** 2 + MEMORY_DEVIATION**2 + GENERATION_DEVIATION**2 + DEVICE_DEVIATION**2
    assert 0.75 * 10 * variance < -moved < 10 * variance


def test_scatter_is_that_of_models_that_draw_more_or_less_than_the_formula() -> None:
    """Factors of 1.2 and 1 / 1.2: half of the intervals' width at 90%, 2.015 deviations."""
    evidence = synthetic("h100-sxm", "a", 1.2) + synthetic("h100-sxm", "bb", 1 / 1.2)
    scatter, of_experts = scatters_of(folds_of(evidence, "model"))
    assert of_experts < 0.001
    assert 0.5 * np.log(1.2) < scatter < 2 * np.log(1.2)
    points = hold_out(evidence, "model", Scatters(scatter))
    assert len(points) == 24 and np.mean([point.is_inside for point in points]) >= 0.9
    narrower = hold_out(evidence, "model", Scatters(0.9 * scatter))
    assert np.mean([point.is_inside for point in narrower]) < 0.9


def test_zeus_measured_steps_at_the_rated_limit() -> None:
    steps = trained_powers()
    assert len(steps) == 24
    waiting = [one for one in steps if one.model == "ncf"]
    assert [round(one.power_w, 2) for one in waiting] == [37.56, 90.93, 68.99, 34.74]


@cache
def evidence() -> list[MeasuredPower]:
    return measured_powers(DATA)


@pytest.mark.thorough
@pytest.mark.needs_data
@pytest.mark.slow
def test_the_shipped_constants_are_the_fit() -> None:
    fitted, shares = fit_energy(evidence()), Shares(0.2, 0.5, 0.02, 0.1)
    for name in ("h100-sxm", "b200", "v100-pcie", "a100-sxm-80gb"):
        shipped, again = power_of(find_device(name)), power_of(find_device(name), model=fitted)
        assert shipped is not None and again is not None
        assert shipped.watts(shares) == pytest.approx(again.watts(shares), rel=0.02)


@pytest.mark.thorough
@pytest.mark.needs_data
@pytest.mark.slow
@pytest.mark.parametrize("siblings", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_the_fit_holds_for_unseen_models(siblings: bool) -> None:
    """Of each kind of work the first model; `make thorough` judges all."""
    first = {min(one.model for one in evidence() if one.kind == kind) for kind in KINDS}
    judged = [one for one in evidence() if siblings or one.model in first]
    points = points_of(folds_of(evidence(), "model", judged), shipped_scatters())
    for kind in KINDS:
        own = [point for point in points if point.measured.kind == kind]
        assert np.median([abs(point.error) for point in own]) < 0.135
        assert np.mean([point.is_inside for point in own]) > 0.85


@pytest.mark.needs_data
@pytest.mark.slow
def test_batches_of_pictures_have_the_energy_of_their_rows() -> None:
    with (DATA / "engines/mlenergy_diffusion.csv").open(newline="") as file:
        joules = [float(row["joules_per_sample"]) for row in csv.DictReader(file)]
    batches = [one for one in evidence() if one.pipeline is not None]
    assert len(batches) == len(joules) == 422
    for one, measured_j in zip(batches, joules, strict=True):
        assert one.pipeline is not None
        images = one.pipeline.sampling.images
        assert one.power_w * one.devices * one.time_s / images == pytest.approx(measured_j, rel=0.02)


@pytest.mark.needs_data
@pytest.mark.slow
def test_every_server_has_the_power_of_its_row() -> None:
    with (DATA / "engines/mlenergy_language.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    servers = [one for one in evidence() if one.server is not None]
    assert len(servers) > 250
    for one in servers:
        assert one.server is not None and one.device.power_w is not None
        row = rows[int(one.server.name.split()[-1])]
        assert one.power_w * one.devices == pytest.approx(float(row["watts"]))
        assert 0 < one.power_w < 1.02 * one.device.power_w
        shares = one.activity.shares_of(one.time_s)
        assert all(0 <= share <= 1 for share in shares) and sum(shares[:3]) <= 1 + 1e-9


@pytest.mark.needs_data
@pytest.mark.slow
def test_machines_at_the_wall_are_inside_their_intervals() -> None:
    """26 of the rows are machines with a card that has a hardware file; each card is held out."""
    found = list(machines(DATA))
    assert len(found) == 26
    assert np.median([abs(one.wall_w / one.measured_w - 1) for one in found]) < 0.12
    assert np.mean([one.is_inside for one in found]) > 0.75

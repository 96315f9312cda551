"""What is expected of a device: against the same mixed model solved for its effects, one by one.

Tests: calibration/prior.py.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from paleo_lite.calibration.prior import (
    BASE,
    DEVICE_LEVELS,
    FIRST_YEAR,
    GENERATION,
    HOST_LEVELS,
    HOST_PARAMETERS,
    INFORMED_PARAMETERS,
    SHARED_LEVELS,
    SHARED_PARAMETERS,
    Evidence,
    Traits,
    base_prior,
    prior_from_evidence,
    traits_of,
)
from paleo_lite.machines import find_device
from paleo_lite.timing.parameters import NAMES

Floats = NDArray[np.float64]

ASKED = traits_of(find_device("t4"), "fp32")


def evidence(gpu: str, precision: str, seed: int, **traits: str) -> Evidence:
    draw = np.random.default_rng(seed)
    own = msgspec.structs.asdict(traits_of(find_device(gpu), precision))
    theta = base_prior(own["unit"].endswith("tensor"), precision=precision).mean + draw.normal(0, 0.3, len(NAMES))
    deviation = tuple(None if draw.random() < 0.2 else float(value) for value in draw.uniform(0.02, 0.5, len(NAMES)))
    return Evidence(
        **{**own, "source": f"source {seed}", **traits}, points=9, theta=tuple(theta.tolist()), deviation=deviation
    )


FITS = [
    evidence("titan-xp", "fp32", 1),
    evidence("titan-rtx", "fp32", 2, source="source 1"),
    evidence("titan-rtx", "fp16", 3, software="mxnet"),
    evidence("t4", "fp32", 4, execution="folded"),
    evidence("v100-sxm2", "fp64", 5, software="mxnet"),
    evidence("gtx580", "fp32", 6),  # from before the first year, of which it shares nothing with later ones
]


def by_effects(asked: Traits, name: str) -> tuple[float, float]:
    """Mean beyond the base and variance: Bayesian linear regression on the effects, a column for each that occurs.

    Fits far from what the others imply get a larger variance, by leaving out each in turn; in the parameters of
    devices, those of the asked chip in its precision keep theirs.
    """
    levels = HOST_LEVELS if name in HOST_PARAMETERS else SHARED_LEVELS if name in SHARED_PARAMETERS else DEVICE_LEVELS
    index, columns = NAMES.index(name), {}

    def row(one: Traits) -> dict[int, float]:
        effects = []
        for level in levels:
            values = [getattr(one, field) for field in level.fields]
            effects.append(((level.name, *values), level.deviation))
        if not one.source:  # nobody's: an effect of its own
            effects = [((*key, id(one)) if "source" in key or "computer" in key else key, d) for key, d in effects]
        if levels is DEVICE_LEVELS:
            effects += [((one.unit, year), GENERATION) for year in range(FIRST_YEAR + 1, one.year + 1)]
        return {columns.setdefault(key, len(columns)): deviation for key, deviation in effects}

    speaking = [one for one in FITS if one.deviation[index] is not None]
    rows = [row(one) for one in (*speaking, asked)]
    design = np.zeros((len(rows), len(columns)))
    for number, effects in enumerate(rows):
        design[number, list(effects)] = list(effects.values())
    design *= max(BASE[name][2], 0.3) / 0.3
    beyond = []
    for one in speaking:
        base = base_prior(one.unit.endswith("tensor"), precision=one.precision)
        beyond.append(one.theta[index] - base.mean[index])
    own = np.array([one.deviation[index] for one in speaking], dtype=float) ** 2
    added = np.zeros(len(speaking))
    for _ in range(0 if name in HOST_PARAMETERS else 3):
        larger = added.copy()
        for left_out in range(len(speaking)):
            rest = np.arange(len(speaking)) != left_out
            mean, variance = regress(design[:-1][rest], np.array(beyond)[rest], (own + added)[rest], design[left_out])
            variance += own[left_out]
            weight = (4 + 1) / (4 + (beyond[left_out] - mean) ** 2 / variance)  # Student's t, 4 degrees of freedom
            larger[left_out] = variance / min(weight, 1.0) - variance
        added = larger
    if levels is DEVICE_LEVELS:
        added = added * [(one.chip, one.precision) != (asked.chip, asked.precision) for one in speaking]
    return regress(design[:-1], np.array(beyond), own + added, design[-1])


def regress(design: Floats, values: Floats, variances: Floats, asked: Floats) -> tuple[float, float]:
    """Mean and variance at a row, with effects of unit variance before."""
    known = design / np.sqrt(variances)[:, None]
    covariance = np.linalg.inv(np.eye(design.shape[1]) + known.T @ known)
    effects = covariance @ known.T @ (values / np.sqrt(variances))
    return float(asked @ effects), float(asked @ covariance @ asked)


@pytest.mark.parametrize("asked", [ASKED, traits_of(find_device("rtx3090"), "tf32", "mxnet"), FITS[0]])
def test_estimate_equals_the_best_linear_unbiased_prediction(asked: Traits) -> None:
    base = base_prior(asked.unit.endswith("tensor"), precision=asked.precision)
    found = prior_from_evidence(asked, FITS)
    for index, name in enumerate(NAMES):
        mean, variance = by_effects(asked, name)
        assert found.mean[index] - base.mean[index] == pytest.approx(mean, abs=1e-9), name
        assert found.deviation[index] ** 2 == pytest.approx(variance), name


def test_a_fit_that_contradicts_all_others_moves_an_estimate_little() -> None:
    """Six sources agree on a TITAN RTX, and another measures it 1.6 or 30 times as fast; what of a T4?"""
    name = NAMES.index("efficiency_gemm")
    agreeing = []
    for seed in range(6):
        one = evidence("titan-rtx", "fp32", seed)
        agreeing.append(
            msgspec.structs.replace(one, theta=tuple(base_prior(False).mean), deviation=(0.05,) * len(NAMES))
        )

    def estimate(factor: float) -> float:
        theta = tuple(base_prior(False).mean + np.log(factor))
        contradicting = msgspec.structs.replace(agreeing[0], source="another", theta=theta)
        return float(prior_from_evidence(ASKED, [*agreeing, contradicting]).mean[name] - base_prior(False).mean[name])

    assert 0 < estimate(30.0) < estimate(1.6) < np.log(1.6) / 5


def test_estimate_without_evidence_is_the_base() -> None:
    base = base_prior(False)
    found = prior_from_evidence(ASKED, [])
    assert np.array_equal(found.mean, base.mean)
    taught = np.array([name in INFORMED_PARAMETERS for name in NAMES])
    assert (found.deviation > prior_from_evidence(ASKED, FITS).deviation)[taught].all()
    assert np.array_equal(found.deviation[~taught], base.deviation[~taught])


@pytest.mark.parametrize("gpu", ["k20", "v100-sxm2", "gb200", "rtx5090"])
def test_one_software_has_one_host(gpu: str) -> None:
    """Launch overheads depend on the software only, so that comparisons of devices do not depend on the host."""
    asked = traits_of(find_device(gpu), "fp32")
    one, other = (prior_from_evidence(each, FITS) for each in (asked, ASKED))
    host = [NAMES.index(name) for name in HOST_PARAMETERS]
    assert one.mean[host] == pytest.approx(other.mean[host], abs=1e-12)


@pytest.mark.parametrize(
    ("gpu", "precision", "unit", "kernels"),
    [
        ("a100-sxm-80gb", "tf32", "NVIDIA tensor", "fp16"),
        ("a100-sxm-80gb", "bf16", "NVIDIA tensor", "fp16"),
        ("a100-sxm-80gb", "fp64", "NVIDIA vector", "fp64"),
        ("gtx1080ti", "fp16", "NVIDIA vector", "fp16"),
        ("h100-sxm", "fp8", "NVIDIA tensor", "fp8"),
    ],
)
def test_precisions_share_kernels_where_libraries_do(gpu: str, precision: str, unit: str, kernels: str) -> None:
    asked = traits_of(find_device(gpu), precision)
    assert (asked.unit, asked.precision) == (unit, kernels)


def test_kepler_saturates_late_only_where_winograds_algorithm_is_used() -> None:
    """In fp64 libraries compute 3x3 convolutions as one product, whose saturation is that of other devices."""
    halves = {
        (kepler, precision): base_prior(False, kepler, precision).mean[NAMES.index("half_3x3")]
        for kepler in (False, True)
        for precision in ("fp32", "fp64")
    }
    assert halves[True, "fp64"] == halves[False, "fp64"] == halves[False, "fp32"]
    assert halves[True, "fp32"] - halves[False, "fp32"] == pytest.approx(np.log(20))

"""Measurements of a cluster: parsing, and conditioning of the population of clusters on them.

Tests: distributed/clusters.py.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from asked import scaling
from paleo_lite.distributed.clusters import ClusterPrior, MeasuredStep, Range, condition_on_measurements, parse_measured
from paleo_lite.distributed.request import ClusterRequest
from paleo_lite.distributed.run import _notes_on_measured, notes_outside
from paleo_lite.distributed.settings import ScaledBatch, Settings
from paleo_lite.errors import BadValue

ASKED = {"gpu": "k80-die", "link": "ethernet20", "batch_size": 32}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("16 workers: 5,900 samples/s", MeasuredStep(16, per_s=5900)),
        ("1 worker: 5.9k images/s", MeasuredStep(1, per_s=5900)),
        (" 8 GPUs : 12.5 img/sec ", MeasuredStep(8, per_s=12.5)),
        ("1,024 devices: 350 ms", MeasuredStep(1024, step_s=0.35)),
        ("4 workers: 0.35 s per step", MeasuredStep(4, step_s=0.35)),
        ("16 workers: 174,000 tokens/s", MeasuredStep(16, tokens_per_s=174_000)),
        ("8 gpus: 1e5 tok/s", MeasuredStep(8, tokens_per_s=1e5)),
    ],
)
def test_measurements_are_parsed(text, expected) -> None:
    assert parse_measured(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "16", "16 workers", "16: 5 ms", "0 workers: 5 ms", "4 workers: 0 ms", "4 workers: 1.2.3 ms",
     "4 workers: 3 GB/s", "-4 workers: 3 ms", "four workers: 3 ms", "4 workers: ,k samples/s", "4 workers: 3 ms 5 ms"],
)  # fmt: skip
def test_invalid_measurements(text) -> None:
    with pytest.raises(BadValue, match=r"must have the form '16 workers: 5,900 samples/s', .* or '16 workers: 350 ms'"):
        parse_measured(text)


def test_step_time_from_rate_or_seconds() -> None:
    assert MeasuredStep(8, per_s=640).step_time_s(256) == 0.4
    assert MeasuredStep(8, step_s=0.1).step_time_s(256) == 0.1
    assert MeasuredStep(8, tokens_per_s=4096).step_time_s(16, 1024) == 4
    with pytest.raises(BadValue, match="must be in samples/s, such as '8 workers: 5,900 samples/s'"):
        MeasuredStep(8, tokens_per_s=4096).step_time_s(16)


def test_a_step_below_its_data_sheets_is_refused() -> None:
    """VGG-16 on a K80: 32 samples of 3 x 31 GFLOP take 0.7 s at the 4.37 TFLOP/s of a die."""
    with pytest.raises(BadValue, match=r"`--measured '8 workers: 10 ms'` is not of this question: .* takes at least"):
        scaling("vgg16", workers=8, measured=["8 workers: 10 ms"], **ASKED)


def test_a_step_outside_the_interval_of_its_forecast_is_named() -> None:
    measured = ("8 workers: 200 ms", "8 workers: 80 samples/s", "16 workers: 200 ms")
    rows: Any = [SimpleNamespace(workers=8, interval=(0.35, 0.57))]
    (note,) = notes_outside(ClusterRequest([8], measured=measured), rows, ScaledBatch(4))
    assert note.startswith("the forecast follows '8 workers: 200 ms' in part only: a step of 200 ms is outside")
    assert "350 ms to 570 ms" in note


def test_a_normal_distribution_by_hand() -> None:
    """Log of the computation time x ~ N(0, 0.2), seconds exp(x), little scatter: the measurement determines x."""
    prior = ClusterPrior(1, Range(0.2, 0.1, 0.0), Range(0, 0.5, 1), Range(0.5, 1, 1.5), {}, 1, 1, "nothing", [])
    posterior = condition_on_measurements(prior, lambda scores, scale: [scale, 2 * scale], [1.25, 2.5], 0.2)
    assert posterior.compute_scale == pytest.approx(1.25, rel=0.01)
    # The measurements do not depend on the scores, which stay those of the population.
    assert abs(np.array(posterior.mean_scores)).max() < 0.35
    assert posterior.weights.sum() == pytest.approx(1)


def test_a_measurement_far_from_the_forecast_sets_it() -> None:
    """Four deviations of 0.14 away, the measurement of 2% still determines the computation, and its interval."""
    prior = ClusterPrior(1, Range(0.2, 0.1, 0.0), Range(0, 0.5, 1), Range(0.5, 1, 1.5), {}, 1, 1, "nothing", [])
    measured_s = math.exp(4 * 0.14)
    posterior = condition_on_measurements(prior, lambda scores, scale: [scale], [measured_s], 0.14)
    assert posterior.compute_scale == pytest.approx(measured_s, rel=0.02)
    within = np.abs(posterior.draws[:, 4] - 4 * 0.14) < 3 * 0.02
    assert posterior.weights[within].sum() > 0.95


@pytest.mark.slow
def test_forecasts_follow_measurements() -> None:
    """Two measurements that only a slower cluster explains: rows agree, extrapolation follows, intervals shrink."""
    free = scaling("resnet50", workers=[1, 8, 64], **ASKED)
    texts = [
        f"1 worker: {free[0].throughput_per_s} samples/s",
        f"8 workers: {0.7 * free[1].throughput_per_s} samples/s",
    ]
    refined = scaling("resnet50", workers=[1, 8, 64], measured=texts, **ASKED)
    assert refined[0].throughput_per_s == pytest.approx(free[0].throughput_per_s, rel=0.03)
    assert refined[1].throughput_per_s == pytest.approx(0.7 * free[1].throughput_per_s, rel=0.04)
    assert refined[2].efficiency < 0.8 * free[2].efficiency
    for before, after in zip(free, refined):
        widths = [math.log(row.interval[1] / row.interval[0]) for row in (before, after)]
        assert widths[1] < 0.6 * widths[0]
        assert after.interval[0] <= after.time_s <= after.interval[1]
    assert refined[1].time_s == pytest.approx(refined[1].compute_s + refined[1].exposed_s + refined[1].update_s)
    assert any("are fitted to your measurements" in note for note in refined.notes)
    assert refined.to_dict() == scaling("resnet50", workers=[1, 8, 64], measured=texts, **ASKED).to_dict()


def test_advice_says_which_strategy_was_measured() -> None:
    request = ClusterRequest([8], measured=("8 workers: 400 ms",), strategy="zero-3", advise="time")
    rows: Any = [SimpleNamespace(workers=8, interval=(0.35, 0.57))]
    job: Any = SimpleNamespace(workload=SimpleNamespace(network=SimpleNamespace(tokens=None)))
    notes = _notes_on_measured(request, rows, ScaledBatch(4), job, "12 measured clusters")
    assert notes[1:] == ["what was measured is taken to be a step of the strategy zero-3"]


def test_measurements_that_cannot_be_used() -> None:
    for more in ({"time_model": "roofline"}, {"platform": "ec2-p2-k80", "link": None}):
        with pytest.raises(BadValue, match="`--measured` refines the forecast of a cluster without measurements"):
            scaling("resnet50", **(ASKED | more), workers=[8], measured=["8 workers: 3 s"])
    with pytest.raises(BadValue, match="must have the form"):
        scaling("resnet50", **ASKED, workers=[8], measured=["8"])
    assert Settings().inputs is None

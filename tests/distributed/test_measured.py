"""What was measured of a cluster, read from text, and what the population becomes with it.

Tests: distributed/clusters.py.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import paleo_lite
from paleo_lite.distributed.clusters import ClusterPrior, MeasuredStep, Range, condition, parse_measured
from paleo_lite.distributed.job import Settings
from paleo_lite.errors import BadValue

ASKED = {"gpu": "k80-die", "link": "ethernet20", "batch_size": 32}


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("16 workers: 5,900 samples/s", MeasuredStep(16, per_s=5900)),
        ("1 worker: 5.9k images/s", MeasuredStep(1, per_s=5900)),
        (" 8 GPUs : 12.5 img/sec ", MeasuredStep(8, per_s=12.5)),
        ("1,024 devices: 350 ms", MeasuredStep(1024, step_s=0.35)),
        ("4 workers: 0.35 s per step", MeasuredStep(4, step_s=0.35)),
    ],
)
def test_what_a_measurement_says(text, means) -> None:
    assert parse_measured(text) == means


@pytest.mark.parametrize(
    "text",
    ["", "16", "16 workers", "16: 5 ms", "0 workers: 5 ms", "4 workers: 0 ms", "4 workers: 1.2.3 ms",
     "4 workers: 3 GB/s", "-4 workers: 3 ms", "four workers: 3 ms", "4 workers: ,k samples/s", "4 workers: 3 ms 5 ms"],
)  # fmt: skip
def test_what_is_no_measurement(text) -> None:
    with pytest.raises(BadValue, match="must read like '16 workers: 5,900 samples/s' or '16 workers: 350 ms'"):
        parse_measured(text)


def test_seconds_of_a_step() -> None:
    assert MeasuredStep(8, per_s=640).seconds(256) == 0.4
    assert MeasuredStep(8, step_s=0.1).seconds(256) == 0.1


def test_a_normal_distribution_by_hand() -> None:
    """What computing takes, x ~ N(0, 0.2), with seconds exp(x) and little scatter: x is what was measured."""
    prior = ClusterPrior(1, Range(0.2, 0.1, 0.0), Range(0, 0.5, 1), Range(0.5, 1, 1.5), {}, 1, 1, "nothing", [])
    known = condition(prior, lambda scores, pace: [pace, 2 * pace], [1.25, 2.5], 0.2)
    assert known.pace == pytest.approx(1.25, rel=0.01)
    # Nothing was said of the cluster: its scores stay those of the population.
    assert abs(np.array(known.scores)).max() < 0.35
    assert known.weights.sum() == pytest.approx(1)


@pytest.mark.slow
def test_what_was_measured_is_what_is_said() -> None:
    """Two measurements that only a slower cluster explains: rows agree, more workers follow, intervals shrink."""
    free = paleo_lite.scale("resnet50", workers=[1, 8, 64], **ASKED)
    texts = [
        f"1 worker: {free[0].throughput_per_s} samples/s",
        f"8 workers: {0.7 * free[1].throughput_per_s} samples/s",
    ]
    told = paleo_lite.scale("resnet50", workers=[1, 8, 64], measured=texts, **ASKED)
    assert told[0].throughput_per_s == pytest.approx(free[0].throughput_per_s, rel=0.03)
    assert told[1].throughput_per_s == pytest.approx(0.7 * free[1].throughput_per_s, rel=0.04)
    assert told[2].efficiency < 0.8 * free[2].efficiency
    for before, after in zip(free, told):
        widths = [math.log(row.interval[1] / row.interval[0]) for row in (before, after)]
        assert widths[1] < 0.6 * widths[0]
        assert after.interval[0] <= after.time_s <= after.interval[1]
    assert told[1].time_s == pytest.approx(told[1].compute_s + told[1].exposed_s + told[1].update_s)
    assert any("as measured here" in note for note in told.notes)
    assert told.to_dict() == paleo_lite.scale("resnet50", workers=[1, 8, 64], measured=texts, **ASKED).to_dict()


def test_where_a_measurement_says_nothing() -> None:
    for more in ({"time_model": "roofline"}, {"platform": "ec2-p2-k80", "link": None}):
        with pytest.raises(BadValue, match="--measured says more about a forecast of a cluster that nobody measured"):
            paleo_lite.scale("resnet50", **(ASKED | more), workers=[8], measured=["8 workers: 3 s"])
    with pytest.raises(BadValue, match="must read like"):
        paleo_lite.scale("resnet50", **ASKED, workers=[8], measured=["8"])
    assert Settings().inputs is None

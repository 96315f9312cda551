"""What a prediction's time is spent on: shares that add up, and that follow from the terms by hand.

Tests: timing/models.py.
"""

from __future__ import annotations

import re

import pytest

import paleo_lite as pl
from asked import predict_any
from paleo_lite.timing.terms import TIME_LIMITS, seconds_by_limit
from paleo_lite.timing.training_options import TrainingOptions

TRAINED = TrainingOptions("adam", mixed_precision=True, checkpointing="sqrt", accumulation=4)
CASES = {
    "training": ("resnet18", {"batch_size": 32, "phase": "training"}),
    "options": ("resnet18", {"batch_size": 32, "phase": "training", "training": TRAINED}),
    "launches": ("mobilenet_v2", {}),
    "fused": ("resnet18", {"execution": "folded"}),
    "ppp": ("resnet18", {"ppp": 0.5}),
    "peak": ("resnet18", {"time_model": "peak"}),
}


def spent(prediction: pl.Prediction) -> dict[str, float]:
    return seconds_by_limit(prediction.terms, prediction.model.uses_memory)


@pytest.mark.parametrize("case", CASES)
def test_they_add_up_to_the_time(case):
    network, asked = CASES[case]
    prediction = predict_any(network, gpu="v100-sxm2", precision="fp16", **asked)
    seconds = spent(prediction)
    assert list(seconds) == list(TIME_LIMITS)
    assert min(seconds.values()) >= 0
    assert sum(seconds.values()) == pytest.approx(prediction.time_s)
    assert seconds["overhead"] == prediction.terms.overhead_s


def test_the_roofline_by_hand():
    prediction = predict_any("resnet18", gpu="k40m", batch_size=8, time_model="roofline")
    seconds = spent(prediction)
    rows = list(prediction.rows())
    for bound, name in (("compute", "arithmetic"), ("memory", "memory traffic")):
        assert seconds[name] == pytest.approx(sum(row["time_s"] for row in rows if row["bound"] == bound))
        assert seconds[name] > 0
    assert seconds["waiting for the host"] == seconds["short kernels"] == 0


def test_where_memory_is_free_all_is_arithmetic():
    prediction = predict_any("resnet18", gpu="k40m", time_model="peak")
    assert spent(prediction)["arithmetic"] == pytest.approx(prediction.time_s)


def test_waiting_is_what_the_prediction_itself_says():
    prediction = predict_any("mobilenet_v2", gpu="v100-sxm2", precision="fp16")
    (note,) = [note for note in prediction.notes if "waits for the host" in note]
    factor = float(re.search(r"([\d.]+) times as long", note).group(1))
    seconds = spent(prediction)
    layers = prediction.time_s - seconds["overhead"]
    assert layers / (layers - seconds["waiting for the host"]) == pytest.approx(factor, rel=0.03)  # as rounded there
    assert seconds["short kernels"] > seconds["arithmetic"]  # at batch 1


def test_a_large_batch_does_not_wait():
    seconds = spent(predict_any("vgg16", gpu="v100-sxm2", precision="fp16", batch_size=128))
    assert seconds["waiting for the host"] < 0.01 * sum(seconds.values())
    assert seconds["arithmetic"] > seconds["memory traffic"] > seconds["short kernels"]

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


LLAMA_BYTES = 2 * (8_030_261_248 - 128_256 * 4096)
"""Weights of Llama 3.1 8B in 16 bits that a token reads: all parameters of its model card but the embedding's."""

CACHE_BYTES = 2 * 32 * 8 * 128 * 2
"""Keys and values of a token of Llama 3.1 8B in 16 bits: 32 blocks, 8 heads of 128 numbers (its config)."""


@pytest.mark.parametrize(
    ("gpu", "batch_size", "context", "bytes_per_s"),
    [("h100-sxm", 64, 8192, 3352e9), ("t4", 1, 128, 320e9), ("mi300x", 1, 128, 5300e9)],
)
def test_no_interval_needs_more_than_the_bandwidth(gpu: str, batch_size: int, context: int, bytes_per_s: float) -> None:
    """A decode step reads all weights and the cache of all sequences; bandwidths are those of the data sheets."""
    asked = {"gpu": gpu, "phase": "decode", "precision": "fp16", "batch_size": batch_size, "context": context}
    low_s, _ = pl.predict("llama-3.1-8b", **asked).interval
    assert low_s >= (LLAMA_BYTES + batch_size * context * CACHE_BYTES) / bytes_per_s


def test_no_token_of_an_own_machine_needs_more_than_the_bandwidth() -> None:
    """An RTX 4090 reads 1,008 GB/s."""
    found = pl.local("llama-3.1-8b", gpu="rtx4090", weights="f16", context=4096)
    assert found.interval[0] >= (LLAMA_BYTES + 4096 * CACHE_BYTES) / 1008e9

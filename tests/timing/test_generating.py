"""Writing text: the cache, narrower weights, experts that are met, and when products turn compute-bound.

Tests: timing/generating.py, reporting/predictions.py.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

import paleo_lite as pl
from paleo_lite.architectures import find_network
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.calibration.choose import choose_model
from paleo_lite.errors import BadValue, UnknownName, UnknownPrecision, UnsupportedPhase
from paleo_lite.machines import Machine, list_devices
from paleo_lite.timing.generating import STATIC_BATCH_NOTE, compute_bound_batch_size
from paleo_lite.timing.workload import Workload

QUESTION = {"gpu": "h100-sxm", "precision": "bf16", "phase": "decode", "context": 4095, "time_model": "roofline"}


def predicted(network="llama-3-8b", **changes):
    return pl.predict(network, **{**QUESTION, **changes})


def test_the_cache_is_keys_and_values_of_every_layer():
    """2 (keys and values) x 32 layers x 8 heads x 128 x 2 bytes for each token: 128 KiB, as vLLM says of Llama 3 8B."""
    prediction = predicted(batch_size=4)
    assert prediction.memory.memory.cache_bytes == 4 * 4096 * 128 * 1024
    assert prediction.to_dict()["generating"]["cache_bytes_per_sequence"] == 4096 * 128 * 1024


def test_the_largest_batch_leaves_room_for_the_cache():
    fit = predicted().memory
    most = fit.largest_batch
    assert predicted(batch_size=most).memory.fits
    assert not predicted(batch_size=most + 1).memory.fits
    assert most == pytest.approx((84.02e9 - 16.06e9) / 2**29, rel=0.01)


def test_one_token_takes_at_least_reading_weights_and_cache():
    """(weights - embedding + cache) / bandwidth: 7.505 G weights of 2 bytes, 0.5 GiB of cache."""
    weights = 2 * (8_030_261_248 - 128256 * 4096)
    assert predicted(execution="engine").bound_s == pytest.approx((weights + 2**29) / 3.352e12, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("weights", "stored_bits"), [("fp8", 8), ("int8", 8), ("int4", 4 + 16 / 128)])
def test_narrower_weights_are_read_and_kept_in_fewer_bytes(weights, stored_bits):
    """Embedding, head and norms keep 16 bits."""
    wide, narrow = predicted(), predicted(weights=weights)
    matrices = 8_030_261_248 - 2 * 128256 * 4096 - 65 * 4096
    assert wide.bytes - narrow.bytes == pytest.approx(matrices * (2 - stored_bits / 8), rel=1e-9)
    kept = wide.memory.memory.parameters_bytes - narrow.memory.memory.parameters_bytes
    assert kept == pytest.approx(matrices * (2 - stored_bits / 8), rel=1e-9)
    assert narrow.time_s < wide.time_s


def test_few_tokens_meet_few_experts():
    """Of 8 experts with 2 for each token, one token meets 2, and 4 tokens 8 (1 - 0.75^4) = 5.47 are expected."""
    layers = find_network("mixtral-8x7b", None, SequenceOptions(context=100, phase="decode")).layers
    experts = 2 * sum(layer.parameters for layer in layers if layer.kind == "grouped_matmul")

    def read(batch_size):
        work = Workload(
            find_network("mixtral-8x7b", None, SequenceOptions(context=100, phase="decode")),
            "bf16",
            batch_size,
            "decode",
        ).work
        chosen = [index for index, layer in enumerate(layers) if layer.kind == "grouped_matmul"]
        return work.column("bytes_read", "decode", 1)[0, chosen].sum()

    assert read(4) - read(1) == pytest.approx(experts * ((1 - 0.75**4) - 0.25), rel=1e-6)


def test_products_turn_compute_bound_at_the_ridge():
    """Of large matrices the ridge point is FLOPs per byte: 989.4 / 3.352 = 295 sequences at 2 bytes, and a few more."""

    def turning_point(**options):
        prediction = predicted(**options)
        return compute_bound_batch_size(prediction.workload, prediction.peak.per_s, prediction.bandwidth_bytes_per_s)

    assert 295 < turning_point() < 350
    blocks, head = 6_979_321_856, 128256 * 4096  # parameters of the matrices
    bits = (blocks * (4 + 16 / 128) + head * 16) / (blocks + head)
    assert 295 * bits / 16 < turning_point(weights="int4") < 350 * bits / 16


def test_text_is_generated_by_an_engine_unless_asked_otherwise():
    assert predicted().execution == "engine"
    assert predicted(execution="eager").execution == "eager"
    assert pl.predict("resnet50", gpu="t4").execution == "eager"


def test_who_leaves_the_precision_out_is_told_what_was_taken():
    said = [note for note in predicted(precision="fp32").notes if "--precision bf16" in note]
    assert len(said) == 1 and not any("--precision bf16" in note for note in predicted().notes)
    assert not any("16 bits" in note for note in predicted("gpt2", gpu="k80-die", precision="fp32", context=9).notes)


def test_an_answer_says_tokens_and_that_the_batch_is_static():
    prediction = predicted(batch_size=8)
    assert prediction.to_dict()["tokens_per_s"] == pytest.approx(8 / prediction.time_s)
    assert STATIC_BATCH_NOTE in prediction.notes
    page = prediction.document()
    assert [name for name, _ in page.facts][:3] == ["time per token", "KV cache", "weights"]
    prompt = pl.predict("llama-3-8b", gpu="h100-sxm", precision="bf16", phase="prefill", sequence_length=512)
    assert prompt.document().facts[0][0] == "time to first token"
    assert "tokens/s" in prompt.document().title


def test_a_network_from_a_config_is_made_for_the_phase_that_is_asked():
    prefill = find_network("gpt2", None, SequenceOptions(phase="prefill"))
    for phase in ("decode", "inference"):
        handed = pl.predict(prefill, gpu="t4", phase=phase)
        assert handed.time_s == pl.predict("gpt2", gpu="t4", phase=phase).time_s


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"weights": "int5"}, UnknownName, "int5"),
        ({"network": "gpt2", "phase": "forward", "context": None, "weights": "int4"}, UnsupportedPhase, "inference"),
        ({"network": "resnet50"}, BadValue, "does not read sequences"),
        (
            {"network": find_network("gpt2")._replace(rebuild=None), "context": None},
            BadValue,
            "decode needs a language model",
        ),
        (
            {
                "network": find_network("gpt2", None, SequenceOptions(phase="decode"))._replace(rebuild=None),
                "phase": "inference",
                "context": None,
            },
            BadValue,
            "a network with a KV cache supports the phases prefill and decode",
        ),
        ({"network": find_network("resnet50")}, BadValue, "networks given by name or config"),
        ({"network": find_network("gpt2")}, BadValue, "gpt2 knows 1024 positions"),
    ],
)
def test_impossible_questions_are_refused(changes, error, message):
    with pytest.raises(error, match=message):
        predicted(**changes)


@pytest.mark.spread(1)
@pytest.mark.parametrize("precision", ["fp64", "fp32", "fp16"])
def test_a_batch_takes_at_most_twice_as_long_as_its_half(precision: str) -> None:
    """A batch can be computed as two halves, one after the other, so it never takes longer than both.

    When the rows of a product with one row were not padded, but two rows were padded to 32, decoding in fp64 took up to
    23 times as long with two sequences as with one.
    """
    network = find_network("gpt3-1.3b", None, SequenceOptions(phase="decode"))
    workloads = [Workload(network, precision, 2**power, "decode") for power in range(8)]
    devices_compared = 0
    for device in list_devices():
        machine = Machine(device)
        try:
            model = choose_model(device, precision, execution="engine")
            times_s = [model.evaluate(workload, machine).time_s for workload in workloads]
        except UnknownPrecision:
            continue
        devices_compared += 1
        for half_s, whole_s in pairwise(times_s):
            assert half_s <= whole_s <= 2 * half_s, device.id
    assert devices_compared > 50

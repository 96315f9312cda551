"""Kernels of Whisper under an engine: counts by hand from Radford et al. 2022 (arXiv 2212.04356) and large-v3's config.

Tests: engines/speech.py.
"""

from __future__ import annotations

import json

import pytest

import paleo_lite as pl
from paleo_lite.architectures import Network, find_network
from paleo_lite.architectures.model_config import read_config
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.engines.activity import kernel_flops, moved_bytes
from paleo_lite.engines.blocks import Fusion
from paleo_lite.engines.division import ONE_DEVICE
from paleo_lite.engines.kernel_formats import Formats, choose_formats
from paleo_lite.engines.kernels import AttentionKernel, CountedKernel, Load, Pointwise, ProductKernel, decoded_keys
from paleo_lite.engines.memory import sequence_bytes, stored_weight_bytes
from paleo_lite.engines.speech import speech_kernels
from paleo_lite.engines.step import EngineStep
from paleo_lite.machines import find_device

BLOCKS, WIDTH, INNER, POSITIONS, FRAMES, BINS, WORDS = 32, 1280, 5120, 1500, 3000, 128, 51_866
"""Sizes of Whisper large-v3 (table 1 of the paper; 128 bins and 51,866 words since v3)."""

SMALL = {
    "model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"], "vocab_size": 1000, "d_model": 64,
    "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 96, "decoder_ffn_dim": 160, "num_mel_bins": 24, "max_source_positions": 50,
    "max_target_positions": 40,
}  # fmt: skip
"""A network whose sizes all differ, so that none can stand for another."""


def kernels(phase: str, name: str = "whisper-large-v3") -> list[CountedKernel]:
    return speech_kernels(find_network(name), phase, Fusion({}))


def step() -> EngineStep:
    formats: Formats = choose_formats("bf16", None, "bf16", has_experts=False, has_latent_attention=False)
    return EngineStep(find_device("h100-sxm"), "vllm", formats, ONE_DEVICE, None)


def macs(phase: str, load: Load) -> float:
    return sum(counted.count * kernel_flops(counted.kernel, load) for counted in kernels(phase)) / 2


def test_a_prompt_computes_the_encoder_once_and_the_decoder_for_its_tokens() -> None:
    tokens = 4
    stem = FRAMES * 3 * BINS * WIDTH + POSITIONS * 3 * WIDTH * WIDTH
    encoder_block = POSITIONS * (4 * WIDTH**2 + 2 * WIDTH * INNER) + 2 * POSITIONS**2 * WIDTH
    keys_and_values = POSITIONS * 2 * WIDTH**2
    pairs = tokens * (tokens + 1) / 2  # causal
    decoder_block = tokens * (6 * WIDTH**2 + 2 * WIDTH * INNER + 2 * POSITIONS * WIDTH) + 2 * pairs * WIDTH
    expected = stem + BLOCKS * (encoder_block + keys_and_values + decoder_block) + WIDTH * WORDS
    load = Load(tokens, tokens, sampled=1, prompts=1, length=tokens, has_prompts=True)
    assert macs("prefill", load) == expected
    three = Load(3 * tokens, 3 * tokens, sampled=3, prompts=3, length=tokens, has_prompts=True)
    assert macs("prefill", three) == 3 * expected


def test_decoding_attends_to_all_positions_of_the_encoder_and_to_the_tokens_before() -> None:
    sequences, context = 7, 33
    block = 6 * WIDTH**2 + 2 * WIDTH * INNER + 2 * (POSITIONS + context + 1) * WIDTH
    assert macs("decode", Load.of_decoding(sequences, context)) == sequences * (BLOCKS * block + WIDTH * WORDS)
    assert not any(counted.kernel.rows == "encoded" for counted in kernels("decode"))


def test_weights_are_those_of_the_card_without_biases_and_positions() -> None:
    """Whisper has no bias of keys; the decoder's positions are looked up on the way to the first block."""
    biases = BLOCKS * (3 * WIDTH + INNER + WIDTH) + BLOCKS * (6 * WIDTH + INNER + WIDTH)
    decoder_positions = 448 * WIDTH
    encoder = [counted for counted in kernels("prefill") if counted.kernel.rows == "encoded"]
    stored = stored_weight_bytes(step(), kernels("decode")) + stored_weight_bytes(step(), encoder)
    assert stored == 2 * (1_543_490_560 - biases - decoder_positions)


def test_a_sequence_keeps_keys_and_values_of_all_positions() -> None:
    for tokens in (0, 1, 104):
        assert sequence_bytes(step(), kernels("decode"), tokens) == BLOCKS * 2 * 2 * WIDTH * (POSITIONS + tokens)


def test_both_stacks_keep_their_own_sizes() -> None:
    def build(options: SequenceOptions) -> Network:
        return read_config(json.dumps(SMALL).encode(), "config.json", None, options)

    network = build(SequenceOptions())._replace(rebuild=build)
    of_phase = {phase: speech_kernels(network, phase, Fusion({})) for phase in ("prefill", "decode")}
    attention = [
        (counted.count, counted.kernel.heads, counted.kernel.rows, counted.kernel.positions)
        for counted in of_phase["prefill"]
        if isinstance(counted.kernel, AttentionKernel)
    ]
    assert attention == [(3, 4, "encoded", 50), (2, 2, "prompts", 0), (2, 2, "prompts", 50)]
    inner = [
        (counted.count, counted.kernel.n)
        for counted in of_phase["prefill"]
        if isinstance(counted.kernel, ProductKernel) and "gate and up" in counted.kernel.name
    ]
    assert inner == [(3, 96), (2, 160)]
    heads = [counted.kernel.n for counted in of_phase["decode"] if counted.kernel.name == "head"]
    assert heads == [1000]
    # Each block has three norms; the last one of each stack follows.
    norms = sum(counted.count for counted in of_phase["decode"] if counted.kernel.name == "norm")
    assert norms == 2 * 3 + 1


def test_residuals_belong_to_the_norm_after_them_and_activations_do_not() -> None:
    """A norm reads the stream and what is added, and writes both results: four numbers of the width in 16 bits."""
    for phase in ("prefill", "decode"):
        within = [counted for counted in kernels(phase) if counted.kernel.name in ("norm", "encoder: norm")]
        usual = [counted.kernel for counted in within if counted.count > 2]
        assert {kernel.row_bytes for kernel in usual if isinstance(kernel, Pointwise)} == {4 * 2 * WIDTH}
        activations = [counted.kernel for counted in kernels(phase) if counted.kernel.name.endswith("activation")]
        assert {kernel.row_bytes for kernel in activations if isinstance(kernel, Pointwise)} == {2 * 2 * INNER}


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_attention_to_the_encoder_reads_its_keys_and_values(phase: str) -> None:
    load = Load.of_decoding(5, 20) if phase == "decode" else Load(8, 8, prompts=2, length=4, has_prompts=True)
    (kernel,) = (counted.kernel for counted in kernels(phase) if counted.kernel.name == "attention to the encoder")
    assert isinstance(kernel, AttentionKernel)
    rows, sequences = (5, 5) if phase == "decode" else (8, 2)
    assert moved_bytes(step(), kernel, load) == 2 * 2 * WIDTH * (sequences * POSITIONS + rows)
    if phase == "decode":
        assert decoded_keys(kernel, load) == POSITIONS


@pytest.mark.parametrize(("phase", "lengths"), [("prefill", {"sequence_length": 4}), ("decode", {"context": 100})])
def test_predict_times_the_same_work_by_kernels_and_by_layers(phase: str, lengths: dict[str, int]) -> None:
    """Layers count the whole square of pairs where kernels leave out what a mask hides, of few tokens here."""
    asked = {"gpu": "h100-sxm", "precision": "bf16", "phase": phase, "batch_size": 8, **lengths}
    by_kernels = pl.predict("whisper-large-v3", **asked)
    by_layers = pl.predict("whisper-large-v3", **asked, execution="engine")
    assert by_kernels.to_dict()["time_model"] == "kernels" and by_layers.to_dict()["time_model"] == "calibrated"
    flops = [prediction.to_dict()["flops"] for prediction in (by_kernels, by_layers)]
    assert flops[0] == pytest.approx(flops[1], rel=0.01)
    low, high = by_layers.interval
    assert low < by_kernels.time_s < high


def test_a_narrow_cache_holds_no_keys_of_the_encoder_itself() -> None:
    """Queries, keys, values and results of 1,280 numbers at each of 1,500 positions, in 16 bits, whatever the cache."""
    formats = choose_formats("bf16", None, "fp8", has_experts=False, has_latent_attention=False)
    narrow = EngineStep(find_device("h100-sxm"), "vllm", formats, ONE_DEVICE, None)
    load = Load(4, 4, prompts=1, length=4, has_prompts=True)
    attention = [counted.kernel for counted in kernels("prefill") if isinstance(counted.kernel, AttentionKernel)]
    (encoder,) = (kernel for kernel in attention if kernel.rows == "encoded")
    (cross,) = (kernel for kernel in attention if kernel.rows == "prompts" and kernel.positions)
    assert moved_bytes(narrow, encoder, load) == moved_bytes(step(), encoder, load) == 4 * 2 * WIDTH * POSITIONS
    assert moved_bytes(narrow, cross, load) == 2 * WIDTH * (POSITIONS + 2 * 4)
    assert moved_bytes(step(), cross, load) == 2 * 2 * WIDTH * (POSITIONS + 4)

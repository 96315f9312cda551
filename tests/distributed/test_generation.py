"""Text generation with tensor parallelism: published times, communication volumes, and invalid arguments."""

from __future__ import annotations

import json

import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite.architectures import find_network
from paleo_lite.distributed.links import link_rate
from paleo_lite.distributed.parallel_config import ParallelConfig
from paleo_lite.distributed.settings import Settings
from paleo_lite.errors import PaleoError

# Published: devices, sequences per batch, tokens in the KV cache, seconds per token; no fit used them. InternLM's
# lmdeploy 0.1 (docs/en/benchmark/a100_fp16.md, medians; the cache in the middle of the answer), and meta-pytorch's
# gpt-fast (README.md and mixtral-moe/README.md: one sequence, short prompts).
LMDEPLOY = {
    "llama-2-7b": [(1, 1, 1152, 0.010), (1, 32, 1152, 0.021)],
    "llama-2-70b": [(4, 1, 192, 0.029), (4, 16, 1152, 0.033), (4, 64, 192, 0.037), (4, 64, 1152, 0.043)],
}
GPT_FAST = {
    "llama-2-7b": [(2, 1, 100, 1 / 168.84)],
    "llama-2-70b": [(2, 1, 100, 1 / 21.32), (4, 1, 100, 1 / 38.01), (8, 1, 100, 1 / 62.5)],
    "mixtral-8x7b": [(2, 1, 100, 1 / 78.75), (4, 1, 100, 1 / 118.23)],
}

# NVIDIA's TensorRT-LLM 0.5 (docs/source/performance.md, A100, FP16): devices, tokens of the prompt, seconds.
FIRST_TOKENS = {
    "llama-2-7b": [(1, 128, 0.016), (1, 2048, 0.133)],
    "llama-2-70b": [(4, 128, 0.047), (4, 2048, 0.377)],
}

# meta-llama/Llama-2-70b-hf, config.json.
LLAMA_2_70B = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "intermediate_size": 28672,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 32000,
    "max_position_embeddings": 4096, "hidden_act": "silu",
}  # fmt: skip


@pytest.fixture(scope="module")
def llama_2_70b(tmp_path_factory):
    path = tmp_path_factory.mktemp("configs") / "llama-2-70b.json"
    path.write_text(json.dumps(LLAMA_2_70B))
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize(("source", "most"), [(LMDEPLOY, 0.1), (GPT_FAST, 0.1)])
def test_forecasts_agree_with_published_times_per_token(llama_2_70b, source, most):
    errors, inside = [], []
    for name, points in source.items():
        network = llama_2_70b if name == "llama-2-70b" else name
        for workers, sequences, context, seconds in points:
            row = generate(network, workers, batch_size=sequences, context=context)
            errors.append(abs(row.time_s / seconds - 1))
            inside.append(row.interval[0] < seconds < row.interval[1])
    assert np.mean(errors) < most
    assert np.mean(inside) > 0.85


@pytest.mark.slow
def test_forecasts_agree_with_published_times_to_first_token(llama_2_70b):
    errors = []
    for name, points in FIRST_TOKENS.items():
        network = llama_2_70b if name == "llama-2-70b" else name
        for workers, tokens, seconds in points:
            row = generate(network, workers, phase="prefill", sequence_length=tokens)
            errors.append(abs(row.time_s / seconds - 1))
            assert errors[-1] < 0.18
            assert row.interval[0] < seconds < row.interval[1]
    assert np.mean(errors) < 0.08


def generate(network, workers, **asked):
    question = {"platform": "dgx-a100", "precision": "fp16", "phase": "decode", **asked}
    return pl.scale(network, workers=workers, **question)[-1]


@pytest.mark.parametrize(
    ("network", "asked"),
    [
        ("llama-3-8b", {"context": 2000, "batch_size": 8}),
        ("mixtral-8x7b", {"context": 100, "batch_size": 4}),
        ("gpt2", {"phase": "prefill", "sequence_length": 512}),
    ],
)
def test_a_single_device_agrees_with_predict(network, asked):
    """Extrapolation from few blocks gives the time, interval and memory that `predict` gives for the whole network."""
    question = {"gpu": "a100-sxm-80gb", "precision": "fp16", "phase": "decode", **asked}
    whole, (row,) = pl.predict(network, memory=True, **question), pl.scale(network, workers=1, **question)
    assert row.time_s == pytest.approx(whole.time_s, rel=1e-8)  # the host is a billionth of the time
    assert row.interval == pytest.approx(whole.interval, rel=1e-9)
    assert row.memory_bytes == pytest.approx(whole.memory.memory.total_bytes, rel=1e-4)


def test_weights_and_kv_cache_are_sharded():
    """LLaMA 2's 32 heads, 11008 columns and KV cache are divided by 2; its 2 x 32 + 1 norms of 4096 are replicated."""
    one, two = (generate("llama-2-7b", workers, batch_size=8, context=1023) for workers in (1, 2))
    cache = 2 * 32 * 4096 * 1024 * 2 * 8
    norms = 2 * 65 * 4096
    parameters = 2 * find_network("llama-2-7b").parameters
    assert one.memory_bytes > cache + parameters
    assert two.memory_bytes == pytest.approx((cache + parameters + norms) / 2, rel=1e-3)


def test_communication_is_two_all_reduces_per_block_and_the_logits():
    """Shoeybi et al. 2019, section 3; a ring all-reduce of n moves 2 (n - 1) / n of the bytes, an all-gather half."""
    row = generate("llama-2-7b", 4, platform=None, gpu="a100-sxm-80gb", link="100 GB/s", batch_size=16,
                  time_model="roofline", ppp_comm=1.0, settings=Settings(collective="ring"))  # fmt: skip
    sums, logits = 2 * 32 + 1, 32000
    sent = 16 * 2 * (sums * 4096 + logits / 2)
    assert link_rate("100 GB/s", 1.0).bandwidth_bytes_per_s == 100e9
    assert row.exposed_s == pytest.approx(2 * 3 / 4 * sent / 100e9)


def test_replicas_share_the_batch():
    half = generate("llama-2-7b", 4, batch_size=8)
    both = generate("llama-2-7b", 8, batch_size=16, settings=Settings(parallel=ParallelConfig(tensor=4)))
    assert both.time_s == pytest.approx(half.time_s)
    assert both.tokens_per_s == pytest.approx(2 * half.tokens_per_s)


def test_advice_compares_every_power_of_two():
    table = pl.scale("llama-3-8b", platform="dgx-a100", workers=8, precision="bf16", phase="decode", batch_size=64,
                     advise=True)  # fmt: skip
    assert {row.strategy.split(",")[0] for row in table.rows} == {"tensor 1", "tensor 2", "tensor 4", "tensor 8"}
    assert [row.time_s for row in table.rows] == sorted(row.time_s for row in table.rows)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"workers": 16}, r"`--tensor` must be <= 8, the devices per node \(got 16\)"),
        ({"workers": 3}, "--tensor 3 does not divide the 32 attention heads of llama-2-7b"),
        (
            {"workers": 8, "settings": Settings(parallel=ParallelConfig(3))},
            r"`--tensor` must divide the 8 workers \(got 3\)",
        ),
        (
            {"workers": 8, "settings": Settings(parallel=ParallelConfig(4))},
            r"divisible by the 2 replicas of `--tensor 4` \(got 1\)",
        ),
        (
            {"workers": 8, "settings": Settings(parallel=ParallelConfig(2, 2))},
            "support tensor parallelism only: use `--tensor` alone",
        ),
        (
            {"workers": 8, "settings": Settings(parallel=ParallelConfig(8, expert=8))},
            "or `paleo-lite serve`, which simulates pipelines, `--expert-parallel` and `--attention-data-parallel`",
        ),
        ({"workers": 8, "settings": Settings(overlap=False)}, "`--no-overlap`, .* are for `--phase training`"),
        ({"workers": 8, "storage": "hdd"}, "`--storage`, .* are for `--phase training`"),
        (
            {"workers": 8, "strategy": "zero-3"},
            "decode uses tensor parallelism, set by `--tensor`: leave `--strategy` out",
        ),
        ({"workers": 8, "phase": "training"}, "`--context` is for `--phase prefill` and `decode`, not for training"),
        ({"workers": 8, "phase": "inference"}, "`--phase inference` on several devices is for pipelines such as"),
    ],
)
def test_invalid_arguments(asked, message):
    with pytest.raises(PaleoError, match=message):
        generate("llama-2-7b", **{"context": 100, **asked})


@pytest.mark.parametrize(
    ("asked", "factor"),
    [({"phase": "decode"}, 1.3), ({"scaling": "strong", "settings": Settings(parallel=ParallelConfig(2))}, 1.2)],
)
def test_forecasts_follow_measurements(asked, factor):
    """For networks of blocks, too: a measurement sets the computation time."""
    question = {"platform": "dgx-a100", "workers": 2, "precision": "fp16", "batch_size": 4, **asked}
    measured_s = factor * pl.scale("gpt3-1.3b", **question)[0].time_s
    refined = pl.scale("gpt3-1.3b", **question, measured=[f"2 workers: {1e3 * measured_s:.6g} ms"])[0]
    assert refined.time_s == pytest.approx(measured_s, rel=0.05)

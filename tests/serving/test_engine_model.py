"""One device under an engine: `predict`, `scale`, `sweep` and the step inside `serve` are one answer.

Tests: serving/engine_model.py, serving/iteration.py.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

import paleo_lite as pl
from asked import predict_any, scaling
from paleo_lite.api.question import Question, resolve_question
from paleo_lite.cli import main
from paleo_lite.engines.records import KERNEL_ENGINES, find_server
from paleo_lite.errors import PaleoError
from paleo_lite.serving.iteration import with_fitted_host
from paleo_lite.serving.iteration_times import ScheduledTokens
from paleo_lite.serving.kernel_timer import KernelTimer
from paleo_lite.serving.placement import ModelOnDevice, with_kernels
from paleo_lite.serving.timer import tabulate
from paleo_lite.timing.energy import power_of
from paleo_lite.timing.memory import usable_bytes

ASKED = [
    ("llama-3.1-8b", "h100-sxm", {"precision": "bf16"}, "vllm"),
    ("gpt-oss-20b", "h100-sxm", {"precision": "bf16", "weights": "mxfp4"}, "sglang"),
    ("deepseek-v3", "h200-sxm", {"precision": "fp8"}, "tensorrt-llm"),
    ("qwen3-30b-a3b", "b200", {"precision": "fp4", "kv_cache": "fp8"}, "vllm"),
]
"""Networks, devices, formats and engines; deepseek-v3 needs more than one H200, which its times do not ask."""

SEQUENCES, CONTEXT, PROMPT = 16, 2000, 1024


def placed_as_served(network: str, gpu: str, policy: str, **formats: Any) -> ModelOnDevice:
    cache = formats.pop("kv_cache", "bf16")
    workload, machine, model = resolve_question(Question(network, gpu, phase="decode", **formats))
    alone = ModelOnDevice(workload, machine, model, None, cache)
    return with_kernels(alone, policy)


@pytest.mark.parametrize(("network", "gpu", "formats", "policy"), ASKED)
def test_predict_is_scale_on_one_device_and_the_step_inside_serve(network, gpu, formats, policy) -> None:
    """The same time, interval, watts, memory and bound of the same sequences at the same context."""
    question = {"gpu": gpu, "phase": "decode", "batch_size": SEQUENCES, "context": CONTEXT, **formats}
    one = pl.predict(network, engine=policy, memory=True, **question)
    (row,) = scaling(network, workers=1, policy=policy, **question)
    assert one.time_s == pytest.approx(row.time_s, rel=1e-12)
    assert one.interval == pytest.approx(row.interval, rel=1e-12)
    assert one.bound_s == pytest.approx(row.bound_s, rel=1e-12)
    assert one.power_w == pytest.approx(row.power_w, rel=1e-9)
    assert one.memory.total_bytes == row.memory_bytes
    assert one.mfu == pytest.approx(row.mfu, rel=1e-9)

    on_device = placed_as_served(network, gpu, policy, **formats)
    device = on_device.machine.device
    host = with_fitted_host(find_server(policy, device), on_device.kernels)
    times = tabulate(
        KernelTimer(on_device), max_new_tokens=4096, max_sequences=SEQUENCES, max_prompt=PROMPT, max_context=CONTEXT + 1
    )
    served_s = times.iteration_s(ScheduledTokens(SEQUENCES, float(SEQUENCES * CONTEXT)))
    served_s += host.overhead_s + host.sequence_overhead_s * SEQUENCES
    assert one.time_s == pytest.approx(served_s, rel=1e-9)
    activity = KernelTimer(on_device).decode_activity(SEQUENCES, CONTEXT)
    assert one.activity == pytest.approx(activity)
    assert one.power_w == pytest.approx(float(power_of(device).watts(activity.shares_of(served_s))), rel=1e-9)


@pytest.mark.parametrize(("network", "gpu", "formats", "policy"), ASKED)
def test_a_prompt_has_one_answer(network, gpu, formats, policy) -> None:
    """The tables of `serve` interpolate, and time the head as in decoding."""
    question = {"gpu": gpu, "phase": "prefill", "sequence_length": PROMPT, **formats}
    one = pl.predict(network, engine=policy, **question)
    (row,) = scaling(network, workers=1, policy=policy, **question)
    assert (one.time_s, one.power_w) == pytest.approx((row.time_s, row.power_w), rel=1e-9)
    assert one.interval == pytest.approx(row.interval, rel=1e-12)
    on_device = placed_as_served(network, gpu, policy, **formats)
    timer = KernelTimer(on_device)
    times = tabulate(timer, max_new_tokens=4096, max_sequences=4, max_prompt=PROMPT, max_context=CONTEXT)
    host = with_fitted_host(find_server(policy, on_device.machine.device), on_device.kernels)
    served_s = times.iteration_s(ScheduledTokens(0, 0.0, [(0, PROMPT)], 1)) + host.overhead_s
    assert one.time_s == pytest.approx(served_s, rel=0.02)


def test_a_power_limit_slows_predict_as_scale() -> None:
    question = {"gpu": "h100-sxm", "precision": "bf16", "phase": "prefill", "power_limit": "300W"}
    one, (row,) = pl.predict("llama-3.1-8b", **question), scaling("llama-3.1-8b", workers=1, **question)
    assert one.time_s == pytest.approx(row.time_s, rel=1e-12)
    assert one.time_s > 1.2 * pl.predict("llama-3.1-8b", **{**question, "power_limit": None}).time_s


LLAMA = {"gpu": "h100-sxm", "precision": "bf16", "phase": "decode", "batch_size": 8, "context": 2047}


def test_kernels_have_the_names_that_users_know_and_what_they_compute() -> None:
    """Llama 3.1 8B: 32 blocks of 4,096, 32 heads and 8 of keys and values of 128, 14,336 columns, 128,256 tokens."""
    one = pl.predict("llama-3.1-8b", **LLAMA)
    kernels = one.by_kind()
    assert set(kernels) == {
        "QKV projection", "output projection", "gate and up projection", "down projection", "attention", "norm",
        "activation", "rotary embedding and cache", "embedding", "head", "sampling",
    }  # fmt: skip
    columns = {
        "QKV projection": 4096 * (32 + 2 * 8) * 128, "output projection": 4096 * 4096,
        "gate and up projection": 4096 * 2 * 14336, "down projection": 14336 * 4096,
    }  # fmt: skip
    for name, weights in columns.items():
        assert kernels[name]["launches"] == 32 and kernels[name]["flops"] == 2 * 8 * 32 * weights
        assert kernels[name]["bytes"] == pytest.approx(2 * 32 * weights, rel=0.02)  # and a few rows of activations
    assert kernels["head"]["flops"] == 2 * 8 * 4096 * 128256
    assert kernels["attention"]["flops"] == 4 * 8 * 32 * 2048 * 4096
    assert kernels["attention"]["bytes"] == pytest.approx(8 * 32 * 2048 * 2 * 8 * 128 * 2, rel=0.02)
    assert one.kernels == sum(row["launches"] for row in one.rows())
    assert sum(row["time_s"] for row in one.steps()) == pytest.approx(one.time_s)
    assert float(one.layers_energy_j.sum()) < one.energy_j


def test_prompts_compute_no_pairs_that_the_mask_hides() -> None:
    """Of 2,048 queries, half of the pairs and the diagonal; windows of gpt-oss hide most of the others."""
    asked = {"precision": "bf16", "phase": "prefill", "sequence_length": 2048}
    llama = pl.predict("llama-3.1-8b", gpu="h100-sxm", **asked).by_kind()["attention"]
    assert llama["flops"] == 4 * 32 * 4096 * (2048 * 2049 // 2)
    rows = {row["name"]: row for row in pl.predict("gpt-oss-20b", gpu="h100-sxm", **asked).rows()}
    whole, window = rows["attention"], rows["attention, window 128"]
    assert whole["launches"] == window["launches"] == 12
    assert window["flops"] == pytest.approx(whole["flops"] * (128 * 2048 - 128 * 127 / 2) / (2048 * 2049 / 2))


def test_intervals_of_kernels_lie_within_one_another() -> None:
    one = pl.predict("llama-3.1-8b", **LLAMA)
    (least, most), (low, high) = one.intervals["90"], one.intervals["80"]
    assert one.bound_s < least < low < one.time_s < high < most


def test_the_largest_batch_fits_and_no_larger_one() -> None:
    one = pl.predict("llama-3.1-8b", memory=True, **LLAMA)
    assert one.memory.fits

    def total_bytes(batch_size: int) -> int:
        return pl.predict("llama-3.1-8b", memory=True, **{**LLAMA, "batch_size": batch_size}).memory.total_bytes

    largest = one.memory.largest_batch
    assert total_bytes(largest) <= usable_bytes(one.device) < total_bytes(largest + 1)
    assert pl.predict("llama-3.1-8b", **{**LLAMA, "batch_size": "fit"}).batch_size == largest


def test_there_is_no_largest_batch_where_only_the_weights_fit() -> None:
    """Of 24 GB, 8.03e9 weights take 16.1; the cache of 100,000 tokens takes 2 x 32 x 8 x 128 x 2 bytes each, 13.1."""
    one = pl.predict(
        "llama-3.1-8b", gpu="rtx4090", precision="bf16", phase="decode", batch_size=1, context=100_000, memory=True
    )
    assert 29.1e9 < one.memory.total_bytes < 30e9 and one.memory.largest_batch is None


def test_layers_are_timed_where_they_are_asked_for() -> None:
    for asked in ({"execution": "engine"}, {"time_model": "roofline"}, {"attention": "flash3"}):
        one = pl.predict("llama-3.1-8b", **{**LLAMA, **asked})
        assert one.model.name != "kernels" and "linear" in one.by_kind()
    assert pl.predict("llama-3.1-8b", **LLAMA).execution == "vllm"
    assert pl.predict("llama-3.1-8b", **{**LLAMA, "gpu": "mi210"}).execution == "engine"


@pytest.mark.parametrize("gpu", ["h100-sxm", "gh200"])  # the power of a GH200 is not on record
def test_a_locked_clock_slows_forecast_and_bound(gpu: str) -> None:
    asked = {"gpu": gpu, "phase": "prefill", "batch_size": 16}
    free, locked = (pl.predict("llama-3.1-8b", **asked, **clock) for clock in ({}, {"clock": "800 MHz"}))
    roofline = pl.predict("llama-3.1-8b", **asked, clock="800 MHz", time_model="roofline")
    ratio = locked.device.locked_clock
    assert locked.time_s == pytest.approx(free.time_s / ratio, rel=0.1)
    assert locked.bound_s == pytest.approx(free.bound_s / ratio, rel=0.1)
    assert locked.bound_s == pytest.approx(roofline.time_s, rel=0.15) and locked.bound_s < locked.time_s
    decoding = {**asked, "phase": "decode", "context": 2048}
    assert pl.predict("llama-3.1-8b", **decoding, clock="800 MHz").bound_s == pytest.approx(
        pl.predict("llama-3.1-8b", **decoding).bound_s
    )


def test_four_bits_are_forecast_and_may_name_their_format() -> None:
    """Publishers mean nvfp4 by fp4; of mxfp4 the experts are multiplied in eight bits."""
    asked = {"gpu": "b200", "phase": "decode", "batch_size": 8}
    named = pl.predict("llama-3.1-8b", precision="nvfp4", **asked)
    assert named.is_forecast and named.workload.weights == "nvfp4"
    assert named.time_s == pl.predict("llama-3.1-8b", precision="fp4", **asked).time_s
    mxfp4 = pl.predict("gpt-oss-20b", precision="mxfp4", **asked)
    assert mxfp4.time_s == pl.predict("gpt-oss-20b", precision="fp4", weights="mxfp4", **asked).time_s
    (row,) = scaling("gpt-oss-20b", workers=1, precision="mxfp4", **asked)
    assert row.time_s == pytest.approx(mxfp4.time_s, rel=1e-12)
    served = pl.serve("gpt-oss-20b", gpu="b200", precision="mxfp4", concurrency=8, num_requests=16)
    assert (served.precision, served.weights) == ("fp4", "mxfp4")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "fp4"}, "H100 SXM5 80GB has no fp4 peak: it has .*fp8"),
        ({"precision": "nvfp4"}, "H100 SXM5 80GB has no fp4 peak"),
        ({"precision": "nvfp4", "weights": "fp8"}, "leave `--weights fp8` out, or give `--precision fp4"),
        ({"precision": "int4"}, "no precision is called .int4."),
        ({"weights": "mxfp4"}, "mxfp4 kernels for experts only, and llama-3.1-8b has none"),
        ({"expert_parallel": 8}, "`--expert-parallel` is for several devices: give their number with `--tensor`"),
        ({"attention_data_parallel": 2}, "`--attention-data-parallel` is for several devices"),
        ({"gpu": "mi210", "engine": "vllm"}, "`--engine vllm` needs the kernels of an engine"),
        ({"gpu": "mi210", "kv_cache": "fp8"}, "`--kv-cache` needs the kernels of an engine"),
        ({"engine": "vllm", "time_model": "roofline"}, "`--engine vllm` needs the kernels of an engine"),
        ({"engine": "vllm", "phase": "inference", "context": None}, "`--engine` is for `--phase prefill`"),
        ({"kv_cache": "fp7"}, "no format of the KV cache is called .fp7."),
        ({"execution": "vlm"}, "no execution is called 'vlm'"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_one_sentence(changes, message) -> None:
    with pytest.raises(PaleoError, match=message) as raised:
        pl.predict("llama-3.1-8b", **{**LLAMA, **changes})
    assert "\n" not in str(raised.value)


def test_the_command_line_names_engines_and_explains_kernels() -> None:
    words = ["predict", "llama-3.1-8b", "--gpu", "h100-sxm", "--precision", "bf16", "--phase", "decode",
             "--context", "2047", "--batch-size", "8"]  # fmt: skip
    found = json.loads(CliRunner().invoke(main, [*words, "--engine", "sglang", "--format", "json"]).output)
    assert found["execution"] == "sglang" and found["time_model"] == "kernels"
    assert found["time_s"] == predict_any("llama-3.1-8b", execution="sglang", **LLAMA).time_s
    table = CliRunner().invoke(main, words).output
    assert "Time by kernel" in table and "QKV projection" in table and "host of the engine" in table
    explained = CliRunner().invoke(main, [*words, "--explain", "QKV projection"]).output
    assert "bound by  memory" in explained and "launches  32" in explained
    refused = CliRunner().invoke(main, [*words, "--expert-parallel", "4"])
    assert refused.exit_code and "is for several devices" in refused.output


def test_engines_with_kernels_are_executions() -> None:
    assert {"vllm", "sglang", "tensorrt-llm"} <= set(KERNEL_ENGINES) and "llama.cpp" not in KERNEL_ENGINES

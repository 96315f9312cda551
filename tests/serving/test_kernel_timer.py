"""Kernels of a decode iteration: their times add up to the iteration, under the names that users of engines know."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from click.testing import CliRunner

import paleo_lite as pl
from paleo_lite.api.question import Question, resolve_question
from paleo_lite.cli import main
from paleo_lite.engines.division import Division
from paleo_lite.engines.kernels import Load
from paleo_lite.serving.deployment import timer_of
from paleo_lite.serving.iteration_times import ScheduledTokens
from paleo_lite.serving.kernel_timer import time_decode_kernels
from paleo_lite.serving.pipeline import connect_stages
from paleo_lite.serving.placement import ModelOnDevice, tensor_group, with_kernels
from paleo_lite.serving.timer import tabulate


def placed(
    network: str, *, gpu: str = "h200", tensor: int = 1, experts: int = 1, attention_data: int = 1, stages: int = 1
) -> ModelOnDevice:
    workload, machine, model = resolve_question(Question(network, gpu, precision="bf16", phase="decode"))
    group = tensor_group(machine.device, Division(tensor))
    pipeline = connect_stages(stages, tensor, device_link="nvlink4" if stages > 1 else None)
    on_device = ModelOnDevice(workload, machine, model, group, "bf16", pipeline)
    return with_kernels(on_device, "vllm", expert_parallel=experts, attention_data_parallel=attention_data)


@pytest.mark.parametrize(
    "division", [{}, {"tensor": 8}, {"tensor": 8, "experts": 8}, {"tensor": 8, "experts": 8, "attention_data": 8}]
)
def test_kernels_add_up_to_the_iteration(division: dict[str, int]) -> None:
    on_device = placed("qwen3-30b-a3b", **division)
    kernels = time_decode_kernels(on_device, 64, 1000)
    assert kernels is not None
    tables = tabulate(timer_of(on_device), max_new_tokens=64, max_sequences=64, max_prompt=32, max_context=1001)
    # Tables interpolate between contexts.
    iteration_s = tables.iteration_s(ScheduledTokens(64, 64 * 1000))
    assert sum(kernel.time_s for kernel in kernels) == pytest.approx(iteration_s, rel=0.02)
    assert sum(kernel.share for kernel in kernels) == pytest.approx(1)
    times = [kernel.time_s for kernel in kernels]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("gpu", ["b200", "h200"])
def test_attention_of_a_short_prompt_takes_no_longer_than_of_a_longer_one(gpu: str) -> None:
    """aiconfigurator's tables of B200: under SGLang 15 us for 1 to 32 tokens and 19 for 64, in the median."""
    tables = tabulate(timer_of(placed("llama-3.1-8b", gpu=gpu)), max_new_tokens=64, max_sequences=64, max_prompt=4096,
                      max_context=8192)  # fmt: skip
    seconds = tables.prompt_attention_s
    assert all(after >= before for before, after in pairwise(seconds))
    assert tables.prompt_s + seconds[1] <= 1.4 * 32 * 19e-6  # blocks


@pytest.mark.parametrize(("context", "spread"), [(6500, 500), (8192, 600), (8704, 512), (12000, 100)])
def test_tables_turn_where_sequences_begin_another_chunk(context: int, spread: int) -> None:
    """Llama 4 Maverick attends within chunks of 8,192 tokens: the table has the time of sequences of these lengths."""
    on_device = placed("llama-4-maverick", gpu="b200", tensor=8)
    sizes = {"max_new_tokens": 64, "max_sequences": 8, "max_prompt": 32, "max_context": 16_384}
    tables = tabulate(timer_of(on_device), **sizes, spread=spread)
    assert on_device.kernels is not None
    decoding = [one for one in on_device.kernels.of_iteration("decode", 16_383) if one.kernel.rows == "decoding"]
    expected_s = on_device.kernels.step.total_s(decoding, Load(sequences=8.0, context=context, spread=spread))
    found_s = tables.decode_s(8, 8 * context) - tables.token_s[8] - tables.head_s[8]
    assert found_s == pytest.approx(float(expected_s), rel=0.02)


def test_equal_timers_share_their_tables() -> None:
    """A question that is asked again makes none; any other network, division or size has its own."""
    sizes = {"max_new_tokens": 64, "max_sequences": 8, "max_prompt": 32, "max_context": 64}
    first = tabulate(timer_of(placed("llama-3.2-1b")), **sizes)
    assert tabulate(timer_of(placed("llama-3.2-1b")), **sizes) is first
    assert tabulate(timer_of(placed("llama-3.2-1b")), **{**sizes, "max_prompt": 33}) is not first
    others = [placed("llama-3.2-3b"), placed("llama-3.2-1b", gpu="h100-sxm"), placed("llama-3.2-1b", tensor=2)]
    for other in others:
        assert tabulate(timer_of(other), **sizes).token_s != first.token_s


def test_kernels_of_a_mixture_on_several_devices() -> None:
    kernels = {kernel.name: kernel for kernel in time_decode_kernels(placed("qwen3-30b-a3b", tensor=2), 8, 100) or ()}
    known = {"QKV projection", "attention", "output projection", "router", "experts", "all-reduce", "norm", "sampling"}
    assert known <= set(kernels)
    assert kernels["experts"].launches == kernels["attention"].launches == 48  # blocks
    assert kernels["all-reduce"].launches == 2 * 48 + 1  # attention and experts of each block, and the embedding
    assert kernels["norm"].launches == 2 * 48 + 1


def test_stages_of_a_pipeline_are_added() -> None:
    whole, staged = placed("qwen3-30b-a3b"), placed("qwen3-30b-a3b", stages=2)
    one, two = ({kernel.name: kernel for kernel in time_decode_kernels(each, 8, 100) or ()} for each in (whole, staged))
    assert two["experts"].launches == one["experts"].launches
    assert two["experts"].time_s == pytest.approx(one["experts"].time_s)


def test_layers_timed_one_by_one_have_no_kernels() -> None:
    result = pl.serve("llama-3-8b", gpu="mi210", rate=1, num_requests=20)
    assert result.kernels is None and "Kernels of a decode step" not in result.document().markdown()


def test_kernels_are_shown_by_the_command() -> None:
    words = ["serve", "llama-3-8b", "--gpu", "h100-sxm", "--rate", "5", "--num-requests", "50"]
    page = CliRunner().invoke(main, words).output
    assert "Kernels of a decode step" in page and "QKV projection" in page
    answer = json.loads(CliRunner().invoke(main, [*words, "--format", "json"]).output)
    first = answer["kernels"][0]
    assert set(first) == {"name", "launches", "time_s", "share"}
    assert first["name"] == "gate and up projection"  # the largest matrix of a block


def test_no_iteration_needs_more_than_the_bandwidth() -> None:
    """64 tokens of Llama 3.1 8B read its weights but the embedding, and 64 caches; an H100 reads 3,352 GB/s."""
    on_device = placed("llama-3.1-8b", gpu="h100-sxm")
    tables = tabulate(timer_of(on_device), max_new_tokens=64, max_sequences=64, max_prompt=32, max_context=2049)
    weight_bytes = 2 * (8_030_261_248 - 128_256 * 4096)
    cache_bytes = 64 * 2048 * 2 * 32 * 8 * 128 * 2
    iteration_s = tables.iteration_s(ScheduledTokens(64, 64 * 2048))
    assert tables.relative_low[64] * iteration_s >= (weight_bytes + cache_bytes) / 3352e9

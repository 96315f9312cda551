"""FLOPs and bytes of kernels by hand from their sizes, parts of their times, and arithmetic at the peak.

Tests: engines/activity.py.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from paleo_lite.engines.activity import kernel_activity, kernel_flops, least_s, moved_bytes
from paleo_lite.engines.division import Division, LinkedDevices
from paleo_lite.engines.kernel_formats import Formats
from paleo_lite.engines.kernels import (
    AttentionKernel,
    CountedKernel,
    ExchangeKernel,
    ExpertsKernel,
    Kernel,
    Load,
    Pointwise,
    ProductKernel,
)
from paleo_lite.engines.step import EngineStep
from paleo_lite.machines import find_device

BF16 = Formats("bf16", "bf16", "bf16", "bf16", "bf16/bf16")
PRODUCT = CountedKernel(ProductKernel("gate", n=4096, k=4096), 3)


def step_on(devices: int = 1) -> EngineStep:
    linked = LinkedDevices(Division(devices), link_bytes_per_s=450e9)
    return EngineStep(find_device("h100-sxm"), "vllm", BF16, linked)


def test_arithmetic_at_the_peak_is_flops_over_the_peak() -> None:
    step, load = step_on(), Load(tokens=2048.0)
    peak_per_s = find_device("h100-sxm").find_peak("bf16").per_s
    activity = kernel_activity(step, [PRODUCT], load)
    assert activity.peak_s == pytest.approx(3 * 2 * 2048 * 4096 * 4096 / peak_per_s, rel=1e-6)
    assert activity.peak_s < activity.arithmetic_s + activity.memory_s


def test_the_parts_of_a_product_are_its_time_without_its_start() -> None:
    step = step_on()
    for tokens in (1.0, 8192.0):
        load = Load(tokens=tokens)
        _, rest_s = step.kernel_parts_s(PRODUCT.kernel, load)
        _, work = step.constants.company_of("products", step.device, "vllm", "bf16", False)
        activity = kernel_activity(step, [PRODUCT], load)
        assert activity.arithmetic_s + activity.memory_s == pytest.approx(3 * work * rest_s, rel=1e-6)


def test_few_tokens_read_memory_and_many_compute() -> None:
    few, many = (kernel_activity(step_on(), [PRODUCT], Load(tokens=tokens)) for tokens in (1.0, 8192.0))
    assert few.memory_s > 2 * few.arithmetic_s and many.arithmetic_s > 2 * many.memory_s


def test_exchanges_keep_the_links_busy_and_norms_the_memory() -> None:
    step, load = step_on(4), Load(tokens=256.0)
    exchange = CountedKernel(ExchangeKernel("all-reduce", "all-reduce", 8192.0), 1)
    norm = CountedKernel(Pointwise("norm", 16384.0), 1)
    exchanged, moved = (kernel_activity(step, [one], load) for one in (exchange, norm))
    assert exchanged.links_s == step.kernel_s(exchange.kernel, load) and exchanged.memory_s == 0
    assert moved.memory_s > 0 and moved.arithmetic_s == moved.links_s == moved.peak_s == 0


FP8 = Formats("fp8", "fp8", "fp8", "bf16", "bf16/fp8")
GATE = ProductKernel("gate", n=512, k=256)
PLAIN = ProductKernel("head", n=512, k=256, part="plain")
EXPERTS = ExpertsKernel("experts", hidden_size=64, inner_size=32, experts=1, active=1, matrices=3)
DECODE = AttentionKernel("attention", heads=8, kv_heads=2, key_size=64, value_size=64, window=100)
PROMPT = AttentionKernel("attention", heads=8, kv_heads=2, key_size=64, value_size=64, rows="prompts")
LOAD = Load(
    tokens=10.0, all_tokens=10.0, sequences=4.0, context=999.0, prompts=2.0, length=5.0, cached=0.0, sampled=4.0
)  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "flops", "moved"),
    [
        # weights and operands of 1 byte, results of 2; operands of 2 bytes are read and written as 1 before
        (GATE, 2 * 10 * 512 * 256, 512 * 256 + 10 * 256 + 2 * 10 * 512 + 3 * 10 * 256),
        (PLAIN, 2 * 10 * 512 * 256, 2 * (512 * 256 + 10 * 256 + 10 * 512)),
        # matrices of the one expert, both products' inputs and results, and the sum of every token
        (EXPERTS, 2 * 10 * 3 * 64 * 32, 3 * 64 * 32 + 2 * 10 * (64 + 2 * 32) + 2 * 10 * 64),
        # no more keys and values than the window, in 1 byte; queries and results in 2
        (DECODE, 2 * 4 * 100 * 8 * 128, 4 * (100 * 2 * 128 + 2 * 2 * 8 * 64)),
        (PROMPT, 2 * 2 * 15 * 8 * 128, 2 * 5 * (2 * (8 + 2) * 128 + 2 * 128)),
        (Pointwise("norm", row_bytes=100.0, fixed_bytes=7.0, launches=2), 0, 1007),
        (Pointwise("activation", row_bytes=100.0, launches=0), 0, 0),  # inside another kernel
        # arithmetic of a recurrence moves nothing
        (Pointwise("recurrence", row_bytes=8.0, row_flops=1e6, rows="prompts"), 1e7, 80),
        (ExchangeKernel("all-reduce", "all-reduce", 8192.0), 0, 0),  # over the links
    ],
)
def test_counts(kernel: Kernel, flops: float, moved: float) -> None:
    step = EngineStep(find_device("h100-sxm"), "vllm", FP8)
    assert kernel_flops(kernel, LOAD) == flops
    assert moved_bytes(step, kernel, LOAD) == moved


@pytest.mark.parametrize("kernel", [GATE, EXPERTS, DECODE, PROMPT, Pointwise("norm", 100.0, 7.0)])
def test_kernels_without_rows_move_nothing(kernel: Kernel) -> None:
    step = EngineStep(find_device("h100-sxm"), "vllm", FP8)
    assert moved_bytes(step, kernel, Load()) == kernel_flops(kernel, Load()) == 0


def test_a_kernel_of_one_row_moves_that_row() -> None:
    step = EngineStep(find_device("h100-sxm"), "vllm", FP8)
    load = Load(tokens=1.0, all_tokens=1.0, sequences=1.0, context=10.0, sampled=1.0)
    assert moved_bytes(step, Pointwise("norm", row_bytes=100.0, fixed_bytes=7.0), load) == 107


def test_every_token_passes_its_experts() -> None:
    """Ten tokens of all groups pass two of eight experts, of three matrices each; a multiply-accumulate is 2 FLOPs."""
    experts = ExpertsKernel("experts", hidden_size=64, inner_size=32, experts=8, active=2, matrices=3)
    assert kernel_flops(experts, Load(tokens=5.0, all_tokens=10.0)) == 2 * 10 * 2 * 3 * 64 * 32


NORM = Pointwise("norm", row_bytes=100.0, fixed_bytes=7.0)
INSIDE = Pointwise("activation", row_bytes=100.0, launches=0)
PROMPTS = replace(LOAD, sequences=0.0, context=0.0, has_prompts=True)
DECODING = replace(LOAD, tokens=4.0, all_tokens=4.0, prompts=0.0, length=0.0)
BANDWIDTH = 3.352e12
"""Bytes per second of an H100 SXM5: five stacks of HBM3, 5,120 bits at 2,619 MHz (NVIDIA's data sheet: 3.35 TB/s)."""

LEAST_BYTES = [
    # decoding: all that a kernel moves, but quantised operands; of experts those that one token reads
    (DECODING, GATE, 512 * 256 + 4 * 256 + 2 * 4 * 512),
    (DECODING, EXPERTS, 3 * 64 * 32),
    (DECODING, DECODE, 4 * (100 * 2 * 128 + 2 * 2 * 8 * 64)),
    (DECODING, NORM, 4 * 100 + 7),
    (DECODING, INSIDE, 0),
    # prompts: weights alone, since activations may stay in the L2 cache
    (PROMPTS, GATE, 512 * 256),
    (PROMPTS, EXPERTS, 3 * 64 * 32),
    (PROMPTS, PROMPT, 0),
    (PROMPTS, NORM, 0),
]


@pytest.mark.parametrize(("load", "kernel", "expected"), LEAST_BYTES)
def test_the_least_time_is_that_of_the_bytes_that_must_move(load: Load, kernel: Kernel, expected: float) -> None:
    step = EngineStep(find_device("h100-sxm"), "vllm", FP8)
    assert least_s(step, [CountedKernel(kernel, 1)], load) == pytest.approx(expected / BANDWIDTH, rel=1e-3)


@pytest.mark.parametrize("load", [DECODING, PROMPTS])
def test_times_and_counts_of_several_kernels_add_up(load: Load) -> None:
    step = EngineStep(find_device("h100-sxm"), "vllm", FP8)
    kernels = [
        CountedKernel(kernel, count) for count, (its_load, kernel, _) in enumerate(LEAST_BYTES, 2) if its_load is load
    ]

    def activity_of(counted: list[CountedKernel]) -> list[float]:
        return [least_s(step, counted, load), *kernel_activity(step, counted, load)]

    alone = [activity_of([CountedKernel(counted.kernel, 1)]) for counted in kernels]
    sums = [sum(counted.count * part for counted, part in zip(kernels, parts)) for parts in zip(*alone)]
    assert activity_of(kernels) == pytest.approx(sums, rel=1e-9)

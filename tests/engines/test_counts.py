"""FLOPs and bytes of kernels, counted by hand from their sizes."""

from __future__ import annotations

import pytest

from paleo_lite.engines.counts import kernel_flops, moved_bytes
from paleo_lite.engines.kernels import AttentionKernel, ExchangeKernel, ExpertsKernel, Kernel, Pointwise, ProductKernel
from paleo_lite.engines.step import EngineStep, Formats, Load
from paleo_lite.machines import find_device

FP8 = Formats("fp8", "fp8", "fp8", "bf16", "bf16/fp8")
PRODUCT = ProductKernel("gate", n=512, k=256)
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
        (PRODUCT, 2 * 10 * 512 * 256, 512 * 256 + 10 * 256 + 2 * 10 * 512 + 3 * 10 * 256),
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


@pytest.mark.parametrize("kernel", [PRODUCT, EXPERTS, DECODE, PROMPT, Pointwise("norm", 100.0, 7.0)])
def test_kernels_without_rows_move_nothing(kernel: Kernel) -> None:
    step = EngineStep(find_device("h100-sxm"), "vllm", FP8)
    assert moved_bytes(step, kernel, Load()) == kernel_flops(kernel, Load()) == 0

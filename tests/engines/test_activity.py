"""Activities of kernels: parts of their times, and arithmetic at the peak by hand.

Tests: engines/activity.py.
"""

from __future__ import annotations

import pytest

from paleo_lite.engines.activity import kernel_activity
from paleo_lite.engines.kernels import CountedKernel, ExchangeKernel, Pointwise, ProductKernel
from paleo_lite.engines.step import EngineStep, Formats, Load, ReplicaDivision
from paleo_lite.machines import find_device

BF16 = Formats("bf16", "bf16", "bf16", "bf16", "bf16/bf16")
PRODUCT = CountedKernel(ProductKernel("gate", n=4096, k=4096), 3)


def step_on(devices: int = 1) -> EngineStep:
    placement = ReplicaDivision(tensor=devices, link_bytes_per_s=450e9)
    return EngineStep(find_device("h100-sxm"), "vllm", BF16, placement)


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

"""What the kernels of an engine do: FLOPs, bytes, and the arithmetic, traffic and exchanges in their time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ..machines import Device
from ..timing.activity import Activity
from .constants import EngineConstants, KernelConstants
from .formulas import (
    KERNEL_CLASSES,
    RESULT_BYTES,
    decode_attention_bytes,
    experts_bytes,
    product_bytes,
    prompt_attention_bytes,
)
from .kernel_formats import products_precision
from .kernels import (
    AttentionKernel,
    CountedKernel,
    ExchangeKernel,
    ExpertsKernel,
    Kernel,
    Load,
    Pointwise,
    ProductKernel,
    decoded_keys,
    prompt_pairs,
    prompt_queries,
    rows_of,
)
from .step import EngineStep


def kernel_flops(kernel: Kernel, load: Load) -> float:
    """Return the FLOPs of one launch of a kernel on a single device; a multiply-accumulate is 2.

    Attention computes the pairs of a query and a key that its mask leaves.
    """
    if isinstance(kernel, ProductKernel):
        return float(2.0 * rows_of(kernel, load) * kernel.n * kernel.k * kernel.groups)
    if isinstance(kernel, ExpertsKernel):
        return float(2.0 * load.all_tokens * kernel.active * kernel.matrices * kernel.hidden_size * kernel.inner_size)
    if isinstance(kernel, AttentionKernel):
        # Values of latent attention are a part of its keys.
        numbers = kernel.key_size + (kernel.value_size or kernel.key_size)
        return float(2.0 * _pairs(kernel, load) * kernel.heads * numbers)
    return float(kernel.row_flops * rows_of(kernel, load)) if isinstance(kernel, Pointwise) else 0.0


def _pairs(kernel: AttentionKernel, load: Load) -> Any:
    """Return the pairs of a query and a key of all sequences."""
    if kernel.rows == "decoding":
        return load.sequences * decoded_keys(kernel, load)
    return load.prompts * prompt_pairs(kernel, prompt_queries(kernel, load), load.cached)


def moved_bytes(step: EngineStep, kernel: Kernel, load: Load) -> float:
    """Return the bytes that one launch of a kernel reads and writes in a device's memory; exchanges move none there."""
    if isinstance(kernel, ProductKernel):
        moved, quantised = product_bytes(step.product_sizes(kernel, load))
        return float((moved + quantised) * (rows_of(kernel, load) > 0))
    if isinstance(kernel, ExpertsKernel):
        tokens = float(load.all_tokens)
        if not tokens:
            return 0.0
        (products,) = experts_bytes(step.expert_sizes(kernel, np.array([tokens])))
        results = RESULT_BYTES * tokens * kernel.active * kernel.hidden_size  # each is written once
        return float(products + results)
    if isinstance(kernel, AttentionKernel):
        sizes = step.attention_sizes(kernel)
        if kernel.rows == "decoding":
            one_head = decode_attention_bytes(decoded_keys(kernel, load), sizes)
            return float(load.sequences * kernel.kv_heads * one_head)
        queries = prompt_queries(kernel, load)
        return float(prompt_attention_bytes(load.prompts, queries, sizes, kernel.positions))
    if isinstance(kernel, Pointwise) and kernel.launches:
        rows = rows_of(kernel, load)
        return float((kernel.row_bytes * rows + kernel.fixed_bytes) * (rows > 0))
    return 0.0


def least_s(step: EngineStep, kernels: Sequence[CountedKernel], load: Load) -> Any:
    """Return the seconds in which a device moves what some kernels must move, at the bandwidth of its data sheet.

    No server was measured to take less. Activations of prompts may stay in the L2 cache, weights do not. Tokens of a
    server may share experts, but each has all of its own.
    """
    per_s, total_s = step.device.bandwidth_bytes_per_s, 0.0
    for counted in kernels:
        kernel = counted.kernel
        if isinstance(kernel, ExpertsKernel):
            total_s = total_s + counted.count * step.one_token_s(kernel, load)
        elif isinstance(kernel, ProductKernel):
            sizes = step.product_sizes(kernel, load)
            if load.has_prompts:
                read_bytes = kernel.groups * kernel.n * kernel.k * sizes.weight_bytes
            else:
                read_bytes, _ = product_bytes(sizes)
            total_s = total_s + counted.count * read_bytes / per_s * (rows_of(kernel, load) > 0)
        elif isinstance(kernel, AttentionKernel) and kernel.rows == "decoding":
            one_head = decode_attention_bytes(decoded_keys(kernel, load), step.attention_sizes(kernel))
            cache_bytes = np.asarray(load.sequences, dtype=np.float64) * kernel.kv_heads * one_head
            total_s = total_s + counted.count * cache_bytes / per_s
        elif isinstance(kernel, Pointwise) and kernel.launches and not load.has_prompts:
            rows = rows_of(kernel, load)
            moved = (kernel.row_bytes * rows + kernel.fixed_bytes) * (rows > 0)
            total_s = total_s + counted.count * moved / per_s
    return total_s


Part = Literal["arithmetic", "memory", "peak"]
"""Term of a kernel's time: arithmetic or memory traffic as fitted, or arithmetic at the peak of the data sheet."""

NEGLIGIBLE, UNLIMITED, WHOLE = np.log(1e-30), np.log(1e30), 0.0
"""Logarithms of a time or factor that vanishes, of a rate that takes no time, and of a rate at its peak."""

REPLACED: dict[Part, dict[str, float]] = {
    "arithmetic": {"bandwidth_share": UNLIMITED, "quantisation": NEGLIGIBLE, "traffic": NEGLIGIBLE},
    "memory": {"efficiency": UNLIMITED, "tile_rate": UNLIMITED, "head_cycles": NEGLIGIBLE},
    "peak": {
        "efficiency": WHOLE, "bandwidth_share": UNLIMITED, "quantisation": NEGLIGIBLE, "traffic": NEGLIGIBLE,
        "head_cycles": NEGLIGIBLE, "half": NEGLIGIBLE, "tile_rate": UNLIMITED, "half_depth": NEGLIGIBLE,
        "tile_keys": NEGLIGIBLE, "pair_numbers": NEGLIGIBLE,
    },
}  # fmt: skip
"""Logarithms of constants with which the formula of a kernel gives one of its terms, by the name of the constant.

Rows that pad the tiles of experts are multiplied like others, and draw power like them: they stay in the peak.
"""

DATA_SHEET = {
    "efficiency": WHOLE, "bandwidth_share": WHOLE, "node_share": WHOLE, "tile_rate": UNLIMITED,
    "sharpness": np.log(1e6),
}  # fmt: skip
"""Logarithms of the constants of a lower bound by the name of the constant; all others are `NEGLIGIBLE`."""

STARTS = ("floor_cycles", "latency_s", "doubling_s", "second_s")
"""Constants of the launch latency, which belongs to no term."""


class PartConstants(EngineConstants, frozen=True, dict=True, kw_only=True):
    """Constants with which the formulas of kernels give one term of the time."""

    whole: EngineConstants  # constants of the whole time
    part: Part  # the term

    def of(self, kernels: str, device: Device, engine: str, form: str) -> KernelConstants:
        """Return the constants of a class of kernels, replaced where they belong to another term."""
        key = (kernels, device.id, engine, form)
        if key not in self.constants_by_cell:
            of_whole_time = self.whole.of(kernels, device, engine, form)
            replaced = REPLACED[self.part] | dict.fromkeys(STARTS, NEGLIGIBLE)
            theta = [
                replaced.get(name, value)
                for name, value in zip(KERNEL_CLASSES[kernels].parameters, of_whole_time.theta)
            ]
            self.constants_by_cell[key] = of_whole_time._replace(theta=np.array(theta))
        return self.constants_by_cell[key]


class DataSheetConstants(EngineConstants, frozen=True, dict=True):
    """Constants with which kernels take no longer than the rates of the data sheet allow: a lower bound."""

    def of(self, kernels: str, device: Device, engine: str, form: str) -> KernelConstants:
        """Return constants of whole rates, of overlapping arithmetic and traffic, and of nothing else."""
        theta = [DATA_SHEET.get(name, NEGLIGIBLE) for name in KERNEL_CLASSES[kernels].parameters]
        return KernelConstants(np.array(theta), np.zeros(len(theta)), 0.0)


def kernel_activity(step: EngineStep, kernels: Sequence[CountedKernel], load: Load) -> Activity:
    """Return the activity of a device in some kernels."""
    total = Activity()
    for activity in kernel_activities(step, kernels, load):
        total = total.plus(activity)
    return total


def kernel_activities(step: EngineStep, kernels: Sequence[CountedKernel], load: Load) -> list[Activity]:
    """Return the activity in all launches of each of some kernels; see `kernel_activity`."""
    parts = _parts_of(step)
    return [_launch_activity(step, parts, counted, load).times(counted.count) for counted in kernels]


def _parts_of(step: EngineStep) -> dict[str, EngineStep]:
    """Return the steps whose kernels take the time of one term each, which are made once for a step."""
    if not step.parts:
        for part in REPLACED:
            only = PartConstants(classes={}, whole=step.constants, part=part)
            step.parts[part] = EngineStep(step.device, step.engine, step.formats, step.devices, only)
    return step.parts


def _launch_activity(step: EngineStep, parts: dict[str, EngineStep], counted: CountedKernel, load: Load) -> Activity:
    """Return the activity of one launch of a kernel."""
    kernel = counted.kernel
    if isinstance(kernel, ExchangeKernel):
        return Activity(links_s=step.kernel_s(kernel, load))
    _, rest_s = step.kernel_parts_s(kernel, load)
    _, form = step.cell_of(kernel)
    _, work = step.company(kernel, load)
    if isinstance(kernel, Pointwise):
        return Activity(memory_s=work * rest_s)
    terms: dict[str, Any] = {part: sum(part_step.kernel_parts_s(kernel, load)) for part, part_step in parts.items()}
    both_s = np.maximum(terms["arithmetic"] + terms["memory"], 1e-30)
    drawing_share = step.drawing_share(kernel, load)
    return Activity(
        arithmetic_s=drawing_share * work * rest_s * terms["arithmetic"] / both_s,
        memory_s=work * rest_s * terms["memory"] / both_s,
        peak_s=drawing_share * step.narrow_factor(products_precision(form)) * terms["peak"],
    )

"""Memory of one device under an engine: weights, and keys, values and states of a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from ..formats import bytes_per_number
from ..machines import Device
from .blocks import SAMPLED_BYTES, SAMPLING
from .formulas import RESULT_BYTES
from .kernels import AttentionKernel, CountedKernel, ExpertsKernel, Pointwise, ProductKernel
from .rates import kernel_rates
from .step import EngineStep

REPORTED_SHARE = 0.9915
"""Share of the memory of a device that its driver reports, apart from `KEPT_BYTES`."""

KEPT_BYTES = 0.13 * 2**30
"""Bytes that a driver keeps on every device."""

LOGIT_BYTES = {"vllm": 15.4}
"""Bytes per logit at the peak of a sampler, of engines that sample for the largest batch before they size the cache.

Qwen3 14B, with 1,024 sequences of 151,936 logits, takes 2.23 GiB in the profile of vLLM 0.17 and 0.18 on an H100, and
5.64 before, when logits were sorted (https://github.com/llm-d-incubation/llm-d-planner/pull/205, accuracy_report.md);
kernels that search for the limits of the nucleus came in between (https://github.com/vllm-project/vllm/pull/33538).
Records of engines have those of older versions.
"""

COMMUNICATOR_BYTES = 1.15 * 2**30
"""Bytes that the communicators of a group with NVLink keep on each device, beside the context.

Two H100 under vLLM 0.6 have 1.26 GiB of it (https://github.com/vllm-project/vllm/pull/10511). Two RTX 4090 without
NVLink keep nothing: `non_torch_memory` is 0.25 GiB, https://github.com/vllm-project/vllm/issues/13061. Records of
engines have those of other versions.
"""


PADDED_EXPERTS = {"vllm": {"mxfp4": (256, 1), "mxfp4-mxfp8": (256, 256)}}
"""Multiples to which engines pad the hidden and the inner size of experts, by engine and format of their kernels.

vLLM loads gpt-oss-120b, whose checkpoint has 60.8 GiB, in 64.38 GiB on an H100 with Triton's kernels
(https://github.com/vllm-project/vllm/issues/33155), which is a hidden size of 3,072 instead of 2,880. With Marlin's,
which pad the inner size as well, it was 65.97 (https://github.com/vllm-project/vllm/issues/23278).
"""


def padding_bytes(step: EngineStep, kernels: Sequence[CountedKernel]) -> float:
    """Return the bytes by which an engine pads the experts on one device."""
    multiples = PADDED_EXPERTS.get(step.engine, {}).get(step.formats.experts)
    total = 0.0
    for counted in kernels:
        kernel = counted.kernel
        if multiples is None or not isinstance(kernel, ExpertsKernel):
            continue
        _, weight_bytes, _ = kernel_rates(step.device, step.formats.experts)
        degree = step.placement.devices // step.placement.experts
        inner_size = kernel.inner_size / degree
        padded = _round_up(kernel.hidden_size, multiples[0]) * _round_up(inner_size, multiples[1])
        numbers = kernel.experts / step.placement.experts * kernel.matrices
        total += counted.count * numbers * (padded - kernel.hidden_size * inner_size) * weight_bytes
    return total


def _round_up(size: float, multiple: int) -> int:
    """Return the least multiple that is not smaller than a size."""
    return ceil(size / multiple) * multiple


def stored_weight_bytes(step: EngineStep, kernels: Sequence[CountedKernel]) -> float:
    """Return the bytes of the weights on one device.

    Parameters
    ----------
    step : EngineStep
        Formats and placement.
    kernels : sequence of CountedKernel
        Kernels of the device in the phase ``decode``.
    """
    total = 0.0
    placement = step.placement
    for counted in kernels:
        kernel = counted.kernel
        if isinstance(kernel, ProductKernel) and kernel.is_stored:
            _, weight_bytes, _ = kernel_rates(step.device, step.formats.of_product(kernel))
            total += counted.count * kernel.n * kernel.k * kernel.groups * weight_bytes
        elif isinstance(kernel, ExpertsKernel):
            _, weight_bytes, _ = kernel_rates(step.device, step.formats.experts)
            numbers = kernel.experts * kernel.matrices * kernel.hidden_size * kernel.inner_size
            total += counted.count * numbers / placement.devices * weight_bytes
        elif isinstance(kernel, Pointwise):
            total += counted.count * kernel.weights * RESULT_BYTES
    return total


def sequence_bytes(step: EngineStep, kernels: Sequence[CountedKernel], tokens: float) -> float:
    """Return the bytes of the cache of a sequence on one device: keys and values of every token, or states.

    Latent attention keeps one vector per token on every device. A layer with a window keeps no more tokens than that.
    """
    cache_bytes = bytes_per_number(step.formats.attention.partition("/")[2])
    total = 0.0
    for counted in kernels:
        kernel = counted.kernel
        if isinstance(kernel, AttentionKernel):
            kept = tokens if kernel.window is None else min(tokens, kernel.window)
            total += counted.count * kept * kernel.kv_heads * (kernel.key_size + kernel.value_size) * cache_bytes
        elif isinstance(kernel, Pointwise):
            total += counted.count * kernel.state_bytes
    return total


def reported_bytes(device: Device) -> float:
    """Return the memory of a device that its driver reports.

    What data sheets call a gigabyte of memory is a gibibyte, of which the driver keeps about 1%: an A100 of 80 GB
    reports 84,990,623,744 bytes, an H100 85,018,279,936, a B200 of 180 GB 191,503,138,816, an RTX 3090 23.69 GiB and an
    RTX 4090 23.65 GiB (messages of PyTorch).
    """
    return REPORTED_SHARE * device.memory_bytes / 1e9 * 2**30 - KEPT_BYTES


def activation_bytes(
    step: EngineStep,
    kernels: Sequence[CountedKernel],
    tokens: int,
    sequences: int = 0,
    logit_bytes: float | None = None,
) -> float:
    """Return the bytes of activations at the peak of the largest iteration, which an engine keeps free.

    Either the residual stream, its norm and the block's input beside the output of a product and the input of the next
    one, where rows of experts count once for each expert that a token passes, or the logits in the sampler. For Llama 3
    8B it is 110,592 bytes per token; vLLM reports 2.07 GiB for 20,000 tokens and 2.99 GiB for 29,000
    (https://github.com/vllm-project/vllm/issues/10517).

    Parameters
    ----------
    step : EngineStep
        Formats and placement.
    kernels : sequence of CountedKernel
        Kernels of the device.
    tokens, sequences : int
        Most tokens and most sequences of an iteration.
    logit_bytes : float, optional
        Bytes per logit at the peak of the sampler; by default those of the newest version.
    """
    per_logit_bytes = LOGIT_BYTES.get(step.engine, 0.0) if logit_bytes is None else logit_bytes
    widest, hidden_size, sampler_bytes, width_before = 0.0, 0, 0.0, 0
    for counted in kernels:
        kernel = counted.kernel
        if isinstance(kernel, ProductKernel) and kernel.rows == "tokens":
            widest = max(widest, width_before + kernel.k)
            width_before = kernel.n
            hidden_size = hidden_size or kernel.k
        elif isinstance(kernel, Pointwise) and kernel.name == SAMPLING:
            logits = kernel.row_bytes / SAMPLED_BYTES
            sampler_bytes = per_logit_bytes * sequences * logits
        elif isinstance(kernel, ExpertsKernel):
            inner_size = kernel.inner_size / step.placement.experts_tensor
            share = 1.0 / step.placement.experts
            widest = max(widest, kernel.active * share * (2 * kernel.hidden_size + 3 * inner_size))
    return max(tokens * RESULT_BYTES * (3 * hidden_size + widest), sampler_bytes)

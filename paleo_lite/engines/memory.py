"""Memory of one device under an engine: weights, and keys, values and states of a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from ..formats import bytes_per_number
from .blocks import SAMPLED_BYTES, SAMPLING
from .formulas import RESULT_BYTES
from .kernel_formats import kernel_rates
from .kernels import AttentionKernel, CountedKernel, ExpertsKernel, Pointwise, ProductKernel
from .records import KERNELS
from .records.record import Kernels
from .step import EngineStep


def padding_bytes(step: EngineStep, kernels: Sequence[CountedKernel]) -> float:
    """Return the bytes by which an engine pads the experts on one device."""
    engine_kernels = KERNELS.get(step.engine)
    multiples = None if engine_kernels is None else engine_kernels.padded_experts.get(step.formats.experts)
    total = 0.0
    for counted in kernels:
        kernel = counted.kernel
        if multiples is None or not isinstance(kernel, ExpertsKernel):
            continue
        _, weight_bytes, _ = kernel_rates(step.device, step.formats.experts)
        degree = step.devices.division.expert_tensor
        inner_size = kernel.inner_size / degree
        padded = _round_up(kernel.hidden_size, multiples[0]) * _round_up(inner_size, multiples[1])
        numbers = kernel.experts / step.devices.division.expert_parallel * kernel.matrices
        total += counted.count * numbers * (padded - kernel.hidden_size * inner_size) * weight_bytes
    return total


def _round_up(size: float, multiple: int) -> int:
    """Return the least multiple that is not smaller than a size."""
    return ceil(size / multiple) * multiple


def stored_weight_bytes(step: EngineStep, kernels: Sequence[CountedKernel]) -> float:
    """Return the bytes of the weights on one device, from its kernels of decoding."""
    total = 0.0
    division = step.devices.division
    for counted in kernels:
        kernel = counted.kernel
        if isinstance(kernel, ProductKernel) and kernel.is_stored:
            _, weight_bytes, _ = kernel_rates(step.device, step.formats.of_product(kernel))
            total += counted.count * kernel.n * kernel.k * kernel.groups * weight_bytes
        elif isinstance(kernel, ExpertsKernel):
            _, weight_bytes, _ = kernel_rates(step.device, step.formats.experts)
            numbers = kernel.experts * kernel.matrices * kernel.hidden_size * kernel.inner_size
            total += counted.count * numbers / division.tensor * weight_bytes
        elif isinstance(kernel, Pointwise):
            total += counted.count * kernel.weights * RESULT_BYTES
    return total


def sequence_bytes(
    step: EngineStep, kernels: Sequence[CountedKernel], tokens: float, of_engine: Kernels | None = None
) -> float:
    """Return the bytes of the cache of a sequence on one device: keys and values of every token, or states.

    Latent attention keeps one vector per token on every device. A layer with a window keeps no more tokens than that,
    one with chunks no more than a whole one, or the share of all tokens that an engine sets aside, if these are more.
    """
    cache_bytes = bytes_per_number(step.formats.attention.partition("/")[2])
    total = 0.0
    for counted in kernels:
        kernel = counted.kernel
        if isinstance(kernel, AttentionKernel):
            numbers = kernel.kv_heads * (kernel.key_size + kernel.value_size)
            total += counted.count * cached_tokens(kernel, tokens, of_engine) * numbers * cache_bytes
        elif isinstance(kernel, Pointwise):
            total += counted.count * kernel.state_bytes
    return total


def cached_tokens(kernel: AttentionKernel, tokens: float, of_engine: Kernels | None = None) -> float:
    """Return the tokens of a sequence whose keys an attention kernel has in its cache.

    These are those that it may read, or for which an engine has room.
    """
    if kernel.keeps == "none":
        return 0.0
    if kernel.positions:
        return float(kernel.positions)
    reach = kernel.window if kernel.chunk is None else kernel.chunk
    if kernel.keeps == "all" or reach is None:
        return tokens
    share = 0.0
    if of_engine is not None:
        share = of_engine.window_cache_share if kernel.chunk is None else of_engine.chunk_cache_share
    return max(min(tokens, reach), share * tokens)


def activation_bytes(
    step: EngineStep,
    kernels: Sequence[CountedKernel],
    tokens: int,
    sequences: int,
    logit_bytes: float,
) -> float:
    """Return the bytes of activations at the peak of the largest iteration, which an engine keeps free.

    Either the residual stream, its norm and the block's input beside the output of a product and the input of the next
    one, where rows of experts count once for each expert that a token passes, or the logits in the sampler. For Llama 3
    8B it is 110,592 bytes per token; vLLM reports 2.07 GiB for 20,000 tokens and 2.99 GiB for 29,000
    (https://github.com/vllm-project/vllm/issues/10517). `logit_bytes` are those per logit at the peak of the sampler.
    """
    widest, hidden_size, sampler_bytes, width_before = 0.0, 0, 0.0, 0
    for counted in kernels:
        kernel = counted.kernel
        if isinstance(kernel, ProductKernel) and kernel.rows == "tokens":
            widest = max(widest, width_before + kernel.k)
            width_before = kernel.n
            hidden_size = hidden_size or kernel.k
        elif isinstance(kernel, Pointwise) and kernel.name == SAMPLING:
            logits = kernel.row_bytes / SAMPLED_BYTES
            sampler_bytes = logit_bytes * sequences * logits
        elif isinstance(kernel, ExpertsKernel):
            inner_size = kernel.inner_size / step.devices.division.expert_tensor
            share = 1.0 / step.devices.division.expert_parallel
            widest = max(widest, kernel.active * share * (2 * kernel.hidden_size + 3 * inner_size))
    return max(tokens * RESULT_BYTES * (3 * hidden_size + widest), sampler_bytes)

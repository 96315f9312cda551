"""FLOPs and bytes of the kernels of an engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from .formulas import RESULT_BYTES, decode_attention_bytes, experts_bytes, product_bytes, prompt_attention_bytes
from .kernels import AttentionKernel, ExpertsKernel, Kernel, Pointwise, ProductKernel
from .step import EngineStep, Load, causal_pairs, decoded_keys, rows_of


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
    return load.prompts * causal_pairs(load.length, load.cached, kernel.window)


def moved_bytes(step: EngineStep, kernel: Kernel, load: Load) -> float:
    """Return the bytes that one launch of a kernel reads and writes in a device's memory; exchanges move none there."""
    if isinstance(kernel, ProductKernel):
        moved, quantised = product_bytes(**step.product_sizes(kernel, load))
        return float((moved + quantised) * (rows_of(kernel, load) > 0))
    if isinstance(kernel, ExpertsKernel):
        tokens = float(load.all_tokens)
        if not tokens:
            return 0.0
        (products,) = experts_bytes(**step.expert_sizes(kernel, np.array([tokens])))
        results = RESULT_BYTES * tokens * kernel.active * kernel.hidden_size  # each is written once
        return float(products + results)
    if isinstance(kernel, AttentionKernel):
        sizes = step.attention_sizes(kernel)
        if kernel.rows == "decoding":
            one_head = decode_attention_bytes(decoded_keys(kernel, load), **sizes)
            return float(load.sequences * kernel.kv_heads * one_head)
        return float(prompt_attention_bytes(load.prompts, load.length, **sizes))
    if isinstance(kernel, Pointwise) and kernel.launches:
        rows = rows_of(kernel, load)
        return float((kernel.row_bytes * rows + kernel.fixed_bytes) * (rows > 0))
    return 0.0

"""FLOPs and bytes of the kernels of an engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from .activity import TrafficConstants
from .kernels import AttentionKernel, ExchangeKernel, ExpertsKernel, Kernel, Pointwise, ProductKernel
from .step import EngineStep, Load, causal_pairs, rows_of


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
        keys = np.asarray(load.context) + 1.0
        return load.sequences * (keys if kernel.window is None else np.minimum(keys, kernel.window))
    return load.prompts * causal_pairs(load.length, load.cached, kernel.window)


class KernelTraffic:
    """Bytes that kernels read and write in a device's memory.

    Parameters
    ----------
    step : EngineStep
        Times of the kernels.
    """

    def __init__(self, step: EngineStep) -> None:
        only = TrafficConstants(classes={})
        self.step = EngineStep(step.device, step.engine, step.formats, step.placement, only)

    def moved_bytes(self, kernel: Kernel, load: Load) -> float:
        """Return the bytes of one launch: what the formula of its time divides by the bandwidth."""
        if isinstance(kernel, ExchangeKernel):
            return 0.0
        return float(sum(self.step.kernel_parts_s(kernel, load)) * self.step.device.bandwidth_bytes_per_s)

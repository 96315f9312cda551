"""Memory of one device under an engine: weights, and keys, values and states of a sequence."""

from __future__ import annotations

from collections.abc import Sequence

from ..formats import bytes_per_number
from .formulas import RESULT_BYTES
from .kernels import Attention, CountedKernel, Experts, Pointwise, Product
from .rates import kernel_rates
from .step import EngineStep


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
        if isinstance(kernel, Product) and kernel.is_stored:
            _, weight_bytes, _ = kernel_rates(step.device, step.formats.of_product(kernel))
            total += counted.count * kernel.n * kernel.k * kernel.groups * weight_bytes
        elif isinstance(kernel, Experts):
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
        if isinstance(kernel, Attention):
            kept = tokens if kernel.window is None else min(tokens, kernel.window)
            total += counted.count * kept * kernel.kv_heads * (kernel.key_size + kernel.value_size) * cache_bytes
        elif isinstance(kernel, Pointwise):
            total += counted.count * kernel.state_bytes
    return total


def activation_bytes(step: EngineStep, kernels: Sequence[CountedKernel], tokens: int) -> float:
    """Return the bytes of activations of an iteration: the residual stream, and the widest kernel's input and output.

    Rows of experts count once for each expert that a token passes.
    """
    widest, hidden_size = 0.0, 0
    for counted in kernels:
        kernel = counted.kernel
        if isinstance(kernel, Product) and kernel.rows == "tokens":
            widest = max(widest, kernel.n + kernel.k)
            hidden_size = hidden_size or kernel.k
        elif isinstance(kernel, Experts):
            inner_size = kernel.inner_size / step.placement.experts_tensor
            share = 1.0 / step.placement.experts
            widest = max(widest, kernel.active * share * (2 * kernel.hidden_size + 3 * inner_size))
    return tokens * RESULT_BYTES * (2 * hidden_size + widest)

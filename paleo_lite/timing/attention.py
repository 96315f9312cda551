"""Implementations of attention, and the share of a device's peak that the kernels of each reach."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from ..counting import Layer
from ..errors import BadValue, UnknownName
from ..machines import Device
from .features import CLASS_INDEX, UPDATE, Features

EAGER = "eager"
"""Attention as separate products and a softmax, which writes the scores to memory."""

SDPA = "sdpa"
"""PyTorch's scaled_dot_product_attention, which chooses one of the other implementations."""

FUSED_CHIPS = ("Navi 48",)
"""Chips of AMD's cards for games and workstations on which PyTorch's attention is fused by default.

On the others AOTriton's kernels are experimental (pytorch/pytorch, pull request 156499): unless
``TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL`` is set, attention is computed as separate products (unslothai/unsloth, pull
request 8821)."""

REFERENCE_HEAD = 128
"""Head dimension to which the shares of kernels refer."""

RECOMPUTATION = 2.5 / 2
"""FLOPs of the backward pass of a fused kernel, which computes the scores again, over those that are counted."""


class KernelShares(NamedTuple):
    """Shares of the peak that the forward and the backward kernel reach, of the FLOPs that each executes."""

    # For causal attention with heads of 128 and long sequences.
    forward: float
    backward: float
    # Power of the head dimension over 128 with which the shares of narrower heads fall: 1 where the exponentials, one
    # per score, take the time.
    narrow_exponent: float = 0.0
    window_overhead: float = 0.0  # keys in whose time a kernel starts and ends the window of a query
    skips_masked: bool = True  # whether the backward kernel leaves out the keys outside a window

    @property
    def counted_backward(self) -> float:
        """Share of the peak in the backward pass, of the counted FLOPs, which leave out the recomputed scores."""
        return self.backward / RECOMPUTATION


class FusedAttention(NamedTuple):
    """An implementation of attention in one kernel per pass.

    All fused implementations move queries, keys, values and the result once, and save these and one fp32 number per row
    for the backward pass.
    """

    description: str  # one-line description
    shares: dict[str, KernelShares]  # shares of the peak by compute capability, or its first digits


ATTENTIONS = {
    "flash2": FusedAttention(
        "FlashAttention 2 (Dao 2023), whose kernels use the matrix instructions of Ampere",
        {
            # Forward: vLLM's FlashAttention 2 in modern/attention_modern.csv.gz; backward: 63% of the peak where the
            # forward pass reaches 73% (Dao 2023, abstract).
            "8.0": KernelShares(0.57, 0.49),
            "8": KernelShares(0.52, 0.45),
            # 335 and 322 TFLOP/s of 989 (Shah et al. 2024, FlashAttention-3, figures 5 and 6).
            "9": KernelShares(0.34, 0.33),
        },
    ),
    "flash3": FusedAttention(
        "FlashAttention 3 (Shah et al. 2024), for Hopper",
        # 616 and 561 TFLOP/s of 989 (figures 5 and 6); the forward kernels of vLLM and SGLang reach 0.62 and 0.61 in
        # modern/attention_modern.csv.gz, and with heads of 64 0.79 and 0.82 of that.
        {"9": KernelShares(0.62, 0.57, narrow_exponent=0.3)},
    ),
    "cudnn": FusedAttention(
        "cuDNN's fused attention, as Transformer Engine and PyTorch on Blackwell call it",
        {
            # 539 and 516 TFLOP/s of 989 (Shah et al. 2024, figures 5 and 6).
            "9": KernelShares(0.545, 0.52, narrow_exponent=0.3, window_overhead=900),
            # Medians of causal attention of 4,096 to 16,384 tokens in modern/attention_training_cudnn.csv; narrow heads
            # and windows from its rows of gpt-oss.
            "10": KernelShares(0.634, 0.457, narrow_exponent=0.8, window_overhead=900),
            "10.3": KernelShares(0.742, 0.522, narrow_exponent=0.8, window_overhead=900),
        },
    ),
    "cudnn-mxfp8": FusedAttention(
        "cuDNN's fused attention of queries, keys and values in MXFP8 (Transformer Engine's fp8_dot_product_attention)",
        # The same table; shares of the peak in bf16. The backward kernel computes all keys of a window.
        {
            "10.0": KernelShares(0.8, 0.573, narrow_exponent=1.0, window_overhead=1450, skips_masked=False),
            "10.3": KernelShares(1.091, 0.625, narrow_exponent=1.0, window_overhead=1450, skips_masked=False),
        },
    ),
}
"""Fused implementations by name."""

ATTENTION_NAMES = (EAGER, SDPA, *ATTENTIONS)
"""Names of `--attention`."""


def is_blackwell(device: Device) -> bool:
    """Return whether a device has a compute capability of Blackwell or later."""
    generation = device.capability.split(".")[0]
    return generation.isdigit() and int(generation) >= 10


def has_fused_attention(device: Device) -> bool:
    """Return whether PyTorch computes attention in one kernel on a device, without experimental kernels."""
    is_radeon = device.vendor == "AMD" and device.architecture.startswith("RDNA")
    return not is_radeon or device.chip.startswith(FUSED_CHIPS)


def resolve_attention(name: str | None, device: Device) -> str:
    """Return the fused implementation that a name stands for on a device.

    ``sdpa``, and no name, stand for FlashAttention 2 up to Hopper and for cuDNN on Blackwell. Raise UnknownName if
    there is no such implementation, and BadValue if it does not support the device.
    """
    if name is not None and name not in ATTENTION_NAMES:
        raise UnknownName("attention", name, ATTENTION_NAMES)
    if name in (None, SDPA, EAGER):
        return "cudnn" if is_blackwell(device) else "flash2"
    assert name is not None
    if find_shares(name, device) is None:
        generations = sorted({int(capability.split(".")[0]) for capability in ATTENTIONS[name].shares})
        supported = " and ".join(f"{generation}.x" for generation in generations)
        has = f"{device.name} has {device.capability or 'none'}"
        raise BadValue(f"`--attention {name}` has kernels for compute capability {supported}; {has}")
    return name


def is_fused_attention(name: str | None) -> bool | None:
    """Return whether an implementation is one kernel; None for the default of the network."""
    return None if name is None else name != EAGER


def find_shares(name: str, device: Device) -> KernelShares | None:
    """Return the shares of a fused implementation on a device; None if they are unknown."""
    shares = ATTENTIONS[name].shares
    return shares.get(device.capability) or shares.get(device.capability.split(".")[0])


def kernel_shares(name: str | None, device: Device) -> KernelShares | None:
    """Return the shares of the implementation that a name stands for on a device; None if they are unknown."""
    return find_shares(resolve_attention(name, device), device)


def layer_slowdowns(shares: KernelShares, layer: Layer) -> tuple[float, float]:
    """Return by how much longer the forward and the backward pass of attention take for narrow heads and windows."""
    narrow = max(REFERENCE_HEAD / layer.inputs[0][-1], 1.0) ** shares.narrow_exponent
    window = layer.attributes.get("window")
    if window is None:
        return narrow, narrow
    within = narrow * (1 + shares.window_overhead / window)
    return within, within if shares.skips_masked else narrow * max(layer.inputs[1][-2] / window, 1.0)


def scale_class(features: Features, work_class: str, forward: float, backward: float) -> Features:
    """Return the features with the compute times of a class of work multiplied by a factor per pass."""
    is_class = (features.work_class == CLASS_INDEX[work_class]) & (features.pass_number < UPDATE)
    factors = np.where(features.pass_number == 0, forward, backward)
    return msgspec.structs.replace(features, padding=features.padding * np.where(is_class, factors, 1.0))

"""Implementations of attention, and the share of a device's peak that the kernels of each reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from ..counting import Layer
from ..errors import BadValue, UnknownName
from ..machines import Device
from .features import CLASS_INDEX, UPDATE, Features

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

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

    # With heads of 128 and so many keys that the start does not matter.
    forward: float
    backward: float
    # Time of the start and end of a query in a kernel, as the number of keys that take as long. The share of the peak
    # rises with the mean number of keys of a query, which a short sequence, a causal mask or a window reduce.
    start_keys: float
    # Power of the head dimension over 128 with which the shares of narrower heads fall: 1 where the exponentials, one
    # per score, take the time.
    narrow_exponent: float = 0.0
    wide_exponent: float = 0.0  # the same power of wider heads, whose shares rise where the exponentials take the time
    skips_masked: bool = True  # whether the backward kernel leaves out the keys outside a window

    @property
    def counted_backward(self) -> float:
        """Share of the peak in the backward pass, of the counted FLOPs, which leave out the recomputed scores."""
        return self.backward / RECOMPUTATION

    def slowdowns(self, features: Features) -> Floats:
        """Return by how much longer attention takes in these kernels than at the peak, by entry; 1 for all others."""
        shares = np.where(features.pass_number == 0, self.forward, self.counted_backward)
        is_attention = (features.work_class == CLASS_INDEX["attention"]) & (features.pass_number < UPDATE)
        return np.where(is_attention, (1 + self.start_keys * features.inverse_keys) / shares, 1.0)


class FusedAttention(NamedTuple):
    """An implementation of attention in one kernel per pass.

    All fused implementations move queries, keys, values and the result once, and save these and one fp32 number per row
    for the backward pass.
    """

    description: str  # one-line description
    shares: dict[str, KernelShares]  # shares of the peak by compute capability, or its first digits


ATTENTIONS = {
    "flash1": FusedAttention(
        "FlashAttention (Dao et al. 2022), as of 2022 and early 2023, also as Triton's kernel and in PyTorch until 2.1",
        {
            # On an A100 the forward pass reaches 30 to 50% of the peak and the backward pass 25 to 35% (Dao 2023,
            # introduction; the middle, with 16,384 tokens). On other devices both have the same ratio to
            # FlashAttention 2 as on an A100, and start like it.
            "8.0": KernelShares(0.413, 0.310, start_keys=260),
            "8": KernelShares(0.371, 0.278, start_keys=260),
            "9": KernelShares(0.246, 0.205, start_keys=260),
        },
    ),
    "flash2": FusedAttention(
        "FlashAttention 2 (Dao 2023), whose kernels use the matrix instructions of Ampere",
        {
            # Forward: vLLM's FlashAttention 2 in modern/attention_modern.csv.gz, on an A100 and an L40S, fitted over
            # 512 to 16,384 tokens; backward: 63% of the peak where the forward pass reaches 73% (Dao 2023, abstract).
            "8.0": KernelShares(0.587, 0.507, start_keys=260),
            "8": KernelShares(0.527, 0.455, start_keys=260),
            # 335 and 322 TFLOP/s of 989 with 16,384 tokens (Shah et al. 2024, FlashAttention-3, figures 5 and 6).
            "9": KernelShares(0.350, 0.336, start_keys=260),
        },
    ),
    "flash3": FusedAttention(
        "FlashAttention 3 (Shah et al. 2024), for Hopper",
        # 616 and 561 TFLOP/s of 989 with 16,384 tokens (figures 5 and 6). The forward kernels of vLLM and SGLang start
        # in the time of 570 and 360 keys in modern/attention_modern.csv.gz, and in that of 230 by itself (430 TFLOP/s
        # with 512 keys and 620 with 16,384; pytorch/benchmark, pull request 2391); with heads of 64 the first two reach
        # 0.79 and 0.82 of their rates.
        {"9": KernelShares(0.650, 0.592, start_keys=360, narrow_exponent=0.3)},
    ),
    "cudnn": FusedAttention(
        "cuDNN's fused attention, as Transformer Engine and PyTorch on Blackwell call it",
        {
            # 539 and 516 TFLOP/s of 989 with 16,384 tokens (Shah et al. 2024, figures 5 and 6); the start is that of
            # FlashAttention 3.
            "9": KernelShares(0.569, 0.545, start_keys=360, narrow_exponent=0.3),
            # Causal attention of 2,048 to 32,768 tokens in modern/attention_training_cudnn.csv, backward without
            # determinism, which Transformer Engine does not ask for; narrow heads from its windows of 128 keys.
            "10": KernelShares(0.722, 0.570, start_keys=600, narrow_exponent=0.8),
            "10.3": KernelShares(0.851, 0.645, start_keys=600, narrow_exponent=0.8),
        },
    ),
    "cudnn-mxfp8": FusedAttention(
        "cuDNN's fused attention of queries, keys and values in MXFP8 (Transformer Engine's fp8_dot_product_attention)",
        # The same table; shares of the peak in bf16. The backward kernel computes the keys that a causal mask leaves.
        {
            "10.0": KernelShares(
                0.858, 0.591, start_keys=600, narrow_exponent=1.0, wide_exponent=0.5, skips_masked=False
            ),
            "10.3": KernelShares(
                1.171, 0.644, start_keys=600, narrow_exponent=1.0, wide_exponent=0.5, skips_masked=False
            ),
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
    """Return by how much longer the passes of attention take than `KernelShares.slowdowns` says, for its shape.

    The first is the forward pass. Narrow heads slow both down, keys outside a window that are computed the second.
    """
    ratio = REFERENCE_HEAD / layer.inputs[0][-1]
    narrow: float = ratio ** (shares.narrow_exponent if ratio > 1 else shares.wide_exponent)
    window = layer.attributes.get("window", layer.attributes.get("attention_chunk"))
    if window is None or shares.skips_masked:
        return narrow, narrow
    causal_keys = layer.inputs[1][-2] / 2
    return narrow, narrow * max((causal_keys + shares.start_keys) / (window + shares.start_keys), 1.0)


def scale_class(features: Features, work_class: str, forward: float, backward: float) -> Features:
    """Return the features with the compute times of a class of work multiplied by a factor per pass."""
    is_class = (features.work_class == CLASS_INDEX[work_class]) & (features.pass_number < UPDATE)
    factors = np.where(features.pass_number == 0, forward, backward)
    return msgspec.structs.replace(features, padding=features.padding * np.where(is_class, factors, 1.0))

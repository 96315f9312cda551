"""Formats of an engine's kernels for a question, and the devices for which engines have constants."""

from __future__ import annotations

from ..errors import BadValue
from ..machines import Device
from .constants import engine_constants
from .rates import KERNEL_FORMATS
from .step import Formats

ARCHITECTURES = ("Ampere", "Hopper", "Ada", "Blackwell")
"""Architectures of NVIDIA whose engines' kernels were measured."""


def has_constants(device: Device) -> bool:
    """Return whether engines have constants that speak for a device."""
    return device.vendor == "NVIDIA" and device.architecture in ARCHITECTURES and bool(engine_constants().classes)


def choose_formats(
    precision: str, weights: str | None, kv_cache: str, *, has_experts: bool, has_latent_attention: bool
) -> Formats:
    """Return the formats of the kernels of a network.

    Where nothing else is asked for, formats are those in which publishers ship their checkpoints: mixtures in fp8 have
    scales per block (DeepSeek-V3, Qwen3, GLM), dense networks per tensor; in 4 bits integers and mxfp4 are for experts
    only (Kimi K2.5, gpt-oss), and nvfp4 leaves the projections of latent attention in 16 bits (DeepSeek-V3.1, GLM-5).

    Raises
    ------
    BadValue
        If no kernels exist for the combination.
    """
    plain = precision if precision in ("fp16", "fp32", "tf32") else "bf16"
    name = weights or precision
    if name == "fp4":
        name = "nvfp4"
    if name == "fp8" and has_experts and precision == "fp8":
        name = "fp8-block"
    if precision == "int8" and name == "int8":
        name = "w8a8"
    if precision in ("bf16", "fp16") and name in ("fp8", "fp8-block", "int8"):
        name = "w8a16"  # 8 bits that are converted to 16 before the product
    name = {"gptq": "int4", "awq": "int4", "nf4": "int4"}.get(name, name)
    if name == "mxfp4" and precision in ("fp4", "fp8"):
        name = "mxfp4-mxfp8"
    if name not in KERNEL_FORMATS:
        known = ", ".join(sorted(KERNEL_FORMATS))
        raise BadValue(f"engines have no kernels for `--weights {weights}` with `--precision {precision}`: {known}")
    projections = feed_forward = experts = name
    if name in ("mxfp4", "mxfp4-mxfp8") or (name == "int4" and has_experts):
        projections = feed_forward = plain
    if name == "nvfp4" and has_latent_attention:
        projections = plain
    cache = kv_cache if kv_cache != "fp4" else "nvfp4"
    attention = f"bf16/{cache}"
    return Formats(projections, feed_forward, experts, plain, attention)

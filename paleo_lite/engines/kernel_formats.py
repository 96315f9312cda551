"""Formats of the kernels of engines: the rates of a device for products in them, and those that a question asks for."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ..errors import BadValue
from ..formats import FORMATS, bytes_per_number
from ..machines import Device
from .constants import engine_constants
from .formulas import KernelRates
from .kernels import ProductKernel


class KernelFormat(NamedTuple):
    """Formats of the operands of a kernel's products."""

    # Formats of weights and activations, of `paleo_lite.formats.FORMATS`. Products run in the precision of the
    # activations; narrower weights are converted first.
    weights: str
    activations: str
    # Rows without a token per expert of a device: those of buffers that are as large as can be needed.
    empty_rows: int = 0


KERNEL_FORMATS: dict[str, KernelFormat] = {
    "fp16": KernelFormat("fp16", "fp16"),
    "bf16": KernelFormat("bf16", "bf16"),
    "fp8": KernelFormat("fp8", "fp8"),
    "fp8-block": KernelFormat("fp8-block", "fp8"),
    # DeepGEMM in vLLM. The host does not know how many tokens an expert gets, so that rows are those of all tokens, and
    # 127 of every expert to fill a tile of 128 (`compute_aligned_M`,
    # https://github.com/vllm-project/vllm/blob/v0.11.1/vllm/model_executor/layers/fused_moe/deep_gemm_utils.py).
    "fp8-block-tiles": KernelFormat("fp8-block", "fp8", empty_rows=127),
    "nvfp4": KernelFormat("nvfp4", "nvfp4"),
    "w4a16": KernelFormat("nvfp4", "bf16"),
    "w8a8": KernelFormat("int8", "int8"),
    "int8": KernelFormat("int8", "bf16"),
    "w8a16": KernelFormat("fp8", "bf16"),
    "int4": KernelFormat("int4", "bf16"),
    "int4-int8": KernelFormat("int4", "int8"),
    "mxfp4": KernelFormat("mxfp4", "bf16"),
    "mxfp4-mxfp8": KernelFormat("mxfp4", "mxfp8"),
}
"""Formats of kernels by name; ``int8``, ``int4`` and ``mxfp4`` are formats of weights alone."""


class Formats(msgspec.Struct, frozen=True):
    """Formats of the operands of kernels."""

    # Formats of the projections of attention, of dense feed-forward parts and of experts, keys of
    # `KERNEL_FORMATS`.
    projections: str
    feed_forward: str
    experts: str
    plain: str  # format of products that are not quantised
    attention: str  # formats of attention and of its cache, such as ``bf16/fp8``
    # Pointwise kernels that quantise their results for the product that reads them, with the format of that product.
    quantising: tuple[tuple[str, str], ...] = ()

    def of_product(self, kernel: ProductKernel) -> str:
        """Return the format of a product's matrix."""
        if kernel.part == "attention":
            return self.projections
        return self.feed_forward if kernel.part == "feed-forward" else self.plain

    def has_quantised_operand(self, kernel: ProductKernel) -> bool:
        """Return whether the kernel before a product quantises its left operand."""
        return (kernel.producer, self.of_product(kernel)) in self.quantising


LIKE_KERNELS = {"gptq": "int4", "awq": "int4", "nf4": "int4", "fp4": "nvfp4", "mxfp8": "fp8"}
"""Formats of weights that run in kernels of another one."""

SIMILAR_FORMATS = {
    "fp8-block-tiles": "fp8-block", "w8a16": "bf16", "fp16": "bf16", "bf16/fp16": "bf16/bf16", "int4-int8": "w8a8",
    "w4a16": "int4",
}  # fmt: skip
"""Formats without tables, and those whose constants they use: narrower numbers are converted as they are read."""


TYPICAL_CLOCK_HZ = 2e9
"""Clock of devices whose data sheet gives none."""


def device_clock_hz(device: Device) -> float:
    """Return the highest clock of a device's data sheet."""
    return device.clock_hz("boost") or TYPICAL_CLOCK_HZ


def products_precision(name: str) -> str:
    """Return the precision of the products of a kernel in a format; attention has that of its queries."""
    precision = FORMATS[KERNEL_FORMATS[name.partition("/")[0]].activations].precision
    assert precision is not None
    return precision


def kernel_rates(device: Device, name: str) -> tuple[KernelRates, float, float]:
    """Return the rates of a device for products in a format, and the bytes per number of weights and activations.

    Raise UnknownPrecision if the device has no peak in the precision of the products.
    """
    kernel_format = KERNEL_FORMATS[name]
    peak_per_s = device.find_peak(products_precision(name)).per_s
    multiprocessors = float(device.cores.multiprocessors.value)
    rates = KernelRates(peak_per_s, device.bandwidth_bytes_per_s, multiprocessors, device_clock_hz(device))
    return rates, bytes_per_number(kernel_format.weights), bytes_per_number(kernel_format.activations)


ARCHITECTURES = {"NVIDIA": ("Ampere", "Hopper", "Ada", "Blackwell"), "Intel": ("Xe2",)}
"""Architectures whose engines' kernels were measured, by vendor; those of Xe2 under vLLM, on an Arc Pro B60."""


def has_constants(device: Device) -> bool:
    """Return whether the fitted constants of engines apply to a device."""
    constants = engine_constants()
    were_measured = device.architecture in ARCHITECTURES.get(device.vendor, ())
    return bool(constants.classes) and (were_measured or constants.served_deviation(device) is not None)


def kernels_on(formats: Formats, device: Device) -> Formats:
    """Return the formats of kernels as a device's libraries have them.

    On NVIDIA's GPUs without units for 4-bit floating point, engines convert such weights to 16 bits before a product
    (Marlin's kernels: vllm/model_executor/layers/quantization/utils/marlin_utils_fp4.py; SGLang's pull request 19652).

    On Intel's GPUs the linear layers of vLLM with weights in int4 quantise their inputs to int8 and multiply integers:
    ``WoqLowpMode.INT8`` in vllm/model_executor/layers/quantization/ipex_quant.py, which says "to leverage instructions
    with better performance".
    """
    parts = ["projections", "feed_forward"]
    if device.vendor == "Intel":
        named, instead = "int4", "int4-int8"
    elif device.vendor == "NVIDIA" and all(peak.precision != "fp4" for peak in device.peaks):
        named, instead = "nvfp4", "w4a16"
        parts.append("experts")
    else:
        return formats
    return msgspec.structs.replace(formats, **{part: instead for part in parts if getattr(formats, part) == named})


class PartFormats(NamedTuple):
    """Formats in which a checkpoint stores most weights of the projections, feed-forward parts and experts."""

    # Formats, of `paleo_lite.formats.FORMATS`; None for 16 bits.
    projections: str | None
    feed_forward: str | None
    experts: str | None
    has_narrow_activations: bool  # whether activations are quantized as well


def checkpoint_formats(precision: str, stored: PartFormats, kv_cache: str, device: Device) -> Formats:
    """Return the formats of the kernels of a quantized checkpoint; raise BadValue if no kernels exist for a format.

    Products run in the precision of the format where the checkpoint quantizes activations and the device has a peak in
    it, else in 16 bits, to which weights are converted.
    """
    plain = precision if precision in ("fp16", "fp32", "tf32") else "bf16"
    peaks = {peak.precision for peak in device.peaks}

    def of_part(name: str | None) -> str:
        if name is None:
            return plain
        name = LIKE_KERNELS.get(name, name)
        operand_precision = FORMATS[name].precision
        runs_narrow = stored.has_narrow_activations and operand_precision in peaks
        if name == "mxfp4":
            return "mxfp4-mxfp8" if runs_narrow and "fp8" in peaks else "mxfp4"
        if name == "int8":
            return "w8a8" if runs_narrow else "int8"
        if not runs_narrow:
            name = {"fp8": "w8a16", "fp8-block": "w8a16", "nvfp4": "w4a16"}.get(name, name)
        if name not in KERNEL_FORMATS:
            raise BadValue(f"engines have no kernels for weights in {name}; give --weights")
        return name

    cache = kv_cache if kv_cache != "fp4" else "nvfp4"
    parts = (of_part(stored.projections), of_part(stored.feed_forward), of_part(stored.experts))
    return Formats(*parts, plain, f"bf16/{cache}")


def choose_formats(
    precision: str, weights: str | None, kv_cache: str, *, has_experts: bool, has_latent_attention: bool
) -> Formats:
    """Return the formats of the kernels of a network; raise BadValue if no kernels exist for the combination.

    Where nothing else is asked for, formats are those in which publishers ship their checkpoints: mixtures in fp8 have
    scales per block (DeepSeek-V3, Qwen3, GLM), dense networks per tensor; in 4 bits integers and mxfp4 are for experts
    only (Kimi K2.5, gpt-oss), and nvfp4 leaves the projections of latent attention in 16 bits (DeepSeek-V3.1, GLM-5).
    """
    plain = precision if precision in ("fp16", "fp32", "tf32") else "bf16"
    name = weights or precision
    name = LIKE_KERNELS.get(name, name)
    if name == "nvfp4" and precision in ("fp8", "int8"):
        raise BadValue(
            "engines multiply weights in nvfp4 in fp4, or in 16 bits on devices without units for it, not in "
            f"{precision}: leave `--precision {precision}` out"
        )
    if name == "fp8" and has_experts and precision == "fp8":
        name = "fp8-block"
    if precision == "int8" and name == "int8":
        name = "w8a8"
    if precision in ("bf16", "fp16") and name in ("fp8", "fp8-block", "int8"):
        name = "w8a16"  # 8 bits that are converted to 16 before the product
    if name == "mxfp4" and precision in ("fp4", "fp8"):
        name = "mxfp4-mxfp8"
    if name not in KERNEL_FORMATS:
        valid = ", ".join(stored for stored in FORMATS if stored in KERNEL_FORMATS or stored in LIKE_KERNELS)
        stored = FORMATS.get(name)
        elsewhere = "; `paleo-lite local` answers for it" if stored is not None and stored.mixture is not None else ""
        raise BadValue(
            f"engines of servers have no kernels for `--weights {weights}` with `--precision {precision}`: use {valid}"
            f"{elsewhere}"
        )
    projections = feed_forward = experts = name
    if name in ("mxfp4", "mxfp4-mxfp8") or (name == "int4" and has_experts):
        projections = feed_forward = plain
    if name == "nvfp4" and has_latent_attention:
        projections = plain
    cache = kv_cache if kv_cache != "fp4" else "nvfp4"
    attention = f"bf16/{cache}"
    return Formats(projections, feed_forward, experts, plain, attention)

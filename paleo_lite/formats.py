"""Storage formats of weights and KV caches: bits per number, and the scales and zero points of groups of numbers."""

from __future__ import annotations

from typing import Literal

import msgspec

from .errors import BadValue
from .gguf_types import EXL2_MIXTURES, MIXTURES, MLX_MIXTURES, TENSOR_TYPES, Mixture
from .units import PRECISION_BYTES, element_bytes

Part = Literal["dense", "experts", "router", "head", "embedding"]
"""Part of a network with weight matrices: products of every token, of the chosen experts, the choice of experts, the
output head, and look-up tables."""

ALL_PARTS: tuple[Part, ...] = ("dense", "experts", "router", "head", "embedding")

WIDE_BYTES = 2
"""Least bytes per number of parameters that are not quantized, such as norms and biases."""


class Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the numbers of a tensor are stored."""

    name: str  # name, as in `--weights` and `--kv-cache`
    bits: float  # bits per number, without scales; formats with several widths have their mean
    # Precision of products with such weights if activations are quantized as well, one of
    # `paleo_lite.units.PRECISION_BYTES`; None for formats of weights alone, which are dequantized to 16 bits
    # before each product.
    precision: str | None
    description: str  # description in one line
    source: str  # definition of the format
    # Numbers with a scale of their own; 0 if scales are not counted, as those of whole tensors or channels.
    group: int = 0
    scale_bits: float = 0.0  # bits per scale, with its share of scales of the second level
    zero_point_bits: float = 0.0  # bits per zero point; a group has one
    # Parts of a network that are stored in the format at inference, of `ALL_PARTS`. All other parameters, and all
    # norms and biases, keep at least 16 bits.
    parts: tuple[Part, ...] = ("dense", "experts")
    # Types of the tensors of a GGUF file, where they differ from tensor to tensor; `bits` is their mean in a
    # network of 8 billion parameters.
    mixture: Mixture | None = None

    @property
    def bits_per_number(self) -> float:
        """Bits per number, with its share of the scale and the zero point of its group."""
        if not self.group:
            return self.bits
        return self.bits + (self.scale_bits + self.zero_point_bits) / self.group

    @property
    def bytes_per_number(self) -> float:
        """Bytes per number, with its share of the scale and the zero point of its group."""
        return self.bits_per_number / 8

    @property
    def is_quantized(self) -> bool:
        """Whether a number has fewer than 16 bits."""
        return self.bits < 8 * WIDE_BYTES


_OCP = "OCP Microscaling Formats (MX) Specification 1.0, table 1"
_GGUF = "llama.cpp, tools/quantize and src/llama-quant.cpp"
_NVFP4 = "NVIDIA, Introducing NVFP4 for Efficient and Accurate Low-Precision Inference (2025)"

FORMATS: dict[str, Format] = {
    stored.name: stored
    for stored in (
        Format("fp64", 64, "fp64", "double precision", "IEEE 754-2019, binary64", parts=ALL_PARTS),
        Format("fp32", 32, "fp32", "single precision", "IEEE 754-2019, binary32", parts=ALL_PARTS),
        Format(
            "tf32", 32, "tf32", "single precision, of which products read 19 bits", "NVIDIA A100 white paper (2020)",
            parts=ALL_PARTS,
        ),
        Format("fp16", 16, "fp16", "half precision", "IEEE 754-2019, binary16", parts=ALL_PARTS),
        Format("bf16", 16, "bf16", "the upper half of single precision", "Kalamkar et al. 2019", parts=ALL_PARTS),
        Format("fp8", 8, "fp8", "E4M3 with a scale per tensor or channel", "Micikevicius et al. 2022, FP8 formats"),
        Format(
            "fp8-block", 8, "fp8", "E4M3 with an fp32 scale per block of 128 x 128",
            "DeepSeek-AI 2024, DeepSeek-V3, section 3.3.2", group=128 * 128, scale_bits=32,
        ),
        Format("mxfp8", 8, "fp8", "E4M3 with an 8-bit exponent per 32 numbers", _OCP, group=32, scale_bits=8),
        Format("int8", 8, "int8", "integers with a scale per channel", "Dettmers et al. 2022, LLM.int8(); SmoothQuant"),
        Format(
            "fp4", 4, "fp4", "E2M1 as checkpoints called FP4 store it: nvfp4", _NVFP4, group=16, scale_bits=8
        ),
        Format("nvfp4", 4, "fp4", "E2M1 with an E4M3 scale per 16 numbers", _NVFP4, group=16, scale_bits=8),
        Format(
            "mxfp4", 4, "fp4", "E2M1 with an 8-bit exponent per 32 numbers; of mixtures, the experts only",
            f"{_OCP}; OpenAI 2025, gpt-oss model card, section 2.1", group=32, scale_bits=8, parts=("experts",),
        ),
        Format(
            "int4", 4, None, "integers with a 16-bit scale per 128 numbers", "Frantar et al. 2022, GPTQ, section 4",
            group=128, scale_bits=16,
        ),
        Format(
            "gptq", 4, None, "integers with a 16-bit scale and a 4-bit zero point per 128 numbers",
            "Frantar et al. 2022, GPTQ; checkpoints with group_size 128", group=128, scale_bits=16, zero_point_bits=4,
        ),
        Format(
            "awq", 4, None, "integers with a 16-bit scale and a 4-bit zero point per 128 numbers",
            "Lin et al. 2023, AWQ; checkpoints with q_group_size 128", group=128, scale_bits=16, zero_point_bits=4,
        ),
        Format(
            "nf4", 4, None, "quantiles of a normal distribution with a scale per 64 numbers, itself quantized",
            "Dettmers et al. 2023, QLoRA, section 3", group=64, scale_bits=8 + 32 / 256,
        ),
    )
}  # fmt: skip
"""All formats by name."""

for quantizer, source, mixtures in (
    ("GGUF", _GGUF, MIXTURES),
    ("MLX", "mlx.core.quantize, and mlx_lm.convert", MLX_MIXTURES),
    ("ExLlamaV2", "exllamav2, convert.py", EXL2_MIXTURES),
):
    FORMATS |= {
        name: Format(
            name,
            TENSOR_TYPES[name].bytes_per_number * 8 if name in TENSOR_TYPES else mixture.bits,
            None,
            f"{quantizer}: {mixture.description}",
            source,
            parts=("dense", "experts", "head", "embedding"),
            mixture=mixture,
        )
        for name, mixture in mixtures.items()
    }


FORMATS_OF_PRODUCTS = tuple(
    stored.name for stored in FORMATS.values() if stored.precision is not None and stored.name not in PRECISION_BYTES
)
"""Formats that may be named as a precision: both operands of a product are stored in them."""


def split_format(precision: str, weights: str | None) -> tuple[str, str | None]:
    """Return the precision and the format of weights, of which a precision such as ``nvfp4`` names both.

    Inputs in ``mxfp8`` are also multiplied by narrower weights, as those of gpt-oss in ``mxfp4``. Raise BadValue if the
    format is one of weights alone, or weights are asked for in one that is not narrower.
    """
    if precision in PRECISION_BYTES or precision not in FORMATS:
        return precision, weights
    product_precision = FORMATS[precision].precision
    if product_precision is None:
        raise BadValue(
            f"`--precision {precision}` is a format of weights alone, which are converted to 16 bits before a product: "
            f"give `--precision bf16 --weights {precision}`"
        )
    if weights in FORMATS and FORMATS[weights].bits < FORMATS[precision].bits:
        return product_precision, weights
    if weights not in (None, precision):
        raise BadValue(
            f"`--precision {precision}` stores weights in {precision}: leave `--weights {weights}` out, or give "
            f"`--precision {product_precision} --weights {weights}`"
        )
    return product_precision, precision


def bytes_per_number(name: str) -> float:
    """Return the bytes of one number in a format, with its share of scales and zero points."""
    return FORMATS[name].bytes_per_number


def format_of_weights(weights: str | None, precision: str) -> Format | None:
    """Return the format in which a network at inference stores weights; None if all have the numbers of a precision.

    `weights` is the requested format, or None for that of the precision of the arithmetic, one of
    `paleo_lite.units.PRECISION_BYTES`. Raise BadValue if there is no such precision.
    """
    element_bytes(precision)  # names the valid precisions
    if weights is not None:
        return FORMATS[weights]
    stored = FORMATS[precision]
    return stored if stored.is_quantized else None


def wide_bytes(precision: str) -> int:
    """Return the bytes of a parameter that is not quantized: those of the precision, but at least `WIDE_BYTES`."""
    return max(element_bytes(precision), WIDE_BYTES)

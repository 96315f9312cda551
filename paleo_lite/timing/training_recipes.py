"""Recipes of training with narrow matrix products: which tensors they quantize, and the bytes that this moves.

The recipes are those of Transformer Engine. Weights, activations and gradients of the products in blocks are
quantized; attention, norms, routers, embedding and output head, and everything else, stay in bf16, and master weights
and optimizer state in fp32. A quantizing kernel reads a 16-bit tensor and writes it twice: along its rows for one
product, and along its columns for the product of the other pass.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import BadValue
from ..machines import Device
from ..units import PRECISION_BYTES

QUANTIZATION_BANDWIDTH_SHARE = 0.8
"""Share of the memory bandwidth that quantizing kernels reach: that of norms, which read and write as regularly (6.4 of
8 TB/s on a GB200; NVIDIA/cudnn-frontend, benchmarks of norms)."""


class TrainingRecipe(NamedTuple):
    """Number format of matrix products in training."""

    products: str  # precision whose peak the products have
    # Bytes moved per element of an input, or of a gradient, of a product to quantize it for all its uses.
    quantized_bytes: float
    maximum_bytes: float  # part of them that finding the largest number of a tensor moves
    saved_bytes: float  # bytes per element of an input that is saved for the gradient of the weight
    # Beginnings of the compute capabilities of the devices whose products read one copy of a weight along its rows and
    # along its columns; others keep a copy for each pass.
    one_copy_capabilities: tuple[str, ...]
    # Kernels that a product of one expert launches: the product, one that quantizes, and one for each block-
    # scaled input that brings its scales into the order of the matrix units (Transformer Engine's ``swizzle``).
    expert_kernels: int
    # Beginnings of the compute capabilities of the devices that multiply such numbers; empty for all with the
    # peak.
    capabilities: tuple[str, ...]
    description: str
    source: str

    def frozen_bytes(self, device: Device) -> float:
        """Return the bytes per number of a frozen weight, which is quantized once and has no other copy."""
        has_one_copy = bool(self.one_copy_capabilities) and device.capability.startswith(self.one_copy_capabilities)
        return self.saved_bytes if has_one_copy else 2 * self.saved_bytes

    @property
    def once_quantized_share(self) -> float:
        """Bytes that a tensor read by one product takes to quantize, over those of one that is read by two."""
        return 1 - self.saved_bytes / self.quantized_bytes


TRAINING_RECIPES = {
    "fp8": TrainingRecipe(
        products="fp8",
        quantized_bytes=2 + 2 + 2 * 1,  # maximum, read, written twice
        maximum_bytes=2,
        saved_bytes=1,
        one_copy_capabilities=("10.",),
        expert_kernels=2,
        capabilities=(),
        description="E4M3 and E5M2 with a scale per tensor, from its maximum",
        source="Micikevicius et al. 2022, FP8 formats for deep learning; Transformer Engine, Float8CurrentScaling",
    ),
    "mxfp8": TrainingRecipe(
        products="fp8",
        quantized_bytes=2 + 2 * (1 + 1 / 32),
        maximum_bytes=0,
        saved_bytes=1 + 1 / 32,
        one_copy_capabilities=(),
        expert_kernels=4,
        capabilities=("10.", "12.", "gfx95"),
        description="E4M3 with an 8-bit exponent per 32 numbers, for weights, activations and gradients",
        source="Mishra et al. 2025, Recipes for pre-training LLMs with MXFP8; Transformer Engine, MXFP8BlockScaling",
    ),
    "nvfp4": TrainingRecipe(
        products="fp4",
        quantized_bytes=2 + 2 + 2 * (1 / 2 + 1 / 16),
        maximum_bytes=2,
        saved_bytes=1 / 2 + 1 / 16,
        one_copy_capabilities=(),
        expert_kernels=4,
        capabilities=("10.", "12."),
        description="E2M1 with an E4M3 scale per 16 numbers and a scale per tensor",
        source="NVIDIA 2025, Pretraining large language models with NVFP4; Transformer Engine, NVFP4BlockScaling",
    ),
}
"""Recipes by the name that ``--precision`` takes with ``--mixed-precision``."""

RECIPE_ALIASES = {"fp4": "nvfp4"}

TRAINING_PRECISIONS = (*PRECISION_BYTES, *(name for name in TRAINING_RECIPES if name not in PRECISION_BYTES))
"""Names of ``--precision`` where training is possible."""


def find_recipe(precision: str) -> str | None:
    """Return the name in `TRAINING_RECIPES` for a precision of mixed-precision training; None for other precisions."""
    name = RECIPE_ALIASES.get(precision, precision)
    return name if name in TRAINING_RECIPES else None


def check_recipe(name: str, device: Device) -> None:
    """Raise BadValue if a device does not multiply the numbers of a recipe."""
    capabilities = TRAINING_RECIPES[name].capabilities
    if capabilities and not device.capability.startswith(capabilities):
        raise BadValue(
            f"training in {name} needs matrix units for it, as Blackwell has: {device.name} has none; "
            "use `--precision bf16` or, if it has them, fp8"
        )

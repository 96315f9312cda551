"""The precision in which an engine computes products with weights of a format, which no launch command states."""

from __future__ import annotations

from ..errors import BadValue
from ..formats import FORMATS
from ..machines import Device

HALF_PRECISIONS = ("bf16", "fp16")
"""Precisions in which language models are published and run, the usual one first."""

USUAL_PRECISION = HALF_PRECISIONS[0]
"""The one of them that a device of today has."""

_NARROW = {"fp8": "fp8", "fp8-block": "fp8", "mxfp8": "fp8", "nvfp4": "fp4", "fp4": "fp4"}
"""Formats of weights whose checkpoints quantize activations as well, with the precision of the products.

Engines read mxfp4 and integers beside activations in 16 bits, unless they are asked for more.
"""

FP4_WEIGHTS = tuple(name for name, precision in _NARROW.items() if precision == "fp4")
"""Formats of weights that are multiplied in 4-bit floating point."""


def choose_precision(weights: str | None, device: Device, unit: str | None = None) -> str:
    """Return the precision of products with weights of a format, if the question names none.

    Engines compute in the precision of the format on devices that have units for it, among the only ones that are used
    if one is named; on others they convert weights to 16 bits before a product (Marlin's kernels):
    https://docs.vllm.ai/en/latest/features/quantization/fp8/.
    """
    narrow = None if weights is None else _NARROW.get(weights)
    if narrow is not None and has_units(device, narrow, unit):
        return narrow
    return first_precision(device)


def first_precision(device: Device) -> str:
    """Return the first of the half precisions that a device has; fp32 if it has none, as vLLM's `--dtype auto` does."""
    return next((name for name in HALF_PRECISIONS if has_units(device, name)), "fp32")


def has_units(device: Device, precision: str, unit: str | None = None) -> bool:
    """Return whether a device computes products in a precision, with all its units or only the given ones."""
    return any(peak.precision == precision and unit in (None, peak.unit) for peak in device.peaks)


def converts_weights(weights: str | None, precision: str, device: Device) -> bool:
    """Return whether weights are converted to 16 bits before a product although the device has units for them."""
    narrow = None if weights is None else _NARROW.get(weights)
    return narrow is not None and FORMATS[precision].bits == 16 and has_units(device, narrow)


def check_products(weights: str | None, precision: str, device: Device) -> None:
    """Check that engines compute products with weights of a format in the precision that the question names.

    Raise BadValue for 4-bit floating point in 16 bits, on a device that has units for 4 bits.
    """
    if converts_weights(weights, precision, device) and weights is not None and _NARROW[weights] == "fp4":
        raise BadValue(
            f"engines compute products with weights in {weights} in fp4 on {device.name}: leave `--precision "
            f"{precision}` out"
        )

"""Rates of a device for the kernels of a format: the peak of its products, and the bytes of its operands."""

from __future__ import annotations

from ..machines import Device
from .formulas import RESULT_BYTES, Rates


class _Arithmetic(tuple):
    pass


ARITHMETIC: dict[str, tuple[str, float, float]] = {
    "fp32": ("tf32", 4.0, 4.0),
    "tf32": ("tf32", 4.0, 4.0),
    "fp16": ("fp16", 2.0, 2.0),
    "bf16": ("bf16", 2.0, 2.0),
    "fp8": ("fp8", 1.0, 1.0),
    "fp8-block": ("fp8", 1.0, 1.0),
    "nvfp4": ("fp4", 0.5625, 0.5625),
    "int8": ("bf16", 1.0, 2.0),
    "int4": ("bf16", 0.5 + 2 / 128, 2.0),
    "w8a8": ("int8", 1.0, 1.0),
    "mxfp4": ("bf16", 0.53125, 2.0),
    "mxfp4-mxfp8": ("fp8", 0.53125, 1.03125),
}


def kernel_rates(device: Device, name: str) -> tuple[Rates, float, float]:
    """Return the rates of a device for products in a format, and the bytes of weights and of operands."""
    precision, weight_bytes, operand_bytes = ARITHMETIC[name]
    if precision == "fp4" and "fp4" not in device.precisions:
        peak = 2 * device.find_peak("fp8").per_s
    else:
        peak = device.find_peak(precision).per_s
    rates = Rates(peak, device.bandwidth_bytes_per_s, float(device.cores.multiprocessors.value))
    return rates, weight_bytes, operand_bytes

"""Formats of kernels' operands, and the rates of a device for products in them."""

from __future__ import annotations

from typing import NamedTuple

from ..formats import FORMATS, bytes_per_number
from ..machines import Device
from .formulas import KernelRates


class KernelFormat(NamedTuple):
    """Formats of the operands of a kernel's products."""

    # Formats of weights and activations, of `paleo_lite.formats.FORMATS`. Products run in the precision of the
    # activations; narrower weights are converted first.
    weights: str
    activations: str


KERNEL_FORMATS: dict[str, KernelFormat] = {
    "fp16": KernelFormat("fp16", "fp16"),
    "bf16": KernelFormat("bf16", "bf16"),
    "fp8": KernelFormat("fp8", "fp8"),
    "fp8-block": KernelFormat("fp8-block", "fp8"),
    "nvfp4": KernelFormat("nvfp4", "nvfp4"),
    "w8a8": KernelFormat("int8", "int8"),
    "int8": KernelFormat("int8", "bf16"),
    "w8a16": KernelFormat("fp8", "bf16"),
    "int4": KernelFormat("int4", "bf16"),
    "mxfp4": KernelFormat("mxfp4", "bf16"),
    "mxfp4-mxfp8": KernelFormat("mxfp4", "mxfp8"),
}
"""Formats of kernels by name; ``int8``, ``int4`` and ``mxfp4`` are formats of weights alone."""


SIMILAR_FORMATS = {"w8a16": "bf16", "fp16": "bf16", "bf16/fp16": "bf16/bf16"}
"""Formats without tables of their own, and those whose constants they have: 8 bits are converted when they are read."""


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

    Raises
    ------
    UnknownPrecision
        If the device has no peak in the precision of the products.
    """
    kernel_format = KERNEL_FORMATS[name]
    peak_per_s = device.find_peak(products_precision(name)).per_s
    multiprocessors = float(device.cores.multiprocessors.value)
    rates = KernelRates(peak_per_s, device.bandwidth_bytes_per_s, multiprocessors, device_clock_hz(device))
    return rates, bytes_per_number(kernel_format.weights), bytes_per_number(kernel_format.activations)

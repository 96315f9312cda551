"""What a peak follows from: lanes or multiprocessors, operations per cycle, and a clock."""

from __future__ import annotations

from ..units import format_si
from .device import Device, Peak

TOLERANCE = 0.015
"""Relative deviation that rounding on data sheets explains."""

TENSOR_RATES = {
    "7.0": {"fp16": 1024},
    "7.2": {"fp16": 1024, "int8": 2048},
    "7.5": {"fp16": 1024, "int8": 2048},
    "8.0": {"fp64": 128, "tf32": 1024, "fp16": 2048, "bf16": 2048, "int8": 4096},
    "8.6": {"tf32": 512, "fp16": 1024, "bf16": 1024, "int8": 2048},
    "8.7": {"tf32": 1024, "fp16": 2048, "bf16": 2048, "int8": 4096},
    "8.9": {"tf32": 512, "fp16": 1024, "bf16": 1024, "fp8": 2048, "int8": 2048},
    "9.0": {"fp64": 256, "tf32": 2048, "fp16": 4096, "bf16": 4096, "fp8": 8192, "int8": 8192},
    "10.0": {"fp64": 128, "tf32": 4096, "fp16": 8192, "bf16": 8192, "fp8": 16384, "int8": 16384},
    "10.3": {"tf32": 4096, "fp16": 8192, "bf16": 8192, "fp8": 16384, "int8": 512},
    "12.0": {"tf32": 512, "fp16": 1024, "bf16": 1024, "fp8": 2048, "int8": 2048},
    "xe2": {"fp16": 2048, "bf16": 2048, "int8": 4096},
    "gfx908": {"fp32": 256, "fp16": 1024, "bf16": 512, "int8": 1024},
    "gfx90a": {"fp64": 256, "fp32": 256, "fp16": 1024, "bf16": 1024, "int8": 1024},
    "gfx942": {"fp64": 256, "fp32": 256, "tf32": 1024, "fp16": 2048, "bf16": 2048, "fp8": 4096, "int8": 4096},
    "gfx950": {"fp64": 128, "fp32": 256, "fp16": 4096, "bf16": 4096, "fp8": 8192, "int8": 8192},
}
"""Dense tensor FLOP per cycle and multiprocessor (a multiply-accumulate is 2), by compute capability or gfx target.

From NVIDIA's Volta to Blackwell and AMD's CDNA 1 to 4 architecture white papers. Of Jetson modules (7.2, 8.7), of the
B300's int8 and of Intel's Xe2 no paper was read: they follow from TOPS, multiprocessors and clocks of data sheets.
"""

GEFORCE_HALVES = {"7.5", "8.6", "8.9", "12.0"}
"""Capabilities whose GeForce cards run tensor cores at half rate when they sum in fp32 (Turing white paper onward)."""

VECTOR_RATIOS = (1 / 64, 1 / 32, 1 / 24, 1 / 16, 1 / 8, 1 / 4, 1 / 3, 1 / 2, 1, 2, 4)
"""Rates of the other precisions on vector units, relative to one fp32 multiply-accumulate per lane and cycle."""

PCIE_LANE_BYTES_PER_S = {
    generation: transfers * encoding / 8
    for generation, transfers, encoding in (
        (1, 2.5e9, 8 / 10), (2, 5e9, 8 / 10), (3, 8e9, 128 / 130), (4, 16e9, 128 / 130), (5, 32e9, 128 / 130),
    )
}  # fmt: skip
"""Bytes per second of one PCIe lane in one direction, by generation: transfers times encoding (PCI-SIG)."""


def peak_from_clock(device: Device, peak: Peak) -> tuple[float | None, str]:
    """What a peak should be: lanes or multiprocessors x operations per cycle x clock.

    A vector peak other than fp32 is compared with the nearest of `VECTOR_RATIOS`, since products differ in it.

    Parameters
    ----------
    device : Device
        With the clock that `peak` names.
    peak : Peak
        One of its peaks.

    Returns
    -------
    float or None
        FLOP/s (operations per second for int8); None where no rate is documented.
    str
        The formula in words, or what is missing.
    """
    clock = device.clock_hz(peak.clock)
    if clock is None:
        return None, f"its clock, {peak.clock}, is not listed"
    if peak.unit == "vector":
        lanes = int(device.cores.fp32_lanes.value)
        ratios = (1.0,) if peak.precision == "fp32" else VECTOR_RATIOS
        ratio = min(ratios, key=lambda ratio: abs(lanes * 2 * clock * ratio - peak.per_s))
        share = "" if ratio == 1 else f" x {ratio:.3g}"
        return lanes * 2 * clock * ratio, f"{lanes} lanes x 2 x {format_si(clock, 'Hz')}{share}"
    per_cycle = TENSOR_RATES.get(device.capability, {}).get(peak.precision)
    if per_cycle is None:
        return None, f"no tensor rate of {device.capability or device.architecture} for {peak.precision} is documented"
    if _halved(device, peak):
        per_cycle //= 2
    count = int(device.cores.multiprocessors.value)
    return count * per_cycle * clock, f"{count} multiprocessors x {per_cycle} x {format_si(clock, 'Hz')}"


def close(value: float, expected: float) -> bool:
    """Whether two figures agree within `TOLERANCE`."""
    return abs(value - expected) <= TOLERANCE * abs(expected)


def _halved(device: Device, peak: Peak) -> bool:
    sums_in_fp32 = peak.precision in ("tf32", "bf16") or peak.accumulate == "fp32"
    return sums_in_fp32 and device.capability in GEFORCE_HALVES and "GeForce" in device.name

"""Description of this machine as a hardware file, from the figures that the system reports and the timed probes."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..counting import count
from ..errors import CalibrationFailed
from ..text import format_plural, slug
from ..units import format_si
from .running import Probed, Setup

SOURCE = "measured by paleo-lite measure"

LANES_OF_CAPABILITY = {
    "3": 192, "5": 128, "6.0": 64, "6": 128, "7": 64, "8.0": 64, "8": 128, "9": 128, "10": 128, "12": 128,
}  # fmt: skip
"""fp32 lanes of a multiprocessor by compute capability (NVIDIA, CUDA C++ Programming Guide, compute capabilities)."""

VECTOR_LANES = {"AVX512": 16, "AVX2": 8, "DEFAULT": 4}
"""fp32 lanes of one vector unit by the instruction set that torch uses; current CPUs have at least 128 bits."""

TENSOR_SINCE = {"fp16": 7.0, "bf16": 8.0, "tf32": 8.0}
"""First compute capability with tensor cores for a precision."""


class System(msgspec.Struct, frozen=True):
    """Properties that the operating system or the driver reports."""

    name: str
    vendor: str
    architecture: str
    # CPU threads that torch uses, or GPU multiprocessors; and the total number of their fp32 lanes.
    multiprocessors: int
    lanes: int
    lanes_note: str  # how the number of lanes was determined
    memory_bytes: int
    clock_hz: float | None
    capability: str = ""  # compute capability of a GPU; empty for a CPU


def describe(setup: Setup) -> System:
    """Return the properties of the machine that a setup runs on."""
    if setup.device == "cuda":
        return _describe_gpu(setup)
    return _describe_cpu(setup)


def _describe_cpu(setup: Setup) -> System:
    if not hasattr(os, "sysconf"):
        raise CalibrationFailed("this system does not report its memory size: give `--gpu` with the name of a device")
    info = _read_cpuinfo()
    instructions = str(setup.torch.backends.cpu.get_cpu_capability())
    lanes = VECTOR_LANES.get(instructions, VECTOR_LANES["DEFAULT"])
    name = info.get("model name") or platform.processor() or platform.machine()
    vendor = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}.get(info.get("vendor_id", ""), "unknown")
    mhz = info.get("cpu MHz", "")
    return System(
        name=_shorten_processor_name(name),
        vendor=vendor,
        architecture=platform.machine(),
        multiprocessors=setup.threads,
        lanes=setup.threads * lanes,
        lanes_note=f"{format_plural(setup.threads, 'thread')} x {lanes}: one {instructions} unit per thread assumed",
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        clock_hz=float(mhz) * 1e6 if mhz else None,
    )


def _shorten_processor_name(name: str) -> str:
    """Return a processor's name without trademark signs, the word CPU and its clock: ``Intel Xeon Gold 6130``."""
    without_signs = re.sub(r"\((R|TM|tm)\)|CPU|@.*", " ", name)
    return " ".join(without_signs.split())


def _read_cpuinfo() -> dict[str, str]:
    """Return the fields of the first processor in ``/proc/cpuinfo``; empty if the file does not exist."""
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return {}
    first = path.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _describe_gpu(setup: Setup) -> System:
    properties = setup.torch.cuda.get_device_properties(setup.torch.cuda.current_device())
    capability = f"{properties.major}.{properties.minor}"
    lanes = LANES_OF_CAPABILITY.get(capability, LANES_OF_CAPABILITY.get(str(properties.major)))
    note = f"{lanes} per multiprocessor of compute capability {capability}"
    if lanes is None:
        lanes, note = 128, f"128 per multiprocessor assumed: compute capability {capability} is unknown"
    multiprocessors = properties.multi_processor_count
    khz = getattr(properties, "clock_rate", None)
    return System(
        name=properties.name,
        vendor="NVIDIA",
        architecture=f"compute capability {capability}",
        multiprocessors=multiprocessors,
        lanes=lanes * multiprocessors,
        lanes_note=note,
        memory_bytes=properties.total_memory,
        clock_hz=khz * 1e3 if khz else _clock_from_driver(),
        capability=capability,
    )


def _clock_from_driver() -> float:
    """Return the maximum clock of the multiprocessors in Hz."""
    try:
        (clock,) = _query_driver("clocks.max.sm")
        return float(clock) * 1e6
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise CalibrationFailed(
            f"the clock of this GPU is unavailable (nvidia-smi: {type(error).__name__}): give `--gpu` with its name"
        ) from None


def _query_driver(fields: str) -> list[str]:
    """Return the values of some ``nvidia-smi`` fields for the first GPU."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "--id=0"]
    output = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    return [value.strip() for value in output.split(",")]


THROTTLE_REASONS = {
    0x4: "its power limit", 0x8: "a hardware slowdown", 0x20: "its temperature", 0x40: "its temperature",
    0x80: "the power supply's brake",
}  # fmt: skip
"""Reasons for reduced clocks, by bit (NVIDIA, NVML API reference, nvmlClocksEventReasons)."""

MIN_CLOCK_FRACTION = 0.97
"""Fraction of the maximum clock below which a GPU counts as throttled."""

BUSY_S = 1.0
"""Seconds for which the device is kept busy while its clocks are queried; longer than ``nvidia-smi`` takes."""


def describe_throttling(setup: Setup) -> str:
    """Return a note if the clocks of a GPU are reduced under load; empty if they are not, or are unknown.

    ``nvidia-smi`` is run while queued matrix products keep the device busy.
    """
    if setup.device != "cuda":
        return ""
    numbers = setup.images(4096, 4096)
    once_s = setup.clock.seconds(lambda: numbers @ numbers, 3) / 3
    for _ in range(min(max(int(BUSY_S / once_s), 1), 10_000)):
        numbers @ numbers  # queued without waiting for the result
    try:
        clock_mhz, maximum_mhz, reasons = _query_driver("clocks.sm,clocks.max.sm,clocks_throttle_reasons.active")
        clock_fraction = float(clock_mhz) / float(maximum_mhz)
        reason_bits = int(reasons, 16)
    except (OSError, subprocess.SubprocessError, ValueError):
        return ""  # no NVIDIA driver, or one that does not report these fields
    finally:
        setup.torch.cuda.synchronize()
    if clock_fraction >= MIN_CLOCK_FRACTION:
        return ""
    causes = sorted({text for bit, text in THROTTLE_REASONS.items() if reason_bits & bit})
    because = f", limited by {' and '.join(causes)}" if causes else ""
    return f"under load the GPU ran at {clock_mhz} of {maximum_mhz} MHz{because}: times refer to this clock"


def make_device_id(machine: System, threads: int | None = None) -> str:
    """Return a device id from the name of a machine, such as ``measured-amd-epyc-2-threads``."""
    name = slug(machine.name) or "machine"
    if not threads:
        return f"measured-{name}"
    suffix = format_plural(threads, "thread").replace(" ", "-")
    return f"measured-{name}-{suffix}"


def describe_other_load() -> str:
    """Return a note if other processes load this machine; empty if they do not, or the load is unknown.

    A step with threads that wait for each other takes many times as long if one of them has to share its core.
    """
    if not hasattr(os, "getloadavg"):
        return ""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < cores / 2:
        return ""
    return f"other processes were running before the measurement: load of {load:.1f} on {cores} cores"


def peak_per_s(probed: Sequence[Probed], precision: str) -> float:
    """Return the FLOP/s of the fastest matrix product or 1x1 convolution; a multiply-accumulate counts as 2.

    Libraries for convolutions and for matrix products differ by up to a factor of 2 on some CPUs. The faster one shows
    the peak of the machine.
    """
    return max(_rate(measured, precision, "flops") for measured in probed if measured.probe.is_product)


def bandwidth_bytes_per_s(probed: Sequence[Probed], precision: str) -> float:
    """Return the bytes that the fastest stream reads and writes per second."""
    return max(_rate(measured, precision, "bytes") for measured in probed if measured.probe.purpose == "stream")


def launch_s(probed: Sequence[Probed]) -> float:
    """Return the seconds of the shortest operation."""
    return min(measured.timing.median_s for measured in probed if measured.probe.purpose == "launch")


def _rate(measured: Probed, precision: str, column: str) -> float:
    work = count([measured.probe.layer], precision).column(column, "inference", measured.probe.batch_size)
    return float(work.sum()) / measured.timing.median_s


def hardware_fields(
    machine: System,  # what the system reports about it
    device_id: str,
    peaks_flops_per_s: dict[str, float],  # measured peaks by precision
    stream_bytes_per_s: float,  # measured bandwidth of the memory
    year: int,  # of the measurement; it replaces the year of manufacture, which no system reports
    scope: str,  # of the device: "cpu" or "die"
    software: str,  # of the measurement
) -> dict[str, Any]:
    """Return the contents of a hardware file for the machine."""

    def figure(value: str, note: str) -> dict[str, str]:
        return {"value": value, "source": "measured", "note": note}

    clock = "base" if scope == "cpu" else "boost"
    multiprocessor_note = "threads that torch uses" if scope == "cpu" else "as the driver reports"
    clocks: dict[str, Any] = {"default": clock}
    if machine.clock_hz is not None:
        clocks[clock] = figure(format_si(machine.clock_hz, "Hz"), "as the system reports")
    tensor = {
        precision: bool(machine.capability) and float(machine.capability) >= since
        for precision, since in TENSOR_SINCE.items()
    }
    return {
        "id": device_id,
        "name": f"{machine.name} ({software})",
        "vendor": machine.vendor,
        "architecture": machine.architecture,
        "chip": machine.name,
        "scope": scope,
        "year": year,
        "capability": machine.capability,
        "sources": {"measured": f"{SOURCE}, {software}"},
        "cores": {
            "multiprocessors": figure(str(machine.multiprocessors), multiprocessor_note),
            "fp32_lanes": figure(str(machine.lanes), machine.lanes_note),
        },
        "clocks": clocks,
        "memory": {
            "type": "unknown",
            "capacity": figure(format_si(machine.memory_bytes, "B"), "as the system reports"),
            "bandwidth": figure(format_si(stream_bytes_per_s, "B/s"), "the fastest stream, read and written"),
        },
        "peaks": [
            {
                "precision": precision,
                "unit": "tensor" if tensor.get(precision) else "vector",
                "clock": clock,
                "value": format_si(rate, "FLOP/s"),
                "source": "measured",
                "note": "the fastest matrix product",
                "audit_exception": "measured, not from the data sheet",
            }
            for precision, rate in peaks_flops_per_s.items()
        ],
    }

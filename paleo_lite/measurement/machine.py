"""Description of this machine: figures from the operating system and the driver, and rates from probes."""

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
from ..units import format_si
from .running import Probed, Setup

SOURCE = "measured by paleo-lite measure"

LANES_OF_CAPABILITY = {
    "3": 192, "5": 128, "6.0": 64, "6": 128, "7": 64, "8.0": 64, "8": 128, "9": 128, "10": 128, "12": 128,
}  # fmt: skip
"""fp32 lanes of a multiprocessor by compute capability (NVIDIA, CUDA C++ Programming Guide, compute capabilities)."""

VECTOR_LANES = {"AVX512": 16, "AVX2": 8, "DEFAULT": 4}
"""fp32 lanes of one vector unit by the instruction set that torch uses; 128 bit is the least that a CPU today has."""

TENSOR_SINCE = {"fp16": 7.0, "bf16": 8.0, "tf32": 8.0}
"""Compute capability that brought tensor cores for a precision."""


class System(msgspec.Struct, frozen=True):
    """Properties that the system reports.

    Attributes
    ----------
    multiprocessors, lanes : int
        CPU threads that torch uses or GPU multiprocessors, and fp32 lanes over all of them.
    lanes_note : str
        How the number of lanes was determined.
    capability : str
        Compute capability of a GPU.
    """

    name: str
    vendor: str
    architecture: str
    multiprocessors: int
    lanes: int
    lanes_note: str
    memory_bytes: int
    clock_hz: float | None
    capability: str = ""


def describe(setup: Setup) -> System:
    """Return the properties of the machine that a setup runs on."""
    return _gpu(setup) if setup.device == "cuda" else _cpu(setup)


def _cpu(setup: Setup) -> System:
    if not hasattr(os, "sysconf"):
        raise CalibrationFailed("this system does not report its memory: name a hardware file's device with --gpu")
    info = _cpuinfo()
    instructions = str(setup.torch.backends.cpu.get_cpu_capability())
    lanes = VECTOR_LANES.get(instructions, VECTOR_LANES["DEFAULT"])
    name = info.get("model name") or platform.processor() or platform.machine()
    vendor = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}.get(info.get("vendor_id", ""), "unknown")
    mhz = info.get("cpu MHz", "")
    return System(
        name=" ".join(re.sub(r"\((R|TM|tm)\)|CPU|@.*", " ", name).split()),
        vendor=vendor,
        architecture=platform.machine(),
        multiprocessors=setup.threads,
        lanes=setup.threads * lanes,
        lanes_note=f"{_threads(setup.threads)} x {lanes}: one {instructions} unit each, there may be more",
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        clock_hz=float(mhz) * 1e6 if mhz else None,
    )


def _cpuinfo() -> dict[str, str]:
    """Return the fields of the first processor in ``/proc/cpuinfo``, or an empty dict if there is no such file."""
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return {}
    first = path.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _gpu(setup: Setup) -> System:
    properties = setup.torch.cuda.get_device_properties(setup.torch.cuda.current_device())
    capability = f"{properties.major}.{properties.minor}"
    lanes = LANES_OF_CAPABILITY.get(capability, LANES_OF_CAPABILITY.get(str(properties.major)))
    note = f"{lanes} per multiprocessor of compute capability {capability}"
    if lanes is None:
        lanes, note = 128, f"128 per multiprocessor assumed: compute capability {capability} is unknown"
    count_ = properties.multi_processor_count
    khz = getattr(properties, "clock_rate", None)
    return System(
        name=properties.name,
        vendor="NVIDIA",
        architecture=f"compute capability {capability}",
        multiprocessors=count_,
        lanes=lanes * count_,
        lanes_note=note,
        memory_bytes=properties.total_memory,
        clock_hz=khz * 1e3 if khz else _clock_from_driver(),
        capability=capability,
    )


def _clock_from_driver() -> float:
    """Return the highest clock of the multiprocessors according to the driver."""
    try:
        (clock,) = _ask_driver("clocks.max.sm")
        return float(clock) * 1e6
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise CalibrationFailed(
            f"this GPU's clock is unavailable (nvidia-smi: {type(error).__name__}): name its hardware file with --gpu"
        ) from None


def _ask_driver(fields: str) -> list[str]:
    """Return the answer of ``nvidia-smi`` about the first GPU."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "--id=0"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    return [word.strip() for word in answer.split(",")]


HELD_BACK = {
    0x4: "its power limit", 0x8: "a slowdown of the hardware", 0x20: "its temperature", 0x40: "its temperature",
    0x80: "the power supply's brake",
}  # fmt: skip
"""Why clocks are held back, by bit (NVIDIA, NVML API reference, nvmlClocksEventReasons)."""

SLOWER = 0.97
"""Share of the highest clock below which a GPU is said to run more slowly."""


def held_back(setup: Setup) -> str:
    """Return a note if the clocks of the GPU are reduced under load; empty if they are not, or if it is unknown.

    The driver is queried while queued matrix products keep the device busy.
    """
    if setup.device != "cuda":
        return ""
    numbers = setup.images(4096, 4096)
    once_s = setup.clock.seconds(lambda: numbers @ numbers, 3) / 3
    for _ in range(min(max(int(BUSY_S / once_s), 1), 10_000)):
        numbers @ numbers  # queued, not waited for
    try:
        now, most, reasons = _ask_driver("clocks.sm,clocks.max.sm,clocks_throttle_reasons.active")
        share, bits = float(now) / float(most), int(reasons, 16)
    except (OSError, subprocess.SubprocessError, ValueError):
        return ""  # not NVIDIA's, or a driver that does not say
    finally:
        setup.torch.cuda.synchronize()
    if share >= SLOWER:
        return ""
    why = sorted({text for bit, text in HELD_BACK.items() if bits & bit})
    reasons = f", held back by {' and '.join(why)}" if why else ""
    return f"under load the GPU ran at {now} of {most} MHz{reasons}: times are those of that clock"


BUSY_S = 1.0
"""How long the device is kept busy meanwhile: longer than the command takes."""


def identity(machine: System, threads: int | None = None) -> str:
    """Return a device id from the name of a machine, such as ``measured-amd-epyc-2-threads``."""
    name = re.sub(r"[^a-z0-9]+", "-", machine.name.lower()).strip("-") or "machine"
    return f"measured-{name}" + (f"-{_threads(threads).replace(' ', '-')}" if threads else "")


def _threads(number: int) -> str:
    return "1 thread" if number == 1 else f"{number} threads"


def other_work() -> str:
    """Return a note if other programs use the machine; empty if none do, or if it is unknown.

    If threads of a step wait for each other, sharing one core with another program slows down the whole step.
    """
    if not hasattr(os, "getloadavg"):
        return ""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < cores / 2:
        return ""
    return f"other work was running before this began: a load of {load:.1f} on {cores} cores; times may be too long"


def peak_per_s(probed: Sequence[Probed], precision: str) -> float:
    """Return the FLOP/s of the fastest matrix product, with 2 FLOPs per multiply-accumulate.

    Libraries for convolutions and for matrix products differ, on some CPUs by a factor of 2; the faster one determines
    the peak.
    """
    return max(_rate(measured, precision, "flops") for measured in probed if measured.probe.is_product)


def bandwidth_bytes_per_s(probed: Sequence[Probed], precision: str) -> float:
    """Return the bytes read and written per second by the fastest stream."""
    return max(_rate(measured, precision, "bytes") for measured in probed if measured.probe.purpose == "stream")


def launch_s(probed: Sequence[Probed]) -> float:
    """Return the seconds of the shortest operation."""
    return min(measured.timing.median_s for measured in probed if measured.probe.purpose == "launch")


def _rate(measured: Probed, precision: str, column: str) -> float:
    work = count([measured.probe.layer], precision).column(column, "inference", measured.probe.batch_size)
    return float(work.sum()) / measured.timing.median_s


def hardware(
    machine: System, name: str, peaks: dict[str, float], bandwidth: float, year: int, scope: str, software: str
) -> dict[str, Any]:
    """Return the machine as the content of a hardware file.

    Parameters
    ----------
    name : str
        The device's id.
    peaks : dict of str to float
        FLOP/s by precision.
    bandwidth : float
        Bytes per second.
    year : int
        Year of the measurement, instead of the year of release, which systems do not report.
    scope : {"cpu", "die"}
        The scope.
    software : str
        Software of the measurement.
    """

    def figure(value: str, note: str) -> dict[str, str]:
        return {"value": value, "source": "measured", "note": note}

    clock = "base" if scope == "cpu" else "boost"
    counted = "threads that torch uses" if scope == "cpu" else "as the driver reports"
    clocks: dict[str, Any] = {"default": clock}
    if machine.clock_hz is not None:
        clocks[clock] = figure(format_si(machine.clock_hz, "Hz"), "as the system reports")
    tensor = {
        precision: bool(machine.capability) and float(machine.capability) >= since
        for precision, since in TENSOR_SINCE.items()
    }
    return {
        "id": name,
        "name": f"{machine.name} ({software})",
        "vendor": machine.vendor,
        "architecture": machine.architecture,
        "chip": machine.name,
        "scope": scope,
        "year": year,
        "capability": machine.capability,
        "sources": {"measured": f"{SOURCE}, {software}"},
        "cores": {
            "multiprocessors": figure(str(machine.multiprocessors), counted),
            "fp32_lanes": figure(str(machine.lanes), machine.lanes_note),
        },
        "clocks": clocks,
        "memory": {
            "type": "unknown",
            "capacity": figure(format_si(machine.memory_bytes, "B"), "as the system reports"),
            "bandwidth": figure(format_si(bandwidth, "B/s"), "the fastest stream, read and written"),
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
            for precision, rate in peaks.items()
        ],
    }

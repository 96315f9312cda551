"""How the hardware counters of kernels are measured on the devices of each vendor."""

from __future__ import annotations

from ..errors import BadValue
from ..machines import Device
from .recorded_device import MissingDevice

NVIDIA = "NVIDIA"

COUNTERS = {
    NVIDIA: "--next-command prints the command that measures them",
    "AMD": "`rocprof-compute profile --name run -- python train.py` measures them",
    "Huawei": "`msprof --ai-core=on --aic-metrics=PipeUtilization python train.py` measures them",
    "Intel": "`vtune -collect gpu-hotspots -- python train.py` measures them",
}
"""Clause about the counters of a vendor's devices."""

_VENDORS = {
    "ascend": "Huawei",
    "rocprof": "AMD",
    "rocpd": "AMD",
    "unitrace": "Intel",
    "vtune": "Intel",
    "xla": "Google",
}
"""Vendor whose devices a profiler measures, by the first letters of its formats; NVIDIA for all others."""


def vendor_of(device: Device | MissingDevice, profile_format: str) -> str:
    """Return the vendor of the device of a profile, by its profiler where the device is not known."""
    if isinstance(device, Device):
        return device.vendor
    return next((vendor for start, vendor in _VENDORS.items() if profile_format.startswith(start)), NVIDIA)


def how_to_measure(vendor: str) -> str:
    """Return a clause about the counters of the devices of a vendor."""
    return COUNTERS.get(vendor, f"{vendor}'s own profiler measures them")


def check_profiler(tool: str, vendor: str) -> None:
    """Raise BadValue if a profiler does not measure the vendor's devices."""
    if vendor != NVIDIA:
        raise BadValue(
            f"`--next-command {tool}` is for NVIDIA's devices, and the profile is of one of {vendor}'s: of its "
            f"counters, {how_to_measure(vendor)}"
        )

"""Floor 3: where it runs."""

from .device import Device, Figure, Link, Links, Peak, PeakRate
from .registry import find_device, list_devices, read_device, read_links

__all__ = [
    "Device",
    "Figure",
    "Link",
    "Links",
    "Peak",
    "PeakRate",
    "find_device",
    "list_devices",
    "read_device",
    "read_links",
]

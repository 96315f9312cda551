"""Floor 3: where it runs."""

from .device import Device, Figure, Link, Links, Peak, PeakRate, Price
from .machine import Machine
from .registry import find_device, list_devices, read_device, read_links

__all__ = [
    "Device",
    "Figure",
    "Link",
    "Links",
    "Machine",
    "Peak",
    "PeakRate",
    "Price",
    "find_device",
    "list_devices",
    "read_device",
    "read_links",
]

"""Devices, links and machines (floor 3)."""

from .device import Device, Figure, Link, LinkRegistry, Peak, PeakRate, Price
from .registry import Machine, find_device, list_devices, read_device, read_links

__all__ = [
    "Device",
    "Figure",
    "Link",
    "LinkRegistry",
    "Machine",
    "Peak",
    "PeakRate",
    "Price",
    "find_device",
    "list_devices",
    "read_device",
    "read_links",
]

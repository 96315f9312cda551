"""Devices, links and machines (floor 3)."""

from .device import Device, Link, LinkRegistry, Peak, PeakRate, Price, SourcedFigure
from .registry import Machine, find_device, list_devices, read_device, read_links

__all__ = [
    "Device",
    "Link",
    "LinkRegistry",
    "Machine",
    "Peak",
    "PeakRate",
    "Price",
    "SourcedFigure",
    "find_device",
    "list_devices",
    "read_device",
    "read_links",
]

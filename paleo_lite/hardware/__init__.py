"""Floor 3: where it runs."""

import sys

import paleo_lite

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

sys.modules[__name__].__class__ = paleo_lite.Room  # called, it is the command of its name

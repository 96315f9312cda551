"""Devices that fits of others do not cover; apart from `pool` and small, since every prediction asks."""

from __future__ import annotations

from ..hardware import Device

VENDORS = ("NVIDIA", "AMD")
"""All fits are of their GPUs, each with its own libraries."""


def why_not_pooled(device: Device) -> str:
    """Why no fit of another device covers this one; empty where some may."""
    if device.parts is not None:
        return f"only single devices were measured, {device.id} is a {device.scope} of {device.parts.count}"
    if device.vendor not in VENDORS:
        return f"only GPUs of {' and '.join(VENDORS)} were measured"
    return ""

"""Memory of one's own machine: what a device may use, what a network takes, and the largest context that fits."""

from __future__ import annotations

from ..machines import Device
from .contents import MOST_CONTEXT, Contents
from .step import UBATCH

SHARED = "shared with the CPU"
"""Type of a memory of device and processor together, in the records of devices."""

CONTEXT_STEP = 256
"""Step of the largest context."""

RESERVED_BYTES = 0.5e9
"""Memory that llama.cpp's context takes of what the driver reports. Where nothing else runs, llama.cpp prints 23,633 to
23,982 MiB free on an RTX 3090 or 4090, and 31,518 to 31,600 on an RTX 5090."""

UNIFIED_SHARES = {"Apple": 0.75}
"""Share of a memory that CPU and GPU share which the GPU may use: Metal's recommended working set of 48 GB and more
(two thirds below)."""

MOST_GRAPHICS_SHARE, USUAL_GRAPHICS_SHARE = 124 / 128, 0.5
"""Share of the memory of AMD's systems on a chip that Linux maps for the graphics: at most, as people set
``ttm.pages_limit`` on 128 GB, and by default (https://rocm.docs.amd.com, System optimization, Strix Halo)."""


def binary_bytes(stated_bytes: float) -> float:
    """Return the bytes of a memory of a computer, which is sold in binary gigabytes that data sheets call GB."""
    return stated_bytes / 1e9 * 2**30


def shared_bytes(device: Device, memory_bytes: float | None) -> float:
    """Return the memory that a device and the processor that shares it may take together.

    `memory_bytes` is that of this specimen, if it is not the memory on record.
    """
    stated = memory_bytes or device.memory_bytes
    if device.memory.reported is None:
        return binary_bytes(stated) - RESERVED_BYTES
    return device.reported_memory_bytes * stated / device.memory_bytes - RESERVED_BYTES


def usable_bytes(device: Device, memory_bytes: float | None = None) -> float:
    """Return the memory of a device that weights, cache and buffers may take.

    `memory_bytes` is that of this specimen, if it is not the memory on record. Metal recommends two thirds of a memory
    up to 36 GB (gibibytes, as data sheets have them), and three quarters of a larger one.
    """
    stated = memory_bytes or device.memory_bytes
    if device.vendor in UNIFIED_SHARES:
        binary = binary_bytes(stated)
        return binary * (UNIFIED_SHARES[device.vendor] if binary > 36 * 2**30 else 2 / 3)
    if maps_host_memory(device):
        return binary_bytes(stated) * MOST_GRAPHICS_SHARE - RESERVED_BYTES
    return device.reported_memory_bytes * stated / device.memory_bytes - RESERVED_BYTES


def maps_host_memory(device: Device) -> bool:
    """Return whether a limit of Linux says how much of the memory of the host the graphics of a chip may use."""
    return device.vendor == "AMD" and device.scope == "module" and SHARED in device.memory.type


def shares_memory(device: Device) -> bool:
    """Return whether a device and its host share one memory, and the host has no other; a processor is its own host."""
    return device.scope == "cpu" or SHARED in device.memory.type


def most_host_bytes(cpu: Device) -> float:
    """Return the memory that a processor usually takes at most, which is sold in binary gigabytes."""
    return binary_bytes(cpu.memory_bytes)


def whole_bytes(contents: Contents, context: int) -> float:
    """Return the bytes that a device needs for everything: weights without the table, cache and buffers."""
    weight_bytes = sum(piece.resident_bytes for piece in contents.pieces if piece.rows != "none")
    return weight_bytes + contents.cache_bytes(context) + buffer_bytes_of(contents)


def buffer_bytes_of(contents: Contents) -> float:
    """Return the bytes of buffers: the logits of a batch in 32 bits."""
    return UBATCH * 4.0 * contents.vocabulary


def largest_context(contents: Contents, share: float, free_bytes: float) -> int:
    """Return the largest context whose cache fits into some bytes, in steps of 256 tokens, that the network knows."""
    limit = contents.positions or MOST_CONTEXT
    if contents.cache_bytes(limit) * share <= free_bytes:
        return limit
    low, high = 0, limit
    while high - low > CONTEXT_STEP:
        middle = (low + high) // 2
        if contents.cache_bytes(middle) * share <= free_bytes:
            low = middle
        else:
            high = middle
    return low // CONTEXT_STEP * CONTEXT_STEP

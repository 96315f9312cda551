"""Whether a network fits into a device's memory, the largest batch that does, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ..counting import Layer, Work
from ..errors import UnknownPrecision
from ..hardware import Device
from .memory import RESERVE_BYTES, Memory, largest_batch, memory_of
from .options import TrainingOptions

SHARDS = 8
"""Devices that the ZeRO remedies are reckoned with: a node of eight."""


class Remedy(msgspec.Struct, frozen=True):
    """Something that makes the same step need less memory.

    Attributes
    ----------
    name : str
    total_bytes : int
        Peak memory with it, at the batch that was asked for.
    fits : bool
    largest_batch : int or None
        The largest batch that fits with it.
    """

    name: str
    total_bytes: int
    fits: bool
    largest_batch: int | None


class MemoryFit(msgspec.Struct, frozen=True):
    """Peak memory held against a device.

    Attributes
    ----------
    memory : Memory
        What is needed.
    capacity_bytes : float
        What the device has.
    reserve_bytes : float
        What is left free of it.
    largest_batch : int or None
        The largest batch that fits; None where not even one sample does.
    optimizer : str or None
        Which the optimizer's part is of; None where nothing is trained.
    remedies : tuple of Remedy
        What would help, most first; empty where it fits.
    """

    memory: Memory
    capacity_bytes: float
    reserve_bytes: float
    largest_batch: int | None
    optimizer: str | None = None
    remedies: tuple[Remedy, ...] = ()

    @property
    def usable_bytes(self) -> float:
        """What may be used: all but the reserve."""
        return self.capacity_bytes - self.reserve_bytes

    @property
    def fits(self) -> bool:
        """Whether it does."""
        return self.memory.total_bytes <= self.usable_bytes

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON."""
        return {
            **self.memory.to_dict(),
            "optimizer": self.optimizer,
            "capacity_bytes": self.capacity_bytes,
            "reserve_bytes": self.reserve_bytes,
            "fits": self.fits,
            "largest_batch": self.largest_batch,
            "remedies": [msgspec.structs.asdict(remedy) for remedy in self.remedies],
        }


def fit_memory(
    layers: Sequence[Layer],
    work: Work,
    device: Device,
    precision: str,
    batch_size: int,
    phase: str,
    options: TrainingOptions | None = None,
) -> MemoryFit:
    """Hold a network's peak memory against a device's.

    Parameters
    ----------
    layers : sequence of Layer
    work : Work
        Counted from these layers.
    device : Device
    precision : str
    batch_size : int
    phase : str
    options : TrainingOptions, optional
    """
    options = options or TrainingOptions()
    memory = memory_of(layers, work, precision, batch_size, phase, options)
    usable = device.memory_bytes - RESERVE_BYTES
    largest = largest_batch(layers, work, precision, phase, options, memory_bytes=usable)
    training = phase not in ("inference", "forward")
    found = MemoryFit(memory, device.memory_bytes, RESERVE_BYTES, largest, options.optimizer if training else None)
    if found.fits:
        return found
    remedies = []
    for name, changed, number, stage in _remedies(device, precision, batch_size, options, training, largest):
        shards = SHARDS if stage else 1
        total = memory_of(layers, work, number, batch_size, phase, changed, zero_stage=stage, shards=shards).total_bytes
        most = largest_batch(layers, work, number, phase, changed, memory_bytes=usable, zero_stage=stage, shards=shards)
        if total < memory.total_bytes:
            remedies.append(Remedy(name, total, total <= usable, most))
    remedies.sort(key=lambda remedy: remedy.total_bytes)
    return msgspec.structs.replace(found, remedies=tuple(remedies))


def _remedies(
    device: Device, precision: str, batch_size: int, options: TrainingOptions, training: bool, largest: int | None
) -> Iterator[tuple[str, TrainingOptions, str, int]]:
    """What could be tried: its name, and options, precision and ZeRO stage with it."""
    replace = msgspec.structs.replace
    narrow = _narrower(device, precision)
    if not training:
        if narrow:
            yield f"{narrow} numbers", options, narrow, 0
        return
    if options.checkpointing == "none":
        yield "checkpointing, about sqrt(n) segments", replace(options, checkpointing="sqrt"), precision, 0
    if options.checkpointing != "all":
        yield "checkpointing, every block", replace(options, checkpointing="all"), precision, 0
    if narrow:
        yield f"mixed precision in {narrow}", replace(options, mixed_precision=True), narrow, 0
    micro = next((size for size in range(largest or 0, 0, -1) if batch_size % size == 0), None)
    if micro and batch_size // micro > options.accumulation:
        parts = batch_size // micro
        yield f"accumulation, {parts} micro-batches of {micro}", replace(options, accumulation=parts), precision, 0
    for stage in (1, 2, 3):
        yield f"ZeRO stage {stage} on {SHARDS} devices", options, precision, stage


def _narrower(device: Device, precision: str) -> str | None:
    """The precision of 16 bits that the device computes in, where the network's is wider."""
    if precision not in ("fp64", "fp32", "tf32"):
        return None
    for name in ("bf16", "fp16"):
        try:
            device.find_peak(name)
        except UnknownPrecision:
            continue
        return name
    return None

"""Whether a network fits into a device's memory, the largest batch that does, and what would help."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ..counting.work import WITH_GRADIENTS
from ..errors import BadValue, DoesNotFit, UnknownPrecision
from ..hardware import Device, Machine
from ..units import format_si
from .memory import RESERVE_BYTES, Memory, largest_batch, memory_of, usable_bytes
from .models import TimeModel
from .prediction import Prediction, predict
from .workload import Workload

SHARDS = 8
"""Devices that the ZeRO remedies are reckoned with: a node of eight."""


class MemoryRemedy(msgspec.Struct, frozen=True):
    """Something that makes the same step need less memory.

    Attributes
    ----------
    total_bytes : int
        Peak memory with it, at the batch that was asked for.
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
    remedies : tuple of MemoryRemedy
        What would help, most first; empty where it fits.
    """

    memory: Memory
    capacity_bytes: float
    reserve_bytes: float
    largest_batch: int | None
    optimizer: str | None = None
    remedies: tuple[MemoryRemedy, ...] = ()

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


def predict_with_memory(
    workload: Workload, machine: Machine, model: TimeModel, *, fit_batch: bool = False
) -> Prediction:
    """A prediction that also says what memory it takes, and whether that fits.

    Parameters
    ----------
    fit_batch : bool
        Look for the largest batch that fits, in place of the workload's.

    Raises
    ------
    DoesNotFit
        If the largest batch was asked for and not even one sample fits.
    """
    if not workload.has_layers:
        raise BadValue("memory and training options need the layers of a network, not a bare FLOP count")
    if fit_batch:
        workload = workload.but(batch_size=workload.options.accumulation)
        fit = fit_memory(workload, machine.device)
        if fit.largest_batch is None:
            raise DoesNotFit(_too_large(workload, machine, fit))
        workload = workload.but(batch_size=fit.largest_batch)
    return msgspec.structs.replace(predict(workload, machine, model), memory=fit_memory(workload, machine.device))


def _too_large(workload: Workload, machine: Machine, fit: MemoryFit) -> str:
    least = "one sample" if workload.options.accumulation == 1 else "one sample per micro-batch"
    text = f"{workload.network.name} in {workload.precision} does not fit on {machine.device.name}: {least} needs "
    text += f"{format_si(fit.memory.total_bytes, 'B')} of {format_si(fit.usable_bytes, 'B')} "
    text += f"({format_si(fit.capacity_bytes, 'B')} less {format_si(fit.reserve_bytes, 'B')} of reserve)"
    helps = [remedy for remedy in fit.remedies if remedy.fits]
    if not helps:
        return f"{text}; no single remedy makes it fit"
    named = "; ".join(f"{remedy.name} ({format_si(remedy.total_bytes, 'B')})" for remedy in helps)
    return f"{text}; what would make it fit: {named}"


def fit_memory(workload: Workload, device: Device) -> MemoryFit:
    """Hold a workload's peak memory against a device's."""
    memory = memory_of(workload)
    usable = usable_bytes(device)
    largest = largest_batch(workload, memory_bytes=usable)
    training = workload.phase in WITH_GRADIENTS
    optimizer = workload.options.optimizer if training else None
    fit = MemoryFit(memory, device.memory_bytes, RESERVE_BYTES, largest, optimizer)
    if fit.fits:
        return fit
    remedies = []
    for name, changed, stage in _remedies(workload, device, training, largest):
        shards = SHARDS if stage else 1
        total = memory_of(changed, zero_stage=stage, shards=shards).total_bytes
        most = largest_batch(changed, memory_bytes=usable, zero_stage=stage, shards=shards)
        if total < memory.total_bytes:
            remedies.append(MemoryRemedy(name, total, total <= usable, most))
    remedies.sort(key=lambda remedy: remedy.total_bytes)
    return msgspec.structs.replace(fit, remedies=tuple(remedies))


def _remedies(
    workload: Workload, device: Device, training: bool, largest: int | None
) -> Iterator[tuple[str, Workload, int]]:
    """What could be tried: its name, the workload with it, and its stage of ZeRO."""
    options, batch_size = workload.options, workload.batch_size
    narrow = _narrower(device, workload.precision)

    def trained(**changes: Any) -> Workload:
        return workload.but(phase="training", training=msgspec.structs.replace(options, **changes))

    if not training:
        if narrow:
            yield f"{narrow} numbers", workload.but(precision=narrow), 0
        return
    if options.checkpointing == "none":
        yield "checkpointing, about sqrt(n) segments", trained(checkpointing="sqrt"), 0
    if options.checkpointing != "all":
        yield "checkpointing, every block", trained(checkpointing="all"), 0
    if narrow:
        mixed = msgspec.structs.replace(options, mixed_precision=True)
        yield f"mixed precision in {narrow}", workload.but(phase="training", precision=narrow, training=mixed), 0
    micro = next((size for size in range(largest or 0, 0, -1) if batch_size % size == 0), None)
    if micro and batch_size // micro > options.accumulation:
        parts = batch_size // micro
        yield f"accumulation, {parts} micro-batches of {micro}", trained(accumulation=parts), 0
    for stage in (1, 2, 3):
        yield f"ZeRO stage {stage} on {SHARDS} devices", workload, stage


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

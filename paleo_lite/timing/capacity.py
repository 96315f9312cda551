"""Whether a network fits into a device's memory, the largest batch that does, and what would help."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ..counting.work import PHASES_WITH_GRADIENTS
from ..errors import BadValue, DoesNotFit, UnknownPrecision
from ..machines import Device, Machine
from ..units import format_si
from .memory import RESERVE_BYTES, MemoryFit, MemoryRemedy, largest_batch, peak_memory, usable_bytes
from .models import TimeModel
from .prediction import Prediction, predict
from .workload import Workload

SHARDS = 8
"""Devices that the ZeRO remedies are reckoned with: a node of eight."""


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
        workload = workload.with_changes(batch_size=workload.options.accumulation)
        fit = fit_memory(workload, machine.device)
        if fit.largest_batch is None:
            raise DoesNotFit(_too_large_message(workload, machine, fit))
        workload = workload.with_changes(batch_size=fit.largest_batch)
    return msgspec.structs.replace(predict(workload, machine, model), memory=fit_memory(workload, machine.device))


def _too_large_message(workload: Workload, machine: Machine, fit: MemoryFit) -> str:
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
    memory = peak_memory(workload)
    usable = usable_bytes(device)
    largest = largest_batch(workload, memory_bytes=usable)
    training = workload.phase in PHASES_WITH_GRADIENTS
    optimizer = workload.options.optimizer if training else None
    fit = MemoryFit(memory, device.memory_bytes, RESERVE_BYTES, largest, optimizer)
    if fit.fits:
        return fit
    remedies = []
    for name, changed, stage in _candidate_remedies(workload, device, training, largest):
        shards = SHARDS if stage else 1
        total = peak_memory(changed, zero_stage=stage, shards=shards).total_bytes
        most = largest_batch(changed, memory_bytes=usable, zero_stage=stage, shards=shards)
        if total < memory.total_bytes:
            remedies.append(MemoryRemedy(name, total, total <= usable, most))
    remedies.sort(key=lambda remedy: remedy.total_bytes)
    return msgspec.structs.replace(fit, remedies=tuple(remedies))


def _candidate_remedies(
    workload: Workload, device: Device, training: bool, largest: int | None
) -> Iterator[tuple[str, Workload, int]]:
    """What could be tried: its name, the workload with it, and its stage of ZeRO."""
    options, batch_size = workload.options, workload.batch_size
    narrow = _narrower_precision(device, workload.precision)

    def trained(**changes: Any) -> Workload:
        return workload.with_changes(phase="training", training=msgspec.structs.replace(options, **changes))

    if not training:
        if narrow:
            yield f"{narrow} numbers", workload.with_changes(precision=narrow), 0
        return
    if options.checkpointing == "none":
        yield "checkpointing, about sqrt(n) segments", trained(checkpointing="sqrt"), 0
    if options.checkpointing != "all":
        yield "checkpointing, every block", trained(checkpointing="all"), 0
    if narrow:
        mixed = msgspec.structs.replace(options, mixed_precision=True)
        yield (
            f"mixed precision in {narrow}",
            workload.with_changes(phase="training", precision=narrow, training=mixed),
            0,
        )
    micro = next((size for size in range(largest or 0, 0, -1) if batch_size % size == 0), None)
    if micro and batch_size // micro > options.accumulation:
        parts = batch_size // micro
        yield f"accumulation, {parts} micro-batches of {micro}", trained(accumulation=parts), 0
    for stage in (1, 2, 3):
        yield f"ZeRO stage {stage} on {SHARDS} devices", workload, stage


def _narrower_precision(device: Device, precision: str) -> str | None:
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

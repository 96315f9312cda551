"""One chunk of a sweep: every combination's row, as one broadcast over arrays.

The axes are, from the slowest: case (network and phase), device, time model, scaling, strategy, link, collective,
workers, batch size. Time depends on the first three and on the batch per worker; what several workers exchange comes on
top of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...hardware import Device
from ...timing.broadcast import keep_memory
from ...timing.memory import RESERVE_BYTES, ZERO_FROM_STAGE
from ...timing.models import TimeModel
from ...units import PRECISION_BYTES, format_si
from .inputs import ModelOf, device_of, memory_parts, model_or_reason, passes
from .rows import Reasons, Words, each_of, only
from .space import Chunk, Space
from .steps import Single, one_worker
from .workers import DIVIDE, add_workers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

NUMBERS = (
    "time_s", "low_s", "high_s", "throughput_per_s", "memory_bytes", "exposed_s", "speedup", "scaling_efficiency",
    "efficiency", "hours", "cost", "energy_j",
)  # fmt: skip
"""Columns of numbers; see docs/sweep.md."""

Columns = dict[str, "Words | Ints | Floats"]


def compute_chunk(space: Space, chunk: Chunk, model_of: ModelOf) -> Columns:
    """All columns of a chunk.

    Raises
    ------
    PaleoError
        If a network or device is unknown.
    """
    keep_memory()
    devices = [device_of(gpu, space.hardware_files) for gpu in chunk.gpus]
    models = [
        [model_or_reason(name, device, chunk.precision, space.ppp, model_of) for name in space.time_models]
        for device in devices
    ]
    shape = (len(chunk.cases), len(devices), *space.spread, len(chunk.batch_sizes))
    reasons = Reasons(shape)
    for gpu, number in np.ndindex(len(devices), len(space.time_models)):
        if isinstance(model := models[gpu][number], str):
            reasons.give(model, only(shape, {1: gpu, 2: number}))
    each = _per_worker(space, chunk, reasons)
    single = one_worker(space, chunk, devices, models, each)
    place = single.places(each)
    columns: dict[str, Floats] = {}
    for name, source in (("time_s", single.time_s), ("low_s", single.low_s), ("high_s", single.high_s)):
        spread = source[..., place][:, :, :, :, None, None, None]  # over strategies, links and collectives
        columns[name] = np.broadcast_to(spread, shape).copy()
    columns["exposed_s"] = np.zeros(shape)
    collective = np.full(shape, -1, dtype=np.int32)
    names: dict[str, int] = {}
    add_workers(space, chunk, devices, models, single, columns, (collective, names), reasons)
    own = columns.pop("own_memory_bytes", None)
    columns["memory_bytes"] = _memory(space, chunk, devices, each, own, reasons)
    _derive(space, chunk, devices, single, each, columns)
    for name in NUMBERS:
        if name != "memory_bytes":
            columns[name][reasons.codes >= 0] = np.nan
    collective[reasons.codes >= 0] = -1
    return _table(space, chunk, models, columns, Words(collective, tuple(names)), each, reasons)


def _per_worker(space: Space, chunk: Chunk, reasons: Reasons) -> Ints:
    """Samples per worker, axes (scaling, workers, batch size); -1 where they cannot be shared out."""
    batches = np.array(chunk.batch_sizes, dtype=np.int64)
    for row, scaling in enumerate(space.scalings):
        for column, workers in enumerate(space.workers if scaling == "strong" else ()):
            divided = np.array([name in DIVIDE for name in space.strategies])[:, None, None, None, None]
            here = only(reasons.codes.shape, {3: row, 7: column}) & divided
            reasons.give("the batch is smaller than the workers: each needs a sample", here & (batches < workers))
            reasons.give("the workers do not divide the batch", here & (batches % workers > 0))
    for number, (_, phase) in enumerate(chunk.cases):
        if phase not in ("training", "inference", "forward"):
            several = only(reasons.codes.shape, {0: number}) & (np.array(space.workers) > 1)[:, None]
            reasons.give(f"several workers are predicted for training and inference, not for {phase} alone", several)
        elif phase != "training":
            divided = np.array([name != "data" for name in space.strategies])[:, None, None, None, None]
            several = only(reasons.codes.shape, {0: number}) & (np.array(space.workers) > 1)[:, None]
            reasons.give(f"{phase} on several workers is predicted as replicas: strategy data", several & divided)
    return each_of(space, chunk)


def _memory(
    space: Space, chunk: Chunk, devices: Sequence[Device], each: Ints, own: Floats | None, reasons: Reasons
) -> Floats:
    """Peak bytes on one device; what does not fit is given as a reason."""
    shape = reasons.codes.shape
    memory = np.empty(shape)
    size = PRECISION_BYTES[chunk.precision]
    workers = np.array(space.workers, dtype=np.int64)
    batches = np.where(each > 0, each, np.nan)[:, None, None, None]  # over strategies, links and collectives
    for case, (network, phase) in enumerate(chunk.cases):
        parts, fixed, per_sample = memory_parts(network, size, phase, space.optimizer)
        held = []
        for strategy in space.strategies:
            stage = int(strategy[-1]) if strategy.startswith("zero-") and passes(phase) > 1 else 0
            shared = [-(-part // workers) if stage >= first else part for part, first in zip(parts, ZERO_FROM_STAGE)]
            held.append(sum(shared) + np.zeros(len(workers)))
        by_strategy = np.array(held)[None, :, None, None, :, None]
        memory[case] = np.broadcast_to(fixed + by_strategy + per_sample * batches, shape[1:])
    if own is not None:
        memory = np.where(np.isnan(own), memory, np.where(np.isinf(own), np.nan, own))
    for place, device in enumerate(devices):
        room = device.memory_bytes - RESERVE_BYTES
        room_text = (
            f"{format_si(device.memory_bytes, 'B', 3)} of {device.id}, {format_si(RESERVE_BYTES, 'B')} left free"
        )
        with np.errstate(invalid="ignore"):
            reasons.give(f"does not fit into the {room_text}", only(shape, {1: place}) & (memory > room))
    return memory


def _derive(
    space: Space, chunk: Chunk, devices: Sequence[Device], single: Single, each: Ints, columns: dict[str, Floats]
) -> None:
    """What follows from the time of a step."""
    time, shape = columns["time_s"], columns["time_s"].shape
    place = single.places(each)
    batches, workers = np.array(chunk.batch_sizes), np.array(space.workers)[:, None]
    together = np.array([batches * (workers if scaling == "weak" else 1) + 0 * workers for scaling in space.scalings])
    samples = together[:, None, None, None]
    throughput = columns["throughput_per_s"] = samples / time
    alone = columns.pop("alone_s", None)
    if alone is None:
        columns["speedup"] = np.ones(shape)
    else:
        columns["speedup"] = throughput * (alone / batches)[:, :, :, None, None, None, None, None]
    columns["scaling_efficiency"] = columns["speedup"] / workers
    flops = np.where(each > 0, single.flops[:, place], np.nan)[:, None, None, :, None, None, None]
    peaks = [
        device.find_peak(chunk.precision).per_s if chunk.precision in device.precisions else None for device in devices
    ]
    columns["efficiency"] = flops / (time * _along(peaks))
    hours = columns["hours"] = space.samples / throughput / 3600
    prices = [space.price_usd_per_h or device.rent_usd_per_h for device in devices]
    powers = [space.power_w or device.power_w for device in devices]
    columns["cost"] = hours * workers * _along(prices)
    columns["energy_j"] = hours * 3600 * workers * _along(powers)


def _along(values: Sequence[float | None]) -> Floats:
    """A number of each device in the place of their axis; what is absent makes what follows from it absent."""
    numbers = np.array([np.nan if value is None else value for value in values])
    return numbers[:, None, None, None, None, None, None, None]


def _table(
    space: Space,
    chunk: Chunk,
    models: Sequence[Sequence[TimeModel | str]],
    columns: dict[str, Floats],
    collective: Words,
    each: Ints,
    reasons: Reasons,
) -> Columns:
    """The columns in their order, each as long as there are rows."""
    shape = reasons.codes.shape

    def words(axis: int, values: Sequence[str]) -> Words:
        distinct = tuple(dict.fromkeys(value for value in values if value))
        codes = np.array([distinct.index(value) if value else -1 for value in values], dtype=np.int32)
        return Words(_spread(codes, axis, shape), distinct)

    used = [["" if isinstance(model, str) else model.name for model in row] for row in models]
    labels = [["" if isinstance(model, str) else model.label for model in row] for row in models]
    batches, workers = np.array(chunk.batch_sizes, dtype=np.int64), np.array(space.workers, dtype=np.int64)
    return {
        "network": words(0, [network for network, _ in chunk.cases]),
        "gpu": words(1, chunk.gpus),
        "precision": Words(np.zeros(reasons.codes.size, dtype=np.int32), (chunk.precision,)),
        "phase": words(0, [phase for _, phase in chunk.cases]),
        "batch_size": _spread(batches, 8, shape),
        "workers": _spread(workers, 7, shape),
        "scaling": words(3, space.scalings),
        "strategy": words(4, space.strategies),
        "link": words(5, space.links),
        "collective": Words(collective.codes.ravel(), collective.values),
        "batch_size_per_worker": np.broadcast_to(each[:, None, None, None], shape).ravel(),
        "time_model": _pairs(used, shape),
        "calibration": _pairs(labels, shape),
        **{name: columns[name].ravel() for name in NUMBERS},
        "reason": Words(reasons.codes.ravel(), tuple(reasons.values)),
    }


def _spread(values: Any, axis: int, shape: tuple[int, ...]) -> Any:
    """Values along one axis, repeated over all others."""
    return np.broadcast_to(values.reshape([-1 if place == axis else 1 for place in range(len(shape))]), shape).ravel()


def _pairs(values: Sequence[Sequence[str]], shape: tuple[int, ...]) -> Words:
    """Words that follow from device and time model."""
    distinct = tuple(dict.fromkeys(value for row in values for value in row if value))
    codes = np.array([[distinct.index(v) if v else -1 for v in row] for row in values], dtype=np.int32)
    return Words(np.broadcast_to(codes.reshape(*codes.shape, *[1] * (len(shape) - 3)), shape).ravel(), distinct)

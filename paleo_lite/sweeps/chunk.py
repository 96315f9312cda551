"""One chunk of a sweep: every combination's row, as one broadcast over the arrays of a `Grid`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..counting.work import trains
from ..distributed.strategies import STRATEGIES
from ..timing.broadcast import keep_memory
from ..timing.memory import RESERVE_BYTES, shared_out, usable_bytes
from ..timing.models import TimeModel
from ..units import PRECISION_BYTES, format_si
from ..version import __version__
from .grid import Grid, Single, Words, along, one_worker
from .inputs import ModelOf, memory_parts
from .space import Chunk, Space
from .workers import add_workers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

NUMBERS = (
    "time_s", "low_s", "high_s", "bound_s", "throughput_per_s", "memory_bytes", "exposed_s", "speedup",
    "scaling_efficiency", "efficiency", "hours", "cost", "energy_j",
)  # fmt: skip
"""Columns of numbers; see docs/sweep.md."""

FORECAST, BOUND = "forecast", "bound"
"""What the column ``answer`` says."""

WORDS = (
    "network", "gpu", "precision", "phase", "scaling", "strategy", "link", "collective", "time_model", "calibration",
    "answer", "version", "reason",
)  # fmt: skip
"""Columns of words."""

Columns = dict[str, "Words | Ints | Floats"]


def compute_chunk(space: Space, chunk: Chunk, model_of: ModelOf) -> Columns:
    """All columns of a chunk.

    Raises
    ------
    PaleoError
        If a network or device is unknown.
    """
    keep_memory()
    grid = Grid(space, chunk, model_of)
    _refuse_what_cannot_be_shared(grid)
    single = one_worker(grid)
    places = single.places(grid.per_worker)
    bound_s = np.broadcast_to(single.bound_s[:, :, None], single.time_s.shape)
    whole = (("time_s", single.time_s), ("low_s", single.low_s), ("high_s", single.high_s), ("bound_s", bound_s))
    for name, seconds in whole:
        shares = np.where(grid.per_worker > 0, seconds[..., places], np.nan)
        spread = along(shares, "case", "device", "model", "scaling", "workers", "batch")
        grid.columns[name] = np.broadcast_to(spread, grid.shape).copy()
    grid.columns["exposed_s"] = np.zeros(grid.shape)
    add_workers(grid, single)
    _add_memory(grid)
    _derive(grid, single)
    infeasible = grid.reason.codes >= 0
    for name in NUMBERS:
        if name != "memory_bytes":
            grid.columns[name][infeasible] = np.nan
    grid.collective.codes[infeasible] = -1
    return _table(grid)


def _refuse_what_cannot_be_shared(grid: Grid) -> None:
    """Give rows whose batch or phase several workers cannot share their reason."""
    space, batches = grid.space, grid.batches
    divides = along([STRATEGIES[name].divides_batch for name in space.strategies], "strategy")
    for scaling, name in enumerate(space.scalings):
        for place, workers in enumerate(space.workers if name == "strong" else ()):
            few, uneven = along(batches < workers, "batch"), along(batches % workers > 0, "batch")
            here = {"scaling": scaling, "workers": place}
            grid.refuse("the batch is smaller than the workers: each needs a sample", few, **here)
            grid.refuse("the workers do not divide the batch", divides & uneven, **here)
    several = along(grid.workers > 1, "workers")
    replicas = along([name == "data" for name in space.strategies], "strategy")
    for case, (_, phase) in enumerate(grid.chunk.cases):
        if phase not in ("training", "inference", "forward"):
            reason = f"several workers are predicted for training and inference, not for {phase} alone"
            grid.refuse(reason, several, case=case)
        elif phase != "training":
            reason = f"{phase} on several workers is predicted as replicas: strategy data"
            grid.refuse(reason, several & ~replicas, case=case)


def _add_memory(grid: Grid) -> None:
    """Peak bytes on one device; what does not fit is given as a reason."""
    memory = np.empty(grid.shape)
    space, number_bytes = grid.space, PRECISION_BYTES[grid.chunk.precision]
    batches = along(np.where(grid.per_worker > 0, grid.per_worker, np.nan), "scaling", "workers", "batch")
    for case, (network, phase) in enumerate(grid.chunk.cases):
        parts, fixed, per_sample = memory_parts(network, number_bytes, phase, space.optimizer)
        held = []
        for strategy in space.strategies:
            stage = STRATEGIES[strategy].zero_stage if trains(phase) else 0
            held.append(sum(shared_out(parts, stage, grid.workers)) + 0 * grid.workers)
        memory[case] = (fixed + along(held, "strategy", "workers") + per_sample * batches)[0]
    own = grid.columns.pop("own_memory_bytes", None)  # of several workers that train
    if own is not None:
        memory = np.where(np.isnan(own), memory, np.where(np.isinf(own), np.nan, own))
    grid.columns["memory_bytes"] = memory
    for place, device in enumerate(grid.devices):
        room = f"{format_si(device.memory_bytes, 'B', 3)} of {device.id}, {format_si(RESERVE_BYTES, 'B')} left free"
        with np.errstate(invalid="ignore"):
            too_large = memory[:, place : place + 1] > usable_bytes(device)
        grid.refuse(f"does not fit into the {room}", too_large, device=place)


def _derive(grid: Grid, single: Single) -> None:
    """What follows from the time of a step."""
    space, columns, devices, precision = grid.space, grid.columns, grid.devices, grid.chunk.precision
    time, workers = columns["time_s"], along(grid.workers, "workers")
    weak = along([scaling == "weak" for scaling in space.scalings], "scaling")
    throughput = along(grid.batches, "batch") * np.where(weak, workers, 1) / time
    columns["throughput_per_s"] = throughput
    if max(space.workers) == 1:
        columns["speedup"] = np.ones(grid.shape)
    else:
        alone = single.time_s[..., np.searchsorted(single.sizes, grid.batches)] / grid.batches
        columns["speedup"] = throughput * along(alone, "case", "device", "model", "batch")
    columns["scaling_efficiency"] = columns["speedup"] / workers
    flops = np.where(grid.per_worker > 0, single.flops[:, single.places(grid.per_worker)], np.nan)
    peaks = [device.find_peak(precision).per_s if precision in device.precisions else None for device in devices]
    columns["efficiency"] = along(flops, "case", "scaling", "workers", "batch") / (time * grid.of_devices(peaks))
    hours = columns["hours"] = space.samples / throughput / 3600
    prices = [space.price_usd_per_h or device.rent_usd_per_h for device in devices]
    powers = [space.power_w or device.power_w for device in devices]
    columns["cost"] = hours * workers * grid.of_devices(prices)
    columns["energy_j"] = hours * 3600 * workers * grid.of_devices(powers)


def _table(grid: Grid) -> Columns:
    """The columns in their order, each as long as there are rows."""
    space, chunk = grid.space, grid.chunk

    def words(values: Any, *axes: str) -> Words:
        return Words.of(along(values, *axes)).over(grid.shape)

    def numbers(values: Ints, *axes: str) -> Ints:
        return np.broadcast_to(along(values, *axes), grid.shape).ravel()

    def of_models(say: Callable[[TimeModel], str]) -> Words:
        names = np.full(grid.shape[1:3], "", dtype=object)
        for place, model in grid.models.items():
            names[place] = say(model)
        return words(names, "device", "model")

    return {
        "network": words([network.name for network, _ in chunk.cases], "case"),
        "gpu": words(chunk.gpus, "device"),
        "precision": words([chunk.precision]),
        "phase": words([phase for _, phase in chunk.cases], "case"),
        "sequence_length": numbers(np.array([-1 if n.length is None else n.length for n, _ in chunk.cases]), "case"),
        "batch_size": numbers(grid.batches, "batch"),
        "workers": numbers(grid.workers, "workers"),
        "scaling": words(space.scalings, "scaling"),
        "strategy": words(space.strategies, "strategy"),
        "link": words(space.links, "link"),
        "collective": grid.collective.over(grid.shape),
        "batch_size_per_worker": numbers(grid.per_worker, "scaling", "workers", "batch"),
        "time_model": of_models(lambda model: model.name),
        "calibration": of_models(lambda model: model.label),
        "answer": of_models(lambda model: FORECAST if model.is_forecast else BOUND),
        "version": words([__version__]),
        **{name: grid.columns[name].ravel() for name in NUMBERS},
        "reason": grid.reason.over(grid.shape),
    }

"""One chunk of a sweep: every combination's row, as one broadcast over the arrays of a `Grid`.

Every row of several workers that train is a step of `scale`, at all batch sizes at once where it can be: strategies are
given a `SweptJob`, whose steps come from the broadcast.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from ..counting.work import trains
from ..distributed.clusters import cluster_prior
from ..distributed.job import DeviceStep, Job, Settings, plain
from ..distributed.links import Topology, flat, link_rate
from ..distributed.scale import step_of
from ..distributed.strategies import STRATEGIES
from ..errors import BadValue, PaleoError
from ..hardware import Machine
from ..timing.broadcast import keep_memory
from ..timing.memory import RESERVE_BYTES, shared_out, usable_bytes
from ..timing.workload import TrainingOptions, Workload
from ..units import PRECISION_BYTES, format_si
from ..version import __version__
from .grid import (
    AXES,
    Grid,
    ModelOf,
    Single,
    Words,
    along,
    counted,
    exchanges_of,
    groups_of,
    memory_parts,
    network_of,
    one_worker,
)  # fmt: skip
from .space import Chunk, Space

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
    _add_workers(grid, single)
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


def _add_workers(grid: Grid, single: Single) -> None:
    """What exchanges change about the rows of several workers that train."""
    space, chunk = grid.space, grid.chunk
    for (case, (_, phase)), (device, model) in product(enumerate(chunk.cases), grid.models):
        if phase != "training" or max(space.workers) == 1:
            continue
        job = SweptJob(grid, single, (case, device, model))
        for place in np.ndindex(*space.spread[1:]):
            scaling, _, _, _, count = place
            if space.workers[count] == 1:
                continue
            row = (case, device, model, *place)
            feasible = np.flatnonzero(grid.reason.codes[row] < 0)
            if not len(feasible):
                continue
            totals = grid.batches * (space.workers[count] if space.scalings[scaling] == "weak" else 1)
            _put_step(grid, row, job, feasible, totals[feasible])


def _put_step(grid: Grid, row: tuple[int, ...], job: Job, batch: Ints, batch_size: Ints) -> None:
    """Fill a row, at some batches, with the steps that its strategy makes of it, or with why it makes none."""
    _, _, _, _, strategy, link, collective, count = row
    space, columns = grid.space, grid.columns
    here: Any = (*row, batch)
    settings = Settings(collective=space.collectives[collective] or None)
    topology = _joined(space.links[link], space.workers[count])
    try:
        prior = cluster_prior() if job.model.is_forecast else None
        step = step_of(job, topology, settings, batch_size, space.strategies[strategy], prior)
    except PaleoError as error:
        if len(batch) > 1 and str(batch_size) in str(error):  # some of them may do
            for place in range(len(batch)):
                _put_step(grid, row, job, batch[place : place + 1], batch_size[place : place + 1])
            return
        reason = str(error).replace(str(batch_size), str(batch_size[0]))  # of one batch size as a number
        grid.refuse(reason, np.isin(np.arange(len(grid.batches)), batch), **dict(zip(AXES, row)))
        return
    columns["time_s"][here], columns["exposed_s"][here] = step.time_s, step.exposed_s
    columns["low_s"][here], columns["high_s"][here] = step.interval or (np.nan, np.nan)
    memory = columns.setdefault("own_memory_bytes", np.full(grid.shape, np.nan))
    memory[here] = np.inf if step.memory_bytes is None else step.memory_bytes
    names = np.asarray(step.collective, dtype=object)
    codes = {name: grid.collective.code(name) if name else -1 for name in dict.fromkeys(names.ravel().tolist())}
    grid.collective.codes[here] = np.reshape([codes[name] for name in names.ravel().tolist()], names.shape)


@lru_cache(1024)
def _joined(link: str, workers: int) -> Topology:
    return flat(link_rate(link), workers)


class SweptJob(Job):
    """A job whose steps the sweep has predicted, a layer standing for its group.

    Parameters
    ----------
    place : tuple of int
        Of case, device and model.
    """

    def __init__(self, grid: Grid, single: Single, place: tuple[int, int, int]) -> None:
        case, device, _ = place
        network, number_bytes = grid.chunk.cases[case][0], PRECISION_BYTES[grid.chunk.precision]
        options = TrainingOptions(grid.space.optimizer)
        asked = Workload(network_of(network), grid.chunk.precision, phase="training", training=options)
        workload = asked.doing(counted(network, number_bytes))
        super().__init__(workload, Machine(grid.devices[device]), grid.models[place[1:]])
        self.single, self.place = single, place
        self._counted = exchanges_of(network, number_bytes, grid.space.optimizer)
        self._group = np.array(groups_of(network, number_bytes, grid.space.optimizer, grid.by_layer))

    def _step(self, batch_size: Any) -> DeviceStep:
        single, members = self.single, np.bincount(self._group)[:, None]
        sizes = np.searchsorted(single.sizes, batch_size)
        if not np.array_equal(single.sizes.take(sizes, mode="clip"), batch_size):
            raise BadValue(f"a batch of {batch_size} overflows the counts")
        time_s, low_s, high_s = (times[self.place][sizes] for times in (single.time_s, single.low_s, single.high_s))
        forward_s, update_s, backward_s = (seconds[..., sizes] for seconds in single.passes[self.place])
        passed_s = forward_s.sum(axis=0)
        # All else is the overhead, which lies with the forward pass.
        rest_s = time_s - passed_s - update_s - backward_s.sum(axis=0)
        with np.errstate(invalid="ignore"):
            shared = np.where(passed_s, forward_s / passed_s, members / members.sum())
        return DeviceStep.of(
            (forward_s + rest_s * shared) / members,
            backward_s / members,
            update_s,
            self._group,
            memory_bytes=plain(self.memory(batch_size).total_bytes),
            interval=None if np.isnan(low_s).any() else (low_s, high_s),
        )


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
    prices = [space.price_usd_per_h or device.rent_usd_per_h for device in devices]
    powers = [space.power_w or device.power_w for device in devices]
    # Where one is absent, None becomes NaN, and so does what follows from it.
    peak, price, power = (along(known, "device") for known in np.array([peaks, prices, powers], dtype=np.float64))
    columns["efficiency"] = along(flops, "case", "scaling", "workers", "batch") / (time * peak)
    hours = columns["hours"] = space.samples / throughput / 3600
    columns["cost"] = hours * workers * price
    columns["energy_j"] = hours * 3600 * workers * power


def _table(grid: Grid) -> Columns:
    """The columns in their order, each as long as there are rows."""
    space, chunk = grid.space, grid.chunk

    def words(values: Any, *axes: str) -> Words:
        return Words.of(along(values, *axes), grid.shape)

    def numbers(values: Ints, *axes: str) -> Ints:
        return np.broadcast_to(along(values, *axes), grid.shape).ravel()

    models = np.full((3, *grid.shape[1:3]), "", dtype=object)
    for (device, number), model in grid.models.items():
        models[:, device, number] = model.name, model.label, FORECAST if model.is_forecast else BOUND
    for column in (grid.collective, grid.reason):
        column.codes = column.codes.ravel()
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
        "collective": grid.collective,
        "batch_size_per_worker": numbers(grid.per_worker, "scaling", "workers", "batch"),
        "time_model": words(models[0], "device", "model"),
        "calibration": words(models[1], "device", "model"),
        "answer": words(models[2], "device", "model"),
        "version": words([__version__]),
        **{name: grid.columns[name].ravel() for name in NUMBERS},
        "reason": grid.reason,
    }

"""One chunk of a sweep: every combination's row, as one broadcast over the arrays of a `Grid` with named axes.

Every row of several workers that train is a step of `scale`, at all batch sizes at once where it can be: strategies are
given a `SweptJob`, whose steps come from the broadcast.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..counting.work import ENGINE, WITH_GRADIENTS, passes_of
from ..distributed.clusters import cluster_prior
from ..distributed.job import DeviceStep, Job, Settings, plain
from ..distributed.links import Topology, flat, link_rate
from ..distributed.scale import step_of
from ..distributed.strategies import STRATEGIES
from ..errors import BadValue, PaleoError
from ..machines import Device, Machine, find_device
from ..timing.broadcast import Passes, keep_memory
from ..timing.memory import RESERVE_BYTES, shared_out, usable_bytes
from ..timing.models import LEARNT, RooflineModel, TimeModel, Want, find_model
from ..timing.workload import TrainingOptions, Workload
from ..units import PRECISION_BYTES, format_si
from ..version import __version__
from .cases import counted, exchanges_of, groups_of, memory_parts, network_of, stack_of, work_of
from .space import AUTOMATIC, Chunk, Sized, Space

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

ModelOf = Callable[[Device, str, "str | None", str], TimeModel]
"""From device, precision, None or ``calibrated``, and execution to the best model there is, or a `PaleoError`."""

AXES = ("case", "device", "model", "scaling", "strategy", "link", "collective", "workers", "batch")
"""The axes of all rows, from the slowest. A case is a network in a phase; the batch is the one that was asked for."""

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


def along(values: Any, *axes: str) -> NDArray[Any]:
    """An array over some axes, in the order of `AXES`, made to broadcast against all rows."""
    array = np.asarray(values)
    lengths = dict(zip(axes, array.shape))
    return array.reshape([lengths.get(axis, 1) for axis in AXES])


class Words:
    """A column of words: which of `values` each row has; -1 none."""

    def __init__(self, codes: NDArray[np.int32], values: Sequence[str] = ()) -> None:
        self.codes = codes
        self.values = {word: code for code, word in enumerate(values)}

    def code(self, word: str) -> int:
        """What stands for a word; a new one is added."""
        return self.values.setdefault(word, len(self.values))


class Grid:
    """All rows of a chunk.

    Parameters
    ----------
    model_of : callable
        See `ModelOf`.

    Attributes
    ----------
    devices : list of Device
    models : dict of (int, int) to TimeModel
        By the places of device and model; of those that there are.
    shape : tuple of int
        Over `AXES`.
    per_worker : ndarray of int, axes (scaling, workers, batch)
        Samples of one worker; -1 where they cannot be shared out evenly.
    columns : dict of str to ndarray
        Numbers by name, over `AXES`.
    collective, reason : Words
        How gradients are exchanged; why a row is infeasible.
    by_layer : bool
        Whether a strategy asks for more than sums of the layers whose gradients are exchanged together.
    """

    def __init__(self, space: Space, chunk: Chunk, model_of: ModelOf) -> None:
        self.space, self.chunk = space, chunk
        self.devices: list[Device] = [device_of(gpu, space.hardware_files) for gpu in chunk.gpus]
        self.shape = (len(chunk.cases), len(self.devices), *space.spread, len(chunk.batch_sizes))
        self.columns: dict[str, Floats] = {}
        self.collective, self.reason = (Words(np.full(self.shape, -1, dtype=np.int32)) for _ in range(2))
        self.batches, self.workers = (np.array(sizes, dtype=np.int64) for sizes in (chunk.batch_sizes, space.workers))
        strong = np.where(self.batches % self.workers[:, None], -1, self.batches // self.workers[:, None])
        weak = np.broadcast_to(self.batches, strong.shape)
        self.per_worker: Ints = np.array([weak if scaling == "weak" else strong for scaling in space.scalings])
        self.by_layer = any(STRATEGIES[name].timed for name in space.strategies)
        self.models: dict[tuple[int, int], TimeModel] = {}
        execution = ENGINE if chunk.cases[0][0].phase else "eager"  # text is written by an engine
        for device, model in np.ndindex(len(self.devices), len(space.time_models)):
            name, machine = space.time_models[model], Machine(self.devices[device])
            try:
                machine.peak(chunk.precision)
                machine.vector_peak(chunk.precision)
                if name in (AUTOMATIC, LEARNT):
                    kind = None if name == AUTOMATIC else name
                    self.models[device, model] = model_of(machine.device, chunk.precision, kind, execution)
                else:
                    self.models[device, model] = find_model(name, space.ppp)
            except PaleoError as error:
                self.refuse(str(error), device=device, model=model)

    def refuse(self, reason: str, where: Any = True, **chosen: int) -> None:
        """Give rows their reason; of several the first stays.

        Parameters
        ----------
        where : array of bool
            Broadcasts against the rows that are chosen.
        **chosen : int
            Places on axes.
        """
        places = (slice(chosen[axis], chosen[axis] + 1) if axis in chosen else slice(None) for axis in AXES)
        codes = self.reason.codes[tuple(places)]  # a view
        refused = np.broadcast_to(where, codes.shape) & (codes < 0)
        if refused.any():
            codes[refused] = self.reason.code(reason)


@lru_cache(512)
def device_of(name: str, files: tuple[str, ...]) -> Device:
    """A device by name."""
    return find_device(name, [Path(file) for file in files])


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


AT_LEAST = RooflineModel()
"""The bound that stands beside every forecast."""

_BLOCK = 2**15
"""Layers times batch sizes that are computed at once: their arrays stay in a core's cache."""


class Single(NamedTuple):
    """Times of one worker, axes (case, device, model, batch per worker), and by pass where workers exchange.

    `sizes` are the batches per worker, in rising order; `passes` has (case, device, model), `bound_s` no model: what
    the data sheet allows.
    """

    sizes: Ints
    time_s: Floats
    low_s: Floats
    high_s: Floats
    bound_s: Floats
    flops: Floats
    passes: dict[tuple[int, int, int], Passes]

    def places(self, per_worker: Ints) -> Ints:
        """Where batches per worker stand among the sizes; 0 for those that there are none of."""
        return np.where(per_worker < 0, 0, np.searchsorted(self.sizes, per_worker))


def one_worker(grid: Grid) -> Single:
    """Times of every case on every device by every model, at all batches per worker that occur.

    Cases stand in one stack as far as a block of it stays in cache with the batch sizes at hand.
    """
    space, chunk, several = grid.space, grid.chunk, max(grid.space.workers) > 1
    sizes = _sizes(grid)
    shape = (*grid.shape[:3], len(sizes))
    time, low, high = (np.full(shape, np.nan) for _ in range(3))
    flops = np.empty((len(chunk.cases), len(sizes)))
    bound = np.full((len(chunk.cases), len(grid.devices), len(sizes)), np.nan)
    passes: dict[tuple[int, int, int], list[Passes]] = defaultdict(list)
    width = min(len(sizes), 256)
    for first, last in _groups(chunk.cases, _BLOCK // width):
        stacked = stack_of(
            chunk.cases[first:last],
            PRECISION_BYTES[chunk.precision],
            space.optimizer,
            grid.by_layer if several else None,
        )
        for start in range(0, len(sizes), width):
            block = slice(start, min(start + width, len(sizes)))
            laid = stacked.at(sizes[block])
            flops[first:last, block] = laid.by_case(laid.features.flops)
            for device in {device for device, _ in grid.models}:
                machine = Machine(grid.devices[device])
                least = AT_LEAST.evaluate_many(laid, machine, chunk.precision, Want(interval=False))
                bound[first:last, device, block] = least.time_s
            for (device, number), model in grid.models.items():
                times = model.evaluate_many(laid, Machine(grid.devices[device]), chunk.precision, Want(pieces=several))
                here = (slice(first, last), device, number, block)
                time[here] = times.time_s
                if times.low_s is not None and times.high_s is not None:
                    low[here], high[here] = times.low_s, times.high_s
                if times.pieces_s is not None:
                    for case in range(first, last):
                        passes[case, device, number].append(stacked.passes_of(case - first, times.pieces_s))
    whole = {
        key: Passes(*(np.concatenate(seconds, axis=-1) for seconds in zip(*blocks))) for key, blocks in passes.items()
    }
    return Single(sizes, time, low, high, bound, flops, whole)


def _sizes(grid: Grid) -> Ints:
    """Every batch of one device that a row asks for, in rising order."""
    space, chunk, sizes, further = grid.space, grid.chunk, [grid.batches], []
    for scaling, workers in product(space.scalings, space.workers):
        total = grid.batches * workers if scaling == "weak" else grid.batches
        sizes.append(total // workers)
        for timed in {STRATEGIES[strategy].timed for strategy in space.strategies if workers > 1}:
            further += timed(total, workers) if timed else []
    for network, phase in chunk.cases if further else ():
        if phase == "training":
            per_sample = work_of(network, PRECISION_BYTES[chunk.precision], space.optimizer).per_sample
            most = 2**62 // max(int(per_sample.sum()), 1)
            sizes += [batch[batch <= most] for batch in further]
    wanted = np.unique(np.concatenate(sizes))
    return wanted[wanted > 0]


def _groups(cases: Sequence[tuple[Sized, str]], entries: int) -> list[tuple[int, int]]:
    """Neighbouring cases that have about so many entries together; alike layers make a third of all."""
    groups, first, held = [], 0, 0
    for place, (name, phase) in enumerate(cases):
        held += len(network_of(name).layers) * len(passes_of(phase)) // 3 + 1
        if held >= entries:
            groups.append((first, place + 1))
            first, held = place + 1, 0
    return [*groups, (first, len(cases))] if first < len(cases) else groups


def _add_workers(grid: Grid, single: Single) -> None:
    """What exchanges change about the rows of several workers that train."""
    space, chunk = grid.space, grid.chunk
    if max(space.workers) == 1:
        return
    rates = [link_rate(link) for link in space.links]
    joined = [[flat(rate, workers) for workers in space.workers] for rate in rates]
    for (case, (_, phase)), (device, model) in product(enumerate(chunk.cases), grid.models):
        if phase != "training":
            continue
        job = SweptJob(grid, single, (case, device, model))
        for place in np.ndindex(*space.spread[1:]):
            scaling, _, link, _, count = place
            if space.workers[count] == 1:
                continue
            row = (case, device, model, *place)
            feasible = np.flatnonzero(grid.reason.codes[row] < 0)
            if not len(feasible):
                continue
            totals = grid.batches * (space.workers[count] if space.scalings[scaling] == "weak" else 1)
            _put_step(grid, row, job, joined[link][count], feasible, totals[feasible])


def _put_step(grid: Grid, row: tuple[int, ...], job: Job, topology: Topology, batch: Ints, batch_size: Ints) -> None:
    """Fill a row, at some batches, with the steps that its strategy makes of it, or with why it makes none."""
    _, _, _, _, strategy, _, collective, _ = row
    space, columns = grid.space, grid.columns
    here: Any = (*row, batch)
    settings = Settings(collective=space.collectives[collective] or None)
    try:
        prior = cluster_prior() if job.model.is_forecast else None
        step = step_of(job, topology, settings, batch_size, space.strategies[strategy], prior)
    except PaleoError as error:
        if len(batch) > 1 and str(batch_size) in str(error):  # some of them may do
            for place in range(len(batch)):
                _put_step(grid, row, job, topology, batch[place : place + 1], batch_size[place : place + 1])
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
            stage = STRATEGIES[strategy].zero_stage if phase in WITH_GRADIENTS else 0
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

    def numbers(values: Any, *axes: str) -> Any:
        return np.broadcast_to(along(values, *axes), grid.shape).ravel()

    def words(values: Any, *axes: str) -> Words:
        names = np.asarray(values, dtype=object)
        codes = {name: code for code, name in enumerate(filter(None, dict.fromkeys(names.flat)))}  # the empty is none
        places = np.array([codes.get(name, -1) for name in names.flat], dtype=np.int32)
        return Words(numbers(places.reshape(names.shape), *axes), list(codes))

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

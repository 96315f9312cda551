"""Prediction of one chunk of a sweep: the rows of all combinations, as arrays over the named axes of a `Grid`.

Rows of several workers that train are steps of `scale`, predicted for all batch sizes at once where possible: the
strategies work on a `SweptJob`, whose device steps come from the arrays of a single worker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import date
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..counting.work import ENGINE, PHASES_WITH_GRADIENTS, passes_of
from ..distributed.clusters import cluster_prior
from ..distributed.job import Job
from ..distributed.links import Topology, flat_topology, link_inside_nodes, link_rate
from ..distributed.scale import predict_step
from ..distributed.settings import Settings
from ..distributed.step import DeviceStep, as_scalar
from ..distributed.strategies import STRATEGIES
from ..errors import BadValue, PaleoError, UnknownPrecision
from ..machines import Device, Machine, Price, find_device
from ..machines.prices import choose_price
from ..machines.registry import limit_power
from ..timing.activity import Activity, narrow_factor
from ..timing.broadcast import Passes, keep_freed_memory
from ..timing.energy import power_of
from ..timing.intervals import DIRECT_PRECISIONS
from ..timing.memory import RESERVE_BYTES, shard_model_state, usable_bytes
from ..timing.models import CALIBRATED, RequestedOutputs, RooflineModel, TimeModel, find_model
from ..timing.workload import TrainingOptions, Workload
from ..units import format_si
from ..version import __version__
from .cases import (
    build_stack,
    count_work,
    count_work_with_update,
    counted_precision,
    layer_groups,
    memory_parts,
    resolve_network,
    shared_cache,
)
from .space import AUTOMATIC, Chunk, DeviceSetting, SizedNetwork, Space

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

ChooseModel = Callable[..., TimeModel]
"""Function from device, precision, None or ``calibrated``, execution and the keyword ``is_language_model`` to the best
time model, or a `PaleoError`, such as `paleo_lite.calibration.choose.choose_model`."""

AXES = ("case", "device", "model", "scaling", "strategy", "link", "collective", "workers", "batch")
"""Axes of the rows, slowest first. A case is a network in a phase; ``batch`` is the requested batch size."""

NUMBER_COLUMNS = (
    "time_s",
    "low_s",
    "high_s",
    "bound_s",
    "throughput_per_s",
    "memory_bytes",
    "exposed_s",
    "speedup",
    "scaling_efficiency",
    "efficiency",
    "hours",
    "cost",
    "energy_j",
)
"""Columns of numbers; see docs/sweep.md."""

FORECAST, BOUND = "forecast", "bound"
"""Values of the column ``answer``."""

STRING_COLUMNS = (
    "network",
    "gpu",
    "clock",
    "precision",
    "phase",
    "scaling",
    "strategy",
    "link",
    "collective",
    "time_model",
    "calibration",
    "answer",
    "version",
    "price",
    "reason",
)
"""Columns of strings."""

Columns = dict[str, "StringColumn | Ints | Floats"]


def compute_chunk(space: Space, chunk: Chunk, choose_model: ChooseModel) -> Columns:
    """Predict all columns of a chunk.

    Raises
    ------
    PaleoError
        If a network or device is unknown.
    """
    keep_freed_memory()
    grid = Grid(space, chunk, choose_model)
    _refuse_indivisible_work(grid)
    single = single_worker_times(grid)
    _fill_single_worker_columns(grid, single)
    _fill_multi_worker_rows(grid, single)
    _fill_memory(grid)
    _fill_derived_columns(grid, single)
    is_infeasible = grid.reason.codes >= 0
    for name in NUMBER_COLUMNS:
        if name != "memory_bytes":
            grid.columns[name][is_infeasible] = np.nan
    grid.collective.codes[is_infeasible] = -1
    return _make_table(grid)


def broadcast_along(values: Any, *axes: str) -> NDArray[Any]:
    """Return an array over some axes, in the order of `AXES`, reshaped to broadcast against all rows."""
    array = np.asarray(values)
    lengths = dict(zip(axes, array.shape))
    return array.reshape([lengths.get(axis, 1) for axis in AXES])


class StringColumn:
    """A column of strings, stored as codes.

    Attributes
    ----------
    codes : ndarray of int
        Code of each row; -1 for an absent value.
    values : dict of str to int
        Codes by string.
    """

    def __init__(self, codes: NDArray[np.int32], values: Sequence[str] = ()) -> None:
        self.codes = codes
        self.values = {value: code for code, value in enumerate(values)}

    def code(self, value: str) -> int:
        """Return the code of a string; add the string if it is new."""
        return self.values.setdefault(value, len(self.values))


class Grid:
    """All rows of a chunk.

    Parameters
    ----------
    space : Space
        Space of the sweep.
    chunk : Chunk
        Part of the space.
    choose_model : callable
        See `ChooseModel`.

    Attributes
    ----------
    machines : list of Machine
        Devices of the chunk, at their clocks.
    devices : list of Device
        The same without clocks.
    listings : list of Price or None
        Price of each device; None if none is on record, or a price is given.
    models : dict of (int, int) to TimeModel
        Available time models by the indices of device and model.
    shape : tuple of int
        Shape over `AXES`.
    per_worker : ndarray of int, axes (scaling, workers, batch)
        Samples per worker; -1 where the batch is not divisible.
    columns : dict of str to ndarray
        Columns of numbers, over `AXES`.
    collective, reason : StringColumn
        Algorithm of the gradient exchange; reason why a row is infeasible.
    by_layer : bool
        Whether a strategy needs the times of single layers rather than sums over the layers of a gradient bucket.
    """

    def __init__(self, space: Space, chunk: Chunk, choose_model: ChooseModel) -> None:
        self.space, self.chunk = space, chunk
        self.machines: list[Machine] = [load_machine(device, space.hardware_files) for device in chunk.devices]
        self.devices: list[Device] = [machine.device for machine in self.machines]
        self.listings: list[Price | None] = [
            listed_price(device, space.price_usd_per_h, space.price_of) for device in self.devices
        ]
        self.shape = (len(chunk.cases), len(self.devices), *space.inner_shape, len(chunk.batch_sizes))
        self.columns: dict[str, Floats] = {}
        self.collective = StringColumn(np.full(self.shape, -1, dtype=np.int32))
        self.reason = StringColumn(np.full(self.shape, -1, dtype=np.int32))
        self.batches = np.array(chunk.batch_sizes, dtype=np.int64)
        self.workers = np.array(space.workers, dtype=np.int64)
        is_divisible = self.batches % self.workers[:, None] == 0
        strong = np.where(is_divisible, self.batches // self.workers[:, None], -1)
        weak = np.broadcast_to(self.batches, strong.shape)
        self.per_worker: Ints = np.array([weak if scaling == "weak" else strong for scaling in space.scalings])
        self.by_layer = any(STRATEGIES[name].extra_batch_sizes for name in space.strategies)
        self.models: dict[tuple[int, int], TimeModel] = {}
        self._find_models(choose_model)

    def _find_models(self, choose_model: ChooseModel) -> None:
        """Fill `models`, and refuse the rows without a model."""
        precision = self.chunk.precision
        is_generation = bool(self.chunk.cases[0][0].phase)
        execution = ENGINE if is_generation else "eager"
        network = resolve_network(self.chunk.cases[0][0])
        for device, model in np.ndindex(len(self.devices), len(self.space.time_models)):
            name, machine = self.space.time_models[model], self.machines[device]
            try:
                machine.peak(precision)
                machine.vector_peak(precision)
                if name in (AUTOMATIC, CALIBRATED):
                    required = None if name == AUTOMATIC else name
                    self.models[device, model] = choose_model(
                        machine.device,
                        precision,
                        required,
                        execution,
                        is_language_model=network.is_language_model,
                        is_text_encoder=network.is_text_encoder,
                    )
                else:
                    self.models[device, model] = find_model(name, self.space.ppp)
            except PaleoError as error:
                self.refuse(str(error), device=device, model=model)

    def refuse(self, reason: str, where: Any = True, **indices: int) -> None:
        """Set the reason of infeasible rows; a row keeps its first reason.

        Parameters
        ----------
        reason : str
            Why the rows are infeasible.
        where : array of bool
            Mask that broadcasts against the selected rows.
        **indices : int
            Selected index by axis.
        """
        selection = tuple(slice(indices[axis], indices[axis] + 1) if axis in indices else slice(None) for axis in AXES)
        codes = self.reason.codes[selection]  # a view
        is_refused = np.broadcast_to(where, codes.shape) & (codes < 0)
        if is_refused.any():
            codes[is_refused] = self.reason.code(reason)


@lru_cache(512)
def load_machine(setting: DeviceSetting, files: tuple[str, ...]) -> Machine:
    """Return a device by name, under its power limit and at its clock."""
    device = find_device(setting.gpu, [Path(file) for file in files])
    if setting.power_limit_w is not None:
        device = limit_power(device, setting.power_limit_w)
    return Machine(device, setting.clock)


def listed_price(device: Device, price_usd_per_h: float | None, price_of: str | None) -> Price | None:
    """Return the price on record of a device; None if none is, or a price is given."""
    if price_usd_per_h is not None:
        return None
    try:
        return choose_price(device, price_of)
    except BadValue:  # the cloud does not list the device
        return None


def price_text(listing: Price | None, today: date) -> str:
    """Return a price with who asks it and whether it is old; empty without one."""
    if listing is None:
        return ""
    return listing.describe() + (", older than a year" if listing.is_old(today) else "")


def _refuse_indivisible_work(grid: Grid) -> None:
    """Refuse rows with a batch or a phase that several workers cannot share."""
    space, batches = grid.space, grid.batches
    divides_batch = broadcast_along([STRATEGIES[name].divides_batch for name in space.strategies], "strategy")
    for scaling, name in enumerate(space.scalings):
        if name != "strong":
            continue
        for index, workers in enumerate(space.workers):
            is_too_small = broadcast_along(batches < workers, "batch")
            is_uneven = broadcast_along(batches % workers > 0, "batch")
            grid.refuse(
                "the batch size is smaller than the number of workers", is_too_small, scaling=scaling, workers=index
            )
            grid.refuse(
                "the batch size is not divisible by the number of workers",
                divides_batch & is_uneven,
                scaling=scaling,
                workers=index,
            )
    has_several_workers = broadcast_along(grid.workers > 1, "workers")
    is_replicated = broadcast_along([name == "data" for name in space.strategies], "strategy")
    for case, (_, phase) in enumerate(grid.chunk.cases):
        if phase not in ("training", "inference", "forward"):
            reason = f"sweeps do not support {phase} on several workers, only training and inference"
            grid.refuse(reason, has_several_workers, case=case)
        elif phase != "training":
            reason = f"{phase} on several workers supports replicas only: strategy data"
            grid.refuse(reason, has_several_workers & ~is_replicated, case=case)


ROOFLINE = RooflineModel()
"""Time model of the lower bound of every forecast."""

_BLOCK_ENTRIES = 2**15
"""Layers times batch sizes that are predicted at once, so that the arrays stay in the cache of a core."""


class SingleWorkerTimes(NamedTuple):
    """Times of a single worker, over the axes (case, device, model, batch size per worker)."""

    sizes: Ints  # batch sizes per worker, in rising order
    # Step time and the ends of its 90% interval.
    time_s: Floats
    low_s: Floats
    high_s: Floats
    bound_s: Floats  # lower bound by data sheets; (case, device, batch size per worker)
    flops: Floats  # FLOPs; (case, batch size per worker)
    activity: Activity  # what the device does, arrays over the axes of `time_s`
    # Times by pass, by the indices of case, device and model; filled only if there are several workers.
    passes: dict[tuple[int, int, int], Passes]

    def index_of(self, per_worker: Ints) -> Ints:
        """Return the index of each per-worker batch size in `sizes`; 0 for -1, which is absent."""
        return np.where(per_worker < 0, 0, np.searchsorted(self.sizes, per_worker))


def single_worker_times(grid: Grid) -> SingleWorkerTimes:
    """Predict every case on every device by every model, at all per-worker batch sizes of the grid.

    As many cases are stacked as fit into a block together with the batch sizes.
    """
    space, chunk = grid.space, grid.chunk
    has_several_workers = max(space.workers) > 1
    sizes = _per_worker_sizes(grid)
    shape = (*grid.shape[:3], len(sizes))
    time_s, low_s, high_s, arithmetic_s, memory_s, peak_s = (np.full(shape, np.nan) for _ in range(6))
    flops = np.empty((len(chunk.cases), len(sizes)))
    bound_s = np.full((len(chunk.cases), len(grid.devices), len(sizes)), np.nan)
    blocks_of_passes: dict[tuple[int, int, int], list[Passes]] = defaultdict(list)
    width = min(len(sizes), 256)
    bound_outputs = RequestedOutputs(interval=False, activity=True)
    devices_with_model = {device for device, _ in grid.models}
    for first, last in _group_cases(chunk.cases, _BLOCK_ENTRIES // width):
        stack = build_stack(
            chunk.cases[first:last],
            counted_precision(chunk.precision),
            space.optimizer,
            grid.by_layer if has_several_workers else None,
        )
        for start in range(0, len(sizes), width):
            block = slice(start, min(start + width, len(sizes)))
            batched = stack.at_batch_sizes(sizes[block])
            flops[first:last, block] = batched.sum_by_case(batched.features.flops)
            for device in devices_with_model:
                machine = grid.machines[device]
                bound = ROOFLINE.evaluate_many(batched, machine, chunk.precision, bound_outputs)
                bound_s[first:last, device, block] = bound.time_s
                assert bound.activity is not None
                factor = narrow_factor(grid.devices[device], chunk.precision)
                peak_s[first:last, device, :, block] = factor * bound.activity.peak_s[:, None]
            outputs = RequestedOutputs(pieces=has_several_workers, activity=True)
            for (device, number), model in grid.models.items():
                times = model.evaluate_many(batched, grid.machines[device], chunk.precision, outputs)
                selection = (slice(first, last), device, number, block)
                time_s[selection] = times.time_s
                assert times.activity is not None
                arithmetic_s[selection], memory_s[selection] = times.activity.arithmetic_s, times.activity.memory_s
                if times.low_s is not None and times.high_s is not None:
                    low_s[selection], high_s[selection] = times.low_s, times.high_s
                if times.pieces_s is not None:
                    for case in range(first, last):
                        case_passes = stack.passes_of(case - first, times.pieces_s)
                        blocks_of_passes[case, device, number].append(case_passes)
    passes = {}
    for key, blocks in blocks_of_passes.items():
        passes[key] = Passes(*(np.concatenate(seconds, axis=-1) for seconds in zip(*blocks)))
    activity = Activity(arithmetic_s, memory_s, peak_s=peak_s)
    return SingleWorkerTimes(sizes, time_s, low_s, high_s, bound_s, flops, activity, passes)


def _per_worker_sizes(grid: Grid) -> Ints:
    """Return all batch sizes of a single device that the rows need, in rising order."""
    space, chunk = grid.space, grid.chunk
    sizes, extra_sizes = [grid.batches], []
    for scaling, workers in product(space.scalings, space.workers):
        global_batches = grid.batches * workers if scaling == "weak" else grid.batches
        sizes.append(global_batches // workers)
        if workers > 1:
            for list_sizes in {STRATEGIES[strategy].extra_batch_sizes for strategy in space.strategies}:
                if list_sizes is not None:
                    extra_sizes += list_sizes(global_batches, workers)
    if extra_sizes:
        for network, phase in chunk.cases:
            if phase == "training":
                work = count_work_with_update(network, counted_precision(chunk.precision), space.optimizer)
                largest = 2**62 // max(int(work.per_sample.sum()), 1)
                sizes += [batches[batches <= largest] for batches in extra_sizes]
    unique_sizes = np.unique(np.concatenate(sizes))
    return unique_sizes[unique_sizes > 0]


def _group_cases(cases: Sequence[tuple[SizedNetwork, str]], max_entries: int) -> list[tuple[int, int]]:
    """Divide the cases into neighbouring groups of about `max_entries` entries.

    A stack merges equal layers, which leaves about a third of all entries.
    """
    groups, first, entries = [], 0, 0
    for index, (network, phase) in enumerate(cases):
        entries += len(resolve_network(network).layers) * len(passes_of(phase)) // 3 + 1
        if entries >= max_entries:
            groups.append((first, index + 1))
            first, entries = index + 1, 0
    if first < len(cases):
        groups.append((first, len(cases)))
    return groups


def _fill_single_worker_columns(grid: Grid, single: SingleWorkerTimes) -> None:
    """Fill the columns of times, as if every worker ran alone."""
    indices = single.index_of(grid.per_worker)
    bound_s = np.broadcast_to(single.bound_s[:, :, None], single.time_s.shape)
    low_s = single.low_s
    if grid.chunk.precision in DIRECT_PRECISIONS:
        low_s = np.minimum(np.maximum(low_s, bound_s), single.time_s)
    times = {"time_s": single.time_s, "low_s": low_s, "high_s": single.high_s, "bound_s": bound_s}
    for name, seconds in times.items():
        worker_seconds = np.where(grid.per_worker > 0, seconds[..., indices], np.nan)
        rows = broadcast_along(worker_seconds, "case", "device", "model", "scaling", "workers", "batch")
        grid.columns[name] = np.broadcast_to(rows, grid.shape).copy()
    grid.columns["exposed_s"] = np.zeros(grid.shape)


def _fill_multi_worker_rows(grid: Grid, single: SingleWorkerTimes) -> None:
    """Predict the rows of several workers that train."""
    space, chunk = grid.space, grid.chunk
    if max(space.workers) == 1:
        return
    for (case, (_, phase)), (device, model) in product(enumerate(chunk.cases), grid.models):
        if phase != "training":
            continue
        job = SweptJob(grid, single, (case, device, model))
        names = [link_inside_nodes(link, job.machine.device)[0] for link in space.links]
        topologies = [[flat_topology(link_rate(name), workers) for workers in space.workers] for name in names]
        for inner_index in np.ndindex(*space.inner_shape[1:]):
            scaling, _, link_index, _, workers_index = inner_index
            workers = space.workers[workers_index]
            if workers == 1:
                continue
            row = (case, device, model, *inner_index)
            feasible = np.flatnonzero(grid.reason.codes[row] < 0)
            if not len(feasible):
                continue
            global_batches = grid.batches * (workers if space.scalings[scaling] == "weak" else 1)
            topology = topologies[link_index][workers_index]
            _fill_row(grid, row, job, topology, feasible, global_batches[feasible])


def _fill_row(
    grid: Grid, row: tuple[int, ...], job: Job, topology: Topology, batch_indices: Ints, batch_sizes: Ints
) -> None:
    """Fill a row at some batch sizes with the steps of its strategy, or with the reason why they are impossible.

    Parameters
    ----------
    row : tuple of int
        Indices over all axes but the last, the batch sizes.
    batch_indices : ndarray of int
        Indices of the batch sizes.
    batch_sizes : ndarray of int
        Their global batch sizes.
    """
    index_of = dict(zip(AXES, row))
    space, columns = grid.space, grid.columns
    strategy, collective = space.strategies[index_of["strategy"]], space.collectives[index_of["collective"]]
    selection: Any = (*row, batch_indices)
    settings = Settings(collective=collective or None)
    try:
        prior = cluster_prior() if job.model.is_forecast else None
        step = predict_step(job, topology, settings, batch_sizes, strategy, prior)
    except PaleoError as error:
        if len(batch_indices) > 1 and str(batch_sizes) in str(error):  # some of the batch sizes may be possible
            for index in range(len(batch_indices)):
                one = slice(index, index + 1)
                _fill_row(grid, row, job, topology, batch_indices[one], batch_sizes[one])
            return
        reason = str(error).replace(str(batch_sizes), str(batch_sizes[0]))  # a number instead of an array of one
        is_selected = np.isin(np.arange(len(grid.batches)), batch_indices)
        grid.refuse(reason, is_selected, **index_of)
        return
    columns["time_s"][selection] = step.time_s
    columns["exposed_s"][selection] = step.exposed_s
    columns["low_s"][selection], columns["high_s"][selection] = step.interval or (np.nan, np.nan)
    memory = columns.setdefault("own_memory_bytes", np.full(grid.shape, np.nan))
    memory[selection] = np.inf if step.memory_bytes is None else step.memory_bytes
    names = np.asarray(step.collective, dtype=object)
    codes = [grid.collective.code(name) if name else -1 for name in names.ravel().tolist()]
    grid.collective.codes[selection] = np.reshape(codes, names.shape)


class SweptJob(Job):
    """A job whose device steps come from the arrays of a sweep; a group of layers counts as equal layers.

    Parameters
    ----------
    grid : Grid
        Rows of the chunk.
    single : SingleWorkerTimes
        Times of a single worker.
    key : tuple of int
        Indices of case, device and model.
    """

    def __init__(self, grid: Grid, single: SingleWorkerTimes, key: tuple[int, int, int]) -> None:
        case, device, model = key
        network, precision = grid.chunk.cases[case][0], counted_precision(grid.chunk.precision)
        options = TrainingOptions(grid.space.optimizer)
        uncounted = Workload(resolve_network(network), grid.chunk.precision, phase="training", training=options)
        workload = uncounted.with_work(count_work(network, precision))
        super().__init__(workload, grid.machines[device], grid.models[device, model])
        self.single = single
        self.key = key
        self._cache_across_models = shared_cache(network, precision, grid.space.optimizer)
        self._layer_group = np.array(layer_groups(network, precision, grid.space.optimizer, grid.by_layer))

    def _predict_device_step(self, batch_size: Any) -> DeviceStep:
        single = self.single
        layers_per_group = np.bincount(self._layer_group)[:, None]
        indices = np.searchsorted(single.sizes, batch_size)
        if not np.array_equal(single.sizes.take(indices, mode="clip"), batch_size):
            raise BadValue(f"the counts overflow at a batch size of {batch_size}")
        time_s, low_s, high_s = (times[self.key][indices] for times in (single.time_s, single.low_s, single.high_s))
        forward_s, update_s, backward_s = (seconds[..., indices] for seconds in single.passes[self.key])
        total_forward_s = forward_s.sum(axis=0)
        # The remainder is the overhead of the step, which is spread over the forward pass.
        overhead_s = time_s - total_forward_s - update_s - backward_s.sum(axis=0)
        with np.errstate(invalid="ignore"):
            shares = np.where(total_forward_s, forward_s / total_forward_s, layers_per_group / layers_per_group.sum())
        return DeviceStep.from_passes(
            (forward_s + overhead_s * shares) / layers_per_group,
            backward_s / layers_per_group,
            update_s,
            self._layer_group,
            memory_bytes=as_scalar(self.device_memory(batch_size).total_bytes),
            interval=None if np.isnan(low_s).any() else (low_s, high_s),
        )


def _fill_memory(grid: Grid) -> None:
    """Fill the peak memory of one device, and refuse the rows that do not fit."""
    memory = np.empty(grid.shape)
    space, precision = grid.space, counted_precision(grid.chunk.precision)
    per_worker = np.where(grid.per_worker > 0, grid.per_worker, np.nan)
    batches = broadcast_along(per_worker, "scaling", "workers", "batch")
    for case, (network, phase) in enumerate(grid.chunk.cases):
        model_state, fixed_bytes, per_sample_bytes = memory_parts(network, precision, phase, space.optimizer)
        state_bytes = []
        for strategy in space.strategies:
            stage = STRATEGIES[strategy].zero_stage if phase in PHASES_WITH_GRADIENTS else 0
            sharded = sum(shard_model_state(model_state, stage, grid.workers))
            state_bytes.append(np.broadcast_to(sharded, grid.workers.shape))
        state = broadcast_along(state_bytes, "strategy", "workers")
        memory[case] = (fixed_bytes + state + per_sample_bytes * batches)[0]
    strategy_memory = grid.columns.pop("own_memory_bytes", None)  # of several workers that train; inf: unknown
    if strategy_memory is not None:
        known = np.where(np.isinf(strategy_memory), np.nan, strategy_memory)
        memory = np.where(np.isnan(strategy_memory), memory, known)
    grid.columns["memory_bytes"] = memory
    for index, device in enumerate(grid.devices):
        with np.errstate(invalid="ignore"):
            is_too_large = memory[:, index : index + 1] > usable_bytes(device)
        reason = (
            f"does not fit into the {format_si(device.memory_bytes, 'B', 3)} of {device.id}, of which "
            f"{format_si(RESERVE_BYTES, 'B')} are reserved"
        )
        grid.refuse(reason, is_too_large, device=index)


def _fill_derived_columns(grid: Grid, single: SingleWorkerTimes) -> None:
    """Fill the columns that follow from the step time."""
    space, columns = grid.space, grid.columns
    time_s, workers = columns["time_s"], broadcast_along(grid.workers, "workers")
    is_weak = broadcast_along([scaling == "weak" for scaling in space.scalings], "scaling")
    throughput = broadcast_along(grid.batches, "batch") * np.where(is_weak, workers, 1) / time_s
    columns["throughput_per_s"] = throughput
    if max(space.workers) == 1:
        columns["speedup"] = np.ones(grid.shape)
    else:
        seconds_per_sample = single.time_s[..., np.searchsorted(single.sizes, grid.batches)] / grid.batches
        columns["speedup"] = throughput * broadcast_along(seconds_per_sample, "case", "device", "model", "batch")
    columns["scaling_efficiency"] = columns["speedup"] / workers
    worker_flops = np.where(grid.per_worker > 0, single.flops[:, single.index_of(grid.per_worker)], np.nan)
    flops = broadcast_along(worker_flops, "case", "scaling", "workers", "batch")
    peaks = [_peak_per_s(machine, grid.chunk.precision) for machine in grid.machines]
    prices = [_price_usd_per_h(space, listing) for listing in grid.listings]
    # An unknown value, None, becomes NaN, and so do the columns that depend on it.
    peak = broadcast_along(np.array(peaks, dtype=np.float64), "device")
    price = broadcast_along(np.array(prices, dtype=np.float64), "device")
    columns["efficiency"] = flops / (time_s * peak)
    hours = space.samples / throughput / 3600
    columns["hours"] = hours
    columns["cost"] = hours * workers * price
    columns["energy_j"] = hours * 3600 * workers * _watts(grid, single)


def _price_usd_per_h(space: Space, listing: Price | None) -> float | None:
    """Return the given price of a device, or the listed one; None if neither is known."""
    if space.price_usd_per_h:
        return space.price_usd_per_h
    return None if listing is None else listing.usd_per_h


def _peak_per_s(machine: Machine, precision: str) -> float | None:
    """Return the peak of a device in a precision at its clock; None without one."""
    try:
        return machine.device.find_peak(precision, clock=machine.clock).per_s
    except UnknownPrecision:
        return None


def _watts(grid: Grid, single: SingleWorkerTimes) -> Floats:
    """Return the average power of a device: the given one, that of the power model, or else the rated one; NaN if
    unknown."""
    given_w, time_s, exposed_s = grid.space.power_w, grid.columns["time_s"], grid.columns["exposed_s"]
    watts = np.full(grid.shape, np.nan if given_w is None else given_w)
    if given_w is not None:
        return watts
    indices = single.index_of(grid.per_worker)
    for (index, number), model in grid.models.items():
        device, machine = grid.devices[index], grid.machines[index]
        has_peak = _peak_per_s(machine, grid.chunk.precision) is not None
        power = None
        if has_peak:
            relative_clock = machine.relative_clock(grid.chunk.precision)
            power = power_of(device, relative_clock, constants=model.power_constants)
        own = slice(None), slice(index, index + 1), slice(number, number + 1)
        if power is None:
            watts[own] = device.power_w or np.nan
            continue

        def of_rows(seconds: Any, own: tuple[slice, ...] = own) -> Any:
            rows = np.asarray(seconds)[own][..., indices]
            return broadcast_along(rows, "case", "device", "model", "scaling", "workers", "batch")

        alone = Activity(*(of_rows(seconds) if np.ndim(seconds) else seconds for seconds in single.activity))
        step_s, exchanging_s = time_s[own], exposed_s[own]
        activity = alone.in_larger_step(of_rows(single.time_s), step_s, exchanging_s)
        watts[own] = power.watts(activity.shares_of(step_s))
    return watts


def _effective_limit_w(device: Device) -> float:
    """Return the requested power limit of a device in watts, but at most that of the data sheet; NaN if not given."""
    if device.requested_power_limit_w is None:
        return np.nan
    return min(device.requested_power_limit_w, device.rated_power_w or np.inf)


def _make_table(grid: Grid) -> Columns:
    """Return the columns in their order, flattened to one value per row."""
    space, chunk = grid.space, grid.chunk

    def numbers(values: Any, *axes: str) -> Any:
        return np.broadcast_to(broadcast_along(values, *axes), grid.shape).ravel()

    def strings(values: Any, *axes: str) -> StringColumn:
        """Return a string column; an empty string is absent."""
        array = np.asarray(values, dtype=object)
        unique_values = [value for value in dict.fromkeys(array.flat) if value]
        code_of = {value: code for code, value in enumerate(unique_values)}
        codes = np.array([code_of.get(value, -1) for value in array.flat], dtype=np.int32)
        return StringColumn(numbers(codes.reshape(array.shape), *axes), unique_values)

    model_names = np.full(grid.shape[1:3], "", dtype=object)
    calibrations = np.full(grid.shape[1:3], "", dtype=object)
    answers = np.full(grid.shape[1:3], "", dtype=object)
    for key, model in grid.models.items():
        model_names[key] = model.name
        calibrations[key] = model.label
        answers[key] = FORECAST if model.is_forecast else BOUND
    lengths = np.array([-1 if network.length is None else network.length for network, _ in chunk.cases])
    for column in (grid.collective, grid.reason):
        column.codes = column.codes.ravel()
    return {
        "network": strings([network.name for network, _ in chunk.cases], "case"),
        "gpu": strings([device.gpu for device in chunk.devices], "device"),
        "power_limit_w": numbers([_effective_limit_w(device) for device in grid.devices], "device"),
        "clock": strings([machine.clock or "" for machine in grid.machines], "device"),
        "precision": strings([chunk.precision]),
        "phase": strings([phase for _, phase in chunk.cases], "case"),
        "sequence_length": numbers(lengths, "case"),
        "batch_size": numbers(grid.batches, "batch"),
        "workers": numbers(grid.workers, "workers"),
        "scaling": strings(space.scalings, "scaling"),
        "strategy": strings(space.strategies, "strategy"),
        "link": strings(space.links, "link"),
        "collective": grid.collective,
        "batch_size_per_worker": numbers(grid.per_worker, "scaling", "workers", "batch"),
        "time_model": strings(model_names, "device", "model"),
        "calibration": strings(calibrations, "device", "model"),
        "answer": strings(answers, "device", "model"),
        "version": strings([__version__]),
        **{name: grid.columns[name].ravel() for name in NUMBER_COLUMNS},
        "price": strings([price_text(listing, date.today()) for listing in grid.listings], "device"),
        "reason": grid.reason,
    }

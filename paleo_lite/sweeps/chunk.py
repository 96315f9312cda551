"""Prediction of one chunk of a sweep: the rows of all combinations, as arrays over the named axes of a `Grid`."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

import numpy as np

from ..counting.work import PHASES_WITH_GRADIENTS
from ..distributed.strategies import STRATEGIES
from ..errors import UnknownPrecision
from ..machines import Device, Machine, Price
from ..timing.activity import Activity
from ..timing.answer import BOUND, FORECAST
from ..timing.broadcast import keep_freed_memory
from ..timing.energy import Power, PowerConstants, power_of
from ..timing.intervals import DIRECT_PRECISIONS, not_below
from ..timing.memory import RESERVE_BYTES, shard_model_state, usable_bytes
from ..units import format_si
from ..version import __version__
from .cases import counted_precision, memory_parts
from .columns import Columns, StringColumn, price_text
from .grid import ChooseModel, Grid, broadcast_along
from .rows import TIMES
from .several_workers import fill_several_workers
from .single_worker import SingleWorkerTimes, fill_engine_times, refuse_experts_of_layers, single_worker_times
from .space import Chunk, Space

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

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
    "power_w",
    "energy_j",
    "hours",
    "cost_usd",
    "kwh",
)
"""Columns of numbers; see docs/sweep.md."""

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


def compute_chunk(space: Space, chunk: Chunk, choose_model: ChooseModel) -> Columns:
    """Predict all columns of a chunk; raise PaleoError if a network or device is unknown."""
    keep_freed_memory()
    grid = Grid(space, chunk, choose_model)
    grid.refuse_training_in_formats()
    _refuse_indivisible_work(grid)
    refuse_experts_of_layers(grid)
    single = single_worker_times(grid)
    fill_engine_times(grid, single)
    _fill_single_worker_columns(grid, single)
    fill_several_workers(grid, single)
    is_impossible = grid.reason.codes >= 0
    _fill_memory(grid)
    _fill_derived_columns(grid, single)
    is_infeasible = grid.reason.codes >= 0
    # What does not fit keeps the time that it would take with more memory.
    for name in NUMBER_COLUMNS:
        if name != "memory_bytes":
            grid.columns[name][is_impossible if name in TIMES else is_infeasible] = np.nan
    grid.collective.codes[is_infeasible] = -1
    return _make_table(grid)


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


def _fill_single_worker_columns(grid: Grid, single: SingleWorkerTimes) -> None:
    """Fill the columns of times, as if every worker ran alone."""
    indices = single.index_of(grid.per_worker)
    bound_s, low_s = single.bound_s, single.low_s
    if grid.chunk.precision in DIRECT_PRECISIONS:
        low_s = not_below(low_s, bound_s, single.time_s)
    times = {"time_s": single.time_s, "low_s": low_s, "high_s": single.high_s, "bound_s": bound_s}
    for name, seconds in times.items():
        worker_seconds = np.where(grid.per_worker > 0, seconds[..., indices], np.nan)
        rows = broadcast_along(worker_seconds, "case", "device", "model", "scaling", "workers", "batch")
        grid.columns[name] = np.broadcast_to(rows, grid.shape).copy()
    grid.columns["exposed_s"] = np.zeros(grid.shape)


def _fill_memory(grid: Grid) -> None:
    """Fill the peak memory of one device, and refuse the rows that do not fit."""
    memory = np.empty(grid.shape)
    space, precision = grid.space, counted_precision(grid.chunk.precision, grid.chunk.weights)
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
        known_memory = np.where(np.isinf(strategy_memory), np.nan, strategy_memory)
        memory = np.where(np.isnan(strategy_memory), memory, known_memory)
    grid.columns["memory_bytes"] = memory
    for index, device in enumerate(grid.devices):
        with np.errstate(invalid="ignore"):
            is_too_large = memory[:, index : index + 1] > usable_bytes(device)
        reason = (
            f"does not fit into the {format_si(device.reported_memory_bytes, 'B', 3)} of {device.id}, of which "
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
    worker_flops = np.where(grid.per_worker > 0, single.flops[..., single.index_of(grid.per_worker)], np.nan)
    flops = broadcast_along(worker_flops, "case", "device", "model", "scaling", "workers", "batch")
    peaks = [_peak_per_s(machine, grid.chunk.precision) for machine in grid.machines]
    prices = [_price_usd_per_h(space, listing) for listing in grid.listings]
    # An unknown value, None, becomes NaN, and so do the columns that depend on it.
    peak = broadcast_along(np.array(peaks, dtype=np.float64), "device")
    price = broadcast_along(np.array(prices, dtype=np.float64), "device")
    columns["efficiency"] = flops / (time_s * peak)
    hours = space.samples / throughput / 3600
    columns["hours"] = hours
    columns["cost_usd"] = hours * workers * price
    columns["power_w"] = _watts(grid, single)
    columns["energy_j"] = workers * columns["power_w"] * time_s
    columns["kwh"] = hours * workers * columns["power_w"] / 1e3


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


def _modelled_power(machine: Machine, precision: str, constants: PowerConstants | None) -> Power | None:
    """Return what a device draws by the power model; None if the model does not know it, or it has no peak."""
    if _peak_per_s(machine, precision) is None:
        return None
    return power_of(machine.device, machine.relative_clock(precision), constants=constants)


def _watts(grid: Grid, single: SingleWorkerTimes) -> Floats:
    """Return the average power of a device: the given one, that of the power model, or else the rated one; NaN if
    unknown."""
    given_w, time_s, exposed_s = grid.space.power_w, grid.columns["time_s"], grid.columns["exposed_s"]
    watts = np.full(grid.shape, np.nan if given_w is None else given_w)
    if given_w is not None:
        return watts
    indices = single.index_of(grid.per_worker)
    for (index, number), model in grid.models.items():
        machine = grid.machines[index]
        power = _modelled_power(machine, grid.chunk.precision, model.power_constants)
        selection = slice(None), slice(index, index + 1), slice(number, number + 1)
        if power is None:
            watts[selection] = machine.device.power_w or np.nan
            continue

        def of_rows(seconds: Any, selection: tuple[slice, ...] = selection) -> Any:
            rows = np.asarray(seconds)[selection][..., indices]
            return broadcast_along(rows, "case", "device", "model", "scaling", "workers", "batch")

        activity_alone = Activity(*(of_rows(seconds) if np.ndim(seconds) else seconds for seconds in single.activity))
        step_s, exchanging_s = time_s[selection], exposed_s[selection]
        activity = activity_alone.in_larger_step(of_rows(single.time_s), step_s, exchanging_s)
        watts[selection] = power.watts(activity.shares_of(step_s))
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
        "precision": strings([chunk.weights or chunk.precision]),
        "phase": strings([phase for _, phase in chunk.cases], "case"),
        _length_column(space): numbers(lengths, "case"),
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
        "price": strings([price_text(listing, space.as_of or date.today()) for listing in grid.listings], "device"),
        "reason": grid.reason,
    }


def _length_column(space: Space) -> str:
    """Return the column of the tokens: those in the cache if all rows decode, as of the option that states them."""
    return "context" if set(space.phases) == {"decode"} else "sequence_length"

"""The note on a micro-batch that is larger than one sample, fits as well, and is faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from ..errors import BadValue
from ..timing.memory import usable_bytes
from ..units import format_number
from .clusters import Cluster
from .job import Job
from .links import Topology
from .scale import predict_step
from .settings import Settings
from .table import ScaleRow

MICRO_BATCHES_TRIED = (64, 32, 16, 8, 4, 2)
"""Sizes of micro-batches of which the largest that fits is compared with a single sample."""

_WORTH_SAYING = 1.05
"""Gain in speed from which a note names it."""


class Trial(NamedTuple):
    """A step with another micro-batch."""

    fits: bool | None  # None if the memory is not known
    throughput_per_s: float  # samples


def find_faster_micro_batch(
    option: str,  # with which the command line sets it
    throughput_per_s: float,  # with one sample
    values: Iterable[int],  # of the option, the largest first
    attempt: Callable[[int], Trial],
) -> str | None:
    """Return the note on the largest micro-batch that fits and is faster than a single sample; None without one."""
    for value in values:
        try:
            trial = attempt(value)
        except BadValue:
            continue  # the batch is not divisible by such micro-batches
        ratio = trial.throughput_per_s / throughput_per_s
        if trial.fits is not False and ratio >= _WORTH_SAYING:
            return (
                f"a larger micro-batch also fits and is {ratio:.2f} times as fast: "
                f"{format_number(trial.throughput_per_s)} instead of {format_number(throughput_per_s)} samples/s with "
                f"`{option} {value}`"
            )
    return None


def larger_micro_batch_note(
    job: Job,
    topology: Topology,  # of as many devices as the row has
    settings: Settings,
    row: ScaleRow,
    *,
    states_size: bool,  # whether the size of micro-batches is asked for, and not their number
    fixes_batch: bool,  # whether the batch of all devices is asked for
    cluster: Cluster | None,  # knowledge of similar clusters
) -> str | None:
    """Return the note on micro-batches of a row that has one sample in each; None if there is nothing to say."""
    parallel = settings.parallel
    if row.fits is False or parallel is None:
        return None
    if parallel.of_batch(row.batch_size, row.workers).micro_batch_size > 1:
        return None
    changes_size = states_size or not parallel.micro_batches

    def attempt(size: int, batch_size: int) -> Trial:
        changed = settings
        if changes_size:
            larger = msgspec.structs.replace(parallel, micro_batch_size=size, micro_batches=0)
            changed = msgspec.structs.replace(settings, parallel=larger)
        step = predict_step(job, topology, changed, batch_size, row.strategy, cluster)
        fits = None if step.memory_bytes is None else step.memory_bytes <= usable_bytes(job.machine.device)
        return Trial(fits, batch_size / float(step.time_s))

    if changes_size:
        samples_per_replica = row.batch_size // max(row.workers // parallel.devices_per_replica, 1)
        sizes = (size for size in MICRO_BATCHES_TRIED if samples_per_replica % size == 0)
        return find_faster_micro_batch(
            "--micro-batch", row.throughput_per_s, sizes, lambda size: attempt(size, row.batch_size)
        )
    if fixes_batch:
        return None
    number = parallel.micro_batches
    return find_faster_micro_batch(
        "--batch-size",
        row.throughput_per_s,
        (size * number for size in MICRO_BATCHES_TRIED),
        lambda per_device: attempt(per_device // number, per_device * row.workers),
    )

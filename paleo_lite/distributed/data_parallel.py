"""Data parallelism: the whole network on every device, plain or with ZeRO's divided state (Rajbhandari et al. 2020).

All of it is written over arrays: a sweep asks for many batch sizes at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ..errors import BadValue
from .exchange import exchange_time_s, fastest, half_collective
from .job import Job, Settings, gradient_bytes
from .overlap import Buckets, exposed_s, finish_s, make_buckets, messages_of
from .step import DeviceStep, Step, plain
from .topology import Topology

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Run = Callable[[Job, Topology, Any, Settings], Step]
"""A strategy: what becomes of a step, from the batch size of all devices together."""


class Exchange(NamedTuple):
    """What a step exchanges, the same at every batch size.

    Attributes
    ----------
    buckets : Buckets
        Of gradients, exchanged beside the backward pass.
    bucket_s : ndarray, shape (buckets,)
        Seconds of each.
    collective : str
    behind_s : float
        Seconds of what nothing hides.
    """

    buckets: Buckets
    bucket_s: Floats
    collective: str
    behind_s: float = 0.0


def beside_backward(step: DeviceStep, exchange: Exchange, settings: Settings) -> Step:
    """The step of one of several devices, gradients exchanged beside its backward pass."""
    longer = 1 + settings.slowdown
    total = float(exchange.bucket_s.sum())
    exposed: Any = total
    if settings.overlap:
        # Only the last micro-batch's backward pass makes gradients that are exchanged.
        ready = exchange.buckets.ready_s(step.backward_s * (longer / step.micro_batches))
        could_hide = total - plain(exposed_s(ready[:-1].T, exchange.bucket_s, ready[-1]))
        exposed = total - settings.hiding * could_hide
    losses = {}
    if settings.slowdown:
        losses["slowdown"] = step.compute_s * settings.slowdown
    disturbed = settings.interference * (total - exposed)
    if settings.interference:
        losses["interference"] = disturbed
    return Step(
        step.compute_s * longer + disturbed, total + exchange.behind_s, exposed + exchange.behind_s, step.update_s,
        step.memory_bytes, exchange.collective, losses,
    )  # fmt: skip


def samples_each(batch_size: Any, workers: int, what: str) -> Any:
    """Samples per worker.

    Raises
    ------
    BadValue
        If the batch cannot be shared out evenly.
    """
    if np.any(batch_size < workers):
        raise BadValue(f"a batch of {batch_size} is smaller than {workers} workers: {what} needs a sample for each")
    if np.any(batch_size % workers):
        below, above = batch_size // workers * workers, (batch_size // workers + 1) * workers
        raise BadValue(
            f"{workers} workers do not divide a batch of {batch_size}: use a batch of {below} or {above}, for example"
        )
    return batch_size // workers


def all_reduced(job: Job, topology: Topology, settings: Settings, layers: int | None = None) -> Exchange:
    """Gradients (of the first `layers`) added up by an all-reduce."""
    gradients = gradient_bytes(job.workload, settings.gradient_precision)[:layers]
    buckets = job.buckets(gradients, settings)
    collective = settings.collective or fastest(topology, messages_of(gradients, settings.bucket_bytes))
    return Exchange(buckets, np.asarray(exchange_time_s(topology, buckets.message_bytes, collective)), collective)


def data(job: Job, topology: Topology, batch_size: Any, settings: Settings) -> Step:
    """Every device has the whole network and its share of the batch; gradients are added up by an all-reduce."""
    step = job.at(samples_each(batch_size, topology.workers, "data parallelism"))
    if topology.workers == 1:
        return step
    return beside_backward(step, job.once(all_reduced, topology, settings), settings)


class _Halves(NamedTuple):
    """Reduce-scatter and all-gather, each half of an all-reduce."""

    topology: Topology
    collective: str

    def half_s(self, message_bytes: Any) -> Floats:
        """Seconds of one of the two, of each message."""
        return np.asarray(exchange_time_s(self.topology, message_bytes, self.collective), dtype=np.float64) / 2


def scattered(job: Job, topology: Topology, settings: Settings, stage: int) -> Exchange:
    """Gradients scattered and parameters gathered, as a stage of ZeRO does.

    Together they move as much as one all-reduce. From stage 3 on each bucket of gradients is scattered beside the
    all-gather of as many parameters for the backward pass; a second all-gather, for the forward pass, comes on top.
    """
    halves = _Halves(topology, half_collective(topology, settings.collective, f"zero-{stage}"))
    gradients, parameters = gradient_bytes(job.workload, settings.gradient_precision), gradient_bytes(job.workload)
    buckets = job.buckets(gradients, settings)
    seconds = halves.half_s(buckets.message_bytes)
    if stage == 3:
        per_parameter = float(gradients.sum() / parameters.sum()) if parameters.sum() else 1.0
        return Exchange(buckets, seconds + halves.half_s(buckets.message_bytes / per_parameter), halves.collective)
    gather = halves.half_s(messages_of(parameters, settings.bucket_bytes))
    return Exchange(buckets, seconds, halves.collective, float(gather.sum()))


def zero(stage: int) -> Run:
    """Data parallelism with optimizer state (stage 1), gradients (2), parameters (3) divided among the devices.

    Reduce-scatter of gradients and all-gather of parameters move as much as one all-reduce; stage 3 gathers parameters
    twice, before the forward and before the backward pass: 1.5 times as much (Rajbhandari et al. 2020, section 7).
    """

    def run(job: Job, topology: Topology, batch_size: Any, settings: Settings) -> Step:
        workers = topology.workers
        samples = samples_each(batch_size, workers, "ZeRO")
        alone, memory = job.at(samples), job.memory_bytes(samples, stage, workers)
        if workers == 1:
            return msgspec.structs.replace(alone, memory_bytes=memory)
        exchange = job.once(scattered, topology, settings, stage)
        step = beside_backward(alone, exchange, settings)
        communication, exposed = step.communication_s, step.exposed_s
        if stage == 3:
            gathered, late = _gathered_ahead(job, alone, _Halves(topology, exchange.collective), settings)
            communication, exposed = communication + gathered, exposed + late
        # From stage 2 on no device has room for all gradients: every micro-batch exchanges anew.
        often = alone.micro_batches if stage >= 2 else 1
        return msgspec.structs.replace(
            step, communication_s=communication * often, exposed_s=exposed * often, update_s=alone.update_s / workers,
            memory_bytes=memory,
        )  # fmt: skip

    return run


def _gathered_ahead(job: Job, step: DeviceStep, halves: _Halves, settings: Settings) -> tuple[float, Any]:
    """Seconds in which parameters are gathered ahead of a forward pass, and seconds that it waits for them.

    A bucket's layers begin when it is there and the ones before are done: the mirror image of `finish_s`.
    """
    parameters = gradient_bytes(job.workload)
    total = float(halves.half_s(messages_of(parameters, settings.bucket_bytes)).sum())
    ahead = make_buckets(parameters[::-1], settings.bucket_bytes, settings.bucket_bytes)
    if not len(ahead.message_bytes):
        return total, 0.0
    gathered = halves.half_s(ahead.message_bytes)
    if not settings.overlap:
        return total, float(gathered.sum())
    forward_s = step.forward_s * ((1 + settings.slowdown) / step.micro_batches)
    ready = ahead.ready_s(forward_s[::-1])
    # Layers without parameters behind the last bucket belong to it: the pass waits for nothing before them.
    spans = np.diff(np.concatenate([np.zeros_like(ready[:1]), ready[:-2], ready[-1:]]), axis=0)
    return total, plain(np.maximum(finish_s(np.cumsum(gathered), spans.T) - ready[-1], 0.0))

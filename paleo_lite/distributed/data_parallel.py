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
from .job import Job, Settings
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
        ready = step.ready_s(exchange.buckets) * (longer / step.micro_batches)
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
    gradients = job.gradients(settings.gradient_precision)[:layers]
    buckets = job.buckets(settings, layers)
    collective = settings.collective or fastest(topology, messages_of(gradients, settings.bucket_bytes))
    return Exchange(buckets, np.asarray(exchange_time_s(topology, buckets.message_bytes, collective)), collective)


def data(job: Job, topology: Topology, batch_size: Any, settings: Settings) -> Step:
    """Every device has the whole network and its share of the batch; gradients are added up by an all-reduce."""
    step = job.at(samples_each(batch_size, topology.workers, "data parallelism"))
    if topology.workers == 1:
        return step
    return beside_backward(step, job.counted(all_reduced, topology, settings), settings)


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
    gradients, parameters = job.gradients(settings.gradient_precision), job.gradients()
    buckets = job.buckets(settings)
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
        exchange = job.counted(scattered, topology, settings, stage)
        step = beside_backward(alone, exchange, settings)
        communication, exposed = step.communication_s, step.exposed_s
        if stage == 3:
            ahead = job.counted(_ahead, _Halves(topology, exchange.collective), settings.bucket_bytes)
            gathered, late = ahead.total_s, _late(ahead, alone, settings)
            communication, exposed = communication + gathered, exposed + late
        # From stage 2 on no device has room for all gradients: every micro-batch exchanges anew.
        often = alone.micro_batches if stage >= 2 else 1
        return msgspec.structs.replace(
            step, communication_s=communication * often, exposed_s=exposed * often, update_s=alone.update_s / workers,
            memory_bytes=memory,
        )  # fmt: skip

    return run


class _Ahead(NamedTuple):
    """Parameters that are gathered ahead of a forward pass: seconds of all, buckets, and until each is there."""

    total_s: float
    buckets: Buckets
    there_s: Floats


def _ahead(job: Job, halves: _Halves, bucket_bytes: float) -> _Ahead:
    buckets = job.counted(_forward_buckets, bucket_bytes)
    total = float(halves.half_s(messages_of(job.gradients(), bucket_bytes)).sum())
    return _Ahead(total, buckets, np.cumsum(halves.half_s(buckets.message_bytes)))


def _forward_buckets(job: Job, bucket_bytes: float) -> Buckets:
    return make_buckets(job.gradients()[::-1], bucket_bytes, bucket_bytes)


def _late(ahead: _Ahead, step: DeviceStep, settings: Settings) -> Any:
    """Seconds that a forward pass waits for parameters.

    A bucket's layers begin when it is there and the ones before are done: the mirror image of `finish_s`.
    """
    if not len(ahead.there_s):
        return 0.0
    if not settings.overlap:
        return float(ahead.there_s[-1])
    ready = step.ready_s(ahead.buckets, ahead=True) * ((1 + settings.slowdown) / step.micro_batches)
    # Layers without parameters behind the last bucket belong to it: the pass waits for nothing before them.
    spans = np.diff(np.concatenate([np.zeros_like(ready[:1]), ready[:-2], ready[-1:]]), axis=0)
    return plain(np.maximum(finish_s(ahead.there_s, spans.T) - ready[-1], 0.0))

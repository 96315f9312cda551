"""Data parallelism: the whole network on every device, plain or with ZeRO's divided state (Rajbhandari et al. 2020).

Gradients are exchanged in buckets while the backward pass goes on: frameworks collect them in the order in which that
pass makes them, last layer first, and exchange a bucket as soon as it is full: PyTorch's DistributedDataParallel in
buckets of 25 MiB with a first one of 1 MiB (Li et al. 2020, "PyTorch Distributed", sections 3.2 and 4.2;
``kDefaultFirstBucketBytes``), Horovod in a fusion buffer of 64 MiB (Sergeev and Del Balso 2018, section 4.2).
All of it is written over arrays: a sweep asks for many batch sizes at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ..errors import BadValue
from ..timing import Workload
from ..units import element_bytes
from .collectives import exchange_time_s, exchanged, half_collective
from .job import BUCKET_BYTES, DeviceStep, Job, Settings, Step, plain
from .links import Topology

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

FIRST_BUCKET_BYTES = 2**20
"""PyTorch's first bucket, so that exchanging starts early."""


def data(job: Job, topology: Topology, batch_size: Any, settings: Settings) -> Step:
    """Every device has the whole network and its share of the batch; gradients are added up by an all-reduce."""
    step = job.at(samples_each(batch_size, topology.workers))
    if topology.workers == 1:
        return step
    return beside_backward(step, job.counted(all_reduced, topology, settings), settings)


def zero(stage: int, job: Job, topology: Topology, batch_size: Any, settings: Settings) -> Step:
    """Data parallelism with optimizer state (stage 1), gradients (2), parameters (3) divided among the devices.

    Reduce-scatter of gradients and all-gather of parameters move as much as one all-reduce; stage 3 gathers parameters
    twice, before the forward and before the backward pass: 1.5 times as much (Rajbhandari et al. 2020, section 7).
    """
    workers = topology.workers
    samples = samples_each(batch_size, workers)
    alone, memory = job.at(samples), plain(job.memory(samples, stage, workers).total_bytes)
    if workers == 1:
        return msgspec.structs.replace(alone, memory_bytes=memory)
    exchange = job.counted(scattered, topology, settings, stage)
    step = beside_backward(alone, exchange, settings)
    communication, exposed = step.communication_s, step.exposed_s
    if stage == 3:
        ahead = job.counted(_ahead, topology, exchange.collective, settings.bucket_bytes)
        communication, exposed = communication + ahead.total_s, exposed + _late(ahead, alone, settings)
    # From stage 2 on no device has room for all gradients: every micro-batch exchanges anew.
    often = alone.micro_batches if stage >= 2 else 1
    return msgspec.structs.replace(
        step, communication_s=communication * often, exposed_s=exposed * often, update_s=alone.update_s / workers,
        memory_bytes=memory,
    )  # fmt: skip


def samples_each(batch_size: Any, workers: int) -> Any:
    """Samples per worker.

    Raises
    ------
    BadValue
        If the batch cannot be shared out evenly.
    """
    if np.any(batch_size % workers):
        below, above = batch_size // workers * workers, (batch_size // workers + 1) * workers
        raise BadValue(
            f"{workers} workers do not divide a batch of {batch_size}: use a batch of {below} or {above}, for example"
        )
    return batch_size // workers


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


def all_reduced(job: Job, topology: Topology, settings: Settings, layers: int | None = None) -> Exchange:
    """Gradients (of the first `layers`) added up by an all-reduce."""
    precision, collective, size = settings.gradient_precision, settings.collective, settings.bucket_bytes
    gradients, buckets = job.counted(_buckets, precision, layers, size, settings.overlap)
    collective = collective or exchanged(topology, make_buckets(gradients, size, size).message_bytes, None)[1]
    return Exchange(buckets, np.asarray(exchange_time_s(topology, buckets.message_bytes, collective)), collective)


def scattered(job: Job, topology: Topology, settings: Settings, stage: int) -> Exchange:
    """Gradients scattered and parameters gathered, as a stage of ZeRO does.

    Together they move as much as one all-reduce. From stage 3 on each bucket of gradients is scattered beside the
    all-gather of as many parameters for the backward pass; a second all-gather, for the forward pass, comes on top.
    """
    collective = half_collective(topology, settings.collective, f"zero-{stage}")
    precision, size, parameters = settings.gradient_precision, settings.bucket_bytes, gradient_bytes(job.workload)
    gradients, buckets = job.counted(_buckets, precision, None, size, settings.overlap)
    seconds = _half_s(topology, buckets.message_bytes, collective)
    if stage == 3:
        per_parameter = float(gradients.sum() / parameters.sum()) if parameters.sum() else 1.0
        gathered = _half_s(topology, buckets.message_bytes / per_parameter, collective)
        return Exchange(buckets, seconds + gathered, collective)
    messages = make_buckets(parameters, size, size).message_bytes
    return Exchange(buckets, seconds, collective, float(_half_s(topology, messages, collective).sum()))


def _half_s(topology: Topology, message_bytes: Any, collective: str) -> Floats:
    """Seconds of the reduce-scatter or the all-gather of each message: half of an all-reduce."""
    return np.asarray(exchange_time_s(topology, message_bytes, collective), dtype=np.float64) / 2


def _buckets(
    job: Job, precision: str | None, layers: int | None, bucket_bytes: float, overlap: bool
) -> tuple[Floats, Buckets]:
    """Gradients (of the first `layers`), and the messages that they are exchanged in beside the backward pass."""
    gradients = gradient_bytes(job.workload, precision)[:layers]
    return gradients, make_buckets(gradients, bucket_bytes, None if overlap else bucket_bytes)


def gradient_bytes(workload: Workload, precision: str | None = None) -> Floats:
    """Bytes of each layer's gradients as they are exchanged, shape (layers,); frozen layers have none."""
    trained = [
        0 if layer.attributes.get("frozen", False) else int(parameters)
        for layer, parameters in zip(workload.layers, workload.work.parameters)
    ]
    return np.array(trained, dtype=np.float64) * element_bytes(precision or workload.precision)


class Buckets(msgspec.Struct, frozen=True, eq=False):
    """What is exchanged, in the order in which it is.

    Attributes
    ----------
    message_bytes : ndarray, shape (buckets,)
    of_layer : ndarray of int, shape (layers,)
        The bucket that waits for each layer's backward pass; their number for layers that none waits for.
    """

    message_bytes: Floats
    of_layer: Ints

    def ready_of(self, step: DeviceStep, ahead: bool = False) -> Floats:
        """Those of a step's backward pass, or of a forward pass for which parameters are gathered ahead; made once."""
        key = (id(self), ahead)
        if key not in step.ready:
            seconds, group = (step.forward_s, step.group[::-1]) if ahead else (step.backward_s, step.group)
            step.ready[key] = self, self.ready_s(seconds, group)  # buckets that are gone leave their id
        return step.ready[key][1]

    def ready_s(self, backward_s: ArrayLike, group: Ints | None = None) -> Floats:
        """Seconds after the backward pass began at which each bucket is full, and at last of its end.

        Parameters
        ----------
        backward_s : array, shape (layers, ...)
            Or, with `group`, of a layer of each group.
        group : ndarray of int, shape (layers,), optional
            Each layer's.

        Returns
        -------
        ndarray, shape (buckets + 1, ...)
        """
        seconds = np.asarray(backward_s, dtype=np.float64)
        members = np.zeros((len(self.message_bytes) + 1, len(seconds)))
        np.add.at(members, (self.of_layer, np.arange(len(seconds)) if group is None else group), 1)
        return np.cumsum(members @ seconds, axis=0)


def make_buckets(
    gradient_bytes: ArrayLike, bucket_bytes: float = BUCKET_BYTES, first_bytes: float | None = None
) -> Buckets:
    """Collect gradients into buckets.

    As in PyTorch a bucket is closed by the gradient that fills it, so that it may exceed its size: a tensor is never
    cut.

    Parameters
    ----------
    gradient_bytes : array, shape (layers,)
        Bytes of each layer's gradients, layers in the order of the forward pass.
    bucket_bytes : float
        At which a bucket is full; infinity makes one of everything.
    first_bytes : float, optional
        The same for the first bucket; without it 1 MiB, or `bucket_bytes` where that is smaller.

    Raises
    ------
    BadValue
        If a bucket's size is not above 0, or gradients are not one number per layer.
    """
    sizes = np.asarray(gradient_bytes, dtype=np.float64)
    if sizes.ndim != 1:
        raise BadValue("gradients are one number per layer")
    first_bytes = min(FIRST_BUCKET_BYTES, bucket_bytes) if first_bytes is None else first_bytes
    if not (bucket_bytes > 0 and first_bytes > 0):
        raise BadValue(f"a bucket must hold more than 0 bytes, not {min(bucket_bytes, first_bytes):g}")
    messages: list[float] = []
    last: list[int] = []  # layer of each bucket, counted in the order of the backward pass
    held, at, limit = 0.0, 0, first_bytes
    for place in np.flatnonzero(sizes[::-1]).tolist():
        held, at = held + float(sizes[-1 - place]), place
        if held >= limit:
            messages.append(held)
            last.append(place)
            held, limit = 0.0, bucket_bytes
    if held:
        messages.append(held)
        last.append(at)
    return Buckets(np.array(messages), np.searchsorted(last, np.arange(len(sizes)))[::-1])


def beside_backward(step: DeviceStep, exchange: Exchange, settings: Settings) -> Step:
    """The step of one of several devices, gradients exchanged beside its backward pass."""
    longer = 1 + settings.slowdown
    total = float(exchange.bucket_s.sum())
    exposed: Any = total
    if settings.overlap:
        # Only the last micro-batch's backward pass makes gradients that are exchanged.
        ready = exchange.buckets.ready_of(step) * (longer / step.micro_batches)
        late = finish_s(ready[:-1].T, exchange.bucket_s) - ready[-1]
        could_hide = total - plain(np.maximum(late, 0.0))
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


def finish_s(ready_s: ArrayLike, exchange_s: ArrayLike) -> Floats:
    """When the last of several exchanges ends that run one after another.

    Each waits until its bucket is ready and the one before is through; unrolled, the last ends at the largest over
    buckets b of ``ready[b] + sum(exchange[b:])``: from the bucket on that was waited for last, there is no pause.

    Parameters
    ----------
    ready_s, exchange_s : array, shape (..., buckets)
        They broadcast.

    Returns
    -------
    ndarray, shape (...)
        0 where there is no bucket.
    """
    exchange = np.asarray(exchange_s, dtype=np.float64)
    ready = np.asarray(ready_s, dtype=np.float64)
    rest = np.cumsum(exchange[..., ::-1], axis=-1)[..., ::-1]
    ends = ready + rest
    if ends.shape[-1] == 0:
        return np.zeros(ends.shape[:-1])
    return np.asarray(ends.max(axis=-1))


class _Ahead(NamedTuple):
    """Parameters that are gathered ahead of a forward pass: seconds of all, buckets, and until each is there."""

    total_s: float
    buckets: Buckets
    there_s: Floats


def _ahead(job: Job, topology: Topology, collective: str, bucket_bytes: float) -> _Ahead:
    messages = make_buckets(gradient_bytes(job.workload), bucket_bytes, bucket_bytes).message_bytes
    buckets = job.counted(_forward_buckets, bucket_bytes)
    there_s = np.cumsum(_half_s(topology, buckets.message_bytes, collective))
    return _Ahead(float(_half_s(topology, messages, collective).sum()), buckets, there_s)


def _forward_buckets(job: Job, bucket_bytes: float) -> Buckets:
    return make_buckets(gradient_bytes(job.workload)[::-1], bucket_bytes, bucket_bytes)


def _late(ahead: _Ahead, step: DeviceStep, settings: Settings) -> Any:
    """Seconds that a forward pass waits for parameters.

    A bucket's layers begin when it is there and the ones before are done: the mirror image of `finish_s`.
    """
    if not len(ahead.there_s):
        return 0.0
    if not settings.overlap:
        return float(ahead.there_s[-1])
    ready = ahead.buckets.ready_of(step, ahead=True) * ((1 + settings.slowdown) / step.micro_batches)
    # Layers without parameters behind the last bucket belong to it: the pass waits for nothing before them.
    spans = np.diff(np.concatenate([np.zeros_like(ready[:1]), ready[:-2], ready[-1:]]), axis=0)
    return plain(np.maximum(finish_s(ahead.there_s, spans.T) - ready[-1], 0.0))

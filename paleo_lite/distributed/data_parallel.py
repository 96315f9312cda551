"""Data parallelism, with replicated or ZeRO-sharded model state, and the overlap of communication with computation.

Gradients are exchanged in buckets during the backward pass: frameworks collect them in the order in which that pass
computes them, last layer first, and exchange a bucket once it is full. PyTorch's DistributedDataParallel has buckets of
25 MiB with a first one of 1 MiB (Li et al. 2020, "PyTorch Distributed", sections 3.2 and 4.2;
``kDefaultFirstBucketBytes``), Horovod a fusion buffer of 64 MiB (Sergeev and Del Balso 2018, section 4.2). ZeRO:
Rajbhandari et al. 2020. All functions work on arrays over batch sizes, for sweeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ..errors import BadValue
from ..formats import bytes_per_number
from ..text import near_multiples
from ..timing import Workload
from ..units import element_bytes
from .collectives import choose_all_reduce, choose_reduce_scatter, topology_all_reduce_s
from .job import DeviceStep, Job, Step, as_scalar
from .links import Topology
from .settings import BUCKET_BYTES, STRAGGLERS, Settings

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

FIRST_BUCKET_BYTES = 2**20
"""Size of PyTorch's first bucket, which is small so that communication starts early."""


def train_data_parallel(job: Job, topology: Topology, batch_size: Any, settings: Settings) -> Step:
    """Predict a step of data parallelism: a replica of the network per device, gradients all-reduced.

    The batch size is the global one, an integer or an array.
    """
    step = job.device_step(samples_per_worker(batch_size, topology.workers))
    if topology.workers == 1:
        return step
    exchange = job.cached_across_models(all_reduce_exchange, topology, settings)
    return overlap_with_backward(step, exchange, settings)


def train_zero(stage: int, job: Job, topology: Topology, batch_size: Any, settings: Settings) -> Step:
    """Predict a step of data parallelism with sharded optimizer state (stage 1), gradients (2) and parameters (3).

    The reduce-scatter of gradients and the all-gather of parameters move as many bytes as one all-reduce. Stage 3
    gathers the parameters twice, before the forward and before the backward pass: 1.5 times as many bytes (Rajbhandari
    et al. 2020, section 7).
    """
    workers = topology.workers
    samples = samples_per_worker(batch_size, workers)
    device_step = job.device_step(samples)
    memory_bytes = as_scalar(job.device_memory(samples, stage, workers).total_bytes)
    if workers == 1:
        return msgspec.structs.replace(device_step, memory_bytes=memory_bytes)
    exchange = job.cached_across_models(zero_exchange, topology, settings, stage)
    step = overlap_with_backward(device_step, exchange, settings)
    communication_s, exposed_s = step.communication_s, step.exposed_s
    if stage == 3:
        prefetch = job.cached_across_models(_prefetch_parameters, topology, exchange.collective, settings.bucket_bytes)
        communication_s = communication_s + prefetch.total_s
        exposed_s = exposed_s + _forward_stall_s(prefetch, device_step, settings)
    # From stage 2 on no device stores all gradients, so every micro-batch exchanges them.
    exchanges = device_step.micro_batches if stage >= 2 else 1
    return msgspec.structs.replace(
        step,
        communication_s=communication_s * exchanges,
        exposed_s=exposed_s * exchanges,
        update_s=device_step.update_s / workers,
        memory_bytes=memory_bytes,
    )


def samples_per_worker(batch_size: Any, workers: int) -> Any:
    """Return the samples per worker; raise BadValue if the global batch size is not divisible by the workers."""
    uneven = np.atleast_1d(batch_size)[np.atleast_1d(batch_size % workers) > 0]
    if uneven.size:
        raise BadValue(
            f"the batch of all devices must be divisible by the {workers} workers: give "
            f"{near_multiples('--global-batch-size', int(uneven[0]), workers)} (got {uneven[0]})"
        )
    return batch_size // workers


class GradientExchange(NamedTuple):
    """Communication of a training step, the same at every batch size."""

    buckets: Buckets  # buckets of gradients, exchanged during the backward pass
    bucket_s: Floats  # communication time of each bucket, shape (buckets,)
    collective: str  # collective algorithm
    serial_s: float = 0.0  # time of further communication that nothing hides


def all_reduce_exchange(
    job: Job, topology: Topology, settings: Settings, layers: int | None = None
) -> GradientExchange:
    """Return the all-reduce of the gradients, or of those of the first `layers` layers."""
    bucket_bytes = settings.bucket_bytes
    gradients, buckets = job.cached_across_models(
        _make_gradient_buckets, settings.gradient_precision, layers, bucket_bytes, settings.overlap
    )
    collective = settings.collective
    if not collective:
        # All batch sizes and overlap settings use the collective that is fastest for full buckets.
        messages = make_buckets(gradients, bucket_bytes, bucket_bytes).message_bytes
        _, collective = choose_all_reduce(topology, messages, None)
    bucket_s = np.asarray(topology_all_reduce_s(topology, buckets.message_bytes, collective))
    return GradientExchange(buckets, bucket_s, collective)


def zero_exchange(job: Job, topology: Topology, settings: Settings, stage: int) -> GradientExchange:
    """Return the reduce-scatter of gradients and the all-gather of parameters under a ZeRO stage.

    Together they move as many bytes as one all-reduce. In stage 3 each bucket's reduce-scatter comes with the
    all-gather of its parameters for the backward pass, also of frozen ones; the all-gather for the forward pass comes
    on top.
    """
    collective = choose_reduce_scatter(topology, settings.collective, f"zero-{stage}")
    bucket_bytes = settings.bucket_bytes
    if stage == 3:
        buckets, gradient_messages, parameter_messages = job.cached_across_models(
            _make_sharded_buckets, settings.gradient_precision, bucket_bytes, settings.overlap
        )
        reduce_scatter_s = _half_all_reduce_s(topology, gradient_messages, collective)
        all_gather_s = _half_all_reduce_s(topology, parameter_messages, collective)
        bucket_s = np.where(gradient_messages > 0, reduce_scatter_s, 0.0) + all_gather_s
        return GradientExchange(buckets, bucket_s, collective)
    parameter_bytes = gradient_bytes(job.workload)
    _, buckets = job.cached_across_models(
        _make_gradient_buckets, settings.gradient_precision, None, bucket_bytes, settings.overlap
    )
    reduce_scatter_s = _half_all_reduce_s(topology, buckets.message_bytes, collective)
    messages = make_buckets(parameter_bytes, bucket_bytes, bucket_bytes).message_bytes
    all_gather_s = _half_all_reduce_s(topology, messages, collective)
    return GradientExchange(buckets, reduce_scatter_s, collective, float(all_gather_s.sum()))


def _half_all_reduce_s(topology: Topology, message_bytes: Any, collective: str) -> Floats:
    """Return the time of the reduce-scatter or the all-gather of each message: half of an all-reduce."""
    return np.asarray(topology_all_reduce_s(topology, message_bytes, collective), dtype=np.float64) / 2


def _make_gradient_buckets(
    job: Job, precision: str | None, layers: int | None, bucket_bytes: float, overlap: bool
) -> tuple[Floats, Buckets]:
    """Return the gradient bytes of the first `layers` layers, and their buckets for the backward pass."""
    gradients = gradient_bytes(job.workload, precision)[:layers]
    first_bytes = None if overlap else bucket_bytes
    return gradients, make_buckets(gradients, bucket_bytes, first_bytes)


def _make_sharded_buckets(
    job: Job, precision: str | None, bucket_bytes: float, overlap: bool
) -> tuple[Buckets, Floats, Floats]:
    """Return the buckets of the backward pass where parameters are sharded, and what they exchange.

    That is the bytes of gradients and of parameters of each, both of shape (buckets,); frozen layers have no gradients.
    """
    gradients, parameters = gradient_bytes(job.workload, precision), stored_bytes(job.workload)
    sizes = np.where(gradients > 0, gradients, parameters)
    buckets = make_buckets(sizes, bucket_bytes, None if overlap else bucket_bytes)
    return buckets, buckets.sums_of(gradients), buckets.sums_of(parameters)


def stored_bytes(workload: Workload) -> Floats:
    """Return the bytes of each layer's parameters as they are stored, shape (layers,); frozen ones may be quantized."""
    stored = np.asarray(workload.work.parameters, dtype=np.float64) * element_bytes(workload.precision)
    if workload.weights is None:
        return stored
    from ..timing.fine_tuning import is_quantized  # of quantized training alone

    narrower = bytes_per_number(workload.weights) / element_bytes(workload.precision)
    return np.where(is_quantized(workload.layers), stored * narrower, stored)


def gradient_bytes(workload: Workload, precision: str | None = None) -> Floats:
    """Return the bytes of each layer's gradients, shape (layers,); frozen layers have none.

    The precision is that in which gradients are exchanged; by default that of the workload.
    """
    trained_parameters = [
        0 if layer.is_frozen else int(parameters)
        for layer, parameters in zip(workload.layers, workload.work.parameters)
    ]
    return np.array(trained_parameters, dtype=np.float64) * element_bytes(precision or workload.precision)


class Buckets(msgspec.Struct, frozen=True, eq=False):
    """Buckets of gradients, in the order of their exchange."""

    message_bytes: Floats  # bytes of each bucket, shape (buckets,)
    # Index of the first bucket that needs the backward pass of this layer; the number of buckets for layers that no
    # bucket needs, shape (layers,)
    bucket_of_layer: Ints

    def sums_of(self, values: Floats) -> Floats:
        """Return the sum over the layers of each bucket of one value per layer, shape (buckets,)."""
        number = len(self.message_bytes)
        sums = np.bincount(self.bucket_of_layer, weights=values, minlength=number)
        return np.asarray(sums[:number], dtype=np.float64)

    def ready_times_for_step(self, step: DeviceStep, prefetch: bool = False) -> Floats:
        """Return the cached `ready_times_s` of a step's backward pass.

        With `prefetch` the buckets hold parameters, gathered ahead of the forward pass, and times are of that pass.
        """
        key = (id(self), prefetch)
        if key not in step.ready_times_cache:
            if prefetch:
                ready_s = self.ready_times_s(step.forward_s, step.layer_group[::-1])
            else:
                ready_s = self.ready_times_s(step.backward_s, step.layer_group)
            # Storing the buckets keeps them alive, so that no other object gets their id.
            step.ready_times_cache[key] = self, ready_s
        return step.ready_times_cache[key][1]

    def ready_times_s(self, backward_s: ArrayLike, layer_group: Ints | None = None) -> Floats:
        """Return the time from the start of the backward pass at which each bucket is full, and the end of the pass.

        `backward_s` has the backward time of each layer, shape (layers, ...), or with `layer_group`, the index of each
        layer's group, that of one layer of each group. The result has the shape (buckets + 1, ...).
        """
        seconds = np.asarray(backward_s, dtype=np.float64)
        if layer_group is None:
            layer_group = np.arange(len(seconds))
        layer_counts = np.zeros((len(self.message_bytes) + 1, len(seconds)))
        np.add.at(layer_counts, (self.bucket_of_layer, layer_group), 1)
        return np.cumsum(layer_counts @ seconds, axis=0)


def make_buckets(
    gradient_bytes: ArrayLike,  # of each layer, in the order of the forward pass
    bucket_bytes: float = BUCKET_BYTES,  # size at which a bucket is full; infinity puts everything into one bucket
    # Size of the first bucket; by default 1 MiB, or `bucket_bytes` if that is smaller.
    first_bytes: float | None = None,
) -> Buckets:
    """Collect gradients into buckets.

    As in PyTorch, the gradient that fills a bucket closes it: tensors are never split, and a bucket may exceed its
    size. Raise BadValue if a bucket size is not > 0, or `gradient_bytes` is not one-dimensional.
    """
    sizes = np.asarray(gradient_bytes, dtype=np.float64)
    if sizes.ndim != 1:
        raise BadValue(f"gradient_bytes must have one number per layer (got {sizes.ndim} dimensions)")
    if first_bytes is None:
        first_bytes = min(FIRST_BUCKET_BYTES, bucket_bytes)
    if not (bucket_bytes > 0 and first_bytes > 0):
        raise BadValue(f"the bucket size must be > 0 bytes (got {min(bucket_bytes, first_bytes):g})")
    messages: list[float] = []
    last_layers: list[int] = []  # last layer of each bucket, counted in the order of the backward pass
    filled, last_layer, limit = 0.0, 0, first_bytes
    for layer in np.flatnonzero(sizes[::-1]).tolist():
        filled += float(sizes[-1 - layer])
        last_layer = layer
        if filled >= limit:
            messages.append(filled)
            last_layers.append(layer)
            filled, limit = 0.0, bucket_bytes
    if filled:
        messages.append(filled)
        last_layers.append(last_layer)
    bucket_of_layer = np.searchsorted(last_layers, np.arange(len(sizes)))[::-1]
    return Buckets(np.array(messages), bucket_of_layer)


def overlap_with_backward(step: DeviceStep, exchange: GradientExchange, settings: Settings) -> Step:
    """Return the step of one of several devices that exchange gradients during the backward pass."""
    compute_factor = 1 + settings.slowdown
    total_s = float(exchange.bucket_s.sum())
    exposed_s: Any = total_s
    if settings.overlap:
        # Only the backward pass of the last micro-batch computes gradients that are exchanged.
        ready_s = exchange.buckets.ready_times_for_step(step) * (compute_factor / step.micro_batches)
        delay_s = last_finish_s(ready_s[:-1].T, exchange.bucket_s) - ready_s[-1]
        overlappable_s = total_s - as_scalar(np.maximum(delay_s, 0.0))
        exposed_s = total_s - settings.overlap_efficiency * overlappable_s
    interference_s = settings.interference * (total_s - exposed_s)
    overheads_s = {}
    if settings.slowdown:
        overheads_s[STRAGGLERS] = step.compute_s * settings.slowdown
    if settings.interference:
        overheads_s["interference"] = interference_s
    return Step(
        compute_s=step.compute_s * compute_factor + interference_s,
        communication_s=total_s + exchange.serial_s,
        exposed_s=exposed_s + exchange.serial_s,
        update_s=step.update_s,
        memory_bytes=step.memory_bytes,
        collective=exchange.collective,
        overheads_s=overheads_s,
    )


def last_finish_s(ready_s: ArrayLike, exchange_s: ArrayLike) -> Floats:
    """Return when the last of several exchanges finishes that run one after another; 0 if there is no bucket.

    Each waits until its bucket is ready and the previous exchange is done. The recursion unrolls to the maximum over
    buckets b of ``ready[b] + sum(exchange[b:])``: there is no pause after the last bucket that was waited for. The
    times at which buckets are ready and the durations of their exchanges broadcast to the shape (..., buckets).
    """
    exchange = np.asarray(exchange_s, dtype=np.float64)
    ready = np.asarray(ready_s, dtype=np.float64)
    remaining = np.cumsum(exchange[..., ::-1], axis=-1)[..., ::-1]
    finish = ready + remaining
    if finish.shape[-1] == 0:
        return np.zeros(finish.shape[:-1])
    return np.asarray(finish.max(axis=-1))


class _ParameterPrefetch(NamedTuple):
    """All-gather of parameters ahead of the forward pass."""

    total_s: float  # communication time
    buckets: Buckets  # buckets of parameters, in the order of the forward pass
    finish_s: Floats  # time at which the all-gather of each bucket finishes, shape (buckets,)


def _prefetch_parameters(job: Job, topology: Topology, collective: str, bucket_bytes: float) -> _ParameterPrefetch:
    buckets = job.cached_across_models(_make_parameter_buckets, bucket_bytes)
    bucket_s = _half_all_reduce_s(topology, buckets.message_bytes, collective)
    return _ParameterPrefetch(float(bucket_s.sum()), buckets, np.cumsum(bucket_s))


def _make_parameter_buckets(job: Job, bucket_bytes: float) -> Buckets:
    return make_buckets(stored_bytes(job.workload)[::-1], bucket_bytes, bucket_bytes)


def _forward_stall_s(prefetch: _ParameterPrefetch, step: DeviceStep, settings: Settings) -> Any:
    """Return the time that the forward pass waits for parameters.

    The layers of a bucket start when it has arrived and the layers before them are done: the mirror image of
    `last_finish_s`.
    """
    if not len(prefetch.finish_s):
        return 0.0
    if not settings.overlap:
        return float(prefetch.finish_s[-1])
    compute_factor = (1 + settings.slowdown) / step.micro_batches
    ends_s = prefetch.buckets.ready_times_for_step(step, prefetch=True) * compute_factor
    # Layers without parameters after the last bucket count as part of it, since nothing makes them wait.
    compute_s = np.diff(np.concatenate([np.zeros_like(ends_s[:1]), ends_s[:-2], ends_s[-1:]]), axis=0)
    stall_s = last_finish_s(prefetch.finish_s, compute_s.T) - ends_s[-1]
    return as_scalar(np.maximum(stall_s, 0.0))

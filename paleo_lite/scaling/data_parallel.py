"""Data parallelism: the whole network on every device, plain or with ZeRO's divided state (Rajbhandari et al. 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from .exchange import exchange_time_s
from .job import Job, Settings
from .overlap import finish_s, make_buckets
from .parts import Parts, Strategy, exchanged, fastest, half_collective, messages_of, samples_each
from .topology import Topology

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


def data(job: Job, topology: Topology, batch_size: int, settings: Settings) -> Parts:
    """Every device has the whole network and its share of the batch; gradients are added up by an all-reduce."""
    workers = topology.workers
    step = job.at(samples_each(batch_size, workers, "data parallelism"))
    memory = float(step.memory.total_bytes)
    if workers == 1:
        return Parts(step.compute_s, 0.0, 0.0, step.update_s, memory, "")
    gradients = job.gradient_bytes(settings.gradient_precision)
    collective = settings.collective or fastest(topology, messages_of(gradients, settings.bucket_bytes))
    parts = exchanged(step, gradients, settings, lambda size: exchange_time_s(topology, size, collective))
    return msgspec.structs.replace(parts, update_s=step.update_s, memory_bytes=memory, collective=collective)


def zero(stage: int) -> Strategy:
    """Data parallelism with optimizer state (stage 1), gradients (2), parameters (3) divided among the devices.

    Reduce-scatter of gradients and all-gather of parameters move as much as one all-reduce; stage 3 gathers parameters
    twice, before the forward and before the backward pass: 1.5 times as much (Rajbhandari et al. 2020, section 7).
    """

    def run(job: Job, topology: Topology, batch_size: int, settings: Settings) -> Parts:
        workers = topology.workers
        each = samples_each(batch_size, workers, "ZeRO")
        step = job.at(each)
        memory = float(job.memory(each, stage, workers).total_bytes)
        if workers == 1:
            return Parts(step.compute_s, 0.0, 0.0, step.update_s, memory, "")
        collective = half_collective(topology, settings.collective, f"zero-{stage}")

        def half(size: Any) -> Floats:
            return np.asarray(exchange_time_s(topology, size, collective), dtype=np.float64) / 2

        gradients = job.gradient_bytes(settings.gradient_precision)
        parameters = job.gradient_bytes()
        weights = messages_of(parameters, settings.bucket_bytes)
        gather = float(np.sum(half(weights)))
        update = step.update_s / workers
        if stage < 3:
            parts = exchanged(step, gradients, settings, half)
            parts = msgspec.structs.replace(
                parts, communication_s=parts.communication_s + gather, exposed_s=parts.exposed_s + gather
            )
        else:
            # Per bucket of gradients a reduce-scatter and the all-gather of as many parameters, over one link.
            both = float(gradients.sum() / parameters.sum()) if parameters.sum() else 1.0
            parts = exchanged(step, gradients, settings, lambda size: half(size) + half(size / both))
            forward = step.forward_s * ((1 + settings.slowdown) / step.micro_batches)
            late = _waiting_s(forward, parameters, half, settings)
            parts = msgspec.structs.replace(
                parts, communication_s=parts.communication_s + gather, exposed_s=parts.exposed_s + late
            )
        # From stage 2 on no device has room for all gradients: every micro-batch exchanges anew.
        often = step.micro_batches if stage >= 2 else 1
        return msgspec.structs.replace(
            parts, communication_s=parts.communication_s * often, exposed_s=parts.exposed_s * often,
            update_s=update, memory_bytes=memory, collective=collective,
        )  # fmt: skip

    return run


def _waiting_s(forward_s: Floats, parameters: Floats, half: Callable[[Any], Floats], settings: Settings) -> float:
    """Seconds that a forward pass waits for parameters gathered ahead of it, bucket by bucket.

    A bucket's layers begin when it is there and the ones before are done: the mirror image of `finish_s`.
    """
    forward = make_buckets(parameters[::-1], forward_s[::-1], settings.bucket_bytes, settings.bucket_bytes)
    if not len(forward.message_bytes):
        return 0.0
    gathered = half(forward.message_bytes)
    if not settings.overlap:
        return float(gathered.sum())
    spans = np.diff(np.concatenate([[0.0], forward.ready_s[:-1], [forward.backward_s]]))
    return max(float(finish_s(np.cumsum(gathered), spans)) - forward.backward_s, 0.0)

"""`Parts`: what a strategy makes of a step, and what strategies share: exchanges beside the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..errors import BadValue
from .exchange import candidates, exchange_time_s
from .job import Job, LayerTimes, Settings
from .overlap import exposed_s, make_buckets
from .topology import Topology

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


class Parts(msgspec.Struct, frozen=True):
    """What a step consists of; see `ScaleRow`.

    Attributes
    ----------
    losses : dict of str to float
        What else than exchanges and the division of work makes the step longer, in words and seconds.
    """

    compute_s: float
    communication_s: float
    exposed_s: float
    update_s: float
    memory_bytes: float | None
    collective: str
    losses: dict[str, float] = {}
    notes: tuple[str, ...] = ()

    @property
    def time_s(self) -> float:
        """The step."""
        return self.compute_s + self.exposed_s + self.update_s


Strategy = Callable[[Job, Topology, int, Settings], Parts]


def exchanged(step: LayerTimes, gradients: Floats, settings: Settings, exchange: Callable[[Floats], Any]) -> Parts:
    """Compute with gradients exchanged beside it; update and memory are still to be filled in."""
    longer = 1 + settings.slowdown
    backward = step.backward_s * (longer / step.micro_batches)
    if settings.overlap:
        buckets = make_buckets(gradients, backward, settings.bucket_bytes)
        seconds = np.asarray(exchange(buckets.message_bytes), dtype=np.float64)
        exposed = float(exposed_s(buckets.ready_s, seconds, buckets.backward_s))
    else:
        seconds = np.atleast_1d(np.asarray(exchange(messages_of(gradients, settings.bucket_bytes)), dtype=np.float64))
        exposed = float(seconds.sum())
    total = float(seconds.sum())
    disturbed = settings.interference * (total - exposed)
    compute = step.compute_s * longer + disturbed
    losses = {}
    if settings.slowdown:
        losses["slowdown"] = step.compute_s * settings.slowdown
    if disturbed:
        losses["interference"] = disturbed
    return Parts(compute, total, exposed, 0.0, None, "", losses)


def fastest(topology: Topology, messages: Floats) -> str:
    """The collective that takes least for all messages together; of equals the first."""
    return min(candidates(topology), key=lambda name: float(np.sum(exchange_time_s(topology, messages, name))))


def messages_of(gradients: Floats, bucket_bytes: float) -> Floats:
    """Gradients in buckets without a backward pass to wait for."""
    return make_buckets(gradients, np.zeros(len(gradients)), bucket_bytes, bucket_bytes).message_bytes


def half_collective(topology: Topology, collective: str | None, strategy: str) -> str:
    """The collective whose halves are a reduce-scatter and an all-gather."""
    halves = ("ring", "hierarchical")
    if collective is None:
        return min(halves, key=lambda each: float(np.sum(exchange_time_s(topology, 1e8, each))))
    if collective not in halves:
        raise BadValue(f"{strategy} scatters and gathers, by ring or hierarchical, not by {collective}")
    return collective


def samples_each(batch_size: int, workers: int, what: str) -> int:
    """Samples per worker.

    Raises
    ------
    BadValue
        If the batch cannot be shared out evenly.
    """
    if batch_size < workers:
        raise BadValue(f"a batch of {batch_size} is smaller than {workers} workers: {what} needs a sample for each")
    if batch_size % workers:
        below, above = batch_size // workers * workers, (batch_size // workers + 1) * workers
        raise BadValue(
            f"{workers} workers do not divide a batch of {batch_size}: use a batch of {below} or {above}, for example"
        )
    return batch_size // workers

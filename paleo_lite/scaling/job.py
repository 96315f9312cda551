"""`Job`: what is to be trained, on what, how; and the layer times of one device that every strategy starts from."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..errors import BadValue
from ..hardware import Machine
from ..timing import TimeModel, Workload, predict
from ..timing.memory import Memory, memory_of
from ..timing.training import RECOMPUTE
from ..units import element_bytes
from .overlap import BUCKET_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


class LayerTimes(msgspec.Struct, frozen=True, eq=False):
    """A training step of one device, by layer.

    Attributes
    ----------
    batch_size : int
    forward_s, backward_s : ndarray, shape (layers,)
        What is computed again counts as backward; the overhead of a step lies with the forward pass.
    update_s : float
    time_s : float
    interval : tuple of float or None
        Of the step.
    memory : Memory
    notes : tuple of str
    micro_batches : int
        Passes before the one update; only during the last one's backward pass are gradients exchanged.
    """

    batch_size: int
    forward_s: Floats
    backward_s: Floats
    update_s: float
    time_s: float
    interval: tuple[float, float] | None
    memory: Memory
    notes: tuple[str, ...]
    micro_batches: int = 1

    @property
    def compute_s(self) -> float:
        """Forward and backward pass."""
        return float(self.forward_s.sum() + self.backward_s.sum())


class Settings(msgspec.Struct, frozen=True):
    """How several devices train together.

    Attributes
    ----------
    collective : str or None
        One of `collectives.COLLECTIVES`; None takes the fastest.
    gradient_precision : str or None
        In which gradients are exchanged; None: as they are computed.
    overlap : bool
        Whether gradients are exchanged while the backward pass goes on.
    bucket_bytes : float
        At which a bucket of gradients is full.
    micro_batches : int or None
        For pipelines; None takes at least four per stage, where the batch has as many.
    slowdown : float
        By what share computing takes longer as soon as several devices work: a board's power limit, a host they share.
    interference : float
        By what share of the time of a hidden exchange the computation that hides it takes longer.
    """

    collective: str | None = None
    gradient_precision: str | None = None
    overlap: bool = True
    bucket_bytes: float = BUCKET_BYTES
    micro_batches: int | None = None
    slowdown: float = 0.0
    interference: float = 0.0

    def __post_init__(self) -> None:
        if self.gradient_precision is not None:
            element_bytes(self.gradient_precision)
        if not self.bucket_bytes > 0:
            raise BadValue(f"a bucket must hold more than 0 bytes, not {self.bucket_bytes:g}")
        if self.micro_batches is not None and self.micro_batches < 1:
            raise BadValue(f"micro-batches must be 1 or more, not {self.micro_batches}")
        if not (0 <= self.slowdown < math.inf and 0 <= self.interference < math.inf):
            raise BadValue("slowdown and interference must be shares of 0 or more")


class Job:
    """A workload to be trained on machines of one kind.

    Parameters
    ----------
    workload : Workload
        In the phase ``training``; every strategy sets the batch of one device.
    machine : Machine
    model : TimeModel
    computing : float
        What one device really takes, over what the model says: known of platforms that were measured.
    """

    def __init__(self, workload: Workload, machine: Machine, model: TimeModel, computing: float = 1.0) -> None:
        self.workload, self.machine, self.model, self.computing = workload, machine, model, computing
        self._times: dict[int, LayerTimes] = {}

    @property
    def element_bytes(self) -> int:
        """Of an activation."""
        return element_bytes(self.workload.precision)

    def gradient_bytes(self, precision: str | None = None) -> Floats:
        """Bytes of each layer's gradients as they are exchanged, shape (layers,)."""
        trained = [
            0 if layer.attributes.get("frozen", False) else int(parameters)
            for layer, parameters in zip(self.workload.layers, self.workload.work.parameters)
        ]
        return np.array(trained, dtype=np.float64) * element_bytes(precision or self.workload.precision)

    def at(self, batch_size: int) -> LayerTimes:
        """The step of one device at a batch size; computed once."""
        if batch_size not in self._times:
            self._times[batch_size] = self._time(self.workload.but(batch_size=batch_size))
        return self._times[batch_size]

    def _time(self, workload: Workload) -> LayerTimes:
        prediction = predict(workload, self.machine, self.model)
        terms, factor = prediction.terms, self.computing
        forward = terms.of("forward")
        forward = forward + terms.overhead_s * (forward / forward.sum() if forward.sum() else 1 / len(forward))
        interval = prediction.interval
        return LayerTimes(
            batch_size=workload.batch_size,
            forward_s=forward * factor,
            backward_s=terms.of("backward_data", "backward_weight", RECOMPUTE) * factor,
            update_s=float(terms.of("update").sum()) * factor,
            time_s=terms.time_s * factor,
            interval=None if interval is None else (interval[0] * factor, interval[1] * factor),
            memory=memory_of(workload),
            notes=prediction.notes,
            micro_batches=workload.options.accumulation,
        )

    def memory(self, batch_size: int, zero_stage: int = 0, shards: int = 1) -> Memory:
        """Memory of one device, with what ZeRO shares out."""
        return memory_of(self.workload.but(batch_size=batch_size), zero_stage=zero_stage, shards=shards)

    def part_memory(self, batch_size: int, first: int, last: int) -> float:
        """Bytes on a device that holds layers `first` to `last` - 1 alone, one batch of them in flight.

        Its share of parameters and of the activations of all layers decides.
        """
        work = self.workload.work
        parameters, activations = (
            float(shares(amounts)[first:last].sum()) for amounts in (work.parameters, work.activations_per_sample)
        )
        return self.memory(batch_size).of_share(parameters, activations)


def shares(amounts: NDArray[np.int64]) -> Floats:
    """Each layer's share of what all layers have together; none where that is nothing."""
    return amounts / max(float(amounts.sum()), 1.0)

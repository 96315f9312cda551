"""`Job`: what is to be trained, on what, how; and the layer times of one device that every strategy starts from."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..counting import Work, count
from ..errors import BadValue
from ..hardware import Device
from ..networks import Network
from ..timing import TimeModel
from ..timing.memory import Memory, memory_of
from ..timing.options import TrainingOptions
from ..timing.training import train
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
        What is computed again counts as backward; what a step takes besides its layers lies with the forward pass.
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
            raise BadValue(f"a bucket holds more than 0 bytes, not {self.bucket_bytes:g}")
        if self.micro_batches is not None and self.micro_batches < 1:
            raise BadValue(f"micro-batches are 1 or more, not {self.micro_batches}")
        if not (0 <= self.slowdown < math.inf and 0 <= self.interference < math.inf):
            raise BadValue("slowdown and interference are shares of 0 or more")


class Job:
    """A network to be trained on devices of one kind.

    Parameters
    ----------
    network : Network
    device : Device
    precision : str
    model : TimeModel
    options : TrainingOptions, optional
        Of one device; without it plain gradient descent, as predictions of training have it.
    clock, unit : str, optional
        As for predictions.
    computing : float
        What one device really takes, over what the model says: known of platforms that were measured.
    """

    def __init__(
        self,
        network: Network,
        device: Device,
        precision: str,
        model: TimeModel,
        options: TrainingOptions | None = None,
        clock: str | None = None,
        unit: str | None = None,
        computing: float = 1.0,
    ) -> None:
        self.network, self.device, self.precision, self.model = network, device, precision, model
        self.options = options or TrainingOptions("sgd")
        self.clock, self.unit, self.computing = clock, unit, computing
        self._times: dict[int, LayerTimes] = {}

    @cached_property
    def work(self) -> Work:
        """The network's counts."""
        return count(self.network.layers, self.precision)

    @property
    def element_bytes(self) -> int:
        """Of an activation."""
        return element_bytes(self.precision)

    def gradient_bytes(self, precision: str | None = None) -> Floats:
        """Bytes of each layer's gradients as they are exchanged, shape (layers,)."""
        trained = [
            0 if layer.attributes.get("frozen", False) else int(parameters)
            for layer, parameters in zip(self.network.layers, self.work.parameters)
        ]
        return np.array(trained, dtype=np.float64) * element_bytes(precision or self.precision)

    def at(self, batch_size: int) -> LayerTimes:
        """The step of one device at a batch size; computed once."""
        if batch_size not in self._times:
            self._times[batch_size] = self._time(batch_size)
        return self._times[batch_size]

    def _time(self, batch_size: int) -> LayerTimes:
        step = train(
            self.network, self.device, self.precision, batch_size, self.model, self.options, self.clock, self.unit,
            work=self.work,
        )  # fmt: skip
        seconds = step.prediction.times_s
        forward, backward = seconds[0], seconds[1] + seconds[2] + seconds[4:].sum(axis=0)
        besides = step.time_s - float(seconds.sum())
        forward = forward + besides * (forward / forward.sum() if forward.sum() else 1 / len(forward))
        factor = self.computing
        return LayerTimes(
            batch_size=batch_size,
            forward_s=forward * factor,
            backward_s=backward * factor,
            update_s=step.update_s * factor,
            time_s=step.time_s * factor,
            interval=None if step.interval is None else (step.interval[0] * factor, step.interval[1] * factor),
            memory=step.memory,
            notes=tuple(step.notes),
            micro_batches=self.options.accumulation,
        )

    def memory(self, batch_size: int, zero_stage: int = 0, shards: int = 1) -> Memory:
        """Memory of one device, with what ZeRO shares out."""
        return memory_of(
            self.network.layers, self.work, self.precision, batch_size, "training", self.options,
            zero_stage=zero_stage, shards=shards,
        )  # fmt: skip

    def part_memory(self, batch_size: int, first: int, last: int) -> float:
        """Bytes on a device that holds layers `first` to `last` - 1 alone, one batch of them in flight.

        Its share of parameters and of the activations of all layers decides.
        """
        whole = self.memory(batch_size)
        held = whole.parameters_bytes + whole.gradients_bytes + whole.optimizer_bytes
        parameters = _share(self.work.parameters, first, last)
        activations = _share(self.work.activations_per_sample, first, last)
        return held * parameters + (whole.activations_bytes + whole.workspace_bytes) * activations + whole.inputs_bytes


def _share(amounts: NDArray[np.int64], first: int, last: int) -> float:
    whole = float(amounts.sum())
    return float(amounts[first:last].sum()) / whole if whole else 0.0

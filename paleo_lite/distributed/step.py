"""Training steps of one and of many devices: `Step` and `DeviceStep`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..timing.activity import Activity
from .pipeline_schedule import StageTimes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


class Step(msgspec.Struct, frozen=True):
    """One training step. Times are numbers, or arrays over batch sizes where a sweep predicts many at once."""

    compute_s: Any  # forward and backward passes, including activation recomputation and pipeline bubbles
    communication_s: Any = 0.0  # all communication, hidden or not
    exposed_s: Any = 0.0  # communication that is not hidden behind computation
    update_s: Any = 0.0  # the optimizer's update
    memory_bytes: float | None = None  # peak of the device that needs most; None if unknown
    collective: str = ""  # algorithm that exchanges the gradients
    # Further causes that make the step longer than ideal scaling, apart from communication.
    overheads_s: dict[str, Any] = {}
    notes: tuple[str, ...] = ()  # remarks for the user
    interval: tuple[Any, Any] | None = None  # 90% interval of `time_s`; None if the time model gives none
    # 90% interval of `time_s` due to communication and stragglers alone, with the computation time taken as exact; None
    # if unknown.
    cluster_interval: tuple[Any, Any] | None = None
    recomputed_fraction: float = 0.0  # recomputation time as a fraction of the forward and backward passes
    input_s: Any = 0.0  # time spent waiting for samples
    # From which the schedule of a pipeline follows; None without one, and for arrays of batch sizes.
    pipeline: StageTimes | None = None
    # Of a device in the step; None: as in a step of its own with its part of the batch.
    activity: Activity | None = None

    @property
    def time_s(self) -> Any:
        """Step time: ``compute_s + exposed_s + update_s + input_s``."""
        return self.compute_s + self.exposed_s + self.update_s + self.input_s

    @property
    def hidden_s(self) -> Any:
        """Time of communication that is hidden behind computation."""
        return self.communication_s - self.exposed_s

    def with_slower_exchanges(self, factor: float) -> Step:
        """Return the step with the time of its exchanges multiplied by a factor, also of those that it waits for."""
        waits_s = self.exposed_s * (factor - 1)
        relative = (self.time_s + waits_s) / self.time_s
        pipeline = self.pipeline
        if pipeline is not None:
            pipeline = msgspec.structs.replace(
                pipeline,
                exchange_s=tuple(seconds * factor for seconds in pipeline.exchange_s),
                transfer_s=tuple(seconds * factor for seconds in pipeline.transfer_s),
                gradients_s=pipeline.gradients_s * factor,
            )
        return msgspec.structs.replace(
            self,
            communication_s=self.communication_s * factor,
            exposed_s=self.exposed_s + waits_s,
            interval=None if self.interval is None else (self.interval[0] * relative, self.interval[1] * relative),
            pipeline=pipeline,
        )


class DeviceStep(Step, frozen=True, kw_only=True, eq=False):
    """Training step of a single device, layer by layer: the starting point of every strategy.

    Its passes are the times of one layer of each group, shape (groups,) or (groups, batch sizes). Recomputation counts
    as backward; the overhead of a step is spread over the forward pass.
    """

    forward_s: Floats
    backward_s: Floats
    layer_group: Ints  # of each layer, shape (layers,); layers of one group take equally long
    model_notes: tuple[str, ...] = ()  # notes of the time model's prediction
    micro_batches: int = 1  # before the update (gradient accumulation); only the last backward pass exchanges gradients
    # Results of `data_parallel.Buckets.ready_times_for_step`.
    ready_times_cache: dict[tuple[int, bool], tuple[Any, Floats]] = {}

    @classmethod
    def from_passes(
        cls, forward_s: Floats, backward_s: Floats, update_s: Any, layer_group: Ints, **fields: Any
    ) -> DeviceStep:
        """Return the step with these times of the passes; `fields` sets further attributes."""
        layers_per_group = np.bincount(layer_group, minlength=len(forward_s))
        compute_s = as_scalar(layers_per_group @ (forward_s + backward_s))
        return cls(
            compute_s,
            update_s=update_s,
            forward_s=forward_s,
            backward_s=backward_s,
            layer_group=layer_group,
            **fields,
        )

    @property
    def layer_times_s(self) -> Floats:
        """Time of the forward and backward pass of each layer, shape (layers,) or (layers, batch sizes)."""
        return (self.forward_s + self.backward_s)[self.layer_group]

    def time_of_layer_shares(self, layer_shares: Floats) -> Any:
        """Return the time of both passes when a device computes only a share of each layer, shape (layers,)."""
        group_shares = np.bincount(self.layer_group, layer_shares, len(self.forward_s))
        return as_scalar(group_shares @ (self.forward_s + self.backward_s))

    def scaled_by(self, factor: float) -> DeviceStep:
        """Return the step with every time multiplied by a factor."""
        interval = None
        if self.interval is not None:
            interval = (self.interval[0] * factor, self.interval[1] * factor)
        return msgspec.structs.replace(
            self,
            compute_s=self.compute_s * factor,
            forward_s=self.forward_s * factor,
            backward_s=self.backward_s * factor,
            update_s=self.update_s * factor,
            interval=interval,
            ready_times_cache={},
        )

    def without_layers_from(self, layer: int) -> DeviceStep:
        """Return the step of the layers before `layer` (an index)."""
        return DeviceStep.from_passes(
            self.forward_s,
            self.backward_s,
            self.update_s,
            self.layer_group[:layer],
            memory_bytes=self.memory_bytes,
            interval=self.interval,
            model_notes=self.model_notes,
            micro_batches=self.micro_batches,
        )


def as_scalar(seconds: Any) -> Any:
    """Return a 0-d array as a float, and any other array unchanged."""
    if np.ndim(seconds):
        return seconds
    return float(seconds)

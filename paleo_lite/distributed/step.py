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
    """One training step. Times are numbers, or arrays over batch sizes where a sweep predicts many at once.

    Attributes
    ----------
    compute_s : float
        Time of the forward and backward passes, including activation recomputation and pipeline bubbles.
    communication_s : float
        Time of all communication, hidden or not.
    exposed_s : float
        Exposed communication: the part that is not hidden behind computation.
    update_s : float
        Time of the optimizer's update.
    input_s : float
        Time spent waiting for samples.
    memory_bytes : float or None
        Peak memory of the device that needs most; None if unknown.
    collective : str
        Algorithm that exchanges the gradients.
    overheads_s : dict of str to float
        Further causes that make the step longer than ideal scaling, apart from communication, with their seconds.
    notes : tuple of str
        Remarks for the user.
    interval : tuple of float or None
        90% interval of `time_s`; None if the time model gives none.
    cluster_interval : tuple of float or None
        90% interval of `time_s` due to communication and stragglers alone, with the computation time taken as exact;
        None if unknown.
    recomputed_fraction : float
        Recomputation time as a fraction of the forward and backward passes.
    pipeline : StageTimes or None
        Times of the stages of a pipeline, from which its schedule follows; None without pipeline parallelism, and for
        arrays of batch sizes.
    activity : Activity or None
        What a device does in the step; None: as in a step of its own with its part of the batch.
    """

    compute_s: Any
    communication_s: Any = 0.0
    exposed_s: Any = 0.0
    update_s: Any = 0.0
    memory_bytes: float | None = None
    collective: str = ""
    overheads_s: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    interval: tuple[Any, Any] | None = None
    cluster_interval: tuple[Any, Any] | None = None
    recomputed_fraction: float = 0.0
    input_s: Any = 0.0
    pipeline: StageTimes | None = None
    activity: Activity | None = None

    @property
    def time_s(self) -> Any:
        """Step time: ``compute_s + exposed_s + update_s + input_s``."""
        return self.compute_s + self.exposed_s + self.update_s + self.input_s

    @property
    def hidden_s(self) -> Any:
        """Time of communication that is hidden behind computation."""
        return self.communication_s - self.exposed_s


class DeviceStep(Step, frozen=True, kw_only=True, eq=False):
    """Training step of a single device, layer by layer: the starting point of every strategy.

    Attributes
    ----------
    forward_s, backward_s : ndarray, shape (groups,) or (groups, batch sizes)
        Time of one layer of each group. Recomputation counts as backward; the overhead of a step is spread over the
        forward pass.
    layer_group : ndarray of int, shape (layers,)
        Index of each layer's group; layers of one group take equally long.
    model_notes : tuple of str
        Notes of the time model's prediction.
    micro_batches : int
        Number of micro-batches before the update (gradient accumulation); gradients are exchanged during the backward
        pass of the last one only.
    ready_times_cache : dict
        Results of `data_parallel.Buckets.ready_times_for_step`.
    """

    forward_s: Floats
    backward_s: Floats
    layer_group: Ints
    model_notes: tuple[str, ...] = ()
    micro_batches: int = 1
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
        """Return the time of both passes when a device computes only a share of each layer.

        Parameters
        ----------
        layer_shares : ndarray, shape (layers,)
            Fraction of each layer's work.
        """
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

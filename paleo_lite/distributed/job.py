"""A workload to be trained on devices of one kind, with the memory of one device; and its steps, of one and of many."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

from ..machines import Machine
from ..timing import TimeModel, Workload, predict
from ..timing.activity import Activity
from ..timing.memory import Memory, memory_by_micro_batch
from ..timing.terms import RECOMPUTE
from ..units import element_bytes
from .pipeline_schedule import StageTimes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    from ..timing.blocks import StackConstants
    from ..timing.causes import MovedCauses

ResultT = TypeVar("ResultT")


class Job:
    """A workload to be trained on devices of one kind.

    The workload is in the phase ``training``; every strategy sets the batch size of one device. `model` is the time
    model of the computation on one device, and `compute_ratio` its measured over its predicted time, which is known for
    platforms that were measured. `compute_scale` is a further factor on it, see `with_compute_scale`.
    """

    compute_scale = 1.0
    stack_constants: StackConstants | None = None  # of the tuned stack; None for the shipped ones
    moved: MovedCauses | None = None  # what measured steps say; None without any

    def __init__(
        self,
        workload: Workload,
        machine: Machine,
        model: TimeModel,
        compute_ratio: float = 1.0,
    ) -> None:
        self.workload = workload
        self.machine = machine
        self.model = model
        self.compute_ratio = compute_ratio
        self._device_steps: dict[Any, DeviceStep] = {}
        self._cache: dict[tuple[Any, ...], Any] = {}
        self._cache_across_models: dict[tuple[Any, ...], Any] = {}

    def with_compute_scale(self, factor: float) -> Job:
        """Return the job with its computation time multiplied by a factor; both jobs share all caches."""
        if factor == 1:
            return self
        scaled = copy.copy(self)
        scaled.compute_scale = self.compute_scale * factor
        return scaled

    @cached_property
    def roofline_job(self) -> Job:
        """The same job with the time model of a lower bound by the device's data sheet."""
        return self.with_time_model(self.model.bound_model)

    def with_stack_constants(self, constants: StackConstants) -> Job:
        """Return the job with other constants of the tuned stack; both share what no time model changes."""
        other = self.with_time_model(self.model)
        other.stack_constants = constants
        return other

    def with_moved_causes(self, moved: MovedCauses) -> Job:
        """Return the job with the factors that measured steps lead to; both share what no time model changes."""
        other = self.with_time_model(self.model)
        other.compute_ratio, other.stack_constants, other.moved = self.compute_ratio, self.stack_constants, moved
        return other

    def with_accumulation(self, micro_batches: int) -> Job:
        """Return the job with its batch in some micro-batches, which share no results with those of the whole batch."""
        options = msgspec.structs.replace(self.workload.options, accumulation=micro_batches)
        other = Job(self.workload.with_changes(training=options), self.machine, self.model, self.compute_ratio)
        other.compute_scale, other.stack_constants, other.moved = self.compute_scale, self.stack_constants, self.moved
        return other

    def with_time_model(self, model: TimeModel) -> Job:
        """Return the job with another time model; both jobs share the results that no time model changes."""
        other = Job(self.workload, self.machine, model)
        other._cache_across_models = self._cache_across_models
        return other

    def move(self, model: TimeModel) -> TimeModel:
        """Return a model of the computation with the factors that measured steps lead to."""
        return model if self.moved is None else self.moved.move(model)

    def factor_of(self, cause: str) -> float:
        """Return the factor on the seconds of a cause that measured steps lead to; 1 without measured steps."""
        return 1.0 if self.moved is None else self.moved.factor_of(cause)

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of an activation."""
        return element_bytes(self.workload.precision)

    def cached(self, function: Callable[..., ResultT], *args: Any) -> ResultT:
        """Call ``function(self, *args)`` and cache the result on this job."""
        key = (function, *args)
        if key not in self._cache:
            self._cache[key] = function(self, *args)
        result: ResultT = self._cache[key]
        return result

    def cached_across_models(self, function: Callable[..., ResultT], *args: Any) -> ResultT:
        """Call ``function(self, *args)`` and cache a result that does not depend on the time model."""
        key = (function, *args)
        if key not in self._cache_across_models:
            self._cache_across_models[key] = function(self, *args)
        result: ResultT = self._cache_across_models[key]
        return result

    def device_step(self, batch_size: Any) -> DeviceStep:
        """Return the cached step of one device at a batch size, or at an array of batch sizes."""
        key = batch_size.tobytes() if np.ndim(batch_size) else batch_size
        if key not in self._device_steps:
            self._device_steps[key] = self._predict_device_step(batch_size)
        step = self._device_steps[key]
        factor = self.compute_ratio * self.compute_scale
        return step if factor == 1 else step.scaled_by(factor)

    def _predict_device_step(self, batch_size: Any) -> DeviceStep:
        workload = self.workload.with_changes(batch_size=batch_size)
        prediction = predict(workload, self.machine, self.move(self.model))
        terms = prediction.terms
        forward = terms.seconds_of("forward")
        total_forward = forward.sum()
        overhead_shares = forward / total_forward if total_forward else 1 / len(forward)
        return DeviceStep.from_passes(
            forward + terms.overhead_s * overhead_shares,
            terms.seconds_of("backward_data", "backward_weight", RECOMPUTE),
            float(terms.seconds_of("update").sum()),
            np.arange(len(forward)),
            memory_bytes=as_scalar(self.device_memory(workload.batch_size).total_bytes),
            interval=prediction.interval,
            model_notes=prediction.notes,
            micro_batches=workload.options.accumulation,
        )

    def activity_alone(self, samples: int) -> tuple[Activity, float]:
        """Return what a device does in a step of its own, and the seconds of the step."""
        return self.cached(_activity_alone, samples)

    def device_memory(self, batch_size: Any, zero_stage: int = 0, shards: int = 1) -> Memory:
        """Return the peak memory of one device.

        The batch size is that of the device; with an array every part of the result is an array, too. `shards` devices
        share the sharded state.
        """
        options = self.workload.options
        if np.ndim(batch_size):
            micro_batch_size = batch_size // options.accumulation
        else:
            micro_batch_size = options.micro_batch(batch_size)
        key = (memory_by_micro_batch, zero_stage, shards)
        if key not in self._cache_across_models:
            self._cache_across_models[key] = memory_by_micro_batch(self.workload, zero_stage=zero_stage, shards=shards)
        memory: Memory = self._cache_across_models[key](micro_batch_size)
        return memory


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
    # FLOPs that are computed again as a fraction of those of the passes; where blocks are timed, of their times.
    recomputed_fraction: float = 0.0
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


def _activity_alone(job: Job, samples: int) -> tuple[Activity, float]:
    """Return what a device does in a step of its own, and the seconds of the step."""
    prediction = predict(job.workload.with_changes(batch_size=samples), job.machine, job.model)
    return prediction.activity, prediction.time_s

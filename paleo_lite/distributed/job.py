"""A workload to be trained on devices of one kind: `Job`, with the steps and the memory of one device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..machines import Machine
from ..timing import TimeModel, Workload, predict
from ..timing.memory import Memory, memory_by_micro_batch
from ..timing.training import RECOMPUTE
from ..units import element_bytes
from .step import DeviceStep, as_scalar

if TYPE_CHECKING:
    from ..timing.causes import MovedCauses
    from ..timing.training_stack import StackConstants

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

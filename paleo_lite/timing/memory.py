"""Peak memory of a training step or of inference, by part; and the largest batch that fits.

Every part is affine in the batch: activations grow with it, parameters do not. ``docs/training.md`` gives the formulas
and how far they are from what frameworks allocate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import msgspec

from ..counting import KINDS, Layer
from ..counting.work import trains
from ..errors import BadValue
from ..hardware import Device
from ..units import WEIGHT_BYTES, element_bytes
from .checkpointing import find_segments
from .liveness import NONE, Bytes, make_plan, peak_forward, peak_training, saved_bytes
from .workload import MASTER_BYTES, OPTIMIZERS, TrainingOptions, Workload, matrix_weights, remembered

ZERO_FROM_STAGE = (3, 2, 1)
"""The stage from which ZeRO shares out parameters, gradients and the optimizer's state."""

RESERVE_BYTES = 10**9
"""Left free on the device: about half for the CUDA context and its kernels, half for what the allocator rounds up."""


def usable_bytes(device: Device) -> float:
    """What a network may take of a device's memory: all but `RESERVE_BYTES`."""
    return device.memory_bytes - RESERVE_BYTES


def shared_out(amounts: Sequence[int], stage: int, shards: Any) -> list[Any]:
    """Bytes of parameters, gradients and optimizer state on each of so many devices, by a stage of ZeRO.

    Rajbhandari et al. 2020, section 3 and figure 1: a stage divides its share by the number of devices. `shards` is a
    number of devices or an array of them.
    """
    return [-(-part // shards) if stage >= first else part for part, first in zip(amounts, ZERO_FROM_STAGE)]


_PARTS = ("parameters", "gradients", "optimizer", "activations", "inputs", "workspace", "cache")


class Memory(msgspec.Struct, frozen=True):
    """Peak memory by part, in bytes.

    Attributes
    ----------
    parameters_bytes : int
        Parameters, and the running statistics of batch norms.
    gradients_bytes : int
        Gradients of all parameters.
    optimizer_bytes : int
        The optimizer's state; in mixed precision with the master weights.
    activations_bytes : int
        What the forward pass saves for the backward pass; at inference the largest set of tensors alive at once.
    inputs_bytes : int
        What the network is given.
    cache_bytes : int
        Keys and values of all tokens, of networks that write text.
    workspace_bytes : int
        What else is alive at the peak: results not saved, gradients of activations. The scratch memory that
        libraries ask for, of convolutions above all, is not known and not in it.
    """

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    inputs_bytes: int
    workspace_bytes: int
    cache_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """All parts."""
        return sum(amount for _, amount in self.rows())

    def of_share(self, parameters: Any, activations: Any = 1.0) -> Any:
        """Bytes of a device that has these shares of the parameters and of the activations, and all of the inputs."""
        model = self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes
        return model * parameters + (self.activations_bytes + self.workspace_bytes) * activations + self.inputs_bytes

    def rows(self) -> list[tuple[str, int]]:
        """Part and bytes, in the order of the attributes."""
        return [(name, getattr(self, f"{name}_bytes")) for name in _PARTS]

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON."""
        return {"total_bytes": self.total_bytes, **{f"{name}_bytes": amount for name, amount in self.rows()}}


def memory_of(workload: Workload, *, zero_stage: int = 0, shards: int = 1) -> Memory:
    """Peak memory on one device.

    Parameters
    ----------
    workload : Workload
        Its batch is that of the step on this device, all micro-batches together. ``inference`` and ``forward`` save
        nothing; every other phase is a training step.
    zero_stage : {0, 1, 2, 3}
        What is divided among `shards` devices: nothing, the optimizer's state, the gradients too, the parameters too
        (Rajbhandari et al. 2020, ZeRO).
    shards : int
        Devices that share.
    """
    batch_size = workload.batch_size
    micro = workload.options.micro_batch(batch_size) if trains(workload.phase) else batch_size
    return memory_by_micro_batch(workload, zero_stage=zero_stage, shards=shards)(micro)


def memory_by_micro_batch(workload: Workload, *, zero_stage: int = 0, shards: int = 1) -> Callable[[Any], Memory]:
    """As `memory_of`, of any size of a micro-batch, or an array of them: what is looked for once."""
    parts = _parts(workload, zero_stage, shards)
    return lambda micro: Memory(*(part.fixed + micro * part.per_sample if part.per_sample else part.fixed
                                  for part in parts))  # fmt: skip


def memory_coefficients(workload: Workload, *, zero_stage: int = 0, shards: int = 1) -> tuple[int, int]:
    """Bytes that do not depend on the batch, and bytes for each sample of a micro-batch: their sum is `memory_of`'s.

    Returns
    -------
    fixed_bytes, per_sample_bytes : int
    """
    parts = _parts(workload, zero_stage, shards)
    return sum(part.fixed for part in parts), sum(part.per_sample for part in parts)


def largest_batch(workload: Workload, *, memory_bytes: float, zero_stage: int = 0, shards: int = 1) -> int | None:
    """The largest batch whose peak memory is no more than `memory_bytes`; None where not even one sample fits.

    With accumulation it is the largest micro-batch times their number.
    """
    fixed, per_sample = memory_coefficients(workload, zero_stage=zero_stage, shards=shards)
    if not per_sample:
        raise BadValue("the network's memory does not depend on the batch, so no batch is the largest")
    micro = int((memory_bytes - fixed) // per_sample)
    return micro * (workload.options.accumulation if trains(workload.phase) else 1) if micro >= 1 else None


def _parts(workload: Workload, stage: int, shards: int) -> list[Bytes]:
    """The parts in the order of `Memory`, for one sample and without any."""
    layers, number_bytes = workload.network.layers, element_bytes(workload.precision)
    if stage not in (0, 1, 2, 3):
        raise BadValue(f"ZeRO has the stages 0 (nothing is divided), 1, 2 and 3, not {stage!r}")
    if isinstance(shards, bool) or not isinstance(shards, int) or shards < 1:
        raise BadValue(f"the shards must be a whole number of 1 or more, not {shards!r}")
    stage = stage if trains(workload.phase) else 0
    model = [Bytes(0, part) for part in shared_out(model_bytes(workload), stage, shards)]
    # a running mean and a running variance per channel
    statistics = sum(2 * layer.inputs[0][1] for layer in layers if layer.kind in KINDS and KINDS[layer.kind].statistics)
    statistics_bytes = statistics * (max(number_bytes, 4) if workload.options.mixed_precision else number_bytes)
    model[0] = Bytes(0, model[0].fixed + statistics_bytes)
    training = workload.options if trains(workload.phase) else None
    return [*model, *remembered(_find_tensors, layers, number_bytes, training)]


def _find_tensors(layers: tuple[Layer, ...], number_bytes: int, options: TrainingOptions | None) -> list[Bytes]:
    """All parts but those of the model, in the order of `Memory`; at inference there are no options."""
    plan = remembered(make_plan, layers, number_bytes)
    inputs = Bytes(sum(plan.graph.buffers[which].bytes_(number_bytes) for which in plan.graph.inputs), 0)
    if options is None:
        cached = sum(prod(shape) for layer in layers if layer.kind == "cache" for shape in layer.outputs)
        return [peak_forward(plan), inputs, NONE, Bytes(cached * number_bytes, 0)]
    peak, saved = NONE, NONE
    for segment in find_segments(layers, plan, options.checkpointing):
        highest = segment.held_bytes.plus(peak_training(plan, segment.start, segment.end, segment.held))
        if highest >= peak:
            own = saved_bytes(plan, segment.start, segment.end, segment.held)
            peak, saved = highest, segment.held_bytes.plus(own)
    workspace = peak.minus(saved)
    if options.accumulation > 1:  # a weight's new gradient stands beside the old one until the two are added up
        largest = max((prod(weight) for layer in layers for weight in layer.weights), default=0)
        workspace = workspace.plus(Bytes(0, largest * number_bytes))
    return [saved, inputs, workspace]


def model_bytes(workload: Workload) -> tuple[int, int, int]:
    """Bytes of parameters, gradients and optimizer state on one device.

    Rajbhandari et al. 2020, section 3: in mixed precision 2 + 2 + K bytes per parameter with K = 12 for Adam (fp32
    master weight, momentum, variance).
    """
    number_bytes, options = element_bytes(workload.precision), workload.options
    parameters = int(workload.work.parameters.sum())
    if not trains(workload.phase):
        spared = sum(
            matrix_weights(layer) * number_bytes
            for layer in workload.layers
            if workload.weights is not None and layer.parameters
        )
        narrow = 0 if workload.weights is None else spared / number_bytes * WEIGHT_BYTES[workload.weights]
        return int(parameters * number_bytes - spared + narrow), 0, 0
    frozen = sum(layer.parameters for layer in workload.layers if layer.attributes.get("frozen", False))
    state = OPTIMIZERS[options.optimizer].state
    per_state = MASTER_BYTES * (1 + state) if options.mixed_precision else number_bytes * state
    trained = parameters - frozen
    return parameters * number_bytes, trained * number_bytes, trained * per_state

"""Peak memory of a training step or of inference, by part; and the largest batch that fits.

Every part is affine in the batch: activations grow with it, parameters do not. ``docs/training.md`` gives the formulas
and how far they are from what frameworks allocate.

With checkpointing a network cut into segments keeps what crosses the cuts, and computes the inside of a segment again
when the backward pass comes to it (Chen et al. 2016, "Training deep nets with sublinear memory cost"). About sqrt(n)
segments need the least memory of a chain of n equal layers, for one more forward pass.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from math import ceil, prod, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..counting import KINDS, MATRIX_KINDS, Layer
from ..counting.work import PHASES_WITH_GRADIENTS
from ..errors import BadValue
from ..machines import Device
from ..units import WEIGHT_BYTES, element_bytes
from .liveness import ZERO_BYTES, MemoryPlan, make_plan, peak_backward, peak_forward, saved_bytes
from .workload import MASTER_BYTES, OPTIMIZERS, TrainingOptions, Workload, cached_for_layers, matrix_elements

if TYPE_CHECKING:
    from .liveness import Bytes

ZERO_FROM_STAGE = (3, 2, 1)
"""The stage from which ZeRO shares out parameters, gradients and the optimizer's state."""

RESERVE_BYTES = 10**9
"""Left free on the device: about half for the CUDA context and its kernels, half for what the allocator rounds up."""


def usable_bytes(device: Device) -> float:
    """What a network may take of a device's memory: all but `RESERVE_BYTES`."""
    return device.memory_bytes - RESERVE_BYTES


def shard_model_state(amounts: Sequence[int], stage: int, shards: Any) -> list[Any]:
    """Bytes of parameters, gradients and optimizer state on each of so many devices, by a stage of ZeRO.

    Rajbhandari et al. 2020, section 3 and figure 1: a stage divides its share by the number of devices. `shards` is a
    number of devices or an array of them.
    """
    return [-(-part // shards) if stage >= first else part for part, first in zip(amounts, ZERO_FROM_STAGE)]


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
        return sum(msgspec.structs.astuple(self))

    def sharded_bytes(self, parameters: Any, activations: Any = 1.0) -> Any:
        """Bytes of a device that has these shares of the parameters and of the activations, and all of the inputs."""
        model = self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes
        return model * parameters + (self.activations_bytes + self.workspace_bytes) * activations + self.inputs_bytes

    def rows(self) -> list[tuple[str, int]]:
        """Part and bytes, in the order of the attributes."""
        return [(name.removesuffix("_bytes"), amount) for name, amount in msgspec.structs.asdict(self).items()]

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON."""
        return {"total_bytes": self.total_bytes, **msgspec.structs.asdict(self)}


class MemoryRemedy(msgspec.Struct, frozen=True):
    """Something that makes the same step need less memory.

    Attributes
    ----------
    total_bytes : int
        Peak memory with it, at the batch that was asked for.
    largest_batch : int or None
        The largest batch that fits with it.
    """

    name: str
    total_bytes: int
    fits: bool
    largest_batch: int | None


class MemoryFit(msgspec.Struct, frozen=True):
    """Peak memory held against a device.

    Attributes
    ----------
    memory : Memory
        What is needed.
    capacity_bytes : float
        What the device has.
    reserve_bytes : float
        What is left free of it.
    largest_batch : int or None
        The largest batch that fits; None where not even one sample does.
    optimizer : str or None
        Which the optimizer's part is of; None where nothing is trained.
    remedies : tuple of MemoryRemedy
        What would help, most first; empty where it fits.
    """

    memory: Memory
    capacity_bytes: float
    reserve_bytes: float
    largest_batch: int | None
    optimizer: str | None = None
    remedies: tuple[MemoryRemedy, ...] = ()

    @property
    def usable_bytes(self) -> float:
        """What may be used: all but the reserve."""
        return self.capacity_bytes - self.reserve_bytes

    @property
    def fits(self) -> bool:
        """Whether it does."""
        return self.memory.total_bytes <= self.usable_bytes

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON."""
        return {
            **self.memory.to_dict(),
            "optimizer": self.optimizer,
            "capacity_bytes": self.capacity_bytes,
            "reserve_bytes": self.reserve_bytes,
            "fits": self.fits,
            "largest_batch": self.largest_batch,
            "remedies": [msgspec.structs.asdict(remedy) for remedy in self.remedies],
        }


def peak_memory(workload: Workload, *, zero_stage: int = 0, shards: int = 1) -> Memory:
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
    micro = workload.options.micro_batch(batch_size) if workload.phase in PHASES_WITH_GRADIENTS else batch_size
    return memory_by_micro_batch(workload, zero_stage=zero_stage, shards=shards)(micro)


def memory_by_micro_batch(workload: Workload, *, zero_stage: int = 0, shards: int = 1) -> Callable[[Any], Memory]:
    """As `memory_of`, of any size of a micro-batch, or an array of them: what is looked for once."""
    parts = _parts(workload, zero_stage, shards)
    return lambda micro: Memory(*(fixed + micro * per_sample if per_sample else fixed for per_sample, fixed in parts))


def memory_coefficients(workload: Workload, *, zero_stage: int = 0, shards: int = 1) -> tuple[int, int]:
    """Bytes that do not depend on the batch, and bytes for each sample of a micro-batch: their sum is `memory_of`'s.

    Returns
    -------
    fixed_bytes, per_sample_bytes : int
    """
    parts = _parts(workload, zero_stage, shards)
    return sum(fixed for _, fixed in parts), sum(per_sample for per_sample, _ in parts)


def largest_batch(workload: Workload, *, memory_bytes: float, zero_stage: int = 0, shards: int = 1) -> int | None:
    """The largest batch whose peak memory is no more than `memory_bytes`; None where not even one sample fits.

    With accumulation it is the largest micro-batch times their number.
    """
    fixed, per_sample = memory_coefficients(workload, zero_stage=zero_stage, shards=shards)
    if not per_sample:
        raise BadValue("the network's memory does not depend on the batch, so no batch is the largest")
    micro = int((memory_bytes - fixed) // per_sample)
    return (
        micro * (workload.options.accumulation if workload.phase in PHASES_WITH_GRADIENTS else 1)
        if micro >= 1
        else None
    )


def _parts(workload: Workload, stage: int, shards: int) -> list[tuple[int, int]]:
    """The parts in the order of `Memory`: bytes for each sample, and of any batch."""
    layers, number_bytes = workload.network.layers, element_bytes(workload.precision)
    if stage not in (0, 1, 2, 3):
        raise BadValue(f"ZeRO has the stages 0 (nothing is divided), 1, 2 and 3, not {stage!r}")
    if isinstance(shards, bool) or not isinstance(shards, int) or shards < 1:
        raise BadValue(f"the shards must be a whole number of 1 or more, not {shards!r}")
    stage = stage if workload.phase in PHASES_WITH_GRADIENTS else 0
    parameters, *others = shard_model_state(model_bytes(workload), stage, shards)
    # a running mean and a running variance per channel
    statistics = sum(
        2 * layer.inputs[0][1] for layer in layers if layer.kind in KINDS and KINDS[layer.kind].has_running_statistics
    )
    statistics_bytes = statistics * (max(number_bytes, 4) if workload.options.mixed_precision else number_bytes)
    training = workload.options if workload.phase in PHASES_WITH_GRADIENTS else None
    model = [(0, part) for part in (parameters + statistics_bytes, *others)]
    return [*model, *cached_for_layers(_find_tensors, layers, number_bytes, training)]


def _find_tensors(
    layers: tuple[Layer, ...], number_bytes: int, options: TrainingOptions | None
) -> list[tuple[int, int]]:
    """All parts but those of the model, in the order of `Memory`; at inference there are no options."""
    plan = cached_for_layers(make_plan, layers, number_bytes)
    inputs = sum(plan.graph.buffers[which].size for which in plan.graph.inputs), 0
    if options is None:
        cached = sum(prod(shape) for layer in layers if layer.kind == "cache" for shape in layer.outputs)
        return [tuple(peak_forward(plan)), inputs, (0, 0), (cached * number_bytes, 0)]
    peak, saved = ZERO_BYTES, ZERO_BYTES
    for start, end, held, held_bytes in find_segments(layers, plan, options.checkpointing):
        forward = peak_forward(plan, start, end, held, keep_saved=True)
        highest = held_bytes + max(forward, peak_backward(plan, start, end, held), key=tuple)
        if tuple(highest) >= tuple(peak):
            peak, saved = highest, held_bytes + saved_bytes(plan, start, end, held)
    workspace = peak - saved
    if options.accumulation > 1:  # a weight's new gradient stands beside the old one until the two are added up
        largest = max((prod(weight) for layer in layers for weight in layer.weights), default=0)
        workspace[1] += largest * number_bytes
    return [tuple(saved), inputs, tuple(workspace)]


def model_bytes(workload: Workload) -> tuple[int, int, int]:
    """Bytes of parameters, gradients and optimizer state on one device.

    Rajbhandari et al. 2020, section 3: in mixed precision 2 + 2 + K bytes per parameter with K = 12 for Adam (fp32
    master weight, momentum, variance).
    """
    number_bytes, options = element_bytes(workload.precision), workload.options
    parameters = int(workload.work.parameters.sum())
    if workload.phase not in PHASES_WITH_GRADIENTS:
        spared = sum(
            matrix_elements(layer) * number_bytes
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


class Segment(NamedTuple):
    """Layers from `start` up to `end`, and what crosses the cuts up to theirs: each segment starts again from there."""

    start: int
    end: int
    held: frozenset[int]
    held_bytes: Bytes


def find_segments(layers: Sequence[Layer], plan: MemoryPlan, checkpointing: str) -> list[Segment]:
    """Cut a network where one tensor alone crosses.

    Parameters
    ----------
    plan : MemoryPlan
        Of these layers.
    checkpointing : {"none", "sqrt", "all"}
        ``all`` cuts before every block: wherever a single tensor crosses and a convolution or matrix product lies
        between. ``sqrt`` takes about the square root of as many, so that each keeps about as much.

    Returns
    -------
    list of Segment
        In order; one where nothing is checkpointed. All but the last are computed again: the backward pass begins
        with the last, whose forward pass has just been.
    """
    cuts = [0, *(_blocks(layers, plan) if checkpointing != "none" else []), len(layers)]
    if checkpointing == "sqrt":
        cuts = _balanced(plan, cuts)
    crossing: list[list[int]] = [[] for _ in (*cuts, None)]  # by the first cut that a buffer crosses
    for which, (first, last) in enumerate(zip(plan.first_write, plan.last_use)):
        place = bisect_right(cuts, first)
        if first >= 0 and place < len(cuts) and cuts[place] <= last:
            crossing[place].append(which)
    held, held_bytes = frozenset[int](), ZERO_BYTES
    segments = []
    for (start, end), more in zip(pairwise(cuts), crossing):
        held, held_bytes = held.union(more), held_bytes + plan.sizes[more].sum(axis=0)
        segments.append(Segment(start, end, held, held_bytes))
    return segments


def _blocks(layers: Sequence[Layer], plan: MemoryPlan) -> list[int]:
    """The last place to cut before each matrix product that a single tensor leads to."""
    crossing = [0] * (len(layers) + 1)
    last_write = list(plan.first_write)
    for index, written in enumerate(plan.graph.writes):
        for which in written:
            last_write[which] = max(last_write[which], index)
    for first, last in zip(plan.first_write, plan.last_use):
        if first >= 0:
            crossing[first + 1] += 1
            crossing[last + 1] -= 1
    overwritten = [0] * (len(layers) + 1)  # a tensor that is written to later cannot be started from again
    for first, last in zip(plan.first_write, last_write):
        if 0 <= first < last:
            overwritten[first + 1] += 1
            overwritten[last + 1] -= 1
    cuts: list[int] = []
    pending, multiplies, count, changing = 0, False, 0, 0
    for index, layer in enumerate(layers):
        count += crossing[index]
        changing += overwritten[index]
        if count == 1 and not changing and index:
            pending = index
        if layer.kind in MATRIX_KINDS:
            if multiplies and pending > (cuts[-1] if cuts else 0):
                cuts.append(pending)
            multiplies = True
    return cuts


def _balanced(plan: MemoryPlan, cuts: list[int]) -> list[int]:
    """Of the cuts about the square root, at equal shares of what is kept between them."""
    wanted = ceil(sqrt(len(cuts) - 1))
    between = [saved_bytes(plan, start, end)[0] for start, end in pairwise(cuts)]
    done = [0, *accumulate(between)]
    running = done[-1]
    chosen = [0]
    for number in range(1, wanted):
        nearest = min(range(len(cuts)), key=lambda place: abs(done[place] * wanted - number * running))
        if cuts[nearest] > chosen[-1] and cuts[nearest] < cuts[-1]:
            chosen.append(cuts[nearest])
    return [*chosen, cuts[-1]]

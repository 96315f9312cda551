"""Training jobs on several devices: `Job`, `Settings`, `ParallelConfig`, and the `Step` that a strategy predicts."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from ..counting.work import COMPILED, MEGATRON
from ..errors import BadValue, UnknownName
from ..input_pipeline.feeding import DEFAULT_SAMPLE_BYTES, Store
from ..machines import Machine
from ..timing import RooflineModel, TimeModel, Workload, predict
from ..timing.expert_kernels import EXPERT_KERNELS
from ..timing.memory import Memory, memory_by_micro_batch
from ..timing.training import RECOMPUTE
from ..units import element_bytes, parse_quantity
from .expert_exchange import DISPATCHERS
from .pipeline_layout import parse_layout
from .pipeline_schedule import StageTimes
from .saved_activations import CONTAINED_MODULES, RECOMPUTE_MODULES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..timing.training_stack import StackConstants

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

ResultT = TypeVar("ResultT")

BUCKET_BYTES = 25 * 2**20
"""Default bucket size of PyTorch's DistributedDataParallel: ``bucket_cap_mb=25``, which its code counts in MiB."""

RECOMPUTATIONS = ("none", "selective", "full", "offload")
"""Activation recomputation per block.

``none`` computes nothing again. ``selective`` computes the attention scores and their softmax again (Korthikanti et al.
2022), in the stacks of PyTorch all but attention and every second matrix product (torchtitan's selective checkpointing
per operation). ``full`` computes the whole forward pass again from the block's input, and ``offload`` does so with the
inputs of all blocks in the memory of the host.
"""


class Sharding(NamedTuple):
    """How the model state is divided among data-parallel devices, and the communication that follows.

    Attributes
    ----------
    description : str
        One-line description.
    zero_stage : int
        Equivalent ZeRO stage.
    gathers_per_micro_batch : int
        All-gathers of the parameters for every micro-batch.
    gathers_per_step : int
        All-gathers of the parameters once per step, after the update.
    reduces_every_micro_batch : bool
        Whether the gradients of every micro-batch are exchanged, instead of their sum once per step.
    within_node : bool
        Whether the devices of a node divide the state, and nodes hold replicas.
    """

    description: str
    zero_stage: int
    gathers_per_micro_batch: int = 0
    gathers_per_step: int = 0
    reduces_every_micro_batch: bool = False
    within_node: bool = False


SHARDINGS = {
    "ddp": Sharding("PyTorch DDP: replicas, gradients all-reduced in buckets", 0),
    "zero-1": Sharding("DeepSpeed ZeRO 1: optimizer state sharded", 1, gathers_per_step=1),
    "distributed-optimizer": Sharding("Megatron-LM's distributed optimizer: as ZeRO 1", 1, gathers_per_step=1),
    "zero-2": Sharding(
        "DeepSpeed ZeRO 2: gradients sharded, too", 2, gathers_per_step=1, reduces_every_micro_batch=True
    ),
    "shard-grad-op": Sharding(
        "FSDP SHARD_GRAD_OP: parameters gathered once per micro-batch", 2, 1, reduces_every_micro_batch=True
    ),
    "zero-3": Sharding("DeepSpeed ZeRO 3: parameters sharded, too", 3, 2, reduces_every_micro_batch=True),
    "full-shard": Sharding(
        "FSDP FULL_SHARD: parameters gathered for the forward and the backward pass", 3, 2,
        reduces_every_micro_batch=True,
    ),
    "hybrid-shard": Sharding(
        "FSDP HYBRID_SHARD: FULL_SHARD within a node, gradients all-reduced between nodes", 3, 2,
        reduces_every_micro_batch=True, within_node=True,
    ),
}  # fmt: skip
"""Ways to shard the model state, by name."""

SHARDING_OF_STAGE = ("ddp", "zero-1", "zero-2", "full-shard")
"""Name in `SHARDINGS` of each ZeRO stage."""

STACK_DISPATCHER = "hybridep"
"""Library of `expert_exchange` with which Megatron-LM exchanges tokens on Hopper and later."""

STACKS = {
    MEGATRON: "Megatron-LM: fused norms, rotary positions and activations",
    COMPILED: "PyTorch with torch.compile: fused chains of pointwise layers",
    "eager": "PyTorch: one kernel per operation",
}
"""Software stacks of training in blocks, and their fused kernels."""

_DEGREE_OPTIONS = {
    "tensor": "--tensor",
    "pipeline": "--pipeline",
    "virtual_stages": "--interleaved",
    "micro_batch_size": "--micro-batch",
    "context": "--context-parallel",
    "expert": "--expert-parallel",
    "expert_tensor": "--expert-tensor-parallel",
    "recompute_every": "--recompute-every",
}
"""Integer fields of `ParallelConfig` and the command-line options that set them."""


class ParallelConfig(msgspec.Struct, frozen=True):
    """Degrees of parallelism for training a network of equal blocks.

    Attributes
    ----------
    tensor : int
        Tensor-parallel devices, which share every weight matrix; they belong to one node.
    pipeline : int
        Pipeline stages.
    virtual_stages : int
        Virtual pipeline stages per device (interleaved 1F1B schedule).
    sequence_parallel : bool
        Whether the tensor-parallel devices also shard the activations outside the matrix products along the sequence.
    micro_batch_size : int
        Samples per micro-batch.
    recompute : {"", "none", "selective", "full", "offload"}
        Activation recomputation, see `RECOMPUTATIONS`; empty for none, or in a tuned stack for as much as the memory
        of the device requires.
    recompute_modules : tuple of str
        Modules of `saved_activations.RECOMPUTE_MODULES` that selective recomputation in a tuned stack repeats.
    offloaded_share : float
        Share of the saved activations that are copied to the memory of the host, and back.
    zero_stage : {0, 1, 2, 3}
        ZeRO stage: which of optimizer state, gradients and parameters are sharded across data-parallel ranks. Stage 3
        is FSDP's FULL_SHARD.
    sharding : str
        Name in `SHARDINGS`, which then determines the stage; empty for the usual way of the stage.
    recompute_every : int
        With full recomputation: every n-th block is computed again, the others save their activations.
    context : int
        Context-parallel devices, which share every sequence and pass keys and values around a ring (Liu et al. 2023).
    expert : int
        Expert-parallel devices of a stage, which share the experts of a mixture-of-experts layer; an all-to-all sends
        each token to its experts and back.
    execution : {"megatron", "compiled", "eager"}
        Software stack, which determines the fused kernels.
    attention : str or None
        Implementation of attention, one of `paleo_lite.timing.attention.ATTENTION_NAMES`; None for the default of the
        stack.
    dispatch : str
        Library that sends tokens to their experts, one of `expert_exchange.DISPATCHERS`; empty for the default of the
        stack.
    expert_tensor : int
        Devices that divide the matrices of every expert, apart from `tensor`.
    expert_imbalance : float
        Rows of the experts of the device with the most of them, over the mean: 1 with balanced experts.
    expert_capacity : float or None
        Largest number of rows of an expert over the mean; further tokens skip it. None: no token is dropped.
    expert_overlap : float or None
        Share of the exchange of tokens that is hidden behind computation; None for the default of the stack.
    expert_kernels : str
        Implementation of the products of experts in a tuned stack, one of
        `paleo_lite.timing.expert_kernels.EXPERT_KERNELS`; empty for the mean over those that network, recipe and device
        allow.
    layout : str
        Blocks of each stage as text, see `pipeline_layout`; it determines the virtual stages. Empty for the most even
        layout.
    """

    tensor: int = 1
    pipeline: int = 1
    virtual_stages: int = 1
    sequence_parallel: bool = False
    micro_batch_size: int = 1
    recompute: str = ""
    zero_stage: int = 1
    context: int = 1
    expert: int = 1
    sharding: str = ""
    recompute_every: int = 1
    execution: str = MEGATRON
    attention: str | None = None
    layout: str = ""
    dispatch: str = ""
    expert_kernels: str = ""
    expert_tensor: int = 1
    expert_imbalance: float = 1.0
    expert_capacity: float | None = None
    expert_overlap: float | None = None
    recompute_modules: tuple[str, ...] = ()
    offloaded_share: float = 0.0

    def __post_init__(self) -> None:
        for name, option in _DEGREE_OPTIONS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise BadValue(f"`{option}` must be an integer >= 1 (got {value!r})")
        if self.recompute not in ("", *RECOMPUTATIONS):
            raise BadValue(f"`--recompute` must be one of {', '.join(RECOMPUTATIONS)} (got {self.recompute!r})")
        for name in self.recompute_modules:
            if name not in RECOMPUTE_MODULES:
                raise UnknownName("module to recompute", name, RECOMPUTE_MODULES)
        for module, contained in CONTAINED_MODULES.items():
            for name in contained:
                if module in self.recompute_modules and name in self.recompute_modules:
                    raise BadValue(f"`--recompute-modules {module}` computes {name} again as well: leave out {name}")
        if self.recompute_modules and self.recompute != "selective":
            raise BadValue("`--recompute-modules` is for `--recompute selective`")
        if self.recompute_modules and self.execution != MEGATRON:
            raise BadValue(f"`--recompute-modules` is for `--execution megatron` (got {self.execution})")
        if not 0 <= self.offloaded_share < 1:
            raise BadValue(f"the offloaded share must be >= 0 and < 1 (got {self.offloaded_share:g})")
        if self.sharding and self.sharding not in SHARDINGS:
            raise UnknownName("sharding", self.sharding, SHARDINGS)
        if self.sharding:
            msgspec.structs.force_setattr(self, "zero_stage", SHARDINGS[self.sharding].zero_stage)
        if self.recompute_every > 1 and self.recompute not in ("full", "offload"):
            raise BadValue("`--recompute-every` is for `--recompute full` or `offload`")
        if self.execution not in STACKS:
            raise UnknownName("execution of training in blocks", self.execution, STACKS)
        if self.dispatch and self.dispatch not in DISPATCHERS:
            raise UnknownName("expert dispatch", self.dispatch, DISPATCHERS)
        if self.expert_kernels and self.expert_kernels not in EXPERT_KERNELS:
            raise UnknownName("kernels of experts", self.expert_kernels, EXPERT_KERNELS)
        if not self.expert_imbalance >= 1:
            raise BadValue(
                f"`--expert-imbalance` must be >= 1, the busiest device over the mean (got {self.expert_imbalance:g})"
            )
        if self.expert_capacity is not None and not self.expert_capacity > 0:
            raise BadValue(f"`--expert-capacity` must be > 0 (got {self.expert_capacity:g})")
        if self.expert_overlap is not None and not 0 <= self.expert_overlap <= 1:
            raise BadValue(f"`--expert-overlap` must be between 0 and 1 (got {self.expert_overlap:g})")
        if self.zero_stage not in (0, 1, 2, 3):
            raise BadValue(f"the ZeRO stage must be 0, 1, 2 or 3 (got {self.zero_stage!r})")
        if self.layout:
            self._set_virtual_stages(len(parse_layout(self.layout)))
        if self.virtual_stages > 1 and self.pipeline == 1:
            raise BadValue("`--interleaved` needs pipeline stages: give `--pipeline`, too")

    def _set_virtual_stages(self, stages: int) -> None:
        """Set the virtual stages of a layout with a number of stages."""
        if stages % self.pipeline:
            raise BadValue(
                f"`--pipeline-layout` must have a multiple of {self.pipeline} stages, the pipeline-parallel size "
                f"(got {stages})"
            )
        if self.virtual_stages not in (1, stages // self.pipeline):
            raise BadValue(
                f"`--pipeline-layout` has {stages // self.pipeline} stages per device: `--interleaved` must be the "
                f"same or left out (got {self.virtual_stages})"
            )
        msgspec.structs.force_setattr(self, "virtual_stages", stages // self.pipeline)

    @property
    def sharding_rules(self) -> Sharding:
        """Communication of the model state."""
        return SHARDINGS[self.sharding or SHARDING_OF_STAGE[self.zero_stage]]

    @property
    def expert_load(self) -> float:
        """Rows of the busiest device's experts over the mean, after the tokens above the capacity are dropped."""
        if self.expert_capacity is None:
            return self.expert_imbalance
        return min(self.expert_imbalance, self.expert_capacity)

    @property
    def devices_per_replica(self) -> int:
        """Number of devices that hold one replica of the model."""
        return self.tensor * self.context * self.pipeline

    def describe_degrees(self, data: int) -> str:
        """Return the degrees of parallelism as text, such as ``tensor 8, pipeline 16, data 8``.

        Parameters
        ----------
        data : int
            Number of data-parallel replicas.
        """
        virtual_stages = f" x {self.virtual_stages}" if self.virtual_stages > 1 else ""
        context = f", context {self.context}" if self.context > 1 else ""
        experts = f", experts {self.expert}" if self.expert > 1 else ""
        experts += f" x tensor {self.expert_tensor}" if self.expert_tensor > 1 else ""
        return f"tensor {self.tensor}, pipeline {self.pipeline}{virtual_stages}{context}, data {data}{experts}"

    def describe(self, data: int, micro_batches: int) -> str:
        """Return the whole configuration as text: ``tensor 8, pipeline 16, data 8: 192 micro-batches of 1``."""
        parts = [self.describe_degrees(data)]
        if self.sequence_parallel:
            parts.append("sequence-parallel")
        if self.sharding:
            parts.append(self.sharding)
        elif self.zero_stage:
            parts.append(f"ZeRO {self.zero_stage}")
        if self.execution != MEGATRON:
            parts.append(self.execution)
        if self.attention is not None:
            parts.append(f"{self.attention} attention")
        if self.expert_load != 1:
            parts.append(f"{self.expert_load:g} times the mean rows on the busiest experts")
        if self.layout:
            parts.append(f"layout {self.layout}")
        if self.offloaded_share:
            parts.append(f"{self.offloaded_share:.0%} of activations offloaded")
        if self.recompute_modules:
            parts.append(f"recomputation of {', '.join(self.recompute_modules)}")
        elif self.recompute not in ("", "none"):
            every = f" of every {self.recompute_every}th block" if self.recompute_every > 1 else ""
            parts.append(f"{self.recompute} recomputation{every}")
        plural = "" if micro_batches == 1 else "es"
        return f"{', '.join(parts)}: {micro_batches} micro-batch{plural} of {self.micro_batch_size}"


class Settings(msgspec.Struct, frozen=True):
    """Options of training on several devices.

    Attributes
    ----------
    collective : str or None
        All-reduce algorithm, one of `collectives.COLLECTIVES`; None chooses the fastest.
    gradient_precision : str or None
        Precision in which gradients are exchanged; None uses the precision of the computation.
    overlap : bool
        Whether gradients are exchanged during the backward pass.
    bucket_bytes : float
        Bucket size in bytes: a bucket of gradients is exchanged once it holds this many.
    micro_batches : int or None
        Number of micro-batches for the pipeline strategies; None uses at least four per stage, as far as the batch
        allows.
    slowdown : float
        Slowdown of computation on several devices, as a fraction of the computation time: a shared power limit or host.
    interference : float
        Slowdown of computation while communication runs concurrently, as a fraction of the communication time.
    overlap_efficiency : float
        Fraction of the overlappable communication that is actually hidden behind the backward pass, 0 to 1.
    straggler_penalty : float
        Relative increase of the computation time per doubling of the number of workers, since all workers wait for
        the slowest one.
    inputs : InputSettings or None
        Input pipeline of each node; None: devices never wait for samples.
    parallel : ParallelConfig or None
        Degrees of parallelism for the strategy ``3d``.
    """

    collective: str | None = None
    gradient_precision: str | None = None
    overlap: bool = True
    bucket_bytes: float = BUCKET_BYTES
    micro_batches: int | None = None
    slowdown: float = 0.0
    interference: float = 0.0
    overlap_efficiency: float = 1.0
    straggler_penalty: float = 0.0
    inputs: InputSettings | None = None
    parallel: ParallelConfig | None = None

    def __post_init__(self) -> None:
        if self.gradient_precision is not None:
            element_bytes(self.gradient_precision)
        if not self.bucket_bytes > 0:
            raise BadValue(f"the bucket size must be > 0 bytes (got {self.bucket_bytes:g})")
        if self.micro_batches is not None and self.micro_batches < 1:
            raise BadValue(f"the number of micro-batches must be >= 1 (got {self.micro_batches})")
        for name in ("slowdown", "interference", "straggler_penalty"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise BadValue(f"{name} must be a fraction >= 0 (got {value:g})")
        if not 0 <= self.overlap_efficiency <= 1:
            raise BadValue(f"overlap_efficiency must be between 0 and 1 (got {self.overlap_efficiency:g})")

    def with_straggler_slowdown(self, workers: int) -> Settings:
        """Return settings for this number of workers, with the straggler penalty added to `slowdown`."""
        waiting = self.straggler_penalty * math.log2(workers)
        if not waiting:
            return self
        return msgspec.structs.replace(self, slowdown=self.slowdown + waiting, straggler_penalty=0.0)


class InputSettings(msgspec.Struct, frozen=True):
    """Input pipeline of one node; see `paleo_lite.input_pipeline.feeding.InputPipeline`.

    Attributes
    ----------
    store : Store or None
        Storage of the samples; None: they are in host memory.
    decode_per_s : float or None
        Samples per second that a node decodes; None: the samples need no decoding.
    pageable : bool
        Whether one process copies the samples of all devices from pageable memory, one device after another, before
        they compute.
    link : str
        Name of the host link of each device.
    link_bytes_per_s : float
        Bandwidth of that link in one direction.
    sample_bytes : float
        Bytes of one sample in storage.
    """

    store: Store | None
    decode_per_s: float | None
    pageable: bool
    link: str
    link_bytes_per_s: float
    sample_bytes: float = parse_quantity(DEFAULT_SAMPLE_BYTES, "")


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


class Job:
    """A workload to be trained on devices of one kind.

    Parameters
    ----------
    workload : Workload
        Workload in the phase ``training``; every strategy sets the batch size of one device.
    machine : Machine
        Device with its clock and arithmetic unit.
    model : TimeModel
        Time model of the computation on one device.
    compute_ratio : float
        Measured over predicted computation time of one device; known for platforms that were measured.

    Attributes
    ----------
    compute_scale : float
        Further factor on the computation time, see `with_compute_scale`.
    stack_constants : StackConstants or None
        Constants of the tuned stack; None for the shipped ones.
    """

    compute_scale = 1.0
    stack_constants: StackConstants | None = None

    def __init__(self, workload: Workload, machine: Machine, model: TimeModel, compute_ratio: float = 1.0) -> None:
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
        """The same job with the roofline time model: a lower bound by the device's data sheet."""
        return self.with_time_model(RooflineModel())

    def with_stack_constants(self, constants: StackConstants) -> Job:
        """Return the job with other constants of the tuned stack; both share what no time model changes."""
        other = self.with_time_model(self.model)
        other.stack_constants = constants
        return other

    def with_time_model(self, model: TimeModel) -> Job:
        """Return the job with another time model; both jobs share the results that no time model changes."""
        other = Job(self.workload, self.machine, model)
        other._cache_across_models = self._cache_across_models
        return other

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
        prediction = predict(workload, self.machine, self.model)
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

        Parameters
        ----------
        batch_size : int or ndarray
            Samples per device; with an array every part of the result is an array, too.
        zero_stage : int
            ZeRO stage.
        shards : int
            Number of devices that share the sharded state.
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

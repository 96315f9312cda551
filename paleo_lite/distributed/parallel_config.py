"""Degrees of parallelism of training in blocks, and what they may be combined with: `ParallelConfig`."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ..counting.work import COMPILED, MEGATRON
from ..errors import BadValue, UnknownName
from ..text import format_plural, near_multiples
from ..timing.expert_kernels import EXPERT_KERNELS, check_stack
from ..units import check_integer
from .expert_exchange import DISPATCHERS
from .pipeline_layout import parse_layout
from .saved_activations import CONTAINED_MODULES, RECOMPUTE_MODULES

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
    "virtual_stages": "--schedule interleaved",
    "micro_batch_size": "--micro-batch",
    "context": "--context-parallel",
    "expert": "--expert-parallel",
    "attention_data": "--attention-data-parallel",
    "expert_tensor": "--experts tensor",
    "recompute_every": "--recompute full:N",
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
        Samples per micro-batch, unless their number is given.
    micro_batches : int
        Micro-batches per step of a replica; 0 if their size is given.
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
        layout under Megatron-LM, and for that of torchtitan under PyTorch.
    attention_data : int
        In prefill and decode: groups of the devices of a replica that compute attention for sequences of their own.
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
    attention_data: int = 1
    micro_batches: int = 0

    def __post_init__(self) -> None:
        for name, option in _DEGREE_OPTIONS.items():
            check_integer(f"`{option}`", getattr(self, name), 1)
        if self.recompute not in ("", *RECOMPUTATIONS):
            raise BadValue(f"`--recompute` must be one of {', '.join(RECOMPUTATIONS)} (got {self.recompute!r})")
        for name in self.recompute_modules:
            if name not in RECOMPUTE_MODULES:
                raise UnknownName("module to recompute", name, RECOMPUTE_MODULES)
        for module, contained in CONTAINED_MODULES.items():
            for name in contained:
                if module in self.recompute_modules and name in self.recompute_modules:
                    raise BadValue(f"`--recompute selective:{module}` computes {name} again as well: leave out {name}")
        if self.recompute_modules and self.recompute != "selective":
            raise BadValue("modules are for `--recompute selective`")
        if self.recompute_modules and self.execution != MEGATRON:
            raise BadValue(f"`--recompute selective:MODULE` is for `--execution megatron` (got {self.execution})")
        if not 0 <= self.offloaded_share < 1:
            raise BadValue(f"`--offload activations:FRACTION` must be >= 0 and < 1 (got {self.offloaded_share:g})")
        if self.sharding and self.sharding not in SHARDINGS:
            raise UnknownName("sharding", self.sharding, SHARDINGS)
        if self.sharding:
            msgspec.structs.force_setattr(self, "zero_stage", SHARDINGS[self.sharding].zero_stage)
        if self.recompute_every > 1 and self.recompute not in ("full", "offload"):
            raise BadValue("`--recompute NAME:N` is for `--recompute full` or `offload`")
        if self.execution not in STACKS:
            raise UnknownName("execution of training in blocks", self.execution, STACKS)
        if self.dispatch and self.dispatch not in DISPATCHERS:
            raise UnknownName("expert dispatch", self.dispatch, DISPATCHERS)
        if self.expert_kernels and self.expert_kernels not in EXPERT_KERNELS:
            raise UnknownName("kernels of experts", self.expert_kernels, EXPERT_KERNELS)
        if self.expert_kernels:
            check_stack(self.expert_kernels, self.execution == MEGATRON)
        if not self.expert_imbalance >= 1:
            raise BadValue(
                f"`--experts imbalance` must be >= 1, the busiest device over the mean (got {self.expert_imbalance:g})"
            )
        if self.expert_capacity is not None and not self.expert_capacity > 0:
            raise BadValue(f"`--experts capacity` must be > 0 (got {self.expert_capacity:g})")
        if self.expert_overlap is not None and not 0 <= self.expert_overlap <= 1:
            raise BadValue(f"`--experts overlap` must be between 0 and 1 (got {self.expert_overlap:g})")
        if self.zero_stage not in (0, 1, 2, 3):
            raise BadValue(f"the ZeRO stage must be 0, 1, 2 or 3 (got {self.zero_stage!r})")
        if self.layout:
            self._set_virtual_stages(len(parse_layout(self.layout)))
        if self.virtual_stages > 1 and self.pipeline == 1:
            raise BadValue("`--schedule interleaved` needs pipeline stages: give `--pipeline`, too")

    def _set_virtual_stages(self, stages: int) -> None:
        """Set the virtual stages of a layout with a number of stages."""
        if stages % self.pipeline:
            raise BadValue(
                f"`--schedule layout` must have {self.pipeline} stages, as `--pipeline` says, or a multiple of it with "
                f"virtual stages (got {stages})"
            )
        of_each = stages // self.pipeline
        if self.virtual_stages not in (1, of_each):
            raise BadValue(
                f"`--schedule layout` has {stages} stages, {format_plural(of_each, 'virtual stage')} for each of "
                f"{self.pipeline} pipeline stages: `--schedule interleaved` must be {of_each} or left out (got "
                f"{self.virtual_stages})"
            )
        msgspec.structs.force_setattr(self, "virtual_stages", stages // self.pipeline)

    def of_batch(self, batch_size: int, devices: int) -> ParallelConfig:
        """Return the configuration with the size of its micro-batches, of which a number may be given.

        Raises
        ------
        BadValue
            If the batch of a replica is not divisible by the number of its micro-batches.
        """
        if not self.micro_batches:
            return self
        replicas = max(devices // self.devices_per_replica, 1)
        if batch_size % (replicas * self.micro_batches):
            divisor = replicas * self.micro_batches
            raise BadValue(
                f"the batch of all devices must be divisible by {divisor}, {format_plural(replicas, 'replica')} times "
                f"{self.micro_batches} micro-batches: give "
                f"{near_multiples('--global-batch-size', batch_size, divisor)} (got {batch_size})"
            )
        size = batch_size // (replicas * self.micro_batches)
        return msgspec.structs.replace(self, micro_batch_size=size, micro_batches=0)

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
        virtual_stages = f" x {self.virtual_stages} virtual stages" if self.virtual_stages > 1 else ""
        context = f", context {self.context}" if self.context > 1 else ""
        experts = f", experts {self.expert}" if self.expert > 1 else ""
        experts += f" x tensor {self.expert_tensor}" if self.expert_tensor > 1 else ""
        return f"tensor {self.tensor}, pipeline {self.pipeline}{virtual_stages}{context}, data {data}{experts}"

    def describe(self, data: int, micro_batches: int, samples: float | None = None) -> str:
        """Return the whole configuration as text: ``tensor 8, pipeline 16, data 8: 192 micro-batches of 1``.

        Where the micro-batches are not full, `samples` are those of all of them.
        """
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
            which_blocks = f" of one block in {self.recompute_every}" if self.recompute_every > 1 else ""
            parts.append(f"{self.recompute} recomputation{which_blocks}")
        plural = "" if micro_batches == 1 else "es"
        size = f"{self.micro_batch_size}"
        if samples is not None and samples != micro_batches * self.micro_batch_size:
            size = f"{samples / micro_batches:.3g} on average"
        return f"{', '.join(parts)}: {micro_batches} micro-batch{plural} of {size}"

"""The trainer of a step: passes that compute log-probabilities, and updates, on samples of unequal length.

Both are timed by the training step of `paleo_lite.distributed.parallel_3d` on micro-batches of the mean length. What
unequal samples add is counted apart: stages of a pipeline with equal parts are a proportionate flow shop, in which m
micro-batches of times t_j through p stages take ``sum of t_j + (p - 1) / v max of t_j``; ranks wait for the longest.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ..distributed.blocks import uses_tuned_stack
from ..distributed.clusters import EXPECTED, ClusterScores, cluster_prior
from ..distributed.job import Job, Step
from ..distributed.links import Topology
from ..distributed.parallel_3d import train_3d_parallel
from ..distributed.parallel_config import ParallelConfig
from ..distributed.pipeline import waiting_slots
from ..distributed.settings import Settings
from ..distributed.stage_communication import activation_communication_s, exchange_of, exposed_gather_s
from ..distributed.stage_memory import replica_groups
from ..distributed.step_plan import Plan, plan_step
from .constants import RlConstants
from .weights import OffloadedState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

FORWARD_SHARE_OF_EXCHANGE = 0.5
"""Share of the exchange of activations of a micro-batch that belongs to its forward pass."""


FSDP = "full-shard"
FSDP_GRADIENTS = "fp32"
"""Precision in which FSDP of frameworks exchanges gradients, of every micro-batch.

It is the default of `reduce_dtype` in verl (verl/workers/fsdp_workers.py at 004c888), prime-rl (ModelConfig of
src/prime_rl/trainer/config.py) and NeMo-RL (MixedPrecisionPolicy of nemo_rl/models/dtensor/parallelize.py at 02bee2a).
"""

PASSES_OF_UPDATE = 3.0
"""Forward passes that the host of an update takes for units of FSDP: the backward pass frees, exchanges and gathers.

Recomputation adds one. With it, the hooks of FSDP alone (PyTorch 2.13, without a device and without exchange) take 4.06
times those of a forward pass.
"""


class Batching(NamedTuple):
    """How the samples of an update become micro-batches."""

    tokens: Floats  # tokens of each sample of a step, in the order in which ranks get them
    per_micro_batch: int  # samples per micro-batch
    updates: int  # updates per step
    is_balanced: bool  # whether ranks get equal numbers of tokens


class LargestMicroBatch(NamedTuple):
    """The micro-batch of a step that may need most memory: samples of one length, mostly the longest possible."""

    job: Job  # whose workload has a sequence of that length
    samples: int


class TrainerTimes(msgspec.Struct, frozen=True):
    """Times of the trainer for all samples of a step, and the memory and state of one device."""

    forward_s: float  # one forward pass over all samples
    update_s: float  # all updates, with recomputation, exchange and optimizer
    imbalance: float  # time of the slowest rank over that of a rank with an equal share of the samples
    bubble_share: float  # share of an update in which a stage waits for others
    memory_bytes: float | None  # peak of the device that needs most
    parameter_bytes: float  # parameters of one device
    optimizer_bytes: float  # optimizer's state and master weights of one device
    micro_batches: int  # micro-batches of a rank and update
    samples_per_micro_batch: int
    description: str  # the parallel configuration as text
    networks: int = 1  # that are trained in turn on the same devices: 2 with a critic, each with such state
    adapter_units: int = 0  # matrices of adapters that hosts gather one by one
    waits_for_host: bool = False  # whether an update takes the time of the host, for these matrices
    offloaded: OffloadedState = OffloadedState()  # of each phase, in the times above
    # One forward pass of the frozen weights, without adapters; None where that is `forward_s`.
    frozen_forward_s: float | None = None


def time_trainer(
    job: Job,
    topology: Topology,
    parallel: ParallelConfig,
    batching: Batching,
    largest: LargestMicroBatch,
    constants: RlConstants,
    *,
    adapter_units: int,  # matrices of adapters that FSDP shards apart
) -> TrainerTimes:
    """Return the times of the trainer on all devices of a topology.

    The workload of the job has sequences of the mean length of the samples. The stack recomputes as much as the largest
    micro-batch requires. Raise BadValue if the devices cannot be divided so.
    """
    cluster = ClusterScores.uniform(EXPECTED)
    gradients = FSDP_GRADIENTS if parallel.sharding == FSDP else None
    asked = Settings(parallel=parallel, gradient_precision=gradients)
    topology, settings = cluster_prior().cluster_at(cluster, topology, asked)
    largest_bytes, recomputation = _largest_memory(largest, topology, settings)
    parallel = msgspec.structs.replace(parallel, **recomputation)
    settings = msgspec.structs.replace(settings, parallel=parallel)
    replicas = max(topology.workers // parallel.devices_per_replica, 1)
    per_update = len(batching.tokens) / batching.updates
    # As verl splits a mini-batch, and packs what fits into a number of tokens: the last micro-batches are not full.
    micro_batches = math.ceil(per_update / (replicas * parallel.micro_batch_size))
    batch_size = replicas * micro_batches * parallel.micro_batch_size
    plan = plan_step(job, topology, batch_size, settings)
    is_tuned = uses_tuned_stack(job, plan.config)
    waits_for_shards = plan.config.sharding_rules.gathers_per_micro_batch > 0 and not is_tuned
    if waits_for_shards:
        topology = _with_rate_share(topology, constants.sharded_share)
    step = train_3d_parallel(job, topology, batch_size, settings)
    settings = settings.with_straggler_slowdown(plan.layout.data)
    imbalance = slowest_rank(plan, replicas, micro_batches, batching)
    slowdown = constants.slowdown if is_tuned else constants.other_slowdown
    slots = micro_batches + float(waiting_slots(micro_batches, plan.config.pipeline, plan.config.virtual_stages))
    micro_batch_s = micro_batch_forward_s(job, topology, settings, plan)
    forward_s = slots * micro_batch_s
    once_s, exchange_s, passes_s = split_step(step, plan.costs.overhead_s, waits_for_shards=waits_for_shards)
    # Other stacks have the same kernels of attention and of products.
    same_s = (0.0, 0.0) if is_tuned else same_kernels_s(job, settings, plan)

    def slowed(seconds: float, same_s: float) -> float:
        """Return the seconds of kernels of the slowest rank, of which some of a micro-batch are not slower."""
        return imbalance * (slowdown * seconds - (slowdown - 1) * slots * same_s)

    forward_s, passes_s = slowed(forward_s, same_s[0]), slowed(passes_s, same_s[1])
    # What waits for the parameters of other ranks waits for links, not for kernels.
    if waits_for_shards:
        passes_s += exchange_s
        forward_s += micro_batches * exposed_gather_s(
            topology,
            plan.groups,
            plan.longest.model_state_bytes[0],
            micro_batch_s,
            msgspec.structs.replace(settings, parallel=plan.config),
            plan.costs.exposed_sharding,
        )
    # Device and host work at the same time; FSDP lets the host run ahead by two units at most.
    host_s = micro_batches * adapter_units * constants.unit_s
    host_passes = PASSES_OF_UPDATE + (plan.config.recompute == "full")
    optimizer_bytes, parameter_bytes = _state_bytes(plan)
    return TrainerTimes(
        forward_s=float(max(forward_s, host_s) * batching.updates),
        update_s=float((max(passes_s, host_s * host_passes) + once_s) * batching.updates),
        adapter_units=adapter_units,
        waits_for_host=host_s * host_passes > passes_s,
        imbalance=float(imbalance * batch_size / per_update),  # over equal shares of the samples, not of the places
        bubble_share=float(1 - micro_batches / slots),
        memory_bytes=max(float(step.memory_bytes or 0.0), largest_bytes),
        parameter_bytes=parameter_bytes,
        optimizer_bytes=optimizer_bytes,
        micro_batches=micro_batches,
        samples_per_micro_batch=parallel.micro_batch_size,
        description=plan.config.describe(plan.layout.data, plan.layout.micro_batches, per_update / replicas),
    )


def _with_rate_share(topology: Topology, share: float) -> Topology:
    """Return a topology in which the devices of a node exchange at a share of the rate of their link."""
    if topology.inside is None:
        return topology
    rate = share * topology.inside.bandwidth_bytes_per_s
    inside = msgspec.structs.replace(topology.inside, bandwidth_bytes_per_s=rate)
    return msgspec.structs.replace(topology, inside=inside)


def _largest_memory(largest: LargestMicroBatch, topology: Topology, settings: Settings) -> tuple[float, dict[str, Any]]:
    """Return the peak memory of a device with the largest micro-batch, and the recomputation of its plan."""
    parallel = settings.parallel or ParallelConfig()
    parallel = msgspec.structs.replace(parallel, micro_batch_size=largest.samples)
    replicas = max(topology.workers // parallel.devices_per_replica, 1)
    # A stage of a pipeline stores no more micro-batches than there are stages.
    batch_size = replicas * largest.samples * parallel.pipeline
    settings = msgspec.structs.replace(settings, parallel=parallel)
    plan = plan_step(largest.job, topology, batch_size, settings)
    step = train_3d_parallel(largest.job, topology, batch_size, settings)
    assert step.memory_bytes is not None
    names = ("recompute", "recompute_modules", "recompute_every", "offloaded_share")
    return float(step.memory_bytes), {name: getattr(plan.config, name) for name in names}


class SplitStep(NamedTuple):
    """Parts of a training step in seconds, which add up to it."""

    once_s: float  # the optimizer, the overhead, and gradients that are exchanged after the last micro-batch
    exchange_s: float  # other exchange that waits for links, not for kernels
    passes_s: float  # the rest


def split_step(step: Step, overhead_s: float, *, waits_for_shards: bool) -> SplitStep:
    """Return the parts of a step, whose exposed exchange is apart from the passes where ranks wait for parameters.

    The stages of a pipeline state which of it is of gradients.
    """
    gradients_s = 0.0 if step.pipeline is None else float(step.pipeline.gradients_s)
    once_s = float(step.update_s) + overhead_s + gradients_s
    exchange_s = float(step.exposed_s) - gradients_s if waits_for_shards else 0.0
    return SplitStep(once_s, exchange_s, float(step.time_s) - once_s - exchange_s)


def micro_batch_forward_s(job: Job, topology: Topology, settings: Settings, plan: Plan) -> float:
    """Return the time of the forward pass of a micro-batch on the longest stage."""
    config = msgspec.structs.replace(plan.config, recompute="none", recompute_modules=(), recompute_every=1)
    factor = job.compute_ratio * job.compute_scale * (1 + settings.slowdown)
    exchange = exchange_of(job, config, settings, plan.costs.experts_per_token)
    longest = max(plan.stages, key=lambda stage: stage.passes_s)
    forward_s = (longest.block.forward_s * longest.blocks + longest.outer.forward_s) * factor
    for cost, count in ((longest.block, longest.blocks), (longest.outer, 1)):
        _, exposed_s = activation_communication_s(cost, topology, config, factor, exchange)
        forward_s += FORWARD_SHARE_OF_EXCHANGE * exposed_s * count
    return float(forward_s)


def same_kernels_s(job: Job, settings: Settings, plan: Plan) -> tuple[float, float]:
    """Return the time of kernels that any stack has, in a micro-batch on the longest stage: of a forward pass, and all.

    They are those of attention and of matrix products, which libraries have. What is slower in other stacks are
    elementwise operations and norms that they do not fuse.
    """
    factor = job.compute_ratio * job.compute_scale * (1 + settings.slowdown)
    longest = max(plan.stages, key=lambda stage: stage.passes_s)
    block, outer = longest.block, longest.outer
    forward_s = (block.attention_s + block.products_s) * longest.blocks + outer.products_s
    backward_s = (block.attention_backward_s + block.products_backward_s) * longest.blocks + outer.products_backward_s
    repeated_s = forward_s - outer.products_s if plan.config.recompute == "full" else 0.0
    return factor * forward_s, factor * (forward_s + repeated_s + backward_s)


def slowest_rank(plan: Plan, ranks: int, micro_batches: int, batching: Batching) -> float:
    """Return the time of the slowest rank over that of a rank whose micro-batches all have the mean length.

    Ranks that divide experts wait for each other in every micro-batch. Ranks get samples in turn; balanced ones get
    them from the longest to the shortest, back and forth.
    """
    work = relative_work(plan, batching.tokens)
    count = ranks * micro_batches * batching.per_micro_batch
    wait = float(waiting_slots(micro_batches, plan.config.pipeline, plan.config.virtual_stages))
    slots = micro_batches + wait
    together = math.gcd(ranks, ranks_of_experts(plan.config))
    per_update = max(len(work) // batching.updates, 1)
    longest = []
    for update in range(batching.updates):
        chosen = work[update * per_update : (update + 1) * per_update]
        if len(chosen) < count:  # the last micro-batches of some ranks are empty
            chosen = np.append(chosen, np.zeros(count - len(chosen)))
        chosen = chosen[:count]
        if batching.is_balanced:
            rows = np.sort(chosen)[::-1].reshape(-1, ranks)
            rows[1::2] = rows[1::2, ::-1].copy()
        else:
            rows = chosen.reshape(-1, ranks)
        times = rows.reshape(micro_batches, batching.per_micro_batch, ranks).mean(axis=1)
        times = times.reshape(micro_batches, -1, together).max(axis=2)
        longest.append(float((times.sum(axis=0) + wait * times.max(axis=0)).max()))
    return float(np.mean(longest)) / slots


def ranks_of_experts(config: ParallelConfig) -> int:
    """Return the data-parallel ranks that exchange tokens in every layer, and so wait for each other there."""
    return max(config.expert * config.expert_tensor // (config.tensor * config.context), 1)


def relative_work(plan: Plan, tokens: Floats) -> Floats:
    """Return the work of samples over that of one with the mean length: attention grows with the square."""
    longest = plan.longest
    attention_s = (longest.block.attention_s + longest.block.attention_backward_s) * longest.blocks
    share = min(attention_s / longest.passes_s, 1.0) if longest.passes_s else 0.0
    ratio = tokens / tokens.mean()
    work: Floats = (1 - share) * ratio + share * ratio**2
    return work


def _state_bytes(plan: Plan) -> tuple[float, float]:
    """Return the bytes of the optimizer's state with master weights, and of the parameters, of one device."""
    largest = max(plan.stages, key=lambda stage: sum(stage.model_state_bytes))
    parameters, _, optimizer = largest.model_state_bytes
    groups = replica_groups(plan.config, plan.layout, largest.expert_share)
    sharded_share = sum(group.share / group.replicas for group in groups)
    optimizer_share = sharded_share if plan.config.zero_stage >= 1 else 1.0
    parameter_share = sharded_share if plan.config.zero_stage == 3 else 1.0
    return optimizer * optimizer_share, parameters * parameter_share

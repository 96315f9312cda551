"""How a step of 3D parallelism is planned: its layout, the defaults of its stack, and the recomputation it needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from ..counting.kinds import is_expert_layer
from ..errors import BadValue
from ..machines import read_links
from ..timing.memory import usable_bytes
from ..timing.offload import host_bandwidth_bytes_per_s
from ..units import element_bytes
from .blocks import BlockCosts, StageCost, block_costs, uses_tuned_stack
from .job import Job
from .links import Topology
from .parallel_config import ParallelConfig
from .parallel_layout import Layout, plan_layout, single_device_config
from .pipeline import waiting_slots
from .settings import Settings
from .stage_communication import dispatcher_of
from .stage_memory import ReplicaGroup, peak_memory_bytes, replica_groups, stage_memories, sum_of_modules

COHERENT_BYTES_PER_S = 100e9
"""Bandwidth of a link to the host from which recipes copy activations to it: that of NVLink-C2C, not of PCIe."""


class Plan(NamedTuple):
    """The planned step of a network under a configuration."""

    config: ParallelConfig  # configuration with the defaults of its stack
    layout: Layout
    costs: BlockCosts
    stages: list[StageCost]  # cost of each device of the pipeline
    notes: list[str]  # description of the configuration first

    @property
    def longest(self) -> StageCost:
        """Cost of the device whose passes take longest."""
        return max(self.stages, key=lambda stage: stage.passes_s)

    @property
    def groups(self) -> list[ReplicaGroup]:
        """Replicas that exchange the gradients of the longest stage."""
        return replica_groups(self.config, self.layout, self.longest.expert_share)

    @property
    def slots(self) -> float:
        """Micro-batches that the longest stage computes or waits for."""
        waiting = waiting_slots(self.layout.micro_batches, self.config.pipeline, self.config.virtual_stages)
        return self.layout.micro_batches + float(waiting)


def plan_step(job: Job, topology: Topology, batch_size: int, settings: Settings) -> Plan:
    """Divide a network among devices, with the defaults of the stack; raise BadValue as `plan_layout` does."""
    network = job.workload.network
    config = (settings.parallel or ParallelConfig()).of_batch(batch_size, topology.workers)
    if topology.workers == 1:
        config = single_device_config(config, batch_size)
    layout = plan_layout(network, topology, batch_size, config)
    config, notes = _with_defaults(job, config, layout)
    costs = block_costs(job, config)
    stages = costs.of_stages(network, layout.stages)
    _check_interleaved(job, config, layout)
    _check_modules(job, config)
    if uses_tuned_stack(job, config) and not config.recompute:
        config = _fit_memory(job, config, topology, layout, stages, costs.hidden_state_bytes, settings)
        notes[0] = config.describe(layout.data, layout.micro_batches)
    return Plan(config, layout, costs, stages, notes)


def _check_interleaved(job: Job, config: ParallelConfig, layout: Layout) -> None:
    """Raise BadValue for micro-batches that Megatron-LM cannot interleave.

    They are divisible by the stages (``forward_backward_pipelining_with_interleaving``); PyTorch's schedule has no such
    limit (``ScheduleInterleaved1F1B``).
    """
    if config.virtual_stages == 1 or layout.micro_batches % config.pipeline == 0 or not uses_tuned_stack(job, config):
        return
    raise BadValue(
        f"Megatron-LM interleaves micro-batches that are divisible by the {config.pipeline} stages (got "
        f"{layout.micro_batches} of a replica): leave `--schedule interleaved` out, or give another batch"
    )


def _check_modules(job: Job, config: ParallelConfig) -> None:
    """Raise BadValue for the recomputation of activation functions of experts that a network does not have."""
    network = job.workload.network
    if "moe_act" in config.recompute_modules and not any(map(is_expert_layer, network.layers)):
        raise BadValue(
            f"`--recompute selective:moe_act` is of experts, and {network.name} has none: `selective:mlp` computes its "
            "feed-forward parts again"
        )


def exchange_ratio_of(job: Job, settings: Settings) -> float:
    """Return the bytes of an exchanged gradient over those of a computed one."""
    if settings.gradient_precision is None:
        return 1.0
    computed_bytes = 4 if job.workload.options.fp32_gradients else job.element_bytes
    return element_bytes(settings.gradient_precision) / computed_bytes


def _with_defaults(job: Job, config: ParallelConfig, layout: Layout) -> tuple[ParallelConfig, list[str]]:
    """Fill the defaults of the software stack into the configuration; return it with notes that describe it."""
    notes = []
    if config.tensor > 1 and not config.sequence_parallel:
        has_experts = any(is_expert_layer(layer) for layer in job.workload.network.layers)
        if has_experts or uses_tuned_stack(job, config):
            config = msgspec.structs.replace(config, sequence_parallel=True)
        if has_experts:
            notes.append("`--tensor` of a mixture of experts implies sequence parallelism: experts are not sharded")
    if config.expert_capacity is not None and config.expert_capacity < config.expert_imbalance:
        notes.append(f"tokens beyond {config.expert_capacity:g} times the mean of an expert are dropped: they skip it")
    return config, [config.describe(layout.data, layout.micro_batches), *notes]


def exposed_copies_s(job: Job, offloaded_bytes: float, compute_s: float) -> float:
    """Return the time by which copies of activations to the host and back exceed the computation that hides them.

    The bytes are those of the activations of all micro-batches that are copied. Raise BadValue if the device has no
    host with memory of its own.
    """
    if not offloaded_bytes:
        return 0.0
    copies_s = offloaded_bytes / host_bandwidth_bytes_per_s(job.machine.device)
    forward_s, backward_s = compute_s / 4, compute_s * 3 / 4  # the backward pass computes the forward pass again
    return max(copies_s - forward_s, 0.0) + max(copies_s - backward_s, 0.0)


_MODULES_OF_MIXTURES = (("layernorm",), ("layernorm", "moe_act"), ("layernorm", "moe_act", "mla_up_proj"))
_MODULES_OF_DENSE = (("layernorm",),)
"""Modules of selective recomputation, the cheapest first; Megatron-LM has ``moe_act`` for experts alone
(``recompute_modules``, megatron/core/transformer/transformer_config.py)."""


def _recomputations(job: Job, stages: list[StageCost]) -> Iterator[dict[str, Any]]:
    """Yield what recipes do to save memory, the cheapest first: nothing, modules, offloading, whole blocks."""
    yield {"recompute": "none"}
    modules: dict[str, Any] = {}
    has_experts = any(is_expert_layer(layer) for layer in job.workload.network.layers)
    for names in _MODULES_OF_MIXTURES if has_experts else _MODULES_OF_DENSE:
        tried = ParallelConfig(recompute="selective", recompute_modules=names[-1:])
        if any(sum_of_modules(stage.block.freed_bytes, tried) for stage in stages):
            modules = {"recompute": "selective", "recompute_modules": names}
            yield modules
    links = [read_links().link[attached.link] for attached in job.machine.device.links]
    if any(link.kind == "host" and link.bandwidth_bytes_per_s >= COHERENT_BYTES_PER_S for link in links):
        for twentieths in range(1, 17):
            yield {**modules, "offloaded_share": twentieths / 20}
    for period in (4, 3, 2, 1):
        yield {"recompute": "full", "recompute_every": period}


def _fit_memory(
    job: Job,
    config: ParallelConfig,
    topology: Topology,
    layout: Layout,
    stages: list[StageCost],
    hidden_state_bytes: float,
    settings: Settings,
) -> ParallelConfig:
    """Return the configuration with as much recomputation as the memory of the device requires."""
    available_bytes, exchange_ratio = usable_bytes(job.machine.device), exchange_ratio_of(job, settings)
    memories = stage_memories(
        stages,
        topology,
        config,
        layout,
        hidden_state_bytes,
        exchange_ratio,
        dispatcher_of(job, config),
        offloads=job.workload.options.offload != "none",
    )
    for changes in _recomputations(job, stages):
        tried = msgspec.structs.replace(config, **changes)
        if peak_memory_bytes(memories, tried, hidden_state_bytes) <= available_bytes:
            return tried
    return tried

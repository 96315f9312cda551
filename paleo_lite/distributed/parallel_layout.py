"""How a network of blocks is divided: `Layout`, its checks, and the configurations worth trying."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import msgspec

from ..architectures.network import Network, SequenceOptions
from ..counting.kinds import count_experts, is_attention
from ..counting.work import MEGATRON
from ..errors import BadValue
from ..text import format_plural, near_multiples
from .links import Topology
from .parallel_config import ParallelConfig
from .pipeline_layout import DeviceStages, even_layout, place_stages

MIN_TOKENS_PER_CONTEXT_DEVICE = 4096
"""Context parallelism is tried only where every device keeps at least this many tokens of a sequence."""


class Layout(NamedTuple):
    """Number of replicas and micro-batches, and the blocks of each pipeline device."""

    data: int  # data-parallel replicas
    micro_batches: int  # micro-batches per replica and step
    stages: tuple[DeviceStages, ...] = ()  # blocks, embedding and loss of each device of a pipeline


def plan_layout(network: Network, topology: Topology, batch_size: int, config: ParallelConfig) -> Layout:
    """Return the number of replicas and of micro-batches per replica, and the blocks per stage.

    Raise BadValue if the network was not built from a config, or devices, blocks or batch cannot be divided as
    configured.
    """
    workers = topology.workers
    if config.attention_data > 1:
        raise BadValue("`--attention-data-parallel` is for `--phase prefill` and `decode`")
    if not network.blocks or network.lengths is None:
        raise BadValue(
            "`--pipeline`, `--context-parallel` and `--expert-parallel` need a language model from a config: "
            f"{network.name} is divided layer by layer, with `--tensor` alone or a `--strategy` such as zero-3"
        )
    check_workers(workers, topology, config)
    devices_per_stage = workers // config.pipeline
    if devices_per_stage % config.expert:
        raise BadValue(
            f"`--expert-parallel` must divide the {devices_per_stage} devices of a stage (got {config.expert})"
        )
    if devices_per_stage % (config.expert * config.expert_tensor):
        raise BadValue(
            f"`--expert-parallel {config.expert}` times `--experts tensor` must divide the {devices_per_stage} "
            f"devices of a stage (got {config.expert_tensor})"
        )
    if config.tensor > topology.devices_per_node:
        raise BadValue(f"`--tensor` must be <= {topology.devices_per_node}, the devices per node (got {config.tensor})")
    stages = place_stages(
        network.blocks,
        config.pipeline,
        config.virtual_stages,
        config.layout,
        network.name,
        divides_as_pytorch=config.execution != MEGATRON,
    )
    data = workers // config.devices_per_replica
    if batch_size % (data * config.micro_batch_size):
        raise BadValue(
            f"the batch of all devices must be divisible by {data * config.micro_batch_size}, "
            f"{format_plural(data, 'replica')} times `--micro-batch {config.micro_batch_size}`: give "
            f"{near_multiples('--global-batch-size', batch_size, data * config.micro_batch_size)} (got {batch_size})"
        )
    micro_batches = batch_size // (data * config.micro_batch_size)
    return Layout(data, micro_batches, tuple(stages))


def check_workers(workers: int, topology: Topology, config: ParallelConfig) -> None:
    """Raise BadValue if some devices of a topology are no whole replicas; the message names numbers that are."""
    replica = config.devices_per_replica
    if workers % replica == 0:
        return
    per_node = topology.devices_per_node
    most = per_node if topology.between is None else workers + math.lcm(replica, per_node)
    possible = [number for number in range(replica, most + 1, replica) if number <= per_node or number % per_node == 0]
    below = [number for number in possible if number < workers][-1:]
    above = [number for number in possible if number > workers][:1]
    nearest = " or ".join(f"{number:,}" for number in (*below, *above))
    context = f" times `--context-parallel {config.context}`" if config.context > 1 else ""
    raise BadValue(
        f"`--tensor {config.tensor}` times `--pipeline {config.pipeline}`{context} must divide the number of workers"
        f"{f', such as {nearest}' if nearest else ''} (got {workers})"
    )


def single_device_config(config: ParallelConfig, batch_size: int) -> ParallelConfig:
    """Return the configuration for one device, which may have fewer samples than a micro-batch."""
    return msgspec.structs.replace(
        config,
        tensor=1,
        pipeline=1,
        virtual_stages=1,
        sequence_parallel=False,
        context=1,
        expert=1,
        expert_tensor=1,
        expert_imbalance=1.0,
        layout="",
        micro_batch_size=math.gcd(config.micro_batch_size, batch_size),
    )


def candidate_configs(
    network: Network, topology: Topology, fits_memory: bool, divides_parts: bool
) -> Iterator[ParallelConfig]:
    """Iterate over the configurations worth trying for a network of blocks, independent of the batch size.

    With `fits_memory` the stack recomputes as much as the memory requires, so that recomputation needs no search. With
    `divides_parts` experts and attention can be divided in other ways than by tensor parallelism in prefill and decode.
    """
    if network.lengths and network.lengths.uses_cache:
        for power in range(topology.devices_per_node.bit_length()):
            devices = 2**power
            yield ParallelConfig(tensor=devices)
            if divides_parts and network.rebuild is not None:
                from ..engines.placed import possible_divisions

                layers = network.rebuild(SequenceOptions(phase="decode")).layers
                for experts, groups in possible_divisions(layers, devices):
                    yield ParallelConfig(tensor=devices, expert=experts, attention_data=groups)
        return
    has_unfused_attention = not any(map(is_attention, network.layers))
    recomputations: tuple[str, ...] = ("none", "selective", "full") if has_unfused_attention else ("none", "full")
    if fits_memory:
        recomputations = ("",)
    tokens = network.tokens or 1
    experts = count_experts(network.layers)
    degrees = [2**power for power in range(topology.workers.bit_length())]
    context_degrees = [1]
    if not has_unfused_attention:
        context_degrees += [n for n in degrees[1:] if tokens // n >= MIN_TOKENS_PER_CONTEXT_DEVICE]
    for tensor, context, pipeline, micro_batch_size in product(degrees, context_degrees, degrees, (1, 2, 4, 8)):
        if topology.workers % (tensor * context * pipeline) or tensor > topology.devices_per_node:
            continue
        devices_per_stage = topology.workers // pipeline
        expert_degrees = [n for n in degrees if experts % n == 0 and n <= devices_per_stage]
        virtual_stage_counts = (1, 2, 4) if pipeline > 1 else (1,)
        zero_stages = (1, 3) if pipeline == 1 else (1,)
        for virtual_stages in virtual_stage_counts:
            if even_layout(network.blocks, pipeline * virtual_stages) is None:
                continue
            for expert, recompute, zero_stage in product(expert_degrees, recomputations, zero_stages):
                yield ParallelConfig(
                    tensor=tensor,
                    pipeline=pipeline,
                    virtual_stages=virtual_stages,
                    sequence_parallel=tensor > 1,
                    micro_batch_size=micro_batch_size,
                    recompute=recompute,
                    zero_stage=zero_stage,
                    context=context,
                    expert=expert,
                )

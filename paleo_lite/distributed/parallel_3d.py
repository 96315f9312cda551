"""Data, tensor, sequence and pipeline parallelism together, as Megatron-LM has them, with ZeRO's divided state.

Narayanan et al. 2021 (section 3): of m micro-batches through p stages, each of v pieces, ``(p - 1) / v`` more than m
pass one after another; Korthikanti et al. 2022: what a device saves, and what of it is computed again.
Devices are numbered as Megatron-LM does it: those that share matrices next to each other, then those of a ring, then
replicas; those that share experts stand side by side, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import msgspec
import numpy as np

from ..architectures.network import Network
from ..counting import GENERATING
from ..counting.kinds import is_attention
from ..errors import BadValue
from ..timing.memory import shared_out
from .blocks import Parts, Piece, generate, parts_of
from .collectives import all_to_all_s, apart, exchange_time_s, point_to_point_time_s
from .job import RECOMPUTATIONS, Job, Settings, Split, Step
from .links import LinkRate, Topology


class Layout(NamedTuple):
    """How many devices do what, how many micro-batches pass, and what the longest stage has: blocks, and the ends."""

    data: int
    micro_batches: int
    blocks: float
    ends: int = 1


def together(job: Job, topology: Topology, batch_size: int, settings: Settings) -> Step:
    """All ways of sharing work at once; `Settings.split` says how many devices share what."""
    network, workers = job.workload.network, topology.workers
    if job.workload.phase in GENERATING:
        return generate(job, topology, batch_size, settings)
    split = settings.split or Split()
    if workers == 1:
        micro_batch = math.gcd(split.micro_batch, batch_size)  # its own samples may be fewer than a replica's at once
        split = msgspec.structs.replace(
            split, tensor=1, pipeline=1, interleaved=1, sequence=False, context=1, experts=1, micro_batch=micro_batch
        )
    layout = lay_out(network, topology, batch_size, split)
    settings = settings.among(layout.data)
    parts = parts_of(job, split)
    layout = _longest(layout, network.blocks, split, parts)
    longer = job.computing * job.pace * (1 + settings.slowdown)
    passes = layout.micro_batches + (split.pipeline - 1) / split.interleaved
    computing, sent, exposed = np.zeros(2), 0.0, 0.0
    for piece, often in ((parts.block, layout.blocks), (parts.ends, layout.ends)):
        again = {"full": piece.forward_s, "selective": piece.core_s}.get(split.recompute, 0.0)
        again *= piece is parts.block
        computing += np.array([piece.forward_s + piece.backward_s, again]) * longer * often
        seconds, waited = _exchanges_s(piece, topology, split, longer)
        sent, exposed = sent + often * passes * seconds, exposed + often * passes * waited
    compute = passes * float(computing.sum()) + parts.overhead_s * longer
    hops = 2 * split.interleaved * layout.micro_batches * _hop_s(topology, split, layout, parts.passed_on)
    sums = {
        name: getattr(parts.block, name) * layout.blocks + getattr(parts.ends, name) * layout.ends
        for name in ("parameters", "gradients", "optimizer", "expert_gradients")
    }
    of_experts = sums.pop("expert_gradients") / sums["gradients"] if sums["gradients"] else 0.0
    groups = _groups(split, layout, of_experts)
    exchange, hidden = _gradients_s(topology, groups, layout, sums["gradients"], compute, split, settings)
    update = parts.block.update_s * layout.blocks + parts.ends.update_s * layout.ends
    update *= sum(group.share / group.replicas for group in groups) if split.zero_stage else 1
    memory = sum(
        sum(shared_out([int(part * group.share) for part in sums.values()], split.zero_stage, group.replicas))
        for group in groups
    )
    memory += _activations(parts, split, layout, network.blocks)
    sent, exposed = sent + hops + exchange, exposed + hops + exchange - hidden
    alone, again = computing / (1 + settings.slowdown)
    losses = {
        "the bubble of the pipeline": (passes - layout.micro_batches) * float(alone + again),
        "what is computed again": passes * float(again),
        "slowdown": compute * settings.slowdown / (1 + settings.slowdown),
    }
    step = Step(
        compute_s=compute,
        communication_s=sent,
        exposed_s=exposed,
        update_s=update,
        memory_bytes=memory,
        collective=split.devices(layout.data),
        losses={name: lost for name, lost in losses.items() if lost},
        notes=(split.describe(layout.data, layout.micro_batches),),
        recomputed=float(computing[1] / computing[0]),
    )
    ends = None if parts.interval is None else tuple(step.time_s * end for end in parts.interval)
    return msgspec.structs.replace(step, interval=ends)


LONG = 4096
"""Tokens of a sequence below which nothing is gained by sharing it."""


def all_splits(network: Network, topology: Topology) -> Iterator[Split]:
    """Every way to share a network of equal blocks out that is worth a try, whatever the batch."""
    if network.lengths and network.lengths.cached:
        yield from (Split(2**power) for power in range(topology.devices_per_node.bit_length()))
        return
    is_unfused = not any(map(is_attention, network.layers))
    tokens = network.tokens or 1
    experts = max((layer.weights[0][0] for layer in network.layers if layer.kind == "grouped_matmul"), default=1)
    sizes = [2**power for power in range(topology.workers.bit_length())]
    rings = [size for size in sizes if size == 1 or (tokens // size >= LONG and not is_unfused)]
    for tensor, ring, pipeline, micro in product(sizes, rings, sizes, (1, 2, 4, 8)):
        replica = tensor * ring * pipeline
        if topology.workers % replica or tensor > topology.devices_per_node:
            continue
        stage = topology.workers // pipeline
        for interleaved in (1, 2, 4) if pipeline > 1 else (1,):
            if _stages(network.blocks, pipeline * interleaved) is None:
                continue
            for among in [size for size in sizes if experts % size == 0 and size <= stage]:
                for recompute in RECOMPUTATIONS if is_unfused else ("none", "full"):
                    for zero in (1, 3) if pipeline == 1 else (1,):
                        yield Split(tensor, pipeline, interleaved, tensor > 1, micro, recompute, zero, ring, among)


def lay_out(network: Network, topology: Topology, batch_size: int, split: Split) -> Layout:
    """How many replicas there are, and how many micro-batches pass through each.

    Raises
    ------
    BadValue
        If the network was not made from a config, or devices, blocks or batch cannot be divided so.
    """
    workers, replica = topology.workers, split.each
    if not network.blocks or network.lengths is None:
        raise BadValue(f"{network.name} has no equal blocks: --tensor and --pipeline are for networks from a config")
    if workers % replica:
        ring = f" times --context-parallel {split.context}" if split.context > 1 else ""
        raise BadValue(
            f"--tensor {split.tensor} times --pipeline {split.pipeline}{ring} does not divide {workers} workers"
        )
    if workers // split.pipeline % split.experts:
        stage = workers // split.pipeline
        raise BadValue(f"--expert-parallel {split.experts} does not divide the {stage} devices of a stage")
    if split.tensor > topology.devices_per_node:
        raise BadValue(f"--tensor {split.tensor} is more than the {topology.devices_per_node} devices of a node")
    stages = split.pipeline * split.interleaved
    if (blocks := _stages(network.blocks, stages)) is None:
        pieces = f", {split.interleaved} pieces each" if split.interleaved > 1 else ""
        raise BadValue(f"{split.pipeline} stages{pieces} do not divide the {network.blocks} blocks of {network.name}")
    data = workers // replica
    if batch_size % (data * split.micro_batch):
        raise BadValue(
            f"{data} replicas with micro-batches of {split.micro_batch} do not divide a batch of {batch_size}"
        )
    return Layout(data, batch_size // (data * split.micro_batch), blocks * split.interleaved)


def _stages(blocks: int, stages: int) -> int | None:
    """Blocks of a stage's piece, where they can be divided: with embedding and logits as one block each if need be.

    So Llama 3's 126 blocks pass through 16 stages (Dubey et al. 2024, section 3.3.2): the ends have one block less.
    """
    for whole in (blocks, blocks + 2):
        if whole % stages == 0:
            return whole // stages
    return None


def _longest(layout: Layout, blocks: int, split: Split, parts: Parts) -> Layout:
    """What the longest stage has: where blocks are divided with the ends, a block more or the ends."""
    if blocks % (split.pipeline * split.interleaved) == 0:
        return layout
    ends_s, block_s = (piece.forward_s + piece.backward_s for piece in (parts.ends, parts.block))
    return layout._replace(blocks=layout.blocks - 1) if ends_s > block_s else layout._replace(ends=0)


# What the devices that share a block send each other for one micro-batch.


def _exchanges_s(piece: Piece, topology: Topology, split: Split, longer: float) -> tuple[float, float]:
    """Seconds of exchanges, and what of them is waited for; attention takes `longer` than it is said to.

    Nothing hides sums and gathers among devices that share matrices (Shoeybi et al. 2019), nor rows sent to their
    experts and back, in the backward pass their gradients (Lepikhin et al. 2021, GShard). Keys and values go around a
    ring, backward with their gradients (Liu et al. 2023, Ring Attention, section 3): of n devices each computes n parts
    of its attention, and the next part comes meanwhile, n - 1 times.
    """
    forwards = 2 if split.recompute == "full" else 1
    group = apart(topology, 1, split.tensor)
    sent: dict[float, float] = {}
    for share, size in (*piece.forward_sent * forwards, *piece.backward_sent):
        sent[size] = sent.get(size, 0.0) + share  # few sizes, many times each
    seconds = sum(share * float(exchange_time_s(group, size)) for size, share in sent.items())
    if split.experts > 1 and piece.routed_bytes:
        seconds += (forwards + 1) * all_to_all_s(apart(topology, 1, split.experts), piece.routed_bytes)
    waited, devices = seconds, split.context
    if devices > 1:
        ways = [(piece.ring_bytes, piece.attention_s)] * forwards
        for size, attention_s in (*ways, (2 * piece.ring_bytes, piece.attention_backward_s)):
            hop = _ring_hop_s(topology, split.tensor, devices, size)
            seconds += (devices - 1) * hop
            waited += (devices - 1) * max(hop - attention_s * longer / devices, 0.0)
    return seconds, waited


def _ring_hop_s(topology: Topology, stride: int, devices: int, size: float) -> float:
    """A message from every device of a ring to the next; where a ring leaves the node, as many do as it holds."""
    inside = topology.inside
    near = float(point_to_point_time_s(size, inside)) if inside and topology.devices_per_node > stride else 0.0
    if stride * devices <= topology.devices_per_node or topology.between is None:
        return near
    return max(near, float(point_to_point_time_s(size * stride, topology.between)))


# What replicas and stages send each other, and what a device saves.


class Group(NamedTuple):
    """Devices that hold the same part of the model: the share of it, how many they are, and how far apart."""

    share: float
    replicas: int
    stride: int


def _groups(split: Split, layout: Layout, of_experts: float) -> list[Group]:
    """What is replicated together: matrices over data and context, experts over what is left of a stage's devices."""
    dense = Group(1 - of_experts, layout.data * split.context, split.tensor)
    stage = layout.data * split.context * split.tensor
    return [dense, Group(of_experts, stage // split.experts, split.experts)] if of_experts else [dense]


def _gradients_s(
    topology: Topology, groups: list[Group], layout: Layout, gradients: float, compute: float, split: Split,
    settings: Settings,
) -> tuple[float, float]:  # fmt: skip
    """Seconds in which replicas exchange gradients and gather parameters, and what of them computing hides.

    Together an all-reduce of the gradients; ZeRO's stage 3 gathers the parameters for every pass of every micro-batch,
    and scatters the gradients of each: three halves.
    """
    whole = sum(
        float(exchange_time_s(apart(topology, group.stride, group.replicas), gradients * group.share))
        for group in groups
        if group.replicas > 1
    )
    if split.zero_stage == 3:
        whole *= 1.5 * layout.micro_batches
        could_hide = min(whole, compute)
    else:
        could_hide = min(whole / 2, compute * 2 / 3 / layout.micro_batches)
    return whole, settings.hiding * could_hide if settings.overlap else 0.0


def _hop_s(topology: Topology, split: Split, layout: Layout, passed_on: float) -> float:
    """Seconds in which a micro-batch goes from a stage to the next, each device of a node sending its share."""
    if split.pipeline == 1:
        return 0.0
    share = passed_on / (1 if split.sequence else split.tensor)
    crosses = split.tensor * split.context * layout.data >= topology.devices_per_node and topology.nodes > 1
    link: LinkRate | None = topology.between if crosses else topology.inside
    assert link is not None
    together = topology.devices_per_node if crosses else 1
    return float(point_to_point_time_s(share * together, link))


def _activations(parts: Parts, split: Split, layout: Layout, blocks: int) -> float:
    """Bytes that the first stage saves, which holds the most micro-batches (Korthikanti et al. 2022, section 4.2.3)."""
    in_flight = min(split.pipeline, layout.micro_batches) / split.pipeline
    if split.interleaved > 1:
        in_flight *= 1 + (split.pipeline - 1) / (split.pipeline * split.interleaved)
    block = parts.block.activations
    if split.recompute == "full":
        return parts.passed_on * blocks * in_flight + block + parts.ends.activations
    return block * blocks * in_flight + parts.ends.activations

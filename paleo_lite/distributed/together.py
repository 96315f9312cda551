"""Data, tensor, sequence and pipeline parallelism together, as Megatron-LM has them, with ZeRO's divided state.

One device's layers are read from the network's config (`paleo_lite.networks.tape`): columns and rows of every matrix,
and what is exchanged between. Blocks are equal, so that networks of one and of two blocks say what a block takes.

Narayanan et al. 2021 (section 3): of m micro-batches through p stages, each of v pieces, ``(p - 1) / v`` more than m
pass one after another; Korthikanti et al. 2022: what a device saves, and what of it is computed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..calibration.engine import of_training
from ..counting import Layer
from ..errors import BadValue
from ..networks.network import Network, Tokens
from ..timing import Prediction, Workload, predict
from ..timing.memory import memory_of, shared_out
from .collectives import LinkRate, point_to_point_time_s
from .exchange import exchange_time_s
from .job import RECOMPUTATIONS, Job, Settings, Split
from .step import Step
from .topology import Topology

FORWARD, BACKWARD = ("forward",), ("backward_data", "backward_weight")


class Piece(NamedTuple):
    """What a block, or embedding and logits together, takes of one device for one micro-batch.

    Attributes
    ----------
    forward_s, backward_s, core_s, update_s : float
        `core_s` is the part of the forward pass that selective recomputation repeats: scores and their softmax.
    forward_sent, backward_sent : tuple of float
        Bytes of all-reduces; a gather or a scatter is half of one.
    parameters, gradients, optimizer, activations : float
        Bytes.
    """

    forward_s: float
    backward_s: float
    core_s: float
    update_s: float
    forward_sent: tuple[tuple[float, float], ...]
    backward_sent: tuple[tuple[float, float], ...]
    parameters: float
    gradients: float
    optimizer: float
    activations: float


class Parts(NamedTuple):
    """A block, what is there once, what a step takes besides, and how sure that is: ends of the time over the time."""

    block: Piece
    ends: Piece
    overhead_s: float
    passed_on: float  # bytes that a block hands to the next one
    interval: tuple[float, float] | None
    notes: tuple[str, ...]


class Layout(NamedTuple):
    """How many devices do what, and how many micro-batches pass."""

    data: int
    micro_batches: int
    blocks: float


def together(job: Job, topology: Topology, batch_size: int, settings: Settings) -> Step:
    """All ways of sharing work at once; `Settings.split` says how many devices share what."""
    network, workers = job.workload.network, topology.workers
    split = settings.split or Split()
    if workers == 1:
        split = msgspec.structs.replace(split, tensor=1, pipeline=1, interleaved=1, sequence=False)
    layout = lay_out(network, topology, batch_size, split)
    settings = settings.among(layout.data)
    parts: Parts = job.once(_parts, split.tensor, split.sequence, split.micro_batch, split.recompute == "selective")
    longer = job.computing * job.pace * (1 + settings.slowdown)
    group = _inside(topology, split.tensor)
    passes = layout.micro_batches + (split.pipeline - 1) / split.interleaved
    computing, sending = np.zeros(2), 0.0
    for piece, often in ((parts.block, layout.blocks), (parts.ends, 1)):
        again = {"full": piece.forward_s, "selective": piece.core_s}.get(split.recompute, 0.0) if often > 1 else 0.0
        computing += np.array([piece.forward_s + piece.backward_s, again]) * longer * often
        sent = (*piece.forward_sent, *piece.backward_sent, *(piece.forward_sent if split.recompute == "full" else ()))
        sending += often * sum(share * float(exchange_time_s(group, size)) for share, size in sent)
    compute = passes * float(computing.sum()) + parts.overhead_s * longer
    hops = 2 * split.interleaved * layout.micro_batches * _hop_s(topology, split, layout, parts.passed_on)
    states = [
        getattr(parts.block, name) * layout.blocks + getattr(parts.ends, name)
        for name in ("parameters", "gradients", "optimizer")
    ]
    exchange, hidden = _gradients_s(topology, split, layout, states, compute, settings)
    exposed = passes * sending + hops + exchange - hidden
    update = (parts.block.update_s * layout.blocks + parts.ends.update_s) / (layout.data if split.zero_stage else 1)
    memory = sum(shared_out([int(part) for part in states], split.zero_stage, layout.data))
    memory += _activations(parts, split, layout, network.blocks)
    losses = {
        "the bubble of the pipeline": (passes - layout.micro_batches) * float(computing.sum()),
        "what is computed again": passes * float(computing[1]),
    }
    step = Step(
        compute_s=compute,
        communication_s=exposed + hidden,
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


def all_splits(network: Network, topology: Topology) -> Iterator[Split]:
    """Every way to share a network of equal blocks out that is worth a try, whatever the batch."""
    is_unfused = not any(layer.kind == "attention" for layer in network.layers)
    sizes = [2**power for power in range(topology.workers.bit_length())]
    for tensor, pipeline, micro in product(sizes, sizes, (1, 2, 4, 8)):
        each = tensor * pipeline
        if topology.workers % each or tensor > topology.devices_per_node or network.blocks % pipeline:
            continue
        for interleaved in (1, 2, 4) if pipeline > 1 else (1,):
            for recompute in RECOMPUTATIONS if is_unfused else ("none", "full"):
                for stage in (1, 3) if pipeline == 1 else (1,):
                    yield Split(tensor, pipeline, interleaved, tensor > 1, micro, recompute, stage)


def lay_out(network: Network, topology: Topology, batch_size: int, split: Split) -> Layout:
    """How many replicas there are, and how many micro-batches pass through each.

    Raises
    ------
    BadValue
        If the network was not made from a config, or devices, blocks or batch cannot be divided so.
    """
    workers, each = topology.workers, split.tensor * split.pipeline
    if not network.blocks or network.lengths is None:
        raise BadValue(f"{network.name} has no equal blocks: --tensor and --pipeline are for networks from a config")
    if workers % each:
        raise BadValue(f"--tensor {split.tensor} times --pipeline {split.pipeline} does not divide {workers} workers")
    if split.tensor > topology.devices_per_node:
        raise BadValue(f"--tensor {split.tensor} is more than the {topology.devices_per_node} devices of a node")
    stages = split.pipeline * split.interleaved
    if network.blocks % stages:
        pieces = f", {split.interleaved} pieces each" if split.interleaved > 1 else ""
        raise BadValue(f"{split.pipeline} stages{pieces} do not divide the {network.blocks} blocks of {network.name}")
    data = workers // each
    if batch_size % (data * split.micro_batch):
        raise BadValue(
            f"{data} replicas with micro-batches of {split.micro_batch} do not divide a batch of {batch_size}"
        )
    return Layout(data, batch_size // (data * split.micro_batch), network.blocks / split.pipeline)


def _parts(job: Job, tensor: int, sequence: bool, micro: int, selective: bool) -> Parts:
    """Two networks of one and of two blocks, timed and measured for one micro-batch."""
    network = job.workload.network
    assert network.remade is not None and network.lengths is not None
    asked = Tokens(network.lengths.queries, phase="training", tensor=tensor, sequence=sequence)
    options = msgspec.structs.replace(job.workload.options, accumulation=1, checkpointing="none")
    made: list[tuple[Prediction, Any]] = []
    for blocks in (1, 2):
        one = job.workload.but(
            network=network.remade(asked._replace(blocks=blocks)), training=options, batch_size=micro
        )
        kept = one
        if selective:  # what fused attention saves: neither scores nor their softmax
            kept = one.but(network=network.remade(asked._replace(blocks=blocks, fused=True)))
        made.append((predict(one, job.machine, of_training(job.model)), memory_of(kept)))
    first, second = (prediction for prediction, _ in made)
    pieces = [_piece(one, memory, job.element_bytes) for one, memory in made]
    block = _minus(pieces[1], pieces[0])
    interval = first.interval and second.interval
    ends = None if interval is None else (interval[0] / second.time_s, interval[1] / second.time_s)
    passed_on = _passed_on(second.workload) * micro * job.element_bytes
    return Parts(block, _minus(pieces[0], block), first.terms.overhead_s, passed_on, ends, first.notes)


def _piece(prediction: Prediction, memory: Any, element_bytes: int) -> Piece:
    terms, workload = prediction.terms, prediction.workload
    keys = workload.network.lengths.keys if workload.network.lengths else 0
    core = np.array([_is_core(layer, keys) for layer in workload.layers])
    sent: dict[str, list[tuple[float, float]]] = {"forward": [], "backward": []}
    for layer in workload.layers:
        if layer.kind == "exchange":
            elements = max(np.prod(layer.inputs[0]), np.prod(layer.outputs[0]))
            size = float(elements) * workload.batch_size * element_bytes
            for way, share in _SENT[layer.attributes["function"]].items():
                sent[way].append((share, size))
    return Piece(
        float(terms.of(*FORWARD).sum()), float(terms.of(*BACKWARD).sum()), float(terms.of(*FORWARD)[core].sum()),
        float(terms.of("update").sum()), tuple(sent["forward"]), tuple(sent["backward"]),
        memory.parameters_bytes, memory.gradients_bytes, memory.optimizer_bytes, memory.activations_bytes,
    )  # fmt: skip


_SENT = {
    "copy": {"backward": 1.0}, "sum": {"forward": 1.0},
    "gather": {"forward": 0.5, "backward": 0.5}, "scatter": {"forward": 0.5, "backward": 0.5},
}  # fmt: skip
"""Shares of an all-reduce that an exchange sends, forward and backward."""


def _minus(whole: Piece, part: Piece) -> Piece:
    """What a piece has beyond another; exchanges of the one come first or last in the other."""
    count = {name: len(getattr(whole, name)) - len(getattr(part, name)) for name in ("forward_sent", "backward_sent")}
    sent = {name: getattr(whole, name)[1 : 1 + number] for name, number in count.items()}
    numbers = {name: getattr(whole, name) - getattr(part, name) for name in Piece._fields if not name.endswith("_sent")}
    return Piece(**numbers, **sent)


def _is_core(layer: Layer, keys: int) -> bool:
    """Whether a layer makes or takes the scores of all tokens for all tokens."""
    return any(len(shape) == 4 and shape[-2:] == (keys, keys) for shape in (*layer.inputs, *layer.outputs))


def _passed_on(workload: Workload) -> float:
    """Elements of one sample that a block hands to the next: the result of the last addition of two tensors."""
    added = [layer for layer in workload.layers if layer.kind == "add" and len(layer.outputs[0]) == 3]
    return float(np.prod(added[-1].outputs[0]))


def _inside(topology: Topology, devices: int) -> Topology:
    """Some devices of one node."""
    return Topology(topology.device, devices, topology.inside, 1, None)


def _replicas(topology: Topology, split: Split, data: int) -> Topology:
    """The devices that hold the same part of the network, at their share of what links the nodes."""
    inside = max(min(data, topology.devices_per_node // split.tensor), 1)
    if data == inside:
        return _inside(topology, data)
    between = topology.between
    assert between is not None
    share = inside / topology.devices_per_node
    shared = msgspec.structs.replace(between, bandwidth_bytes_per_s=between.bandwidth_bytes_per_s * share)
    return Topology(topology.device, inside, topology.inside, data // inside, shared)


def _gradients_s(
    topology: Topology, split: Split, layout: Layout, states: list[float], compute: float, settings: Settings
) -> tuple[float, float]:
    """Seconds in which replicas exchange gradients and gather parameters, and what of them computing hides.

    Together an all-reduce of the gradients; ZeRO's stage 3 gathers the parameters for every pass of every micro-batch,
    and scatters the gradients of each: three halves.
    """
    if layout.data == 1:
        return 0.0, 0.0
    whole = float(exchange_time_s(_replicas(topology, split, layout.data), states[1]))
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
    crosses = split.tensor * layout.data >= topology.devices_per_node and topology.nodes > 1
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

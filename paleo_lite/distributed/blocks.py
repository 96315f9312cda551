"""Networks of equal blocks: what one device takes of networks of a few of them says what it takes of all.

One device's layers are read from the config (`paleo_lite.architectures.tape`): columns and rows of every matrix,
and what is exchanged between. `parts_of` gives what a block, and what is there once, take for one micro-batch of
training; `generate` a pass of prefill or decode on devices that share every matrix (Shoeybi et al. 2019, Megatron-LM,
section 3): of each block two sums go over all devices that share it. Pope et al. 2023 (section 3.2) has the same layout
for writing text; the logits of the last token are gathered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..architectures.network import Tokens
from ..counting import Layer
from ..counting.kinds import is_attention
from ..counting.work import MEGATRON
from ..errors import BadValue
from ..timing import Prediction, Workload, predict
from ..timing.blocks import of_training
from ..timing.memory import Memory, memory_by_micro_batch, memory_of
from ..timing.models import Terms, interval_of
from ..timing.training import micro_batch
from .collectives import apart, exchange_time_s
from .job import Job, Settings, Split, Step
from .links import Topology

Held = Callable[[int], Memory]
FORWARD, BACKWARD = ("forward",), ("backward_data", "backward_weight")


class Piece(NamedTuple):
    """What a block, or embedding and logits together, takes of one device for one micro-batch.

    Attributes
    ----------
    forward_s, backward_s, core_s, update_s : float
        `core_s` is the part of the forward pass that selective recomputation repeats: scores and their softmax.
    forward_sent, backward_sent : tuple of (float, float)
        Exchanges: shares of an all-reduce, and bytes; a gather or a scatter is half of one.
    attention_s, attention_backward_s : float
        The part of forward and backward pass that attention takes.
    ring_bytes, routed_bytes : float
        Keys and values of a device; rows sent to experts and back in a forward pass.
    parameters, gradients, optimizer, activations, expert_gradients : float
        Bytes; `expert_gradients` are among the gradients.
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
    attention_s: float
    attention_backward_s: float
    ring_bytes: float
    routed_bytes: float
    expert_gradients: float


class Parts(NamedTuple):
    """A block, what is there once, what a step takes besides, and how sure that is: ends of the time over the time."""

    block: Piece
    ends: Piece
    overhead_s: float
    passed_on: float  # bytes that a block hands to the next one
    interval: tuple[float, float] | None


def parts_of(job: Job, split: Split) -> Parts:
    """What a device of a split computes, sends and holds; made once for all splits that differ in nothing of it."""
    key = split.tensor, split.sequence, split.context, split.experts, split.micro_batch
    return job.once(_parts, *key, split.recompute == "selective")


def _parts(job: Job, *key: Any) -> Parts:
    counted: tuple[tuple[Workload, Memory], ...] = job.counted(_counted, *key)
    model = of_training(job.model)
    made = [model.evaluate(workload, job.machine) for workload, _ in counted]
    pieces = [_piece(terms, *known, job.element_bytes) for terms, known in zip(made, counted)]
    block, (first, second), (workload, _) = _minus(pieces[1], pieces[0]), made, counted[1]
    interval = second.interval()
    ends = None if interval is None else (interval[0] / second.time_s, interval[1] / second.time_s)
    # A block hands on the result of its last addition of two tensors.
    added = [layer for layer in workload.layers if layer.kind == "add" and len(layer.outputs[0]) == 3]
    passed_on = float(np.prod(added[-1].outputs[0])) * workload.batch_size * job.element_bytes
    return Parts(block, _minus(pieces[0], block), first.overhead_s, passed_on, ends)


def _counted(job: Job, *key: Any) -> tuple[tuple[Workload, Memory], ...]:
    """Networks of one and of two blocks for one micro-batch, and their memory: what no time model changes."""
    *shared, micro, selective = key
    pieces = job.counted(_blocks, *shared)
    return tuple(
        (micro_batch(one.but(batch_size=micro), job.machine), (fused if selective else memory)(micro))
        for one, memory, fused in pieces
    )


def _blocks(job: Job, tensor: int, sequence: bool, ring: int, experts: int) -> list[tuple[Workload, Held, Held]]:
    """Networks of one and of two blocks, and their memory as they are and with fused attention."""
    network = job.workload.network
    assert network.remade is not None and network.lengths is not None
    asked = Tokens(network.lengths.queries, None, "training", tensor, sequence, ring, experts)
    options = msgspec.structs.replace(job.workload.options, accumulation=1, checkpointing="none")
    made = []
    for blocks in (1, 2):
        asked = asked._replace(blocks=blocks)
        one = job.workload.but(
            network=network.remade(asked), training=options, batch_size=1, execution=MEGATRON
        )  # fmt: skip
        held = memory_by_micro_batch(one)
        fused = held
        if not any(map(is_attention, one.layers)):  # which saves neither scores nor their softmax
            fused = memory_by_micro_batch(one.but(network=network.remade(asked._replace(fused=True))))
        made.append((one, held, fused))
    return made


def _piece(terms: Terms, workload: Workload, memory: Memory, element_bytes: int) -> Piece:
    keys = workload.network.lengths.keys if workload.network.lengths else 0
    core = np.array([_is_core(layer, keys) for layer in workload.layers])
    attention = np.array([is_attention(layer) for layer in workload.layers])
    sent: dict[str, list[tuple[float, float]]] = {"forward": [], "backward": []}
    routed = ring = experts = 0.0
    for layer in workload.layers:
        sample_bytes = workload.batch_size * element_bytes
        if layer.kind == "exchange":
            size = float(max(np.prod(layer.inputs[0]), np.prod(layer.outputs[0]))) * sample_bytes
            routed += size * (layer.attributes["function"] == "all_to_all")
            for way, share in _SENT.get(layer.attributes["function"], {}).items():
                sent[way].append((share, size))
        elif is_attention(layer):
            ring += float(np.prod(layer.inputs[1]) + np.prod(layer.inputs[2])) * sample_bytes
        elif layer.kind == "grouped_matmul":
            experts += float(layer.parameters) * element_bytes
    return Piece(
        float(terms.of(*FORWARD).sum()), float(terms.of(*BACKWARD).sum()), float(terms.of(*FORWARD)[core].sum()),
        float(terms.of("update").sum()), tuple(sent["forward"]), tuple(sent["backward"]),
        memory.parameters_bytes, memory.gradients_bytes, memory.optimizer_bytes, memory.activations_bytes,
        float(terms.of(*FORWARD)[attention].sum()), float(terms.of(*BACKWARD)[attention].sum()), ring, routed, experts,
    )  # fmt: skip


_SENT = {
    "copy": {"backward": 1.0}, "sum": {"forward": 1.0},
    "gather": {"forward": 0.5, "backward": 0.5}, "scatter": {"forward": 0.5, "backward": 0.5},
}  # fmt: skip
"""Shares of an all-reduce that an exchange among those that share matrices sends, forward and backward."""


def _minus(whole: Piece, part: Piece) -> Piece:
    """What a piece has beyond another; exchanges of the one come first or last in the other."""
    count = {name: len(getattr(whole, name)) - len(getattr(part, name)) for name in ("forward_sent", "backward_sent")}
    sent = {name: getattr(whole, name)[1 : 1 + number] for name, number in count.items()}
    numbers = {name: getattr(whole, name) - getattr(part, name) for name in Piece._fields if not name.endswith("_sent")}
    return Piece(**numbers, **sent)


def _is_core(layer: Layer, keys: int) -> bool:
    """Whether a layer makes or takes the scores of all tokens for all tokens."""
    return any(len(shape) == 4 and shape[-2:] == (keys, keys) for shape in (*layer.inputs, *layer.outputs))


def generate(job: Job, topology: Topology, batch_size: int, settings: Settings) -> Step:
    """A pass of prefill or decode; `Settings.split` says how many devices share a matrix, else all of them do.

    Without a scheduler, and nothing of an exchange is hidden; replicas do not know each other.

    Raises
    ------
    BadValue
        If the network was not made from a config, or devices, heads or batch cannot be divided so, or if more is asked
        of training.
    """
    if settings.gradient_precision or not settings.overlap or settings.micro_batches or settings.inputs:
        raise BadValue(
            "--gradient-precision, --no-overlap, --micro-batches, --storage, --decode, --pageable: of --phase training"
        )
    tensor = _sharing(topology, settings.split)
    replicas = topology.workers // tensor
    if batch_size % replicas:
        raise BadValue(f"{replicas} replicas of --tensor {tensor} do not divide a batch of {batch_size}")
    samples, data = batch_size // replicas, f", data {replicas}" if replicas > 1 else ""
    taken: _Taken = job.once(_taken, tensor, samples)
    pace = job.computing * job.pace * (1 + settings.slowdown)
    group = apart(topology, 1, tensor)
    sent_s = sum(share * float(exchange_time_s(group, size, settings.collective)) for size, share in taken.sent.items())
    ends = None if taken.deviation is None else interval_of(taken.time_s * pace, taken.deviation)
    return Step(
        compute_s=taken.time_s * pace,
        communication_s=sent_s,
        exposed_s=sent_s,
        memory_bytes=taken.memory_bytes,
        interval=None if ends is None else (ends[0] + sent_s, ends[1] + sent_s),
        losses={"slowdown": taken.time_s * pace * settings.slowdown / (1 + settings.slowdown)},
        notes=(f"tensor {tensor}{data}, {'a sequence' if samples == 1 else f'{samples} sequences'} at once",),
    )


def notes_of(job: Job) -> tuple[str, ...]:
    """What to know of the time model's answer."""
    return job.once(_small, 1, 1, 1).notes


def _sharing(topology: Topology, split: Split | None) -> int:
    """How many devices share every matrix."""
    split = split or Split(tensor=topology.workers)
    if split != Split(split.tensor):
        raise BadValue("in prefill and decode devices share matrices, by --tensor, and nothing else")
    tensor = min(split.tensor, topology.workers)
    if tensor > topology.devices_per_node > 1:
        raise BadValue(f"--tensor {tensor} is more than the {topology.devices_per_node} devices of a node")
    if topology.workers % tensor:
        raise BadValue(f"--tensor {tensor} does not divide {topology.workers} workers")
    return tensor


class _Taken(NamedTuple):
    """What one of the devices that share every matrix takes, how sure that is, and the bytes of its exchanges.

    `sent` are shares of an all-reduce by size; `deviation` is that of the time's logarithm.
    """

    time_s: float
    deviation: float | None
    memory_bytes: float
    sent: dict[float, float]


def _taken(job: Job, tensor: int, samples: int) -> _Taken:
    """Of networks of one, two and three blocks: times and bytes grow by as much for each, a variance by its square."""
    blocks = job.workload.network.blocks
    few = [1, 2, 3] if blocks > 3 else [blocks]
    small = [job.once(_small, tensor, samples, number) for number in few]

    def all_of(values: Sequence[float]) -> float:
        if len(values) == 1:
            return values[0]
        first, second, third = values
        more = blocks - 1
        return first + more * (second - first) + more * (more - 1) / 2 * (third - 2 * second + first)

    time_s = all_of([one.time_s for one in small])
    deviation = None
    if small[0].terms.deviation is not None:
        variances = [(one.time_s * float(one.terms.deviation or 0.0)) ** 2 for one in small]
        deviation = math.sqrt(all_of(variances)) / time_s
    sent = [_sent(one, tensor, job.element_bytes) for one in small]
    sizes = {size: all_of([messages.get(size, 0.0) for messages in sent]) for size in sent[-1]}
    # The fullest moment of one block alone may be another than of several.
    held = [float(memory_of(one.workload).total_bytes) for one in small[-2:]]
    return _Taken(time_s, deviation, held[-1] + (blocks - few[-1]) * (held[-1] - held[0]), sizes)


def _small(job: Job, tensor: int, samples: int, blocks: int) -> Prediction:
    """What one of the devices computes of a network of so many blocks; of all, where it has no equal ones."""
    return predict(job.counted(_shared, tensor, blocks).but(batch_size=samples), job.machine, job.model)


def _shared(job: Job, tensor: int, blocks: int) -> Workload:
    network, phase = job.workload.network, job.workload.phase
    if network.remade is None or network.lengths is None:
        if tensor > 1:
            raise BadValue(f"{network.name} is not from a config, whose matrices are divided: one device has all of it")
        return job.workload
    _, keys, _ = network.lengths
    length, context = (None, keys - 1) if phase == "decode" else (keys, None)
    return job.workload.but(network=network.remade(Tokens(length, context, phase, tensor, blocks=blocks or None)))


def _sent(prediction: Prediction, tensor: int, element_bytes: int) -> dict[float, float]:
    """Shares of an all-reduce by size: sums after both halves of a block, and the logits, of which each has a part."""
    layers = prediction.workload.layers
    sample_bytes = prediction.workload.batch_size * max(element_bytes, 2)  # nobody adds up in 8 bits
    sent: dict[float, float] = {}
    for layer in layers:
        if layer.kind == "exchange" and layer.attributes["function"] == "sum":
            size = float(np.prod(layer.outputs[0])) * sample_bytes
            sent[size] = sent.get(size, 0.0) + 1.0
    if sent:
        sent[float(np.prod(layers[-1].outputs[0])) * sample_bytes * tensor] = 0.5
    return sent

"""What a block of equal blocks, and what is there once, take of one device for one micro-batch.

One device's layers are read from the network's config (`paleo_lite.networks.tape`): columns and rows of every matrix,
and what is exchanged between. Blocks are equal, so that networks of one and of two blocks say what a block takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..counting import Layer
from ..counting.kinds import is_attention
from ..counting.work import MEGATRON
from ..networks.network import Tokens
from ..timing import Workload
from ..timing.blocks import of_training
from ..timing.memory import Memory, memory_by_micro_batch
from ..timing.models import Terms
from ..timing.training import micro_batch
from .job import Job, Split

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
    passed_on = _passed_on(workload) * workload.batch_size * job.element_bytes
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


def _passed_on(workload: Workload) -> float:
    """Elements of one sample that a block hands to the next: the result of the last addition of two tensors."""
    added = [layer for layer in workload.layers if layer.kind == "add" and len(layer.outputs[0]) == 3]
    return float(np.prod(added[-1].outputs[0]))

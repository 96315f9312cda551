"""Prompts read and text written by devices that share every matrix, and by replicas of them: no scheduler, no overlap.

Shoeybi et al. 2019 (Megatron-LM, section 3): of each block two sums go over all devices that share it. Pope et al. 2023
(section 3.2) has the same layout for writing text; the logits of the last token are gathered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..errors import BadValue
from ..networks.network import Tokens
from ..timing import Prediction, Workload, predict
from ..timing.memory import memory_of
from ..timing.models import interval_of
from .collectives import apart, exchange_time_s
from .job import Job, Settings, Split, Step
from .links import Topology


def generate(job: Job, topology: Topology, batch_size: int, settings: Settings) -> Step:
    """A pass of prefill or decode; `Settings.split` says how many devices share a matrix, else all of them do.

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
    samples = batch_size // replicas
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
        notes=(_describe(tensor, replicas, samples),),
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


def _describe(tensor: int, replicas: int, sequences: int) -> str:
    each = "a sequence" if sequences == 1 else f"{sequences} sequences"
    return f"tensor {tensor}{f', data {replicas}' if replicas > 1 else ''}, {each} at once"

"""Prompts read and text written by devices that share every matrix, and by replicas of them: no scheduler, no overlap.

Shoeybi et al. 2019 (Megatron-LM, section 3): of each block two sums go over all devices that share it. Pope et al. 2023
(section 3.2) has the same layout for writing text; the logits of the last token are gathered.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import BadValue
from ..networks.network import Tokens
from ..timing import Prediction, predict
from ..timing.memory import memory_of
from .exchange import exchange_time_s
from .job import Job, Settings, Split
from .step import Step
from .topology import Topology
from .within import apart


def generate(job: Job, topology: Topology, batch_size: int, settings: Settings) -> Step:
    """A pass of prefill or decode; `Settings.split` says how many devices share a matrix, else all of them do.

    Raises
    ------
    BadValue
        If the network was not made from a config, or devices, heads or batch cannot be divided so.
    """
    tensor = _sharing(topology, settings.split)
    replicas = topology.workers // tensor
    if batch_size % replicas:
        raise BadValue(f"{replicas} replicas of --tensor {tensor} do not divide a batch of {batch_size}")
    prediction: Prediction = job.once(_predicted, tensor, batch_size // replicas)
    pace = job.computing * job.pace * (1 + settings.slowdown)
    group = apart(topology, 1, tensor)
    sent_s: float = sum(
        share * float(exchange_time_s(group, size)) for share, size in _sent(prediction, tensor, job.element_bytes)
    )
    ends = prediction.interval
    return Step(
        compute_s=prediction.time_s * pace,
        communication_s=sent_s,
        exposed_s=sent_s,
        memory_bytes=job.counted(_memory, tensor, batch_size // replicas),
        interval=None if ends is None else (ends[0] * pace + sent_s, ends[1] * pace + sent_s),
        losses={"slowdown": prediction.time_s * pace * settings.slowdown / (1 + settings.slowdown)},
        notes=(_describe(tensor, replicas, batch_size // replicas),),
    )


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


def _shared(job: Job, tensor: int, batch_size: int) -> Any:
    """What one of the devices that share every matrix computes."""
    network, phase = job.workload.network, job.workload.phase
    if tensor > 1:
        if network.remade is None or network.lengths is None:
            raise BadValue(f"{network.name} is not from a config, whose matrices are divided: one device has all of it")
        _, keys, _ = network.lengths
        length, context = (None, keys - 1) if phase == "decode" else (keys, None)
        network = network.remade(Tokens(length, context, phase, tensor))
    return job.workload.but(network=network, batch_size=batch_size)


def _predicted(job: Job, tensor: int, batch_size: int) -> Prediction:
    return predict(job.counted(_shared, tensor, batch_size), job.machine, job.model)


def _memory(job: Job, tensor: int, batch_size: int) -> float:
    return float(memory_of(job.counted(_shared, tensor, batch_size)).total_bytes)


def _sent(prediction: Prediction, tensor: int, element_bytes: int) -> list[tuple[float, float]]:
    """Shares of an all-reduce, and bytes: sums after both halves of a block, and the logits, each having a part."""
    layers, samples = prediction.workload.layers, prediction.workload.batch_size * element_bytes
    sums = [layer for layer in layers if layer.kind == "exchange" and layer.attributes["function"] == "sum"]
    sent = [(1.0, float(np.prod(layer.outputs[0])) * samples) for layer in sums]
    return [*sent, (0.5, float(np.prod(layers[-1].outputs[0])) * samples * tensor)] if sums else []


def _describe(tensor: int, replicas: int, sequences: int) -> str:
    each = "a sequence" if sequences == 1 else f"{sequences} sequences"
    return f"tensor {tensor}{f', data {replicas}' if replicas > 1 else ''}, {each} at once"


__all__ = ["generate"]

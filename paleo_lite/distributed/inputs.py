"""Input feeding of several devices: a step waits where storage, decoding or copies of a node cannot keep up."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from ..errors import BadValue
from ..input_pipeline.feeding import Feeding, feed
from ..units import element_bytes
from .job import Inputs, Job
from .step import Step
from .topology import Topology

SAMPLE_BYTES = 110e3
"""Of an ImageNet JPEG, on average."""


def fed(step: Step, job: Job, machine: Topology, batch_size: Any, inputs: Inputs) -> Step:
    """The same step, with what it waits for its samples.

    Every node reads and decodes its part of the batch itself; where a strategy does not divide the batch, all of it.

    Raises
    ------
    BadValue
        If it is asked of many batch sizes at once.
    """
    if np.ndim(batch_size):
        raise BadValue("input feeding is predicted for one batch size at a time")
    samples = max(batch_size // machine.nodes // machine.devices_per_node, 1)
    network = job.workload.network
    feeding = Feeding(
        device_per_s=samples / step.time_s,
        batch_size=samples,
        sample_bytes=inputs.sample_bytes,
        decoded_bytes=network.input_elements * element_bytes(job.workload.precision),
        store=inputs.store,
        access="sequential",
        workers=1,
        decode_per_worker_s=inputs.decode_per_s,
        link=inputs.link,
        link_bytes_per_s=inputs.link_bytes_per_s,
        pinned=not inputs.pageable,
        devices=machine.devices_per_node,
    )
    result = feed(feeding)
    waiting_s = max(result.waiting_s, 0.0)
    if not waiting_s:
        return step
    slowest = min(result.stages[:-1], key=lambda stage: stage.per_s)
    losses = {**step.losses, f"input: {slowest.name}": waiting_s}
    return msgspec.structs.replace(step, input_s=waiting_s, losses=losses)

"""A network on the devices of a replica: how they share it, and what one of them computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ..architectures import Network
from ..architectures.network import SequenceOptions
from ..counting import Layer
from ..counting.kinds import is_attention, is_cache
from ..counting.work import COLUMNS, PASSES
from ..distributed.link_causes import expected_rate, expected_topology
from ..distributed.links import Topology, device_link, link_inside_nodes
from ..distributed.replica import check_nodes, link_devices
from ..engines.division import Division
from ..engines.placed import NEEDS_KERNELS, EngineKernels, place_kernels
from ..engines.routing import UNIFORM
from ..errors import BadValue
from ..formats import bytes_per_number
from ..machines import Device, Machine
from ..timing import TimeModel, Workload
from ..timing.workload import UnderEngine
from ..units import check_integer, element_bytes
from .pipeline import PipelineStages, stage_numbers

if TYPE_CHECKING:
    from ..engines.constants import EngineConstants
    from ..own_machines.batches import LocalModel


TENSOR_DEGREES = (1, 2, 4, 8)
"""Tensor-parallel degrees that advice compares."""

MOST_TENSOR = 16
"""Largest tensor parallelism that a remedy names: heads of keys and values are seldom more."""


def doubled_degrees(tensor: int, most: int = MOST_TENSOR) -> Iterator[int]:
    """Yield a tensor-parallel degree, and larger ones up to `most`, each twice the one before."""
    yield tensor
    while (tensor := 2 * tensor) <= most:
        yield tensor


class ModelOnDevice(NamedTuple):
    """A network as one device of a tensor-parallel group computes it."""

    workload: Workload  # workload in the phase ``decode`` of the whole network
    machine: Machine  # the device
    model: TimeModel  # time model
    group: Topology | None  # the devices of a stage and their links; None for a single device
    kv_cache: str  # storage format of the KV cache, one of `paleo_lite.formats.FORMATS`
    pipeline: PipelineStages = PipelineStages()  # stages of the pipeline, each a tensor-parallel group
    # Kernels of the engine, with their times; None if the layers are timed by `model`.
    kernels: EngineKernels | None = None
    local: LocalModel | None = None  # the network under llama.cpp; None under any other engine
    notes: tuple[str, ...] = ()  # what calibrates the times, for the user

    @property
    def tensor(self) -> int:
        """Number of devices of a stage."""
        return 1 if self.group is None else self.group.workers

    @property
    def division(self) -> Division:
        """How the devices of a replica share the network."""
        stage = Division(self.tensor) if self.kernels is None else self.kernels.step.devices.division
        return stage._replace(pipeline=self.pipeline.degree)

    @property
    def devices(self) -> int:
        """Number of devices of a replica: devices of a stage times stages."""
        return self.tensor * self.pipeline.degree

    def stage_numbers(self, layers: Sequence[Layer]) -> list[int]:
        """Return the stage of each of some layers of the network."""
        return stage_numbers(self.workload.network, layers, self.pipeline)

    def decode_workload(self, context: int) -> Workload:
        """Return the workload of a decode step after `context` tokens."""
        network = self._network(
            SequenceOptions(context=context, phase="decode", tensor_parallel=self.tensor, fused_attention=True)
        )
        return self.workload.with_changes(network=network, batch_size=1)

    def prefill_workload(self, tokens: int) -> Workload:
        """Return the workload of a prompt."""
        network = self._network(
            SequenceOptions(length=tokens, phase="prefill", tensor_parallel=self.tensor, fused_attention=True)
        )
        return self.workload.with_changes(network=network, phase="prefill", batch_size=1)

    def _network(self, options: SequenceOptions) -> Network:
        rebuild = self.workload.network.rebuild
        if rebuild is None:
            raise BadValue(f"serving needs a language model from a config: not {self.workload.network.name}")
        return rebuild(options)

    def with_cache_format(self, workload: Workload) -> Workload:
        """Return the workload with keys and values read and written in the format of the cache."""
        spared_bytes = element_bytes(workload.precision) - bytes_per_number(self.kv_cache)
        if not spared_bytes:
            return workload
        per_sample = workload.work.per_sample.copy()
        inference = PASSES.index("inference")
        for index, layer in enumerate(workload.layers):
            if is_attention(layer):
                column, elements = COLUMNS.index("bytes_read"), _cached_elements_read(layer)
            elif is_cache(layer):
                column, elements = COLUMNS.index("bytes_written"), sum(prod(shape) for shape in layer.inputs)
            else:
                continue
            remaining = per_sample[column, inference, index] - int(elements * spared_bytes)
            per_sample[column, inference, index] = max(remaining, 0)
        return workload.with_work(msgspec.structs.replace(workload.work, per_sample=per_sample))


def _cached_elements_read(layer: Layer) -> int:
    """Return the elements of keys and values that an attention layer reads."""
    keys = prod(layer.inputs[1])
    if layer.attributes.get("shares_keys_and_values"):
        return keys
    return keys + prod(layer.inputs[2])


def check_undivided(division: Division, device: Device, alpha: float = UNIFORM) -> None:
    """Raise BadValue if experts or attention are divided, or experts loaded, where the layers are timed one by one.

    Pipelines keep the times of their layers where these were measured: a published one over two nodes takes 1.3 to 1.5
    times as long as its layers, and 1.2 to 1.5 times as long as its kernels.
    """
    degrees = {
        "--expert-parallel": division.expert_parallel,
        "--attention-data-parallel": division.attention_data_parallel,
    }
    for option, degree in degrees.items():
        if degree > 1 and division.pipeline > 1:
            raise BadValue(f"`{option}` is not modelled with `--pipeline`: leave one of them out")
        if degree > 1:
            raise BadValue(f"`{option}` {NEEDS_KERNELS} (got {device.name})")
    if alpha != UNIFORM:
        raise BadValue(f"`--expert-load` {NEEDS_KERNELS} and without `--pipeline` (got {device.name})")


def with_kernels(
    on_device: ModelOnDevice,
    policy: str,
    *,
    expert_parallel: int = 1,
    attention_data_parallel: int = 1,
    alpha: float = UNIFORM,
    constants: EngineConstants | None = None,  # other ones than those that are shipped
) -> ModelOnDevice:
    """Return a network on a device with the kernels of an engine, one of `paleo_lite.engines.records.SERVERS`.

    Experts are divided into some groups, and attention into groups that compute it for sequences of their own; `alpha`
    is the exponent of the popularity of experts. Raise BadValue if a degree does not divide the devices, heads or
    experts.
    """
    division = Division(on_device.tensor, on_device.pipeline.degree, expert_parallel, attention_data_parallel)
    division.check()
    workload = on_device.workload.with_changes(engine=UnderEngine(policy, on_device.kv_cache, alpha))
    kernels = place_kernels(
        workload,
        on_device.machine.device,
        policy,
        kv_cache=on_device.kv_cache,
        devices=link_devices(on_device.group, division._replace(pipeline=1), alpha),
        constants=constants,
    )
    return on_device._replace(workload=workload, kernels=kernels)


def tensor_group(
    device: Device,
    division: Division,
    link: str | None = None,
    topology: Topology | None = None,
) -> Topology | None:
    """Return the topology of the devices of a stage, of a platform or joined by one link; None for one device.

    Raise BadValue if the number of devices is below 1, or that of an attention group exceeds the devices of a node.
    """
    check_integer("`--tensor`", division.tensor, 1)
    if division.tensor == 1:
        return None
    if topology is not None:
        check_nodes(topology, division)
        return expected_topology(topology.with_workers(division.tensor))
    name, _ = link_inside_nodes(link or device_link(device), device)
    return Topology(None, division.tensor, expected_rate(name), 1, None)

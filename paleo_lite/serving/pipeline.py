"""Pipeline parallelism in serving: contiguous stages of blocks, the links between them, and the time of sending.

The blocks of the network are divided among `Pipeline.degree` stages (Huang et al. 2019, GPipe), each of which is a
tensor-parallel group with the weights and the KV cache of its blocks; the embedding is on the first stage, the head on
the last. Engines keep as many batches in flight as there are stages: vLLM's batch queue has the size of the pipeline
(``vllm/v1/executor``, `max_concurrent_batches`), TensorRT-LLM divides requests into as many micro-batches. The time
of a round of these batches is in `paleo_lite.serving.iteration_times`.

Sources: https://docs.vllm.ai/en/latest/serving/parallelism_scaling.html,
https://nvidia.github.io/TensorRT-LLM/features/parallel-strategy.html, Huang et al. 2019 (GPipe), Qi et al. 2017
(PALEO: a send takes its bytes over the bandwidth).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from ..architectures import Network
from ..counting import Layer
from ..distributed.collectives import point_to_point_time_s
from ..distributed.links import LinkRate, Topology, link_rate
from ..errors import BadValue
from ..timing import Workload
from ..timing.workload import matrix_elements
from ..units import check_integer, element_bytes

MIN_EXCHANGE_BYTES = 2
"""Activations and partial sums are exchanged in at least 16 bits."""


class PipelineStages(NamedTuple):
    """Stages of a pipeline."""

    boundaries: tuple[LinkRate, ...] = ()  # link between each stage and the next; empty for a single stage
    blocks: tuple[int, ...] = ()  # blocks of each stage; empty for those of `split_blocks`

    @property
    def degree(self) -> int:
        """Number of stages, which is also the number of batches in flight."""
        return len(self.boundaries) + 1


def parse_stage_blocks(text: str) -> tuple[int, ...]:
    """Return the blocks of each stage of a text such as ``42+36``; none of an empty text."""
    if not text:
        return ()
    parts = [part.strip() for part in text.split("+")]
    if not all(part.isascii() and part.isdecimal() and len(part) <= 6 and int(part) for part in parts):
        raise BadValue(
            f"`--engine-settings stage-blocks` must be the blocks of every stage, such as 42+36 (got {text!r})"
        )
    return tuple(map(int, parts))


def connect_stages(
    degree: int,
    tensor: int,
    *,
    device_link: str | None,
    topology: Topology | None = None,
    blocks: tuple[int, ...] = (),  # of each stage; empty for those that the engine chooses
) -> PipelineStages:
    """Return a pipeline of tensor-parallel groups; raise BadValue if stages would not fill whole nodes.

    Nodes are filled stage by stage; a boundary that falls between two nodes uses the link between nodes. Without a
    topology all boundaries have the device's link.
    """
    check_integer("`--pipeline`", degree, 1)
    if blocks and len(blocks) != degree:
        raise BadValue(
            f"`--engine-settings stage-blocks` must be one number for each of the {degree} stages of `--pipeline` "
            f"(got {'+'.join(map(str, blocks))})"
        )
    if degree == 1:
        return PipelineStages()
    if topology is None:
        assert device_link is not None
        return PipelineStages((link_rate(device_link, operation="point-to-point"),) * (degree - 1), blocks)
    per_node = topology.devices_per_node
    if degree * tensor > per_node and per_node % tensor:
        raise BadValue(f"`--tensor` must divide the {per_node} devices of a node with `--pipeline` (got {tensor})")
    boundaries = []
    for stage in range(1, degree):
        link = topology.between if stage * tensor % per_node == 0 else topology.inside
        if link is None:
            raise BadValue(f"`--pipeline` must be <= {per_node // tensor} on a single node (got {degree})")
        boundaries.append(link)
    return PipelineStages(tuple(boundaries), blocks)


def split_blocks(blocks: int, stages: int) -> list[int]:
    """Return the number of blocks of each stage, as vLLM divides them; raise BadValue for more stages than blocks.

    Remaining blocks go to the stages before the last, which has the head: ``get_pp_indices`` in
    ``vllm/distributed/utils.py``.
    """
    if stages > blocks:
        raise BadValue(f"`--pipeline` must be <= {blocks}, the blocks of the network (got {stages})")
    sizes = [blocks // stages] * stages
    for offset in range(blocks % stages):
        sizes[(stages - 2 - offset) % stages] += 1
    return sizes


def stage_numbers(network: Network, layers: Sequence[Layer], pipeline: PipelineStages) -> list[int]:
    """Return the stage of each of some layers of a network, from 0.

    Layers outside blocks belong to the stage of the block before them, and those before all blocks to the first stage.
    Raise BadValue if there are more stages than blocks, the blocks of all stages are not those of the network, or
    blocks cannot be told by the names of the layers.
    """
    stages = pipeline.degree
    if stages == 1:
        return [0] * len(layers)
    names = list(dict.fromkeys(filter(None, (layer.place.block for layer in network.layers))))
    if len(names) != network.blocks:
        raise BadValue(f"`--pipeline` needs a network with numbered blocks, which {network.name} has not")
    sizes = pipeline.blocks or split_blocks(len(names), stages)
    if sum(sizes) != len(names):
        raise BadValue(
            f"`--engine-settings stage-blocks` has {sum(sizes)} blocks, but {network.name} has {len(names)} "
            f"(got {'+'.join(map(str, sizes))})"
        )
    stage_of_block: dict[str, int] = {}
    for stage, size in enumerate(sizes):
        for name in names[len(stage_of_block) : len(stage_of_block) + size]:
            stage_of_block[name] = stage
    # The final norm and the head follow the last block, also where only a part of the layers is given.
    last_block = max((index for index, layer in enumerate(layers) if layer.place.block), default=len(layers))
    numbers, current = [], 0
    for index, layer in enumerate(layers):
        block = layer.place.block
        current = stage_of_block[block] if block else current
        numbers.append(stages - 1 if index > last_block else current)
    return numbers


def stage_workloads(workload: Workload, network: Network, pipeline: PipelineStages) -> list[Workload]:
    """Return the workload of each stage, for counting its weights and its cache; its layers are not connected.

    A head that shares its matrix with the embedding has a copy of it, as embedding and head are on different stages.
    """
    stages = pipeline.degree
    if stages == 1:
        return [workload]
    numbers = stage_numbers(network, workload.network.layers, pipeline)
    workloads = []
    for stage in range(stages):
        layers = []
        for layer, number in zip(workload.network.layers, numbers):
            if number != stage:
                continue
            parameters = layer.parameters
            if stage == stages - 1 and not layer.place.block and matrix_elements(layer) and not parameters:
                parameters = prod(layer.weights[0])
            layers.append(layer._replace(parents=(-1,) * len(layer.parents), parameters=parameters))
        workloads.append(workload.with_changes(network=workload.network._replace(layers=tuple(layers))))
    return workloads


def hidden_size(layers: Sequence[Layer]) -> int:
    """Return the elements of one token between two blocks: those of the output of a block's last layer."""
    of_blocks = [layer for layer in layers if layer.place.block]
    if not of_blocks:
        raise BadValue("`--pipeline` needs a network with numbered blocks")
    return prod(of_blocks[-1].outputs[0][1:])


def send_time_s(pipeline: PipelineStages, workload: Workload, tokens: Any) -> Any:
    """Return the time in which the activations of a batch of tokens pass all boundaries.

    Each boundary takes the time of one message of ``tokens * hidden size * bytes per element`` (Hockney 1994: latency
    plus bytes over bandwidth). The workload is that of a decode step, one token per sample.
    """
    if pipeline.degree == 1:
        return 0.0
    token_bytes = hidden_size(workload.layers) * max(element_bytes(workload.precision), MIN_EXCHANGE_BYTES)
    return sum(point_to_point_time_s(tokens * float(token_bytes), link) for link in pipeline.boundaries)

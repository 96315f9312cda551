"""Table of parallelization strategies: `STRATEGIES` by name, and `resolve_strategy`, which checks a name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from ..errors import UnknownName
from .collectives import EXACT_COLLECTIVES, REDUCE_SCATTER_COLLECTIVES
from .data_parallel import train_data_parallel, train_zero
from .job import Job, Step
from .links import Topology
from .model_parallel import (
    default_micro_batches,
    model_parallel_bound,
    train_hybrid,
    train_pipeline_parallel,
    train_tensor_parallel,
)
from .parallel_3d import train_3d_parallel
from .settings import Settings

PredictStep = Callable[[Job, Topology, Any, Settings], Step]
"""Function from a job, a topology, the global batch size and settings to a `Step`."""

ListBatchSizes = Callable[[Any, int], list[Any]]
"""Function from the global batch size and the number of devices to batch sizes of one device."""


class Strategy(NamedTuple):
    """A parallelization strategy."""

    run: PredictStep  # predicts the step
    description: str  # one line
    collectives: tuple[str, ...] = ()  # all-reduce algorithms to choose from; empty if the strategy leaves no choice
    divides_batch: bool = False  # whether every device has samples of its own
    # Whether the ranks that have samples of their own may be groups of tensor-parallel devices, each with the whole
    # network.
    allows_tensor_groups: bool = False
    # Batch sizes, besides the per-device share of the batch, at which the strategy needs a device step layer by layer.
    # None if it needs only the per-device share, in sums over the layers of a gradient bucket.
    extra_batch_sizes: ListBatchSizes | None = None
    zero_stage: int = 0  # ZeRO stage by which the model state is sharded across the devices
    is_bound: bool = False  # whether the result is a bound rather than a forecast of an executable plan
    # Whether the strategy divides the blocks of a network by a `ParallelConfig`. It then sets the interval of its step
    # itself; the step of other strategies is as uncertain as the step of one device.
    divides_blocks: bool = False
    uses_micro_batches: bool = False  # whether `Settings.micro_batches` sets the number of its micro-batches


def _global_batch(batch_size: Any, workers: int) -> list[Any]:
    return [batch_size]


def _global_and_micro_batch(batch_size: Any, workers: int) -> list[Any]:
    return [batch_size, batch_size // default_micro_batches(batch_size, workers)]


STRATEGIES = {
    "data": Strategy(
        run=train_data_parallel,
        description="data parallelism: a replica of the network per device, gradients all-reduced",
        collectives=EXACT_COLLECTIVES,
        divides_batch=True,
        allows_tensor_groups=True,
    ),
    "zero-1": Strategy(
        run=partial(train_zero, 1),
        description="data parallelism, optimizer state sharded",
        collectives=REDUCE_SCATTER_COLLECTIVES,
        divides_batch=True,
        allows_tensor_groups=True,
        zero_stage=1,
    ),
    "zero-2": Strategy(
        run=partial(train_zero, 2),
        description="data parallelism, optimizer state and gradients sharded",
        collectives=REDUCE_SCATTER_COLLECTIVES,
        divides_batch=True,
        allows_tensor_groups=True,
        zero_stage=2,
    ),
    "zero-3": Strategy(
        run=partial(train_zero, 3),
        description="data parallelism, optimizer state, gradients and parameters sharded (FSDP)",
        collectives=REDUCE_SCATTER_COLLECTIVES,
        divides_batch=True,
        allows_tensor_groups=True,
        zero_stage=3,
    ),
    "hybrid": Strategy(
        run=train_hybrid,
        description="data-parallel convolutions, sharded fully connected layers",
        collectives=EXACT_COLLECTIVES,
        divides_batch=True,
        extra_batch_sizes=_global_batch,
    ),
    "tensor": Strategy(
        run=train_tensor_parallel,
        description="tensor parallelism: pairs of column-parallel and row-parallel layers",
        collectives=EXACT_COLLECTIVES,
        extra_batch_sizes=_global_batch,
    ),
    "pipeline-gpipe": Strategy(
        run=partial(train_pipeline_parallel, "gpipe"),
        description="pipeline parallelism, GPipe schedule: all micro-batches forward, then all backward",
        extra_batch_sizes=_global_and_micro_batch,
        uses_micro_batches=True,
    ),
    "pipeline-1f1b": Strategy(
        run=partial(train_pipeline_parallel, "1f1b"),
        description="pipeline parallelism, 1F1B schedule: one forward, one backward",
        extra_batch_sizes=_global_and_micro_batch,
        uses_micro_batches=True,
    ),
    "3d": Strategy(
        run=train_3d_parallel,
        description="3D parallelism (tensor, pipeline, data), set by --tensor and --pipeline",
        divides_blocks=True,
    ),
    "model-lower": Strategy(
        run=partial(model_parallel_bound, "lower"),
        description="lower bound of model parallelism: parallel branches, no communication",
        extra_batch_sizes=_global_batch,
        is_bound=True,
    ),
    "model-upper": Strategy(
        run=partial(model_parallel_bound, "upper"),
        description="upper bound of model parallelism: layers one after another, no communication",
        extra_batch_sizes=_global_batch,
        is_bound=True,
    ),
}
"""Strategies by name, simplest first."""


def resolve_strategy(name: str) -> str:
    """Return the name of a strategy; raise UnknownName if it is not in `STRATEGIES`."""
    if name not in STRATEGIES:
        raise UnknownName("strategy", name, STRATEGIES)
    return name

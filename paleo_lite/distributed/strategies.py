"""The strategies by name: how work is shared out among devices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from .collectives import EXACT, HALVES
from .data_parallel import data, zero
from .job import Job, Settings, Step
from .links import Topology
from .model_parallel import hybrid, micro_batches, model_bound, pipelined, tensor
from .parallel_3d import together

Run = Callable[[Job, Topology, Any, Settings], Step]
Timed = Callable[[Any, int], list[Any]]


class Strategy(NamedTuple):
    """A way to share out work.

    Attributes
    ----------
    run : callable
        From a job, a topology, the batch size of all devices together and settings to a `Step`.
    what : str
        In a line.
    collectives : tuple of str
        What it may exchange by, where it leaves a choice.
    divides_batch : bool
        Whether every device has samples of its own.
    timed : callable or None
        From the batch size of all devices and their number to the batches of which it asks for one device's step,
        besides a device's share, layer by layer; None: of the share, in sums of layers whose gradients are exchanged
        together.
    zero_stage : int
        What of the model's state is divided among the devices: `paleo_lite.timing.memory.shared_out`.
    is_bound : bool
        Whether it is a bound, not a plan.
    in_blocks : bool
        Whether it says itself how sure its computing is, of micro-batches; others are as sure as one device's step.
    """

    run: Run
    what: str
    collectives: tuple[str, ...] = ()
    divides_batch: bool = False
    timed: Timed | None = None
    zero_stage: int = 0
    is_bound: bool = False
    in_blocks: bool = False


def _whole(batch_size: Any, workers: int) -> list[Any]:
    return [batch_size]


def _micro(batch_size: Any, workers: int) -> list[Any]:
    return [batch_size, batch_size // micro_batches(batch_size, workers)]


STRATEGIES = {
    "data": Strategy(data, "the whole network on every device, gradients exchanged", EXACT, True),
    "zero-1": Strategy(partial(zero, 1), "data, the optimizer's state divided", HALVES, True, zero_stage=1),
    "zero-2": Strategy(partial(zero, 2), "data, optimizer state and gradients divided", HALVES, True, zero_stage=2),
    "zero-3": Strategy(
        partial(zero, 3), "data, optimizer state, gradients and parameters divided", HALVES, True, zero_stage=3
    ),
    "hybrid": Strategy(hybrid, "convolutions data parallel, fully connected layers divided", EXACT, True, _whole),
    "tensor": Strategy(tensor, "pairs of matrix products divided by columns and rows", EXACT, timed=_whole),
    "pipeline-gpipe": Strategy(
        partial(pipelined, "gpipe"),
        "a stage of layers per device, all micro-batches forward, then backward",
        timed=_micro,
    ),
    "pipeline-1f1b": Strategy(
        partial(pipelined, "1f1b"), "a stage of layers per device, one forward, one backward", timed=_micro
    ),
    "together": Strategy(
        together,
        "tensor, sequence, pipeline and data parallel at once, by --tensor and --pipeline",
        in_blocks=True,
    ),
    "model-lower": Strategy(
        partial(model_bound, "lower"),
        "bound of model parallelism: branches side by side, nothing sent",
        timed=_whole,
        is_bound=True,
    ),
    "model-upper": Strategy(
        partial(model_bound, "upper"),
        "bound of model parallelism: layer after layer, nothing sent",
        timed=_whole,
        is_bound=True,
    ),
}
"""Strategies by name, the simpler first."""

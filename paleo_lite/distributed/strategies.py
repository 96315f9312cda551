"""The strategies by name: how work is shared out among devices."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import UnknownName
from .data_parallel import Run, data, zero
from .exchange import EXACT, HALVES
from .model_parallel import hybrid, model_bound, pipelined, tensor
from .together import together


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
    by_layer : bool
        Whether it needs every layer's time, not only those that make a bucket of gradients together.
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
    by_layer: bool = False
    zero_stage: int = 0
    is_bound: bool = False
    in_blocks: bool = False


STRATEGIES = {
    "data": Strategy(data, "the whole network on every device, gradients exchanged", EXACT, True),
    "zero-1": Strategy(zero(1), "data, the optimizer's state divided", HALVES, True, False, 1),
    "zero-2": Strategy(zero(2), "data, optimizer state and gradients divided", HALVES, True, False, 2),
    "zero-3": Strategy(zero(3), "data, optimizer state, gradients and parameters divided", HALVES, True, True, 3),
    "hybrid": Strategy(hybrid, "convolutions data parallel, fully connected layers divided", EXACT, True, True),
    "tensor": Strategy(tensor, "pairs of matrix products divided by columns and rows", EXACT, by_layer=True),
    "pipeline-gpipe": Strategy(
        pipelined("gpipe"),
        "a stage of layers per device, all micro-batches forward, then backward",
        by_layer=True,
    ),
    "pipeline-1f1b": Strategy(
        pipelined("1f1b"), "a stage of layers per device, one forward, one backward", by_layer=True
    ),
    "together": Strategy(
        together,
        "tensor, sequence, pipeline and data parallel at once, by --tensor and --pipeline",
        by_layer=True,
        in_blocks=True,
    ),
    "model-lower": Strategy(
        model_bound("lower"),
        "bound of model parallelism: branches side by side, nothing sent",
        by_layer=True,
        is_bound=True,
    ),
    "model-upper": Strategy(
        model_bound("upper"),
        "bound of model parallelism: layer after layer, nothing sent",
        by_layer=True,
        is_bound=True,
    ),
}
"""Strategies by name, the simpler first."""


def find_strategy(name: str) -> Strategy:
    """The strategy of a name.

    Raises
    ------
    UnknownName
        If there is none.
    """
    if name not in STRATEGIES:
        raise UnknownName("strategy", name, STRATEGIES)
    return STRATEGIES[name]

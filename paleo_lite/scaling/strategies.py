"""The strategies by name: how work is shared out among devices."""

from __future__ import annotations

from ..errors import UnknownName
from .data_parallel import data, zero
from .model_parallel import hybrid, model_bound, pipelined, tensor
from .parts import Strategy

STRATEGIES: dict[str, tuple[Strategy, str]] = {
    "data": (data, "the whole network on every device, gradients exchanged"),
    "zero-1": (zero(1), "data, the optimizer's state divided"),
    "zero-2": (zero(2), "data, optimizer state and gradients divided"),
    "zero-3": (zero(3), "data, optimizer state, gradients and parameters divided"),
    "hybrid": (hybrid, "convolutions data parallel, fully connected layers divided"),
    "tensor": (tensor, "pairs of matrix products divided by columns and rows"),
    "pipeline-gpipe": (pipelined("gpipe"), "a stage of layers per device, all micro-batches forward, then backward"),
    "pipeline-1f1b": (pipelined("1f1b"), "a stage of layers per device, one forward, one backward"),
    "model-lower": (model_bound("lower"), "bound of model parallelism: branches side by side, nothing sent"),
    "model-upper": (model_bound("upper"), "bound of model parallelism: layer after layer, nothing sent"),
}
"""Strategies by name, with a line each."""

BOUNDS = ("model-lower", "model-upper")
"""Those that are bounds, not plans."""


def find_strategy(name: str) -> Strategy:
    """The strategy of a name.

    Raises
    ------
    UnknownName
        If there is none.
    """
    if name not in STRATEGIES:
        raise UnknownName("strategy", name, STRATEGIES)
    return STRATEGIES[name][0]

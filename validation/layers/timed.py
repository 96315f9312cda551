"""`LayerTime`: a single layer that somebody timed, as operations that our own rules count."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from paleo_lite.counting import Layer


class Operation(NamedTuple):
    """A layer in one pass: ``inference``, ``forward``, ``backward_data``, ``backward_weight`` or ``update``."""

    layer: Layer
    part: str


class LayerTime(msgspec.Struct, frozen=True):
    """A measured layer.

    Attributes
    ----------
    gpu, precision, source : str
    mode : str
        Layers of a source with the same mode were timed alike and are fitted together.
    kind : str
        What was timed.
    phase : str
    shape : str
        All sizes, the batch among them: what is held out together.
    batch_size : int
        Samples; the operations' layers are those of one.
    time_s : float
    operations : tuple of Operation
        What the step runs, in order.
    """

    gpu: str
    precision: str
    source: str
    mode: str
    kind: str
    phase: str
    shape: str
    batch_size: int
    time_s: float
    operations: tuple[Operation, ...]


class Reading(NamedTuple):
    """What a source's reader makes of a row: the fields of `LayerTime` that are not the same in every source."""

    source: str
    mode: str
    kind: str
    phase: str
    batch_size: int
    operations: tuple[Operation, ...]


Reader = Callable[[dict[str, str]], Reading]


def linear(inputs: int, outputs: int) -> Layer:
    """A matrix product of so many inputs and outputs."""
    return Layer("linear", "linear", ((inputs,),), ((outputs,),), ((outputs, inputs),))

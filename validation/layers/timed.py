"""`LayerTime`: a published time of a single layer, described by operations that the counting rules support."""

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
        Layers of a source with the same mode were timed in the same way and are fitted together.
    kind : str
        Kind of layer or operation.
    phase : str
    shape : str
        All sizes, including the batch size; layers with the same shape are held out together.
    batch_size : int
        Number of samples; the layers of the operations describe a single sample.
    time_s : float
    operations : tuple of Operation
        Operations of the step in order of execution.
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
    """Result of reading a row: the fields of `LayerTime` that depend on the source."""

    source: str
    mode: str
    kind: str
    phase: str
    batch_size: int
    operations: tuple[Operation, ...]


Reader = Callable[[dict[str, str]], Reading]


def linear(inputs: int, outputs: int) -> Layer:
    """Return a linear layer without bias."""
    return Layer("linear", "linear", ((inputs,),), ((outputs,),), ((outputs, inputs),))

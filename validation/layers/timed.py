"""`LayerTime`: a published time of a single layer, described by operations that the counting rules support."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from paleo_lite.counting import Layer


class TimedOperation(NamedTuple):
    """A layer in one pass: ``inference``, ``forward``, ``backward_data``, ``backward_weight`` or ``update``."""

    layer: Layer
    part: str


class LayerTime(msgspec.Struct, frozen=True):
    """A measured layer."""

    gpu: str
    precision: str
    source: str
    mode: str  # layers of a source with the same mode were timed in the same way and are fitted together
    kind: str  # kind of layer or operation
    phase: str
    shape: str  # all sizes, including the batch size; layers with the same shape are held out together
    batch_size: int  # number of samples; the layers of the operations describe a single sample
    time_s: float
    operations: tuple[TimedOperation, ...]  # operations of the step in order of execution


class OperationReading(NamedTuple):
    """Result of reading a row: the fields of `LayerTime` that depend on the source."""

    source: str
    mode: str
    kind: str
    phase: str
    batch_size: int
    operations: tuple[TimedOperation, ...]


Reader = Callable[[dict[str, str]], OperationReading]


def linear(inputs: int, outputs: int) -> Layer:
    """Return a linear layer without bias."""
    return Layer("linear", "linear", ((inputs,),), ((outputs,),), ((outputs, inputs),))

"""What of a network grows with the batch: the graph says it, but not of what forward makes in the batch's size.

A state of zeros with a row for each sample, or a learned query that is expanded to all of them, depends on no input. A
second trace with twice the samples tells which outputs grow; where the counts of twice the samples do not follow from
those of one, a note says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..counting import Layer, Shape, count
from ..counting.layer import trace_flow
from .operations import words

MADE_TO_SIZE = words("expand expand_as broadcast_to repeat tile repeat_interleave")
"""Calls whose result has the size that it is told."""

LARGER_BATCHES = "counts of larger batches do not follow what depends on the batch's size"
"""What that means where it cannot be told."""


def may_hide_the_batch(layers: Sequence[Layer]) -> bool:
    """Whether something is made from nothing, or expanded, that the graph takes for independent of the batch."""
    scales = trace_flow(layers).output_scales
    return any(
        not scaled and (layer.kind == "fill" or layer.attributes.get("function", layer.kind) in MADE_TO_SIZE)
        for layer, scaled in zip(layers, scales)
    )


def with_growth(layers: Sequence[Layer], twice: Sequence[Layer]) -> tuple[tuple[Layer, ...], str]:
    """The layers of one sample, with the attribute ``scales`` where the graph is wrong, and a note or nothing.

    Parameters
    ----------
    layers, twice : sequence of Layer
        Of one sample and of two.
    """
    settled = list(layers)
    by_name = {(layer.name, layer.kind): layer for layer in twice}  # some forwards check what a batch of one is
    flow = trace_flow(())
    for index, one in enumerate(layers):
        flow.add(one)
        scaled = flow.output_scales[-1]
        two = by_name.get((one.name, one.kind))
        growth = _growth(one, two) if two is not None else None
        actual = scaled if growth is None else growth == 2
        if actual != scaled:
            settled[index] = one._replace(attributes={**one.attributes, "scales": actual})
        flow.output_scales[-1] = actual
    expected, computed = (
        count(part).column("macs", "training", batch_size).sum() for part, batch_size in ((settled, 2), (twice, 1))
    )
    more = 100 * (float(computed) / max(float(expected), 1) - 1)
    note = f"two samples have {more:+.3g}% multiply-accumulates beyond those that follow from one: {LARGER_BATCHES}"
    return tuple(settled), note if computed != expected else ""


def _growth(one: Layer, two: Layer) -> int | None:
    """How many times as large two samples make a layer's outputs: 1 or 2, or None where these are not alike."""
    alike = len(one.outputs) == len(two.outputs) and all(
        map(_alike, one.inputs + one.outputs, two.inputs + two.outputs)
    )
    elements, doubled = (sum(map(prod, layer.outputs)) for layer in (one, two))
    return doubled // elements if alike and elements and doubled in (elements, 2 * elements) else None


def _alike(one: Shape, two: Shape) -> bool:
    """Whether two shapes are the same but for one size that is twice as large."""
    other = [(a, b) for a, b in zip(one, two) if a != b]
    return len(one) == len(two) and len(other) <= 1 and all(b == 2 * a for a, b in other)

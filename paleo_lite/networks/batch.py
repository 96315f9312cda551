"""What of a network grows with the batch: the graph says it, but not of what forward makes in the batch's size.

A state of zeros with a row for each sample, or a learned query that is expanded to all of them, depends on no input. A
second trace with twice the samples tells which outputs grow; where the counts of twice the samples do not follow from
those of one, a note says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..counting import Layer, count
from ..counting.layer import grows, trace_flow
from .operations import words

MADE_TO_SIZE = words("expand expand_as broadcast_to repeat tile repeat_interleave")
"""Calls whose result has the size that it is told."""

LARGER_BATCHES = "counts of larger batches take what forward makes to the batch's size for fixed"
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
    if [layer.kind for layer in layers] != [layer.kind for layer in twice]:
        return tuple(layers), f"two samples run other layers than one: {LARGER_BATCHES}"
    settled = list(layers)
    scales: list[bool] = []
    for index, (one, two) in enumerate(zip(layers, twice)):
        scaled = grows(one, scales)
        elements, doubled = (sum(map(prod, layer.outputs)) for layer in (one, two))
        actual = {elements: False, 2 * elements: True}.get(doubled, scaled) if elements else scaled
        if actual != scaled:
            settled[index] = one._replace(attributes={**one.attributes, "scales": actual})
        scales.append(actual)
    expected, found = (
        count(part).column("macs", "training", batch_size).sum() for part, batch_size in ((settled, 2), (twice, 1))
    )
    note = f"two samples take {found / max(expected, 1):.3g} times what is said of them: {LARGER_BATCHES}"
    return tuple(settled), note if found != expected else ""

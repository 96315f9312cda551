"""Segments of activation checkpointing: where a network is cut, and the tensors that cross the cuts.

These tensors are saved, and the inside of a segment is computed again when the backward pass reaches it (Chen et al.
2016, "Training deep nets with sublinear memory cost"). About sqrt(n) segments need the least memory for a chain of n
equal layers, at the cost of one more forward pass.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import ceil, sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..counting import MATRIX_KINDS, Layer
from ..counting.kinds import is_alias
from .liveness import ZERO_BYTES, MemoryPlan, saved_bytes, total_bytes

if TYPE_CHECKING:
    from .liveness import Bytes


class Segment(NamedTuple):
    """Layers of a network between two cuts of activation checkpointing."""

    start: int  # first layer
    end: int  # after the last layer
    # Buffers that cross the cuts up to the end of the segment, from which segments are computed again.
    kept: frozenset[int]
    kept_bytes: Bytes  # their bytes per sample, and bytes that do not grow with the batch, shape (2,)


def find_segments(layers: Sequence[Layer], plan: MemoryPlan, checkpointing: str) -> list[Segment]:
    """Cut a network into segments at tensors that alone connect its parts; a single one without checkpointing.

    `checkpointing` is one of `CHECKPOINTING` in `paleo_lite.timing.training_options`. ``all`` makes every possible cut:
    wherever a single tensor crosses and a convolution or matrix product lies between, and before blocks that several
    tensors reach, such as those of a denoiser, of text, picture and time. ``block`` takes one of them per block, before
    the first layer of a numbered module. ``sqrt`` takes about the square root of as many as ``all``, so that the
    segments save about equal amounts.

    All segments but the last are computed again: the backward pass begins with the last one, for which the forward pass
    has just finished. The layers are in the order of execution, and the plan is that of these layers.
    """
    cuts = [0, len(layers)]
    if checkpointing != "none":
        cuts = [0, *_block_boundaries(layers, plan), len(layers)]
    if checkpointing == "sqrt":
        cuts = _select_balanced_cuts(plan, cuts)
    elif checkpointing == "block":
        cuts = [0, *_select_block_starts(layers, cuts[1:-1]), len(layers)]
    crossing: list[list[int]] = [[] for _ in (*cuts, None)]  # by the first cut that a buffer crosses
    for buffer, (first, last) in enumerate(zip(plan.first_write, plan.last_use)):
        next_cut = bisect_right(cuts, first)
        if first >= 0 and next_cut < len(cuts) and cuts[next_cut] <= last:
            crossing[next_cut].append(buffer)
    kept_buffers, kept_bytes = frozenset[int](), ZERO_BYTES
    segments = []
    for (start, end), buffers in zip(pairwise(cuts), crossing):
        kept_buffers, kept_bytes = (
            kept_buffers.union(buffers),
            kept_bytes + total_bytes(plan.sizes[buffer] for buffer in buffers),
        )
        segments.append(Segment(start, end, kept_buffers, kept_bytes))
    return segments


def _block_boundaries(layers: Sequence[Layer], plan: MemoryPlan) -> list[int]:
    """Return the last possible cut before each matrix product to which a single tensor leads.

    Tensors without a gradient, such as the angles of rotary positions, may cross as well: all segments share them.
    Blocks of several products without such a cut are cut before their first layer: frameworks save all inputs of a
    block.
    """
    last_write = list(plan.first_write)
    for index, (layer, buffers) in enumerate(zip(layers, plan.graph.writes)):
        if is_alias(layer):  # a view changes no values
            continue
        for buffer in buffers:
            last_write[buffer] = max(last_write[buffer], index)
    crossing = _count_intervals(
        len(layers),
        [
            (first, last)
            for first, last in zip(plan.first_write, plan.last_use)
            if first >= 0 and plan.graph.gradient[first]
        ],
    )
    # A tensor that is written again later cannot be the start of a second computation.
    overwritten = _count_intervals(
        len(layers), [(first, last) for first, last in zip(plan.first_write, last_write) if 0 <= first < last]
    )
    cuts: list[int] = []
    candidate, has_product = 0, False
    for index, layer in enumerate(layers):
        if crossing[index] == 1 and not overwritten[index] and index:
            candidate = index
        if layer.kind in MATRIX_KINDS:
            previous_cut = cuts[-1] if cuts else 0
            if has_product and candidate > previous_cut:
                cuts.append(candidate)
            has_product = True
    products = Counter(layer.place.block for layer in layers if layer.kind in MATRIX_KINDS)
    uncut = {name for name, number in products.items() if name and number > 1}
    uncut -= {layers[cut].place.block for cut in cuts}
    starts = [
        index
        for index, (before, layer) in enumerate(pairwise(layers), start=1)
        if layer.place.block in uncut and layer.place.block != before.place.block and not overwritten[index]
    ]
    return sorted({*cuts, *starts})


def _select_block_starts(layers: Sequence[Layer], cuts: Sequence[int]) -> list[int]:
    """Return the first of the cuts in each numbered module, and in each part of the network outside of them."""
    selected: list[int] = []
    for cut in cuts:
        if not selected or layers[cut].place.block != layers[selected[-1]].place.block:
            selected.append(cut)
    return selected


def _count_intervals(length: int, intervals: Sequence[tuple[int, int]]) -> list[int]:
    """Return for each position how many intervals (first, last) contain both it and an earlier position."""
    changes = [0] * (length + 1)
    for first, last in intervals:
        changes[first + 1] += 1
        changes[last + 1] -= 1
    return list(accumulate(changes))


def _select_balanced_cuts(plan: MemoryPlan, cuts: list[int]) -> list[int]:
    """Return about the square root of the number of cuts, at equal shares of the saved bytes between them."""
    number_of_segments = ceil(sqrt(len(cuts) - 1))
    saved = [saved_bytes(plan, start, end)[0] for start, end in pairwise(cuts)]
    saved_before = [0, *accumulate(saved)]
    total = saved_before[-1]
    selected = [0]
    for number in range(1, number_of_segments):
        distances = [abs(amount * number_of_segments - number * total) for amount in saved_before]
        nearest = cuts[int(np.argmin(np.array(distances, dtype=np.float64)))]
        if selected[-1] < nearest < cuts[-1]:
            selected.append(nearest)
    return [*selected, cuts[-1]]

"""Activation checkpointing: which activations stay, and what is computed again.

Chen et al. 2016, "Training deep nets with sublinear memory cost": a network cut into segments keeps what crosses the
cuts, and computes the inside of a segment again when the backward pass comes to it. About sqrt(n) segments need the
least memory of a chain of n equal layers, for one more forward pass.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from ..counting import MATRIX_KINDS, Layer
from .liveness import NONE, Bytes, Plan, saved_bytes, total


class Segment(NamedTuple):
    """Layers from `start` up to `end`, and what crosses the cuts up to theirs: each segment starts again from there."""

    start: int
    end: int
    held: frozenset[int]
    held_bytes: Bytes


def find_segments(layers: Sequence[Layer], plan: Plan, checkpointing: str) -> list[Segment]:
    """Cut a network where one tensor alone crosses.

    Parameters
    ----------
    plan : Plan
        Of these layers.
    checkpointing : {"none", "sqrt", "all"}
        ``all`` cuts before every block: wherever a single tensor crosses and a convolution or matrix product lies
        between. ``sqrt`` takes about the square root of as many, so that each keeps about as much.

    Returns
    -------
    list of Segment
        In order; one where nothing is checkpointed. All but the last are computed again: the backward pass begins
        with the last, whose forward pass has just been.
    """
    cuts = [0, *(_blocks(layers, plan) if checkpointing != "none" else []), len(layers)]
    if checkpointing == "sqrt":
        cuts = _balanced(plan, cuts)
    crossing: list[list[int]] = [[] for _ in (*cuts, None)]  # by the first cut that a buffer crosses
    for which, (first, last) in enumerate(zip(plan.first_write, plan.last_use)):
        place = bisect_right(cuts, first)
        if first >= 0 and place < len(cuts) and cuts[place] <= last:
            crossing[place].append(which)
    held, held_bytes = frozenset[int](), NONE
    segments = []
    for (start, end), more in zip(pairwise(cuts), crossing):
        held, held_bytes = held.union(more), held_bytes.plus(total(plan, more))
        segments.append(Segment(start, end, held, held_bytes))
    return segments


def recomputed(layers: Sequence[Layer], segments: Sequence[Segment]) -> list[bool]:
    """For each layer whether the backward pass computes it again."""
    last = segments[-1].start if segments else 0
    return [index < last for index in range(len(layers))]


def _blocks(layers: Sequence[Layer], plan: Plan) -> list[int]:
    """The last place to cut before each matrix product that a single tensor leads to."""
    crossing = [0] * (len(layers) + 1)
    last_write = list(plan.first_write)
    for index, written in enumerate(plan.graph.writes):
        for which in written:
            last_write[which] = max(last_write[which], index)
    for first, last in zip(plan.first_write, plan.last_use):
        if first >= 0:
            crossing[first + 1] += 1
            crossing[last + 1] -= 1
    overwritten = [0] * (len(layers) + 1)  # a tensor that is written to later cannot be started from again
    for first, last in zip(plan.first_write, last_write):
        if 0 <= first < last:
            overwritten[first + 1] += 1
            overwritten[last + 1] -= 1
    cuts: list[int] = []
    pending, multiplies, count, changing = 0, False, 0, 0
    for index, layer in enumerate(layers):
        count += crossing[index]
        changing += overwritten[index]
        if count == 1 and not changing and index:
            pending = index
        if layer.kind in MATRIX_KINDS:
            if multiplies and pending > (cuts[-1] if cuts else 0):
                cuts.append(pending)
            multiplies = True
    return cuts


def _balanced(plan: Plan, cuts: list[int]) -> list[int]:
    """Of the cuts about the square root, at equal shares of what is kept between them."""
    wanted = math.ceil(math.sqrt(len(cuts) - 1))
    between = [saved_bytes(plan, start, end).per_sample for start, end in pairwise(cuts)]
    done = [0, *accumulate(between)]
    running = done[-1]
    chosen = [0]
    for number in range(1, wanted):
        nearest = min(range(len(cuts)), key=lambda place: abs(done[place] * wanted - number * running))
        if cuts[nearest] > chosen[-1] and cuts[nearest] < cuts[-1]:
            chosen.append(cuts[nearest])
    return [*chosen, cuts[-1]]

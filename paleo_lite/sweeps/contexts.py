"""Networks that write text at every context, from two that were read.

Attention and the cache grow by as much for every token, all else stays. Where a window ends that, the network is read.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np

from ..counting import Layer, Work, count
from ..counting.fusion import fuse
from ..counting.work import ENGINE
from ..errors import BadValue
from ..networks import Network, find_network
from ..networks.network import Tokens

_FIRST = 1


class Counted(NamedTuple):
    """A network at a context, and its work in an engine."""

    network: Network
    work: Work


def at_context(name: str, context: int, precision: str) -> Counted:
    """A network that writes the next token behind so many.

    Raises
    ------
    PaleoError
        If there is no such network, or it knows fewer positions.
    """
    longest = 1 << (context - 1).bit_length()  # the next power of two
    make = _between if _grows_evenly(name, longest, precision) else _read
    return make(name, context, precision)


@lru_cache(64)
def _grows_evenly(name: str, longest: int, precision: str) -> bool:
    """Whether up to a context each token adds as much: what was read at it is what two short contexts say."""
    try:
        there = _read(name, longest, precision)
    except BadValue:  # beyond what the model knows
        return False
    said = _between(name, longest, precision)
    same = all(np.array_equal(getattr(there.work, part), getattr(said.work, part)) for part in ("per_sample", "fixed"))
    return same and all(map(_alike, there.network.layers, said.network.layers))


@lru_cache(64)
def _read(name: str, context: int, precision: str) -> Counted:
    network = find_network(name, tokens=Tokens(context=context, phase="decode"))
    return Counted(network, fuse(network.layers, count(network.layers, precision), ENGINE))


def _between(name: str, context: int, precision: str) -> Counted:
    (one, work), (two, more) = (_read(name, _FIRST + place, precision) for place in (0, 1))
    steps = context - _FIRST
    layers = tuple(
        first if _alike(first, second) else _grown(first, second, steps)
        for first, second in zip(one.layers, two.layers)
    )
    names = ("per_sample", "fixed", "count_per_sample", "count_fixed", "activations_per_sample")
    grown = {name: getattr(work, name) + (getattr(more, name) - getattr(work, name)) * steps for name in names}
    assert one.lengths is not None
    lengths = one.lengths._replace(keys=context + 1)
    return Counted(one._replace(layers=layers, lengths=lengths), msgspec.structs.replace(work, **grown))


def _alike(one: Layer, two: Layer) -> bool:
    return one.inputs == two.inputs and one.outputs == two.outputs


def _grown(one: Layer, two: Layer, steps: int) -> Layer:
    """The layer whose every size is as many steps further as it is from the first to the second."""
    inputs, outputs = (
        tuple(
            tuple(size + (next_ - size) * steps for size, next_ in zip(shape, further))
            for shape, further in zip(before, after)
        )
        for before, after in ((one.inputs, two.inputs), (one.outputs, two.outputs))
    )
    return one._replace(inputs=inputs, outputs=outputs)

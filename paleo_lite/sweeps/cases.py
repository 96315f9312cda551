"""Cases of a sweep: networks of a length in a phase, and what is counted of them, once in each process.

Networks that write text are known at every context from two that were read: attention and the cache grow by as much for
every token, all else stays. Where a window ends that, the network is read.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..architectures import Network, find_network
from ..architectures.network import Tokens
from ..counting import Layer, Work, count
from ..counting.fusion import fuse
from ..counting.work import ENGINE, WITH_GRADIENTS
from ..distributed.data_parallel import gradient_bytes, make_buckets
from ..distributed.job import BUCKET_BYTES
from ..errors import BadValue
from ..timing.broadcast import Case, Stack, alike, stack
from ..timing.memory import memory_coefficients, model_bytes
from ..timing.workload import TrainingOptions, Workload, with_update
from ..units import PRECISION_BYTES
from .space import Sized

_FIRST = 1

_OF_SIZE = {size: precision for precision, size in reversed(PRECISION_BYTES.items())}
"""The first precision with numbers of each size: memory and traffic are alike for all of them."""


@lru_cache(256)
def network_of(name: Sized) -> Network:
    """A network by name and length."""
    if name.phase == "decode" and name.length is not None:
        return at_context(name.name, name.length, _OF_SIZE[2]).network
    return find_network(name.name, tokens=name.tokens)


@lru_cache(512)
def counted(name: Sized, number_bytes: int) -> Work:
    """A network's work with numbers of that size: what precisions of one size have in common."""
    if name.phase == "decode" and name.length is not None:
        return at_context(name.name, name.length, _OF_SIZE[number_bytes]).work
    layers = network_of(name).layers
    work = count(layers, _OF_SIZE[number_bytes])
    if not name.phase:
        return work
    return fuse(layers, work, ENGINE)


def work_of(name: Sized, precision_bytes: int, optimizer: str) -> Work:
    """A network's work with the update of an optimizer."""
    return with_update(counted(name, precision_bytes), _OF_SIZE[precision_bytes], TrainingOptions(optimizer))


@lru_cache(2048)
def memory_parts(
    name: Sized, precision_bytes: int, phase: str, optimizer: str
) -> tuple[tuple[int, int, int], int, int]:
    """Bytes of parameters, gradients and optimizer state, other fixed bytes, and bytes per sample of a case."""
    training = phase in WITH_GRADIENTS  # memory is that of a step or of a forward pass, nothing between
    workload = Workload(
        network_of(name), _OF_SIZE[precision_bytes], phase="training" if training else phase,
        training=TrainingOptions(optimizer) if training else None,
    ).doing(counted(name, precision_bytes))  # fmt: skip
    fixed, per_sample = memory_coefficients(workload)
    model = model_bytes(workload)
    return model, fixed - sum(model), per_sample


@lru_cache(512)
def exchanges_of(name: Sized, number_bytes: int, optimizer: str) -> dict[tuple[Any, ...], Any]:
    """Where what no device and no batch changes is kept once it is known: exchanges of gradients, memory."""
    return {}


@lru_cache(64)
def groups_of(name: Sized, precision_bytes: int, optimizer: str, by_layer: bool) -> list[int]:
    """Of each layer the group of those that are alike; or, if not by layer, of those that share all their buckets."""
    layers, work = network_of(name).layers, work_of(name, precision_bytes, optimizer)
    if by_layer:
        return alike(layers, work)
    gradients = gradient_bytes(Workload(network_of(name), _OF_SIZE[precision_bytes], phase="training").doing(work))
    ahead = make_buckets(gradients[::-1], BUCKET_BYTES, BUCKET_BYTES).of_layer[::-1]
    buckets = zip(make_buckets(gradients).of_layer.tolist(), ahead.tolist())
    numbers: dict[tuple[int, int], int] = {}
    return [numbers.setdefault(both, len(numbers)) for both in buckets]


@lru_cache(64)
def stack_of(
    cases: tuple[tuple[Sized, str], ...], precision_bytes: int, optimizer: str, by_layer: bool | None = None
) -> Stack:
    """The entries of several networks and phases; those of training in the pieces of `groups_of`, unless it is None."""
    return stack(
        [
            Case(
                network_of(name).layers,
                work_of(name, precision_bytes, optimizer),
                phase,
                ()
                if by_layer is None or phase != "training"
                else groups_of(name, precision_bytes, optimizer, by_layer),
            )
            for name, phase in cases
        ]
    )


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

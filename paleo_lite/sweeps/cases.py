"""Cases of a sweep, which are networks of some length in a phase, and their counts, cached in each process.

The decode phase is counted at two short contexts only and extrapolated to all others: attention and the KV cache grow
by the same amount per token, everything else is constant. Where sliding windows end this growth, the network is counted
at the context itself.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..architectures import Network, find_network
from ..architectures.network import SequenceOptions
from ..counting import Layer, Work, count
from ..counting.fusion import fuse
from ..counting.work import ENGINE, PHASES_WITH_GRADIENTS
from ..distributed.data_parallel import gradient_bytes, make_buckets
from ..distributed.settings import BUCKET_BYTES
from ..errors import BadValue
from ..formats import bytes_per_number, format_of_weights, split_format
from ..timing.broadcast import Case, CaseStack, equivalence_classes, stack_cases
from ..timing.fine_tuning import append_loss, skip_loss_at_inference
from ..timing.memory import memory_coefficients, model_bytes
from ..timing.optimizers import default_optimizer
from ..timing.quantization import read_stored_weights
from ..timing.training_options import TrainingOptions, with_update
from ..timing.workload import Workload
from ..units import PRECISION_BYTES, element_bytes
from .space import SizedNetwork

_FIRST_CONTEXT = 1


def counted_precision(precision: str, weights: str | None) -> str:
    """Return the first precision with the same counts and memory: numbers and weights have the same sizes in both.

    A format of weights that a precision names has counts of its own, under its name.
    """
    if weights is not None:
        return weights
    sizes = _sizes_of(precision)
    return next(name for name in PRECISION_BYTES if _sizes_of(name) == sizes)


def _sizes_of(precision: str) -> tuple[float, float]:
    """Return the bytes of numbers between two operations, and of weights at inference."""
    return element_bytes(precision), bytes_per_number(precision)


@lru_cache(256)
def resolve_network(sized: SizedNetwork) -> Network:
    """Return the network with its length."""
    if sized.phase == "decode" and sized.length is not None:
        return network_at_context(sized.name, sized.length, "fp16").network
    return find_network(sized.name, options=sized.options)


@lru_cache(256)
def counted_layers(sized: SizedNetwork, precision: str) -> tuple[Layer, ...]:
    """Return the counted layers: those of the network, and the loss of a language model outside text generation."""
    network = resolve_network(sized)
    if sized.phase or network.lengths is None:
        return network.layers
    return append_loss(network.layers, element_bytes(split_format(precision, None)[0]))


@lru_cache(512)
def count_work(sized: SizedNetwork, precision: str) -> Work:
    """Return the work of a network in a precision, the result of `counted_precision`."""
    if sized.phase == "decode" and sized.length is not None:
        return network_at_context(sized.name, sized.length, precision).work
    layers = counted_layers(sized, precision)
    work = _count_with_stored_weights(resolve_network(sized), layers, precision)
    if not sized.phase:
        return skip_loss_at_inference(work, layers)
    return fuse(layers, work, ENGINE)


def count_work_with_update(sized: SizedNetwork, precision: str, optimizer: str) -> Work:
    """Return the work of a network, including the update of an optimizer; empty for its default."""
    work = count_work(sized, precision)
    layers = counted_layers(sized, precision)
    return with_update(work, layers, split_format(precision, None)[0], TrainingOptions(optimizer_of(sized, optimizer)))


@lru_cache(2048)
def memory_parts(
    sized: SizedNetwork, precision: str, phase: str, optimizer: str
) -> tuple[tuple[int, int, int], int, int]:
    """Return the memory of a case as a linear function of the batch size.

    They are the bytes of parameters, gradients and optimizer state, further bytes that do not depend on the batch size,
    and the bytes of a sample.
    """
    # Memory is that of a complete training step or of a forward pass: there is nothing in between.
    is_training = phase in PHASES_WITH_GRADIENTS
    arithmetic, weights = split_format(precision, None)
    workload = Workload(
        resolve_network(sized),
        arithmetic,
        weights=None if is_training else weights,
        phase="training" if is_training else phase,
        training=TrainingOptions(optimizer_of(sized, optimizer)) if is_training else None,
    ).with_work(count_work(sized, precision))
    fixed_bytes, per_sample_bytes = memory_coefficients(workload)
    model_state = model_bytes(workload)
    return model_state, fixed_bytes - sum(model_state), per_sample_bytes


def optimizer_of(sized: SizedNetwork, optimizer: str) -> str:
    """Return the optimizer of a training step, by default that of the network."""
    return optimizer or default_optimizer(resolve_network(sized))


@lru_cache(512)
def shared_cache(sized: SizedNetwork, precision: str, optimizer: str) -> dict[tuple[Any, ...], Any]:
    """Return the cache of results that depend on neither device nor batch size: gradient exchanges, memory."""
    return {}


@lru_cache(64)
def layer_groups(sized: SizedNetwork, precision: str, optimizer: str, by_layer: bool) -> list[int]:
    """Return the group index of each layer.

    With `by_layer`, the layers of a group take equally long. Otherwise they have both their gradient bucket and their
    parameter bucket in common, and a strategy needs only the sum of their times.
    """
    layers = counted_layers(sized, precision)
    work = count_work_with_update(sized, precision, optimizer)
    if by_layer:
        return equivalence_classes(layers, work)
    arithmetic, _ = split_format(precision, None)
    workload = Workload(resolve_network(sized), arithmetic, phase="training").with_work(work)
    gradients = gradient_bytes(workload)
    gradient_bucket = make_buckets(gradients).bucket_of_layer
    parameter_bucket = make_buckets(gradients[::-1], BUCKET_BYTES, BUCKET_BYTES).bucket_of_layer[::-1]
    group_of_buckets: dict[tuple[int, int], int] = {}
    groups = []
    for buckets in zip(gradient_bucket.tolist(), parameter_bucket.tolist()):
        groups.append(group_of_buckets.setdefault(buckets, len(group_of_buckets)))
    return groups


@lru_cache(64)
def build_stack(
    cases: tuple[tuple[SizedNetwork, str], ...], precision: str, optimizer: str, by_layer: bool | None = None
) -> CaseStack:
    """Return the stacked entries of several cases, each a network and a phase.

    `precision` is a result of `counted_precision`. `by_layer` groups the layers of a training step into pieces, see
    `layer_groups`; None makes a single piece of them.
    """
    stacked = []
    for sized, phase in cases:
        pieces: list[int] | tuple[()] = ()
        if by_layer is not None and phase == "training":
            pieces = layer_groups(sized, precision, optimizer, by_layer)
        work = count_work_with_update(sized, precision, optimizer)
        stacked.append(Case(counted_layers(sized, precision), work, phase, pieces))
    return stack_cases(stacked)


class CountedNetwork(NamedTuple):
    """A network at a context, and its work in an inference engine."""

    network: Network
    work: Work


def network_at_context(name: str, context: int, precision: str) -> CountedNetwork:
    """Return a network that generates the next token after `context` tokens; PaleoError if it has fewer positions."""
    longest = 1 << (context - 1).bit_length()  # the next power of two
    if _grows_linearly(name, longest, precision):
        return _extrapolate_network(name, context, precision)
    return _count_at_context(name, context, precision)


@lru_cache(64)
def _grows_linearly(name: str, longest: int, precision: str) -> bool:
    """Return whether extrapolation to the longest context agrees with counting there."""
    try:
        counted = _count_at_context(name, longest, precision)
    except BadValue:  # more positions than the network supports
        return False
    extrapolated = _extrapolate_network(name, longest, precision)
    for part in ("per_sample", "fixed"):
        if not np.array_equal(getattr(counted.work, part), getattr(extrapolated.work, part)):
            return False
    return all(map(_have_same_shapes, counted.network.layers, extrapolated.network.layers))


@lru_cache(64)
def _count_at_context(name: str, context: int, precision: str) -> CountedNetwork:
    network = find_network(name, options=SequenceOptions(context=context, phase="decode"))
    work = _count_with_stored_weights(network, network.layers, precision)
    return CountedNetwork(network, fuse(network.layers, work, ENGINE))


def _count_with_stored_weights(network: Network, layers: tuple[Layer, ...], precision: str) -> Work:
    """Return the work of the layers of a network, with weights in the formats of its checkpoint or the precision."""
    arithmetic, weights = split_format(precision, None)
    work = count(layers, arithmetic)
    checkpoint_weights = network.stored_weights if weights is None else None
    stored = checkpoint_weights or format_of_weights(weights, arithmetic)
    if stored is None:
        return work
    return read_stored_weights(work, layers, stored, reads_tokens=network.lengths is not None)


def _extrapolate_network(name: str, context: int, precision: str) -> CountedNetwork:
    """Return the network at a context by linear extrapolation from the two shortest contexts."""
    first = _count_at_context(name, _FIRST_CONTEXT, precision)
    second = _count_at_context(name, _FIRST_CONTEXT + 1, precision)
    steps = context - _FIRST_CONTEXT
    layers = tuple(
        layer if _have_same_shapes(layer, next_layer) else _extrapolate_layer(layer, next_layer, steps)
        for layer, next_layer in zip(first.network.layers, second.network.layers)
    )
    extrapolated = {}
    for field in ("per_sample", "fixed", "count_per_sample", "count_fixed", "activations_per_sample"):
        value, next_value = getattr(first.work, field), getattr(second.work, field)
        extrapolated[field] = value + (next_value - value) * steps
    assert first.network.lengths is not None
    lengths = first.network.lengths._replace(keys=context + 1)
    network = first.network._replace(layers=layers, lengths=lengths)
    return CountedNetwork(network, msgspec.structs.replace(first.work, **extrapolated))


def _have_same_shapes(layer: Layer, other: Layer) -> bool:
    return layer.inputs == other.inputs and layer.outputs == other.outputs


def _extrapolate_layer(first: Layer, second: Layer, steps: int) -> Layer:
    """Return the layer with every size of `first` plus `steps` times its difference to `second`."""
    return first._replace(
        inputs=_extrapolate_shapes(first.inputs, second.inputs, steps),
        outputs=_extrapolate_shapes(first.outputs, second.outputs, steps),
    )


def _extrapolate_shapes(
    first: tuple[tuple[int, ...], ...], second: tuple[tuple[int, ...], ...], steps: int
) -> tuple[tuple[int, ...], ...]:
    shapes = []
    for shape, next_shape in zip(first, second):
        shapes.append(tuple(size + (next_size - size) * steps for size, next_size in zip(shape, next_shape)))
    return tuple(shapes)


_CACHED = (
    resolve_network,
    counted_layers,
    count_work,
    memory_parts,
    shared_cache,
    layer_groups,
    build_stack,
    _grows_linearly,
    _count_at_context,
)


def forget_cases() -> None:
    """Empty the caches, whose keys are names: a file with the same name may have another content by now."""
    for cached in _CACHED:
        cached.cache_clear()

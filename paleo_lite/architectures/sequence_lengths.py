"""Networks for a range of sequence lengths, from four traces: every size is a polynomial of the length.

Three traces determine the polynomials, of degree 2 at most; a fourth, in between, must agree with them. Counts, traffic
and memory follow from the sizes, as for any network. Lengths outside the range are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import lcm, prod
from typing import Any

from ..counting import GENERATION_PHASES, Layer
from ..errors import BadValue, TraceFailed
from ..units import check_integer
from .inputs import Input, make_arguments
from .network import Network, SequenceLengths, SequenceOptions

_NOT_POLYNOMIAL = (
    "{}: {} is not a polynomial of the sequence length between {} and {}: give one length, or a range of lengths in "
    "which it is"
)

Samples = Sequence[Network]
"""The same network at three lengths, in rising order of `Network.lengths`."""


def trace_inputs(
    module: Any,
    inputs: Sequence[Input],  # inputs of ``forward``
    length: int | None = None,  # trace at this sequence length only
    # Name and source of the network.
    name: str = "",
    source: str = "",
) -> Network:
    """Trace a module with one sample of each input; for all lengths where an input has a range of them.

    Raise BadValue if the length is outside the range, or no input has a range.
    """
    from .trace import trace

    def trace_at(tokens: int | None) -> Network:
        args, kwargs = make_arguments(inputs, tokens)
        network = trace(module, *args, name=name, source=source, **kwargs)
        if tokens is None:
            return network
        return network._replace(lengths=SequenceLengths(tokens, tokens))

    length_range = _length_range(inputs)
    if length_range is None:
        if length is not None:
            raise BadValue("--sequence-length needs an input with a range of lengths, such as --input int64:1-4096")
        return trace_at(None)
    if length is None:
        return fit_sequence_lengths(trace_at, *length_range)
    _check_length(length, length_range)
    return trace_at(length)


def _length_range(inputs: Iterable[Input]) -> tuple[int, int] | None:
    """Return the shortest and longest sequence length, or None where no input has a range.

    Raise BadValue if inputs have different ranges.
    """
    ranges = {size for item in inputs for size in item.shape if isinstance(size, tuple)}
    if len(ranges) > 1:
        listed = " and ".join(f"{shortest}-{longest}" for shortest, longest in sorted(ranges))
        raise BadValue(f"all inputs must have the same range of sequence lengths (got {listed})")
    return ranges.pop() if ranges else None


def fit_sequence_lengths(trace_at: Callable[[int], Network], shortest: int, longest: int) -> Network:
    """Return the network at the longest length, with a `Network.rebuild` for the other lengths of a range.

    Raise BadValue if the range has fewer than four lengths, and TraceFailed if sizes are not polynomials of the length.
    """
    span = longest - shortest
    if span < 3:
        raise BadValue(
            f"the range of lengths from {shortest} to {longest} is too short to interpolate: give one length"
        )
    # Lengths that differ by multiples of 64 have the same remainders in strided layers.
    step = max(unit for unit in (64, 8, 1) if 3 * unit <= span)
    second_length = max(shortest + span // 3 // step * step, shortest + 1)
    check_length = max(shortest + span * 2 // 3 // step * step, shortest + 2)
    first = trace_at(shortest)
    second = trace_at(second_length)
    check = trace_at(check_length)
    last = trace_at(longest)
    samples = (first, second, last)
    for other in (second, check, last):
        _check_same_layers(first, other)
    assert check.lengths is not None
    expected = network_at_length(samples, check.lengths.queries, (shortest, longest))
    for interpolated, traced in zip(expected.layers, check.layers):
        if interpolated != traced:
            raise TraceFailed(_NOT_POLYNOMIAL.format(first.name, traced.name, shortest, longest))
    return interpolated_network(samples)


class _Interpolation:
    """Function that returns a traced network at other lengths: the `Network.rebuild` of such a network."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __call__(self, options: SequenceOptions) -> Network:
        name = self.samples[2].name
        longest = sampled_lengths(self.samples)[2]
        if options.phase in GENERATION_PHASES or options.context is not None:
            raise BadValue(
                f"{name} was traced: the phases prefill and decode, and --context, need a network from a config"
            )
        if options.length is None:
            network = network_at_length(self.samples, longest)
            note = f"assumed to read {longest} tokens; set them with --sequence-length"
            return network._replace(notes=(*network.notes, note))
        return network_at_length(self.samples, options.length)


def interpolated_network(samples: Samples) -> Network:
    """Return the network at the longest of three lengths, which can be rebuilt for the lengths in between."""
    rebuild = _Interpolation(samples)
    return rebuild(SequenceOptions())


def sampled_networks(network: Network) -> Samples:
    """Return the three traces that a network was interpolated from; an empty sequence for other networks."""
    if isinstance(network.rebuild, _Interpolation):
        return network.rebuild.samples
    return ()


def sampled_lengths(samples: Samples) -> list[int]:
    """Return the sequence lengths of traces."""
    return [network.lengths.queries for network in samples if network.lengths is not None]


def _check_length(length: int, length_range: tuple[int, int]) -> None:
    check_integer("--sequence-length", length, *length_range)


def _check_same_layers(network: Network, other: Network) -> None:
    """Raise if two traces differ in more than sizes."""
    if len(network.layers) != len(other.layers):
        assert network.lengths is not None and other.lengths is not None
        raise TraceFailed(
            f"{network.name} has {len(network.layers):,} operations for {network.lengths.queries} tokens and "
            f"{len(other.layers):,} for {other.lengths.queries}: other lengths cannot be interpolated, give one length"
        )
    for layer, other_layer in zip(network.layers, other.layers):
        if _structure(layer) != _structure(other_layer):
            raise TraceFailed(
                f"{network.name} runs different operations at different lengths, from {layer.name} ({layer.kind}) on: "
                "give one length"
            )


def _structure(layer: Layer) -> Any:
    """Return the properties of a layer that must not depend on the sequence length."""
    ranks = [len(shape) for shape in (*layer.inputs, *layer.outputs, *layer.weights)]
    return layer.name, layer.kind, layer.parents, layer.parameters, layer.origin, ranks, sorted(layer.attributes)


def network_at_length(
    samples: Samples,  # the network at three lengths
    length: int,  # tokens per sequence
    # Shortest and longest length, for the error message while the interpolation is being checked.
    length_range: tuple[int, int] | None = None,
) -> Network:
    """Return the network at a length, by Lagrange interpolation of every size through three lengths.

    Raise BadValue if the length is outside the range, or a size there is not an integer, and TraceFailed if a size is
    not an integer while the interpolation is being checked.
    """
    points = sampled_lengths(samples)
    _check_length(length, (points[0], points[2]))
    denominators = [prod(x - other for other in points if other != x) for x in points]
    common = lcm(*denominators)
    weights = []
    for x, denominator in zip(points, denominators):
        numerator = prod(length - other for other in points if other != x)
        weights.append(common // denominator * numerator)

    def interpolate(*values: int) -> int:
        total = sum(weight * value for weight, value in zip(weights, values))
        quotient, remainder = divmod(total, common)
        if remainder:
            raise ValueError
        return quotient

    layers = []
    for sampled_layers in zip(*(network.layers for network in samples)):
        first, second, last = sampled_layers
        if first is second or first == second == last:
            layers.append(first)
            continue
        try:
            changes = {}
            for field in ("inputs", "outputs", "weights", "attributes"):
                values = [getattr(layer, field) for layer in sampled_layers]
                changes[field] = _interpolate_nested(interpolate, *values)
        except ValueError:
            name = samples[0].name
            if length_range is not None:
                raise TraceFailed(_NOT_POLYNOMIAL.format(name, first.name, *length_range)) from None
            raise BadValue(
                f"{first.name} of {name} has no integer size at a length of {length}, unlike at {points[0]}, "
                f"{points[1]} and {points[2]}: its strides divide other lengths"
            ) from None
        layers.append(first._replace(**changes))
    inputs = _interpolate_nested(interpolate, *(network.inputs for network in samples))
    return samples[2]._replace(
        layers=tuple(layers), inputs=inputs, lengths=SequenceLengths(length, length), rebuild=_Interpolation(samples)
    )


def _interpolate_nested(interpolate: Callable[..., int], *values: Any) -> Any:
    """Interpolate the integers in nested values; everything else must be equal in all of them."""
    first = values[0]
    if all(value == first for value in values[1:]):
        return first
    if isinstance(first, dict):
        return {key: _interpolate_nested(interpolate, *(value[key] for value in values)) for key in first}
    if isinstance(first, (tuple, list)):
        return type(first)(_interpolate_nested(interpolate, *items) for items in zip(*values))
    if all(isinstance(value, int) for value in values):
        return interpolate(*values)
    raise ValueError


__all__ = [
    "Samples",
    "fit_sequence_lengths",
    "interpolated_network",
    "network_at_length",
    "sampled_lengths",
    "sampled_networks",
    "trace_inputs",
]

"""A network for every sequence length between two, from four traces: each size is a polynomial of the length.

Three traces give the polynomials, of degree 2 at most, and the fourth, in between, must agree. Whatever follows from
the sizes (counts, traffic, memory) is then computed as of any network; nothing is said beyond the two lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import lcm, prod
from typing import Any

from ..counting import GENERATING, Layer
from ..errors import BadValue, TraceFailed
from .inputs import Input, arguments, span_of
from .network import Lengths, Network, Tokens

_NO_LAW = (
    "{}: {} is no polynomial of the sequence length between {} and {}: give one length, or lengths between which it is"
)

Three = Sequence[Network]
"""The same network at three lengths, which are those of their `Network.lengths`, in rising order."""


def trace_inputs(
    module: Any, inputs: Sequence[Input], length: int | None = None, name: str = "", source: str = ""
) -> Network:
    """Trace a module with one sample of each input; where one has a span of lengths, for all of them.

    Parameters
    ----------
    length : int, optional
        Trace for this one only.

    Raises
    ------
    BadValue
        If the length lies outside of the span, or there is none.
    """
    from .trace import trace

    def at(tokens: int | None) -> Network:
        args, kwargs = arguments(inputs, tokens)
        made = trace(module, *args, name=name, source=source, **kwargs)
        return made if tokens is None else made._replace(lengths=Lengths(tokens, tokens))

    span = span_of(inputs)
    if span is None:
        if length is not None:
            raise BadValue(
                "--sequence-length needs an input whose sizes say between which it lies: --input int64:1-4096"
            )
        return at(None)
    if length is None:
        return fit(at, *span)
    _check(length, span)
    return at(length)


def fit(trace_at: Callable[[int], Network], least: int, most: int) -> Network:
    """The network at the longest length, which `Network.remade` makes for others.

    Raises
    ------
    TraceFailed
        If the sizes follow no polynomial.
    """
    if most - least < 3:
        raise BadValue(f"lengths from {least} to {most} are too few to find a law: give one length")
    step = max(unit for unit in (64, 8, 1) if 3 * unit <= most - least)  # the same rest where layers have strides
    between = [least + (most - least) * part // 3 // step * step for part in (1, 2)]
    first, second = (trace_at(length) for length in (least, max(between[0], least + 1)))
    check, last = trace_at(max(between[1], least + 2)), trace_at(most)
    three = (first, second, last)
    for other in (second, check, last):
        _check_alike(first, other)
    assert check.lengths is not None
    expected = at_length(three, check.lengths.queries, (least, most))
    for foretold, traced in zip(expected.layers, check.layers):
        if foretold != traced:
            raise TraceFailed(_NO_LAW.format(first.name, traced.name, least, most))
    return with_lengths(three)


class _Made:
    """Makes a network for other lengths."""

    def __init__(self, three: Three) -> None:
        self.three = three

    def __call__(self, tokens: Tokens) -> Network:
        name, longest = self.three[2].name, lengths_of(self.three)[2]
        if tokens.phase in GENERATING or tokens.context is not None:
            raise BadValue(f"{name} was traced: prefill, decode and --context are of networks from a config")
        if tokens.length is None:
            said = f"taken to read {longest} tokens: --sequence-length says how many"
            made = at_length(self.three, longest)
            return made._replace(notes=(*made.notes, said))
        return at_length(self.three, tokens.length)


def with_lengths(three: Three) -> Network:
    """The longest of three, which is made for other lengths."""
    return _Made(three)(Tokens())


def three_of(network: Network) -> Three:
    """What such a network is made from; nothing of another."""
    return network.remade.three if isinstance(network.remade, _Made) else ()


def lengths_of(three: Three) -> list[int]:
    """Their lengths."""
    return [network.lengths.queries for network in three if network.lengths is not None]


def _check(length: int, span: tuple[int, int]) -> None:
    if isinstance(length, bool) or not isinstance(length, int) or not span[0] <= length <= span[1]:
        raise BadValue(f"--sequence-length must be a whole number from {span[0]} to {span[1]}, not {length!r}")


def _check_alike(one: Network, other: Network) -> None:
    """Refuse networks that differ in more than sizes."""
    counts = [(len(network.layers), network.lengths.queries) for network in (one, other) if network.lengths]
    if counts[0][0] != counts[1][0]:
        (fewer, short), (more, long) = counts
        raise TraceFailed(
            f"{one.name} has {fewer:,} operations for {short} tokens and {more:,} for {long}: other lengths do not "
            "follow from these, give one length"
        )
    for left, right in zip(one.layers, other.layers):
        if _form(left) != _form(right):
            raise TraceFailed(
                f"{one.name} does other things at other lengths, from {left.name} ({left.kind}) on: give one length"
            )


def _form(layer: Layer) -> Any:
    shapes = [len(shape) for shape in (*layer.inputs, *layer.outputs, *layer.weights)]
    return layer.name, layer.kind, layer.parents, layer.parameters, layer.origin, shapes, sorted(layer.attributes)


def at_length(three: Three, length: int, span: tuple[int, int] | None = None) -> Network:
    """The network at a length, by Lagrange's polynomial through three.

    Raises
    ------
    BadValue
        If the length lies outside, or a size there is not a whole number.
    TraceFailed
        If that is so where the law is tried, of which the `span` is given.
    """
    points = lengths_of(three)
    _check(length, (points[0], points[2]))
    below = [prod(x - other for other in points if other != x) for x in points]
    common = lcm(*below)
    weights = [common // low * prod(length - other for other in points if other != x) for x, low in zip(points, below)]

    def size(*values: int) -> int:
        whole, rest = divmod(sum(weight * value for weight, value in zip(weights, values)), common)
        if rest:
            raise ValueError
        return whole

    layers = []
    for alike in zip(*(network.layers for network in three)):
        one, two, _ = alike
        if one is two or one == two == alike[2]:
            layers.append(one)
            continue
        try:
            fields = ("inputs", "outputs", "weights", "attributes")
            changed = {field: _between(size, *(getattr(layer, field) for layer in alike)) for field in fields}
        except ValueError:
            if span is not None:
                raise TraceFailed(_NO_LAW.format(three[0].name, one.name, *span)) from None
            raise BadValue(
                f"{one.name} of {three[0].name} has no whole size at a length of {length}, as it has at {points[0]}, "
                f"{points[1]} and {points[2]}: its strides divide other lengths"
            ) from None
        layers.append(one._replace(**changed))
    inputs = _between(size, *(network.inputs for network in three))
    return three[2]._replace(layers=tuple(layers), inputs=inputs, lengths=Lengths(length, length), remade=_Made(three))


def _between(size: Callable[..., int], *values: Any) -> Any:
    """What lies between three values that differ in whole numbers only."""
    first = values[0]
    if all(value == first for value in values[1:]):
        return first
    if isinstance(first, dict):
        return {key: _between(size, *(value[key] for value in values)) for key in first}
    if isinstance(first, (tuple, list)):
        return type(first)(_between(size, *parts) for parts in zip(*values))
    if all(isinstance(value, int) for value in values):
        return size(*values)
    raise ValueError


__all__ = ["Three", "at_length", "fit", "lengths_of", "three_of", "trace_inputs", "with_lengths"]

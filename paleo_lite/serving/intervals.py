"""Figures with their 90% intervals, and how independent causes join in the interval of a latency."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ..timing.intervals import Z_90
from .outcomes import request_latencies, summarize

if TYPE_CHECKING:
    from .pools import Simulated


class Figure(msgspec.Struct, frozen=True):
    """A figure with its 90% interval.

    Attributes
    ----------
    value : float or None
        Expected value; None if it does not exist, such as the time per output token of answers of one token.
    low, high : float or None
        Ends of the interval; None if the time model gives none.
    """

    value: float | None
    low: float | None = None
    high: float | None = None


def make_figure(values: Sequence[float | None]) -> Figure:
    """Return the figure with values at low, expected and high iteration times, or at the expected ones only."""
    if len(values) == 1:
        return Figure(_finite(values[0]))
    low, value, high = values
    if low is None or high is None or value is None:
        return Figure(_finite(value))
    return Figure(_finite(value), min(low, value, high), max(low, value, high))


def widen(figure: Figure, below: float, above: float) -> Figure:
    """Return a figure whose interval includes another, independent cause; the logarithms add up in quadrature.

    `below` and `above` are the logarithms of the figure over its ends by the other cause.
    """
    if not figure.value or not (below or above):
        return figure
    low, high = (math.log(end / figure.value) if end else 0.0 for end in (figure.low, figure.high))
    value = figure.value
    return Figure(value, value * math.exp(-math.hypot(low, below)), value * math.exp(math.hypot(high, above)))


def half_width(figure: Figure) -> float:
    """Return half of the interval of a figure, in logarithms; 0 without one."""
    return math.log(figure.high / figure.low) / 2 if figure.low and figure.high else 0.0


def at_most(figure: Figure, limit: float | None) -> Figure:
    """Return a figure whose interval ends at a limit."""
    if figure.high is None or limit is None:
        return figure
    return Figure(figure.value, figure.low, min(figure.high, limit))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


Latencies = Mapping[str, Mapping[str, float | None]]
"""Mean and quantiles of each of `outcomes.LATENCIES`."""


class Cause(NamedTuple):
    """Latencies at the ends of what may be another way."""

    low: Latencies
    high: Latencies
    width: float = 1.0  # what measured servers leave of the interval, in logarithms


def summarize_latencies(simulated: Simulated) -> Latencies:
    """Return the latencies of a simulation."""
    return {name: summarize(values) for name, values in request_latencies(simulated.outcomes).items()}


def join_latencies(
    expected: Latencies, causes: Sequence[Cause], deviations: Mapping[str, float]
) -> dict[str, dict[str, Figure]]:
    """Return the latencies with intervals of all causes, and of deviations of their logarithms beside these."""
    joint: dict[str, dict[str, Figure]] = {}
    for name, parts in expected.items():
        added = Z_90 * deviations.get(name, 0.0)
        joint[name] = {}
        for part, value in parts.items():
            of_causes = [
                narrow(make_figure([cause.low[name][part], value, cause.high[name][part]]), cause.width)
                for cause in causes
            ]
            figure = join_causes(of_causes or [make_figure([value])])
            joint[name][part] = widen(figure, below=added, above=added)
    return joint


def narrow(figure: Figure, width: float) -> Figure:
    """Return a figure with an interval of so much of its width, in logarithms."""
    if width == 1.0 or not figure.value or not figure.low or figure.high is None:
        return figure
    value = figure.value
    return Figure(value, value * (figure.low / value) ** width, value * (figure.high / value) ** width)


def join_causes(figures: Sequence[Figure]) -> Figure:
    """Return a figure whose interval is that of several independent causes, each of which gives one of its own."""
    joint, *others = figures
    for other in others:
        if joint.value and joint.low and other.low and other.high is not None:
            joint = widen(joint, below=math.log(joint.value / other.low), above=math.log(other.high / joint.value))
        else:  # there are no logarithms: no narrower than each
            ends = [end for figure in (joint, other) for end in (figure.low, figure.high) if end is not None]
            joint = Figure(joint.value, min(ends, default=None), max(ends, default=None))
    return joint

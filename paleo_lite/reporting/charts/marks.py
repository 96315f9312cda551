"""What all charts draw alike: numbers on axes, bounds hollow and dashed, names beside points where there is room."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import log10
from typing import Any, NamedTuple

import numpy as np

from .render import SERIES, SHAPES, altair, values

PLAIN = ",~r"
"""How numbers are written on axes: 0.25 and 2,000, neither 250m nor 2k."""

PREFIXED = "datum.value ? format(datum.value, '.3~s') : '0'"
"""How counts and bytes are: 2G, and 0 without a prefix."""

BOUNDS_ARE = "hollow, dashed: bounds of the data sheet, not forecasts"
"""Said below the title of every chart that draws one."""

SERIES_AT_MOST = 12
"""Curves or devices that a chart tells apart."""

LETTER = 6.0
"""Pixels that a letter of a label takes."""

_LINE = 12.0


def without(left_out: Sequence[str]) -> list[str]:
    """A line for each reason why something is not drawn, the first ones in full."""
    reasons = list(dict.fromkeys(left_out))
    more = [f"and {len(reasons) - 2} more"] if len(reasons) > 3 else []
    return [*(f"left out: {why}" for why in (reasons[:2] if more else reasons)), *more]


def hollow(colour: Any, where: str = "datum.bound", dashed: bool = False) -> dict[str, Any]:
    """The channels that make bounds hollow: of points, or, with dashed edges, of bars.

    Parameters
    ----------
    colour : altair Color
        Theirs.
    where : str
        What tells bounds: without anything else a field ``bound`` of the rows.
    """
    alt = altair()
    chosen = {
        "fillOpacity": either(alt.FillOpacityValue, where, 0.1, 1),
        "strokeWidth": either(alt.StrokeWidthValue, where, 1.5, 0),
        "stroke": alt.Stroke(**colour.to_dict()),
    }
    return {**chosen, "strokeDash": either(alt.StrokeDashValue, where, [4, 3], [1, 0])} if dashed else chosen


def either(channel: Any, where: str, yes: Any, no: Any) -> Any:
    """A channel with one value where a condition holds, and another elsewhere.

    Channels are said by their classes everywhere: of a plain string or dict altair looks for the class in its whole
    schema, 20 ms each.
    """
    return channel(no, condition={"test": where, "value": yes})


def told_apart(names: Sequence[str], order: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """A colour and a shape for each name, by its place in `order`, where it has one: the same in every chart of a page.

    Beyond the colours, which repeat, the shapes are others.
    """
    places = [[*dict.fromkeys((*order, *names))].index(name) for name in names]
    count = len(SERIES)
    return [SERIES[at % count] for at in places], [SHAPES[(at + at // count) % len(SHAPES)] for at in places]


class Span(NamedTuple):
    """An axis: from where to where, how many pixels long, and whether it is logarithmic."""

    low: float
    high: float
    pixels: int
    log: bool = True

    def share(self, value: float) -> float:
        """How far along it a value lies, 0 to 1."""
        low, high, value = (log10(each) if self.log else each for each in (self.low, self.high, value))
        return (value - low) / (high - low)

    def value(self, share: float) -> float:
        """What lies so far along it."""
        return self.low * (self.high / self.low) ** share if self.log else self.low + (self.high - self.low) * share


def names_beside(
    rows: Iterable[Mapping[str, Any]],
    x: Span,
    y: Span,
    key: str,
    others: Iterable[Mapping[str, Any]] = (),
    room: int = 8,
) -> tuple[list[Any], int]:
    """Layers of names beside points, those of the first rows first: what would cover another name or point is left out.

    Parameters
    ----------
    rows : iterable of dict
        Points at the fields ``x`` and ``y``, the one to be named first in front.
    key : str
        The field of the name.
    others : iterable of dict
        Points that no name may cover, besides those to be named.
    room : int
        Pixels from a point to its name.

    Returns
    -------
    layers : list of altair charts
    named : int
        How many found room.
    """
    alt, rows = altair(), list(rows)
    at = [(x.share(row["x"]) * x.pixels, (1 - y.share(row["y"])) * y.pixels) for row in (*rows, *others)]
    taken = np.zeros((len(at) + len(rows), 4))  # a box each: left, top, right and bottom; empty ones cover nothing
    taken[: len(at)] = np.reshape(at, (-1, 2))[:, [0, 1, 0, 1]] + [-4, -4, 4, 4]
    ways: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    named = 0
    for row, (left, top) in zip(rows, at):
        wide = LETTER * len(row[key])
        for way in _ways(room):
            align, dx, dy = way
            start = left + dx - {"left": 0.0, "right": wide, "center": wide / 2}[align]
            box = start, top + dy - _LINE / 2, start + wide, top + dy + _LINE / 2
            inside = box[0] >= 0 and box[2] <= x.pixels and box[1] >= 0 and box[3] <= y.pixels
            if inside and not _covers_any(box, taken[: len(at) + named]):
                taken[len(at) + named] = box
                ways.setdefault(way, []).append({"x": row["x"], "y": row["y"], "label": row[key]})
                named += 1
                break
    layers = [
        alt.Chart(values(some)).mark_text(align=align, dx=dx, dy=dy, fontSize=10).encode(
            x=alt.X("x:Q"), y=alt.Y("y:Q"), text=alt.Text("label:N"))
        for (align, dx, dy), some in ways.items()
    ]  # fmt: skip
    return layers, named


def _ways(room: int) -> list[tuple[str, int, int]]:
    """Where a name may stand, the nearest first: beside its point, above or below, then further down and up."""
    near = [("left", room, 0), ("right", -room, 0), ("center", 0, -room - 5), ("center", 0, room + 5)]
    return near + [(side, sign * room, dy) for dy in (15, -15, 30, -30) for side, sign in (("left", 1), ("right", -1))]


def _covers_any(box: tuple[float, ...], taken: np.ndarray[Any, np.dtype[np.float64]]) -> bool:
    left, top, right, bottom = taken.T
    return bool(((box[0] < right) & (left < box[2]) & (box[1] < bottom) & (top < box[3])).any())

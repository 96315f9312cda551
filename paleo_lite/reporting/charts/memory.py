"""Chart of a language model's peak memory by part, over the batch size and over the length of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...timing.memory_ranges import MemoryAt, MemoryRanges
from ...units import format_si
from .marks import SI_LABELS, conditional_value, left_out_lines
from .render import SERIES, altair, inline_data

PARTS = {
    "parameters": SERIES[0],
    "frozen parameters": SERIES[5],
    "gradients": SERIES[1],
    "optimizer": SERIES[4],
    "activations": SERIES[2],
    "logits": SERIES[6],
    "cache": SERIES[3],
    "workspace": SERIES[7],
    "inputs": "#B08D74",
    "scratch": "#8C8C8C",
}
"""Colour of each part of the memory, from the bottom to the top of a bar."""

_PANEL_WIDTH, _HEIGHT = 330, 280
_HIGHEST_RATIO = 2.0
"""Largest drawn memory over the usable memory; longer bars are cut off at the top of the axis, 5% above it."""

_VISIBLE_SHARE = 0.002
"""Least share of the largest bar with which a part is drawn; a smaller one is thinner than a pixel."""


def memory_chart(ranges: MemoryRanges) -> Any:
    """Draw stacked bars of the parts of the memory over the batch size and over the tokens, and the device's memory.

    Bars above the usable memory are faint.
    """
    alt = altair()
    points = [*ranges.over_batch, *ranges.over_tokens]
    usable_bytes = points[0].fit.usable_bytes
    largest = max(point.fit.memory.total_bytes for point in points)
    highest = 1.05 * min(max(usable_bytes, largest), _HIGHEST_RATIO * usable_bytes)
    sizes = {name: max(dict(point.fit.memory.rows()).get(name, 0) for point in points) for name in PARTS}
    names = [name for name, size in sizes.items() if size > _VISIBLE_SHARE * highest]
    tokens, batch_size = ranges.over_batch[0].tokens, ranges.over_tokens[0].batch_size
    noun = "tokens in the KV cache" if ranges.phase == "decode" else "tokens per sequence"
    panels = [
        _panel(alt, ranges.over_batch, names, "batch_size", f"batch size, with {tokens:,} {noun}", highest),
        _panel(alt, ranges.over_tokens, names, "tokens", f"{noun}, with batch {batch_size}", highest),
    ]
    lines = [
        f"{ranges.network} on {ranges.gpu_name}, {ranges.precision} {ranges.phase}",
        f"line: {format_si(usable_bytes, 'B', 3)} of usable memory; faint: does not fit",
    ]
    if largest > highest:
        lines[-1] += f"; bars are cut off at {format_si(highest, 'B', 3)}"
    hidden = [name for name, size in sizes.items() if size and name not in names]
    if hidden:
        lines.append(f"too small to draw: {', '.join(hidden)}")
    lines += left_out_lines(ranges.left_out)
    return alt.hconcat(*panels).properties(title=alt.Title(_memory_title(ranges), subtitle=lines))


def _memory_title(ranges: MemoryRanges) -> str:
    """Return the largest batch that fits at the fixed number of tokens."""
    first = ranges.over_batch[0]
    largest = first.fit.largest_batch
    if largest is None:
        return f"Not even one sequence of {first.tokens:,} tokens fits into memory"
    if largest == 1:
        return f"Only one sequence of {first.tokens:,} tokens fits into memory"
    return f"Up to {largest:,} sequences of {first.tokens:,} tokens fit into memory"


def _panel(alt: Any, points: Sequence[MemoryAt], names: Sequence[str], key: str, title: str, highest: float) -> Any:
    """Draw a bar per point; `key` is the attribute on the axis."""
    rows = []
    for point in points:
        parts = dict(point.fit.memory.rows())
        total_bytes = point.fit.memory.total_bytes
        for order, name in enumerate(names):
            rows.append(
                {
                    "value": getattr(point, key),
                    "part": "KV cache" if name == "cache" else name,
                    "order": order,
                    "bytes": parts.get(name, 0),
                    "size": format_si(parts.get(name, 0), "B", 3),
                    "total": format_si(total_bytes, "B", 3),
                    "unfit": not point.fit.fits,
                }
            )
    x = alt.X("value:O", title=title, sort=None, axis=alt.Axis(labelAngle=0, labelOverlap=True, format=",d"))
    scale = alt.Scale(domain=[0, highest], nice=False)
    y = alt.Y("bytes:Q", title="peak memory (B)", scale=scale, axis=alt.Axis(labelExpr=SI_LABELS, tickCount=6))
    labels = ["KV cache" if name == "cache" else name for name in names]
    colours = alt.Scale(domain=labels, range=[PARTS[name] for name in names])
    bars = (
        alt.Chart(inline_data(rows))
        .mark_bar(clip=True)
        .encode(
            x=x,
            y=y,
            color=alt.Color("part:N", title=None, scale=colours, sort=labels),
            opacity=conditional_value(alt.OpacityValue, "datum.unfit", 0.35, 1),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("value:O", title="batch" if key == "batch_size" else "tokens"),
                alt.Tooltip("part:N"),
                alt.Tooltip("size:N"),
                alt.Tooltip("total:N"),
            ],
        )
    )
    limit = alt.Chart(inline_data([{"bytes": points[0].fit.usable_bytes}])).mark_rule(strokeDash=[5, 4])
    return alt.layer(bars, limit.encode(y=alt.Y("bytes:Q"))).properties(width=_PANEL_WIDTH, height=_HEIGHT)

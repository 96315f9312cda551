"""Matrix products to look at: the bound, the tiles, and what putting several into one gains."""

from __future__ import annotations

from ..result import BOUND
from ..timing import describe
from ..timing.gemm import GemmTimes
from ..units import format_si, say_interval
from .document import Column, Document, Table, say_percent, say_size, say_time, say_whole_percent


def gemm_page(times: GemmTimes) -> Document:
    """The page of a product, or several."""
    first, *others = times.ways
    several = f"{times.products} products" if times.products > 1 else "one product"
    where = "" if times.device is None else f" on {times.device.name}, {times.precision}"
    headline = f"{several} of {times.m} x {times.k} by {times.k} x {times.n}{where}: {format_si(first.time_s, 's')}"
    if first.interval is not None:
        headline += f" ({say_interval(first.interval)} at 90%)"
    if others:
        best = min(others, key=lambda way: way.time_s)
        gain = first.time_s / best.time_s
        headline += f"; {best.name} {format_si(best.time_s, 's')}, {gain:.2f} x as fast"
    columns = [
        Column("way", "way", left=True),
        Column("launches", "launches"),
        Column("size", "M x N x K", left=True),
        Column("bytes", "bytes", say_size, spare=2),
        Column("tiles", "tiles"),
        Column("waves", "waves"),
        Column("filled", "filled", say_whole_percent),
        Column("time_s", "time", say_time),
        Column("share_of_peak", "share\nof peak", say_percent, spare=1),
        Column("gain", "gain", "{:.2f} x".format),
    ]
    rows = []
    for way, row in zip(times.ways, times.rows()):
        groups = f"{way.groups} of " if way.groups > 1 else ""
        rows.append({**row, "size": f"{groups}{way.m} x {way.n} x {way.k}"})
    return Document(headline, _facts(times), [Table("", columns, rows)], times.notes)


def _facts(times: GemmTimes) -> list[tuple[str, str]]:
    bound = f"{format_si(times.peak_time_s, 's', 3)} for each product at peak: "
    bound += f"{format_si(times.flops, 'FLOP')} (2 M N K) / {format_si(times.peak_per_s, 'FLOP/s')}"
    facts = [(BOUND, bound), ("peak", times.peak_words)]
    moved = f"{format_si(times.bytes, 'B')} for each product, {_plain(times.intensity)} FLOP per byte"
    if times.ridge_point is not None:
        bounded = "arithmetic" if times.intensity >= times.ridge_point else "memory"
        moved += f"; the ridge point is {_plain(times.ridge_point)}, so {bounded} bounds it"
    facts.append(("memory", moved))
    tiling = times.ways[0].tiling
    if tiling is not None:
        waves = f"{tiling.waves} wave{'s' if tiling.waves > 1 else ''}"
        facts.append(
            (
                "tiles",
                f"{tiling.tiles} of {tiling.rows} x {tiling.columns} on {tiling.multiprocessors} multiprocessors: "
                f"{waves}, {tiling.last} tiles in the last; {tiling.covered:.0%} of their area is output",
            )
        )
    facts.append(("time model", describe(times.model)))
    return facts


def _plain(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"

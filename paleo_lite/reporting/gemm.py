"""Document of matrix products: bound, tiles, and the gain of merging several products into one."""

from __future__ import annotations

from ..result import LOWER_BOUND_FACT
from ..text import format_plural
from ..timing.gemm import GemmTable, GemmTimes
from ..units import format_si
from .answers import format_at_90
from .columns import find_column, select_columns
from .document import Document, Table


def gemm_page(times: GemmTimes) -> Document:
    """Return the document of one or several matrix products."""
    first, *others = times.variants
    products = f"{times.products} products" if times.products > 1 else "one product"
    device = "" if times.device is None else f" on {times.device.name}, {times.precision}"
    headline = f"{products} of {times.m} x {times.k} by {times.k} x {times.n}{device}: {format_si(first.time_s, 's')}"
    headline += format_at_90(first.interval)
    if others:
        best = min(others, key=lambda variant: variant.time_s)
        gain = first.time_s / best.time_s
        headline += f"; {best.name} {format_si(best.time_s, 's')}, speed-up {gain:.2f}"
    columns = select_columns(
        "way",
        "launches",
        "size",
        "bytes",
        "tiles",
        "waves",
        "filled",
        "time_s",
        find_column("flops_efficiency", key="share_of_peak"),
        find_column("speedup", key="gain"),
        drop=("launches", "bytes", "share_of_peak"),
    )
    rows = []
    for variant, row in zip(times.variants, times.rows()):
        groups = f"{variant.groups} of " if variant.groups > 1 else ""
        rows.append({**row, "size": f"{groups}{variant.m} x {variant.n} x {variant.k}"})
    return Document(headline, _facts(times), [Table("", columns, rows)], times.notes)


def gemm_table_page(table: GemmTable) -> Document:
    """Return the document of matrix products of several sizes, a row for each way of each."""
    first = table.products[0]
    device = "at a given peak" if first.device is None else f"on {first.device.name}, {first.precision}"
    rows = table.rows()
    fastest = max(rows, key=lambda row: row["share_of_peak"])
    headline = (
        f"products of {len(table.products)} sizes {device}: at most {fastest['share_of_peak']:.0%} of the peak, with "
        f"{fastest['m']} x {fastest['k']} by {fastest['k']} x {fastest['n']}"
    )
    columns = select_columns(
        "m",
        "n",
        "k",
        "way",
        "time_s",
        "bytes",
        "waves",
        find_column("flops_efficiency", key="share_of_peak"),
        drop=("bytes", "waves"),
    )
    facts = [("peak", first.peak_description), _model_fact(first)]
    notes = tuple(dict.fromkeys(note for times in table.products for note in times.notes))
    return Document(headline, facts, [Table("", columns, rows)], notes)


def _model_fact(times: GemmTimes) -> tuple[str, str]:
    return "time model", f"{times.model} ({times.label})" if times.label else times.model


def _facts(times: GemmTimes) -> list[tuple[str, str]]:
    bound = f"{format_si(times.peak_time_s, 's', 3)} per product at peak: "
    bound += f"{format_si(times.flops, 'FLOP')} (2 M N K) / {format_si(times.peak_per_s, 'FLOP/s')}"
    facts = [(LOWER_BOUND_FACT, bound), ("peak", times.peak_description)]
    traffic = f"{format_si(times.bytes, 'B')} per product, {_format_intensity(times.intensity)} FLOP/byte"
    if times.ridge_point is not None:
        limit = "compute" if times.intensity >= times.ridge_point else "memory"
        traffic += f" (ridge point {_format_intensity(times.ridge_point)}): {limit}-bound"
    facts.append(("memory", traffic))
    tiling = times.variants[0].tiling
    if tiling is not None:
        tiles, waves = format_plural(tiling.tiles, "tile"), format_plural(tiling.waves, "wave")
        text = (
            f"{tiles} of {tiling.rows} x {tiling.columns} on {tiling.multiprocessors} SMs: "
            f"{waves}, {format_plural(tiling.last_wave_tiles, 'tile')} in the last; "
            f"output covers {tiling.tile_efficiency:.0%} of their area"
        )
        facts.append(("tiles", text))
    facts.append(_model_fact(times))
    return facts


def _format_intensity(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"

"""A fitted PPP to look at: overall, by pass and kind of layers, and how to use it."""

from __future__ import annotations

import math

import msgspec

from ..calibration.ppp import PppCalibration
from ..timing.terms import LEVEL, QUANTILES
from .document import Column, Document, Table


def ppp_page(found: PppCalibration) -> Document:
    """PPP with its interval, what it is in each pass and kind of layers, and what it was fitted to."""
    networks = found.provenance.networks
    batches = sorted({run.batch_size for run in found.runs})
    reach = math.exp(QUANTILES[LEVEL] * found.deviation)
    sizes = f"batch {batches[0]}" + (f" to {batches[-1]}" if len(batches) > 1 else "")
    facts = [
        ("of", f"{', '.join(networks)} at {sizes}, {_counted(found.provenance.points)}"),
        ("of another network", f"{found.ppp / reach:.2g} to {found.ppp * reach:.2g} ({LEVEL:.0%})"),
        ("sources", ", ".join(found.provenance.sources) or "-"),
        ("to use it", f"--ppp {found.ppp:.3g}, or --calibration with the file that -o writes, for intervals"),
    ]
    tables = [_shares(found)] if found.shares else []
    tables.append(
        Table(
            "What it was fitted to",
            [
                Column("network", "network", left=True),
                Column("batch_size", "batch size"),
                Column("phase", "phase", left=True),
                Column("at_peak_s", "at peak", lambda value: f"{1e3 * value:.4g} ms"),
                Column("measured_s", "measured", lambda value: f"{1e3 * value:.4g} ms"),
                Column("ppp", "PPP", lambda value: f"{value:.3g}"),
            ],
            [{**msgspec.to_builtins(run), "ppp": run.ppp} for run in found.runs],
        )
    )
    return Document(
        f"PPP of {found.device} in {found.precision}: {found.ppp:.3g} "
        f"({found.low:.3g} to {found.high:.3g} at {LEVEL:.0%})",
        facts,
        tables,
        _notes(found),
        tables[-1],
    )


def _shares(found: PppCalibration) -> Table:
    return Table(
        "By pass and kind of layers",
        [
            Column("part", "pass", left=True),
            Column("kind", "kind", left=True),
            Column("ppp", "PPP", lambda value: f"{value:.3g}"),
            Column("share", "share of time", lambda value: f"{value:.1%}", bar=True),
        ],
        [msgspec.to_builtins(row) for row in found.shares],
    )


def _counted(points: int) -> str:
    return f"{points} measurement{'s' if points > 1 else ''}"


def _notes(found: PppCalibration) -> list[str]:
    notes = ["PPP is (FLOPs / peak + bytes / bandwidth) / measured time; the share of peak FLOP/s is another number"]
    for row in found.shares:
        if row.by_algorithm:
            ways = ", ".join(f"{ppp:.3g} as {name} counts" for name, ppp in row.by_algorithm.items())
            notes.append(
                f"{row.kind}, {row.part}: above 1 by the direct count, because the library computes less: {ways}"
            )
    return notes

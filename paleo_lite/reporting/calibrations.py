"""Calibrations to look at, their validation, and measurements that would narrow an answer."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import numpy as np

from ..calibration.ppp import PppCalibration
from ..calibration.store import AnyCalibration, Calibration
from ..calibration.suggest import Suggestions
from ..calibration.validate import Validation, explain
from ..timing.models import LEVEL, QUANTILES
from ..units import format_si, say_interval
from .document import (
    Column,
    Document,
    Table,
    raw_table,
    say_many,
    say_percent,
    say_three_digits,
    say_time,
    say_time_briefly,
    say_whole_percent,
)


def calibration_page(calibration: Calibration) -> Document:
    """Every parameter with its unit, interval, and how far the measurements moved it."""
    rows = [
        {
            "name": name,
            **msgspec.to_builtins(parameter),
            "would_help": "" if parameter.moved > 0.3 else _HELP.get(name, "more networks that spend their time there"),
        }
        for name, parameter in calibration.parameters.items()
    ]
    table = Table(
        "Parameters",
        [
            Column("name", "parameter", left=True),
            Column("value", "value", lambda value: f"{value:.4g}"),
            Column("low", "from", say_three_digits),
            Column("high", "to (90%)", say_three_digits),
            Column("unit", "unit", left=True, fold=True, spare=1),
            Column("moved", "learnt", say_whole_percent),
            Column("would_help", "held at its prior; would help", left=True, fold=True, spare=2),
        ],
        rows,
    )
    source = calibration.provenance
    networks = source.networks[0] if len(source.networks) == 1 else f"{len(source.networks)} networks"
    facts = [
        ("learnt from", f"{source.points} measurements of {networks}: {', '.join(source.phases)}"),
        ("sources", ", ".join(source.sources) or "-"),
        ("scatter", f"{calibration.scatter:.1%} of single measurements around the model"),
    ]
    if calibration.held_out_error is not None:
        facts.append(
            ("held out", f"{calibration.held_out_error:.1%} mean absolute error, each network from the others")
        )
    notes = [f"furthest from the fit: {text}" for text in calibration.worst]
    return Document(f"{calibration.device} in {calibration.precision}", facts, [table], notes, table)


_HELP = {
    "efficiency_conv_grouped": "networks with grouped convolutions, such as resnext50_32x4d",
    "efficiency_conv_depthwise": "networks with depthwise convolutions, such as mobilenet_v2",
    "efficiency_attention": "transformers, such as vit_b_16",
    "efficiency_gemm": "networks with large linear layers, such as vgg16, at large batch",
    "factor_data_gradient": "backward passes",
    "factor_weight_gradient": "backward passes",
    "overhead_backward_s": "backward passes of small networks",
    "overhead_s": "small networks at batch 1",
    "floor_s": "small networks",
    "half_3x3": "networks with 3x3 convolutions at small and at large batch",
    "overhead_gradient_s": "training of small networks",
    "half": "networks at batch 1 and at large batch",
    "step_s": "small networks at several batch sizes",
}


def calibrations_page(calibrations: Mapping[str, AnyCalibration]) -> Document:
    """All shipped calibrations, a line each."""
    rows = [
        {
            "name": name,
            "points": found.provenance.points,
            "phases": ", ".join(found.provenance.phases),
            "held_out_error": getattr(found, "held_out_error", None),
            "sources": ", ".join(found.provenance.sources),
        }
        for name, found in calibrations.items()
    ]
    table = Table(
        "",
        [
            Column("name", "name", left=True),
            Column("points", "points"),
            Column("held_out_error", "held-out error", say_percent),
            Column("phases", "phases", left=True, fold=True, spare=1),
            Column("sources", "sources", left=True, fold=True, spare=2),
        ],
        rows,
    )
    return Document(f"{len(rows)} calibrations", (), [table])


def validation_page(validation: Validation) -> Document:
    """The table of truth, and the points it is worst at."""
    rows, points = validation.rows, validation.points
    table = Table("Held-out error", _TRUTH, [{**msgspec.to_builtins(row), **row.baselines} for row in rows])
    worst = [
        {
            **msgspec.to_builtins(point.measurement),
            "measured_s": point.measurement.time_s,
            "predicted_s": point.predicted_s,
            "error": point.error,
            "why": explain(point, points),
        }
        for point in sorted(points, key=lambda point: -abs(point.error))[:10]
    ]
    mean = sum(row.mape for row in rows) / len(rows)
    headline = f"leave one {rows[0].split} out: {mean:.1%} mean absolute error over {len(rows)} groups of measurements"
    facts = [
        (phase, f"{np.mean([r.mape for r in rows if r.phase == phase]):.1%} mean absolute error")
        for phase in sorted({row.phase for row in rows})
    ]
    inside = sum(row.coverage_90 * row.points for row in rows) / sum(row.points for row in rows)
    facts.append(("within", f"{inside:.0%} of {len(points)} points lie in their 90% interval"))
    return Document(headline, facts, [table, Table("Worst points", _WORST, worst)], (), table)


_TRUTH = [
    Column("gpu", "gpu", left=True),
    Column("precision", "precision", left=True),
    Column("phase", "phase", left=True),
    Column("points", "points"),
    Column("mape", "MAPE", say_percent),
    Column("median", "median", say_percent, spare=3),
    Column("p90", "90th\npercentile", say_percent, spare=4),
    Column("bias", "bias", "{:+.1%}".format, spare=5),
    Column("rank_correlation", "rank\ncorrelation", "{:.3f}".format, spare=7),
    Column("coverage_80", "within\n80%", say_whole_percent, spare=6),
    Column("coverage_90", "within\n90%", say_whole_percent),
    Column("width_90", "width", say_percent, spare=8),
    Column("one_ppp", "one PPP", say_percent, spare=2),
    Column("roofline", "roofline", say_percent, spare=2),
    Column("per_class_ppp", "PPP per\nclass", say_percent, spare=1),
    Column("source", "source", left=True, fold=True, spare=9),
]

_WORST = [
    Column("network", "network", left=True),
    Column("gpu", "gpu", left=True),
    Column("precision", "precision", left=True),
    Column("phase", "phase", left=True, spare=1),
    Column("measured_s", "measured", say_time),
    Column("predicted_s", "predicted", say_time),
    Column("error", "error", "{:+.0%}".format),
    Column("why", "why", left=True, fold=True, spare=2),
]


def ppp_page(found: PppCalibration) -> Document:
    """PPP with its interval, what it is in each pass and kind of layers, and what it was fitted to."""
    networks, points = found.provenance.networks, found.provenance.points
    batches = sorted({run.batch_size for run in found.runs})
    reach = math.exp(QUANTILES[LEVEL] * found.deviation)
    sizes = f"batch {batches[0]}" + (f" to {batches[-1]}" if len(batches) > 1 else "")
    facts = [
        ("of", f"{', '.join(networks)} at {sizes}, {say_many(points, 'measurement')}"),
        ("of another network", f"{found.ppp / reach:.2g} to {found.ppp * reach:.2g} ({LEVEL:.0%})"),
        ("sources", ", ".join(found.provenance.sources) or "-"),
        ("to use it", f"--ppp {found.ppp:.3g}, or --calibration with the file that -o writes, for intervals"),
    ]
    tables = []
    if found.shares:
        columns = [
            Column("part", "pass", left=True),
            Column("kind", "kind", left=True),
            Column("ppp", "PPP", say_three_digits),
            Column("share", "share of time", say_percent, bar=True),
        ]
        tables.append(Table("By pass and kind of layers", columns, msgspec.to_builtins(found.shares)))
    tables.append(
        Table(
            "What it was fitted to",
            [
                Column("network", "network", left=True),
                Column("batch_size", "batch size"),
                Column("phase", "phase", left=True),
                Column("at_peak_s", "at peak", lambda value: f"{1e3 * value:.4g} ms"),
                Column("measured_s", "measured", lambda value: f"{1e3 * value:.4g} ms"),
                Column("ppp", "PPP", say_three_digits),
            ],
            [{**msgspec.to_builtins(run), "ppp": run.ppp} for run in found.runs],
        )
    )
    return Document(
        f"PPP of {found.device} in {found.precision}: {found.ppp:.3g} "
        f"({found.low:.3g} to {found.high:.3g} at {LEVEL:.0%})",
        facts,
        tables,
        _ppp_notes(found),
        tables[-1],
    )


def _ppp_notes(found: PppCalibration) -> list[str]:
    notes = ["PPP is (FLOPs / peak + bytes / bandwidth) / measured time; the share of peak FLOP/s is another number"]
    for row in found.shares:
        if row.by_algorithm:
            ways = ", ".join(f"{ppp:.3g} as {name} counts" for name, ppp in row.by_algorithm.items())
            notes.append(
                f"{row.kind}, {row.part}: above 1 by the direct count, because the library computes less: {ways}"
            )
    return notes


def suggestions_page(found: Suggestions) -> Document:
    """What to measure, what that takes, and what is known of the answer after it."""
    keys = ["network", "batch_size", "phase", "time_s", "measuring_s", "low_s", "high_s", "factor"]
    rows = [
        {**msgspec.to_builtins(each), **dict(zip(("low_s", "high_s"), each.interval or ()))}
        for each in found.suggestions
    ]
    before = {"network": "(nothing yet)", "interval": found.interval, "factor": found.factor}
    columns = [
        Column("number", ""),
        Column("network", "measure", left=True),
        Column("batch_size", "batch"),
        Column("phase", "phase", left=True),
        Column("time_s", "expected\nstep", say_time_briefly, spare=1),
        Column("measuring_s", "measuring", say_time_briefly),
        *([Column("interval", "then at 90%", say_interval)] if found.interval else []),
        Column("factor", "high / low", "{:.2f}".format),
    ]
    table = Table("", columns, [before, *({**row, "number": place} for place, row in enumerate(rows, 1))])
    about = found.network or "typical networks"
    batch = "" if found.batch_size is None else f", batch {found.batch_size}"
    expected = [] if found.time_s is None else [("expected", format_si(found.time_s, "s"))]
    return Document(
        f"{say_many(len(rows), 'measurement')} would narrow {about} on {found.gpu}, {found.precision} "
        f"{found.phase}{batch}: the high end of the 90% interval from {found.factor:.2f} to "
        f"{found.suggestions[-1].factor:.2f} times the low end",
        [
            *expected,
            ("known so far", found.known),
            ("chosen", f"from {found.candidates} steps, each after those above it, whatever times they will give"),
            ("measure", found.command),
            ("then", f"paleo-lite calibrate measured.csv --gpu {found.gpu} --precision {found.precision} -o mine.toml"),
        ],
        [table],
        (),
        raw_table(rows, keys),
    )

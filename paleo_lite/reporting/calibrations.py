"""Documents of calibrations, of their validation, and of suggested measurements."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import numpy as np

from ..calibration.accuracy import coverage, mean_error
from ..calibration.ppp import PppCalibration
from ..calibration.store import Calibration, PowerFit
from ..calibration.suggest import Suggestions
from ..calibration.validate import Validation, explain_error
from ..text import format_plural
from ..timing.intervals import INTERVAL_LEVEL, QUANTILES
from ..units import format_si
from .columns import find_column, select_columns
from .document import (
    Document,
    Table,
    raw_table,
)


def calibration_page(calibration: Calibration) -> Document:
    """Return the parameters of a calibration with their unit, interval and posterior shift from the prior."""
    rows = []
    for name, parameter in calibration.parameters.items():
        is_informed = parameter.moved > 0.3
        suggestion = "" if is_informed else _USEFUL_MEASUREMENTS.get(name, "more networks dominated by these layers")
        rows.append({"name": name, **msgspec.to_builtins(parameter), "would_help": suggestion})
    table = Table(
        "Parameters",
        select_columns(
            find_column("parameter", key="name"),
            find_column("value", show=lambda value: f"{value:.4g}", left=False),
            "low",
            "high",
            "unit",
            "moved",
            "would_help",
            drop=("would_help", "unit"),
        ),
        rows,
    )
    source = calibration.provenance
    networks = source.networks[0] if len(source.networks) == 1 else f"{len(source.networks)} networks"
    facts = [
        ("fitted to", f"{format_plural(source.points, 'measurement')} of {networks}: {', '.join(source.phases)}"),
        ("sources", ", ".join(source.sources) or "-"),
        ("scatter", f"{calibration.scatter:.1%} relative standard deviation of single measurements"),
    ]
    if calibration.held_out_error is not None:
        facts.append(("held out", f"{calibration.held_out_error:.1%} mean absolute error (leave one network out)"))
    if calibration.power is not None:
        facts.append(("power", _power_text(calibration.power)))
    notes = [*source.notes, *(f"largest residual: {text}" for text in calibration.worst)]
    return Document(f"{calibration.device} in {calibration.precision}", facts, [table], notes, table)


def _power_text(power: PowerFit) -> str:
    """Return the errors of a calibration of power, with and without the measured watts."""
    text = f"fitted to {format_plural(power.points, 'measured power')}: {power.error:.1%} off"
    text += f", {power.prior_error:.1%} without them"
    if power.held_out_error is not None:
        text += f", {power.held_out_error:.1%} with each network left out"
    return text


_USEFUL_MEASUREMENTS = {
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


def calibrations_page(calibrations: Mapping[str, Calibration | PppCalibration]) -> Document:
    """Return the list of shipped calibrations."""
    rows = [
        {
            "name": name,
            "points": calibration.provenance.points,
            "phases": ", ".join(calibration.provenance.phases),
            "held_out_error": getattr(calibration, "held_out_error", None),
            "sources": ", ".join(calibration.provenance.sources),
        }
        for name, calibration in calibrations.items()
    ]
    table = Table(
        "",
        select_columns("name", "points", "held_out_error", "phases", "sources", drop=("sources", "phases")),
        rows,
    )
    return Document(f"{len(rows)} calibrations", (), [table])


def validation_page(validation: Validation) -> Document:
    """Return the held-out errors per group and the points with the largest errors."""
    rows, points = validation.rows, validation.points
    table = Table("Held-out error", _ERROR_COLUMNS, [{**msgspec.to_builtins(row), **row.baselines} for row in rows])
    worst = [
        {
            **msgspec.to_builtins(point.measurement),
            "measured_s": point.measurement.time_s,
            "predicted_s": point.predicted_s,
            "error": point.error,
            "why": explain_error(point, points),
        }
        for point in sorted(points, key=lambda point: -abs(point.error))[:10]
    ]
    error = f"{mean_error(rows):.1%} mean absolute error"
    headline = f"leave one {rows[0].split} out: {error} over {len(rows)} groups of measurements"
    facts = [
        (phase, f"{np.mean([r.mape for r in rows if r.phase == phase]):.1%} mean absolute error")
        for phase in sorted({row.phase for row in rows})
    ]
    facts.append(("coverage", f"{coverage(rows):.0%} of {len(points)} points lie in their 90% interval"))
    ratios = [row.sharpness_90 for row in rows if row.sharpness_90 is not None]
    if ratios:
        facts.append(("sharpness", f"a ratio of {np.median(ratios):.2f} between its ends, in the median of the groups"))
    tables = [table, Table("Worst points", _WORST_COLUMNS, worst)]
    if validation.powers:
        powers = [msgspec.to_builtins(row) for row in validation.powers]
        tables.append(Table("Held-out watts, at measured times", _POWER_COLUMNS, powers))
    return Document(headline, facts, tables, (), table)


_POWER_COLUMNS = select_columns(
    "gpu", "precision", "points", "mape", "median", "bias", "coverage_90", "width_90", "shipped"
)


_ERROR_COLUMNS = select_columns(
    "gpu", "precision", "phase", "points", "mape", "median", find_column("p90_error", key="p90"), "bias",
    "rank_correlation", "coverage_80", "coverage_90", "width_90", "sharpness_90", "one_ppp", "roofline",
    "per_class_ppp", "source",
    drop=(
        "source", "width_90", "sharpness_90", "rank_correlation", "coverage_80", "bias", "p90", "median", "one_ppp",
        "roofline", "per_class_ppp",
    ),
)  # fmt: skip

_WORST_COLUMNS = select_columns(
    "network", "gpu", "precision", "phase", "measured_s", "predicted_s", "error", "why", drop=("why", "phase")
)


def ppp_page(calibration: PppCalibration) -> Document:
    """Return a fitted PPP with its interval, its value per pass and kind of layer, and the measurements."""
    networks, points = calibration.provenance.networks, calibration.provenance.points
    batches = sorted({run.batch_size for run in calibration.runs})
    reach = math.exp(QUANTILES[INTERVAL_LEVEL] * calibration.deviation)
    sizes = f"batch {batches[0]}" + (f" to {batches[-1]}" if len(batches) > 1 else "")
    facts = [
        ("fitted to", f"{', '.join(networks)} at {sizes}, {format_plural(points, 'measurement')}"),
        ("another network", f"{calibration.ppp / reach:.2g} to {calibration.ppp * reach:.2g} ({INTERVAL_LEVEL:.0%})"),
        ("sources", ", ".join(calibration.provenance.sources) or "-"),
        ("usage", f"--ppp {calibration.ppp:.3g}; for intervals, --calibration with the file written by -o"),
    ]
    tables = []
    if calibration.shares:
        columns = select_columns(find_column("pass", key="part"), "kind", "ppp", "share", bars=("share",))
        tables.append(Table("By pass and kind of layer", columns, msgspec.to_builtins(calibration.shares)))
    tables.append(
        Table(
            "Measurements",
            select_columns("network", "batch_size", "phase", "at_peak_s", "measured_s", "ppp"),
            [{**msgspec.to_builtins(run), "ppp": run.ppp} for run in calibration.runs],
        )
    )
    return Document(
        f"PPP of {calibration.device} in {calibration.precision}: {calibration.ppp:.3g} "
        f"({calibration.low:.3g} to {calibration.high:.3g} at {INTERVAL_LEVEL:.0%})",
        facts,
        tables,
        _ppp_notes(calibration),
        tables[-1],
    )


def _ppp_notes(calibration: PppCalibration) -> list[str]:
    notes = [
        *calibration.provenance.notes,
        "PPP is (FLOPs / peak + bytes / bandwidth) / measured time; it differs from the share of peak FLOP/s",
    ]
    for row in calibration.shares:
        if row.by_algorithm:
            algorithms = ", ".join(f"{ppp:.3g} with the FLOPs of {name}" for name, ppp in row.by_algorithm.items())
            reason = "above 1 with direct FLOPs, as the library uses a faster algorithm"
            notes.append(f"{row.kind}, {row.part}: {reason}: {algorithms}")
    return notes


def suggestions_page(suggestions: Suggestions) -> Document:
    """Return the suggested measurements, their duration, and the interval expected after each."""
    keys = ["network", "batch_size", "phase", "time_s", "measuring_s", "low_s", "high_s", "factor"]
    rows = [
        {**msgspec.to_builtins(step), **dict(zip(("low_s", "high_s"), step.interval or ()))}
        for step in suggestions.suggestions
    ]
    before = {"network": "(current)", "interval": suggestions.interval, "factor": suggestions.factor}
    columns = select_columns(
        "number",
        "network",
        "batch_size",
        "phase",
        find_column("predicted_s", key="time_s"),
        "measuring_s",
        *(["interval"] if suggestions.interval else []),
        "factor",
        drop=("time_s",),
        short=True,
    )
    table = Table("", columns, [before, *({**row, "number": number} for number, row in enumerate(rows, 1))])
    target = suggestions.network or "typical networks"
    batch = "" if suggestions.batch_size is None else f", batch {suggestions.batch_size}"
    expected = [] if suggestions.time_s is None else [("expected", format_si(suggestions.time_s, "s"))]
    title = (
        f"{format_plural(len(rows), 'measurement')} would narrow {target} on {suggestions.gpu}, "
        f"{suggestions.precision} {suggestions.phase}{batch}: ratio of the ends of the 90% interval from "
        f"{suggestions.factor:.2f} to {suggestions.suggestions[-1].factor:.2f}"
    )
    device_options = f"--gpu {suggestions.gpu} --precision {suggestions.precision}"
    return Document(
        title,
        [
            *expected,
            ("current basis", suggestions.known),
            ("chosen", f"greedily from {suggestions.candidates} candidate steps, independent of the measured times"),
            ("measure", suggestions.command),
            ("then", f"paleo-lite calibrate measured.csv {device_options} -o mine.toml"),
        ],
        [table],
        (),
        raw_table(rows, keys),
    )

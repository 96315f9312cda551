"""A measured machine to look at: what it does, and how predictions of unseen networks held."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np

from ..calibration.measurements import Measurement
from ..calibration.store import Calibration
from ..calibration.validate import Point
from ..counting import count
from ..measurement.clock import Timing
from ..measurement.running import Probed
from ..result import Result
from ..timing.models import LEVEL, QUANTILES
from ..units import format_si
from .document import (
    Column,
    Document,
    Table,
    raw_table,
    say_bandwidth,
    say_many,
    say_percent,
    say_time,
    say_whole_percent,
    say_yes_or_no,
)


class TimedStep(msgspec.Struct, frozen=True):
    """A measured step, and how steady it was."""

    measurement: Measurement
    timing: Timing


class Measured(Result, msgspec.Struct, frozen=True, eq=False):
    """Everything that measuring a machine gave.

    Attributes
    ----------
    bandwidth_bytes_per_s, peak_per_s, launch_s : float
        Fastest stream, fastest matrix product, shortest operation.
    fitted, unseen : list of TimedStep
        Steps that were learnt from, and those that were predicted.
    points : list of Point
        The unseen beside their predictions.
    left_out : list of str
        Steps that found no room, in words.
    files : list of str
        What was written.
    busy : str
        What there is to say of other work on the machine; empty where there was none.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.measure:measured_page"

    device: str
    name: str
    precision: str
    software: str
    bandwidth_bytes_per_s: float
    peak_per_s: float
    launch_s: float
    probed: Sequence[Probed]
    fitted: Sequence[TimedStep]
    unseen: Sequence[TimedStep]
    points: Sequence[Point]
    calibration: Calibration
    left_out: Sequence[str]
    files: Sequence[str]
    busy: str = ""

    @property
    def were_chosen(self) -> bool:
        """Whether the steps were named: they are fitted, beside what was expected of them beforehand."""
        return self.fitted is self.unseen

    @property
    def mape(self) -> float:
        """Mean absolute relative error of the unseen steps."""
        return float(np.mean([abs(point.error) for point in self.points]))

    @property
    def within(self) -> int:
        """How many unseen steps lie in their 90% interval."""
        return sum(row["within"] for row in self.compared())

    def compared(self) -> list[dict[str, Any]]:
        """The unseen steps: measured, predicted with interval, error."""
        rows = []
        for step, point in zip(self.unseen, self.points, strict=True):
            reach = np.exp(QUANTILES[LEVEL] * point.deviation)
            low, high, measured = point.predicted_s / reach, point.predicted_s * reach, step.measurement.time_s
            rows.append(
                {
                    "network": step.measurement.network,
                    "phase": step.measurement.phase,
                    "batch_size": step.measurement.batch_size,
                    "measured_s": measured,
                    "spread": step.timing.spread,
                    "predicted_s": point.predicted_s,
                    "low_s": float(low),
                    "high_s": float(high),
                    "error": point.error,
                    "within": bool(low <= measured <= high),
                }
            )
        return rows

    def probes(self) -> list[dict[str, Any]]:
        """The probes with their rates; FLOP/s for what computes, bytes per second for what streams."""
        rows = []
        for each in self.probed:
            probe, seconds = each.probe, each.timing.median_s
            work = count([probe.layer], self.precision)
            flops, moved = (float(work.column(k, "inference", probe.batch_size).sum()) for k in ("flops", "bytes"))
            computes = probe.purpose in ("gemm", "convolution")
            rows.append(
                {
                    "probe": probe.layer.name,
                    "purpose": probe.purpose,
                    "batch_size": probe.batch_size,
                    "time_s": seconds,
                    "spread": each.timing.spread,
                    "samples": each.timing.samples,
                    "calls": each.timing.calls,
                    "stable": each.timing.stable,
                    "flop_per_s": flops / seconds if computes else None,
                    "bytes_per_s": moved / seconds if probe.purpose == "stream" else None,
                    "share_of_peak": flops / seconds / self.peak_per_s if computes else None,
                }
            )
        return rows

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "device": self.device,
            "name": self.name,
            "precision": self.precision,
            "software": self.software,
            "peak_flops": self.peak_per_s,
            "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
            "launch_s": self.launch_s,
            "probes": self.probes(),
            "measurements": [
                {**msgspec.to_builtins(step.measurement), "spread": step.timing.spread, "stable": step.timing.stable}
                for step in self.fitted
            ],
            "held_out": self.compared(),
            "mape": self.mape,
            "within_90": self.within,
            "calibration": msgspec.to_builtins(self.calibration),
            "left_out": list(self.left_out),
            "files": list(self.files),
            "busy": self.busy or None,
        }


def measured_page(measured: Measured) -> Document:
    """Predicted against measured first of all, then what the machine does."""
    rows, networks = measured.compared(), {step.measurement.network for step in measured.unseen}
    calibration = measured.calibration
    facts = [
        ("device", f"{measured.device}, {measured.precision}, {measured.software}"),
        ("peak", f"{format_si(measured.peak_per_s, 'FLOP/s')}, the fastest matrix product"),
        ("bandwidth", f"{format_si(measured.bandwidth_bytes_per_s, 'B/s')}, the fastest stream"),
        ("launch", f"{format_si(measured.launch_s, 's')}, the shortest operation"),
        ("learnt from", f"{len(measured.fitted)} steps of {len(calibration.provenance.networks)} networks"),
        ("scatter", f"{calibration.scatter:.1%} of those steps around the model"),
    ]
    if calibration.held_out_error is not None:
        facts.append(("held out", f"{calibration.held_out_error:.1%} with each of them predicted from the others"))
    tables = [_compared_table(rows), _probe_table(measured.probes())]
    steps = say_many(len(rows), "step")
    told = f"{steps} of {len(networks)} networks that were not fitted"
    if measured.were_chosen:
        told = f"{steps}, predicted before they were run"
    return Document(
        f"{told}: {measured.mape:.1%} mean absolute error, {measured.within} of {len(rows)} within the 90% interval",
        facts,
        tables,
        _notes(measured),
        raw_table(rows),
    )


def _compared_table(rows: list[dict[str, Any]]) -> Table:
    shown = [{**row, "interval": (row["predicted_s"], row["low_s"], row["high_s"])} for row in rows]
    return Table(
        "Predicted, then run",
        [
            Column("network", "network", left=True),
            Column("phase", "phase", left=True),
            Column("batch_size", "batch", spare=1),
            Column("measured_s", "measured", say_time),
            Column("spread", "spread", say_percent, spare=3),
            Column("interval", "predicted (90%)", _with_interval),
            Column("error", "error", lambda value: f"{value:+.1%}"),
            Column("within", "within", say_yes_or_no, spare=2),
        ],
        shown,
    )


def _with_interval(times_s: tuple[float, float, float]) -> str:
    middle, low, high = (format_si(time_s, "s", 3) for time_s in times_s)
    return f"{middle} ({low} to {high})"


def _probe_table(rows: list[dict[str, Any]]) -> Table:
    return Table(
        "Probes",
        [
            Column("probe", "probe", left=True),
            Column("batch_size", "batch"),
            Column("time_s", "median", say_time),
            Column("spread", "spread", say_percent),
            Column("samples", "samples", spare=2),
            Column("calls", "calls\neach", spare=3),
            Column("flop_per_s", "computed", lambda value: format_si(value, "FLOP/s"), spare=1),
            Column("bytes_per_s", "moved", say_bandwidth),
            Column("share_of_peak", "of peak", say_whole_percent),
        ],
        rows,
    )


def _notes(measured: Measured) -> list[str]:
    notes = [measured.busy] if measured.busy else []
    notes += [f"no room for {text}" for text in measured.left_out]
    steps = measured.fitted if measured.were_chosen else [*measured.fitted, *measured.unseen]
    restless = sum(not step.timing.stable for step in steps)
    if restless:
        notes.append(f"{restless} of {len(steps)} steps did not settle in the time given: other work on this machine?")
    if "compiled" in measured.software:
        notes.append("compiled networks launch fewer kernels than are counted; the fit makes up for it on average")
    if measured.files:
        notes.append(f"written: {', '.join(measured.files)}")
    else:
        notes.append("nothing was written: -o, --calibration-out and --hardware-out keep what was learnt")
    return notes

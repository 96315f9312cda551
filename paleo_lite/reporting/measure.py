"""Result and document of measuring a machine: its rates, and predictions of held-out networks."""

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
from ..text import format_plural
from ..timing.intervals import INTERVAL_LEVEL, QUANTILES
from ..units import format_si
from .columns import find_column, select_columns
from .document import (
    Document,
    Table,
    raw_table,
)


class TimedStep(msgspec.Struct, frozen=True):
    """A measured step with its timing statistics."""

    measurement: Measurement
    timing: Timing


class MachineReport(Result, msgspec.Struct, frozen=True, eq=False):
    """The result of measuring a machine."""

    _page: ClassVar[str] = "paleo_lite.reporting.measure:measured_page"

    device: str
    name: str
    precision: str
    software: str
    # Rates of the fastest stream and matrix product; duration of the shortest operation.
    bandwidth_bytes_per_s: float
    peak_per_s: float
    launch_s: float
    probed: Sequence[Probed]
    # Steps used for fitting, and held-out steps. The same list if the user chose the steps.
    fitted: Sequence[TimedStep]
    unseen: Sequence[TimedStep]
    points: Sequence[Point]  # predictions of the held-out steps
    calibration: Calibration
    left_out: Sequence[str]  # descriptions of the steps that did not fit into memory
    files: Sequence[str]  # paths of the written files
    busy: str = ""  # warning about other load on the machine; empty if there was none

    @property
    def has_chosen_steps(self) -> bool:
        """Whether the user chose the steps: all are fitted, after they were predicted."""
        return self.fitted is self.unseen

    @property
    def mape(self) -> float:
        """Mean absolute relative error of the held-out steps."""
        return float(np.mean([abs(point.error) for point in self.points]))

    @property
    def count_within_interval(self) -> int:
        """Number of held-out steps inside their 90% interval."""
        return sum(row["within"] for row in self.comparison_rows())

    def comparison_rows(self) -> list[dict[str, Any]]:
        """Return measured and predicted time, interval and error of each held-out step."""
        rows = []
        for step, point in zip(self.unseen, self.points, strict=True):
            reach = np.exp(QUANTILES[INTERVAL_LEVEL] * point.deviation)
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

    def probe_rows(self) -> list[dict[str, Any]]:
        """Return the probes with their times and rates: FLOP/s of compute probes, bytes/s of stream probes."""
        rows = []
        for probed in self.probed:
            probe, seconds = probed.probe, probed.timing.median_s
            work = count([probe.layer], self.precision)
            flops, moved_bytes = (
                float(work.column(k, "inference", probe.batch_size).sum()) for k in ("flops", "bytes")
            )
            is_compute_probe = probe.purpose in ("gemm", "convolution")
            rows.append(
                {
                    "probe": probe.layer.name,
                    "purpose": probe.purpose,
                    "batch_size": probe.batch_size,
                    "time_s": seconds,
                    "spread": probed.timing.spread,
                    "samples": probed.timing.samples,
                    "calls": probed.timing.calls,
                    "stable": probed.timing.stable,
                    "flop_per_s": flops / seconds if is_compute_probe else None,
                    "bytes_per_s": moved_bytes / seconds if probe.purpose == "stream" else None,
                    "share_of_peak": flops / seconds / self.peak_per_s if is_compute_probe else None,
                }
            )
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON."""
        return {
            "device": self.device,
            "name": self.name,
            "precision": self.precision,
            "software": self.software,
            "peak_flops": self.peak_per_s,
            "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
            "launch_s": self.launch_s,
            "probes": self.probe_rows(),
            "measurements": [
                {**msgspec.to_builtins(step.measurement), "spread": step.timing.spread, "stable": step.timing.stable}
                for step in self.fitted
            ],
            "held_out": self.comparison_rows(),
            "mape": self.mape,
            "within_90": self.count_within_interval,
            "calibration": msgspec.to_builtins(self.calibration),
            "left_out": list(self.left_out),
            "files": list(self.files),
            "busy": self.busy or None,
        }


def measured_page(measured: MachineReport) -> Document:
    """Return the document: predicted against measured times, then the probes."""
    rows, networks = measured.comparison_rows(), {step.measurement.network for step in measured.unseen}
    calibration = measured.calibration
    fitted_networks = format_plural(len(calibration.provenance.networks), "network")
    facts = [
        ("device", f"{measured.device}, {measured.precision}, {measured.software}"),
        ("peak", f"{format_si(measured.peak_per_s, 'FLOP/s')}, the fastest matrix product"),
        ("bandwidth", f"{format_si(measured.bandwidth_bytes_per_s, 'B/s')}, the fastest stream"),
        ("launch", f"{format_si(measured.launch_s, 's')}, the shortest operation"),
        ("fitted to", f"{format_plural(len(measured.fitted), 'step')} of {fitted_networks}"),
        ("scatter", f"{calibration.scatter:.1%} relative standard deviation of the fitted steps"),
    ]
    if calibration.held_out_error is not None:
        facts.append(("held out", f"{calibration.held_out_error:.1%} mean absolute error (leave one network out)"))
    tables = [_compared_table(rows), _probe_table(measured.probe_rows())]
    steps = format_plural(len(rows), "step")
    if measured.has_chosen_steps:
        subject = f"{steps}, predicted before running"
    else:
        subject = f"{steps} of {len(networks)} held-out networks"
    return Document(
        f"{subject}: {measured.mape:.1%} mean absolute error, {measured.count_within_interval} of {len(rows)} "
        "in the 90% interval",
        facts,
        tables,
        _notes(measured),
        raw_table(rows),
    )


def _compared_table(rows: list[dict[str, Any]]) -> Table:
    shown = [{**row, "interval": (row["predicted_s"], row["low_s"], row["high_s"])} for row in rows]
    return Table(
        "Predicted and measured",
        select_columns(
            "network",
            "phase",
            "batch_size",
            "measured_s",
            "spread",
            find_column("predicted_interval", key="interval", show=_format_with_interval),
            "error",
            "within",
            drop=("spread", "within", "batch_size"),
        ),
        shown,
    )


def _format_with_interval(times_s: tuple[float, float, float]) -> str:
    middle, low, high = (format_si(time_s, "s", 3) for time_s in times_s)
    return f"{middle} ({low} to {high})"


def _probe_table(rows: list[dict[str, Any]]) -> Table:
    return Table(
        "Probes",
        select_columns(
            "probe",
            "batch_size",
            "time_s",
            "spread",
            "samples",
            find_column("calls_per_sample", key="calls"),
            find_column("flops_per_s", key="flop_per_s"),
            "bytes_per_s",
            find_column("flops_efficiency", key="share_of_peak"),
            drop=("calls", "samples", "flop_per_s"),
        ),
        rows,
    )


def _notes(measured: MachineReport) -> list[str]:
    notes = [measured.busy] if measured.busy else []
    notes += [f"not enough memory for {text}" for text in measured.left_out]
    steps = measured.fitted if measured.has_chosen_steps else [*measured.fitted, *measured.unseen]
    unstable = sum(not step.timing.stable for step in steps)
    if unstable:
        notes.append(f"timings of {unstable} of {len(steps)} steps did not stabilize; is the machine under other load?")
    if "compiled" in measured.software:
        notes.append("compiled networks launch fewer kernels than are counted; the fit compensates for this on average")
    if measured.files:
        notes.append(f"written: {', '.join(measured.files)}")
    else:
        notes.append("nothing was written; save the results with -o, --calibration-out or --hardware-out")
    return notes

"""PALEO's platform percent of peak (PPP) from measurements: what it is, and how far it carries.

A PPP is the seconds at peak, FLOPs / peak + bytes / bandwidth, over the measured seconds (Qi, Sparks, Talwalkar, ICLR
2017, section 4.3). It is not the share of peak FLOP/s, which leaves the memory traffic out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import msgspec

from ..errors import BadFile, CalibrationFailed
from ..machines import Machine
from ..result import Result
from ..timing import Workload, predict
from ..timing.models import INTERVAL_LEVEL, QUANTILES, PppModel
from .fit import workload_of
from .measurements import Measurement, Provenance, medians, provenance_of

AT_PEAK = PppModel(1.0)
"""Arithmetic and memory traffic at the data sheet's peaks, one after the other: what a PPP is a share of."""

BETWEEN_NETWORKS = 0.46
"""Standard deviation of ln PPP between networks on one device, precision, software and phase: 65 groups of published
steps, those of three networks or more, without fp16 of cards whose fp16 units are slow."""

PER_DOUBLING = 0.25
"""Of ln PPP between two batch sizes of a network, for each doubling: 293 pairs of the same steps; the larger batch
mostly has the higher PPP."""

REPEAT = 0.05
"""Of ln PPP between two runs of one step."""

WORTH = 2
"""As many measured networks `BETWEEN_NETWORKS` is worth beside those that a fit has itself."""


class PppRun(msgspec.Struct, frozen=True):
    """One measured step or pass, and the seconds that it takes at peak."""

    network: str
    batch_size: int
    phase: str
    at_peak_s: float
    measured_s: float

    @property
    def ppp(self) -> float:
        """Seconds at peak over measured seconds."""
        return self.at_peak_s / self.measured_s


class PppShare(msgspec.Struct, frozen=True):
    """The PPP of a kind of layers in a pass.

    Attributes
    ----------
    kind, part : str
        As in `beside.PredictedRow`; ``all`` for all kinds together.
    ppp : float
        Median over the profiles.
    share : float
        Of the measured time.
    by_algorithm : dict of str to float
        Of forward convolutions above 1: the PPP when FLOPs are counted as that algorithm computes them.
    """

    kind: str
    part: str
    ppp: float
    share: float
    by_algorithm: dict[str, float] = {}


class PppCalibration(Result, msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A fitted PPP, as it is kept in a file.

    Attributes
    ----------
    time_model : str
        ``ppp``.
    device, precision : str
        What it holds for.
    ppp : float
        The geometric mean over networks.
    low, high : float
        Its 90% interval for the same networks at the same batch sizes.
    deviation, within : float
        Standard deviation of ln PPP between networks, and between the passes and batch sizes of one.
    runs : list of PppRun
        What it was fitted to; repeated runs are their median.
    shares : list of PppShare
        By pass and kind, from profiles.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.calibrations:ppp_page"

    format: int
    time_model: str
    device: str
    precision: str
    ppp: float
    low: float
    high: float
    deviation: float
    within: float
    runs: list[PppRun]
    provenance: Provenance
    shares: list[PppShare] = []

    @property
    def label(self) -> str:
        """How a prediction names it."""
        made = f" of {self.provenance.date}" if self.provenance.date else ""
        return f"PPP of {self.device} in {self.precision}{made}, fitted to {', '.join(self.provenance.networks)}"

    def deviation_of(self, workload: Workload) -> float:
        """Standard deviation of ln time of a workload by this PPP: further from what was measured, wider."""
        alike = [run for run in self.runs if run.network == workload.network.name]
        doublings = min(abs(math.log2(workload.batch_size / run.batch_size)) for run in alike or self.runs)
        between = 0.0 if alike and len({run.network for run in self.runs}) == 1 else self.deviation
        return math.sqrt(self.within**2 + (PER_DOUBLING * doublings) ** 2 + between**2)

    def model(self) -> PppModel:
        """The time model with this PPP."""
        return PppModel(self.ppp, label=self.label, deviation_of=self.deviation_of)


def run_of(step: Measurement, machine: Machine) -> PppRun:
    """A measured step held against the peaks of a machine."""
    at_peak_s = predict(workload_of(step), machine, AT_PEAK).time_s
    return PppRun(step.network, step.batch_size, step.phase, at_peak_s, step.time_s)


def calibrate_ppp(
    steps: Sequence[Measurement],
    machine: Machine,
    precision: str,
    profiled: Sequence[PppRun] = (),
    shares: Sequence[PppShare] = (),
    *,
    inputs: Sequence[Path] = (),
    date: str = "",
    version: str = "",
) -> PppCalibration:
    """The PPP of a machine from measured steps and profiled passes.

    Parameters
    ----------
    steps : sequence of Measurement
        All of this device and precision.
    profiled : sequence of PppRun
        See `from_profiles.run_beside`.
    shares : sequence of PppShare
        See `from_profiles.shares_of`.
    inputs : sequence of Path
        The files, for the record.
    date, version : str
        For the record.
    """
    device = machine.device.id
    timed = [
        Measurement(device, run.network, run.batch_size, run.phase, precision, run.measured_s, source="profiles")
        for run in profiled
    ]
    runs = [*(run_of(step, machine) for step in steps), *profiled]
    return fit_ppp(device, precision, runs, provenance_of([*steps, *timed], inputs, date, version), shares)


def fit_ppp(
    device: str,
    precision: str,
    runs: Iterable[PppRun],
    provenance: Provenance,
    shares: Sequence[PppShare] = (),
) -> PppCalibration:
    """One PPP from measured steps: the geometric mean over networks of the geometric means of their runs.

    Raises
    ------
    CalibrationFailed
        If there is no run.
    """
    runs = sorted(medians(runs, "measured_s"), key=lambda run: (run.network, run.phase, run.batch_size))
    by_network: dict[str, list[float]] = {}
    for run in runs:
        by_network.setdefault(run.network, []).append(math.log(run.ppp))
    if not by_network:
        raise CalibrationFailed(f"no measurement of {device} in {precision} to fit a PPP to")
    means = [fmean(values) for values in by_network.values()]
    middle, count = fmean(means), len(means)
    squares = sum((mean - middle) ** 2 for mean in means) + WORTH * BETWEEN_NETWORKS**2
    between = math.sqrt(squares / (count - 1 + WORTH))
    spread = sum((value - fmean(values)) ** 2 for values in by_network.values() for value in values)
    freedom = len(runs) - count
    within = math.sqrt((spread + WORTH * REPEAT**2) / (freedom + WORTH))
    of_mean = within / math.sqrt(len(runs)) if count == 1 else between / math.sqrt(count)
    reach = math.exp(QUANTILES[INTERVAL_LEVEL] * of_mean)
    ppp = math.exp(middle)
    return PppCalibration(
        1, PppModel.name, device, precision, ppp, ppp / reach, ppp * reach, between * math.sqrt(1 + 1 / count),
        within, runs, provenance, list(shares),
    )  # fmt: skip


def check_ppp(calibration: PppCalibration, path: Path) -> PppCalibration:
    """What has been read, if it can be one.

    Raises
    ------
    BadFile
        If a number is impossible; the message names file and field.
    """
    numbers: dict[str, Any] = {
        name: getattr(calibration, name) for name in ("ppp", "low", "high", "deviation", "within")
    }
    for index, run in enumerate(calibration.runs):
        numbers |= {f"runs[{index}].{name}": getattr(run, name) for name in ("batch_size", "at_peak_s", "measured_s")}
    for name, value in numbers.items():
        if not (math.isfinite(value) and value > 0):
            raise BadFile(f"{path}: {name} is {value}: expected a number above 0")
    if not calibration.runs:
        raise BadFile(f"{path}: runs: holds none, so nothing says what the PPP was fitted to")
    return calibration

"""PALEO's platform percent of peak (PPP): fitting it to measurements, and its uncertainty.

The PPP is the time at peak, FLOPs / peak + bytes / bandwidth, over the measured time (Qi, Sparks, Talwalkar, ICLR 2017,
section 4.3). It differs from the share of peak FLOP/s, which leaves the memory traffic out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import ClassVar

import msgspec

from ..errors import BadFile, CalibrationFailed
from ..machines import Machine
from ..result import Result
from ..timing import Workload, predict
from ..timing.intervals import INTERVAL_LEVEL, QUANTILES
from ..timing.models import PppModel
from .fit import workload_of
from .measurements import FitOrigin, Measurement, Provenance, merge_repeated_runs, provenance_of

PPP_FORMAT = 1
"""Format of calibration files with a PPP."""

AT_PEAK = PppModel(1.0)
"""Time model of arithmetic and memory traffic at the peaks of the data sheet, one after the other; the numerator of the
PPP."""

BETWEEN_NETWORKS_DEVIATION = 0.46
"""Standard deviation of ln PPP between networks on one device, precision, software and phase: from 65 groups of
published steps with three networks or more, without fp16 on cards with slow fp16 units."""

DEVIATION_PER_DOUBLING = 0.25
"""Standard deviation of ln PPP between two batch sizes of a network, per doubling of the batch: from 293 pairs of the
same steps. The larger batch usually has the higher PPP."""

REPEAT_DEVIATION = 0.05
"""Standard deviation of ln PPP between two runs of one step."""

PRIOR_NETWORKS = 2
"""Weight of `BETWEEN_NETWORKS_DEVIATION` in a fit, as a number of measured networks."""


class PppRun(msgspec.Struct, frozen=True):
    """One measured step or pass with its time at peak."""

    network: str
    batch_size: int
    phase: str
    at_peak_s: float
    measured_s: float

    @property
    def ppp(self) -> float:
        """Time at peak over measured time."""
        return self.at_peak_s / self.measured_s


class PppShare(msgspec.Struct, frozen=True):
    """PPP of a kind of layers in a pass."""

    # As in `comparison.ComparisonRow`; the kind ``all`` combines all kinds.
    kind: str
    part: str
    ppp: float  # median over the profiles
    share: float  # fraction of the measured time
    # For forward convolutions with a PPP above 1: the PPP with the FLOPs of each convolution algorithm.
    by_algorithm: dict[str, float] = {}


class PppCalibration(Result, msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Content of a calibration file with a fitted PPP."""

    _page: ClassVar[str] = "paleo_lite.reporting.calibrations:ppp_page"

    format: int
    time_model: str
    # Device and precision that the PPP is valid for.
    device: str
    precision: str
    ppp: float  # geometric mean over networks
    # Its 90% interval for the same networks at the same batch sizes.
    low: float
    high: float
    # Standard deviation of ln PPP between networks, and between the passes and batch sizes of one network.
    deviation: float
    within: float
    runs: list[PppRun]  # runs that it was fitted to; repeated runs are merged into their median
    provenance: Provenance
    shares: list[PppShare] = []  # PPP by pass and kind, from profiles

    @property
    def label(self) -> str:
        """Description of the calibration in predictions."""
        date = f" of {self.provenance.date}" if self.provenance.date else ""
        return f"PPP of {self.device} in {self.precision}{date}, fitted to {', '.join(self.provenance.networks)}"

    def deviation_of(self, workload: Workload) -> float:
        """Return the standard deviation of the log time of a workload; it grows with the distance from the runs."""
        runs = [run for run in self.runs if run.network == workload.network.name]
        is_measured_network = bool(runs)
        nearest = runs or self.runs
        doublings = min(abs(math.log2(workload.batch_size / run.batch_size)) for run in nearest)
        between_networks = self.deviation
        if is_measured_network and len({run.network for run in self.runs}) == 1:
            between_networks = 0.0
        return math.sqrt(self.within**2 + (DEVIATION_PER_DOUBLING * doublings) ** 2 + between_networks**2)

    def model(self) -> PppModel:
        """Return the time model with this PPP."""
        return PppModel(self.ppp, label=self.label, deviation_of=self.deviation_of)


def ppp_run_of(step: Measurement, machine: Machine) -> PppRun:
    """Return a measured step with its time at the peaks of a machine."""
    at_peak_s = predict(workload_of(step), machine, AT_PEAK).time_s
    return PppRun(step.network, step.batch_size, step.phase, at_peak_s, step.time_s)


def calibrate_ppp(
    steps: Sequence[Measurement],
    machine: Machine,
    precision: str,
    profiled: Sequence[PppRun],  # see `from_profiles.ppp_run_of_profile`
    shares: Sequence[PppShare] = (),  # see `from_profiles.ppp_shares`
    origin: FitOrigin | None = None,
) -> PppCalibration:
    """Fit the PPP of a machine to measured steps and profiled passes, all of this device and precision."""
    device = machine.device.id
    profiled_steps = [
        Measurement(device, run.network, run.batch_size, run.phase, precision, run.measured_s, source="profiles")
        for run in profiled
    ]
    runs = [ppp_run_of(step, machine) for step in steps]
    provenance = provenance_of([*steps, *profiled_steps], origin)
    return fit_ppp(device, precision, [*runs, *profiled], provenance, shares)


def fit_ppp(
    device: str,
    precision: str,
    runs: Iterable[PppRun],
    provenance: Provenance,
    shares: Sequence[PppShare] = (),
) -> PppCalibration:
    """Fit one PPP to measured steps: the geometric mean over networks of the geometric means of their runs.

    Raise CalibrationFailed if there is no run.
    """
    runs = merge_repeated_runs(runs, "measured_s")
    runs.sort(key=lambda run: (run.network, run.phase, run.batch_size))
    log_ppps: dict[str, list[float]] = {}
    for run in runs:
        log_ppps.setdefault(run.network, []).append(math.log(run.ppp))
    if not log_ppps:
        raise CalibrationFailed(f"no measurement of {device} in {precision} to fit a PPP to")
    means = [fmean(values) for values in log_ppps.values()]
    mean, networks = fmean(means), len(means)
    squares_between = sum((value - mean) ** 2 for value in means) + PRIOR_NETWORKS * BETWEEN_NETWORKS_DEVIATION**2
    between = math.sqrt(squares_between / (networks - 1 + PRIOR_NETWORKS))
    squares_within = sum((value - fmean(values)) ** 2 for values in log_ppps.values() for value in values)
    degrees_of_freedom = len(runs) - networks
    within = math.sqrt((squares_within + PRIOR_NETWORKS * REPEAT_DEVIATION**2) / (degrees_of_freedom + PRIOR_NETWORKS))
    deviation_of_mean = within / math.sqrt(len(runs)) if networks == 1 else between / math.sqrt(networks)
    reach = math.exp(QUANTILES[INTERVAL_LEVEL] * deviation_of_mean)
    ppp = math.exp(mean)
    return PppCalibration(
        format=PPP_FORMAT,
        time_model=PppModel.name,
        device=device,
        precision=precision,
        ppp=ppp,
        low=ppp / reach,
        high=ppp * reach,
        deviation=between * math.sqrt(1 + 1 / networks),
        within=within,
        runs=runs,
        provenance=provenance,
        shares=list(shares),
    )


def check_ppp(calibration: PppCalibration, path: Path) -> PppCalibration:
    """Return a calibration that was read from a file; raise BadFile with file and field if a number is impossible."""
    numbers: dict[str, float] = {}
    for name in ("ppp", "low", "high", "deviation", "within"):
        numbers[name] = getattr(calibration, name)
    for index, run in enumerate(calibration.runs):
        for name in ("batch_size", "at_peak_s", "measured_s"):
            numbers[f"runs[{index}].{name}"] = getattr(run, name)
    for name, value in numbers.items():
        if not (math.isfinite(value) and value > 0):
            raise BadFile(f"{path}: {name} is {value}: expected a number above 0")
    if not calibration.runs:
        raise BadFile(f"{path}: runs is empty: expected the runs that the PPP was fitted to")
    return calibration

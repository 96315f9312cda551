"""PALEO's platform percent of peak (PPP) from measurements: what it is, and how far it carries.

A PPP is the seconds at peak, FLOPs / peak + bytes / bandwidth, over the measured seconds (Qi, Sparks, Talwalkar, ICLR
2017, section 4.3). It is not the share of peak FLOP/s, which leaves the memory traffic out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, ClassVar

import msgspec

from ..counting.algorithms import algorithms_of
from ..efficiency.by_kind import measure_passes
from ..efficiency.contradictions import question
from ..efficiency.files import find_files
from ..errors import BadFile, BadProfile, CalibrationFailed
from ..hardware import Machine
from ..networks import find_network
from ..profiles.detect import open_profile
from ..result import Result
from ..timing import Workload, predict
from ..timing.models import PppModel
from ..timing.terms import LEVEL, QUANTILES
from .beside import AT_PEAK, PredictedBeside, lay_beside
from .calibrate import workload_of
from .measurements import Measurement, Provenance, provenance_of

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
    format : int
    time_model : str
        ``ppp``.
    device, precision : str
        What it holds for.
    ppp : float
        The geometric mean over networks.
    low, high : float
        Its 90 % interval for the same networks at the same batch sizes.
    deviation, within : float
        Standard deviation of ln PPP between networks, and between the passes and batch sizes of one.
    runs : list of PppRun
        What it was fitted to; repeated runs are their median.
    shares : list of PppShare
        By pass and kind, from profiles.
    provenance : Provenance
    """

    _page: ClassVar[str] = "paleo_lite.report.ppp:ppp_page"

    MODEL: ClassVar[str] = PppModel.name

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


def run_beside(beside: PredictedBeside) -> PppRun:
    """A profile held against the peaks."""
    asked = beside.prediction
    return PppRun(asked.network, asked.batch_size, asked.phase, beside.ppp * beside.measured_s, beside.measured_s)


def beside_profiles(
    paths: Iterable[Path],
    workload: Workload,
    machine: Machine,
    batch_size: int | None = None,
    name_pattern: str | None = None,
) -> list[PredictedBeside]:
    """Profiles held against the peaks of a machine.

    Parameters
    ----------
    paths : iterable of Path
        Profiles and folders of them. Those whose names tell of another network are left out.
    workload : Workload
        The network and precision; batch size and phase are those of each profile.
    machine : Machine
    batch_size : int, optional
        Only profiles of this batch size; and theirs, where a name does not tell.
    name_pattern : str, optional

    Raises
    ------
    BadProfile
        If a profile cannot be read, tells of another device or precision, its batch size is unknown, or none is left.
    """
    found, others = [], set()
    for path in sorted(find_files(paths)):
        profile = open_profile(path, name_pattern)
        size = profile.configuration.get("batch_size", batch_size)
        if not isinstance(size, int):
            raise BadProfile(f"{path}: its name does not give the batch size: use --batch-size")
        name = profile.configuration.get("network", workload.network.name)
        if name != workload.network.name or batch_size not in (None, size):
            others.add(f"{name} with batch size {size}")
            continue
        question(profile, machine.device, precision=workload.precision)
        measured = measure_passes(profile)
        asked = workload.but(batch_size=size, phase=measured.phase)
        found.append(lay_beside(str(path), measured, predict(asked, machine, AT_PEAK)))
    if not found:
        raise BadProfile(f"no profile of {workload.network.name}: there are {', '.join(sorted(others)) or 'no files'}")
    return found


def fit_beside(beside: PredictedBeside) -> PredictedBeside:
    """The profile beside the prediction of a PPP that is fitted to it: what then differs is how time divides."""
    workload, machine = beside.prediction.workload, beside.prediction.machine
    run = run_beside(beside)
    step = Measurement(
        machine.device.id, run.network, run.batch_size, run.phase, workload.precision, run.measured_s, source="profile"
    )
    model = fit_ppp(machine.device.id, workload.precision, [run], provenance_of([step])).model()
    remark = f"the PPP {model.ppp:.3g} was fitted to this profile: only how the time divides is predicted"
    again = lay_beside(beside.path, beside.measured, predict(workload, machine, model))
    return msgspec.structs.replace(again, remarks=(remark,))


def shares_of(profiles: Sequence[PredictedBeside]) -> list[PppShare]:
    """The PPP of each pass and kind that both sides have, longest first.

    Parameters
    ----------
    profiles : sequence of PredictedBeside
        Predictions of one network beside profiles of it.
    """
    rows: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for beside in profiles:
        own: dict[tuple[str, str], list[float]] = {}
        for row in beside.kinds:
            if row.measured_s and row.at_peak_s:
                for kind in (row.name, "all"):
                    total = own.setdefault((kind, row.part), [0.0, 0.0])
                    total[0] += row.at_peak_s
                    total[1] += row.measured_s
        for key, (at_peak_s, measured_s) in own.items():
            rows.setdefault(key, []).append((at_peak_s / measured_s, measured_s / beside.measured_s))
    shares = []
    for (kind, part), found in rows.items():
        ppp, share = (float(median(values)) for values in zip(*found))
        by_algorithm = {}
        if ppp > 1 and kind == "convolution" and part == "forward":
            by_algorithm = {name: ppp * fewer for name, fewer in _by_algorithm(profiles[0]).items()}
        shares.append(PppShare(kind, part, ppp, share, by_algorithm))
    return sorted(shares, key=lambda row: (row.kind != "all", -row.share))


def _by_algorithm(beside: PredictedBeside) -> dict[str, float]:
    """By what factor each algorithm's own count changes the seconds at peak of all forward convolutions."""
    at_peak = beside.prediction
    precision, unit = at_peak.precision, at_peak.peak.peak.unit
    direct, own = 0.0, dict[str, float]()
    for layer in at_peak.layers:
        ways = algorithms_of(layer, at_peak.batch_size, precision, unit)
        if not ways:
            continue
        direct += ways[0].flops
        for name in {*own, *(way.name for way in ways)}:
            count = next((way.flops for way in ways if way.name == name), ways[0].flops)
            own[name] = own.get(name, direct - ways[0].flops) + count
    # What moves memory stays; it is little beside arithmetic where a PPP is above 1.
    return {name: flops / direct for name, flops in own.items() if flops < direct}


def calibrate_ppp(
    steps: Sequence[Measurement],
    profiles: Iterable[Path],
    machine: Machine,
    precision: str,
    network: str | None = None,
    batch_size: int | None = None,
    name_pattern: str | None = None,
    *,
    inputs: Sequence[Path] = (),
    date: str = "",
    version: str = "",
) -> PppCalibration:
    """The PPP of a machine from measured steps and profiles of one network.

    Parameters
    ----------
    steps : sequence of Measurement
        All of this device and precision.
    profiles : iterable of Path
        See `beside_profiles`.
    machine : Machine
    precision : str
    network : str, optional
        What was profiled.
    batch_size, name_pattern
        See `beside_profiles`.
    inputs : sequence of Path
        The files, for the record.
    date, version : str
        For the record.

    Raises
    ------
    BadProfile
        If a profile cannot be read, or none is of the network.
    CalibrationFailed
        If there is nothing to fit to.
    """
    beside = []
    if network is not None and (paths := list(profiles)):
        workload = Workload(find_network(network), precision)
        beside = beside_profiles(paths, workload, machine, batch_size, name_pattern)
    timed = [
        Measurement(
            machine.device.id, run.network, run.batch_size, run.phase, precision, run.measured_s, source="profiles"
        )
        for run in map(run_beside, beside)
    ]
    return fit_ppp(
        machine.device.id,
        precision,
        [run_of(step, machine) for step in (*steps, *timed)],
        provenance_of([*steps, *timed], inputs, date, version),
        shares_of(beside),
    )


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
    runs = _medians(runs)
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
    reach = math.exp(QUANTILES[LEVEL] * of_mean)
    ppp = math.exp(middle)
    return PppCalibration(
        1, PppModel.name, device, precision, ppp, ppp / reach, ppp * reach, between * math.sqrt(1 + 1 / count),
        within, runs, provenance, list(shares),
    )  # fmt: skip


def _medians(runs: Iterable[PppRun]) -> list[PppRun]:
    """Repeated runs of one step become their median."""
    groups: dict[PppRun, list[float]] = {}
    for run in runs:
        groups.setdefault(msgspec.structs.replace(run, measured_s=0.0), []).append(run.measured_s)
    merged = [msgspec.structs.replace(run, measured_s=median(seconds)) for run, seconds in groups.items()]
    return sorted(merged, key=lambda run: (run.network, run.phase, run.batch_size))


def check_ppp(found: PppCalibration, path: Path) -> PppCalibration:
    """What has been read, if it can be one.

    Raises
    ------
    BadFile
        If a number is impossible; the message names file and field.
    """
    numbers: dict[str, Any] = {name: getattr(found, name) for name in ("ppp", "low", "high", "deviation", "within")}
    for index, run in enumerate(found.runs):
        numbers |= {f"runs[{index}].{name}": getattr(run, name) for name in ("batch_size", "at_peak_s", "measured_s")}
    for name, value in numbers.items():
        if not (math.isfinite(value) and value > 0):
            raise BadFile(f"{path}: {name} is {value}: expected a number above 0")
    if not found.runs:
        raise BadFile(f"{path}: runs: holds none, so nothing says what the PPP was fitted to")
    return found

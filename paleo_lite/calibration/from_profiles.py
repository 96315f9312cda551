"""What is learnt from profiles: the times of steady passes, and platform percents of peak (PPP)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from ..counting.algorithms import algorithms_of
from ..errors import BadProfile
from ..executor import run_tasks
from ..machines import Machine, find_device
from ..profile_analysis.analysis import analyse_file
from ..profile_analysis.evidence import check_evidence
from ..profile_analysis.pass_times import measure_passes
from ..profiles.detect import find_files, open_profile
from ..timing import Workload, predict
from .beside import PredictedBeside, lay_beside
from .measurements import Measurement, medians
from .ppp import AT_PEAK, PppRun, PppShare, calibrate_ppp


def measure_profiles(
    paths: Iterable[Path],
    gpu: str,
    network: str,
    precision: str,
    batch_size: int | None = None,
    name_pattern: str | None = None,
    hardware_files: Iterable[Path] = (),
) -> list[Measurement]:
    """The forward and backward passes of profiles; several of one configuration become their median.

    Parameters
    ----------
    paths : iterable of Path
        Profiles and folders of them. What was run comes from their names, see `profiles.detect`.
    gpu, network, precision : str
        What was profiled; profiles whose names tell of another network are left out.
    batch_size : int, optional
        Only profiles of this batch size; and theirs, where a name does not tell.
    hardware_files : iterable of Path
        Where the device may be, too.

    Raises
    ------
    BadProfile
        If a profile cannot be read, tells of another device or precision, its batch size is unknown, or none is left.
    """
    measurements: list[Measurement] = []
    seen: set[str] = set()
    read = run_tasks(find_files(paths), partial(analyse_file, name_pattern=name_pattern))
    for path, finding in sorted(read, key=lambda pair: pair[0]):
        if finding.error:
            raise BadProfile(finding.error)
        own, size = _told_by(path, finding.configuration, network, batch_size)
        seen.add(f"{own} with batch size {size}")
        if own != network or batch_size not in (None, size):
            continue
        check_evidence(open_profile(path, name_pattern), find_device(gpu, hardware_files), precision=precision)
        if (steady := finding.steady) is None:
            continue
        source = f"profiles ({finding.format})"
        for phase, seconds in (("forward", steady.forward_s), ("backward", steady.backward_s)):
            if seconds is not None:
                measurements.append(Measurement(gpu, network, size, phase, precision, seconds, source=source))
    if not measurements:
        raise BadProfile(
            f"no forward or backward pass of {network}{'' if batch_size is None else f' with batch size {batch_size}'}"
            f" in these profiles: there are {', '.join(sorted(seen)) or 'none'}"
        )
    return sorted(medians(measurements))


def _told_by(path: Path, configuration: Mapping[str, Any], network: str, batch_size: int | None) -> tuple[str, int]:
    """Network and batch size by a profile's name; what is asked for where the name does not tell."""
    size = configuration.get("batch_size", batch_size)
    if not isinstance(size, int):
        raise BadProfile(f"{path}: its name does not give the batch size: use --batch-size")
    return str(configuration.get("network", network)), size


# Platform percents of peak --------------------------------------------------------------------------------------------


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
    batch_size : int, optional
        Only profiles of this batch size; and theirs, where a name does not tell.

    Raises
    ------
    BadProfile
        If a profile cannot be read, tells of another device or precision, its batch size is unknown, or none is left.
    """
    beside, others = [], set()
    for path in sorted(find_files(paths)):
        profile = open_profile(path, name_pattern)
        name, size = _told_by(path, profile.configuration, workload.network.name, batch_size)
        if name != workload.network.name or batch_size not in (None, size):
            others.add(f"{name} with batch size {size}")
            continue
        check_evidence(profile, machine.device, precision=workload.precision)
        measured = measure_passes(profile)
        asked = workload.with_changes(batch_size=size, phase=measured.phase)
        beside.append(lay_beside(str(path), measured, predict(asked, machine, AT_PEAK)))
    if not beside:
        raise BadProfile(f"no profile of {workload.network.name}: there are {', '.join(sorted(others)) or 'no files'}")
    return beside


def fit_beside(beside: PredictedBeside) -> PredictedBeside:
    """The profile beside the prediction of a PPP that is fitted to it: what then differs is how time divides."""
    workload, machine = beside.prediction.workload, beside.prediction.machine
    model = calibrate_ppp([], machine, workload.precision, [run_beside(beside)]).model()
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
    for (kind, part), values_of in rows.items():
        ppp, share = (float(median(values)) for values in zip(*values_of))
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

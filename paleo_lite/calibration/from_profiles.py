"""Calibration from profiles: times of steady passes, and platform percents of peak (PPP)."""

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
from ..profile_analysis.contradictions import check_evidence
from ..profile_analysis.one_file import ReadOptions, analyse_file
from ..profile_analysis.pass_times import measure_passes
from ..profiles.detect import find_files, open_profile
from ..timing import Workload, predict
from .comparison import ProfileComparison, compare_with_profile
from .measurements import Measurement, merge_repeated_runs
from .ppp import AT_PEAK, PppRun, PppShare, calibrate_ppp


def measure_profiles(
    paths: Iterable[Path],
    gpu: str,
    network: str,
    precision: str,
    batch_size: int | None = None,  # batch size to select; also that of profiles without one in their names
    name_pattern: str | None = None,
    hardware_files: Iterable[Path] = (),  # further hardware TOMLs
) -> list[Measurement]:
    """Return the forward and backward times of profiles; repeated configurations are merged into their median.

    The paths are profiles and folders of profiles, whose names give the configuration, see `profiles.detect`; profiles
    with the name of another network are skipped. Raise BadProfile if a profile cannot be read, is from another device
    or precision, its batch size is unknown, or none is left.
    """
    measurements: list[Measurement] = []
    available: set[str] = set()
    findings = run_tasks(find_files(paths), partial(analyse_file, reading=ReadOptions(name_pattern=name_pattern)))
    for path, finding in sorted(findings, key=lambda pair: pair[0]):
        if finding.error:
            raise BadProfile(finding.error)
        profiled_network, profiled_batch = _configuration_of(path, finding.configuration, network, batch_size)
        available.add(f"{profiled_network} with batch size {profiled_batch}")
        if profiled_network != network or batch_size not in (None, profiled_batch):
            continue
        check_evidence(open_profile(path, name_pattern), find_device(gpu, hardware_files), precision=precision)
        steady = finding.steady
        if steady is None:
            continue
        source = f"profiles ({finding.format})"
        for phase, time_s in (("forward", steady.forward_s), ("backward", steady.backward_s)):
            if time_s is not None:
                measurements.append(Measurement(gpu, network, profiled_batch, phase, precision, time_s, source=source))
    if not measurements:
        with_batch = "" if batch_size is None else f" with batch size {batch_size}"
        raise BadProfile(
            f"no forward or backward pass of {network}{with_batch} in these profiles: "
            f"there are {', '.join(sorted(available)) or 'none'}"
        )
    return sorted(merge_repeated_runs(measurements))


def _configuration_of(
    path: Path, configuration: Mapping[str, Any], network: str, batch_size: int | None
) -> tuple[str, int]:
    """Return the network and batch size in a profile's name, or the given ones where the name has none."""
    profiled_batch = configuration.get("batch_size", batch_size)
    if not isinstance(profiled_batch, int):
        raise BadProfile(f"{path}: the file name does not give the batch size: use `--batch-size`")
    return str(configuration.get("network", network)), profiled_batch


# Platform percents of peak --------------------------------------------------------------------------------------------


def ppp_run_of_profile(comparison: ProfileComparison) -> PppRun:
    """Return the measured time of a profile with its time at peak."""
    prediction = comparison.prediction
    return PppRun(
        network=prediction.network,
        batch_size=prediction.batch_size,
        phase=prediction.phase,
        at_peak_s=comparison.ppp * comparison.kernels_s,
        measured_s=comparison.kernels_s,
    )


def compare_with_profiles(
    paths: Iterable[Path],
    workload: Workload,
    machine: Machine,
    batch_size: int | None,
    name_pattern: str | None,
) -> list[ProfileComparison]:
    """Compare profiles with predictions at the peaks of a machine.

    The paths are profiles and folders of profiles; those with the name of another network are skipped. Batch size and
    phase of the workload come from each profile; `batch_size` selects those of one batch size, and is that of profiles
    without one in their names. Raise BadProfile as `measure_profiles` does.
    """
    comparisons: list[ProfileComparison] = []
    skipped: set[str] = set()
    for path in sorted(find_files(paths)):
        profile = open_profile(path, name_pattern)
        network, profiled_batch = _configuration_of(path, profile.configuration, workload.network.name, batch_size)
        if network != workload.network.name or batch_size not in (None, profiled_batch):
            skipped.add(f"{network} with batch size {profiled_batch}")
            continue
        check_evidence(profile, machine.device, precision=workload.precision)
        measured = measure_passes(profile)
        profiled = workload.with_changes(batch_size=profiled_batch, phase=measured.phase)
        comparisons.append(compare_with_profile(str(path), measured, predict(profiled, machine, AT_PEAK)))
    if not comparisons:
        raise BadProfile(f"no profile of {workload.network.name}: there are {', '.join(sorted(skipped)) or 'no files'}")
    return comparisons


def predict_with_fitted_ppp(comparison: ProfileComparison) -> ProfileComparison:
    """Compare a profile with the prediction of a PPP fitted to it: only the distribution of the time can differ."""
    workload, machine = comparison.prediction.workload, comparison.prediction.machine
    model = calibrate_ppp([], machine, workload.precision, [ppp_run_of_profile(comparison)]).model()
    fitted = compare_with_profile(comparison.path, comparison.measured, predict(workload, machine, model))
    remark = f"the PPP {model.ppp:.3g} was fitted to this profile: only the distribution of the time is predicted"
    return msgspec.structs.replace(fitted, remarks=(remark,))


def ppp_shares(profiles: Sequence[ProfileComparison]) -> list[PppShare]:
    """Return the PPP of each pass and kind that is both predicted and measured, longest first.

    The profiles are comparisons of one network.
    """
    ppps: dict[tuple[str, str], list[float]] = {}
    fractions: dict[tuple[str, str], list[float]] = {}
    for comparison in profiles:
        for key, (at_peak_s, measured_s) in _times_by_kind(comparison).items():
            ppps.setdefault(key, []).append(at_peak_s / measured_s)
            fractions.setdefault(key, []).append(measured_s / comparison.kernels_s)
    shares = []
    for (kind, part), values in ppps.items():
        ppp = float(median(values))
        by_algorithm = {}
        if ppp > 1 and kind == "convolution" and part == "forward":
            for name, factor in _algorithm_factors(profiles[0]).items():
                by_algorithm[name] = ppp * factor
        shares.append(PppShare(kind, part, ppp, float(median(fractions[kind, part])), by_algorithm))
    return sorted(shares, key=lambda share: (share.kind != "all", -share.share))


def _times_by_kind(comparison: ProfileComparison) -> dict[tuple[str, str], list[float]]:
    """Return seconds at peak and measured seconds by kind and pass; the kind ``all`` has their sums."""
    times: dict[tuple[str, str], list[float]] = {}
    for row in comparison.kinds:
        if not row.measured_s or not row.at_peak_s:
            continue
        for kind in (row.name, "all"):
            total = times.setdefault((kind, row.part), [0.0, 0.0])
            total[0] += row.at_peak_s
            total[1] += row.measured_s
    return times


def _algorithm_factors(comparison: ProfileComparison) -> dict[str, float]:
    """Return the FLOPs of all forward convolutions by each algorithm over those by direct convolution.

    Algorithms without an advantage are left out. A layer that an algorithm does not support counts as direct.
    """
    prediction = comparison.prediction
    precision, unit = prediction.workload.precision, prediction.peak.peak.unit
    direct_flops = 0.0
    algorithm_flops: dict[str, float] = {}
    for layer in prediction.layers:
        algorithms = algorithms_of(layer, prediction.batch_size, precision, unit)
        if not algorithms:
            continue
        layer_flops = {algorithm.name: algorithm.flops for algorithm in algorithms}
        layer_direct_flops = algorithms[0].flops
        for name in {*algorithm_flops, *layer_flops}:
            previous_flops = algorithm_flops.get(name, direct_flops)
            algorithm_flops[name] = previous_flops + layer_flops.get(name, layer_direct_flops)
        direct_flops += layer_direct_flops
    # Only FLOPs are scaled: where a PPP is above 1, memory traffic takes little of the time.
    return {name: flops / direct_flops for name, flops in algorithm_flops.items() if flops < direct_flops}

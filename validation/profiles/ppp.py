"""Comparison of a single PPP with the calibrated model on profiles at another batch size, loader or node count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, permutations
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec

from paleo_lite.calibration.fit import calibrate, workload_of
from paleo_lite.calibration.measurements import Measurement, provenance_of
from paleo_lite.calibration.ppp import fit_ppp, ppp_run_of
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing import TimeModel, predict
from paleo_lite.timing.calibrated import CalibratedModel

from .hold_out import MeasuredProfile, measure_profiles
from .published import ProfileSet


class ProfilePrediction(msgspec.Struct, frozen=True):
    """Prediction of a pass by a model that was fitted to other profiles."""

    model: str
    # Configuration of the fitted and of the predicted profiles.
    fitted_to: str
    predicted: str
    # Number of fitted and of predicted profiles.
    fitted: int
    profiles: int
    phase: str
    batch_size: int
    # Seconds of the pass; the measured time is the median over the profiles.
    measured_s: float
    predicted_s: float
    # The 90% interval.
    low_s: float
    high_s: float
    error: float  # relative error


class _Split(NamedTuple):
    """Configuration key to split by, with the values of the fitted and of the predicted profiles."""

    key: str
    fitted: Any
    predicted: Any


def compare_models(data: Path, profile_set: ProfileSet) -> list[ProfilePrediction]:
    """Predict profiles from profiles with another batch size, data loader or number of nodes.

    Raises
    ------
    BadProfile
        If a profile cannot be read.
    """
    profiles = measure_profiles([profile_set.path(data)], profile_set.network)
    rows = []
    for split in _splits(profiles):
        fitted, others = (
            _measurements([p for p in profiles if p.configuration.get(split.key) == value], profile_set)
            for value in (split.fitted, split.predicted)
        )
        for name, fit in FITS.items():
            model = fit(fitted, profile_set)
            for step, count in others.items():
                prediction = predict(workload_of(step), Machine(find_device(profile_set.gpu)), model)
                predicted_s = float(prediction.time_s)
                low_s, high_s = prediction.interval or (predicted_s, predicted_s)
                rows.append(
                    ProfilePrediction(
                        model=name,
                        fitted_to=f"{split.key} {split.fitted}",
                        predicted=f"{split.key} {split.predicted}",
                        fitted=sum(fitted.values()) // 2,
                        profiles=count,
                        phase=step.phase,
                        batch_size=step.batch_size,
                        measured_s=step.time_s,
                        predicted_s=predicted_s,
                        low_s=float(low_s),
                        high_s=float(high_s),
                        error=predicted_s / step.time_s - 1,
                    )
                )
    return rows


def _ppp(steps: Iterable[Measurement], profile_set: ProfileSet) -> TimeModel:
    steps = list(steps)
    machine = Machine(find_device(profile_set.gpu))
    return fit_ppp(
        profile_set.gpu, profile_set.precision, [ppp_run_of(step, machine) for step in steps], provenance_of(steps)
    ).model()


def _calibrated(steps: Iterable[Measurement], profile_set: ProfileSet) -> TimeModel:
    _, fitted = calibrate(list(steps), find_device(profile_set.gpu), profile_set.precision)
    return CalibratedModel("held out", fitted.theta, fitted.covariance, fitted.scatter)


FITS: dict[str, Callable[[Iterable[Measurement], ProfileSet], TimeModel]] = {"ppp": _ppp, "calibrated": _calibrated}


def _splits(profiles: Sequence[MeasuredProfile]) -> Iterable[_Split]:
    """Yield the splits: larger from smaller batch, each loader from each other one, most from fewest nodes."""
    for key, pairs in (("batch_size", combinations), ("data_loader", permutations), ("nodes", combinations)):
        values = sorted({p.configuration[key] for p in profiles if p.configuration.get(key, 1) != 1})
        ends = values if key == "data_loader" else values[:: max(len(values) - 1, 1)]
        yield from (_Split(key, one, other) for one, other in pairs(ends, 2))


def _measurements(profiles: Sequence[MeasuredProfile], profile_set: ProfileSet) -> dict[Measurement, int]:
    """Return the median times of each pass and batch size, with the number of profiles of each."""
    seconds: dict[tuple[int, str], list[float]] = {}
    for profile in profiles:
        for phase in ("forward", "backward"):
            total = sum(s for (_, part), s in profile.times.seconds.items() if part == phase)
            seconds.setdefault((profile.configuration["batch_size"], phase), []).append(total)
    return {
        Measurement(
            profile_set.gpu, profile_set.network, batch_size, phase, profile_set.precision, float(median(values))
        ): len(values)
        for (batch_size, phase), values in seconds.items()
    }

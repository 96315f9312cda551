"""Transfer of one PPP to another batch size, loader or node count, compared with the calibrated model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import combinations, permutations
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec

from paleo_lite.calibration.fit import calibrate, workload_of
from paleo_lite.calibration.measurements import Measurement, provenance_of
from paleo_lite.calibration.ppp import fit_ppp, ppp_run_of
from paleo_lite.errors import BadProfile
from paleo_lite.executor import run_tasks
from paleo_lite.machines import Machine, find_device
from paleo_lite.profile_analysis.pass_times import PassTimes
from paleo_lite.profiles.detect import find_files, parse_name
from paleo_lite.timing import TimeModel, predict
from paleo_lite.timing.calibrated import CalibratedModel

from .hold_out import examine
from .published import ProfileSet


class Carried(msgspec.Struct, frozen=True):
    """A model that was fitted to some profiles, and what it says of others.

    Attributes
    ----------
    model : {"ppp", "calibrated"}
    fitted_to, predicted : str
        Which profiles.
    fitted, profiles : int
        How many each.
    phase : {"forward", "backward"}
    measured_s, predicted_s : float
        Seconds of the pass, median over the profiles.
    low_s, high_s : float
        The 90% interval.
    error : float
        Relative.
    """

    model: str
    fitted_to: str
    predicted: str
    fitted: int
    profiles: int
    phase: str
    batch_size: int
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float
    error: float


class _Split(NamedTuple):
    """Predict profiles with one value of a setting from profiles with another value."""

    key: str
    fitted: Any
    predicted: Any


class _Profile(NamedTuple):
    """A profile's configuration, and what its passes take."""

    configuration: Mapping[str, Any]
    times: PassTimes


def carry(data: Path, known: ProfileSet) -> list[Carried]:
    """Every value of batch size, loader and nodes, predicted from each other one.

    Raises
    ------
    BadProfile
        If a profile cannot be read.
    """
    profiles = _read([known.path(data)], known.network)
    rows = []
    for split in _splits(profiles):
        fitted, others = (
            _measurements([p for p in profiles if p.configuration.get(split.key) == value], known)
            for value in (split.fitted, split.predicted)
        )
        for name, fit in FITS.items():
            model = fit(fitted, known)
            for step, count in others.items():
                prediction = predict(workload_of(step), Machine(find_device(known.gpu)), model)
                low_s, high_s = prediction.interval or (prediction.time_s, prediction.time_s)
                ends = f"{split.key} {split.fitted}", f"{split.key} {split.predicted}"
                rows.append(
                    Carried(
                        name, *ends, sum(fitted.values()) // 2,
                        count, step.phase, step.batch_size, step.time_s, prediction.time_s, low_s, high_s,
                        prediction.time_s / step.time_s - 1,
                    )
                )  # fmt: skip
    return rows


def _ppp(steps: Iterable[Measurement], known: ProfileSet) -> TimeModel:
    steps = list(steps)
    machine = Machine(find_device(known.gpu))
    return fit_ppp(
        known.gpu, known.precision, [ppp_run_of(step, machine) for step in steps], provenance_of(steps)
    ).model()


def _calibrated(steps: Iterable[Measurement], known: ProfileSet) -> TimeModel:
    _, learnt = calibrate(list(steps), find_device(known.gpu), known.precision)
    return CalibratedModel("held out", learnt.theta, learnt.covariance, learnt.scatter)


FITS: dict[str, Callable[[Iterable[Measurement], ProfileSet], TimeModel]] = {"ppp": _ppp, "calibrated": _calibrated}


def _read(paths: Iterable[Path], network: str) -> list[_Profile]:
    found = []
    for path, times in sorted(
        run_tasks(find_files(paths), partial(examine, network=network)), key=lambda pair: pair[0]
    ):
        if isinstance(times, str):
            raise BadProfile(times)
        if times is not None:
            found.append(_Profile(parse_name(path.name), times))
    return found


def _splits(profiles: Sequence[_Profile]) -> Iterable[_Split]:
    """The larger batch from the smaller, each loader from each other one, the most nodes from the fewest of several."""
    for key, pairs in (("batch_size", combinations), ("data_loader", permutations), ("nodes", combinations)):
        values = sorted({p.configuration[key] for p in profiles if p.configuration.get(key, 1) != 1})
        ends = values if key == "data_loader" else values[:: max(len(values) - 1, 1)]
        yield from (_Split(key, one, other) for one, other in pairs(ends, 2))


def _measurements(profiles: Sequence[_Profile], known: ProfileSet) -> dict[Measurement, int]:
    """Forward and backward pass at each batch size, medians over the profiles; of how many each."""
    seconds: dict[tuple[int, str], list[float]] = {}
    for profile in profiles:
        for phase in ("forward", "backward"):
            total = sum(s for (_, part), s in profile.times.seconds.items() if part == phase)
            seconds.setdefault((profile.configuration["batch_size"], phase), []).append(total)
    return {
        Measurement(known.gpu, known.network, batch_size, phase, known.precision, median(values)): len(values)
        for (batch_size, phase), values in seconds.items()
    }

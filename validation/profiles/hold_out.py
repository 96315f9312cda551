"""Validation of the predicted kernel times of classes of work at held-out batch sizes.

Profiles record the kernel times of each layer. For each class of work and pass, the model is fitted to the layers at
the smallest batch size, and predicts their sum at the others. Host overheads are not included.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from paleo_lite.architectures import Network, find_network
from paleo_lite.calibration.fit import fit, stack_features
from paleo_lite.calibration.prior import Prior, device_prior
from paleo_lite.counting.kinds import class_of, is_convolution
from paleo_lite.counting.kinds.products import class_of_convolution
from paleo_lite.errors import BadProfile, BadValue, PaleoError
from paleo_lite.executor import run_tasks
from paleo_lite.files import FileVersion, version_of
from paleo_lite.machines import Machine, find_device
from paleo_lite.profile_analysis.pass_times import PassTimes, measure_passes
from paleo_lite.profiles.detect import find_files, open_profile, parse_name
from paleo_lite.profiles.names import OPERATIONS
from paleo_lite.timing.calibrated import Rates, rates_of, residual_variance, sensitivities
from paleo_lite.timing.features import Features, features_of
from paleo_lite.timing.intervals import QUANTILES
from paleo_lite.timing.parameters import NAMES
from paleo_lite.timing.workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CLASS_OF_KIND = {kind.name: kind.work_class for kind in OPERATIONS if kind.work_class}
"""Kinds of operations that are a single class of work; the class of a convolution depends on the layer."""

_HOST = ("overhead_s", "overhead_backward_s", "overhead_gradient_s", "step_s")

SCATTER = 0.1
"""Standard deviation of the logarithm of the times of a class's layers around a good model."""

SINGLE_TIME_WIDENING = 3.0
"""Factor by which the prior is widened for a class with a single measured time."""


class ProfileRow(msgspec.Struct, frozen=True):
    """Prediction of a class of work in a pass; the class ``all`` is the sum of all classes."""

    split: str
    gpu: str
    precision: str
    network: str
    work_class: str
    phase: str
    layers: int  # number of times fitted at `fitted_batch_size`; 1 if the profile contains only the sum of the layers
    # Batch sizes of the fit and of the prediction.
    fitted_batch_size: int
    batch_size: int
    measured_s: float
    predicted_s: float
    # The 90% interval of the prediction.
    low_s: float
    high_s: float
    error: float  # relative error
    profiles: int  # number of profiles; `measured_s` is the median over them


class _Measured(msgspec.Struct, frozen=True, eq=False):
    """Times of a class in a pass, as medians over profiles, and the indices of the layers that each time includes."""

    layers: list[list[int]]
    times_s: NDArray[np.float64]


class MeasuredProfile(NamedTuple):
    """Configuration of a profile, as its name says it, and the times of its passes."""

    configuration: Mapping[str, Any]
    times: PassTimes


def measure_profiles(paths: Iterable[Path], network: str) -> tuple[MeasuredProfile, ...]:
    """Return the profiles in which times of a network can be told apart, ordered by path.

    Raises
    ------
    BadProfile
        If a profile cannot be read.
    """
    return _measure_versions(tuple(version_of(path) for path in find_files(paths)), network)


@lru_cache(2)
def _measure_versions(files: tuple[FileVersion, ...], network: str) -> tuple[MeasuredProfile, ...]:
    """Measure files as they are now, once for all tables of the accuracy page."""
    measured = []
    work = partial(measure_profile, network=network)
    for path, times in sorted(run_tasks([file.path for file in files], work), key=itemgetter(0)):
        if isinstance(times, str):
            raise BadProfile(times)
        if times is not None:
            measured.append(MeasuredProfile(parse_name(path.name), times))
    return tuple(measured)


def validate_profiles(paths: Iterable[Path], gpu: str, network: str, precision: str = "fp32") -> list[ProfileRow]:
    """Fit each class and pass at the smallest batch size of the profiles, and predict it at the others.

    Raises
    ------
    BadProfile
        If a profile cannot be read.
    BadValue
        If the profiles have fewer than two batch sizes.
    """
    architecture = find_network(network)
    device = find_device(gpu)
    sizes: dict[int, list[PassTimes]] = defaultdict(list)
    for profile in measure_profiles(paths, architecture.name):
        sizes[profile.configuration["batch_size"]].append(profile.times)
    if len(sizes) < 2:
        raise BadValue(
            f"profiles of {network} at {len(sizes)} batch sizes: two are needed, because all but the smallest are "
            "held out"
        )
    smallest, *others = sorted(sizes)
    model = _ClassModel(Workload(architecture, precision), rates_of(Machine(device), precision),
                        _without_host(device_prior(device, precision)), smallest)  # fmt: skip
    smallest_classes = _by_class(sizes[smallest], architecture)
    rows = []
    for batch_size in others:
        classes = []
        for (name, phase), measured in _by_class(sizes[batch_size], architecture).items():
            if (name, phase) in smallest_classes:
                fitted = smallest_classes[name, phase]
                predicted_s, deviation = model.predict(fitted, phase, batch_size)
                sums = (float(measured.times_s.sum()), predicted_s, deviation)
                classes.append(_Class(name, phase, len(fitted.times_s), *sums))
        for phase in ("forward", "backward"):
            classes.append(_total(phase, [each for each in classes if each.phase == phase]))
        identification = ("profile", device.id, precision, architecture.name)
        for each in classes:
            factor = float(np.exp(QUANTILES[0.9] * each.deviation))
            times_s = (each.measured_s, each.predicted_s, each.predicted_s / factor, each.predicted_s * factor)
            rows.append(
                ProfileRow(
                    *identification, each.name, each.phase, each.layers, smallest, batch_size, *times_s,
                    each.predicted_s / each.measured_s - 1, len(sizes[batch_size]),
                )
            )  # fmt: skip
    return rows


class _Class(NamedTuple):
    """A class of work in a pass, measured and predicted at one batch size."""

    name: str
    phase: str
    layers: int
    measured_s: float
    predicted_s: float
    deviation: float


def _total(phase: str, classes: Sequence[_Class]) -> _Class:
    """Return the sum of all classes of a pass; their errors are assumed to be independent."""
    total = sum(each.predicted_s for each in classes)
    spread = float(np.sqrt(sum((each.predicted_s * each.deviation) ** 2 for each in classes))) / total
    layers, measured_s = sum(each.layers for each in classes), sum(each.measured_s for each in classes)
    return _Class("all", phase, layers, measured_s, total, spread)


def measure_profile(path: Path, network: str) -> PassTimes | str | None:
    """Return the times of a profile, None if it is of another network, or the reason why it cannot be read."""
    try:
        configuration = parse_name(path.name)
        if configuration.get("network", network) != network or "batch_size" not in configuration:
            return None
        return measure_passes(open_profile(path))
    except PaleoError as error:
        text = str(error)
        return text if str(path) in text else f"{path}: {text}"


def _by_class(profiles: Sequence[PassTimes], network: Network) -> dict[tuple[str, str], _Measured]:
    """Return the median times over profiles of each class and pass."""
    classes = [class_of(layer) for layer in network.layers]
    times_by_class: dict[tuple[str, str], _Measured] = {}
    for phase in ("forward", "backward"):
        for kind, name in _CLASS_OF_KIND.items():
            sums = [times.seconds[kind, phase] for times in profiles if (kind, phase) in times.seconds]
            layers = [index for index, of_class in enumerate(classes) if of_class == name]
            if sums and layers and (name, phase) not in times_by_class:
                times_by_class[name, phase] = _Measured([layers], np.array([np.median(sums)]))
        convolutions = [i for i, layer in enumerate(network.layers) if is_convolution(layer)]
        # The backward pass visits them in reverse order.
        ordered = convolutions if phase == "forward" else convolutions[::-1]
        single = [times.layers.get(("convolution", phase), ()) for times in profiles]
        single = [durations for durations in single if len(durations) == len(ordered)]
        if not single:
            continue
        medians = dict(zip(ordered, np.median(np.array(single), axis=0).tolist()))
        for name in sorted({class_of_convolution(network.layers[index]) for index in convolutions}):
            of_class = [index for index in convolutions if classes[index] == name]
            times_by_class[name, phase] = _Measured(
                [[index] for index in of_class], np.array([medians[index] for index in of_class])
            )
    return times_by_class


class _ClassModel(msgspec.Struct, frozen=True, eq=False):
    """Model of the classes of work of a network on a device, fitted to their times at one batch size."""

    workload: Workload
    rates: Rates
    prior: Prior
    batch_size: int

    def predict(self, measured: _Measured, phase: str, batch_size: int) -> tuple[float, float]:
        """Return the seconds of all layers of a class at another batch size, and the deviation of their logarithm."""
        features = features_of(self.workload.with_changes(phase=phase, batch_size=self.batch_size))
        runs = stack_features(
            [_select_layers(features, layers) for layers in measured.layers], self.rates, measured.times_s.tolist()
        )
        # A single time determines only one parameter, which should follow it.
        wide = SINGLE_TIME_WIDENING if len(runs) == 1 else 1.0
        fitted = fit(runs, Prior(self.prior.mean, self.prior.deviation * wide), SCATTER)
        all_layers = [index for layers in measured.layers for index in layers]
        other = _select_layers(features_of(self.workload.with_changes(phase=phase, batch_size=batch_size)), all_layers)
        run = np.zeros(len(other.flops), dtype=np.int64)
        # Layers run sequentially and nothing else runs: the total is their sum.
        (total,), gradient = sensitivities(other, self.rates, np.exp(fitted.theta), run, 1)
        relative = gradient[0] / total
        variance = float(relative @ fitted.covariance @ relative) + residual_variance(fitted.scatter) / len(
            measured.times_s
        )
        return float(total), float(np.sqrt(variance))


def _select_layers(features: Features, layers: Sequence[int]) -> Features:
    is_selected = np.isin(features.position[:, 1], layers)
    return Features(**{name: getattr(features, name)[is_selected] for name in Features.__struct_fields__})


def _without_host(prior: Prior) -> Prior:
    """Return the prior with host overheads fixed to one nanosecond."""
    host = np.isin(NAMES, _HOST)
    return Prior(np.where(host, np.log(1e-9), prior.mean), np.where(host, 1e-6, prior.deviation))

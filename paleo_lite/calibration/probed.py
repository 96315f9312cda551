"""A prior from probes of the device itself: what single operations took says where its parameters lie.

Each probe inverts the model's own formula for one layer (`timing.calibrated`): with the time measured and the other
terms at their prior, what is left is the compute term, and FLOPs over it is the efficiency of the probe's class.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..counting import Layer
from ..networks import Network
from ..timing.calibrated import NAMES, POWER, Rates, evaluate, sensitivities
from ..timing.classes import CLASSES, MATRIX_CLASSES
from ..timing.features import features_of
from ..timing.fitted import own_variance
from ..timing.workload import Workload
from .calibrate import held_out, order, runs_of
from .fit import Fit, Prior
from .fit import fit as fit_runs
from .measurements import Measurement
from .validate import Point

if TYPE_CHECKING:
    from ..hardware import Device

DEVIATION = 0.3
"""Deviation of a parameter's logarithm that a probe leaves at least: networks hold other shapes, and cold caches."""


class TimedLayer(msgspec.Struct, frozen=True):
    """One operation run by itself, and the seconds that it took."""

    layer: Layer
    batch_size: int
    time_s: float


class Learnt(msgspec.Struct, frozen=True, eq=False):
    """A fit, its measurements in the order of its residuals, and its error with each network held out in turn."""

    measurements: list[Measurement]
    fit: Fit
    held_out_error: float | None


def probed_prior(
    timed: Iterable[TimedLayer], rates: Rates, precision: str, base: Prior, launch_s: float, serial: bool
) -> Prior:
    """Narrow a prior by probes.

    Parameters
    ----------
    timed : iterable of TimedLayer
        Probes that need no time for anything else: not those of the launch itself.
    rates : Rates
    precision : str
    base : Prior
        What is kept where no probe speaks.
    launch_s : float
        Seconds of the shortest operation.
    serial : bool
        Whether launching and computing take turns, as on a CPU: then the shortest operation is the floor of each.
        Elsewhere it is what the host needs to launch one.

    Returns
    -------
    Prior
    """
    mean, deviation = base.mean.copy(), base.deviation.copy()

    def believe(name: str, value: float, width: float) -> None:
        place = NAMES.index(name)
        mean[place] = np.log(value)
        deviation[place] = min(max(width, DEVIATION), deviation[place])

    believe("floor_s" if serial else "overhead_s", launch_s, 0.5)
    if serial:
        believe("overhead_s", launch_s, 0.5)
        believe("overhead_backward_s", launch_s, 0.5)
    found: dict[str, list[float]] = defaultdict(list)
    for each in timed:
        name, share = _share(each, rates, precision, mean)
        if share is not None:
            found[name].append(share)
    for name, shares in found.items():
        spread = statistics.pstdev(np.log(shares))
        believe(name, statistics.median(shares), spread)
    return Prior(mean, deviation)


def _share(each: TimedLayer, rates: Rates, precision: str, theta: np.ndarray) -> tuple[str, float | None]:
    """The parameter that a probe measures and its value; None where the other terms leave nothing of the time."""
    layers = [each.layer]
    features = features_of(Workload(Network("probe", (), tuple(layers), 0), precision, each.batch_size))
    values = np.exp(theta)
    work_class = CLASSES[int(features.work_class[0])]
    name = f"efficiency_{work_class}" if work_class in MATRIX_CLASSES else "share_other"
    values[NAMES.index(name)] = 1.0
    terms = evaluate(features, rates, values)
    own, other = (terms.compute_s, terms.memory_s) if work_class in MATRIX_CLASSES else (terms.memory_s, 0.0)
    left = each.time_s**POWER - float(np.sum(other**POWER + terms.floor_s**POWER))
    # Less than a third of the time does not measure this term.
    if left < (each.time_s / 3) ** POWER:
        return name, None
    return name, float(own[0]) / left ** (1 / POWER)


def learn(measurements: Sequence[Measurement], device: Device, precision: str, prior: Prior) -> Learnt:
    """Fit measured networks on a prior of the device's own, and hold each network out in turn."""
    ordered = order(measurements)
    runs = runs_of(ordered, device, precision)
    networks = sorted({m.network for m in ordered})
    error = None
    if len(networks) >= 3:
        folds = [np.array([i for i, m in enumerate(ordered) if m.network == one]) for one in networks]
        predicted, _ = held_out(runs, [prior] * len(folds), folds)
        error = float(np.mean(np.abs(predicted / runs.measured_s - 1)))
    return Learnt(ordered, fit_runs(runs, prior), error)


def compare(fit: Fit, measurements: Sequence[Measurement], device: Device, precision: str) -> list[Point]:
    """Measurements that the fit has not seen beside its predictions of them."""
    runs = runs_of(measurements, device, precision)
    times, gradient = sensitivities(runs.features, runs.rates, np.exp(fit.theta), runs.run, len(runs))
    relative = gradient / times[:, None]
    deviation = np.sqrt(np.einsum("ij,jk,ik->i", relative, fit.covariance, relative) + own_variance(fit.scatter))
    return [Point(m, float(t), float(d)) for m, t, d in zip(measurements, times, deviation)]

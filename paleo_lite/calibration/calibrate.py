"""From measurements to a calibration of a device in a precision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from ..counting.attention import attention_of, with_attention
from ..errors import CalibrationFailed
from ..hardware import Device, Machine, find_device
from ..networks import find_network
from ..timing.features import Features, features_of, merge_alike
from ..timing.fitted import rates_of
from ..timing.workload import Workload
from .fit import SCATTER, Fit, MeasuredRuns, Prior, fit, stack
from .measurements import Measurement
from .prior import device_prior

_features: dict[tuple[str | int, ...], Features] = {}  # the same step is asked for in every fold


def features_for(measurement: Measurement) -> Features:
    """Features of the step that was measured.

    Raises
    ------
    PaleoError
        If the network is unknown or unavailable at that image size.
    """
    m = measurement
    key = (m.network, m.image_size, m.precision, m.phase, m.batch_size, m.execution, attention_of(m.framework))
    if key not in _features:
        _features[key] = merge_alike(features_of(workload_of(m)))
    return _features[key]


def workload_of(measurement: Measurement) -> Workload:
    """The step that was measured."""
    m = measurement
    counted = _counted(m.network, m.image_size, m.precision, m.execution, attention_of(m.framework))
    return counted.but(phase=m.phase, batch_size=m.batch_size)


@lru_cache(maxsize=256)
def _counted(name: str, image_size: int, precision: str, execution: str, attention: str) -> Workload:
    network = find_network(name, image_size or None)
    layers = with_attention(network.layers, attention)
    return Workload(network._replace(layers=layers), precision, execution=execution)


def order(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Measurements in an order of their own, so that no result depends on the order of rows."""
    return sorted(measurements)


def measurements_of(
    measurements: Sequence[Measurement], device: Device, precision: str, hardware_files: Iterable[Path] = ()
) -> list[Measurement]:
    """Those of a device in a precision, whatever they call it.

    Raises
    ------
    CalibrationFailed
        If there is none.
    """
    ids = {name: find_device(name, hardware_files).id for name in {step.gpu for step in measurements}}
    own = [step for step in measurements if ids[step.gpu] == device.id and step.precision == precision]
    if not own:
        have = ", ".join(sorted({f"{step.gpu} {step.precision}" for step in measurements}))
        raise CalibrationFailed(
            f"no measurement of {device.id} in {precision} among {len(measurements)}: there are {have}"
        )
    return own


def runs_of(measurements: Sequence[Measurement], device: Device, precision: str) -> MeasuredRuns:
    """Measured steps as the fit takes them, in the order given (see `order`)."""
    return stack(
        [features_for(m) for m in measurements], rates_of(Machine(device), precision), [m.time_s for m in measurements]
    )


def calibrate(
    measurements: Sequence[Measurement], device: Device, precision: str, prior: Prior | None = None
) -> tuple[list[Measurement], Fit]:
    """Fit a device in a precision to measurements of it.

    Parameters
    ----------
    measurements : sequence of Measurement
        All of this device and precision.
    prior : Prior, optional
        Without it `device_prior`, which is weak.

    Returns
    -------
    list of Measurement
        In the order of the fit's residuals.

    Raises
    ------
    CalibrationFailed
        If there is no measurement, or one of another precision.
    """
    if not measurements:
        raise CalibrationFailed(f"no measurement of {device.name} in {precision} to fit")
    others = sorted({m.precision for m in measurements} - {precision})
    if others:
        raise CalibrationFailed(f"measurements in {', '.join(others)} cannot calibrate {precision}")
    ordered = order(measurements)
    prior = prior or device_prior(device, precision)
    return ordered, fit(runs_of(ordered, device, precision), prior)


def folds_of(labels: Sequence[str]) -> list[np.ndarray]:
    """Which steps are held out together: those of each label, in the order of labels."""
    return [np.array([i for i, label in enumerate(labels) if label == one]) for one in sorted(set(labels))]


def held_out(
    runs: MeasuredRuns, priors: Sequence[Prior], folds: Sequence[np.ndarray], scatter: float = SCATTER
) -> tuple[np.ndarray, np.ndarray]:
    """Predict each fold from all the others.

    Parameters
    ----------
    priors : sequence of Prior
        Of each fold.
    scatter : float
        See `fit.SCATTER`.

    Returns
    -------
    predicted_s : ndarray
        Of every step; NaN where no fold holds it.
    deviation : ndarray
        Standard deviation of the logarithm of each prediction.
    """
    predicted, deviation = np.full(len(runs), np.nan), np.full(len(runs), np.nan)
    everything = np.arange(len(runs))
    whole = fit(runs, priors[0], scatter) if len(folds) > 1 else None
    for fold, prior in zip(folds, priors):
        start = None if whole is None else whole.theta
        learnt = fit(runs.choose(np.setdiff1d(everything, fold)), prior, scatter, start)
        predicted[fold], deviation[fold] = learnt.predict(runs.choose(fold))
    return predicted, deviation


def held_out_error(
    measurements: Sequence[Measurement], device: Device, precision: str, prior: Prior | None = None
) -> float | None:
    """Mean absolute relative error with each network predicted from all others; None with fewer than three networks."""
    networks = [m.network for m in measurements]
    if len(set(networks)) < 3:
        return None
    runs = runs_of(measurements, device, precision)
    folds = folds_of(networks)
    predicted, _ = held_out(runs, [prior or device_prior(device, precision)] * len(folds), folds)
    return float(np.mean(np.abs(predicted / runs.measured_s - 1)))

"""Training transformers in blocks: a few constants of kernels and host, fitted to measured steps.

The gradients of a matrix product are products of the same sizes and reach about as much, where other networks' factors
are those of convolutions; attention computes its scores again for its gradients, which are not counted. The fit is
``calibrations/training.toml``; `python -m validation accuracy --split training` says how true it is, held out.
"""

from __future__ import annotations

from functools import cache

import msgspec
import numpy as np

from ..errors import BadFile
from ..files import read_typed, shipped_folder
from .calibrated import NAMES, CalibratedModel
from .models import TimeModel

TRAINING_FILE = "training.toml"

SCALED = ("share_other",)
"""Constants that scale what is known of the device; the others stand in its place."""

_BYTES_AT_MOST = 2**16


class TrainingConstants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shipped file, and every fit that it is one of.

    Attributes
    ----------
    constants : dict of str to float
        Of `paleo_lite.timing.calibrated.PARAMETERS`; of those in `SCALED` what to multiply the device's by.
    deviation : dict of str to float
        Of their logarithms.
    scatter : float
        Relative deviation of steps from the model, as of sources that it has not seen.
    points : int
        Steps that it was fitted to.
    held_out : str
        How true fits to a part of them are of the others.
    """

    constants: dict[str, float]
    deviation: dict[str, float]
    scatter: float
    points: int
    devices: list[str]
    sources: list[str]
    held_out: str = ""
    format: int = 1


@cache
def training_constants() -> TrainingConstants:
    """The shipped ones.

    Raises
    ------
    BadFile
        If they are malformed.
    """
    path = shipped_folder("calibrations") / TRAINING_FILE
    constants = read_typed(path, TrainingConstants, "calibration of training", _BYTES_AT_MOST)
    if unknown := constants.constants.keys() - set(NAMES):
        raise BadFile(f"{path}: there is no parameter {min(unknown)}")
    if constants.deviation.keys() != constants.constants.keys():
        raise BadFile(f"{path}: constants and their deviations have other names")
    return constants


class TrainingModel(CalibratedModel, frozen=True, eq=False):
    """A calibrated model with the kernels of training in blocks."""

    @property
    def residual_variance(self) -> float:
        """Variance of a step's logarithm besides that of the parameters: measured with sources held out."""
        return self.scatter**2


def use_training_constants(model: TimeModel, known: TrainingConstants | None = None) -> TimeModel:
    """A calibrated model with the kernels of training in blocks; other models, and such, as they are."""
    if not isinstance(model, CalibratedModel) or isinstance(model, TrainingModel):
        return model
    known = known or training_constants()
    places = [NAMES.index(name) for name in known.constants]
    theta, covariance = model.theta.copy(), model.covariance.copy()
    own = [NAMES.index(name) for name in known.constants if name not in SCALED]
    theta[own] = 0.0
    covariance[own], covariance[:, own] = 0.0, 0.0
    theta[places] += np.log(list(known.constants.values()))
    covariance[places, places] += [known.deviation[name] ** 2 for name in known.constants]
    return TrainingModel(
        model.label,
        theta,
        covariance,
        known.scatter,
        model.notes,
        model.learned_fraction,
        fp8_relative_efficiency=model.fp8_relative_efficiency,
    )

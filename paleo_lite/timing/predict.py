"""From a workload and a machine to a prediction."""

from __future__ import annotations

from ..hardware import Machine
from .models import TimeModel
from .passes import predict_passes
from .prediction import Prediction
from .workload import Workload


def predict(workload: Workload, machine: Machine, model: TimeModel) -> Prediction:
    """Time a workload on a machine.

    Parameters
    ----------
    workload : Workload
    machine : Machine
    model : TimeModel

    Returns
    -------
    Prediction

    Raises
    ------
    UnknownPrecision
        If the device has no peak for the precision, unit or clock.
    UnsupportedPhase
        If the workload's convention does not count the phase.
    BadValue
        If the model needs bytes, which a bare FLOP count does not have, or the options of a training step do not go
        with its batch.
    """
    if workload.training is not None:
        from .training import predict_training  # with what it needs, and only then

        return predict_training(workload, machine, model)
    return predict_passes(workload, machine, model)

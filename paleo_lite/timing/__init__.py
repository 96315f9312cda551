"""Floor 4: from a workload and a machine to time."""

from .models import TIME_MODELS, PeakModel, PppModel, RooflineModel, TimeModel, describe, find_model
from .prediction import Prediction, predict
from .workload import Workload

__all__ = [
    "TIME_MODELS",
    "PeakModel",
    "PppModel",
    "Prediction",
    "RooflineModel",
    "TimeModel",
    "Workload",
    "describe",
    "find_model",
    "predict",
]

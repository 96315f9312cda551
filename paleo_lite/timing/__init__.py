"""Floor 4: from a workload and a machine to time."""

from .models import (
    TIME_MODELS,
    BoundModel,
    OverlappingPppModel,
    PeakModel,
    PppModel,
    RooflineModel,
    TimeModel,
    describe_model,
    find_model,
)
from .predicting import predict
from .prediction import Prediction
from .workload import Workload

__all__ = [
    "TIME_MODELS",
    "BoundModel",
    "OverlappingPppModel",
    "PeakModel",
    "PppModel",
    "Prediction",
    "RooflineModel",
    "TimeModel",
    "Workload",
    "describe_model",
    "find_model",
    "predict",
]

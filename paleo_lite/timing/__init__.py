"""Floor 4: from work and a device to time."""

from .models import TIME_MODELS, PeakModel, PppModel, RooflineModel, TimeModel, find_model
from .predict import predict_flops, predict_work
from .prediction import Prediction

__all__ = [
    "TIME_MODELS",
    "PeakModel",
    "PppModel",
    "Prediction",
    "RooflineModel",
    "TimeModel",
    "find_model",
    "predict_flops",
    "predict_work",
]

"""Floor 3: what this machine does, timed. Knows shapes and torch; no network, device file or time model."""

from .mock import LoadingRate, mock_loader, mock_trainer
from .step_timer import StepTimer

__all__ = ["LoadingRate", "StepTimer", "mock_loader", "mock_trainer"]

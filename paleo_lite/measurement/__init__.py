"""Floor 3: what this machine does, timed. Knows shapes and torch; no network, device file or time model."""

from .loops import LoadingRate, StepTimer, mock_loader, mock_trainer

__all__ = ["LoadingRate", "StepTimer", "mock_loader", "mock_trainer"]

"""Floor 3: timing of this machine with torch, without networks, hardware files or time models."""

from .loops import LoadingRate, StepTimer, mock_loader, mock_trainer

__all__ = ["LoadingRate", "StepTimer", "mock_loader", "mock_trainer"]

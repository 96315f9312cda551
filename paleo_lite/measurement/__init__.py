"""Floor 3: timing of this machine. It uses shapes and torch, but no network, device file or time model."""

from .loops import LoadingRate, StepTimer, mock_loader, mock_trainer

__all__ = ["LoadingRate", "StepTimer", "mock_loader", "mock_trainer"]

"""Steps of whole networks that other people timed and published, all sources together.

The files are described in their folder; the repository contains only the calibrations that are fitted to them. Rows
with an unknown device or network, or with several devices, are excluded and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from .dataset import Dataset
from .modern import modern_networks, published_engines
from .networks import published_networks
from .timm import published_timm
from .torchvision import torchvision_benchmark

SOURCES: tuple[Callable[[Path], Dataset], ...] = (
    torchvision_benchmark,
    published_networks,
    published_timm,
    modern_networks,
    published_engines,
)
"""Readers of the files of a folder."""


def published_steps(folder: Path) -> Dataset:
    """All published steps in a folder.

    Raises
    ------
    BadFile
        If a file is missing or names a GPU that has no file.
    """
    parts = [read(folder) for read in SOURCES]
    left_out = Counter[str]()
    for part in parts:
        left_out.update(part.left_out)
    return Dataset(sorted(step for part in parts for step in part.measurements), dict(left_out))

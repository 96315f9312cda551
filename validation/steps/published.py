"""Steps of whole networks that other people timed and published, all sources together.

The files are described where they are kept, not here; the repository holds none of them, only what is learnt from them.
Rows whose device or network is unknown, or that time several devices, are left out and counted.
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
"""What reads each file of a folder."""


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

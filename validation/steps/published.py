"""Published steps of whole networks from all sources.

The repository contains only calibrations fitted to these files, not the files themselves; their folder describes them.
Rows with an unknown device or network, or with several devices, are omitted and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from .dataset import MeasuredSteps
from .modern import modern_networks, published_engines
from .networks import published_networks
from .nvidia_examples import nvidia_examples
from .timm import published_timm
from .torchvision import torchvision_benchmark

SOURCES: tuple[Callable[[Path], MeasuredSteps], ...] = (
    torchvision_benchmark,
    published_networks,
    published_timm,
    modern_networks,
    published_engines,
    nvidia_examples,
)
"""Function that reads each file of the folder."""


def published_steps(folder: Path) -> MeasuredSteps:
    """Read all published steps in a folder.

    Raises
    ------
    BadFile
        If a file is missing, or names a GPU without a hardware file.
    """
    parts = [read(folder) for read in SOURCES]
    left_out = Counter[str]()
    for part in parts:
        left_out.update(part.left_out)
    return MeasuredSteps(sorted(step for part in parts for step in part.measurements), dict(left_out))

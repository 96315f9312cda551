"""paleo-lite: how long a neural network takes on a machine, and why.

Every command is a function of the same name here, and returns what the command prints.

>>> import paleo_lite as pl
>>> prediction = pl.predict("vgg16", gpu="k80", precision="fp64")  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .api.prediction import devices, layers, predict, scale, trace
    from .calibration.store import Calibration
    from .distributed.job import Settings
    from .errors import PaleoError
    from .hardware import Machine
    from .networks import network_names
    from .timing import Workload
    from .timing.options import TrainingOptions

__all__ = [
    "Calibration", "Machine", "PaleoError", "Settings", "TrainingOptions", "Workload", "__version__",
    "devices", "layers", "network_names", "predict", "scale", "trace",
]  # fmt: skip

_WHERE = {
    "Calibration": "calibration.store",
    "Machine": "hardware",
    "PaleoError": "errors",
    "Settings": "distributed.job",
    "TrainingOptions": "timing.options",
    "Workload": "timing",
    "devices": "api.prediction",
    "layers": "api.prediction",
    "network_names": "networks",
    "predict": "api.prediction",
    "scale": "api.prediction",
    "trace": "api.prediction",
}
"""The modules of these names, imported at first use: the command line's help and completion need none of them."""


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)

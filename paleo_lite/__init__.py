"""paleo-lite: how long a neural network takes on a machine, and why.

Every command is a function of the same name here, which the command calls, and returns what the command prints.

>>> import paleo_lite as pl
>>> prediction = pl.predict("vgg16", gpu="k80", precision="fp64")  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .api.calibrations import calibrate, calibrations, validate
    from .api.catalogue import audit, devices, export, hardware, links, networks
    from .api.counts import layers, rule, trace
    from .api.feeding import feeding
    from .api.gemm import gemm
    from .api.measuring import measure
    from .api.plotting import plot
    from .api.prediction import predict, predict_several
    from .api.profiles import compare, efficiency, kernels
    from .api.reporting import report
    from .api.scaling import scale
    from .api.serving import ui
    from .api.sweeps import best, sweep
    from .architectures import network_names
    from .architectures.inputs import Values
    from .calibration.store import Calibration
    from .distributed.job import Settings, Split
    from .errors import PaleoError
    from .machines import Machine
    from .timing import Workload
    from .timing.workload import TrainingOptions

__all__ = [
    "Calibration", "Machine", "PaleoError", "Settings", "Split", "TrainingOptions", "Values", "Workload", "__version__",
    "audit", "best", "calibrate", "calibrations", "compare", "devices", "efficiency", "export", "feeding", "gemm",
    "hardware", "kernels", "layers", "links", "measure", "network_names", "networks", "plot", "predict",
    "predict_several", "report", "rule", "scale", "sweep", "trace", "ui", "validate",
]  # fmt: skip

_NAMES = {
    "api.calibrations": "calibrate calibrations validate",
    "api.catalogue": "audit devices export hardware links networks",
    "api.counts": "layers rule trace",
    "api.feeding": "feeding",
    "api.gemm": "gemm",
    "api.measuring": "measure",
    "api.plotting": "plot",
    "api.prediction": "predict predict_several",
    "api.profiles": "compare efficiency kernels",
    "api.reporting": "report",
    "api.scaling": "scale",
    "api.serving": "ui",
    "api.sweeps": "best sweep",
    "calibration.store": "Calibration",
    "distributed.job": "Settings Split",
    "errors": "PaleoError",
    "machines": "Machine",
    "architectures": "network_names",
    "architectures.inputs": "Values",
    "timing": "Workload",
    "timing.workload": "TrainingOptions",
}
_WHERE = {name: module for module, names in _NAMES.items() for name in names.split()}
"""The modules of these names, imported at first use: the command line's help and completion need none of them."""


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)

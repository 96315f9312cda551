"""Predict how long a neural network takes on a machine, and explain why.

Every command is also a function of the same name in this module, which returns the result that the command prints.

>>> import paleo_lite as pl
>>> prediction = pl.predict("vgg16", gpu="k80", precision="fp64")  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .api.calibrations import calibrate, calibrations, validate
    from .api.catalogue import audit, devices, export, hardware, links, network_names, networks
    from .api.measuring import measure
    from .api.plotting import plot
    from .api.question import PictureOptions
    from .api.serving import ui
    from .architectures.inputs import Values
    from .calibration.store import Calibration
    from .distributed.parallel_config import ParallelConfig
    from .distributed.settings import Settings
    from .errors import PaleoError
    from .machines import Machine
    from .questions.best import best
    from .questions.diffusion import Diffusion, diffusion
    from .questions.efficiency import efficiency
    from .questions.feeding import Feeding, feeding
    from .questions.gemm import MatrixProducts, gemm
    from .questions.kernels import kernels, merge_traces, replay_operator
    from .questions.layers import Layers, layers, rule, trace
    from .questions.local import Local, local
    from .questions.measured import measurements
    from .questions.predict import Predict, predict
    from .questions.profile_comparison import compare
    from .questions.report import report, report_profile
    from .questions.rl import rl
    from .questions.rl_options import Rl
    from .questions.serve import serve
    from .questions.serve_options import Serve
    from .questions.sweep import sweep
    from .questions.train import Train, train
    from .timing import Workload
    from .timing.training_options import TrainingOptions

__all__ = [
    "Calibration",
    "Diffusion",
    "Feeding",
    "Layers",
    "Local",
    "Machine",
    "MatrixProducts",
    "PaleoError",
    "ParallelConfig",
    "PictureOptions",
    "Predict",
    "Rl",
    "Serve",
    "Settings",
    "Train",
    "TrainingOptions",
    "Values",
    "Workload",
    "__version__",
    "audit",
    "best",
    "calibrate",
    "calibrations",
    "compare",
    "devices",
    "diffusion",
    "efficiency",
    "export",
    "feeding",
    "gemm",
    "hardware",
    "kernels",
    "layers",
    "links",
    "local",
    "measure",
    "measurements",
    "merge_traces",
    "network_names",
    "networks",
    "plot",
    "predict",
    "replay_operator",
    "report",
    "report_profile",
    "rl",
    "rule",
    "serve",
    "sweep",
    "trace",
    "train",
    "ui",
    "validate",
]

_MODULES = {
    "Calibration": "calibration.store",
    "Diffusion": "questions.diffusion",
    "Feeding": "questions.feeding",
    "Layers": "questions.layers",
    "Local": "questions.local",
    "Machine": "machines",
    "MatrixProducts": "questions.gemm",
    "PaleoError": "errors",
    "ParallelConfig": "distributed.parallel_config",
    "PictureOptions": "api.question",
    "Predict": "questions.predict",
    "Rl": "questions.rl_options",
    "Serve": "questions.serve_options",
    "Settings": "distributed.settings",
    "Train": "questions.train",
    "TrainingOptions": "timing.training_options",
    "Values": "architectures.inputs",
    "Workload": "timing",
    "audit": "api.catalogue",
    "best": "questions.best",
    "calibrate": "api.calibrations",
    "calibrations": "api.calibrations",
    "compare": "questions.profile_comparison",
    "devices": "api.catalogue",
    "diffusion": "questions.diffusion",
    "efficiency": "questions.efficiency",
    "export": "api.catalogue",
    "feeding": "questions.feeding",
    "gemm": "questions.gemm",
    "hardware": "api.catalogue",
    "kernels": "questions.kernels",
    "layers": "questions.layers",
    "links": "api.catalogue",
    "local": "questions.local",
    "measure": "api.measuring",
    "measurements": "questions.measured",
    "merge_traces": "questions.kernels",
    "network_names": "api.catalogue",
    "networks": "api.catalogue",
    "plot": "api.plotting",
    "predict": "questions.predict",
    "replay_operator": "questions.kernels",
    "report": "questions.report",
    "report_profile": "questions.report",
    "rl": "questions.rl",
    "rule": "questions.layers",
    "serve": "questions.serve",
    "sweep": "questions.sweep",
    "trace": "questions.layers",
    "train": "questions.train",
    "ui": "api.serving",
    "validate": "api.calibrations",
}
"""Module of each public name, which is imported when the name is first used."""

_MOVED = {
    "scale": "it is `train` now; a pass of text generation on a group of devices is `predict(..., tensor=8)`, and "
    "pictures and videos are `diffusion(..., workers=8)`",
}
"""What became of the public names of earlier versions."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        advice = f": {_MOVED[name]}" if name in _MOVED else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{advice}")
    module = importlib.import_module(f".{_MODULES[name]}", __name__)
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)

"""Importing torch and torchvision, with one clear sentence where they are absent.

torchvision's wheel is linked against CUDA. Beside a CPU build of torch its C extension cannot be loaded, the operators
it would define are missing, and ``import torchvision`` dies with "operator torchvision::nms does not exist". None of
those operators runs in a classification model, so declaring their schemas is enough to import it. They may only be
declared after that very failure: where the extension does load, a second declaration aborts the whole process.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from ..extras import need

MISSING_OPERATOR = "operator torchvision::nms does not exist"
"""How ``import torchvision`` dies where its C extension could not be loaded."""

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_keep_alive: list[Any] = []  # a torch.library.Library takes its operators with it when it is collected


def import_torch(purpose: str = "tracing a network") -> ModuleType:
    """The torch module."""
    torch: ModuleType = need("torch", purpose, "torch")
    return torch


def import_torchvision(purpose: str = "building a torchvision network") -> ModuleType:
    """The torchvision module, also beside a CPU build of torch."""
    torch = import_torch(purpose)
    try:
        torchvision: ModuleType = need("torchvision", purpose, "torch")
    except RuntimeError as error:
        if MISSING_OPERATOR not in str(error):
            raise
    else:
        return torchvision
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    _keep_alive.append(library)
    for name in [name for name in sys.modules if name == "torchvision" or name.startswith("torchvision.")]:
        del sys.modules[name]
    return importlib.import_module("torchvision")

"""Imports of torch and torchvision, with a clear error where they are not installed.

torchvision's wheel is linked against CUDA. With a CPU build of torch its C extension cannot be loaded, the operators
that it defines are missing, and ``import torchvision`` fails with "operator torchvision::nms does not exist". No
classification model uses these operators, so declaring their schemas is sufficient to import it. They must only be
declared after this failure: if the extension has loaded, a second declaration aborts the process.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from ..extras import require

MISSING_OPERATOR = "operator torchvision::nms does not exist"
"""Error of ``import torchvision`` where its C extension could not be loaded."""

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_keep_alive: list[Any] = []  # operators disappear when their torch.library.Library is garbage-collected


def import_torch(purpose: str = "tracing a network") -> ModuleType:
    """Return the torch module."""
    torch: ModuleType = require("torch", purpose, "torch")
    return torch


def import_torchvision(purpose: str = "building a torchvision network") -> ModuleType:
    """Return the torchvision module, also with a CPU build of torch."""
    torch = import_torch(purpose)
    try:
        torchvision: ModuleType = require("torchvision", purpose, "torch")
    except RuntimeError as error:
        if MISSING_OPERATOR not in str(error):
            raise
    else:
        return torchvision
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    _keep_alive.append(library)
    for name in list(sys.modules):
        if name == "torchvision" or name.startswith("torchvision."):
            del sys.modules[name]
    return importlib.import_module("torchvision")

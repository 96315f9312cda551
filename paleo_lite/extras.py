"""Import of optional dependencies, with an error message that names the pip extra to install."""

from __future__ import annotations

import importlib
from typing import Any

from .errors import MissingExtra


def require(
    module: str,
    purpose: str,  # subject of the error message, such as ``"drawing charts"``
    extra: str,  # of paleo-lite that installs it
) -> Any:
    """Import an optional dependency, and return the module.

    Raise MissingExtra if it is not installed. A module missing *inside* the dependency raises its own
    ModuleNotFoundError.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise MissingExtra(purpose, extra) from None

"""Optional libraries: imported when they are needed, and missed in one sentence."""

from __future__ import annotations

import importlib
from typing import Any

from .errors import MissingExtra


def need(module: str, purpose: str, extra: str) -> Any:
    """An optional library.

    Parameters
    ----------
    module : str
        What to import.
    purpose : str
        What it is needed for, in a user's words.
    extra : str
        The extra of paleo-lite that brings it.

    Raises
    ------
    MissingExtra
        If the library itself is absent; that something it imports is absent passes through.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise MissingExtra(purpose, extra) from None

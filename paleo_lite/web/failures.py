"""Calls that may fail: the reason is shown in place of the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from ..errors import PaleoError

_T = TypeVar("_T")


class Failure(msgspec.Struct, frozen=True):
    """The reason why a call failed."""

    reason: str


def try_call(call: Callable[[], _T]) -> _T | Failure:
    """Return the result of a call, or the reason why it failed."""
    try:
        return call()
    except PaleoError as error:
        return Failure(str(error))

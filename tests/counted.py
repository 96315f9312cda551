"""Arrays that count the elements that numpy reads, so that a test can compare the work for two sizes of a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class Counted(np.ndarray):
    """An array whose comparisons, arithmetic and indexing are counted, as are those of what comes of it."""

    elements = 0  # read by all arrays of this class

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        plain = [value.view(np.ndarray) if isinstance(value, Counted) else value for value in inputs]
        if out is not None:
            options["out"] = tuple(np.asarray(array) for array in out)
        Counted.elements += max(np.size(value) for value in plain)
        return _counted(getattr(ufunc, method)(*plain, **options))

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if not isinstance(key, str):
            Counted.elements += max(np.size(found), np.size(key) if isinstance(key, np.ndarray) else 1)
        return found


def _counted(value: Any) -> Any:
    return value.view(Counted) if isinstance(value, np.ndarray) else value


def counted(array: Any) -> Any:
    """Return a view of an array that counts."""
    return np.asarray(array).view(Counted)


def elements_of(function: Callable[[], object]) -> int:
    """Return the number of elements that a call reads of counted arrays."""
    before = Counted.elements
    function()
    return Counted.elements - before


MOST_WHEN_DOUBLED = 2.6
"""Most that twice the input may read, of what the input reads: n log n is 2.2 times, and a square would be 4 times."""

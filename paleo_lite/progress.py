"""Progress of long computations: what computes reports it, and whoever listens shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[int, int], None]
"""Function that is called with the number of completed and of all parts."""

_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


def report(completed: int, total: int) -> None:
    """Tell the listener, if there is one, how many parts of a computation are completed, of so many in all."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(completed, total)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call a listener whenever progress is reported inside the block."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)

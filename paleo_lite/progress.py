"""Progress of long computations: what computes reports it, and whoever listens shows it.

In Python, ``with listening(show): pl.efficiency("profiles/")`` calls ``show(completed, total)`` after each file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[int, int], None]
"""Function that is called with the number of completed and of all parts."""

StepListener = Callable[[str], None]
"""Function that is called with a description of the step that begins."""

_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)
_STEP_LISTENER: ContextVar[StepListener | None] = ContextVar("step_listener", default=None)


def report(completed: int, total: int) -> None:
    """Report the number of completed and of all parts to the current listener, if there is one."""
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


def announce(step: str) -> None:
    """Tell the listener of steps, if there is one, which step of a computation begins."""
    listener = _STEP_LISTENER.get()
    if listener is not None:
        listener(step)


@contextmanager
def listening_to_steps(listener: StepListener) -> Iterator[None]:
    """Call a listener whenever a step is announced inside the block."""
    token = _STEP_LISTENER.set(listener)
    try:
        yield
    finally:
        _STEP_LISTENER.reset(token)

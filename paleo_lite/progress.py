"""Progress of long computations: what computes reports it, and whoever listens shows it.

In Python, ``with listening(show): pl.efficiency("profiles/")`` calls ``show(completed, total)`` after each file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

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


def listening(listener: Listener) -> AbstractContextManager[None]:
    """Call a listener whenever progress is reported inside the block."""
    return _heard_by(_LISTENER, listener)


def announce(step: str) -> None:
    """Tell the listener of steps, if there is one, which step of a computation begins."""
    listener = _STEP_LISTENER.get()
    if listener is not None:
        listener(step)


def listening_to_steps(listener: StepListener) -> AbstractContextManager[None]:
    """Call a listener whenever a step is announced inside the block."""
    return _heard_by(_STEP_LISTENER, listener)


@contextmanager
def _heard_by(variable: ContextVar[Any], listener: Any) -> Iterator[None]:
    """Set the listener inside the block."""
    token = variable.set(listener)
    try:
        yield
    finally:
        variable.reset(token)

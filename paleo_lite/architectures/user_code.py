"""Location and form of a torch call in the user's code, read from the stack."""

from __future__ import annotations

import dis
import sys
import types
from functools import lru_cache
from typing import Any

import torch.fx


def user_code_location(
    traceback: Any = None,  # traceback to search; the current stack by default
) -> str:
    """Return file and line of the innermost frame outside torch and this package."""
    if traceback is not None:
        location = ""
        while traceback is not None:
            if not _is_internal(traceback.tb_frame):
                location = _format_location(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
            traceback = traceback.tb_next
        return location
    frame = sys._getframe(1)
    while frame is not None:
        if not _is_internal(frame):
            return _format_location(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return "an unknown location"


def _format_location(path: str, line: int) -> str:
    filename = path.replace("\\", "/").rsplit("/", 1)[-1]
    return f"{filename}:{line}"


def _is_internal(frame: Any) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] == "torch" or name.rpartition(".")[0] == __package__


def call_form(function: Any) -> str:
    """Return how torch was called: ``function``, ``operator``, ``method``, or ``opaque:NAME``.

    The last is a call inside a function that torch.fx does not trace into.
    """
    frame = sys._getframe(2)
    opaque = torch.fx._symbolic_trace._wrapped_fns_to_patch
    while frame is not None and frame.f_code.co_name != "forward":
        if (id(frame.f_globals), frame.f_code.co_name) in opaque:
            return f"opaque:{frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    if getattr(function, "__name__", "").startswith("__"):
        return "operator"
    if not hasattr(function, "__objclass__"):
        return "function"
    caller = sys._getframe(2)
    tracer_globals = sys._getframe(1).f_globals
    while caller.f_globals is tracer_globals:
        caller = caller.f_back  # type: ignore[assignment]
    return "operator" if _is_operator(caller.f_code, caller.f_lasti) else "method"


@lru_cache(4096)
def _is_operator(code: types.CodeType, instruction: int) -> bool:
    """Return whether an instruction is ``x + y`` or ``x += y``, which torch reports as the method ``x.add(y)``."""
    return dis.opname[code.co_code[instruction]].startswith(("BINARY_", "INPLACE_", "UNARY_"))


def is_called_by_torch() -> bool:
    """Return whether torch itself disables gradients, as reentrant checkpoints do, which have gradients nonetheless."""
    frame = sys._getframe(3)  # skips this function and the two methods of `FunctionRecorder` that call it
    while frame.f_globals.get("__name__") in ("torch.autograd.grad_mode", "torch.utils._contextlib", "contextlib"):
        frame = frame.f_back  # type: ignore[assignment]
    return str(frame.f_globals.get("__name__")).startswith("torch.")

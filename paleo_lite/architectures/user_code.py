"""Where in the code of the user a call of torch stands, and how it is written there: read off the stack."""

from __future__ import annotations

import dis
import sys
import types
from functools import lru_cache
from typing import Any

import torch.fx


def place_in_user_code(traceback: Any = None) -> str:
    """File and line outside torch and this package: of the call, or where a traceback comes from."""
    place = ""
    if traceback is not None:
        while traceback is not None:
            if not _is_internal(traceback.tb_frame):
                place = _place(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
            traceback = traceback.tb_next
        return place
    frame = sys._getframe(1)
    while frame is not None:
        if not _is_internal(frame):
            return _place(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return "an unknown place"


def _place(filename: str, line: int) -> str:
    return f"{filename.replace(chr(92), '/').rsplit('/', 1)[-1]}:{line}"


def _is_internal(frame: Any) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] == "torch" or name.rpartition(".")[0] == __package__


def called_as(function: Any) -> str:
    """Whether a call is a function, an operator or a method, or hides in a function that torch.fx does not open."""
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
    caller, watching = sys._getframe(2), sys._getframe(1).f_globals
    while caller.f_globals is watching:
        caller = caller.f_back  # type: ignore[assignment]
    return "operator" if _is_operator(caller.f_code, caller.f_lasti) else "method"


@lru_cache(4096)
def _is_operator(code: types.CodeType, instruction: int) -> bool:
    """Whether an instruction is ``x + y`` or ``x += y``, which torch reports as the method ``x.add(y)``."""
    return dis.opname[code.co_code[instruction]].startswith(("BINARY_", "INPLACE_", "UNARY_"))


def called_by_torch() -> bool:
    """Whether torch itself switches gradients off: reentrant checkpoints do, and have gradients all the same."""
    frame = sys._getframe(3)  # past the two methods of `Calls`
    while frame.f_globals.get("__name__") in ("torch.autograd.grad_mode", "torch.utils._contextlib", "contextlib"):
        frame = frame.f_back  # type: ignore[assignment]
    return str(frame.f_globals.get("__name__")).startswith("torch.")

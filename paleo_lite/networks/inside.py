"""The torch mode that hears what goes on inside a call that is no layer of its own: its ATen operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import TraceFailed
from . import results
from .batch import MADE_TO_SIZE
from .operations import (
    DETACHED,
    NOT_AN_OPERATION,
    OPERATIONS,
    SHAPES_FROM_VALUES,
    SLICES_OR_GATHERS,
    VIEWS_OR_COPIES,
    WANTS_VALUES,
    is_in_place,
    operation_name,
)
from .readings import ATOMS, Reading, tensors_in
from .recorder import Recorder
from .user_code import place_in_user_code

Arguments = Sequence[Any]
Named = dict[str, Any]


class Operations(TorchDispatchMode):
    """Sees the ATen operations inside a call that is no layer of its own, and those of no call of torch's functions.

    TorchScript has the latter.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.called_as = "function"
        self.supports_higher_order_operators = True

    @contextmanager
    def heard_as(self, called_as: str) -> Iterator[None]:
        """Record what comes as parts of such a call; nothing where it is empty."""
        before, self.called_as = self.called_as, called_as
        try:
            yield
        finally:
            self.called_as = before

    def __torch_dispatch__(self, function: Any, types: Any, args: Arguments = (), kwargs: Named | None = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(function, HigherOrderOperator):
            return self._call_operator_of_functions(function, args)
        if not self.called_as:
            return function(*args, **kwargs)
        with torch._C.DisableTorchFunction():  # `Calls` would hear it as well, where no call of its own is around it
            return self._hear(function, args, kwargs)

    def _call_operator_of_functions(self, function: Any, args: Arguments) -> Any:
        """``torch.cond`` takes the way of a condition that holds; loops and their kin have no end that is known."""
        if function.__name__ != "cond":
            raise TraceFailed(f"{function.__name__} calls functions as often as data says, at {place_in_user_code()}: "
                              "trace what it calls")  # fmt: skip
        self.recorder.assume()
        _, chosen, _, operands = args
        with self:
            return chosen(*operands)

    def _hear(self, function: Any, args: Arguments, kwargs: Named) -> Any:
        name = operation_name(function)
        recorder = self.recorder
        if name in SHAPES_FROM_VALUES:
            raise needs_values(f"the shape of {name}'s result depends on the values of a tensor")
        if any(tensor.is_meta for tensor in tensors_in(args, kwargs)):
            stand_in = recorder.stand_in_of_numbers if name in WANTS_VALUES else recorder.stand_in
            args, kwargs = map_tensors(args, stand_in), map_tensors(kwargs, stand_in)
        reading = read(name, args, kwargs)
        if reading is not None and len(function._schema.returns) == 1:
            result = results.make(function, is_in_place(function), args, kwargs, reading)
        else:
            result = function(*args, **kwargs)
        made = tensors_in(result)
        if not made or name in NOT_AN_OPERATION:
            return result
        if name in VIEWS_OR_COPIES and is_in_place(function):
            return result  # the same tensor in another shape
        main = made[:1] if reading is not None and isinstance(result, tuple) else made
        if reading is None:
            reading = reading_of(name, args, kwargs, result)
        if reading is None:
            kind = "view" if getattr(function, "is_view", False) else f"{getattr(function, 'namespace', 'aten')}.{name}"
            reading = Reading(kind, tensors_in(args, kwargs), [], {}, alike=True)
        if not is_view_of_parameter(recorder, reading, name, args, kwargs, result):
            written = args[0] if is_in_place(function) else None
            recorder.record(reading, main, name, self.called_as, written=written)
        return result


def read(name: str, args: Arguments, kwargs: Named) -> Reading | None:
    """What a call is by its name, or None where it has no reader or is called in a way the reader does not know."""
    reader = OPERATIONS.get(name)
    if reader is None:
        return None
    if "out" in kwargs:
        kwargs = {key: value for key, value in kwargs.items() if key != "out"}
    try:
        return reader(*args, **kwargs)
    except (TypeError, ValueError, AttributeError, IndexError):
        return None  # torch says what is wrong with the call, if anything is


def reading_of(name: str, args: Arguments, kwargs: Named, result: Any) -> Reading | None:
    """What a call is whose kind depends on its result, or None where it is not an operation on tensors."""
    made = tensors_in(result)
    if not made or name in NOT_AN_OPERATION:
        return None
    operands = tensors_in(args, kwargs)
    if name in VIEWS_OR_COPIES:
        if any(tensor is operands[0] for tensor in made):
            return None
        if operands and torch._C._is_alias_of(operands[0], made[0]):
            return Reading("view", operands[:1], [], {"no_gradient": True} if name in DETACHED else {}, alike=True)
        return Reading("copy", operands[:1], [], {}, alike=True)
    if name in SLICES_OR_GATHERS:
        kind = "slice" if torch._C._is_alias_of(operands[0], made[0]) else "gather"
        return Reading(kind, operands[:1], [], {}, alike=True)
    return read(name, args, kwargs)


def is_view_of_parameter(
    recorder: Recorder, reading: Reading, name: str, args: Arguments, kwargs: Named, result: Any
) -> bool:
    """Whether a call is a view of a parameter: no layer, but the parameter under another name."""
    if reading.kind not in ("view", "slice"):
        return False
    operands = tensors_in(args, kwargs)
    root = recorder.parameter_of(operands)
    if root is not None:
        recorder.alias(tensors_in(result), operands, root, name in MADE_TO_SIZE)
    return root is not None


def needs_values(what: str) -> TraceFailed:
    """What fails where forward asks for what only a real run knows."""
    return TraceFailed(f"{what} at {place_in_user_code()}, and tracing knows shapes only")


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Arguments of a call with every tensor in them changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) in ATOMS:
        return value
    if isinstance(value, (tuple, list)) and value:
        mapped = [map_tensors(item, change) for item in value]
        if isinstance(value, torch.Size):
            return value
        return type(value)(*mapped) if hasattr(value, "_fields") else type(value)(mapped)
    if isinstance(value, dict):
        return {key: map_tensors(item, change) for key, item in value.items()}
    return value

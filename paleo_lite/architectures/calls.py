"""The torch modes that watch a forward pass.

`Calls` sees functions, methods and operators as they are written (``F.conv2d``, ``x + y``); those in `OPERATIONS`
become one layer each. A function written in Python that is not there is opened up; one written in C++ runs under
`Operations`, which sees the ATen operations inside. Nothing is patched.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.fx
from torch._ops import HigherOrderOperator
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..counting import CONSTANT, KINDS
from ..errors import TraceFailed
from . import results
from .operations import (
    CONDITIONS,
    DETACHED,
    FACTS,
    MADE_TO_SIZE,
    NOT_AN_OPERATION,
    OPERATIONS,
    SHAPES_FROM_VALUES,
    SLICES_OR_GATHERS,
    VALUES,
    VIEWS_OR_COPIES,
    WANTS_VALUES,
    is_in_place,
    operation_name,
    words,
)
from .readings import ATOMS, Reading, tensors_in
from .recorder import Recorder
from .user_code import called_as, called_by_torch, place_in_user_code

_VIEWS = VIEWS_OR_COPIES | SLICES_OR_GATHERS | NOT_AN_OPERATION | {"setitem"}
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_MOVES = words("to cuda cpu type xpu mps pin_memory")
_FILLED_WITH_VALUES = words("arange linspace logspace tensor as_tensor scalar_tensor tril_indices")
_CONSTANT_ELEMENTS_AT_MOST = 1024  # larger constants are not computed with: an outer product of two takes their square


class Calls(TorchFunctionMode):
    """Sees every call of torch as it is written, and hears through `operations` what goes on inside those it asks."""

    def __init__(self, recorder: Recorder, operations: Operations) -> None:
        super().__init__()
        self.recorder, self.operations = recorder, operations
        self._opened: dict[Any, Any] = {}
        self._opening: list[Any] = []

    def __torch_function__(self, function: Any, types: Any, args: Arguments = (), kwargs: Named | None = None) -> Any:
        name = operation_name(function)
        if name in FACTS:
            return function(*args, **kwargs or {})
        operations = self.operations
        called_as, operations.called_as = operations.called_as, ""
        try:
            return self._call(function, name, args, kwargs or {})
        finally:
            operations.called_as = called_as

    def _call(self, function: Any, name: str, args: Arguments, kwargs: Named) -> Any:
        recorder = self.recorder
        if name in VALUES:
            return self._value(function, name, args, kwargs)
        if name == "set_grad_enabled":
            if not called_by_torch():
                recorder.gradients = bool(args[0])
            return function(*args, **kwargs)
        operands = tensors_in(args, kwargs)
        if not operands:
            return self._factory(function, name, args, kwargs)
        in_place = is_in_place(function)
        if any(map(recorder.needs_stand_in, operands)):
            if self._is_constant(operands, in_place or "out" in kwargs):
                result = function(*args, **kwargs)
                recorder.born([tensor for tensor in tensors_in(result) if tensor._base is None])
                return self._note(function, name, args, kwargs, result)
            for tensor in tensors_in(args[:1], kwargs.get("out")) if in_place or "out" in kwargs else ():
                recorder.written(tensor)
            stand_in = recorder.stand_in_of_numbers if name in WANTS_VALUES else recorder.stand_in
            args, kwargs = map_tensors(args, stand_in), map_tensors(kwargs, stand_in)
        if _is_mapped():
            with self.operations.heard_as(called_as(function)):
                return function(*args, **kwargs)
        if name in _MOVES:
            function, name, args, kwargs = _stay_on_meta(function, name, args, kwargs)
            if len(args) == 1 and not kwargs:
                return args[0]
        if name in SHAPES_FROM_VALUES or (name in ("getitem", "where") and _picks_by_value(name, args)):
            raise needs_values(f"the shape of {name}'s result depends on the values of a tensor")
        reading = read(name, args, kwargs)
        if reading is not None or name in _VIEWS:
            # Nothing inside is listened to; of a tensor of torch's own it is faster where nobody could.
            plain = all(type(tensor) in _TENSORS for tensor in operands)
            with torch._C._DisableTorchDispatch() if plain else nullcontext():
                return self._run(function, name, reading, args, kwargs)
        return self._look_into(function, args, kwargs)

    def _run(self, function: Any, name: str, reading: Reading | None, args: Arguments, kwargs: Named) -> Any:
        """A call on meta tensors that is one layer: by its name, or a view or a copy as its result says."""
        if name == "setitem":
            return self._assign(function, *args)
        if reading is None:
            return self._note(function, name, args, kwargs, function(*args, **kwargs))
        result = main = results.make(function, is_in_place(function), args, kwargs, reading)
        if reading.kind in KINDS and KINDS[reading.kind].group == "pooling" and isinstance(result, tuple):
            self.recorder.made_by(result[1], CONSTANT)
            main = result[0]
        self._record(function, name, reading, main, args, kwargs)
        return result

    def _look_into(self, function: Any, args: Arguments, kwargs: Named) -> Any:
        """A call on meta tensors that is several layers: the calls inside, or the operations."""
        if _is_python(function) and function not in self._opening:
            self._opening.append(function)
            try:
                with self:
                    return self._open(function)(*args, **kwargs)
            finally:
                self._opening.pop()
        with self.operations.heard_as(called_as(function)):
            return function(*args, **kwargs)

    def _is_constant(self, operands: Sequence[torch.Tensor], writes: bool) -> bool:
        """Whether all operands are small and known, and a write would go to what forward itself made."""
        recorder = self.recorder
        return (
            all(map(recorder.is_known, operands))
            and sum(tensor.numel() for tensor in operands) <= _CONSTANT_ELEMENTS_AT_MOST
            and (not writes or all(map(recorder.is_own, operands[:1])))
        )

    def _note(self, function: Any, name: str, args: Arguments, kwargs: Named, result: Any) -> Any:
        """Record a call whose result is at hand."""
        if name == "setitem":
            return result
        reading = reading_of(name, args, kwargs, result)
        if reading is not None and not is_view_of_parameter(self.recorder, reading, name, args, kwargs, result):
            self._record(function, name, reading, result, args, kwargs)
        return result

    def _record(self, function: Any, name: str, reading: Reading, result: Any, args: Arguments, kwargs: Named) -> None:
        written = kwargs.get("out")
        if written is None and is_in_place(function):
            written = args[0]
        outputs = tensors_in(result)
        if outputs or written is not None:
            self.recorder.record(reading, outputs or [written], name, called_as(function), written=written)

    def _assign(self, function: Any, target: torch.Tensor, index: Any, value: Any) -> None:
        """``target[index] = value``: a write into part of a tensor, whose other parts stay."""
        values = tensors_in(value)
        if any(tensor.is_meta and tensor.dtype == torch.bool for tensor in tensors_in(index)):
            reading, place = Reading("where", [target, *tensors_in(index), *values], [], {}, alike=True), target
        else:
            function(target, index, value)
            with torch._C.DisableTorchFunction():
                place = target[index]
            if values and _is_same_memory(place, values[0]):
                return  # the end of ``target[index] += value``, which the addition has written already
            reading = Reading("assign", [target, *values], [], {})
        self.recorder.record(reading, [place], "setitem", called_as(function), written=target)

    def _factory(self, function: Any, name: str, args: Arguments, kwargs: Named) -> Any:
        """A tensor from nothing: kept real where its values may be asked for, else on the meta device."""
        if name in OPERATIONS or name in NOT_AN_OPERATION or "device" in kwargs:
            if name not in _FILLED_WITH_VALUES:
                kwargs = {**kwargs, "device": "meta"}
            elif kwargs.get("device") is not None:
                kwargs = {key: value for key, value in kwargs.items() if key != "device"}
        result = function(*args, **kwargs)
        made = tensors_in(result)
        if made and (name in OPERATIONS or name in NOT_AN_OPERATION):
            self.recorder.born(made)
            if name in OPERATIONS:
                self.recorder.record(Reading("fill", [], [], {}), made, name, called_as(function))
        return result

    def _value(self, function: Any, name: str, args: Arguments, kwargs: Named) -> Any:
        """The numbers in a tensor are known for constants and for the module's own; a condition is taken to hold."""
        recorder = self.recorder
        unknown = [
            t for t in tensors_in(args, kwargs) if t.is_meta or not (recorder.is_known(t) or recorder.is_pristine(t))
        ]
        if not unknown or (name == "__format__" and args[1:] == ("",)):
            return function(*args, **kwargs)
        if name in CONDITIONS:
            return recorder.assume()
        raise needs_values("the value of a tensor is needed")

    def _open(self, function: types.FunctionType) -> types.FunctionType:
        """A copy of a torch function that does not ask to be dispatched, so that the calls inside it are seen."""
        if function not in self._opened:
            never = dict.fromkeys(
                ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"), lambda *_: False
            )
            copy = types.FunctionType(
                function.__code__,
                function.__globals__ | never,
                function.__name__,
                function.__defaults__,
                function.__closure__,
            )
            copy.__kwdefaults__ = function.__kwdefaults__
            self._opened[function] = copy
        opened: types.FunctionType = self._opened[function]
        return opened


def _picks_by_value(name: str, args: Arguments) -> bool:
    """Whether ``x[mask]`` or ``where(mask)`` picks elements by a mask whose values are unknown."""
    if name == "where":
        return len(args) == 1
    return any(tensor.is_meta and tensor.dtype in (torch.bool, torch.uint8) for tensor in tensors_in(args[1:]))


def _is_mapped() -> bool:
    """Whether ``torch.vmap`` shows one sample of operands that have many: the operations inside see them all."""
    transforms = torch._C._functorch.get_interpreter_stack() or ()
    return any(transform.key() == torch._C._functorch.TransformType.Vmap for transform in transforms)


def _is_same_memory(left: torch.Tensor, right: torch.Tensor) -> bool:
    return bool(
        torch._C._is_alias_of(left, right)
        and left.storage_offset() == right.storage_offset()
        and left.shape == right.shape
        and left.stride() == right.stride()
    )


def _stay_on_meta(function: Any, name: str, args: Arguments, kwargs: Named) -> tuple[Any, str, Arguments, Named]:
    """A move to another device is not an operation here; a change of type or layout is."""
    wanted = [*args[1:], *kwargs.values()]
    if name == "type" and not wanted:
        return torch.Tensor.dtype.__get__, "dtype", args, kwargs
    types = [value for value in wanted if isinstance(value, torch.dtype)]
    types += [value.dtype for value in wanted if hasattr(value, "dtype")]
    types += [_tensor_type(value).dtype for value in wanted if name == "type" and isinstance(value, str)]
    layout = {key: value for key, value in kwargs.items() if key == "memory_format"}
    return torch.Tensor.to, "to", [args[0], *types[:1]], layout


def _tensor_type(name: str) -> Any:
    """``"torch.cuda.FloatTensor"`` is ``torch.FloatTensor`` elsewhere."""
    return getattr(torch, name.rpartition(".")[2])


def _is_python(function: Any) -> bool:
    # Methods of Tensor written in Python end in the C++ method of the same name, which would be dispatched again.
    return isinstance(function, types.FunctionType) and function.__module__ in (
        "torch.nn.functional",
        "torch.functional",
    )


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

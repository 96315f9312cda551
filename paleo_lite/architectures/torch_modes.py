"""Torch modes that record the operations of a forward pass.

`FunctionRecorder` intercepts calls of functions, methods and operators (``F.conv2d``, ``x + y``). Each call listed in
`OPERATIONS` becomes one layer. Other functions written in Python are run so that the calls inside are intercepted as
well; those written in C++ run under `OperationRecorder`, which intercepts the ATen operations inside. No function of
torch is patched.
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
from . import call_outputs
from .call_readers import PLAIN_TYPES, TorchCall, tensors_in
from .operations import (
    CONDITIONS,
    DETACHED,
    MADE_TO_SIZE,
    METADATA_CALLS,
    NOT_AN_OPERATION,
    OPERATIONS,
    READS_VALUES,
    SHAPES_FROM_VALUES,
    SLICES_OR_GATHERS,
    VALUES,
    VIEWS_OR_COPIES,
    is_in_place,
    name_set,
    operation_name,
)
from .recorder import Recorder
from .user_code import call_form, is_called_by_torch, user_code_location

_VIEWS = VIEWS_OR_COPIES | SLICES_OR_GATHERS | NOT_AN_OPERATION | {"setitem"}
_TENSOR_TYPES = (torch.Tensor, torch.nn.Parameter)
_MOVES = name_set("to cuda cpu type xpu mps pin_memory")
_FILLED_WITH_VALUES = name_set("arange linspace logspace tensor as_tensor scalar_tensor tril_indices")
_MAX_CONSTANT_ELEMENTS = 1024
"""Maximum number of elements of constants that are evaluated; an outer product has the square of this number."""

Arguments = Sequence[Any]
KeywordArguments = dict[str, Any]


class FunctionRecorder(TorchFunctionMode):
    """Mode that records the calls of torch functions, methods and operators."""

    def __init__(
        self,
        recorder: Recorder,  # collects the layers
        operations: OperationRecorder,  # records the ATen operations inside calls that are not a single layer
    ) -> None:
        super().__init__()
        self.recorder = recorder
        self.operations = operations
        self._without_dispatch: dict[Any, Any] = {}
        self._functions_being_traced: list[Any] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Arguments = (), kwargs: KeywordArguments | None = None
    ) -> Any:
        name = operation_name(function)
        if name in METADATA_CALLS:
            return function(*args, **kwargs or {})
        operations = self.operations
        previous_form = operations.call_form
        operations.call_form = ""
        try:
            return self._call(function, name, args, kwargs or {})
        finally:
            operations.call_form = previous_form

    def _call(self, function: Any, name: str, args: Arguments, kwargs: KeywordArguments) -> Any:
        """Run a call, record its layers, and return its result."""
        recorder = self.recorder
        if name in ("getitem", "setitem") and self._has_known_mask(args):
            args = (args[0], args[1].nonzero(as_tuple=True), *args[2:])
        if name in VALUES:
            return self._read_value(function, name, args, kwargs)
        if name == "set_grad_enabled":
            if not is_called_by_torch():
                recorder.gradients = bool(args[0])
            return function(*args, **kwargs)
        operands = tensors_in(args, kwargs)
        if not operands:
            return self._create_tensor(function, name, args, kwargs)
        writes = is_in_place(function) or "out" in kwargs
        if any(map(recorder.needs_stand_in, operands)):
            if self._is_constant(operands, writes):
                result = function(*args, **kwargs)
                recorder.add_created([tensor for tensor in tensors_in(result) if tensor._base is None])
                return self._record_result(function, name, args, kwargs, result)
            if writes:
                for tensor in tensors_in(args[:1], kwargs.get("out")):
                    recorder.mark_written(tensor)
            stand_in = recorder.stand_in_of_numbers if name in READS_VALUES else recorder.stand_in
            args = map_tensors(args, stand_in)
            kwargs = map_tensors(kwargs, stand_in)
        if _is_inside_vmap():
            with self.operations.record_as(call_form(function)):
                return function(*args, **kwargs)
        if name in _MOVES:
            function, name, args, kwargs = _stay_on_meta(function, name, args, kwargs)
            if len(args) == 1 and not kwargs:
                return args[0]
        if name in SHAPES_FROM_VALUES or (name in ("getitem", "where") and _selects_by_mask(name, args)):
            raise values_needed(f"the shape of {name}'s result depends on the values of a tensor")
        call = read(name, args, kwargs)
        if call is None and name not in _VIEWS:
            return self._trace_inside(function, args, kwargs)
        # Operations inside a single layer are not recorded. Disabling dispatch is faster, and safe for plain tensors.
        is_plain = all(type(tensor) in _TENSOR_TYPES for tensor in operands)
        with torch._C._DisableTorchDispatch() if is_plain else nullcontext():
            return self._run_layer(function, name, call, args, kwargs)

    def _has_known_mask(self, args: Arguments) -> bool:
        """Return whether elements are selected by a mask whose values are known, so that their number is."""
        mask = args[1]
        return isinstance(mask, torch.Tensor) and mask.dtype == torch.bool and self.recorder.is_known(mask)

    def _run_layer(
        self, function: Any, name: str, call: TorchCall | None, args: Arguments, kwargs: KeywordArguments
    ) -> Any:
        """Run and record a call that is a single layer, or a view or copy depending on its result."""
        if name == "setitem":
            return self._assign(function, *args)
        if call is None:
            return self._record_result(function, name, args, kwargs, function(*args, **kwargs))
        result = call_outputs.make_output(function, is_in_place(function), args, kwargs, call)
        main_result = result
        if call.kind in KINDS and KINDS[call.kind].group == "pooling" and isinstance(result, tuple):
            self.recorder.set_producer(result[1], CONSTANT)
            main_result = result[0]
        self._record(function, name, call, main_result, args, kwargs)
        return result

    def _trace_inside(self, function: Any, args: Arguments, kwargs: KeywordArguments) -> Any:
        """Run a call that consists of several layers, and record the calls or ATen operations inside."""
        if _is_python_function(function) and function not in self._functions_being_traced:
            self._functions_being_traced.append(function)
            try:
                with self:
                    return self._disable_dispatch_checks(function)(*args, **kwargs)
            finally:
                self._functions_being_traced.pop()
        with self.operations.record_as(call_form(function)):
            return function(*args, **kwargs)

    def _is_constant(self, operands: Sequence[torch.Tensor], writes: bool) -> bool:
        """Return whether a call can be evaluated: its operands are small and known, and it changes no other tensors.

        A call that writes may change only a tensor that the forward pass created.
        """
        recorder = self.recorder
        return (
            all(map(recorder.is_known, operands))
            and sum(tensor.numel() for tensor in operands) <= _MAX_CONSTANT_ELEMENTS
            and (not writes or all(map(recorder.is_own, operands[:1])))
        )

    def _record_result(self, function: Any, name: str, args: Arguments, kwargs: KeywordArguments, result: Any) -> Any:
        """Record a call with a known result, and return the result."""
        if name == "setitem":
            return result
        call = read_with_result(name, args, kwargs, result)
        if call is not None and not is_view_of_parameter(self.recorder, call, name, args, kwargs, result):
            self._record(function, name, call, result, args, kwargs)
        return result

    def _record(
        self, function: Any, name: str, call: TorchCall, result: Any, args: Arguments, kwargs: KeywordArguments
    ) -> None:
        written = kwargs.get("out")
        if written is None and is_in_place(function):
            written = args[0]
        outputs = tensors_in(result)
        if outputs or written is not None:
            self.recorder.record(call, outputs or [written], name, call_form(function), written=written)

    def _assign(self, function: Any, target: torch.Tensor, index: Any, value: Any) -> None:
        """Record ``target[index] = value``: a write into a part of a tensor."""
        values = tensors_in(value)
        if any(tensor.is_meta and tensor.dtype == torch.bool for tensor in tensors_in(index)):
            operands = [target, *tensors_in(index), *values]
            call = TorchCall("where", operands, [], {}, parameters_are_weights=True)
            part = target
        else:
            function(target, index, value)
            with torch._C.DisableTorchFunction():
                part = target[index]
            if values and _is_same_memory(part, values[0]):
                return  # the last step of ``target[index] += value``: the addition has already written the value
            call = TorchCall("assign", [target, *values], [], {})
        self.recorder.record(call, [part], "setitem", call_form(function), written=target)

    def _create_tensor(self, function: Any, name: str, args: Arguments, kwargs: KeywordArguments) -> Any:
        """Run a call that creates a tensor, on the meta device unless the forward pass may read its values."""
        is_creation = name in OPERATIONS or name in NOT_AN_OPERATION
        if is_creation or "device" in kwargs:
            if name not in _FILLED_WITH_VALUES:
                kwargs = {**kwargs, "device": "meta"}
            elif kwargs.get("device") is not None:
                kwargs = {key: value for key, value in kwargs.items() if key != "device"}
        result = function(*args, **kwargs)
        created = tensors_in(result)
        if created and is_creation:
            self.recorder.add_created(created)
            if name in OPERATIONS:
                self.recorder.record(TorchCall("fill", [], [], {}), created, name, call_form(function))
        return result

    def _read_value(self, function: Any, name: str, args: Arguments, kwargs: KeywordArguments) -> Any:
        """Run a call that reads values of tensors.

        The values of constants and of the module's tensors are known. Unknown conditions are assumed to be true; other
        unknown values raise TraceFailed.
        """
        recorder = self.recorder
        has_unknown_values = any(
            tensor.is_meta or not (recorder.is_known(tensor) or recorder.is_pristine(tensor))
            for tensor in tensors_in(args, kwargs)
        )
        is_plain_format = name == "__format__" and args[1:] == ("",)
        if not has_unknown_values or is_plain_format:
            return function(*args, **kwargs)
        if name in CONDITIONS:
            return recorder.assume_true()
        raise values_needed("the value of a tensor is needed")

    def _disable_dispatch_checks(self, function: types.FunctionType) -> types.FunctionType:
        """Return a copy of a torch function that skips its own dispatch, so that the calls inside are intercepted."""
        if function not in self._without_dispatch:
            checks = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
            never = dict.fromkeys(checks, lambda *_: False)
            copy = types.FunctionType(
                function.__code__,
                function.__globals__ | never,
                function.__name__,
                function.__defaults__,
                function.__closure__,
            )
            copy.__kwdefaults__ = function.__kwdefaults__
            self._without_dispatch[function] = copy
        result: types.FunctionType = self._without_dispatch[function]
        return result


def _selects_by_mask(name: str, args: Arguments) -> bool:
    """Return whether ``x[mask]`` or ``where(mask)`` selects elements by a mask with unknown values."""
    if name == "where":
        return len(args) == 1
    return any(tensor.is_meta and tensor.dtype in (torch.bool, torch.uint8) for tensor in tensors_in(args[1:]))


def _is_inside_vmap() -> bool:
    """Return whether ``torch.vmap`` is active, under which calls receive one sample and ATen operations the batch."""
    transforms = torch._C._functorch.get_interpreter_stack() or ()
    return any(transform.key() == torch._C._functorch.TransformType.Vmap for transform in transforms)


def _is_same_memory(left: torch.Tensor, right: torch.Tensor) -> bool:
    return bool(
        torch._C._is_alias_of(left, right)
        and left.storage_offset() == right.storage_offset()
        and left.shape == right.shape
        and left.stride() == right.stride()
    )


def _stay_on_meta(
    function: Any, name: str, args: Arguments, kwargs: KeywordArguments
) -> tuple[Any, str, Arguments, KeywordArguments]:
    """Replace a move to another device by its change of type or layout; a move alone is not an operation."""
    options = [*args[1:], *kwargs.values()]
    if name == "type" and not options:
        return torch.Tensor.dtype.__get__, "dtype", args, kwargs
    dtypes = [value for value in options if isinstance(value, torch.dtype)]
    dtypes += [value.dtype for value in options if hasattr(value, "dtype")]
    dtypes += [_tensor_type(value).dtype for value in options if name == "type" and isinstance(value, str)]
    layout = {key: value for key, value in kwargs.items() if key == "memory_format"}
    return torch.Tensor.to, "to", [args[0], *dtypes[:1]], layout


def _tensor_type(name: str) -> Any:
    """Return the tensor type of a name on the CPU: ``torch.FloatTensor`` for ``"torch.cuda.FloatTensor"``."""
    return getattr(torch, name.rpartition(".")[2])


def _is_python_function(function: Any) -> bool:
    # Methods of Tensor written in Python end in the C++ method of the same name, which would be dispatched again.
    return isinstance(function, types.FunctionType) and function.__module__ in (
        "torch.nn.functional",
        "torch.functional",
    )


class OperationRecorder(TorchDispatchMode):
    """Mode that records ATen operations inside calls that are not a single layer, and those of TorchScript."""

    def __init__(
        self,
        recorder: Recorder,  # collects the layers
    ) -> None:
        super().__init__()
        self.recorder = recorder
        # Form of the enclosing call, see `user_code.call_form`; empty while operations are not recorded.
        self.call_form = "function"
        self.supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: nothing is compiled under this mode.

        Otherwise torch wraps `__torch_dispatch__`, and imports its compiler, a second of work, on the first operation.
        """
        return False

    @contextmanager
    def record_as(self, call_form: str) -> Iterator[None]:
        """Record operations as parts of a call of the given form, or do not record them if it is empty."""
        previous_form = self.call_form
        self.call_form = call_form
        try:
            yield
        finally:
            self.call_form = previous_form

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Arguments = (), kwargs: KeywordArguments | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(function, HigherOrderOperator):
            return self._call_higher_order_operator(function, args)
        if not self.call_form:
            return function(*args, **kwargs)
        with torch._C.DisableTorchFunction():  # otherwise `FunctionRecorder` might record the operation again
            return self._record_operation(function, args, kwargs)

    def _call_higher_order_operator(self, function: Any, args: Arguments) -> Any:
        """Run the true branch of ``torch.cond``; raise TraceFailed for loops, which have an unknown number of steps."""
        if function.__name__ != "cond":
            raise TraceFailed(
                f"{function.__name__} at {user_code_location()} calls functions a data-dependent number of times: "
                "trace the function that it calls"
            )
        self.recorder.assume_true()
        _, true_branch, _, operands = args
        with self:
            return true_branch(*operands)

    def _record_operation(self, function: Any, args: Arguments, kwargs: KeywordArguments) -> Any:
        name = operation_name(function)
        recorder = self.recorder
        if name in SHAPES_FROM_VALUES:
            raise values_needed(f"the shape of {name}'s result depends on the values of a tensor")
        if any(tensor.is_meta for tensor in tensors_in(args, kwargs)):
            stand_in = recorder.stand_in_of_numbers if name in READS_VALUES else recorder.stand_in
            args = map_tensors(args, stand_in)
            kwargs = map_tensors(kwargs, stand_in)
        call = read(name, args, kwargs)
        if call is not None and len(function._schema.returns) == 1:
            result = call_outputs.make_output(function, is_in_place(function), args, kwargs, call)
        else:
            result = function(*args, **kwargs)
        outputs = tensors_in(result)
        if not outputs or name in NOT_AN_OPERATION:
            return result
        if name in VIEWS_OR_COPIES and is_in_place(function):
            return result  # the same tensor in another shape
        if call is not None and isinstance(result, tuple):
            outputs = outputs[:1]
        if call is None:
            call = read_with_result(name, args, kwargs, result)
        if call is None:
            kind = "view" if getattr(function, "is_view", False) else f"{getattr(function, 'namespace', 'aten')}.{name}"
            call = TorchCall(kind, tensors_in(args, kwargs), [], {}, parameters_are_weights=True)
        if not is_view_of_parameter(recorder, call, name, args, kwargs, result):
            written = args[0] if is_in_place(function) else None
            recorder.record(call, outputs, name, self.call_form, written=written)
        return result


def read(name: str, args: Arguments, kwargs: KeywordArguments) -> TorchCall | None:
    """Read the operands of a call; return None if it has no reader, or if the reader does not support the arguments."""
    reader = OPERATIONS.get(name)
    if reader is None:
        return None
    if "out" in kwargs:
        kwargs = {key: value for key, value in kwargs.items() if key != "out"}
    try:
        return reader(*args, **kwargs)
    except (TypeError, ValueError, AttributeError, IndexError):
        return None  # if the call is invalid, torch raises the error


def read_with_result(name: str, args: Arguments, kwargs: KeywordArguments, result: Any) -> TorchCall | None:
    """Read a call with a kind that depends on its result; return None if it is not an operation on tensors."""
    outputs = tensors_in(result)
    if not outputs or name in NOT_AN_OPERATION:
        return None
    operands = tensors_in(args, kwargs)
    if name in VIEWS_OR_COPIES:
        if any(tensor is operands[0] for tensor in outputs):
            return None
        attributes: dict[str, Any] = {}
        kind = "copy"
        if operands and torch._C._is_alias_of(operands[0], outputs[0]):
            kind = "view"
            if name in DETACHED:
                attributes["no_gradient"] = True
        return TorchCall(kind, operands[:1], [], attributes, parameters_are_weights=True)
    if name in SLICES_OR_GATHERS:
        kind = "slice" if torch._C._is_alias_of(operands[0], outputs[0]) else "gather"
        return TorchCall(kind, operands[:1], [], {}, parameters_are_weights=True)
    return read(name, args, kwargs)


def is_view_of_parameter(
    recorder: Recorder, call: TorchCall, name: str, args: Arguments, kwargs: KeywordArguments, result: Any
) -> bool:
    """Return whether a call creates a view of a parameter, which is not a layer; register the view if so."""
    if call.kind not in ("view", "slice"):
        return False
    operands = tensors_in(args, kwargs)
    parameter = recorder.parameter_of(operands)
    if parameter is None:
        return False
    recorder.add_parameter_view(tensors_in(result), operands, parameter, name in MADE_TO_SIZE)
    return True


def values_needed(problem: str) -> TraceFailed:
    """Return the error for a forward pass that depends on unknown values of tensors."""
    return TraceFailed(f"{problem} at {user_code_location()}, but tracing knows only shapes")


def map_tensors(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Apply a function to every tensor in nested arguments of a call."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if type(value) in PLAIN_TYPES:
        return value
    if isinstance(value, (tuple, list)) and value:
        if isinstance(value, torch.Size):
            return value
        mapped = [map_tensors(item, function) for item in value]
        return type(value)(*mapped) if hasattr(value, "_fields") else type(value)(mapped)
    if isinstance(value, dict):
        return {key: map_tensors(item, function) for key, item in value.items()}
    return value

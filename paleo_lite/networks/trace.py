"""Tracing any ``nn.Module`` without running it: every tensor operation, in order, with its shapes.

The module's forward runs on meta tensors, which have a shape and no memory. Two torch modes watch it. `_Calls` sees
functions, methods and operators as they are written (``F.conv2d``, ``x + y``); those in `OPERATIONS` become one layer
each. A function written in Python that is not there is opened up; one written in C++ runs under `_Operations`, which
sees the ATen operations inside. Nothing is patched, and the module is left as it was found.
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx  # noqa: F401  the opaque functions of torch.fx are looked up below
from torch import nn
from torch.nn.modules import module as nn_module
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..counting import CONSTANT, INPUT, Layer
from ..errors import TraceFailed
from .network import Network
from .operations import (
    NOT_AN_OPERATION,
    OPERATIONS,
    SLICES_OR_GATHERS,
    VALUES,
    VIEWS_OR_COPIES,
    Reading,
    is_in_place,
    operation_name,
    tensors_in,
)

_LAYERS_AT_MOST = 1_000_000
_ASSUMED_AT_MOST = 1_000  # answers to one data-dependent question before it is taken for an endless loop


def trace(module: nn.Module, *inputs: Any, name: str = "", source: str = "", **named_inputs: Any) -> Network:
    """The layers that a module's forward executes.

    Parameters
    ----------
    module : nn.Module
        Left exactly as it is: training flags, buffers, hooks, attributes and parameters. It is traced in evaluation
        mode.
    *inputs, **named_inputs
        What forward is called with. Tensors stand for their shape and type; a tuple of int is the shape of a
        float tensor. The first dimension is the batch.
    name, source : str
        Recorded in the result.

    Returns
    -------
    Network

    Raises
    ------
    TraceFailed
        If forward raises, or needs the value of a number that only a real run knows.
    """
    tracer = _Tracer(module)
    args, kwargs = _to_meta(inputs, tracer), _to_meta(named_inputs, tracer)
    with _left_as_found(module), torch.no_grad(), tracer.watching():
        module.eval()
        try:
            with _Calls(tracer):
                module(*args, **kwargs)
        except TraceFailed:
            raise
        except Exception as error:
            where = f" in {tracer.path}" if tracer.path else ""
            raise TraceFailed(
                f"{name or type(module).__name__} cannot be traced{where}: {type(error).__name__}: {_first_line(error)}"
            ) from error
    shapes = tuple(tuple(tensor.shape) for tensor in tensors_in((args, kwargs)))
    unique = {id(parameter): parameter.numel() for parameter in module.parameters()}
    return Network(
        name=name or type(module).__name__,
        inputs=shapes,
        layers=tuple(tracer.layers),
        parameters=sum(unique.values()),
        source=source,
        notes=tuple(tracer.notes(sum(unique.values()))),
    )


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else "no message"


def _to_meta(value: Any, tracer: _Tracer) -> Any:
    """Meta tensors in the place of tensors and shapes, the rest as it is; each is known as the network's input."""
    if isinstance(value, dict):
        return {key: _to_meta(item, tracer) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        if value and all(isinstance(size, int) and not isinstance(size, bool) for size in value):
            value = torch.empty(tuple(value), device="meta")
        else:
            return type(value)(_to_meta(item, tracer) for item in value)
    if isinstance(value, torch.Tensor):
        value = torch.empty_like(value, device="meta", requires_grad=False)
        tracer.made_by(value, INPUT)
    return value


@contextmanager
def _left_as_found(module: nn.Module) -> Iterator[None]:
    """Put back every attribute of every submodule, and what is in their lists, dicts and sets."""
    found = []
    for submodule in module.modules():
        attributes = dict(submodule.__dict__)
        contents = {key: value.copy() for key, value in attributes.items() if isinstance(value, (list, dict, set))}
        found.append((submodule, attributes, contents))
    try:
        yield
    finally:
        for submodule, attributes, contents in found:
            submodule.__dict__.clear()
            submodule.__dict__.update(attributes)
            for key, before in contents.items():
                value = attributes[key]
                if isinstance(value, list):
                    value[:] = before
                elif value.keys() != before.keys() if isinstance(value, dict) else True:
                    value.clear()
                    value.update(before)
                else:
                    value.update(before)


class _Call:
    """A module that is being called."""

    def __init__(self, path: str, leaf: str, first: int) -> None:
        self.path, self.leaf, self.first = path, leaf, first
        self.has_children = False


class _Tracer:
    """The layers so far, who made each tensor, and which module is being called."""

    def __init__(self, module: nn.Module) -> None:
        self.layers: list[Layer] = []
        self.assumed: dict[str, int] = {}
        self._names: set[str] = set()
        self._paths: dict[int, list[str]] = {}
        for path, submodule in module.named_modules(remove_duplicate=False):
            self._paths.setdefault(id(submodule), []).append(path)
        self._parameters = {id(p): (path, p) for path, p in module.named_parameters()}
        self._aliases: dict[int, int] = {}  # views of parameters
        self._used: set[int] = set()
        self._makers: dict[int, int] = {}
        self._alive: list[Any] = []  # an id stays taken as long as its tensor lives
        self._twins: dict[int, Any] = {}  # meta tensors that stand for real ones
        self._owned = {id(tensor) for submodule in module.modules() for tensor in _tensors_of(submodule)}
        self._calls: list[_Call] = []
        self._thread = threading.get_ident()

    # Modules

    @property
    def path(self) -> str:
        """Path of the module that is being called."""
        return self._calls[-1].path if self._calls else ""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Be told when a module is called; torch's own global hooks, taken out again, so that no module is touched."""
        handles = [
            nn_module.register_module_forward_pre_hook(self._enter),
            nn_module.register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, args: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        parent = self._calls[-1] if self._calls else None
        paths = self._paths.get(id(module))
        if parent is None or paths is None:
            path = paths[0] if paths else f"{self.path}.{type(module).__name__}".lstrip(".")
        else:
            inside = f"{parent.path}." if parent.path else ""
            path = next((p for p in paths if p.startswith(inside)), paths[0])
        leaf = parent.leaf if parent else ""
        # torch.fx does not look into the modules of torch.nn, containers apart.
        if not leaf and type(module).__module__.startswith("torch.nn") and not isinstance(module, nn.Sequential):
            leaf = type(module).__name__
        if parent:
            parent.has_children = True
        self._calls.append(_Call(path, leaf, len(self.layers)))

    def _leave(self, module: nn.Module, args: Any, result: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        call = self._calls.pop()
        made = len(self.layers) - call.first
        if made == 1 and not call.has_children and call.path:  # the module is this one operation: it gives the name
            layer = self.layers[-1]
            self._names.discard(layer.name)
            self.layers[-1] = layer._replace(name=self._unique(call.path))

    # Tensors

    def made_by(self, tensor: Any, maker: int) -> None:
        """Remember who made a tensor; a write into a view is a write into what it views."""
        self._makers[id(tensor)] = maker
        self._alive.append(tensor)
        base = getattr(tensor, "_base", None)
        if base is not None and id(base) in self._makers and maker >= 0:
            self._makers[id(base)] = maker
            self._alive.append(base)

    def is_owned(self, tensor: Any) -> bool:
        """Whether a tensor is one of the module's: its values are never read, its memory never written."""
        return id(tensor) in self._owned

    def twin(self, tensor: torch.Tensor) -> torch.Tensor:
        """The meta tensor that stands for a real one."""
        if tensor.device.type == "meta":
            return tensor
        if id(tensor) not in self._twins:
            self._twins[id(tensor)] = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"
            )
            self._alive.append(tensor)
            twin = self._twins[id(tensor)]
            root = self._root(tensor)
            if root is not None:
                self.alias(twin, root)
            elif id(tensor) in self._makers:
                self.made_by(twin, self._makers[id(tensor)])
        return self._twins[id(tensor)]

    def alias(self, tensor: Any, root: int) -> None:
        """A view of a parameter is that parameter."""
        self._aliases[id(tensor)] = root
        self._alive.append(tensor)

    def _root(self, tensor: Any) -> int | None:
        if id(tensor) in self._parameters:
            return id(tensor)
        return self._aliases.get(id(tensor))

    def parameter_of(self, value: Any) -> int | None:
        """The parameter that all tensors in a value are views of, if there is one."""
        roots = {self._root(tensor) for tensor in tensors_in(value)}
        return roots.pop() if len(roots) == 1 else None

    # Layers

    def record(self, reading: Reading, result: Any, function: str, called_as: str, written: Any = None) -> None:
        """Append a layer; `written` is the tensor that an in-place call wrote into, where it is not the result."""
        if len(self.layers) >= _LAYERS_AT_MOST:
            raise TraceFailed(f"more than {_LAYERS_AT_MOST} operations: the module does not come to an end")
        inputs = [tensor for tensor in reading.tensors if tensor is not None and self._root(tensor) is None]
        inherent = [tensor for tensor in reading.weights if tensor is not None]
        weights = [tensor for tensor in reading.tensors if tensor is not None and self._root(tensor) is not None]
        weights += inherent
        outputs = list(tensors_in(result)) or [written]
        attributes = dict(reading.attributes)
        if function != reading.kind and reading.kind in _KINDS_OF_MANY_CALLS:
            attributes["function"] = function
        new, trainable, label = 0, False, ""
        for tensor in weights:
            root = self._root(tensor)
            if root is None:
                trainable = trainable or self._makers.get(id(tensor), CONSTANT) >= 0
                continue
            path, parameter = self._parameters[root]
            label = label or path
            trainable = trainable or parameter.requires_grad
            if root not in self._used:
                self._used.add(root)
                new += parameter.numel()
        if weights and not trainable:
            attributes["frozen"] = True
        leaf = self._calls[-1].leaf if self._calls else ""
        self.layers.append(
            Layer(
                name=self._unique(self._label(label, attributes.get("function", reading.kind))),
                kind=reading.kind,
                inputs=tuple(tuple(tensor.shape) for tensor in inputs),
                outputs=tuple(tuple(tensor.shape) for tensor in outputs),
                weights=tuple(tuple(tensor.shape) for tensor in weights),
                parents=tuple(self._makers.get(id(tensor), CONSTANT) for tensor in inputs),
                parameters=new,
                attributes=attributes,
                origin=f"module:{leaf}" if leaf else called_as,
            )
        )
        index = len(self.layers) - 1
        for tensor in outputs if written is None else [*outputs, written]:
            self.made_by(tensor, index)

    def _label(self, parameter: str, call: str) -> str:
        """Within a module that does several things: the parameter's name, else what was called."""
        if parameter:
            return parameter.removesuffix(".weight").removesuffix("_weight").removesuffix(".bias")
        return f"{self.path}.{call}".lstrip(".")

    def _unique(self, name: str) -> str:
        unique, number = name, 1
        while unique in self._names:
            number += 1
            unique = f"{name}#{number}"
        self._names.add(unique)
        return unique

    def assume(self, place: str) -> bool:
        """Answer a question that depends on data with yes, and say so."""
        self.assumed[place] = self.assumed.get(place, 0) + 1
        if self.assumed[place] > _ASSUMED_AT_MOST:
            raise TraceFailed(f"a loop at {place} goes on for as long as the data says: it cannot be traced")
        return True

    def notes(self, parameters: int) -> Iterator[str]:
        """What a reader of the layers should know."""
        for place in self.assumed:
            yield f"a condition that depends on data was taken to be true at {place}"
        unused = parameters - sum(layer.parameters for layer in self.layers)
        if unused:
            yield f"{unused:,} of the parameters are not used in evaluation mode"


def _tensors_of(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module._parameters.values()  # type: ignore[misc]
    yield from module._buffers.values()  # type: ignore[misc]
    yield from tensors_in([value for key, value in module.__dict__.items() if not key.startswith("_")])


_FACTORIES_WITH_VALUES = frozenset("arange linspace logspace tensor as_tensor scalar_tensor eye full tril_indices".split())
_KINDS_OF_MANY_CALLS = frozenset("add sub mul div matmul reduce copy gather view slice fill compare logical round".split())


class _Calls(TorchFunctionMode):
    """Sees every call of torch as it is written."""

    def __init__(self, tracer: _Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = operation_name(function)
        tracer = self.tracer
        if name in VALUES:
            return self._value(function, name, args, kwargs)
        operands = list(tensors_in((args, kwargs)))
        if not operands:
            return self._factory(function, name, args, kwargs)
        if all(tensor.device.type != "meta" and not tracer.is_owned(tensor) for tensor in operands):
            result = function(*args, **kwargs)  # constants that the module makes as it goes: their values are known
            return self._note(function, name, args, kwargs, result)
        args, kwargs = _map_tensors(args, tracer.twin), _map_tensors(kwargs, tracer.twin)
        if name in ("to", "cuda", "cpu"):
            args, kwargs = _stay_on_meta(name, args, kwargs)
            function, name = torch.Tensor.to, "to"
            if len(args) == 1 and not kwargs:
                return args[0]
        reader = OPERATIONS.get(name)
        if reader is not None:
            reading = reader(*args, **kwargs)
            result = _make(function, args, kwargs, reading)
            if isinstance(result, tuple) and reading.kind == "max_pool":
                tracer.made_by(result[1], CONSTANT)
                self._record(function, name, reading, result[0], args)
            else:
                self._record(function, name, reading, result, args)
            return result
        if name in VIEWS_OR_COPIES or name in SLICES_OR_GATHERS or name == "setitem" or name in NOT_AN_OPERATION:
            result = function(*args, **kwargs)
            return self._note(function, name, args, kwargs, result)
        if _is_python(function):
            with self:
                return _opened(function)(*args, **kwargs)
        with _Operations(tracer, _called_as(function)):
            return function(*args, **kwargs)

    def _note(self, function: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Any:
        """Record a call whose result is at hand."""
        tracer = self.tracer
        if name == "setitem":
            target, value = args[0], list(tensors_in(args[2:]))
            reading = Reading("copy" if value else "fill", value, [], {})
            with torch._C.DisableTorchFunction():
                place = target[args[1]]
            tracer.record(reading, place, name, _called_as(function), written=target)
            return result
        reading = _reading_of(name, args, kwargs, result)
        if reading is None:
            return result
        root = tracer.parameter_of((args, kwargs)) if reading.kind in ("view", "slice") else None
        if root is not None:
            for tensor in tensors_in(result):
                tracer.alias(tensor, root)
            return result
        self._record(function, name, reading, result, args)
        return result

    def _record(self, function: Any, name: str, reading: Reading, result: Any, args: Sequence[Any]) -> None:
        written = args[0] if is_in_place(function) and isinstance(args[0], torch.Tensor) else None
        tensors = next(tensors_in(result), None)
        if tensors is None and written is None:
            return
        self.tracer.record(reading, result, name, _called_as(function), written=written)

    def _factory(self, function: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """A tensor from nothing: kept real where its values may be asked for, else on the meta device."""
        if "device" in kwargs or name in OPERATIONS or name in NOT_AN_OPERATION:
            wanted = torch.device(kwargs["device"]) if kwargs.get("device") is not None else torch.device("cpu")
            if name not in _FACTORIES_WITH_VALUES or wanted.type != "cpu":
                if name not in ("tensor", "as_tensor"):
                    kwargs = {**kwargs, "device": "meta"}
                elif wanted.type != "cpu":
                    kwargs = {key: value for key, value in kwargs.items() if key != "device"}
        result = function(*args, **kwargs)
        if name in OPERATIONS and next(tensors_in(result), None) is not None:
            self.tracer.record(OPERATIONS[name](*args), result, name, _called_as(function))
        return result

    def _value(self, function: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The numbers in a tensor are known for constants and for the module's own; a condition is taken to hold."""
        if all(tensor.device.type != "meta" for tensor in tensors_in((args, kwargs))):
            return function(*args, **kwargs)
        place = _place_in_user_code()
        if name in ("__bool__", "is_nonzero", "equal", "allclose"):
            return self.tracer.assume(place)
        raise TraceFailed(f"the value of a tensor is needed at {place}, and tracing knows shapes only")


class _Operations(TorchDispatchMode):
    """Sees the ATen operations inside a call."""

    def __init__(self, tracer: _Tracer, called_as: str) -> None:
        super().__init__()
        self.tracer, self.called_as = tracer, called_as

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = operation_name(function)
        tracer = self.tracer
        if any(tensor.device.type == "meta" for tensor in tensors_in((args, kwargs))):
            args, kwargs = _map_tensors(args, tracer.twin), _map_tensors(kwargs, tracer.twin)
        result = function(*args, **kwargs)
        if next(tensors_in(result), None) is None or name in NOT_AN_OPERATION:
            return result
        reader = OPERATIONS.get(name)
        reading = reader(*args, **kwargs) if reader else _reading_of(name, args, kwargs, result)
        if reading is None:
            kind = "view" if getattr(function, "is_view", False) else f"aten.{name}"
            reading = Reading(kind, list(tensors_in((args, kwargs))), [], {})
        root = tracer.parameter_of((args, kwargs)) if reading.kind in ("view", "slice") else None
        if root is not None:
            for tensor in tensors_in(result):
                tracer.alias(tensor, root)
            return result
        main = result[0] if isinstance(result, tuple) and reader is not None else result
        tracer.record(reading, main, name, self.called_as, written=args[0] if is_in_place(function) else None)
        return result


def _reading_of(name: str, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Reading | None:
    """What a call is whose kind depends on its result, or None where it is no operation on tensors."""
    results = list(tensors_in(result))
    if not results or name in NOT_AN_OPERATION:
        return None
    operands = list(tensors_in((args, kwargs)))
    if name in VIEWS_OR_COPIES:
        if any(tensor is operands[0] for tensor in results):
            return None
        same = operands and torch._C._is_alias_of(operands[0], results[0])
        return Reading("view" if same else "copy", operands[:1], [], {})
    if name in SLICES_OR_GATHERS:
        if torch._C._is_alias_of(operands[0], results[0]):
            return Reading("slice", operands[:1], [], {})
        return Reading("gather", operands[:1], [], {})
    if name in OPERATIONS:
        return OPERATIONS[name](*args, **kwargs)
    return None


def _make(function: Any, args: Sequence[Any], kwargs: dict[str, Any], reading: Reading) -> Any:
    """The output of a call, without the work where its shape is plain."""
    if reading.result == "run":
        return function(*args, **kwargs)
    first = reading.tensors[0]
    if reading.result == "attention":
        return torch.empty((*first.shape[:-1], reading.tensors[2].shape[-1]), dtype=first.dtype, device="meta")
    if is_in_place(function) or kwargs.get("inplace"):
        return first
    return first.view_as(first) if reading.result == "alias" else torch.empty_like(first)


def _stay_on_meta(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """A move to another device is no operation here; a change of type is."""
    dtypes = [value for value in (*args[1:], *kwargs.values()) if isinstance(value, torch.dtype)]
    dtypes += [value.dtype for value in (*args[1:], *kwargs.values()) if isinstance(value, torch.Tensor)]
    return [args[0], *dtypes[:1]], {}


def _map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (tuple, list)) and next(tensors_in(value), None) is not None:
        mapped = [_map_tensors(item, change) for item in value]
        return type(value)(*mapped) if hasattr(value, "_fields") else type(value)(mapped)
    if isinstance(value, dict):
        return {key: _map_tensors(item, change) for key, item in value.items()}
    return value


def _is_python(function: Any) -> bool:
    # Methods of Tensor written in Python end in the C++ method of the same name, which would be dispatched again.
    return isinstance(function, types.FunctionType) and function.__module__ in ("torch.nn.functional", "torch.functional")


def _opened(function: types.FunctionType) -> types.FunctionType:
    """A copy of a torch function that does not ask to be dispatched, so that the calls inside it are seen one by one."""
    never = dict.fromkeys(
        ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"), lambda *_: False
    )
    copy = types.FunctionType(
        function.__code__, function.__globals__ | never, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _called_as(function: Any) -> str:
    """Whether a call is a function, an operator or a method, or hides in a function that torch.fx does not open."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "forward":
        if (id(frame.f_globals), frame.f_code.co_name) in torch.fx._symbolic_trace._wrapped_fns_to_patch:
            return f"opaque:{frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    name = getattr(function, "__name__", "")
    if name.startswith("__"):
        return "operator"
    return "method" if hasattr(function, "__objclass__") else "function"


def _place_in_user_code() -> str:
    """File and line outside torch and this module."""
    frame = sys._getframe(1)
    while frame is not None:
        package = frame.f_globals.get("__name__", "")
        if not package.startswith("torch.") and package != __name__:
            return f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "an unknown place"


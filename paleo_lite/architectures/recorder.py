"""`Recorder`: layers of a trace, the layer that produced each tensor, tensors with known values, and module calls."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as nn_module

from ..counting import CONSTANT, INPUT, MATRIX_KINDS, Layer
from ..counting.kinds import USER_MODULES
from ..counting.layer import empty_flow
from ..counting.places import place_layers
from ..errors import TraceFailed
from ..text import format_plural
from .call_readers import TorchCall, tensors_in
from .operations import name_set
from .user_code import user_code_location

_BYTES_OF_16_BITS = 2

_MAX_LAYERS = 1_000_000
_MAX_ASSUMPTIONS = 1_000  # answers to one data-dependent condition before it is considered an endless loop
_KINDS_OF_MANY_CALLS = name_set(
    "add sub mul div matmul reduce copy gather view slice fill compare logical round scan fourier scatter sort select"
)

_KEEPS_RESULT_IN_PLACE = name_set("leaky_relu elu selu celu scatter")
"""Kinds that save their result for the gradient in place, and their operand out of place."""


class Tensors:
    """Tensors of a trace, by their ids."""

    def __init__(self) -> None:
        self.inputs: list[torch.Tensor] = []  # inputs of the network
        self._owned: set[int] = set()  # parameters and buffers of the module
        self._expanded: set[int] = set()  # parameters and views of them that were expanded to a given size
        self._producers: dict[int, int] = {}  # index of the layer that produced each tensor
        self._created: set[int] = set()  # real tensors that forward created
        self._written: set[int] = set()  # real tensors with values that differ from those of a real run
        self._stand_ins: dict[int, torch.Tensor] = {}
        self._alive: list[Any] = []  # keeps tensors alive, so that their ids are not reused
        self._parameter_of: dict[int, int] = {}  # parameters, their views and stand-ins, each to its parameter

    def set_producer(self, tensor: Any, layer: int) -> None:
        """Set the layer that produced a tensor; a write into a view is also a write into its base."""
        self._producers[id(tensor)] = layer
        self._alive.append(tensor)
        base = tensor._base
        if base is not None and layer >= 0 and id(base) in self._producers:
            self._producers[id(base)] = layer

    def add_input(self, tensor: torch.Tensor) -> None:
        """Add an input of the network."""
        self.inputs.append(tensor)
        self.set_producer(tensor, INPUT)

    def add_created(self, tensors: Sequence[torch.Tensor]) -> None:
        """Add real tensors that forward created, and into which it may write."""
        self._created.update(map(id, tensors))
        self._alive += tensors

    def is_own(self, tensor: torch.Tensor) -> bool:
        """Return whether forward created a real tensor, so that writing into it has no effect outside."""
        return id(tensor if tensor._base is None else tensor._base) in self._created

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor has the values of a real run."""
        return not tensor.is_meta and id(tensor) not in self._written and id(tensor) not in self._parameter_of

    def is_pristine(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is a real parameter or buffer that forward has not written to."""
        return id(tensor) in self._owned and not tensor.is_meta and id(tensor) not in self._written

    def needs_stand_in(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is real, or a parameter or buffer of the module."""
        return not tensor.is_meta or id(tensor) in self._owned

    def stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the meta tensor that replaces a real tensor, parameter or buffer; return other tensors as they are."""
        if not self.needs_stand_in(tensor):
            return tensor
        key = id(tensor)
        on_meta = self._stand_ins.get(key)
        if on_meta is None:
            on_meta = self._stand_ins[key] = meta_like(tensor)
            self._alive.append(tensor)
            if key in self._parameter_of:
                self._parameter_of[id(on_meta)] = self._parameter_of[key]
            elif key in self._producers:
                self.set_producer(on_meta, self._producers[key])
        return on_meta

    def stand_in_of_numbers(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return an integer tensor with known values as it is, for calls that read it; else its `stand_in`."""
        if not tensor.is_floating_point() and self.is_known(tensor):
            return tensor
        return self.stand_in(tensor)

    def mark_written(self, tensor: torch.Tensor) -> None:
        """Mark a real tensor as written. The write goes to its stand-in, so its own values are no longer valid."""
        self._written.add(id(tensor))
        if tensor._base is not None:
            self._written.add(id(tensor._base))

    def add_parameter_view(
        self,
        views: Sequence[torch.Tensor],
        bases: Sequence[torch.Tensor],  # operands of the call that made them
        parameter: int,  # the id of the parameter
        is_expanded: bool,  # whether the call expands to a given size, which may be the batch size
    ) -> None:
        """Register views of a parameter, which count as the parameter itself."""
        self._parameter_of.update((id(tensor), parameter) for tensor in views)
        if is_expanded or any(id(tensor) in self._expanded for tensor in bases):
            self._expanded.update(map(id, views))
        self._alive += views

    def parameter_of(self, tensors: Sequence[torch.Tensor]) -> int | None:
        """Return the id of the parameter that all the tensors are views of, or None."""
        parameters = {self._parameter_of.get(id(tensor)) for tensor in tensors}
        return parameters.pop() if len(parameters) == 1 else None


def meta_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return a meta tensor of the same shape, strides and type.

    Raise TraceFailed if the tensor is not dense.
    """
    if tensor.layout != torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        raise TraceFailed(f"only dense tensors can be traced (got a {layout} tensor)")
    with torch._C._DisableTorchDispatch():  # dispatch would take most of the time, and there is nothing to record
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


class _ModuleCall:
    """A call of a module that is in progress."""

    __slots__ = ("first", "has_children", "leaf", "module", "path")

    def __init__(self, module: nn.Module, path: str, leaf: str, first: int) -> None:
        self.module, self.path, self.leaf, self.first = module, path, leaf, first
        self.has_children = False


class _ParameterUses(NamedTuple):
    """What the weights of a layer are."""

    path: str  # of the first parameter; empty if there is none
    new_parameters: int  # elements of the parameters that no layer before has
    is_trainable: bool


class Recorder(Tensors):
    """Layers, parameters and module calls of a trace."""

    def __init__(
        self,
        module: nn.Module,  # the traced module
    ) -> None:
        super().__init__()
        self.rows: tuple[int, ...] | None = None  # first dimension of the first input
        self.gradients = True  # whether gradients are enabled; false inside ``torch.no_grad()`` in the module's code
        self._inference = torch.is_inference_mode_enabled()
        self.threaded_module = ""  # a submodule that was called in another thread; empty if there is none
        self.path_of_failure = ""  # the innermost module that was being called when forward raised
        # Whether a trace of two samples is needed to decide which outputs grow with the batch: an input has a different
        # first dimension from the first input, or all operands of a layer are parameters, one of them expanded.
        self.needs_two_samples = False
        self.extra_notes: list[str] = []  # notes for readers of the layers, in addition to those of the recorder itself
        self._layers: list[Layer] = []
        self._flow = empty_flow()
        self._assumptions: dict[str, int] = {}
        self._paths: dict[int, list[str]] = {}
        self._parameters: dict[int, tuple[str, nn.Parameter]] = {}
        for path, submodule in _every_path(module):
            self._paths.setdefault(id(submodule), []).append(path)
            for key, tensor in submodule._parameters.items():
                if nn.parameter.is_lazy(tensor):
                    where = _join(path, key)
                    raise TraceFailed(f"parameter {where} has no shape yet: run the lazy module on an input first")
                if tensor is not None:
                    self._parameters.setdefault(id(tensor), (_join(path, key), tensor))
            self._owned.update(map(id, submodule._buffers.values()))
        self._owned.update(self._parameters)
        self._parameter_of.update((key, key) for key in self._parameters)
        # Number of parameters of the module; shared ones count once.
        self.parameters = sum(parameter.numel() for _, parameter in self._parameters.values())
        self._is_16_bit = _is_16_bit(parameter for _, parameter in self._parameters.values())
        self._used: set[int] = set()
        self._complex_products = 0
        self._calls: list[_ModuleCall] = []
        self._single_layer: nn.Module | None = None  # module in progress that is one layer by a user-defined rule
        self._is_paused = False
        self._thread = threading.get_ident()

    # Modules

    @property
    def path(self) -> str:
        """Path of the innermost module that is being called."""
        return self._calls[-1].path if self._calls else ""

    @contextmanager
    def module_hooks(self) -> Iterator[None]:
        """Follow module calls with torch's global hooks, which leave the modules unchanged."""
        handles = [
            nn_module.register_module_forward_pre_hook(self._before_module),
            nn_module.register_module_forward_hook(self._after_module, with_kwargs=True, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record no layers."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def _before_module(self, module: nn.Module, args: Any) -> None:
        paths = self._paths.get(id(module))
        if threading.get_ident() != self._thread:
            if paths is not None:
                self.threaded_module = paths[0] or type(module).__name__
                raise TraceFailed(f"{self.threaded_module} is called in another thread")
            return
        if isinstance(module, torch.jit.ScriptModule):
            name = paths[0] if paths and paths[0] else type(module).__name__
            raise TraceFailed(f"{name} is TorchScript, which hides its operations: trace the original module")
        parent = self._calls[-1] if self._calls else None
        if paths is None:
            path = _join(self.path, type(module).__name__)
        else:
            path = paths[0]
            if parent is not None and len(paths) > 1:  # a shared module: prefer its path inside the calling module
                prefix = f"{parent.path}." if parent.path else ""
                path = next((candidate for candidate in paths if candidate.startswith(prefix)), path)
        leaf = parent.leaf if parent else ""
        # torch.fx does not trace into the modules of torch.nn, except containers.
        if not leaf and type(module).__module__.startswith("torch.nn") and not isinstance(module, nn.Sequential):
            leaf = type(module).__name__
        if parent:
            parent.has_children = True
        self._calls.append(_ModuleCall(module, path, leaf, len(self._layers)))
        if self._single_layer is None and type(module) in USER_MODULES:
            self._single_layer = module

    def _after_module(self, module: nn.Module, args: Any, *rest: Any) -> None:
        if threading.get_ident() != self._thread or not self._calls or self._calls[-1].module is not module:
            return
        call = self._calls.pop()
        if sys.exc_info()[0] is not None and not self.path_of_failure:
            self.path_of_failure = call.path
        if self._single_layer is not None and module is self._single_layer:
            self._single_layer = None
            call.has_children = False
            if len(rest) < 2:  # torch passes no keyword arguments if forward has raised
                return
            kwargs, result = rest
            torch_call = TorchCall(USER_MODULES[type(module)], tensors_in(args, kwargs), list(module.parameters()), {})
            self.record(torch_call, tensors_in(result), torch_call.kind, "function")
        new_layers = len(self._layers) - call.first
        if new_layers == 1 and not call.has_children and call.path:  # a module of one operation names its layer
            self._layers[-1] = self._layers[-1]._replace(name=call.path)

    # Tensors

    def _register_replacement(self, tensor: nn.Parameter) -> None:
        """Register a parameter that replaces another while its module is called, as when FSDP gathers shards."""
        key = ""
        if self._calls:
            for name, parameter in self._calls[-1].module._parameters.items():
                if parameter is tensor:
                    key = name
        path = _join(self.path, key)
        for parameter_id, (original_path, _) in self._parameters.items():
            if original_path == path:
                self._parameter_of[id(tensor)] = parameter_id
                return

    # Layers

    def record(
        self,
        call: TorchCall,  # kind, operands and attributes
        outputs: Sequence[torch.Tensor],  # results of the call
        function: str,  # plain name of the torch function
        call_form: str,  # how it was called, see `user_code.call_form`
        written: Any = None,  # the tensor into which an in-place call writes
    ) -> None:
        """Append a layer."""
        if self._single_layer is not None or self._is_paused:
            return
        if len(self._layers) >= _MAX_LAYERS:
            raise TraceFailed(f"more than {_MAX_LAYERS} operations: the module may not terminate")
        inputs, weights = self._split_operands(call)
        self.needs_two_samples |= not inputs and any(id(tensor) in self._expanded for tensor in weights)
        uses = self._use_parameters(weights)
        attributes = self._attributes(call, function, inputs, weights, outputs, uses.is_trainable)
        leaf = self._calls[-1].leaf if self._calls else ""
        self._layers.append(
            Layer(
                self._layer_name(uses.path, attributes.get("function", call.kind.rpartition(".")[2])),
                call.kind,
                tuple([tuple(tensor.shape) for tensor in inputs]),
                tuple([tuple(tensor.shape) for tensor in outputs]),
                tuple([tuple(tensor.shape) for tensor in weights]),
                tuple([self._producers.get(id(tensor), CONSTANT) for tensor in inputs]),
                uses.new_parameters,
                attributes,
                f"module:{leaf}" if leaf else call_form,
            )
        )
        index = len(self._layers) - 1
        self._flow.add(self._layers[-1])
        for tensor in outputs:
            self.set_producer(tensor, index)
        if written is not None:
            self.set_producer(written, index)

    def _split_operands(self, call: TorchCall) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the inputs and the weights of a call; a parameter that is used as data becomes an input."""
        parameter_of = self._parameter_of
        operands = [tensor for tensor in call.tensors if tensor is not None]
        for tensor in (*operands, *call.weights):
            if type(tensor) is nn.Parameter and id(tensor) not in parameter_of:
                self._register_replacement(tensor)
        if not call.parameters_are_weights:
            operands = [self._as_data(tensor) if id(tensor) in parameter_of else tensor for tensor in operands]
        inputs = [tensor for tensor in operands if id(tensor) not in parameter_of]
        weights = [tensor for tensor in operands if id(tensor) in parameter_of]
        return inputs, weights + [tensor for tensor in call.weights if tensor is not None]

    def _use_parameters(self, weights: Sequence[torch.Tensor]) -> _ParameterUses:
        """Return what the weights of a layer are, and mark their parameters as counted."""
        new_parameters, is_trainable, first_path = 0, False, ""
        for tensor in weights:
            parameter_id = self._parameter_of.get(id(tensor))
            if parameter_id is None:
                producer = self._producers.get(id(tensor), CONSTANT)
                is_trainable = is_trainable or (producer >= 0 and self._flow.output_wants_gradient[producer])
                continue
            path, parameter = self._parameters[parameter_id]
            first_path = first_path or path
            is_trainable = is_trainable or parameter.requires_grad
            if parameter_id not in self._used:
                self._used.add(parameter_id)
                new_parameters += parameter.numel()
        return _ParameterUses(first_path, new_parameters, is_trainable)

    def _attributes(
        self,
        call: TorchCall,
        function: str,
        inputs: Sequence[torch.Tensor],
        weights: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        is_trainable: bool,
    ) -> dict[str, Any]:
        """Return the attributes of a layer: those of its call, gradients, complex numbers, casts."""
        attributes = dict(call.attributes)
        if function != call.kind and call.kind in _KINDS_OF_MANY_CALLS:
            attributes["function"] = function
        gradients = self.gradients and torch.is_inference_mode_enabled() == self._inference
        if weights and not (is_trainable and gradients):
            attributes["frozen"] = True
        if not gradients:
            attributes["no_gradient"] = True
        if call.kind in MATRIX_KINDS and any(tensor.is_complex() for tensor in (*inputs, *weights)):
            self._complex_products += 1
            attributes["complex"] = True
        if call.kind in _KEEPS_RESULT_IN_PLACE and any(tensor is call.tensors[0] for tensor in outputs):
            attributes["in_place"] = True
        if self._is_16_bit:
            attributes |= _upcast_attribute(inputs or weights, outputs)
        return attributes

    def _as_data(self, tensor: torch.Tensor) -> torch.Tensor:
        """Record a view of a parameter that is used as data, such as a learned query, and return the view."""
        view = meta_like(tensor)
        self.record(TorchCall("view", [tensor], [], {}, parameters_are_weights=True), [view], "view", "function")
        return view

    def _layer_name(self, parameter: str, call: str) -> str:
        """Return the name of a layer in a module of several operations: of its parameter, otherwise of the call."""
        if parameter in ("", "weight", "bias"):
            return _join(self.path, call)
        return parameter.removesuffix(".weight").removesuffix("_weight").removesuffix(".bias")

    def layers(self) -> tuple[Layer, ...]:
        """Return all layers with unique names."""
        names: set[str] = set()
        uses: dict[str, int] = {}
        layers = []
        for layer in self._layers:
            name = layer.name
            while name in names:
                uses[layer.name] = uses.get(layer.name, 1) + 1
                name = f"{layer.name}#{uses[layer.name]}"
            names.add(name)
            layers.append(layer if name is layer.name else layer._replace(name=name))
        return place_layers(layers)

    # Values

    def assume_true(self) -> bool:
        """Answer a data-dependent condition with true, for which `notes` has a note."""
        location = user_code_location()
        self._assumptions[location] = self._assumptions.get(location, 0) + 1
        if self._assumptions[location] > _MAX_ASSUMPTIONS:
            raise TraceFailed(f"the loop at {location} has a data-dependent number of iterations: it cannot be traced")
        return True

    def notes(self) -> Iterator[str]:
        """Iterate over notes for readers of the layers."""
        yield from self.extra_notes
        for location in self._assumptions:
            yield f"a data-dependent condition at {location} was assumed to be true"
        if self._complex_products:
            products = format_plural(self._complex_products, "product")
            yield f"{products} of complex numbers: counted as four real products each"
        unused = self.parameters - sum(layer.parameters for layer in self._layers)
        if unused:
            yield f"{unused:,} of the parameters are not used in evaluation mode"


def _is_16_bit(parameters: Iterable[torch.Tensor]) -> bool:
    """Return whether most parameters have 16 bits."""
    numbers: dict[int, int] = {}
    for parameter in parameters:
        numbers[parameter.element_size()] = numbers.get(parameter.element_size(), 0) + parameter.numel()
    return bool(numbers) and max(numbers, key=numbers.__getitem__) == _BYTES_OF_16_BITS


def _upcast_attribute(read: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> dict[str, list[float]]:
    """Return the bytes per element read and written relative to 16 bits, as the attribute ``upcast`` if they differ.

    They are the mean of the largest tensors of numbers: small operands that are broadcast do not count.
    """
    widths = []
    for tensors in (read, written):
        numbers = [tensor for tensor in tensors if tensor.is_floating_point()]
        largest = max((tensor.numel() for tensor in numbers), default=0)
        sizes = [tensor.element_size() for tensor in numbers if tensor.numel() == largest]
        widths.append(sum(sizes) / len(sizes) / _BYTES_OF_16_BITS if sizes else 1.0)
    return {} if widths == [1.0, 1.0] else {"upcast": widths}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _every_path(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Iterate over every submodule under every path, outermost first; a module inside itself is not visited again."""
    stack: list[tuple[str, nn.Module, tuple[int, ...]]] = [("", module, ())]
    while stack:
        path, submodule, above = stack.pop()
        yield path, submodule
        above = (*above, id(submodule))
        stack += [
            (_join(path, key), child, above)
            for key, child in reversed(submodule._modules.items())
            if child is not None and id(child) not in above
        ]

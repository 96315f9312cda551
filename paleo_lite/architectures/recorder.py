"""`Recorder`: the layers so far, who made each tensor, whose values are known, and which module is being called."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as nn_module

from ..counting import CONSTANT, INPUT, MATRIX_KINDS, Layer
from ..counting.kinds import MODULES
from ..counting.layer import trace_flow
from ..errors import TraceFailed
from .operations import words
from .readings import Reading, tensors_in
from .user_code import place_in_user_code

_LAYERS_AT_MOST = 1_000_000
_ASSUMED_AT_MOST = 1_000  # answers to one data-dependent question before it is taken for an endless loop
_KINDS_OF_MANY_CALLS = words(
    "add sub mul div matmul reduce copy gather view slice fill compare logical round scan fourier scatter sort select"
)

_KEEPS_RESULT_IN_PLACE = words("leaky_relu elu selu celu scatter")  # for their gradient; else their operand


class Tensors:
    """What a trace knows of tensors, by their ids.

    Attributes
    ----------
    inputs : list of tensor
        What the network is given.
    """

    def __init__(self) -> None:
        self.inputs: list[torch.Tensor] = []
        self._owned: set[int] = set()  # the module's parameters and buffers
        self._expanded: set[int] = set()
        self._makers: dict[int, int] = {}
        self._born: set[int] = set()  # real tensors that forward made from nothing
        self._written: set[int] = set()  # real tensors whose values are no longer what forward believes
        self._stand_ins: dict[int, torch.Tensor] = {}
        self._alive: list[Any] = []  # an id stays taken as long as its tensor lives
        self._roots: dict[int, int] = {}  # parameters, their views and stand-ins, each to its parameter

    def made_by(self, tensor: Any, maker: int) -> None:
        """Remember who made a tensor; a write into a view is a write into what it views."""
        self._makers[id(tensor)] = maker
        self._alive.append(tensor)
        base = tensor._base
        if base is not None and maker >= 0 and id(base) in self._makers:
            self._makers[id(base)] = maker

    def add_input(self, tensor: torch.Tensor) -> None:
        """Note what the network is given."""
        self.inputs.append(tensor)
        self.made_by(tensor, INPUT)

    def born(self, tensors: Sequence[torch.Tensor]) -> None:
        """Note real tensors that forward made from nothing: it may write into them."""
        self._born.update(map(id, tensors))
        self._alive += tensors

    def is_own(self, tensor: torch.Tensor) -> bool:
        """Whether forward itself made a real tensor, so that writing into it changes no other."""
        return id(tensor if tensor._base is None else tensor._base) in self._born

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's values are those of a real run."""
        return not tensor.is_meta and id(tensor) not in self._written and id(tensor) not in self._roots

    def is_pristine(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is one of the module's own, real and not written to: its values are what they are."""
        return id(tensor) in self._owned and not tensor.is_meta and id(tensor) not in self._written

    def needs_stand_in(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is real, or the module's own."""
        return not tensor.is_meta or id(tensor) in self._owned

    def stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """The meta tensor that plays the part of a real one, or of one of the module's own."""
        if not self.needs_stand_in(tensor):
            return tensor
        key = id(tensor)
        on_meta = self._stand_ins.get(key)
        if on_meta is None:
            on_meta = self._stand_ins[key] = meta_like(tensor)
            self._alive.append(tensor)
            if key in self._roots:
                self._roots[id(on_meta)] = self._roots[key]
            elif key in self._makers:
                self.made_by(on_meta, self._makers[key])
        return on_meta

    def stand_in_of_numbers(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same, but for whole numbers that are known: a call may ask for them."""
        return tensor if not tensor.is_floating_point() and self.is_known(tensor) else self.stand_in(tensor)

    def written(self, tensor: torch.Tensor) -> None:
        """Note that a write went to the stand-in: the real values are no longer what forward believes."""
        self._written.add(id(tensor))
        if tensor._base is not None:
            self._written.add(id(tensor._base))

    def alias(self, tensors: Sequence[torch.Tensor], of: Sequence[torch.Tensor], root: int, expanded: bool) -> None:
        """A view of a parameter is that parameter; `expanded` to a size that may be the batch's."""
        self._roots.update((id(tensor), root) for tensor in tensors)
        if expanded or any(id(tensor) in self._expanded for tensor in of):
            self._expanded.update(map(id, tensors))
        self._alive += tensors

    def parameter_of(self, tensors: Sequence[torch.Tensor]) -> int | None:
        """The parameter that all the tensors are views of, if there is one."""
        roots = {self._roots.get(id(tensor)) for tensor in tensors}
        return roots.pop() if len(roots) == 1 else None


def meta_like(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same shape and type without values.

    Raises
    ------
    TraceFailed
        If it is not dense.
    """
    if tensor.layout != torch.strided:
        raise TraceFailed(f"a {str(tensor.layout).removeprefix('torch.')} tensor cannot be traced: only dense ones can")
    with torch._C._DisableTorchDispatch():  # which takes most of its time, and would hear nothing
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


class _Call:
    """A module that is being called."""

    __slots__ = ("first", "has_children", "leaf", "module", "path")

    def __init__(self, module: nn.Module, path: str, leaf: str, first: int) -> None:
        self.module, self.path, self.leaf, self.first = module, path, leaf, first
        self.has_children = False


class Recorder(Tensors):
    """What a trace has seen so far.

    Attributes
    ----------
    rows : tuple of int or None
        First dimension of the first of them.
    parameters : int
        Elements of the module's parameters, shared ones once.
    gradients : bool
        False inside a ``torch.no_grad()`` of the module's own.
    elsewhere : str
        A submodule that was called in another thread.
    asks_for_two : bool
        Whether only a trace of two samples can tell what grows with the batch: an input has other rows than the first,
        or a layer has no operands but parameters, one of them expanded.
    said : list of str
        What a reader of the layers should know, beside what the recorder itself has seen.
    path_of_failure : str
        The innermost module that was being called when forward raised.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.rows: tuple[int, ...] | None = None
        self.gradients = True
        self._inference = torch.is_inference_mode_enabled()
        self.elsewhere = ""
        self.path_of_failure = ""
        self.asks_for_two = False
        self.said: list[str] = []
        self._layers: list[Layer] = []
        self._flow = trace_flow(())
        self._assumed: dict[str, int] = {}
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
        self._roots.update((key, key) for key in self._parameters)
        self.parameters = sum(parameter.numel() for _, parameter in self._parameters.values())
        self._used: set[int] = set()
        self._complex = 0  # layers that multiply complex numbers
        self._calls: list[_Call] = []
        self._whole: nn.Module | None = None  # being called: one layer, as a rule of the user's own says
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
            nn_module.register_module_forward_hook(self._leave, with_kwargs=True, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, args: Any) -> None:
        paths = self._paths.get(id(module))
        if threading.get_ident() != self._thread:
            if paths is not None:
                self.elsewhere = paths[0] or type(module).__name__
                raise TraceFailed(f"{self.elsewhere} is called in another thread")
            return
        if isinstance(module, torch.jit.ScriptModule):
            name = paths[0] if paths and paths[0] else type(module).__name__
            raise TraceFailed(f"{name} is TorchScript, which hides its operations: trace the module it was made from")
        parent = self._calls[-1] if self._calls else None
        if parent is None or paths is None:
            path = paths[0] if paths else _join(self.path, type(module).__name__)
        elif len(paths) == 1:
            path = paths[0]
        else:
            inside = f"{parent.path}." if parent.path else ""
            path = next((p for p in paths if p.startswith(inside)), paths[0])
        leaf = parent.leaf if parent else ""
        # torch.fx does not look into the modules of torch.nn, containers apart.
        if not leaf and type(module).__module__.startswith("torch.nn") and not isinstance(module, nn.Sequential):
            leaf = type(module).__name__
        if parent:
            parent.has_children = True
        self._calls.append(_Call(module, path, leaf, len(self._layers)))
        if self._whole is None and type(module) in MODULES:
            self._whole = module

    def _leave(self, module: nn.Module, args: Any, *rest: Any) -> None:
        if threading.get_ident() != self._thread or not self._calls or self._calls[-1].module is not module:
            return
        call = self._calls.pop()
        if sys.exc_info()[0] is not None and not self.path_of_failure:
            self.path_of_failure = call.path
        if self._whole is not None and module is self._whole:
            self._whole, call.has_children = None, False
            if len(rest) < 2:  # where forward has raised, torch passes no named arguments
                return
            kwargs, result = rest
            reading = Reading(MODULES[type(module)], tensors_in(args, kwargs), list(module.parameters()), {})
            self.record(reading, tensors_in(result), reading.kind, "function")
        made = len(self._layers) - call.first
        if made == 1 and not call.has_children and call.path:  # the module is this one operation: it gives the name
            self._layers[-1] = self._layers[-1]._replace(name=call.path)

    # Tensors

    def _adopt(self, tensor: nn.Parameter) -> None:
        """A parameter that took another's place while its module is called, as where FSDP puts shards together."""
        names = {id(own): name for name, own in self._calls[-1].module._parameters.items()} if self._calls else {}
        path = _join(self.path, names.get(id(tensor), ""))
        root = next((key for key, (known, _) in self._parameters.items() if known == path), None)
        if root is not None:
            self._roots[id(tensor)] = root

    # Layers

    def record(
        self, reading: Reading, outputs: Sequence[torch.Tensor], function: str, called_as: str, written: Any = None
    ) -> None:
        """Append a layer; `written` is the tensor that an in-place call wrote into."""
        if self._whole is not None:
            return
        if len(self._layers) >= _LAYERS_AT_MOST:
            raise TraceFailed(f"more than {_LAYERS_AT_MOST} operations: the module does not seem to end")
        roots, makers = self._roots, self._makers
        operands = [tensor for tensor in reading.tensors if tensor is not None]
        for tensor in (*operands, *reading.weights):
            if type(tensor) is nn.Parameter and id(tensor) not in roots:
                self._adopt(tensor)
        if not reading.alike:
            operands = [self._as_data(tensor) if id(tensor) in roots else tensor for tensor in operands]
        inputs = [tensor for tensor in operands if id(tensor) not in roots]
        weights = [tensor for tensor in operands if id(tensor) in roots]
        weights += [tensor for tensor in reading.weights if tensor is not None]
        self.asks_for_two |= not inputs and any(id(tensor) in self._expanded for tensor in weights)
        attributes = dict(reading.attributes)
        if function != reading.kind and reading.kind in _KINDS_OF_MANY_CALLS:
            attributes["function"] = function
        new, trainable, label = 0, False, ""
        for tensor in weights:
            root = roots.get(id(tensor))
            if root is None:
                maker = makers.get(id(tensor), CONSTANT)
                trainable = trainable or (maker >= 0 and self._flow.output_wants_gradient[maker])
                continue
            path, parameter = self._parameters[root]
            label = label or path
            trainable = trainable or parameter.requires_grad
            if root not in self._used:
                self._used.add(root)
                new += parameter.numel()
        gradients = self.gradients and torch.is_inference_mode_enabled() == self._inference
        if weights and not (trainable and gradients):
            attributes["frozen"] = True
        if not gradients:
            attributes["no_gradient"] = True
        if reading.kind in MATRIX_KINDS and any(tensor.is_complex() for tensor in operands):
            self._complex += 1
            attributes["complex"] = True
        if reading.kind in _KEEPS_RESULT_IN_PLACE and any(tensor is reading.tensors[0] for tensor in outputs):
            attributes["in_place"] = True
        leaf = self._calls[-1].leaf if self._calls else ""
        self._layers.append(
            Layer(
                self._label(label, attributes.get("function", reading.kind.rpartition(".")[2])),
                reading.kind,
                tuple([tuple(tensor.shape) for tensor in inputs]),
                tuple([tuple(tensor.shape) for tensor in outputs]),
                tuple([tuple(tensor.shape) for tensor in weights]),
                tuple([makers.get(id(tensor), CONSTANT) for tensor in inputs]),
                new,
                attributes,
                f"module:{leaf}" if leaf else called_as,
            )
        )
        index = len(self._layers) - 1
        self._flow.add(self._layers[-1])
        for tensor in outputs:
            self.made_by(tensor, index)
        if written is not None:
            self.made_by(written, index)

    def _as_data(self, tensor: torch.Tensor) -> torch.Tensor:
        """A parameter where data is expected, such as a learned query: what a view of it hands on."""
        view = meta_like(tensor)
        self.record(Reading("view", [tensor], [], {}, alike=True), [view], "view", "function")
        return view

    def _label(self, parameter: str, call: str) -> str:
        """Within a module that does several things: the parameter's name, else what was called."""
        if parameter in ("", "weight", "bias"):
            return _join(self.path, call)
        return parameter.removesuffix(".weight").removesuffix("_weight").removesuffix(".bias")

    def layers(self) -> tuple[Layer, ...]:
        """All layers, each with a name of its own."""
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
        return tuple(layers)

    # Values

    def assume(self) -> bool:
        """Answer a question that depends on data with yes, and say so."""
        place = place_in_user_code()
        self._assumed[place] = self._assumed.get(place, 0) + 1
        if self._assumed[place] > _ASSUMED_AT_MOST:
            raise TraceFailed(f"a loop at {place} goes on for as long as the data says: it cannot be traced")
        return True

    def notes(self) -> Iterator[str]:
        """What a reader of the layers should know."""
        yield from self.said
        for place in self._assumed:
            yield f"a condition that depends on data was taken to be true at {place}"
        if self._complex:
            yield f"products of complex numbers, {self._complex} of them, are counted as four of real ones each"
        unused = self.parameters - sum(layer.parameters for layer in self._layers)
        if unused:
            yield f"{unused:,} of the parameters are not used in evaluation mode"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _every_path(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every submodule under every name it has, outermost first; a module within itself is not entered again."""
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

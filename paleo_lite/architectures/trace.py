"""Tracing of any ``nn.Module`` without computing: every tensor operation, in order, with its shapes.

The module's forward runs on meta tensors, which have a shape but no memory, under the modes of `torch_modes`;
`recorder.Recorder` collects the layers. The module and its arguments are restored afterwards.

The graph shows which outputs grow with the batch, except for tensors that forward creates with the batch size and that
depend on no input, such as an initial state of zeros, or a learned query expanded to all samples. A second trace with
twice the samples then shows which outputs grow. If the counts for two samples do not follow from those for one, a note
states it.
"""

from __future__ import annotations

import copy
import dataclasses
import random
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from math import prod
from types import FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from ..counting import Layer, Shape, count
from ..counting.layer import empty_flow, trace_flow
from ..errors import TraceFailed
from .call_readers import PLAIN_TYPES
from .detectors import StopForward, keep_most_boxes, pop_proposals
from .inputs import PreparedArgument, Values
from .network import Network
from .operations import MADE_TO_SIZE
from .recorder import Recorder
from .torch_modes import FunctionRecorder, OperationRecorder
from .user_code import user_code_location

_MAX_MESSAGE_LENGTH = 300

_EXPLANATIONS = {
    "FlexAttention is only supported": "flex_attention runs on real devices only, but tracing uses shapes only; use "
    "torch.nn.functional.scaled_dot_product_attention, which computes the same products",
}
"""Replacements of torch's error messages, by a part of the message."""


def trace(module: nn.Module, *inputs: Any, name: str = "", source: str = "", **named_inputs: Any) -> Network:
    """Trace the layers that a module's forward executes, in evaluation mode.

    Parameters
    ----------
    module : nn.Module
        The module. It is left unchanged: training flags, buffers, hooks, attributes and parameters.
    *inputs, **named_inputs
        Arguments of forward. Only the shape and type of tensors matter, also inside tuples, lists, dicts and
        dataclasses; a tuple of int is the shape of a float tensor; `Values` pass values that forward depends on. The
        first dimension is the batch. For torchvision's detectors ``proposals=300`` sets the number of boxes per image
        that the heads process; by default it is the most that the detector keeps.
    name, source : str
        Name and source of the returned network.

    Returns
    -------
    Network
        The layers with their shapes.

    Raises
    ------
    TraceFailed
        If forward raises, depends on values that only a real run knows, or hides its operations.
    """
    if not isinstance(module, nn.Module):
        raise TraceFailed(f"only a torch.nn.Module can be traced (got {type(module).__name__})")
    name = name or type(module).__name__
    recorder = _run(module, name, inputs, named_inputs)
    layers = recorder.layers()
    notes = list(recorder.notes())
    if recorder.needs_two_samples or may_hide_batch_dependence(layers):
        try:
            twice = _run(module, name, inputs, named_inputs, samples=2).layers()
        except TraceFailed as error:
            notes.append(f"two samples cannot be traced; {LARGER_BATCHES}: {error}")
        else:
            layers, note = mark_batch_scaling(layers, twice)
            if note:
                notes.append(note)
    return Network(
        name=name,
        inputs=tuple(tuple(tensor.shape) for tensor in recorder.inputs),
        layers=layers,
        parameters=recorder.parameters,
        source=source,
        notes=tuple(notes),
    )


def _run(module: nn.Module, name: str, inputs: Any, named_inputs: Any, samples: int = 1) -> Recorder:
    """Run forward under the recording modes, with `samples` times the batch."""
    recorder = Recorder(module)
    named_inputs = dict(named_inputs)
    with _errors_as_trace_failed(name, recorder):
        proposals = pop_proposals(module, named_inputs)
        args = _to_meta(inputs, recorder, samples)
        kwargs = _to_meta(named_inputs, recorder, samples)
        with (
            preserve_state(module, inputs, named_inputs),
            torch.enable_grad(),
            recorder.module_hooks(),
            _without_compiler(),
        ):
            _set_evaluation_mode(module)
            recorder.extra_notes += keep_most_boxes(module, recorder, proposals)
            with (
                OperationRecorder(recorder) as operations,
                FunctionRecorder(recorder, operations),
                suppress(StopForward),
            ):
                kwargs = _make_prepared(kwargs, recorder, samples)
                result = module(*args, **kwargs)
                if isinstance(result, GeneratorType):
                    for _ in result:  # a generator computes while it is iterated
                        pass
    return recorder


@contextmanager
def _errors_as_trace_failed(name: str, recorder: Recorder) -> Iterator[None]:
    """Turn every exception into a `TraceFailed` with the error, the module and the location in the user's code."""
    failure: TraceFailed | None = None
    cause: BaseException | None = None
    try:
        yield
    except TraceFailed as error:
        failure = error
    except (Exception, SystemExit) as error:
        path = f" in {recorder.path_of_failure}" if recorder.path_of_failure else ""
        location = user_code_location(error.__traceback__)
        at_location = f" at {location}" if location else ""
        message = f"{type(error).__name__}{at_location}: {_first_line(error)}"
        for torch_message, explanation in _EXPLANATIONS.items():
            if torch_message in message:
                message = explanation + at_location
        failure = TraceFailed(f"{name} cannot be traced{path}: {message}")
        cause = error
    if recorder.threaded_module:
        failure = TraceFailed(
            f"{recorder.threaded_module} is called in another thread; tracing follows one thread only"
        )
    if failure is not None:
        raise failure from cause


def _first_line(error: BaseException) -> str:
    try:
        text = " ".join(str(error).strip().split("\n\n")[0].split())
    except Exception:  # __str__ of a user's exception may fail, too
        text = ""
    return text[:_MAX_MESSAGE_LENGTH] or "no message"


def _to_meta(value: Any, recorder: Recorder, samples: int) -> Any:
    """Replace tensors and shapes in nested arguments by meta tensors, and register these as inputs of the network.

    Inputs with the same first dimension as the first input get `samples` times as many rows.
    """
    if isinstance(value, Values):
        values = value.tensor.clone()
        if values.shape[:1] == recorder.rows:
            values = torch.cat([values] * samples)
        recorder.add_created([values])
        return values
    if isinstance(value, torch.Tensor):
        rows = tuple(value.shape[:1])
        if recorder.rows is None:
            recorder.rows = rows
        recorder.needs_two_samples |= rows != recorder.rows
        value = torch.empty_like(value, device="meta", requires_grad=False)
        if samples > 1 and rows and rows == recorder.rows:
            value = value.new_empty((samples * rows[0], *value.shape[1:]))
        recorder.add_input(value)
        return value
    replaced: Any
    if isinstance(value, dict):
        replaced = copy.copy(value)
        replaced.update({key: _to_meta(item, recorder, samples) for key, item in value.items()})
        return replaced
    if isinstance(value, (tuple, list)):
        if value and all(isinstance(size, int) and not isinstance(size, bool) for size in value):
            return _to_meta(torch.empty(tuple(value), device="meta"), recorder, samples)
        items = [_to_meta(item, recorder, samples) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        replaced = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(replaced, field.name, _to_meta(getattr(value, field.name), recorder, samples))
        return replaced
    return value


def _make_prepared(arguments: dict[str, Any], recorder: Recorder, samples: int) -> dict[str, Any]:
    """Return named arguments with those that are made under the recording modes, of which nothing is recorded."""
    prepared = {}
    for name, value in arguments.items():
        with recorder.paused():
            prepared[name] = value.make(samples) if isinstance(value, PreparedArgument) else value
    return prepared


def _set_evaluation_mode(module: nn.Module) -> None:
    """Set evaluation mode, and a single replica for `DataParallel` models.

    An exported program keeps the mode in which it was exported and raises on a change.
    """
    with suppress(NotImplementedError):
        module.eval()
    for submodule in module.modules():
        if isinstance(submodule, nn.DataParallel):
            submodule.device_ids = []


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Run compiled modules eagerly. Torch's compiler is not imported if nothing was compiled."""
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


_CONTAINERS = frozenset((dict, OrderedDict, defaultdict, list, set, deque))
"""Container types with restored contents; subclasses may forbid changes, so they are not refilled."""

_NOT_VISITED = (torch.Tensor, type, FunctionType, MethodType, ModuleType)


@contextmanager
def preserve_state(module: nn.Module, *arguments: Any) -> Iterator[None]:
    """Restore attributes of modules and other objects, contents of containers, and random number generators.

    Tensor values need no restoring: a trace never writes into a tensor that it did not create.
    """
    contents = _contents(module, *arguments)
    script_modules = [
        (submodule, submodule.training)
        for submodule in module.modules()
        if isinstance(submodule, torch.jit.ScriptModule)
    ]
    random_state = random.getstate()
    torch_state = torch.get_rng_state()
    numpy_random: Any = getattr(sys.modules.get("numpy"), "random", None)
    numpy_state = numpy_random.get_state() if numpy_random else None
    try:
        yield
    finally:
        for container, before in contents:
            if container or before:
                _refill(container, before)
        random.setstate(random_state)
        torch.set_rng_state(torch_state)
        if numpy_random:
            numpy_random.set_state(numpy_state)
        for submodule, training in script_modules:  # they do not store the flag among their attributes
            submodule.training = training


def _contents(*values: Any) -> list[tuple[Any, Any]]:
    """Return every container and attribute dict inside values, at any depth, with a copy of its contents."""
    contents: list[tuple[Any, Any]] = []
    seen: set[int] = set()  # ids stay valid, as `contents` or the values themselves keep the objects alive
    stack = list(values)
    while stack:
        value = stack.pop()
        kind = type(value)
        if kind in PLAIN_TYPES:
            continue
        if kind in _CONTAINERS and not value:
            contents.append((value, ()))
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, nn.Module):
            stack.append(value.__dict__)
        elif kind in _CONTAINERS:
            contents.append((value, value.copy()))
            stack += value.values() if isinstance(value, dict) else value
        elif isinstance(value, dict):
            stack += dict.values(value)
        elif isinstance(value, (list, set, deque, tuple)):
            stack += value
        elif not isinstance(value, _NOT_VISITED) and _is_user_class(kind.__module__):
            stack.append(getattr(value, "__dict__", None))
    return contents


@lru_cache(4096)
def _is_user_class(module: str) -> bool:
    """Return whether a class of this module is neither Python's nor torch's; objects of those may hold global state."""
    root = module.partition(".")[0]
    return root != "torch" and root not in sys.stdlib_module_names


def _refill(container: Any, before: Any) -> None:
    container.clear()
    if isinstance(container, (list, deque)):
        container.extend(before)
    else:
        container.update(before)


LARGER_BATCHES = "counts of larger batches may miss operations that depend on the batch size"
"""Consequence of an unknown dependence on the batch size, for notes."""


def may_hide_batch_dependence(layers: Sequence[Layer]) -> bool:
    """Return whether a layer creates or expands a tensor that the graph considers independent of the batch."""
    scales = trace_flow(layers).output_scales
    return any(
        not scaled and (layer.kind == "fill" or layer.attributes.get("function", layer.kind) in MADE_TO_SIZE)
        for layer, scaled in zip(layers, scales)
    )


def mark_batch_scaling(layers: Sequence[Layer], twice: Sequence[Layer]) -> tuple[tuple[Layer, ...], str]:
    """Correct which layers grow with the batch, by comparing traces of one and of two samples.

    Parameters
    ----------
    layers, twice : sequence of Layer
        Layers for one sample and for two.

    Returns
    -------
    layers : tuple of Layer
        Layers for one sample, with the attribute ``scales`` where the graph is wrong.
    note : str
        A note where the counts for two samples do not follow from those for one; else empty.
    """
    corrected = list(layers)
    # Layers are matched by name, as some modules treat a batch of one differently.
    by_name = {(layer.name, layer.kind): layer for layer in twice}
    flow = empty_flow()
    for index, layer in enumerate(layers):
        flow.add(layer)
        scales = flow.output_scales[-1]
        doubled = by_name.get((layer.name, layer.kind))
        growth = None if doubled is None else _growth(layer, doubled)
        if growth is not None and (growth == 2) != scales:
            scales = growth == 2
            corrected[index] = layer._replace(attributes={**layer.attributes, "scales": scales})
        flow.output_scales[-1] = scales
    expected = count(corrected).column("macs", "training", 2).sum()
    traced = count(twice).column("macs", "training", 1).sum()
    if traced == expected:
        return tuple(corrected), ""
    difference = 100 * (float(traced) / max(float(expected), 1) - 1)
    note = f"two samples have {difference:+.3g}% multiply-accumulates relative to twice one sample; {LARGER_BATCHES}"
    return tuple(corrected), note


def _growth(single: Layer, double: Layer) -> int | None:
    """Return the factor, 1 or 2, by which two samples enlarge a layer's outputs; None if the layers do not match."""
    if len(single.outputs) != len(double.outputs):
        return None
    if not all(map(_is_same_or_doubled, single.inputs + single.outputs, double.inputs + double.outputs)):
        return None
    elements = sum(map(prod, single.outputs))
    doubled = sum(map(prod, double.outputs))
    if elements and doubled in (elements, 2 * elements):
        return doubled // elements
    return None


def _is_same_or_doubled(single: Shape, double: Shape) -> bool:
    """Return whether two shapes are equal except for at most one size, which is twice as large."""
    if len(single) != len(double):
        return False
    differing = [(a, b) for a, b in zip(single, double) if a != b]
    return len(differing) <= 1 and all(b == 2 * a for a, b in differing)

"""Tracing any ``nn.Module`` without running it: every tensor operation, in order, with its shapes.

The module's forward runs on meta tensors, which have a shape and no memory, watched by `calls.Calls`;
`recorder.Recorder` keeps what it sees. The module, and what it is called with, are left as they were found.

What of a network grows with the batch the graph says, but not of what forward makes in the batch's size: a state of
zeros with a row for each sample, or a learned query that is expanded to all of them, depends on no input. A second
trace with twice the samples tells which outputs grow; where the counts of twice the samples do not follow from those of
one, a note says so.
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
from ..counting.layer import trace_flow
from ..errors import TraceFailed
from .calls import Calls, Operations
from .detectors import Enough, take_proposals, with_most_boxes
from .inputs import Values
from .network import Network
from .operations import MADE_TO_SIZE
from .readings import ATOMS
from .recorder import Recorder
from .user_code import place_in_user_code

_SENTENCE_AT_MOST = 300

_IN_OUR_WORDS = {
    "FlexAttention is only supported": "flex_attention runs on real devices only, and tracing knows shapes; the same "
    "products are those of torch.nn.functional.scaled_dot_product_attention",
}
"""What torch says, and what that means here."""


def trace(module: nn.Module, *inputs: Any, name: str = "", source: str = "", **named_inputs: Any) -> Network:
    """The layers that a module's forward executes.

    Parameters
    ----------
    module : nn.Module
        Left exactly as it is: training flags, buffers, hooks, attributes and parameters. It is traced in evaluation
        mode.
    *inputs, **named_inputs
        What forward is called with. Tensors stand for their shape and type, also within tuples, lists, dicts and
        dataclasses; a tuple of int is the shape of a float tensor, and `Values` are numbers that forward needs to
        know. The first dimension is the batch. Of torchvision's
        detectors ``proposals=300`` says how many boxes of an image its heads see, else the most that it keeps.
    name, source : str
        Recorded in the result.

    Raises
    ------
    TraceFailed
        If forward raises, needs the value of a number that only a real run knows, or hides its operations.
    """
    if not isinstance(module, nn.Module):
        raise TraceFailed(f"a {type(module).__name__} cannot be traced: a torch.nn.Module can")
    name = name or type(module).__name__
    recorder = _run(module, name, inputs, named_inputs)
    layers, notes = recorder.layers(), list(recorder.notes())
    if recorder.asks_for_two or may_hide_the_batch(layers):
        try:
            twice = _run(module, name, inputs, named_inputs, samples=2).layers()
        except TraceFailed as error:
            notes.append(f"two samples cannot be traced, {LARGER_BATCHES}: {error}")
        else:
            layers, note = with_growth(layers, twice)
            notes += [note] * bool(note)
    return Network(
        name=name,
        inputs=tuple(tuple(tensor.shape) for tensor in recorder.inputs),
        layers=layers,
        parameters=recorder.parameters,
        source=source,
        notes=tuple(notes),
    )


def _run(module: nn.Module, name: str, inputs: Any, named_inputs: Any, samples: int = 1) -> Recorder:
    """Forward, watched, on so many times the samples."""
    recorder, named_inputs = Recorder(module), dict(named_inputs)
    with _one_sentence(name, recorder):
        proposals = take_proposals(module, named_inputs)
        args, kwargs = _to_meta(inputs, recorder, samples), _to_meta(named_inputs, recorder, samples)
        with left_as_found(module, inputs, named_inputs), torch.enable_grad(), recorder.watching(), _plain_python():
            _evaluate(module)
            recorder.said += with_most_boxes(module, recorder, proposals)
            with Operations(recorder) as operations, Calls(recorder, operations), suppress(Enough):
                made = module(*args, **kwargs)
                for _ in made if isinstance(made, GeneratorType) else ():  # what it computes, it does when it is asked
                    pass
    return recorder


@contextmanager
def _one_sentence(name: str, recorder: Recorder) -> Iterator[None]:
    """Whatever goes wrong is a `TraceFailed` that says what and where."""
    failure: TraceFailed | None = None
    cause: BaseException | None = None
    try:
        yield
    except TraceFailed as error:
        failure = error
    except (Exception, SystemExit) as error:
        path = f" in {recorder.path_of_failure}" if recorder.path_of_failure else ""
        place = place_in_user_code(error.__traceback__)
        where = f" at {place}" if place else ""
        said = f"{type(error).__name__}{where}: {_first_line(error)}"
        known = next((ours for theirs, ours in _IN_OUR_WORDS.items() if theirs in said), None)
        text = f"{name} cannot be traced{path}: {said if known is None else known + where}"
        failure, cause = TraceFailed(text), error
    if recorder.elsewhere:
        failure = TraceFailed(f"{recorder.elsewhere} is called in another thread, and tracing follows one thread only")
    if failure is not None:
        raise failure from cause


def _first_line(error: BaseException) -> str:
    try:
        text = " ".join(str(error).strip().split("\n\n")[0].split())
    except Exception:  # an exception of somebody else's, whose __str__ may fail too
        text = ""
    return text[:_SENTENCE_AT_MOST] or "no message"


def _to_meta(value: Any, recorder: Recorder, samples: int) -> Any:
    """Meta tensors in the place of tensors and shapes, the rest as it is; each is known as the network's input.

    What has as many rows as the first of them gets `samples` times as many.
    """
    if isinstance(value, Values):
        known = value.tensor.clone()
        known = torch.cat([known] * samples) if known.shape[:1] == recorder.rows else known
        recorder.born([known])
        return known
    if isinstance(value, torch.Tensor):
        rows = tuple(value.shape[:1])
        recorder.rows = rows if recorder.rows is None else recorder.rows
        recorder.asks_for_two |= rows != recorder.rows
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


def _evaluate(module: nn.Module) -> None:
    """Evaluation mode, and replicas of a `DataParallel` model counted once.

    What ``torch.export`` made has the mode that it was exported in, and refuses another.
    """
    with suppress(NotImplementedError):
        module.eval()
    for submodule in module.modules():
        if isinstance(submodule, nn.DataParallel):
            submodule.device_ids = []


@contextmanager
def _plain_python() -> Iterator[None]:
    """What torch.compile made runs as it was written; where nothing was compiled, torch's compiler is not imported."""
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


_CONTAINERS = frozenset((dict, OrderedDict, defaultdict, list, set, deque))
"""Exactly these are refilled: what a class of somebody else's allows, only that class knows."""

_NOT_LOOKED_INTO = (torch.Tensor, type, FunctionType, MethodType, ModuleType)


@contextmanager
def left_as_found(module: nn.Module, *arguments: Any) -> Iterator[None]:
    """Put back the attributes of modules and other objects, what containers hold, and the random numbers to come.

    Values of tensors need no putting back: a trace never writes into the memory of a tensor that it did not make.
    """
    contents = _contents(module, *arguments)
    scripted = [(part, part.training) for part in module.modules() if isinstance(part, torch.jit.ScriptModule)]
    random_state, torch_state = random.getstate(), torch.get_rng_state()
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
        for part, training in scripted:  # which keeps its flag elsewhere
            part.training = training


def _contents(*values: Any) -> list[tuple[Any, Any]]:
    """Every container and dict of attributes within values, at any depth, beside a copy of what it holds."""
    contents: list[tuple[Any, Any]] = []
    seen: set[int] = set()  # what was seen lives as long as what holds it: in `found`, or in the values themselves
    stack = list(values)
    while stack:
        value = stack.pop()
        kind = type(value)
        if kind in ATOMS:
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
        elif not isinstance(value, _NOT_LOOKED_INTO) and _is_of_the_user(kind.__module__):
            stack.append(getattr(value, "__dict__", None))
    return contents


@lru_cache(4096)
def _is_of_the_user(module: str) -> bool:
    """Whether a class there is not one of Python's or torch's own, behind which may lie what all programs share."""
    root = module.partition(".")[0]
    return root != "torch" and root not in sys.stdlib_module_names


def _refill(container: Any, before: Any) -> None:
    container.clear()
    if isinstance(container, (list, deque)):
        container.extend(before)
    else:
        container.update(before)


LARGER_BATCHES = "counts of larger batches do not follow what depends on the batch's size"
"""What that means where it cannot be told."""


def may_hide_the_batch(layers: Sequence[Layer]) -> bool:
    """Whether something is made from nothing, or expanded, that the graph takes for independent of the batch."""
    scales = trace_flow(layers).output_scales
    return any(
        not scaled and (layer.kind == "fill" or layer.attributes.get("function", layer.kind) in MADE_TO_SIZE)
        for layer, scaled in zip(layers, scales)
    )


def with_growth(layers: Sequence[Layer], twice: Sequence[Layer]) -> tuple[tuple[Layer, ...], str]:
    """The layers of one sample, with the attribute ``scales`` where the graph is wrong, and a note or nothing.

    Parameters
    ----------
    layers, twice : sequence of Layer
        Of one sample and of two.
    """
    settled = list(layers)
    by_name = {(layer.name, layer.kind): layer for layer in twice}  # some forwards check what a batch of one is
    flow = trace_flow(())
    for index, one in enumerate(layers):
        flow.add(one)
        scaled = flow.output_scales[-1]
        two = by_name.get((one.name, one.kind))
        growth = _growth(one, two) if two is not None else None
        actual = scaled if growth is None else growth == 2
        if actual != scaled:
            settled[index] = one._replace(attributes={**one.attributes, "scales": actual})
        flow.output_scales[-1] = actual
    expected, computed = (
        count(part).column("macs", "training", batch_size).sum() for part, batch_size in ((settled, 2), (twice, 1))
    )
    more = 100 * (float(computed) / max(float(expected), 1) - 1)
    note = f"two samples have {more:+.3g}% multiply-accumulates beyond those that follow from one: {LARGER_BATCHES}"
    return tuple(settled), note if computed != expected else ""


def _growth(one: Layer, two: Layer) -> int | None:
    """How many times as large two samples make a layer's outputs: 1 or 2, or None where these are not alike."""
    alike = len(one.outputs) == len(two.outputs) and all(
        map(_alike, one.inputs + one.outputs, two.inputs + two.outputs)
    )
    elements, doubled = (sum(map(prod, layer.outputs)) for layer in (one, two))
    return doubled // elements if alike and elements and doubled in (elements, 2 * elements) else None


def _alike(one: Shape, two: Shape) -> bool:
    """Whether two shapes are the same but for one size that is twice as large."""
    other = [(a, b) for a, b in zip(one, two) if a != b]
    return len(one) == len(two) and len(other) <= 1 and all(b == 2 * a for a, b in other)

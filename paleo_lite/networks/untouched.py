"""Leaving a module as it was found, whatever its forward does to it."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_CONTAINERS = (dict, list, set, deque)


@contextmanager
def left_as_found(module: nn.Module) -> Iterator[None]:
    """Put back every attribute of every submodule, what their containers hold, and the random numbers to come.

    Values of tensors need no putting back: a trace never writes into the memory of a tensor that it did not make.
    """
    found = [(submodule, submodule.training, dict(submodule.__dict__)) for submodule in module.modules()]
    contents = list(_contents(attributes for _, _, attributes in found))
    random_state, torch_state = random.getstate(), torch.get_rng_state()
    numpy_random: Any = getattr(sys.modules.get("numpy"), "random", None)
    numpy_state = numpy_random.get_state() if numpy_random else None
    try:
        yield
    finally:
        random.setstate(random_state)
        torch.set_rng_state(torch_state)
        if numpy_random:
            numpy_random.set_state(numpy_state)
        for container, before in contents:
            if container or before:
                _refill(container, before)
        for submodule, training, attributes in found:
            submodule.__dict__.clear()
            submodule.__dict__.update(attributes)
            if submodule.training != training:  # a ScriptModule keeps its flag elsewhere
                submodule.training = training


def _contents(holders: Iterable[dict[str, Any]]) -> Iterator[tuple[Any, Any]]:
    """Every container within the values of dicts, at any depth, beside a copy of what it holds."""
    stack = []
    for holder in holders:
        for value in holder.values():
            if isinstance(value, _CONTAINERS):
                if value:
                    stack.append(value)
                else:
                    yield value, ()
    seen: set[int] = set()
    while stack:
        container = stack.pop()
        if id(container) in seen:
            continue
        seen.add(id(container))
        yield container, container.copy()
        items = container.values() if isinstance(container, dict) else container
        stack += [item for item in items if isinstance(item, _CONTAINERS)]


def _refill(container: Any, before: Any) -> None:
    container.clear()
    if isinstance(container, (list, deque)):
        container.extend(before)
    else:
        container.update(before)

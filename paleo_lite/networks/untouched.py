"""Leaving a module, and what it is called with, as they were found, whatever its forward does to them."""

from __future__ import annotations

import random
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from .readings import ATOMS

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

"""`Tensors`: who made each tensor of a trace, whose values are known, and what stands in for real ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..counting import INPUT
from ..errors import TraceFailed


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

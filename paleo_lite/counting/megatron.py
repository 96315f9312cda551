"""What Megatron-LM's fused kernels make one of, in training, too: bytes and launches fall, never FLOPs.

Narayanan et al. 2021 (section 4.2) name the first: scale, mask and softmax of the scores; bias, dropout and the
addition to the residual; bias and GeLU, which here is one kernel anyway, as a product adds its bias. Megatron-Core does
the same of a gated activation (``bias_swiglu``), of an RMS norm and rotary positions (Transformer Engine), and of the
sum of a token's experts (``moe_permute_fusion``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from .kinds import ACTIVATIONS, KINDS
from .layer import Layer
from .work import COLUMNS, PASSES, Work

READ, WRITTEN, KERNELS = (COLUMNS.index(name) for name in ("bytes_read", "bytes_written", "kernels"))
INFERENCE, FORWARD, BACKWARD, WEIGHTS = (
    PASSES.index(name) for name in ("inference", "forward", "backward_data", "backward_weight")
)
_ON_SCORES = ("mul", "div", "add", "where")
"""What stands between scores and their softmax: a scale and a mask."""

Moved = tuple[tuple[int, ...], tuple[int, ...]]
"""Layers whose results are read, and whose are written, as often as they are named."""


class Fused(NamedTuple):
    """Layers that one kernel computes, in whose row it stands, and what it moves; `backward` None: as they do."""

    layers: tuple[int, ...]
    row: int
    forward: Moved
    backward: Moved | None


def with_fused_kernels(layers: Sequence[Layer], work: Work) -> Work:
    """The work of a network as Megatron-LM launches it.

    Of a kernel the bytes and the launch stand in the row of one layer, and those of its others are 0.

    Parameters
    ----------
    work : Work
        Counted from these layers.
    """
    carrier, changed = np.arange(len(layers)), (work.per_sample.copy(), work.fixed.copy())
    for fused in _Blocks(layers).fused():
        inside = Counter(parent for member in fused.layers for parent in layers[member].parents if parent >= 0)
        again = {maker: times - 1 for maker, times in inside.items() if times > 1 and maker not in fused.layers}
        if fused.backward is not None:
            carrier[list(fused.layers)] = fused.row
        for rows in changed:
            _fuse(rows, fused, again)
    return msgspec.structs.replace(work, per_sample=changed[0], fixed=changed[1], carrier=carrier)


def _fuse(rows: np.ndarray, fused: Fused, again: Mapping[int, int]) -> None:
    """Put a kernel in the place of its layers; `again`: how often more than once they read what others made."""
    size = rows[WRITTEN, FORWARD].copy()
    members, row = list(fused.layers), fused.row
    if fused.backward is None:  # a dropout's mask is written besides, and at inference there is none
        dropout, addition = members
        rows[READ, FORWARD, dropout] += rows[READ, FORWARD, addition] - size[addition]
        rows[READ : KERNELS + 1, FORWARD, addition] = 0
        return
    passes = ((INFERENCE, fused.forward), (FORWARD, fused.forward), (BACKWARD, fused.backward))
    for pass_index, (read, written) in passes:
        if not rows[READ : KERNELS + 1, pass_index, members].any():
            continue
        launched = rows[KERNELS, pass_index, members].max()
        rows[READ : KERNELS + 1, pass_index, members] = 0
        rows[READ, pass_index, row], rows[WRITTEN, pass_index, row] = size[list(read)].sum(), size[list(written)].sum()
        rows[KERNELS, pass_index, row] = min(launched, 1)
    for maker, times in again.items():  # whose gradients are not added up any more
        one = times * size[fused.forward[0][0]]
        rows[READ, BACKWARD, maker] -= 2 * one
        rows[WRITTEN, BACKWARD, maker] -= one
        rows[KERNELS, BACKWARD, maker] -= min(times, rows[KERNELS, BACKWARD, maker])
    rows[READ:KERNELS, WEIGHTS, members] = 0  # a sum of what the same kernel leaves


class _Blocks:
    """Layers, and who reads and makes what: views are looked through."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers
        self.makers: list[list[int]] = []
        self.readers: list[list[int]] = [[] for _ in layers]
        for index, layer in enumerate(layers):
            self.makers.append([self._behind(parent) for parent in layer.parents])
            if layer.kind != "view":
                for maker in {maker for maker in self.makers[-1] if maker >= 0}:
                    self.readers[maker].append(index)

    def _behind(self, parent: int) -> int:
        while parent >= 0 and self.layers[parent].kind == "view" and self.layers[parent].parents:
            parent = self.layers[parent].parents[0]
        return parent

    def fused(self) -> Iterator[Fused]:
        """Every kernel of several layers."""
        for index, layer in enumerate(self.layers):
            kind = KINDS.get(layer.kind)
            if kind is not None and (kind.group, kind.fusion) == ("activation", "reduction"):  # a softmax
                if scores := tuple(self._scores(index)):
                    grown = (scores[0],)
                    yield Fused((*scores, index), index, (grown, (index,)), ((index, index), (index,)))
            elif layer.kind in ("dropout", *ACTIVATIONS) and len(self.readers[index]) == 1:
                yield from self._paired(index, self.readers[index][0])
            elif layer.kind == "mul" and layer.weights and (norm := self._chain(index, "mul rsqrt add reduce pow", 1)):
                yield Fused((*norm, index), index, ((index,), (index,)), ((index, index), (index,)))
            elif layer.kind == "add" and len(layer.parents) == 2:
                yield from self._rotated(index)
            elif layer.kind == "reduce" and (chosen := self._chain(index, "gather mul")):
                rows = chosen[0]
                yield Fused((*chosen, index), index, ((rows,), (index,)), ((index, rows), (rows,)))

    def _scores(self, softmax: int) -> Iterator[int]:
        """The layers between the product that makes scores and their softmax; a mask is the triangle left out."""
        index = softmax
        while (makers := self.makers[index]) and makers[0] >= 0:
            index = makers[0]
            layer = self.layers[index]
            alone = len(self.readers[index]) == 1 and layer.outputs == self.layers[softmax].inputs
            if layer.kind not in _ON_SCORES or not alone:
                return
            yield index

    def _paired(self, index: int, reader: int) -> Iterator[Fused]:
        inputs = self.layers[reader].inputs
        if len(inputs) != 2 or inputs[0] != inputs[1]:
            return
        pair = self.layers[index].kind == "dropout", self.layers[reader].kind
        if pair == (True, "add"):
            yield Fused((index, reader), index, ((), ()), None)
        elif pair == (False, "mul"):
            yield Fused((index, reader), reader, ((reader,) * 2, (reader,)), ((reader,) * 3, (reader,) * 2))

    def _chain(self, index: int, kinds: str, second: int = 0) -> tuple[int, ...]:
        """What made a layer's input, one behind the other, where of these kinds; of the second layer input `second`."""
        chain: list[int] = []
        for number, kind in enumerate(kinds.split()):
            makers = self.makers[chain[-1] if chain else index]
            place = second if number == 1 else 0
            if len(makers) <= place or makers[place] < 0 or self.layers[makers[place]].kind != kind:
                return ()
            chain.append(makers[place])
        return tuple(chain)

    def _rotated(self, index: int) -> Iterator[Fused]:
        """Rotary positions: a tensor times cosines, and its halves turned, times sines (Su et al. 2021)."""
        direct, turned = self.makers[index]
        chain = self._chain(turned, "concat neg slice") if turned >= 0 and direct >= 0 else ()
        if not chain or (self.layers[direct].kind, self.layers[turned].kind) != ("mul", "mul"):
            return
        halves = [maker for maker in self.makers[chain[0]] if maker >= 0 and self.layers[maker].kind == "slice"]
        yield Fused((direct, turned, *chain, *halves, index), index, ((index,), (index,)), ((index,), (index,)))

"""What the rows of a chunk are made of: columns of words, and why rows are infeasible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .space import Chunk, Space

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


class Words(NamedTuple):
    """A column of words: which of `values` each row has; -1 none."""

    codes: NDArray[np.int32]
    values: tuple[str, ...]


class Reasons:
    """Why rows are infeasible: the first reason that is given stays."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.codes = np.full(shape, -1, dtype=np.int32)
        self.values: dict[str, int] = {}

    def give(self, reason: str, where: Any) -> None:
        """A reason, for the rows that a mask of this or a broadcasting shape chooses."""
        chosen = np.broadcast_to(where, self.codes.shape) & (self.codes < 0)
        if chosen.any():
            self.codes[chosen] = self.values.setdefault(reason, len(self.values))

    def give_at(self, reason: str, at: tuple[int, ...]) -> None:
        """A reason, for what one index chooses."""
        here = self.codes[at]
        self.codes[at] = np.where(here < 0, self.values.setdefault(reason, len(self.values)), here)


def only(shape: tuple[int, ...], chosen: dict[int, int]) -> NDArray[np.bool_]:
    """A mask that is true where some axes have some index."""
    mask = np.ones((1,) * len(shape), dtype=bool)
    for axis, index in chosen.items():
        one = np.arange(shape[axis]) == index
        mask = mask & one.reshape([-1 if place == axis else 1 for place in range(len(shape))])
    return mask


def each_of(space: Space, chunk: Chunk) -> Ints:
    batches = np.array(chunk.batch_sizes, dtype=np.int64)
    workers = np.array(space.workers, dtype=np.int64)[:, None]
    weak = np.broadcast_to(batches, (len(workers), len(batches)))
    strong = np.where(batches % workers, -1, batches // workers)
    return np.array([weak if scaling == "weak" else strong for scaling in space.scalings])

"""`Grid`: the rows of a chunk while they are computed, as arrays over named axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..hardware import Device
from ..timing.models import TimeModel
from .inputs import ModelOf, device_of, model_or_reason
from .space import Chunk, Space

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

AXES = ("case", "device", "model", "scaling", "strategy", "link", "collective", "workers", "batch")
"""The axes of all rows, from the slowest. A case is a network in a phase; the batch is the one that was asked for."""


def along(values: Any, *axes: str) -> NDArray[Any]:
    """An array over some axes, in the order of `AXES`, made to broadcast against all rows."""
    array = np.asarray(values)
    lengths = dict(zip(axes, array.shape))
    return array.reshape([lengths.get(axis, 1) for axis in AXES])


def at(**chosen: int) -> tuple[slice, ...]:
    """An index of the rows that stand at these places of these axes; no axis is dropped."""
    return tuple(slice(chosen[axis], chosen[axis] + 1) if axis in chosen else slice(None) for axis in AXES)


class Words:
    """A column of words: which of `values` each row has; -1 none."""

    def __init__(self, codes: NDArray[np.int32], values: Sequence[str] = ()) -> None:
        self.codes = codes
        self.values = {word: code for code, word in enumerate(values)}

    def code(self, word: str) -> int:
        """What stands for a word; a new one is added."""
        return self.values.setdefault(word, len(self.values))

    @classmethod
    def of(cls, words: NDArray[Any]) -> Words:
        """A column of an array of words; the empty one is none."""
        column = cls(np.empty(words.shape, dtype=np.int32))
        column.codes[...] = np.reshape([column.code(word) if word else -1 for word in words.flat], words.shape)
        return column

    def over(self, shape: tuple[int, ...]) -> Words:
        """The same repeated over all rows, flat."""
        return Words(np.broadcast_to(self.codes, shape).ravel(), tuple(self.values))


class Grid:
    """All rows of a chunk.

    Parameters
    ----------
    space : Space
    chunk : Chunk
    model_of : callable
        See `inputs.ModelOf`.

    Attributes
    ----------
    devices : list of Device
    models : dict of (int, int) to TimeModel
        By the places of device and model; of those that there are.
    shape : tuple of int
        Over `AXES`.
    per_worker : ndarray of int, axes (scaling, workers, batch)
        Samples of one worker; -1 where they cannot be shared out evenly.
    columns : dict of str to ndarray
        Numbers by name, over `AXES`.
    collective, reason : Words
        How gradients are exchanged; why a row is infeasible.
    """

    def __init__(self, space: Space, chunk: Chunk, model_of: ModelOf) -> None:
        self.space, self.chunk = space, chunk
        self.devices: list[Device] = [device_of(gpu, space.hardware_files) for gpu in chunk.gpus]
        self.shape = (len(chunk.cases), len(self.devices), *space.spread, len(chunk.batch_sizes))
        self.columns: dict[str, Floats] = {}
        self.collective, self.reason = (Words(np.full(self.shape, -1, dtype=np.int32)) for _ in range(2))
        self.batches, self.workers = (np.array(sizes, dtype=np.int64) for sizes in (chunk.batch_sizes, space.workers))
        strong = np.where(self.batches % self.workers[:, None], -1, self.batches // self.workers[:, None])
        weak = np.broadcast_to(self.batches, strong.shape)
        self.per_worker: Ints = np.array([weak if scaling == "weak" else strong for scaling in space.scalings])
        self.models: dict[tuple[int, int], TimeModel] = {}
        for device, model in np.ndindex(len(self.devices), len(space.time_models)):
            answer = model_or_reason(
                space.time_models[model], self.devices[device], chunk.precision, space.ppp, model_of, chunk.execution
            )
            if isinstance(answer, str):
                self.refuse(answer, device=device, model=model)
            else:
                self.models[device, model] = answer

    def refuse(self, reason: str, where: Any = True, **chosen: int) -> None:
        """Give rows their reason; of several the first stays.

        Parameters
        ----------
        reason : str
        where : array of bool
            Broadcasts against the rows that are chosen.
        **chosen : int
            Places on axes.
        """
        codes = self.reason.codes[at(**chosen)]  # a view
        refused = np.broadcast_to(where, codes.shape) & (codes < 0)
        if refused.any():
            codes[refused] = self.reason.code(reason)

    def of_devices(self, values: Sequence[float | None]) -> NDArray[Any]:
        """A number of each device; where it is absent, so is what follows from it."""
        return along([np.nan if value is None else value for value in values], "device")

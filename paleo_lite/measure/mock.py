"""Mock components: how fast would training be if loading were free, and loading if training were?

From the course slides "Performance and Profiling": mock up the loader to measure the limit of training, mock up the
training to measure the limit of I/O. No framework is needed: a loader is anything that yields batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, repeat
from typing import Any, TypeVar

import msgspec

from ..errors import BadValue

Batch = TypeVar("Batch")


def mock_loader(
    source: Iterable[Batch], batches: int | None = None, place: Callable[[Batch], Batch] | None = None
) -> Iterator[Batch]:
    """Yield one stored batch again and again: a training loop over it runs at the limit of training.

    Parameters
    ----------
    source : iterable
        A loader; its first batch is taken, now, and the rest is not touched.
    batches : int, optional
        How often; without it for ever.
    place : callable, optional
        Moves the batch to where it is kept, once: ``lambda batch: [part.cuda() for part in batch]``. Kept on the
        device it leaves the copy out, kept on the host it leaves it in.

    Raises
    ------
    BadValue
        If the source yields nothing, or `batches` is below 1.
    """
    if batches is not None and batches < 1:
        raise BadValue(f"a mock loader must yield 1 batch or more, not {batches}")
    for batch in source:
        stored = batch if place is None else place(batch)
        return iter(repeat(stored) if batches is None else repeat(stored, batches))
    raise BadValue("the loader yields no batch to store")


class LoadingRate(msgspec.Struct, frozen=True):
    """How fast batches came while nothing was done with them.

    Attributes
    ----------
    batches : int
        Timed, those to warm up left out.
    samples : int or None
        In them; None where the batches do not show it.
    """

    batches: int
    samples: int | None
    seconds: float

    @property
    def batches_per_s(self) -> float:
        """Batches per second."""
        return self.batches / self.seconds

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second: has to be higher than that of training."""
        return None if self.samples is None else self.samples / self.seconds


def mock_trainer(
    source: Iterable[Any],
    batches: int | None = None,
    seconds: float | None = None,
    warm_up: int = 1,
    samples_in: Callable[[Any], int | None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> LoadingRate:
    """Discard each batch after loading it: the limit of loading.

    A loader that fetches ahead has a buffer full when the clock starts: time many more batches than it holds.

    Parameters
    ----------
    source : iterable
        A loader.
    batches : int, optional
        Stop after so many timed batches; without it, and without `seconds`, at the loader's end.
    seconds : float, optional
        Stop after so long.
    warm_up : int
        Batches before the clock starts: workers start, caches fill.
    samples_in : callable, optional
        Samples in a batch; without it `count_samples`.
    clock : callable
        Seconds.

    Raises
    ------
    BadValue
        If no batch is left to time, or a limit is not above 0.
    """
    if (batches is not None and batches < 1) or (seconds is not None and not seconds > 0) or warm_up < 0:
        raise BadValue("batches must be 1 or more, seconds above 0 and batches to warm up 0 or more")
    samples_in = samples_in or count_samples
    arriving = iter(source)
    for _ in islice(arriving, warm_up):
        pass
    counts: list[int | None] = []
    start = now = clock()
    for batch in arriving:
        counts.append(samples_in(batch))
        now = clock()
        if len(counts) == batches or (seconds is not None and now - start >= seconds):
            break
    if not counts:
        raise BadValue(f"the loader has no batch left to time after the {warm_up} to warm up")
    if not now > start:
        raise BadValue(f"{len(counts)} batches came faster than the clock can tell: time more of them")
    known = [number for number in counts if number is not None]
    return LoadingRate(len(counts), sum(known) if len(known) == len(counts) else None, now - start)


def count_samples(batch: Any) -> int | None:
    """Samples in a batch: the first dimension of its first tensor, or None where there is none.

    A batch is a tensor or array, or a list, tuple or dict whose first entry is one.
    """
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)) and batch:
        return count_samples(batch[0])
    return None

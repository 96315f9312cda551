"""Timing of a training loop and its data loader, together while the loop runs or each alone.

The methods are from the course slides "Performance and Profiling". `StepTimer` is their manual instrumentation, with
two additions: it synchronises with the device at the end of a step, because GPU work is only queued when a call
returns, and it excludes the first steps (start of workers, lazy initialisation, choice of algorithms) from the
averages. A mock loader measures the limit of training, a mock trainer the limit of I/O. No framework is needed: a
loader is any iterable of batches.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice, repeat
from typing import Any, Literal, TypeVar

import msgspec

from ..errors import BadValue

Batch = TypeVar("Batch")

SHORT = 0.1
"""Loading counts as "much shorter" than training below this fraction of a step (90% utilisation)."""


class StepTimer:
    """Moving averages of loading (t2 - t1) and training (t3 - t2).

    Around a loop::

        timer = StepTimer()
        for inputs, targets in timer.steps(loader):
            train(inputs, targets)
        print(timer)

    or, if the loop cannot be changed, ``with timer.loading(): ...`` and ``with timer.training(): ...``.

    Parameters
    ----------
    window : int
        Number of steps in the moving averages.
    warm_up : int
        Number of first steps that are excluded from the averages.
    synchronise : callable, False or None
        Function that waits for the device at the end of a step. None calls ``torch.cuda.synchronize`` if torch is
        imported and CUDA is in use. False never waits: a step then ends when its last kernel is queued, and the wait
        is attributed to the part in which the host next needs a result.
    clock : callable
        Function that returns the time in seconds.

    Raises
    ------
    BadValue
        If the window is below 1 or the warm-up below 0.
    """

    def __init__(
        self,
        window: int = 50,
        warm_up: int = 1,
        synchronise: Callable[[], object] | Literal[False] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if window < 1 or warm_up < 0:
            raise BadValue(f"the window must be >= 1 and the warm-up >= 0 (got {window} and {warm_up})")
        self._clock = clock
        self._synchronise = synchronise
        self._left_out = {"loading": warm_up, "training": warm_up}
        self._seconds: dict[str, deque[float]] = {name: deque(maxlen=window) for name in self._left_out}
        self._running = ""
        self.count = 0

    def steps(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches of a loader, and time each step: fetching the batch as loading, the loop body as training.

        A step that ends with ``break`` or an exception is not counted.
        """
        batches = iter(loader)
        while True:
            with self.loading():
                try:
                    batch = next(batches)
                except StopIteration:
                    self._running = ""
                    return
            start = self._clock()
            yield batch
            self._record("training", start)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Time the body of the ``with`` statement as loading."""
        yield from self._timed("loading")

    @contextmanager
    def training(self) -> Iterator[None]:
        """Time the body of the ``with`` statement as training, including the work of the device."""
        yield from self._timed("training")

    def _timed(self, part: str) -> Iterator[None]:
        if self._running:
            raise BadValue(f"{part} cannot be timed inside {self._running}: end that part first")
        self._running, start = part, self._clock()
        try:
            yield
            if self._running:  # False at the end of the loader
                self._record(part, start)
        finally:
            self._running = ""

    def _record(self, part: str, start: float) -> None:
        if part == "training":
            self._wait()
            self.count += 1
        spent = self._clock() - start
        if self._left_out[part]:
            self._left_out[part] -= 1
        else:
            self._seconds[part].append(spent)

    def _wait(self) -> None:
        if self._synchronise is None:
            cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
            if cuda is not None and cuda.is_initialized():
                cuda.synchronize()
        elif self._synchronise is not False:
            self._synchronise()

    @property
    def loading_s(self) -> float | None:
        """Mean loading time per step in seconds; None before the first counted step."""
        return _mean(self._seconds["loading"])

    @property
    def training_s(self) -> float | None:
        """Mean training time per step in seconds; None before the first counted step."""
        return _mean(self._seconds["training"])

    @property
    def utilisation(self) -> float | None:
        """Fraction of a step spent on training; the utilisation of the device if training keeps it busy."""
        loading, training = self.loading_s, self.training_s
        if loading is None or training is None or loading + training == 0:
            return None
        return training / (loading + training)

    @property
    def is_fed(self) -> bool | None:
        """Whether loading is much shorter than training."""
        share = self.utilisation
        return None if share is None else 1 - share < SHORT

    def __str__(self) -> str:
        loading, training, share = self.loading_s, self.training_s, self.utilisation
        if loading is None or training is None or share is None:
            return f"{self.count} steps: too few to say"
        verdict = "fed" if self.is_fed else "waits for its batches"
        return f"{self.count} steps: loading {loading:.4g} s, training {training:.4g} s, {share:.1%} at work: {verdict}"


def _mean(seconds: deque[float]) -> float | None:
    return sum(seconds) / len(seconds) if seconds else None


# Mock components ------------------------------------------------------------------------------------------------------


def mock_loader(
    source: Iterable[Batch], batches: int | None = None, place: Callable[[Batch], Batch] | None = None
) -> Iterator[Batch]:
    """Yield one stored batch repeatedly, so that a training loop over it runs at the limit of training.

    Parameters
    ----------
    source : iterable
        A loader. Only its first batch is loaded, during this call.
    batches : int, optional
        Number of batches; by default unlimited.
    place : callable, optional
        Function that is applied once to the stored batch, such as ``lambda batch: [part.cuda() for part in batch]``. A
        batch on the device excludes the copy to the device from the step; a batch on the host includes it.

    Raises
    ------
    BadValue
        If the source yields nothing, or `batches` is below 1.
    """
    if batches is not None and batches < 1:
        raise BadValue(f"a mock loader must yield at least 1 batch (got {batches})")
    for batch in source:
        stored = batch if place is None else place(batch)
        return iter(repeat(stored) if batches is None else repeat(stored, batches))
    raise BadValue("the loader yields no batch to store")


class LoadingRate(msgspec.Struct, frozen=True):
    """Rate of a loader when its batches are discarded.

    Attributes
    ----------
    batches : int
        Number of timed batches, without the warm-up.
    samples : int or None
        Number of samples in them; None if it cannot be determined from the batches.
    """

    batches: int
    samples: int | None
    seconds: float

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second; a loader that keeps up exceeds the rate of training."""
        return None if self.samples is None else self.samples / self.seconds


def mock_trainer(
    source: Iterable[Any],
    batches: int | None = None,
    seconds: float | None = None,
    warm_up: int = 1,
    samples_in: Callable[[Any], int | None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> LoadingRate:
    """Measure the rate of a loader by discarding each batch.

    A loader that prefetches has a full buffer when the clock starts: time many more batches than the buffer holds.

    Parameters
    ----------
    source : iterable
        A loader.
    batches : int, optional
        Number of batches to time; by default, and without `seconds`, all batches of the loader.
    seconds : float, optional
        Time limit.
    warm_up : int
        Number of batches before the clock starts, while workers start and caches fill.
    samples_in : callable, optional
        Function that returns the number of samples in a batch; by default `count_samples`.
    clock : callable
        Function that returns the time in seconds.

    Raises
    ------
    BadValue
        If there is no batch to time, or a limit is not > 0.
    """
    if (batches is not None and batches < 1) or (seconds is not None and not seconds > 0) or warm_up < 0:
        raise BadValue("batches must be >= 1, seconds > 0 and warm_up >= 0")
    samples_in = samples_in or count_samples
    remaining = iter(source)
    for _ in islice(remaining, warm_up):
        pass
    counts: list[int | None] = []
    start = now = clock()
    for batch in remaining:
        counts.append(samples_in(batch))
        now = clock()
        if len(counts) == batches or (seconds is not None and now - start >= seconds):
            break
    if not counts:
        raise BadValue(f"the loader has no batch left to time after {warm_up} warm-up batches")
    if not now > start:
        raise BadValue(f"{len(counts)} batches took less time than the resolution of the clock: time more batches")
    known_counts = [number for number in counts if number is not None]
    samples = sum(known_counts) if len(known_counts) == len(counts) else None
    return LoadingRate(len(counts), samples, now - start)


def count_samples(batch: Any) -> int | None:
    """Return the number of samples in a batch: the first dimension of its first tensor; None if there is no tensor.

    A batch is a tensor or array, or a list, tuple or dict with one as its first entry.
    """
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)) and batch:
        return count_samples(batch[0])
    return None

"""A training loop and what loads its batches: timed while it runs, or each alone.

From the course slides "Performance and Profiling". `StepTimer` is their manual instrumentation, with the two things
that it leaves out: work on a GPU is only queued when a call returns, so that the end of a step has to wait for it, and
the first steps (start of workers, lazy initialisation, choice of algorithms) belong to no average. A mocked-up loader
measures the limit of training, a mocked-up training the limit of I/O. No framework is needed: a loader is anything
that yields batches.
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
"""Loading is "much shorter" than training where it takes less than this share of a step: 90% utilisation."""


class StepTimer:
    """Moving averages of loading (t2 - t1) and training (t3 - t2).

    Around a loop::

        timer = StepTimer()
        for inputs, targets in timer.steps(loader):
            train(inputs, targets)
        print(timer)

    or, where the loop is another's, ``with timer.loading(): ...`` and ``with timer.training(): ...``.

    Parameters
    ----------
    window : int
        Steps that the averages are over.
    warm_up : int
        Steps at the start that no average takes.
    synchronise : callable, False or None
        Waits for the device at the end of a step. None: ``torch.cuda.synchronize`` once torch is imported and CUDA in
        use, else nothing. False: never; then a step ends when its last kernel is queued, and the waiting shows up
        wherever the host happens to need a result.
    clock : callable
        Seconds.

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
            raise BadValue(f"the window must be 1 step or more and the warm-up 0 or more, not {window} and {warm_up}")
        self._clock = clock
        self._synchronise = synchronise
        self._left_out = {"loading": warm_up, "training": warm_up}
        self._seconds: dict[str, deque[float]] = {name: deque(maxlen=window) for name in self._left_out}
        self._running = ""
        self.count = 0

    def steps(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The batches of a loader, each step timed: fetching as loading, what the loop does with it as training.

        A step that the loop leaves by ``break`` or an error has not ended and is not counted.
        """
        arriving = iter(loader)
        while True:
            with self.loading():
                try:
                    batch = next(arriving)
                except StopIteration:
                    self._running = ""
                    return
            start = self._clock()
            yield batch
            self._record("training", start)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Time what is inside as loading."""
        yield from self._timed("loading")

    @contextmanager
    def training(self) -> Iterator[None]:
        """Time what is inside as training, the device's work included."""
        yield from self._timed("training")

    def _timed(self, part: str) -> Iterator[None]:
        if self._running:
            raise BadValue(f"{part} cannot be timed inside {self._running}: close that first")
        self._running, start = part, self._clock()
        try:
            yield
            if self._running:  # the loader was not at its end
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
        """Average seconds that a step waits for its batch; None before there is one."""
        return _mean(self._seconds["loading"])

    @property
    def training_s(self) -> float | None:
        """Average seconds that a step works; None before there is one."""
        return _mean(self._seconds["training"])

    @property
    def utilisation(self) -> float | None:
        """Share of a step that is work: the utilisation of the device, where training keeps it busy."""
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

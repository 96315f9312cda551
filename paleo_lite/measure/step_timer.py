"""`StepTimer`: how long a training loop waits for its batches, and how long it works on them.

The manual instrumentation of the course slides "Performance and Profiling", with the two things that it leaves out:
work on a GPU is only queued when a call returns, so that the end of a step has to wait for it, and the first steps
(start of workers, lazy initialisation, choice of algorithms) belong to no average.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

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

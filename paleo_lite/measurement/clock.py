"""Timing of calls: warm-up, repetition in rounds until the median is stable, and its spread.

There are two clocks. On the CPU, a call is complete when it returns. On CUDA, it has only been queued, so events
enclose many calls and are awaited once: waiting for each call would add a cost to each, and inflate sums of layers (Lu
et al. 2017 measured layer by layer, and had to subtract this cost from their sums).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

Run = Callable[[], object]


class Clock(Protocol):
    """Protocol of clocks that time several consecutive calls."""

    def seconds(self, run: Run, calls: int) -> float:
        """Seconds of `calls` calls of `run`, all ended."""
        ...


class HostClock:
    """Clock of the host, for work that is complete when its call returns."""

    def seconds(self, run: Run, calls: int) -> float:
        """Seconds of `calls` calls."""
        start = time.perf_counter()
        for _ in range(calls):
            run()
        return time.perf_counter() - start


class EventClock:
    """Clock with CUDA events around all calls and one wait at the end.

    Parameters
    ----------
    cuda : module
        ``torch.cuda``, or an object with its ``Event`` and ``synchronize``.
    """

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda

    def seconds(self, run: Run, calls: int) -> float:
        """Seconds that the device takes between the first call's start and the last one's end."""
        start, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        self._cuda.synchronize()  # what was queued before is not ours
        start.record()
        for _ in range(calls):
            run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3  # events count milliseconds


class Effort(msgspec.Struct, frozen=True):
    """Limits of the repetition of a timed call.

    Attributes
    ----------
    tolerance : float
        Relative error of the median below which it counts as stable.
    sample_s : float
        Minimum seconds of a sample, which contains several calls if necessary, so that the clock's resolution does not
        matter.
    limit_s : float
        Seconds after which the median of at least three samples is accepted.
    warm_up_s : float
        Minimum seconds of the warm-up: see `RISE_S`.
    """

    tolerance: float = 0.01
    samples_at_least: int = 7
    samples_at_most: int = 60
    sample_s: float = 0.01
    limit_s: float = 1.5
    warm_up_s: float = 0.0

    def takes_s(self, call_s: float) -> float:
        """Return the seconds that timing a steady call takes in all rounds, without the warm-up."""
        sample_s = max(call_s, self.sample_s)
        samples = min(self.samples_at_least, max(_SAMPLES_AT_LEAST, math.ceil((self.limit_s - call_s) / sample_s)))
        return ROUNDS * (max(2 * call_s, self.warm_up_s) + samples * sample_s)


RISE_S = 0.2
"""What a GPU that idled, as while a network is built, is given to raise its clocks before each timing."""

QUICK = Effort(tolerance=0.03, samples_at_least=5, samples_at_most=20, sample_s=0.005, limit_s=0.4)
_WARM_UP_AT_MOST = 10
_SAMPLES_AT_LEAST = 3
_CALLS_AT_MOST = 10_000


class Timing(msgspec.Struct, frozen=True):
    """Result of timing a call.

    Attributes
    ----------
    median_s : float
        Median seconds of a call.
    spread : float
        Relative standard deviation of a sample, estimated from the interquartile range.
    samples, calls : int
        Number of samples, and of calls per sample.
    stable : bool
        Whether the median became stable within the time limit.
    """

    median_s: float
    spread: float
    samples: int
    calls: int
    stable: bool


def time_call(run: Run, clock: Clock, effort: Effort | None = None) -> Timing:
    """Time a call.

    The error of the median of n samples is 1.25 times their standard deviation divided by sqrt(n) (Kenney and Keeping
    1962).
    """
    effort = effort or Effort()
    once, spent = _warm_up(run, clock, effort)
    calls = min(max(math.ceil(effort.sample_s / once), 1), _CALLS_AT_MOST) if once > 0 else _CALLS_AT_MOST
    samples: list[float] = []
    while True:
        seconds = clock.seconds(run, calls)
        spent += seconds
        samples.append(seconds / calls)
        if len(samples) < _SAMPLES_AT_LEAST:
            continue
        median = statistics.median(samples)
        # Unlike this estimate, the median absolute deviation is 0 if three of five samples agree.
        low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
        spread = (high - low) / 1.349 / median if median > 0 else 0.0
        still = 1.25 * spread / math.sqrt(len(samples)) <= effort.tolerance
        stable = still and len(samples) >= effort.samples_at_least
        if stable or len(samples) >= effort.samples_at_most or spent >= effort.limit_s:
            return Timing(median, spread, len(samples), calls, stable)


ROUNDS = 2
"""Everything is timed so often, a whole round apart: what else a machine does comes in bursts."""

_AGREEING = 0.05


def best_of(timings: Sequence[Timing]) -> Timing:
    """Return the fastest round, because other work only adds time; it is stable if another round agrees with it."""
    fastest, *others = sorted(timings, key=lambda timing: timing.median_s)
    agreed = not others or others[0].median_s <= fastest.median_s * (1 + _AGREEING)
    return msgspec.structs.replace(fastest, stable=fastest.stable and agreed)


def _warm_up(run: Run, clock: Clock, effort: Effort) -> tuple[float, float]:
    """Call until two consecutive calls take equally long: caches, lazy initialisation, compilation, rising clocks."""
    before, spent = clock.seconds(run, 1), 0.0
    for _ in range(_WARM_UP_AT_MOST):
        now = clock.seconds(run, 1)
        spent += now
        if abs(now - before) <= 0.1 * before or spent >= effort.limit_s / 4:
            break
        before = now
    if spent < effort.warm_up_s:
        calls = min(math.ceil((effort.warm_up_s - spent) / now), _CALLS_AT_MOST) if now > 0 else _CALLS_AT_MOST
        spent += (seconds := clock.seconds(run, calls))
        now = seconds / calls
    return now, spent

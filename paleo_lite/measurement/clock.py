"""Timing of a call: warm-up, repetition until the median is stable, in several rounds; median and spread.

There are two clocks. On the CPU, a call is complete when it returns. On CUDA, it has only been queued, so that events
are recorded before and after many calls, followed by one synchronization: synchronizing after each call would add its
cost to every call and inflate every sum of layers (Lu et al. 2017 measured layer by layer, and had to subtract that
cost from their sums).
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
    """Interface of an object that times several consecutive calls."""

    def seconds(self, run: Run, calls: int) -> float:
        """Return the seconds that `calls` calls of `run` take until all are complete."""
        ...


class HostClock:
    """The clock of the host, for work that is complete when its call returns."""

    def seconds(self, run: Run, calls: int) -> float:
        """Return the seconds of `calls` calls."""
        start = time.perf_counter()
        for _ in range(calls):
            run()
        return time.perf_counter() - start


class EventClock:
    """CUDA events before and after all calls, with one synchronization at the end.

    The module is ``torch.cuda``, or another object with its ``Event`` and ``synchronize``.
    """

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda

    def seconds(self, run: Run, calls: int) -> float:
        """Return the device seconds from the start of the first call to the end of the last one."""
        start, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        self._cuda.synchronize()  # finish work that was queued before
        start.record()
        for _ in range(calls):
            run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3  # events measure milliseconds


class Effort(msgspec.Struct, frozen=True):
    """Accuracy and time limits of a timing."""

    tolerance: float = 0.01  # relative error of the median below which it counts as stable
    samples_at_least: int = 7
    samples_at_most: int = 60
    sample_s: float = 0.01  # minimum duration of a sample, long enough to make the resolution of the clock negligible
    limit_s: float = 1.5  # time after which the median of at least three samples is accepted, even if it is not stable
    warm_up_s: float = 0.0  # minimum duration of the warm-up; see `RISE_S`

    def estimate_s(self, call_s: float) -> float:
        """Return the expected seconds for timing a call of constant duration: warm-up and all rounds."""
        sample_s = max(call_s, self.sample_s)
        samples = min(self.samples_at_least, max(_SAMPLES_AT_LEAST, math.ceil((self.limit_s - call_s) / sample_s)))
        return ROUNDS * (max(2 * call_s, self.warm_up_s) + samples * sample_s)


RISE_S = 0.2
"""Warm-up before each timing on a GPU, which raises its clocks after it idled, as while a network was built."""

QUICK = Effort(tolerance=0.03, samples_at_least=5, samples_at_most=20, sample_s=0.005, limit_s=0.4)
_WARM_UP_AT_MOST = 10
_SAMPLES_AT_LEAST = 3
_CALLS_AT_MOST = 10_000
_DEVIATIONS_PER_IQR = 1.349
"""Interquartile range of a normal distribution in standard deviations: twice its quantile of 75%, 0.6745."""


class Timing(msgspec.Struct, frozen=True):
    """Result of timing a call."""

    median_s: float  # median seconds of a call
    spread: float  # relative standard deviation of one sample, estimated from the interquartile range
    # Number of samples, and number of calls per sample.
    samples: int
    calls: int
    stable: bool  # whether the median reached the tolerance before the time limit


def time_call(run: Run, clock: Clock, effort: Effort | None = None) -> Timing:
    """Time a call.

    The standard error of the median of n samples is 1.25 times their standard deviation divided by the square root of n
    (Kenney and Keeping 1962).
    """
    effort = effort or Effort()
    once, spent = _warm_up(run, clock, effort)
    calls = _calls_within(effort.sample_s, once)
    samples: list[float] = []
    while True:
        seconds = clock.seconds(run, calls)
        spent += seconds
        samples.append(seconds / calls)
        if len(samples) < _SAMPLES_AT_LEAST:
            continue
        median = statistics.median(samples)
        # The interquartile range is used because the median absolute deviation is 0 if three of five samples agree.
        low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
        spread = (high - low) / _DEVIATIONS_PER_IQR / median if median > 0 else 0.0
        is_within_tolerance = 1.25 * spread / math.sqrt(len(samples)) <= effort.tolerance
        stable = is_within_tolerance and len(samples) >= effort.samples_at_least
        if stable or len(samples) >= effort.samples_at_most or spent >= effort.limit_s:
            return Timing(median, spread, len(samples), calls, stable)


def _calls_within(seconds: float, call_s: float) -> int:
    """Return how many calls fill the seconds: at least one, and the most where a call is too short for the clock."""
    if not call_s > 0:
        return _CALLS_AT_MOST
    return min(max(math.ceil(seconds / call_s), 1), _CALLS_AT_MOST)


ROUNDS = 2
"""Number of rounds. Every call is timed once per round, because other processes disturb timings in bursts."""

_AGREEING = 0.05


def best_of(timings: Sequence[Timing]) -> Timing:
    """Return the fastest round, because other work on the machine only adds time; stable if another round agrees."""
    fastest, *others = sorted(timings, key=lambda timing: timing.median_s)
    agreed = not others or others[0].median_s <= fastest.median_s * (1 + _AGREEING)
    return msgspec.structs.replace(fastest, stable=fastest.stable and agreed)


def _warm_up(run: Run, clock: Clock, effort: Effort) -> tuple[float, float]:
    """Call until two consecutive calls take about as long; return the seconds of one call and of the warm-up.

    The first calls fill caches, initialise lazily, compile, and raise the clocks of the device.
    """
    previous_s, spent = clock.seconds(run, 1), 0.0
    for _ in range(_WARM_UP_AT_MOST):
        latest_s = clock.seconds(run, 1)
        spent += latest_s
        if abs(latest_s - previous_s) <= 0.1 * previous_s or spent >= effort.limit_s / 4:
            break
        previous_s = latest_s
    if spent < effort.warm_up_s:
        calls = _calls_within(effort.warm_up_s - spent, latest_s)
        seconds = clock.seconds(run, calls)
        spent += seconds
        latest_s = seconds / calls
    return latest_s, spent

"""Timing without time: a scripted clock, and events that only keep a diary."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from paleo_lite.measurement.clock import ROUNDS, Effort, EventClock, HostClock, Run, Timing, best_of, time_call


class ScriptedClock:
    """Every call takes the next of the durations given, the last one for ever."""

    def __init__(self, durations: Iterable[float]) -> None:
        self.durations = list(durations)
        self.asked: list[int] = []

    def seconds(self, run: Run, calls: int) -> float:
        self.asked.append(calls)
        for _ in range(calls):
            run()
        each = self.durations.pop(0) if len(self.durations) > 1 else self.durations[0]
        return each * calls


EFFORT = Effort(tolerance=0.01, samples_at_least=5, samples_at_most=20, sample_s=0.01, limit_s=10)


def nothing() -> None:
    pass


@pytest.mark.parametrize("call_s", [1e-3, 0.05, 0.7])
def test_a_gpu_is_given_time_to_raise_its_clocks(call_s: float) -> None:
    """Unrecorded calls run for at least this time; the last of them determines the number of calls per sample."""
    clock = ScriptedClock([call_s])
    timing = time_call(nothing, clock, msgspec.structs.replace(EFFORT, warm_up_s=0.2))
    warm_up = clock.asked[: -timing.samples]
    assert warm_up[:2] == [1, 1] and sum(warm_up) * call_s >= 0.2 and len(warm_up) <= 3
    assert timing.median_s == pytest.approx(call_s) and timing.calls == max(1, round(0.01 / call_s))
    slow = ScriptedClock([4e-3, 4e-3, 1e-3])  # twice at a low clock, then at the one that it keeps
    assert time_call(nothing, slow, msgspec.structs.replace(EFFORT, warm_up_s=0.2)).calls == 10


@pytest.mark.parametrize("call_s", [2e-4, 0.005, 0.03, 0.4, 3.0])
def test_how_long_timing_a_steady_call_takes(call_s: float) -> None:
    clock, effort = ScriptedClock([call_s]), Effort()
    for _ in range(ROUNDS):
        time_call(nothing, clock, effort)
    assert effort.estimate_s(call_s) == pytest.approx(call_s * sum(clock.asked), rel=0.1)


def test_steady_call_stops_at_the_least_number_of_samples() -> None:
    timing = time_call(nothing, ScriptedClock([0.1]), EFFORT)
    assert timing == Timing(pytest.approx(0.1), 0.0, 5, 1, True)


def test_short_calls_are_repeated_within_a_sample() -> None:
    clock = ScriptedClock([0.001])
    timing = time_call(nothing, clock, EFFORT)
    assert timing.calls == 10  # 10 ms of samples, 1 ms each
    assert clock.asked == [1, 1] + [10] * 5
    assert timing.median_s == pytest.approx(0.001)


def test_warm_up_is_not_measured() -> None:
    """The first calls pay for caches and compilers: called until two in a row agree."""
    timing = time_call(nothing, ScriptedClock([5.0, 1.0, 0.1, 0.1]), EFFORT)
    assert timing.median_s == pytest.approx(0.1)
    assert timing.spread == 0


def test_outlier_moves_neither_median_nor_spread() -> None:
    timing = time_call(nothing, ScriptedClock([0.1, 0.1, 0.1, 0.1, 9.0, 0.1, 0.1]), EFFORT)
    assert (timing.median_s, timing.spread, timing.stable) == (pytest.approx(0.1), pytest.approx(0, abs=1e-9), True)


def test_unstable_timing_is_reported() -> None:
    clock = ScriptedClock([0.1, 0.1] + [0.1, 0.2] * 20)
    timing = time_call(nothing, clock, EFFORT)
    assert not timing.stable
    assert timing.samples == EFFORT.samples_at_most
    # Half the samples at each of two values around 0.15; the middle half of a normal distribution is 1.349 wide.
    assert timing.median_s == pytest.approx(0.15)
    assert timing.spread == pytest.approx(0.1 / 1.349 / 0.15)


def test_time_runs_out() -> None:
    timing = time_call(nothing, ScriptedClock([4.0]), EFFORT)
    assert timing.samples == 3  # fewer than samples_at_least: the limit is 10 s
    assert not timing.stable


def test_best_round() -> None:
    """Other work only adds time, so the fastest round counts; it is stable if another one agrees with it."""
    slow, fast = Timing(2.0, 0.0, 5, 1, True), Timing(1.0, 0.01, 5, 1, True)
    assert best_of([slow, fast]) == Timing(1.0, 0.01, 5, 1, False)
    assert best_of([Timing(1.04, 0.0, 5, 1, True), fast]) == fast
    assert best_of([fast]) == fast


def test_host_clock_runs_all_calls() -> None:
    ran: list[int] = []
    assert HostClock().seconds(lambda: ran.append(1), 7) > 0
    assert len(ran) == 7


class FakeCuda:
    """Record calls of the device; the time between two events is 2.5 ms per call."""

    def __init__(self) -> None:
        self.diary: list[str] = []
        self.calls = 0

    def synchronize(self) -> None:
        self.diary.append("synchronize")

    def Event(self, enable_timing: bool) -> FakeEvent:
        assert enable_timing
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda, self.at = cuda, -1

    def record(self) -> None:
        self.cuda.diary.append("record")
        self.at = self.cuda.calls

    def synchronize(self) -> None:
        self.cuda.diary.append("wait")

    def elapsed_time(self, end: FakeEvent) -> float:
        """Milliseconds, as torch.cuda.Event.elapsed_time documents."""
        assert self.cuda.diary[-1] == "wait", "an event is read before it has happened"
        return (end.at - self.at) * 2.5


def test_events_wait_once_for_many_calls() -> None:
    cuda = FakeCuda()

    def run() -> None:
        cuda.calls += 1
        cuda.diary.append("run")

    assert EventClock(cuda).seconds(run, 4) == pytest.approx(4 * 2.5e-3)
    assert cuda.diary == ["synchronize", "record", "run", "run", "run", "run", "record", "wait"]


def test_timing_with_events() -> None:
    cuda = FakeCuda()

    def run() -> None:
        cuda.calls += 1

    timing = time_call(run, EventClock(cuda), EFFORT)
    assert timing.median_s == pytest.approx(2.5e-3)
    assert timing.calls == 4  # 10 ms of samples

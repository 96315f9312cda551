"""StepTimer: a loop timed by a clock that only the test moves."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from clocks import Clock
from paleo_lite.errors import BadValue
from paleo_lite.measurement import StepTimer, mock_loader


def loader(clock: Clock, seconds: list[float]):
    for each in seconds:
        clock.spend(each)
        yield each
    clock.spend(1000.0)  # finding out that there is no more is no step


def test_a_loop_is_split_into_loading_and_training():
    clock = Clock()
    timer = StepTimer(clock=clock)
    for _ in timer.steps(loader(clock, [50.0, 1.0, 2.0, 3.0])):
        clock.spend(6.0)
    assert timer.count == 4
    assert (timer.loading_s, timer.training_s) == (2.0, 6.0)  # the first step, 50 s of loading, is warm-up
    assert (timer.utilisation, timer.is_fed) == (0.75, False)
    assert str(timer) == "4 steps: loading 2 s, training 6 s, 75.0% at work: waits for its batches"


def test_averages_move():
    clock = Clock()
    timer = StepTimer(window=2, warm_up=0, clock=clock)
    for number, _ in enumerate(timer.steps(loader(clock, [9.0, 9.0, 0.1, 0.3]))):
        clock.spend(float(number))
    assert (timer.loading_s, timer.training_s) == (pytest.approx(0.2), 2.5)
    assert timer.is_fed


def test_the_end_of_a_step_waits_for_the_device():
    """The loop queues work in 1 s; the device needs 5 s more, which is training and not the next step's loading."""
    clock = Clock()
    timer = StepTimer(warm_up=0, synchronise=lambda: clock.spend(5.0), clock=clock)
    for _ in timer.steps(loader(clock, [0.5, 0.5])):
        clock.spend(1.0)
    assert (timer.loading_s, timer.training_s) == (0.5, 6.0)


@pytest.mark.parametrize(("in_use", "synchronise", "waits"), [(True, None, 2), (False, None, 0), (True, False, 0)])
def test_cuda_is_waited_for_only_where_it_is_used(monkeypatch, in_use, synchronise, waits):
    calls: list[int] = []
    cuda = SimpleNamespace(is_initialized=lambda: in_use, synchronize=lambda: calls.append(1))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    timer = StepTimer(synchronise=synchronise)
    for _ in timer.steps([1, 2]):
        pass
    assert len(calls) == waits


def test_no_synchronization_without_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    timer = StepTimer(warm_up=0)
    assert list(timer.steps("ab")) == ["a", "b"] and timer.count == 2 and "torch" not in sys.modules


def test_parts_of_a_user_s_loop():
    clock = Clock()
    timer = StepTimer(warm_up=0, clock=clock)
    for _ in range(3):
        with timer.loading():
            clock.spend(1.0)
        with timer.training():
            clock.spend(9.0)
    assert (timer.loading_s, timer.training_s, timer.utilisation, timer.count) == (1.0, 9.0, 0.9, 3)


def test_a_step_that_fails_or_is_left_is_not_counted():
    clock = Clock()
    timer = StepTimer(warm_up=0, clock=clock)
    for batch in timer.steps(loader(clock, [1.0, 1.0, 1.0])):
        clock.spend(1.0)
        if batch and timer.count == 1:
            break
    with pytest.raises(RuntimeError), timer.training():
        raise RuntimeError
    assert timer.count == 1
    with timer.training():  # and the timer goes on
        clock.spend(1.0)
    assert timer.count == 2


def test_parts_do_not_nest():
    timer = StepTimer()
    with pytest.raises(BadValue, match="training cannot be timed inside loading"), timer.loading(), timer.training():
        pass


@pytest.mark.parametrize(("window", "warm_up"), [(0, 0), (1, -1)])
def test_a_window_has_a_step(window, warm_up):
    with pytest.raises(BadValue, match="window must be >= 1"):
        StepTimer(window, warm_up)


def test_no_result_before_the_first_step():
    timer = StepTimer()
    assert (timer.loading_s, timer.training_s, timer.utilisation, timer.is_fed) == (None, None, None, None)
    assert str(timer) == "0 steps: too few to say"


@pytest.mark.slow
def test_a_loop_of_torch_on_the_cpu():
    """Use real tensors and a real optimizer with a simulated clock."""
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'paleo-lite[torch]'")
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    clock = Clock()

    def train(inputs, targets):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        clock.spend(0.03)

    def slow():
        for _ in range(8):
            clock.spend(0.02)
            yield torch.randn(16, 64), torch.randn(16, 64)

    starved, fed = StepTimer(clock=clock), StepTimer(clock=clock)
    for inputs, targets in starved.steps(slow()):
        train(inputs, targets)
    for inputs, targets in fed.steps(mock_loader(slow(), batches=8)):
        train(inputs, targets)
    assert starved.count == fed.count == 8
    assert (starved.loading_s, starved.training_s) == (pytest.approx(0.02), pytest.approx(0.03))
    assert (fed.loading_s, fed.training_s) == (0.0, pytest.approx(0.03))
    assert starved.utilisation == pytest.approx(0.6) and not starved.is_fed and fed.is_fed

"""Measured steps of networks: operations of each phase, and out-of-memory errors.

Tests: measurement/running.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from paleo_lite.errors import BadValue  # noqa: E402
from paleo_lite.measurement.clock import Effort, Run  # noqa: E402
from paleo_lite.measurement.running import OutOfMemory, Setup, set_up, time_step  # noqa: E402  # noqa: E402

pytestmark = pytest.mark.slow  # importing torch takes seconds


class Counting:
    """A clock for which every call takes a second."""

    def seconds(self, run: Run, calls: int) -> float:
        for _ in range(calls):
            run()
        return float(calls)


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.seen: list[tuple[int, ...]] = []
        self.modes: set[tuple[bool, bool]] = set()
        self.gradients: list[bool] = []

    def forward(self, images):
        self.seen.append(tuple(images.shape))
        self.modes.add((self.training, torch.is_grad_enabled()))
        self.gradients.append(self.conv.weight.grad is not None)
        return self.norm(self.conv(images)).mean((2, 3))


@pytest.fixture
def setup() -> Iterator[Setup]:
    with set_up("cpu", "fp32") as real:
        yield Setup(real.torch, "cpu", "fp32", real.threads, True, False, Counting())


EFFORT = Effort(samples_at_least=3, limit_s=100)


@pytest.mark.parametrize(
    ("phase", "mode"),
    [("inference", (False, False)), ("forward+backward", (True, True)), ("training", (True, True))],
)
def test_phases(setup: Setup, phase: str, mode: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    updates: list[int] = []
    backward: list[int] = []
    step, back = torch.optim.SGD.step, torch.Tensor.backward
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self: (updates.append(1), step(self))[1])
    monkeypatch.setattr(torch.Tensor, "backward", lambda self: (backward.append(1), back(self))[1])
    network = Network()
    timing = time_step(network, setup, phase, 2, image_size=8, effort=EFFORT)
    assert timing.median_s == 1
    assert set(network.seen) == {(2, 3, 8, 8)}
    assert network.modes == {mode}
    assert len(backward) == (len(network.seen) if phase != "inference" else 0)
    assert len(updates) == (len(network.seen) if phase == "training" else 0)
    assert not any(network.gradients), "gradients are dropped before each step, not added up"


def test_precision_and_format_reach_the_weights(setup: Setup) -> None:
    network = Network()
    bf16 = Setup(setup.torch, "cpu", "bf16", setup.threads, True, False, Counting())
    time_step(network, bf16, "inference", 1, image_size=8, effort=EFFORT)
    assert network.conv.weight.dtype is torch.bfloat16
    assert network.conv.weight.is_contiguous(memory_format=torch.channels_last)


def test_phase_that_is_no_step(setup: Setup) -> None:
    with pytest.raises(BadValue, match="'backward'"):
        time_step(Network(), setup, "backward", 1)


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory.\nTried to allocate"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_no_room(setup: Setup, error: Exception) -> None:
    class Hungry(Network):
        def forward(self, images):
            raise error

    with pytest.raises(OutOfMemory, match="memory"):
        time_step(Hungry(), setup, "inference", 1, image_size=8)


def test_other_failures_pass_through(setup: Setup) -> None:
    with pytest.raises(RuntimeError, match="Kernel size"):
        time_step(Network(), setup, "inference", 1, image_size=2)

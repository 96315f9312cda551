"""Recurrent modules as a library computes them: cuDNN's launches, weights that are read once, published times."""

from __future__ import annotations

import pytest

import paleo_lite as pl
from paleo_lite.counting import count
from paleo_lite.timing.broadcast import Case, stack_cases
from paleo_lite.timing.terms import RequestedOutputs

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402  (after the check that torch is installed)

GATES = {nn.RNN: 1, nn.GRU: 3, nn.LSTM: 4}


class Recurrent(nn.Module):
    """One recurrent module, of which only the sequence of states is used."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.recurrence = module

    def forward(self, x):
        return self.recurrence(x)[0]


class OfCells(nn.Module):
    """The same steps as calls of a cell, which Python makes one after another."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(size, size)

    def forward(self, x):
        state = torch.zeros_like(x[:, 0])
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return state


def predicted(module: nn.Module, steps: int, size: int, **options):
    return pl.predict(module, inputs=[(steps, size)], memory=False, **{"gpu": "v100-sxm2", **options})


def recurrence(kind: type, size: int) -> nn.Module:
    return Recurrent(kind(size, size, batch_first=True))


@pytest.mark.parametrize("kind", GATES)
def test_multiplications_and_parameters_are_those_of_the_definition(kind: type) -> None:
    """Each of G gates multiplies the input and the state by H x H matrices, and has two vectors of biases (PyTorch)."""
    steps, size, gates = 12, 64, GATES[kind]
    found = predicted(recurrence(kind, size), steps, size, batch_size=5)
    assert found.macs_by_pass.sum() == 5 * steps * gates * 2 * size * size
    assert sum(layer.parameters for layer in found.layers) == gates * (2 * size * size + 2 * size)


@pytest.mark.parametrize("kind", GATES)
def test_a_step_has_two_launches_and_reads_the_weights_of_the_state(kind: type) -> None:
    """A product with the state and a pointwise kernel (Appleyard et al. 2016); the inputs' weights are read once."""
    size, gates = 64, GATES[kind]
    short, long = (predicted(recurrence(kind, size), steps, size) for steps in (10, 30))
    assert long.kernels - short.kernels == 2 * 20
    of_a_step = (long.bytes_by_pass.sum() - short.bytes_by_pass.sum()) / 20
    weights = 4 * gates * size * (size + 2)
    assert weights < of_a_step < 1.25 * weights


def test_cells_keep_the_launches_of_the_framework() -> None:
    cells, module = predicted(OfCells(64), 30, 64), predicted(recurrence(nn.GRU, 64), 30, 64)
    assert cells.kernels > 10 * 30 and module.kernels < 3 * 30
    assert cells.time_s > 5 * module.time_s


DEEPBENCH = [
    ("gtx1080ti", nn.LSTM, 256, 4, 150, 1.63e-3),
    ("titan-xp", nn.LSTM, 1536, 4, 50, 6.93e-3),
    pytest.param("titan-xp", nn.GRU, 2560, 2, 375, 75.02e-3, marks=pytest.mark.slow),
]
"""DeepBench's results for inference in fp32, without the products of the inputs
(https://github.com/baidu-research/DeepBench, README, "RNN Results")."""


@pytest.mark.spread(1)
@pytest.mark.parametrize(("gpu", "kind", "size", "batch_size", "steps", "measured_s"), DEEPBENCH)
def test_published_times_of_cudnn(gpu, kind, size, batch_size, steps, measured_s) -> None:
    """Within a factor of 2.1. With a launch of the framework per operation and all weights read in every step it was 4
    to 33, and the bound was above two of the times."""
    found = predicted(recurrence(kind, size), steps, size, gpu=gpu, batch_size=batch_size)
    assert found.bound_s < measured_s < found.time_s < 2.1 * measured_s
    if size == 256:
        low_s, high_s = found.interval
        assert low_s < measured_s < high_s


@pytest.mark.parametrize("execution", ["autocast", "compiled"])
def test_no_execution_adds_launches_to_a_step(execution: str) -> None:
    short, long = (
        predicted(recurrence(nn.LSTM, 64), steps, 64, precision="fp16", execution=execution) for steps in (10, 30)
    )
    assert long.kernels - short.kernels == 2 * 20


def test_gradients_of_weights_are_handed_over_once() -> None:
    """Twenty further steps add the launches of cuDNN on the device, but no work of the host for a gradient."""
    short, long = (predicted(recurrence(nn.GRU, 64), steps, 64, phase="training") for steps in (10, 30))
    assert long.time_s - short.time_s < 20 * 6 * 20e-6


def test_a_broadcast_takes_the_time_of_one() -> None:
    one = predicted(recurrence(nn.GRU, 64), 10, 64, batch_size=3, phase="training", time_model="calibrated")
    case = Case(one.layers, count(one.layers, one.precision), "training")
    many = one.model.evaluate_many(
        stack_cases([case]).at_batch_sizes(torch.tensor([3]).numpy()), one.machine, one.precision, RequestedOutputs()
    )
    assert many.time_s[0, 0] == pytest.approx(one.time_s, rel=1e-12)

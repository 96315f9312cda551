"""Probes: the operations that torch runs have the shapes and the work of the layer.

Tests: measurement/running.py.
"""

from __future__ import annotations

from math import prod

import pytest

from paleo_lite.counting import count
from paleo_lite.counting.kinds import class_of
from paleo_lite.counting.kinds.products import MATRIX_CLASSES
from paleo_lite.measurement.clock import Run
from paleo_lite.measurement.running import Probe, Setup, convolution, elementwise, gemm, probes, run_probes, set_up


class Looking:
    """Clock that stores the results of calls and reports one millisecond for each."""

    def __init__(self) -> None:
        self.seen: object = None

    def seconds(self, run: Run, calls: int) -> float:
        self.seen = run()
        return 1e-3 * calls


SMALL = [
    gemm(4, 6, 8), convolution(8, 4, 5, 3, 2), convolution(8, 4, 5, 1, 2), convolution(8, 4, 5, 3, 2, stride=2),
    convolution(8, 8, 5, 3, 2, groups=4), convolution(8, 8, 5, 3, 2, groups=8),
    elementwise("stream", "copy", 32), elementwise("launch", "relu", 16),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("probe", SMALL, ids=lambda probe: probe.layer.name)
@pytest.mark.parametrize("channels_last", [False, True])
def test_torch_agrees_on_the_output(probe: Probe, channels_last: bool) -> None:
    pytest.importorskip("torch")
    clock = Looking()
    with set_up("cpu", "fp32") as real:
        setup = Setup(real.torch, "cpu", "fp32", real.threads, channels_last, False, clock)
        (probed,) = run_probes([probe], setup)
    assert tuple(clock.seen.shape) == (probe.batch_size, *probe.layer.outputs[0][1:])  # type: ignore[attr-defined]
    assert probed.timing.median_s == pytest.approx(1e-3)


def test_work_of_a_product() -> None:
    """A product of m x k by k x n is 2 m n k FLOPs."""
    probe = gemm(64, 48, 32)
    assert count([probe.layer], "fp32").column("flops", "inference", 64).sum() == 2 * 64 * 48 * 32


@pytest.mark.parametrize(("groups", "stride"), [(1, 1), (1, 2), (8, 1), (64, 1)])
def test_work_of_a_convolution(groups: int, stride: int) -> None:
    """Two FLOPs for each output, channel of its group, and tap."""
    probe = convolution(64, 64, 28, 3, batch_size=5, groups=groups, stride=stride)
    outputs = 5 * 64 * (28 // stride) ** 2
    counted = count([probe.layer], "fp32").column("flops", "inference", 5).sum()
    assert counted == 2 * outputs * (64 // groups) * 9


def test_bytes_of_a_stream() -> None:
    """Reads every number and writes as many."""
    probe = elementwise("stream", "copy", 1000)
    assert count([probe.layer], "fp64").column("bytes", "inference", 1).sum() == 2 * 1000 * 8


@pytest.mark.parametrize("quick", [True, False])
def test_every_class_of_convolution_is_probed(quick: bool) -> None:
    chosen = probes(quick)
    assert {class_of(probe.layer) for probe in chosen} >= set(MATRIX_CLASSES) - {"attention"}
    assert len({probe.layer.name for probe in chosen}) == len(chosen)


def test_scale_makes_more_work() -> None:
    small, large = probes(True), probes(True, scale=8)
    for one, other in zip(small, large, strict=True):
        sizes = [prod(probe.layer.outputs[0]) * probe.batch_size for probe in (one, other)]
        assert sizes[0] < sizes[1] or one.purpose == "launch"


def test_products() -> None:
    assert gemm(2, 2, 2).is_product and convolution(8, 4, 5, 1, 2).is_product
    for other in (convolution(8, 4, 5, 3, 2), convolution(8, 4, 5, 1, 2, stride=2), elementwise("stream", "copy", 8)):
        assert not other.is_product

"""The broadcast against the one-at-a-time path: the same times and intervals, whatever is asked for."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from paleo_lite.architectures import find_network
from paleo_lite.calibration.choose import choose_model
from paleo_lite.counting import PHASES, count
from paleo_lite.errors import BadValue, UnknownPrecision
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing import OverlappingPppModel, PeakModel, PppModel, RooflineModel, Workload, predict
from paleo_lite.timing.broadcast import Case, stack_cases
from paleo_lite.timing.features import GroupSums
from paleo_lite.timing.terms import RequestedOutputs

# A plain one, one of many alike layers, attention and layers that only launch something beyond batch 1, depthwise ones,
# and one whose products are of one size but not of one form (1x7 and 7x1).
NETWORKS = ("alexnet", "resnet50", "vit_b_16", "swin_t", "mobilenet_v2", "inception_v3")
BATCH_SIZES = np.array([1, 3, 64])


@lru_cache(None)
def cases(precision: str) -> list[Case]:
    works = [(find_network(name).layers, count(find_network(name).layers, precision)) for name in NETWORKS]
    return [Case(layers, work, phase) for layers, work in works for phase in PHASES]


@lru_cache(None)
def laid(precision: str):
    return stack_cases(cases(precision)).at_batch_sizes(BATCH_SIZES)


MODELS = {
    "calibrated": lambda device, precision: choose_model(find_device(device), precision, "calibrated"),
    "roofline": lambda device, precision: RooflineModel(),
    "peak": lambda device, precision: PeakModel(),
    "ppp": lambda device, precision: PppModel(0.62),
    "ppp-overlap": lambda device, precision: OverlappingPppModel(1.3),
}


@pytest.mark.spread(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "precision", "name"),
    [
        ("k80-die", "fp32", "calibrated"), ("v100-sxm2", "fp16", "calibrated"), ("rtx2080ti", "fp64", "calibrated"),
        ("h100-sxm", "fp16", "calibrated"), ("k80", "fp64", "roofline"), ("a100-sxm-80gb", "bf16", "roofline"),
        ("a100-sxm-80gb", "tf32", "ppp-overlap"), ("t4", "int8", "ppp"), ("xeon-8380", "fp32", "peak"),
    ],
)  # fmt: skip
def test_as_one_at_a_time(device: str, precision: str, name: str) -> None:
    model = MODELS[name](device, precision)
    machine = Machine(find_device(device))
    found = model.evaluate_many(laid(precision), machine, precision, RequestedOutputs())
    without = model.evaluate_many(laid(precision), machine, precision, RequestedOutputs(interval=False))
    for row, (_, work, phase, _) in enumerate(cases(precision)):
        network = find_network(NETWORKS[row // len(PHASES)])
        for column, batch_size in enumerate(BATCH_SIZES.tolist()):
            one = predict(Workload(network, precision, batch_size, phase).with_work(work), machine, model)
            where = f"{network.name} {phase} {batch_size}"
            assert found.time_s[row, column] == pytest.approx(one.time_s, rel=1e-12), where
            assert without.time_s[row, column] == pytest.approx(one.time_s, rel=1e-12), where
            if one.interval is None:
                assert found.low_s is None and found.high_s is None
            else:
                ends = (found.low_s[row, column], found.high_s[row, column])
                assert ends == pytest.approx(one.terms.interval(), rel=1e-12), where


@pytest.mark.parametrize(("device", "name"), [("v100-sxm2", "calibrated"), ("k80", "roofline")])
def test_pieces_are_the_passes_of_one_at_a_time(device: str, name: str) -> None:
    """Passes of even layers in the one piece, of odd layers in the other."""
    network = find_network("resnet50")
    work = count(network.layers, "fp32")
    pieces = [index % 2 for index in range(len(network.layers))]
    model = MODELS[name](device, "fp32")
    stacked = stack_cases([Case(network.layers, work, "training", pieces)])
    machine = Machine(find_device(device))
    found = model.evaluate_many(
        stacked.at_batch_sizes(BATCH_SIZES), machine, "fp32", RequestedOutputs(pieces=True)
    ).pieces_s
    assert found is not None and stacked.first_piece.tolist() == [0, 5]
    for column, batch_size in enumerate(BATCH_SIZES.tolist()):
        one = predict(Workload(network, "fp32", batch_size, "training"), machine, model).terms.layers_s
        backward = one[1] + one[2]
        expected = [one[0][::2].sum(), one[0][1::2].sum(), one[3].sum(), backward[::2].sum(), backward[1::2].sum()]
        assert found[:, column] == pytest.approx(expected, rel=1e-12)


def test_alike_layers_become_one() -> None:
    layers = find_network("resnet152").layers
    work = count(layers, "fp32")
    merged = stack_cases([Case(layers, work, "inference")])
    assert len(merged.run) < (work.column("kernels", "inference") > 0).sum() / 5
    assert merged.fixed[0].sum() + 8 * merged.per_sample[0].sum() == work.counts("inference", 8).sum()


def test_sums_of_many_batches_are_the_sums_of_each() -> None:
    rng = np.random.default_rng(0)
    group, weights = rng.integers(0, 7, 40), rng.random((40, 5))
    found = GroupSums(9, group[:, None]).sum(weights)
    assert found == pytest.approx(np.array([np.bincount(group, column, 9) for column in weights.T]).T, rel=1e-14)


def test_refusals() -> None:
    with pytest.raises(BadValue, match=r"batch sizes must be >= 1 .*got 0 to 4"):
        stack_cases(cases("fp32")[:1]).at_batch_sizes(np.array([0, 4]))
    with pytest.raises(BadValue, match="small enough for 64-bit counts"):
        stack_cases(cases("fp32")[:1]).at_batch_sizes(np.array([1, 2**60]))
    with pytest.raises(UnknownPrecision, match="K40m has no fp16"):
        RooflineModel().evaluate_many(laid("fp16"), Machine(find_device("k40m")), "fp16", RequestedOutputs())

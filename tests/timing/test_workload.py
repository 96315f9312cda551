"""`Workload`: checked when it is made, counted once, and the same work however it is asked about.

Tests: timing/training_options.py.
"""

from __future__ import annotations

import pytest

from paleo_lite.architectures import find_network
from paleo_lite.errors import BadValue, UnknownName, UnsupportedPhase
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing import PppModel, RooflineModel, Workload, predict
from paleo_lite.timing.training_options import TrainingOptions

ALEXNET = find_network("alexnet")


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        ({"phase": "sleep"}, UnknownName, "no phase is called 'sleep'"),
        ({"precision": "fp12"}, BadValue, "no precision is called 'fp12'"),
        ({"convention": "flop"}, UnknownName, "did you mean flops"),
        ({"batch_size": 0}, BadValue, "integer >= 1"),
        ({"training": TrainingOptions("adam")}, BadValue, "options of `--phase training`, not of inference"),
        ({"execution": "folded", "phase": "training"}, UnsupportedPhase, "folded is counted for inference only"),
        (
            {"phase": "training", "training": TrainingOptions(mixed_precision=True)},
            BadValue, "fp16 or bf16, not in fp32",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_asked_is_refused_when_it_is_made(asked, error, says):
    with pytest.raises(error, match=says):
        Workload(ALEXNET, **asked)


def test_what_was_counted_is_kept_where_it_still_holds():
    one = Workload(ALEXNET)
    assert one.with_changes(batch_size=8).work is one.work
    assert one.with_changes(batch_size=8, phase="training").work is one.work
    assert one.with_changes(precision="fp16").work is not one.work


def test_a_network_is_counted_once_for_all_that_ask_of_it():
    """Devices and batch sizes of the page ask about one network, each with a workload of its own."""
    network = find_network("alexnet")
    asked = [Workload(network, batch_size=size, phase=phase) for size in (1, 2) for phase in ("inference", "training")]
    assert len({id(each.work) for each in asked}) == 1
    assert Workload(network, "fp16").work is not asked[0].work
    assert len(Workload(network._replace(layers=network.layers[:3])).work.parameters) == 3


def test_parameters_and_macs_are_torchvisions():
    work = Workload(find_network("vgg16")).work
    assert work.parameters.sum() == 138_357_544
    assert work.column("macs", "inference").sum() == 15_470_264_320


def test_a_flop_count_is_a_workload_without_layers():
    """2 samples of 1 GFLOP on the K80's 8.73 TFLOP/s, at half of it."""
    two = Workload.from_flops(1e9, "fp32", 2)
    assert not two.has_layers and two.layers == ()
    k80 = Machine(find_device("k80"))
    assert predict(two, k80, PppModel(0.5)).time_s == pytest.approx(2 * 2e9 / 8.73e12)
    with pytest.raises(BadValue, match="requires a network: use the peak or ppp model"):
        predict(two, k80, RooflineModel())
    for flops in (0, -1, float("nan"), 1e30):
        with pytest.raises(BadValue, match="number >= 1"):
            Workload.from_flops(flops, "fp32")


def test_a_flop_count_knows_what_layers_may_be_asked_and_refuses_it():
    """As the command passes it: every option of a prediction, most of them unasked."""
    unasked = {"sequence_length": None, "context": None, "weights": None, "execution": "eager", "inputs": ()}
    assert Workload.from_flops(1e9, "fp32", **unasked).layers == ()
    for name in ("sequence_length", "context"):
        with pytest.raises(BadValue, match="needs the layers of a network"):
            Workload.from_flops(1e9, "fp32", **{**unasked, name: 128})


@pytest.mark.parametrize("execution", ["compiled", "folded"])
def test_fused_counts_do_not_depend_on_the_batch_and_are_kept(execution: str) -> None:
    network = find_network("resnet18")
    one, other = (Workload(network, "fp16", batch_size, execution=execution).work for batch_size in (1, 64))
    assert one is other
    assert one is not Workload(network, "fp32", execution=execution).work

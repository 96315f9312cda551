"""Gradient buckets, and exposed communication against simulated exchanges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import paleo_lite
from paleo_lite.architectures import find_network
from paleo_lite.counting import count
from paleo_lite.distributed.data_parallel import last_finish_s, make_buckets, train_zero
from paleo_lite.distributed.job import Job
from paleo_lite.distributed.links import LinkRate, flat_topology
from paleo_lite.distributed.settings import Settings
from paleo_lite.errors import BadValue
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing import RooflineModel
from paleo_lite.timing.training_options import TrainingOptions
from paleo_lite.timing.workload import Workload
from strategies import SECONDS


@given(st.lists(st.tuples(SECONDS, SECONDS), max_size=10))
def test_the_last_exchange_ends_as_simulated(buckets):
    ready = np.sort([first for first, _ in buckets])
    seconds = np.array([second for _, second in buckets])
    clock = 0.0
    for start, length in zip(ready, seconds):
        clock = max(clock, start) + length
    assert float(last_finish_s(ready, seconds)) == pytest.approx(clock)


def test_arrays_are_reduced_over_their_last_axis():
    ready, seconds = np.array([1.0, 2.0]), np.array([[0.5, 0.5], [3.0, 1.0]])
    assert last_finish_s(ready, seconds) == pytest.approx([2.5, 5.0])  # by hand: 2 + 0.5; 1 + 3 + 1


@given(st.lists(st.tuples(st.integers(0, 100), SECONDS), min_size=1, max_size=12), st.integers(1, 200))
def test_buckets_hold_every_gradient_once_in_the_order_of_the_backward_pass(layers, size):
    gradients, times = (np.array(column, dtype=float) for column in zip(*layers))
    buckets = make_buckets(gradients, size, size)
    assert buckets.message_bytes.sum() == pytest.approx(gradients.sum())
    ready_s = buckets.ready_times_s(times)
    assert len(ready_s) == len(buckets.message_bytes) + 1 and np.all(np.diff(ready_s) >= 0)
    assert ready_s[-1] == pytest.approx(times.sum())
    assert np.all(buckets.message_bytes[:-1] >= size)  # closed by the gradient that fills it


def test_buckets_by_hand():
    # Backward: layer 4 (40 B) is done after 1 s, layer 3 (30 B) after 3 s, layer 2 (0 B), layer 1 (5 B) after 10 s.
    # Layer 0 has no gradient: no bucket waits for its 2 s.
    buckets = make_buckets([0, 5, 0, 30, 40], bucket_bytes=35, first_bytes=10)
    assert buckets.message_bytes.tolist() == [40, 35]
    assert buckets.bucket_of_layer.tolist() == [2, 1, 1, 1, 0]
    assert buckets.ready_times_s([2, 4, 3, 2, 1]).tolist() == [1, 10, 12]
    # Two batch sizes at once; equal layers, the first and the fourth, as one group.
    assert buckets.ready_times_s([[2, 4], [4, 8], [3, 6], [2, 4], [1, 2]]).tolist() == [[1, 2], [10, 20], [12, 24]]
    assert buckets.ready_times_s([2, 4, 3, 1], np.array([0, 1, 2, 0, 3])).tolist() == [1, 10, 12]


@pytest.mark.parametrize(("gradients", "size"), [([1.0], 0), ([[1.0]], 5)])
def test_impossible_buckets(gradients, size):
    with pytest.raises(BadValue):
        make_buckets(gradients, size)


def test_volumes_agree_with_surfboard_for_resnet50():
    """TAU's all-reduce volume per iteration: 102.23 MB with fp32 gradients, 51.11 MB with fp16 ones."""
    parameters = count(find_network("resnet50").layers, "fp32").parameters
    for element_bytes, megabytes in ((4, 102.23), (2, 51.11)):
        buckets = make_buckets(parameters * element_bytes)
        assert round(buckets.message_bytes.sum() / 1e6, 2) == megabytes


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("bandwidth_bytes_per_s", [1e9, 1e10, 1e11])
def test_each_micro_batch_exchanges_sharded_gradients(stage: int, bandwidth_bytes_per_s: float) -> None:
    """Four micro-batches wait four times as long as one: nothing of one is hidden by another."""
    topology = flat_topology(LinkRate("made", bandwidth_bytes_per_s), 4)

    def step(micro_batches):
        options = TrainingOptions("sgd", accumulation=micro_batches)
        workload = Workload(find_network("resnet18"), phase="training", training=options)
        job = Job(workload, Machine(find_device("v100-sxm2")), RooflineModel())
        return train_zero(stage, job, topology, 64 * micro_batches, Settings(slowdown=0.1))

    one, four = step(1), step(4)
    assert one.exposed_s > 0
    assert four.exposed_s == pytest.approx(4 * one.exposed_s)
    assert four.communication_s == pytest.approx(4 * one.communication_s)
    assert four.compute_s == pytest.approx(4 * one.compute_s)
    assert four.update_s == pytest.approx(one.update_s)


def test_sharded_parameters_are_gathered_although_they_are_frozen() -> None:
    """With adapters two of the three exchanges of ZeRO-3 remain: parameters are gathered twice, gradients are few.

    In nf4 parameters have half a byte instead of two (and a scale per 64 numbers).
    """
    asked = {"gpu": "l40s", "link": "ethernet1", "workers": 4, "strategy": "zero-3", "precision": "bf16"}
    whole, adapters, quantised = (
        paleo_lite.train("vit_l_16", **asked, **options).rows[0].communication_s
        for options in ({}, {"lora": 4}, {"lora": 4, "weights": "nf4"})
    )
    assert adapters / whole == pytest.approx(2 / 3, rel=0.03)
    assert quantised / adapters == pytest.approx(0.25, abs=0.04)

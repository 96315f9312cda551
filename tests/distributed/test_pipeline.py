"""Pipelines: partitions against exhaustive search, schedules against simulation and GPipe's formula."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paleo_lite.architectures import find_network
from paleo_lite.distributed.pipeline import crossing_bytes, partition_layers, schedule_step, waiting_slots
from paleo_lite.errors import BadValue
from strategies import SECONDS


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.integers(1, 9))
def test_partition_minimises_the_longest_stage(times, stages):
    if stages > len(times):
        with pytest.raises(BadValue, match="number of stages must be between 1 and"):
            partition_layers(times, stages)
        return
    starts = partition_layers(times, stages)
    assert starts[0] == 0 and len(starts) == stages and sorted(set(starts)) == starts and starts[-1] < len(times)
    best = min(
        max(sum(times[a:b]) for a, b in zip((0, *cut), (*cut, len(times))))
        for cut in combinations(range(1, len(times)), stages - 1)
    )
    assert max(np.add.reduceat(times, starts)) == pytest.approx(best)


def test_a_spare_stage_halves_the_longest_divisible_stage():
    """The longest stage takes at least 4, for which two stages suffice: the third takes the last layer of 1 + 1 + 2."""
    assert partition_layers([4, 1, 1, 2], 3) == [0, 1, 3]


def simulate(stations, jobs):
    """Return when the last of equal jobs leaves a row of stations."""
    done = [0.0] * len(stations)
    for _ in range(jobs):
        before = 0.0
        for index, time in enumerate(stations):
            before = done[index] = max(before, done[index]) + time
    return done[-1]


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=5), st.integers(1, 8), st.data()
)
def test_gpipe_agrees_with_simulation(stages, micro_batches, data):
    forward, backward = (list(map(float, column)) for column in zip(*stages))
    links = data.draw(st.lists(SECONDS, min_size=len(stages) - 1, max_size=len(stages) - 1))
    row = [time for pair in zip(forward, [*links, 0.0]) for time in pair]
    back = [time for pair in zip(backward[::-1], [*links[::-1], 0.0]) for time in pair]
    plan = schedule_step(forward, backward, links, links, micro_batches, "gpipe")
    assert plan.time_s == pytest.approx(simulate(row, micro_batches) + simulate(back, micro_batches))


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
def test_equal_stages_have_the_bubble_of_gpipe(kind):
    plan = schedule_step([1.0] * 4, [2.0] * 4, [0.0] * 3, [0.0] * 3, 8, kind)
    assert plan.time_s == pytest.approx((8 + 4 - 1) * 3)
    assert 1 - plan.busy_s / plan.time_s == pytest.approx(
        3 / 11
    )  # (p - 1) / (m + p - 1): Huang et al. 2019, section 2.3
    assert plan.transfer_s == 0


def test_micro_batches_in_flight():
    times, links = [1.0] * 4, [0.0] * 3
    assert schedule_step(times, times, links, links, 8, "gpipe").in_flight.tolist() == [8, 8, 8, 8]
    assert schedule_step(times, times, links, links, 8, "1f1b").in_flight.tolist() == [4, 3, 2, 1]
    assert schedule_step(times, times, links, links, 2, "1f1b").in_flight.tolist() == [2, 2, 2, 1]


def test_an_unknown_schedule():
    with pytest.raises(BadValue, match="gpipe or 1f1b"):
        schedule_step([1.0], [1.0], [], [], 1, "chimera")


def test_bytes_across_a_stage_boundary():
    """VGG16 is a chain: 64 maps of 224x224 cross its first boundary. In ResNet50 the shortcut crosses, too."""
    assert crossing_bytes(find_network("vgg16").layers, [0, 2], 4).tolist() == [64 * 224 * 224 * 4]
    layers = find_network("resnet50").layers
    names = [layer.name for layer in layers]
    inside = (
        names.index("layer3.1.bn1") + 1
    )  # the block's input, which the addition reads, in addition to the 256 maps inside
    assert crossing_bytes(layers, [0, inside], 2).tolist() == [(1024 + 256) * 14 * 14 * 2]


def forward_slots(micro_batches, stages, virtual_stages):
    """Return when the last device is done with all forward passes, in micro-batches of a stage, task by task.

    A device computes one micro-batch after the other of its first virtual stage, then of its next; a virtual stage of
    a micro-batch begins when the one before it, on the device before, has ended.
    """
    free = [0.0] * stages
    done = {}
    for first in range(0, micro_batches, stages):
        for part in range(virtual_stages):
            for stage in range(stages):
                for number in range(first, min(first + stages, micro_batches)):
                    before = done.get((part, stage - 1, number)) if stage else done.get((part - 1, stages - 1, number))
                    free[stage] = max(free[stage], before or 0.0) + 1 / virtual_stages
                    done[part, stage, number] = free[stage]
    return max(free)


@pytest.mark.parametrize("virtual_stages", [1, 2, 5])
@pytest.mark.parametrize(
    ("micro_batches", "stages"), [(1, 2), (1, 8), (3, 8), (7, 8), (8, 8), (16, 8), (24, 4), (2, 3)]
)
def test_stages_wait_as_the_tasks_depend_on_each_other(micro_batches, stages, virtual_stages):
    expected = forward_slots(micro_batches, stages, virtual_stages)
    assert micro_batches + waiting_slots(micro_batches, stages, virtual_stages) == pytest.approx(expected)


def test_virtual_stages_do_not_shorten_a_single_micro_batch():
    """It passes all blocks in turn, whichever devices hold them."""
    assert [1 + waiting_slots(1, 8, parts) for parts in (1, 2, 10)] == [8, 8, 8]

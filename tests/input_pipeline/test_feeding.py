"""Feeding a device: stages by hand, side by side and in turns, random reads, rules of thumb, remedies in order.

Tests: input_pipeline/remedies.py.
"""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given

from clocks import Clock
from paleo_lite.errors import BadValue, UnknownName
from paleo_lite.input_pipeline.feeding import (
    InputPipeline,
    Store,
    describe_sources,
    find_host_link,
    find_store,
    predict_throughput,
)
from paleo_lite.input_pipeline.remedies import Upgrades, check_rules, evaluate_remedies, plan_remedies
from paleo_lite.machines import find_device, read_links
from paleo_lite.measurement import StepTimer, mock_loader, mock_trainer
from strategies import FEEDINGS

DISK = Store("hdd", 150e6, 86, 150e6)
NVME = Store("nvme", 3e9, 330e3, 3e9)
OTHERS = Upgrades(NVME, (("10 Gbit/s Ethernet", 1e9), ("56 Gbit/s InfiniBand", 6.8e9)), 150_528, (2000.0, 301_056))


def pipeline(**changes: object) -> InputPipeline:
    """1,000 samples/s of 100 kB; 8 workers decode 100/s each; 600 kB each over a link of 10 GB/s."""
    given_ = InputPipeline(1000.0, 50, 100e3, 600e3, NVME, "sequential", 8, 100.0, "a link", 10e9)
    return msgspec.structs.replace(given_, **changes)


def rates(feeding: InputPipeline) -> dict[str, float]:
    return {stage.name: stage.per_s for stage in predict_throughput(feeding).stages}


@pytest.mark.parametrize(
    ("name", "expected_bytes_per_s"),
    [("hdd", 150e6), ("nvme", 3e9), ("nvme-pcie4-x4", 3e9), ("ssd", None), ("500 MB/s", None)],
)
def test_expected_rates_of_storage_are_those_of_the_slides(name, expected_bytes_per_s):
    """The course slides "Performance and Profiling": 150 MB/s of a disk, 3,000 MB/s of NVMe."""
    store = find_store(name)
    assert store.expected_bytes_per_s == expected_bytes_per_s
    assert store.random_reads_per_s == (None if name == "500 MB/s" else read_links().link[name].random_reads_per_s)


def test_storage_with_given_random_reads_or_in_memory():
    assert find_store("hdd", 120.0).random_reads_per_s == 120
    assert find_store("memory") is None
    with pytest.raises(UnknownName, match="hdd"):
        find_store("hddd")


def test_stages_by_hand():
    assert rates(pipeline()) == {
        "storage": pytest.approx(3e9 / 100e3), "decode": 800,
        "copy": pytest.approx(0.771 * 10e9 / 600e3), "device": 1000,
    }  # fmt: skip
    assert rates(pipeline(pinned=False))["copy"] == pytest.approx(5.5e9 / 600e3)
    assert rates(pipeline(pinned=False, link_bytes_per_s=4e9))["copy"] == pytest.approx(0.771 * 4e9 / 600e3)


def test_side_by_side_the_slowest_sets_the_pace():
    fed = predict_throughput(pipeline())
    assert (fed.throughput_per_s, fed.utilisation, fed.bottleneck.name) == (800, 0.8, "decode")
    assert fed.compute_s == pytest.approx(50 / 1000)
    assert fed.waiting_s == pytest.approx(50 / 800 - 50 / 1000)
    assert fed.needed_bytes_per_s == 1000 * 100e3 and fed.needed_workers == 10


def test_in_turns_times_add_up():
    fed = predict_throughput(pipeline(prefetch=False))
    each = [100e3 / 3e9, 1 / 800, 600e3 / 7.71e9, 1 / 1000]
    assert fed.throughput_per_s == pytest.approx(1 / sum(each)) and fed.bottleneck.name == "decode"


def test_copy_from_pageable_memory_does_not_overlap():
    fed = predict_throughput(pipeline(pinned=False, workers=100))
    assert fed.throughput_per_s == pytest.approx(1 / (600e3 / 5.5e9 + 1 / 1000)) and fed.bottleneck.name == "device"
    assert fed.utilisation < 0.91


def test_devices_of_a_node_share_storage_and_workers():
    alone, four = predict_throughput(pipeline(workers=20)), predict_throughput(pipeline(workers=20, devices=4))
    assert alone.utilisation == 1
    assert (four.throughput_per_s, four.utilisation, four.bottleneck.name) == (2000, 0.5, "decode")
    assert four.needed_workers == 40 and four.needed_bytes_per_s == 4000 * 100e3
    assert rates(four.pipeline)["copy"] == pytest.approx(4 * 0.771 * 10e9 / 600e3)  # each has a link of its own
    own = [predict_throughput(pipeline(devices=number)).stages[-1].description for number in (1, 2)]
    assert own == ["computation of the device", "computation of 2 devices"]
    copies = [predict_throughput(pipeline(devices=number)).stages[-2].description for number in (1, 2)]
    assert copies[1] == f"{copies[0]} to each of 2 devices" and copies[0].startswith("pinned memory over ")
    assert four.compute_s == alone.compute_s and four.waiting_s == pytest.approx(four.compute_s)


def test_stages_state_whether_they_overlap():
    assert [stage.runs_concurrently for stage in predict_throughput(pipeline()).stages] == [True] * 4
    assert [stage.runs_concurrently for stage in predict_throughput(pipeline(pinned=False)).stages] == [
        True,
        True,
        False,
        False,
    ]
    assert [stage.runs_concurrently for stage in predict_throughput(pipeline(prefetch=False)).stages] == [False] * 4


def test_random_reads_cost_a_seek_each():
    """A disk of 86 seeks/s: 11.6 ms, and 0.67 ms of transfer at 150 MB/s."""
    assert rates(pipeline(store=DISK, access="random"))["storage"] == pytest.approx(1 / (1 / 86 + 100e3 / 150e6))
    assert rates(pipeline(store=DISK))["storage"] == pytest.approx(1500)


def test_samples_in_memory_have_no_storage_and_decoded_ones_no_decoding():
    assert list(rates(pipeline(store=None, decode_per_worker_s=None))) == ["copy", "device"]
    fed = predict_throughput(pipeline(store=None, decode_per_worker_s=None))
    assert fed.needed_bytes_per_s is None and fed.needed_workers is None and fed.utilisation == 1


def test_rules_of_thumb():
    held = [rule.holds for rule in check_rules(predict_throughput(pipeline(workers=12)))]
    assert held == [True, True, True, True]
    starved = check_rules(predict_throughput(pipeline(store=DISK, access="random")))
    assert [rule.holds for rule in starved] == [False, False, False, False]
    assert "8.1 MB/s with random reads of 100 kB" in starved[1].observed  # 81.3 a second
    edge = check_rules(predict_throughput(pipeline(workers=9)))  # 90%: waiting is a ninth of working
    assert [rule.holds for rule in edge] == [True, True, True, False]


def test_remedies_come_in_the_order_of_their_gain():
    found = evaluate_remedies(
        predict_throughput(pipeline(store=DISK, access="random", prefetch=False, pinned=False)), OTHERS
    )
    gains = [remedy.gain for remedy in found]
    assert gains == sorted(gains, reverse=True)
    by_name = {remedy.name: remedy for remedy in found}
    assert set(by_name) == {
        "more workers, a core each", "pre-augmented data", "pinned memory", "prefetching",
        "dataset in memory", "sequential reads", "NVMe", "loading and augmentation on separate nodes",
        "the same with RDMA", "FP16",
    }  # fmt: skip
    before = 1 / 86 + 100e3 / 150e6 + 1 / 800 + 600e3 / 5.5e9 + 1 / 1000
    after = before - 1 / 86  # the disk reads the same bytes without seeking
    assert by_name["sequential reads"].gain == pytest.approx(before / after)


def test_pinned_copies_overlap_at_the_rate_of_the_link():
    """600 kB at 5.5 GB/s alternate with 1 ms of work; pinned copies at 7.71 GB/s overlap with the work."""
    by_name = {
        remedy.name: remedy
        for remedy in evaluate_remedies(predict_throughput(pipeline(pinned=False, workers=100)), OTHERS)
    }
    assert by_name["pinned memory"].after.throughput_per_s == pytest.approx(1000)
    assert by_name["pinned memory"].gain == pytest.approx(1000 * (600e3 / 5.5e9 + 1 / 1000))


def test_current_settings_are_not_suggested():
    names = {
        remedy.name for remedy in evaluate_remedies(predict_throughput(pipeline(decode_per_worker_s=None)), OTHERS)
    }
    assert names == {"dataset in memory", "loading and augmentation on separate nodes", "the same with RDMA", "FP16"}


def test_plan_continues_until_input_is_not_the_bottleneck():
    steps = plan_remedies(predict_throughput(pipeline(store=DISK, access="random", workers=2)), OTHERS)
    assert [step.name for step in steps] == ["sequential reads", "more workers, a core each"]
    assert steps[-1].after.utilisation == 1 and "10 instead of 2" in steps[-1].description
    assert plan_remedies(predict_throughput(pipeline(workers=10)), OTHERS) == ()


def test_a_plan_includes_remedies_with_a_small_gain():
    """8 workers decode 800 of 1,000 samples/s: 10 workers is 1.25 times as fast."""
    (step,) = plan_remedies(predict_throughput(pipeline(workers=8)), OTHERS)
    assert (step.name, step.gain) == ("more workers, a core each", pytest.approx(1.25))


@given(FEEDINGS)
def test_overlap_never_harms_and_the_device_is_a_lower_bound(feeding):
    together, in_turns = (
        predict_throughput(feeding),
        predict_throughput(msgspec.structs.replace(feeding, prefetch=False)),
    )
    assert in_turns.throughput_per_s <= together.throughput_per_s * (1 + 1e-12)
    assert 0 < together.utilisation <= 1 + 1e-12
    assert all(together.throughput_per_s <= stage.per_s * (1 + 1e-12) for stage in together.stages)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workers": 0}, "number of workers must be > 0"),
        ({"devices": 0}, "number of devices must be > 0"),
        ({"device_per_s": math.inf}, r"throughput of the device must be at most 1e\+30"),
        ({"sample_bytes": -1.0}, "sample size must be > 0"),
        ({"decode_per_worker_s": math.nan}, "decode rate must be > 0"),
        ({"access": "often"}, "sequential or random .got 'often'"),
        ({"access": "random", "store": Store("tape", 1e8)}, "random reads per second of tape are unknown"),
    ],
)
def test_invalid_values_are_an_error(changes, message):
    with pytest.raises(BadValue, match=message):
        InputPipeline(**{**{name: getattr(pipeline(), name) for name in InputPipeline.__struct_fields__}, **changes})


def in_turns(clock: Clock, batches: int, loading_s: float):
    """Load batches of 10 samples on request."""
    for _ in range(batches):
        clock.spend(loading_s)
        yield range(10)


def ahead(clock: Clock, batches: int, loading_s: float, depth: int = 2):
    """The same, loaded meanwhile into a buffer of so many, as loaders with workers do: played through by hand."""
    ready, taken = 0.0, [0.0] * depth
    for _ in range(batches):
        ready = max(ready, taken[-depth]) + loading_s  # a place in the buffer is free when that batch was taken
        clock.now = max(clock.now, ready)
        taken.append(clock.now)
        yield range(10)


@pytest.mark.parametrize(
    ("prefetch", "loading_s", "training_s"), [(False, 0.01, 0.02), (True, 0.01, 0.02), (True, 0.02, 0.01)]
)
def test_a_loop_runs_as_predicted(prefetch, loading_s, training_s):
    """Simulate loading and training on batches of 10, sequentially and with a buffer, with a simulated clock."""
    clock = Clock()
    alone = mock_trainer(in_turns(clock, 10, loading_s), samples_in=len, clock=clock).samples_per_s
    training = StepTimer(clock=clock)
    for _ in training.steps(mock_loader(in_turns(clock, 1, loading_s), batches=10)):
        clock.spend(training_s)
    clock = Clock()
    both = StepTimer(warm_up=3, clock=clock)
    for _ in both.steps((ahead if prefetch else in_turns)(clock, 30, loading_s)):
        clock.spend(training_s)
    store = Store("measured", alone, None)  # samples of one byte, so that its rate is the loader's
    fed = predict_throughput(
        pipeline(
            device_per_s=10 / training.training_s,
            batch_size=10,
            sample_bytes=1.0,
            decoded_bytes=1.0,
            store=store,
            decode_per_worker_s=None,
            prefetch=prefetch,
        )
    )
    assert fed.throughput_per_s == pytest.approx(10 / (both.loading_s + both.training_s))
    assert fed.utilisation == pytest.approx(both.utilisation)


def test_the_host_link_of_a_device_with_a_peer_link() -> None:
    """NVIDIA's data sheet of the V100 SXM2: 32 GB/s PCIe, 300 GB/s NVLink, each for both directions."""
    name, bandwidth_bytes_per_s = find_host_link(find_device("v100-sxm2"))
    assert name.startswith("pcie3") and bandwidth_bytes_per_s == pytest.approx(16e9, rel=0.02)


def test_the_source_of_a_decoding_rate_is_named_only_for_the_default() -> None:
    def decoding_notes(feeding: InputPipeline, has_own_rate: bool) -> int:
        return sum(note.startswith("decoding:") for note in describe_sources(feeding, has_own_rate))

    assert decoding_notes(pipeline(), False) == 1
    assert decoding_notes(pipeline(), True) == 0
    assert decoding_notes(pipeline(decode_per_worker_s=None), False) == 0

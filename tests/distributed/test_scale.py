"""Strategies: calculations by hand, and properties that hold for every machine.

Tests: distributed/advise.py, distributed/job.py, distributed/model_parallel.py, distributed/settings.py,
distributed/strategies.py.
"""

from __future__ import annotations

import re
from itertools import pairwise
from math import ceil, prod
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import paleo_lite
from asked import scaling
from paleo_lite.architectures import find_network
from paleo_lite.counting import count
from paleo_lite.distributed.advise import _rank, advise
from paleo_lite.distributed.data_parallel import gradient_bytes
from paleo_lite.distributed.job import Job, Step
from paleo_lite.distributed.links import LinkRate, Topology, flat_topology
from paleo_lite.distributed.model_parallel import critical_path_s, first_dense_layer
from paleo_lite.distributed.pipeline import partition_layers
from paleo_lite.distributed.scale import NO_SINGLE_WORKER, SMALLER_SINGLE_WORKER, relative_to_first_row, scale
from paleo_lite.distributed.settings import ScaledBatch, Settings
from paleo_lite.distributed.strategies import STRATEGIES
from paleo_lite.distributed.table import COLUMNS
from paleo_lite.distributed.tensor_split import find_tensor_split
from paleo_lite.errors import BadValue, UnknownName
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing import RooflineModel, Workload
from paleo_lite.timing.budget import Amount, Budget, make_budget
from paleo_lite.timing.training_options import TrainingOptions
from strategies import COLLECTIVE_NAMES, MORE, PLAIN_LINKS

DEVICE = find_device("k80-die")
ETHERNET20 = LinkRate("ethernet20", 2.5e9)
VGG16_BYTES = 138_357_544 * 4
JOBS: dict[str, Job] = {}

BOUNDS = [name for name, strategy in STRATEGIES.items() if strategy.is_bound]
DIVIDES_BLOCKS = {name for name, strategy in STRATEGIES.items() if strategy.divides_blocks}  # networks from a config


def make_job(network, options):
    workload = Workload(find_network(network), phase="training", training=options)
    return Job(workload, Machine(DEVICE), RooflineModel())


def job(network="alexnet"):
    if network not in JOBS:
        JOBS[network] = make_job(network, TrainingOptions("momentum"))
    return JOBS[network]


def rows(network="alexnet", workers=(8,), batch_size=32, link=ETHERNET20, topology=None, scaling="weak", **options):
    batch = ScaledBatch(batch_size, scaling)
    return scale(job(network), topology or flat_topology(link, max(1, *workers)), list(workers), batch, **options)


@pytest.mark.parametrize(
    ("collective", "times"),
    # FireCaffe (Iandola et al. 2016, sections 4.1 and 4.2) and PALEO: |W| p and |W| log2 p, there and back.
    [("one-to-all", 2 * 7), ("tree", 2 * 3), ("butterfly", 3), ("ring", 2 * 7 / 8)],
)
def test_gradients_of_vgg16_by_hand(collective, times):
    (row,) = rows("vgg16", settings=Settings(collective=collective, overlap=False))
    assert row.exposed_s == row.communication_s == pytest.approx(times * VGG16_BYTES / 2.5e9)
    assert row.time_s == pytest.approx(row.compute_s + row.exposed_s + row.update_s)
    assert row.batch_size == 256 and row.speedup == pytest.approx(
        row.throughput_per_s / (32 / job("vgg16").device_step(32).time_s)
    )


def test_half_precision_halves_the_communication():
    whole, half = (
        rows("vgg16", settings=Settings("ring", gradient_precision=name, overlap=False))[0] for name in ("fp32", "fp16")
    )
    assert half.communication_s == pytest.approx(whole.communication_s / 2)


def test_zero_communication_volumes():
    """Rajbhandari et al. 2020, section 7: stages 1 and 2 send as many bytes as data parallelism, stage 3 half more."""
    plain = rows("vgg16", settings=Settings("ring"))[0].communication_s
    for stage, share in ((1, 1), (2, 1), (3, 1.5)):
        (row,) = rows("vgg16", strategy=f"zero-{stage}", settings=Settings("ring"))
        assert row.communication_s == pytest.approx(share * plain)
        assert row.update_s == pytest.approx(job("vgg16").device_step(32).update_s / 8)
    memory = [rows("vgg16", strategy=name)[0].memory_bytes for name in ("data", "zero-1", "zero-2", "zero-3")]
    # Momentum, gradients and parameters: sharded in eight, one after another.
    assert [a - b for a, b in pairwise(memory)] == pytest.approx([VGG16_BYTES * 7 / 8] * 3)


def test_hybrid_by_hand():
    """VGG16's convolutions have 14,714,688 parameters; its linear layers 25088, 4096, 4096 inputs, 1000 outputs."""
    (row,) = rows("vgg16", strategy="hybrid", settings=Settings("ring", overlap=False))
    ring = 2 * 7 / 8 / 2.5e9
    moved = 14_714_688 * 4 + (25_088 + 4096 + 4096 + 1000) * 256 * 4
    assert row.communication_s == pytest.approx(ring * moved)
    (data,) = rows("vgg16", settings=Settings("ring", overlap=False))
    assert row.time_s < data.time_s  # the trick pays off on slow links


def test_tensor_parallel_pairs_of_a_transformer():
    """Megatron-LM, figure 3: attention and MLP of each of ViT-B/16's 12 blocks are a pair, two all-reduces each."""
    layers = find_network("vit_b_16").layers
    split = find_tensor_split(layers)
    names = [(layers[column].name.split(".")[-1], layers[row].name.split(".")[-1]) for column, row in zip(*split[:2])]
    assert names == [("in_proj", "out_proj"), ("0", "3")] * 12
    (row,) = rows("vit_b_16", [4], 8, strategy="tensor", scaling="strong", settings=Settings("ring"))
    message = 8 * 197 * 768 * 4
    assert row.exposed_s == pytest.approx(24 * 2 * 2 * 3 / 4 * message / 2.5e9)
    (chosen,) = rows("vit_b_16", [4], 8, strategy="tensor", scaling="strong")
    assert (chosen.collective, chosen.exposed_s) == ("ring", row.exposed_s)  # the fewest bytes (Patarasuk and Yuan)


def test_layers_without_a_tensor_parallel_pair():
    """What is added to a whole tensor is whole: in every block of ResNet50 a row-parallel convolution comes before."""
    layers = find_network("resnet50").layers
    split = find_tensor_split(layers)
    assert not {layers[index].kind for index in split.between} & {"add"}
    assert len(split.columns) == len(split.rows) - 1 == 17  # two convolutions read the output of the stem
    assert layers[first_dense_layer(layers)].name == "fc"


def test_bounds_of_model_parallelism():
    """A chain has no branches, and equal bounds. Inception has parallel branches."""
    for network, branches in (("vgg16", False), ("inception_v3", True)):
        lower, upper = (rows(network, [4], 4, strategy=name, scaling="strong")[0] for name in BOUNDS)
        assert upper.time_s == pytest.approx(job(network).device_step(4).time_s)
        assert (lower.time_s < 0.9 * upper.time_s) is branches
        assert lower.memory_bytes is None and lower.exposed_s == 0
    assert critical_path_s(find_network("vgg16").layers, [1.0] * 40) == 40


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name not in DIVIDES_BLOCKS])
@pytest.mark.parametrize("scaling", ["weak", "strong"])
def test_one_worker_does_not_communicate(strategy, scaling):
    (row,) = rows("alexnet", [1], 32, strategy=strategy, scaling=scaling)
    assert row.communication_s == row.exposed_s == 0
    assert row.speedup == row.efficiency == pytest.approx(1)
    assert row.time_s == pytest.approx(job().device_step(32).time_s)


def test_one_worker_agrees_with_predict():
    for network, device in (("resnet50", "k80-die"), ("vit_b_16", "v100-sxm2")):
        alone = scaling(network, gpu=device, workers=1, batch_size=16)[0]
        plain = paleo_lite.predict(network, gpu=device, phase="training", batch_size=16)
        assert alone.time_s == pytest.approx(plain.time_s) and alone.interval == pytest.approx(plain.interval)


NUMBERS = st.sampled_from([2, 3, 4, 8, 64])


@given(NUMBERS, PLAIN_LINKS, COLLECTIVE_NAMES, st.booleans(), st.floats(1e3, 1e9))
def test_weak_scaling_never_beats_the_number_of_workers(workers, link, collective, overlap, bucket):
    chosen = Settings(collective, overlap=overlap, bucket_bytes=bucket)
    (row,) = rows(workers=[workers], link=link, settings=chosen)
    assert row.speedup <= workers * (1 + 1e-9) and row.efficiency <= 1 + 1e-9
    assert 0 <= row.exposed_s <= row.communication_s * (1 + 1e-9)


@given(NUMBERS, PLAIN_LINKS, COLLECTIVE_NAMES, st.floats(1e3, 1e9))
def test_overlap_is_never_slower_without_latency(workers, link, collective, bucket):
    link = msgspec.structs.replace(link, latency_s=0.0)
    within, after = (
        rows(workers=[workers], link=link, settings=Settings(collective, overlap=overlap, bucket_bytes=bucket))[0]
        for overlap in (True, False)
    )
    assert within.time_s <= after.time_s * (1 + 1e-9)


@given(
    NUMBERS, PLAIN_LINKS, MORE, st.sampled_from([name for name in STRATEGIES if name not in {*BOUNDS, *DIVIDES_BLOCKS}])
)
def test_more_bandwidth_is_never_slower(workers, link, more, strategy):
    assume(workers <= 8 or "pipeline" not in strategy)  # AlexNet has no layers for more stages
    faster = msgspec.structs.replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * more)
    slow, fast = (rows(workers=[workers], batch_size=64, link=one, strategy=strategy)[0] for one in (link, faster))
    assert fast.time_s <= slow.time_s * (1 + 1e-9)


def test_strong_scaling_divides_the_batch():
    four = rows(workers=[4], batch_size=64, scaling="strong", settings=Settings("ring"))[0]
    assert four.batch_size == 64 and four.compute_s == pytest.approx(job().device_step(16).compute_s)


def test_accumulation_overlaps_communication_with_the_last_backward_pass_only():
    options = TrainingOptions("momentum", accumulation=4)
    many = make_job("alexnet", options)
    (row,) = scale(many, flat_topology(ETHERNET20, 8), [8], ScaledBatch(128), settings=Settings("ring"))
    (one,) = rows(batch_size=32, settings=Settings("ring"))
    assert row.exposed_s == pytest.approx(one.exposed_s) and row.communication_s == one.communication_s
    assert row.compute_s == pytest.approx(4 * one.compute_s)


def test_sharded_gradients_are_exchanged_for_every_micro_batch():
    """ZeRO-2 and 3 do not store all gradients; data parallelism and ZeRO-1 exchange the accumulated ones once."""
    many = make_job("alexnet", TrainingOptions(accumulation=4))
    once, every = (
        scale(many, flat_topology(ETHERNET20, 8), [8], ScaledBatch(128), strategy=name, settings=Settings("ring"))[0]
        for name in ("zero-1", "zero-2")
    )
    assert every.communication_s == pytest.approx(4 * once.communication_s)
    with pytest.raises(BadValue, match="a pipeline accumulates gradients over its micro-batches"):
        scale(many, flat_topology(ETHERNET20, 8), [8], ScaledBatch(128), strategy="pipeline-1f1b")


def test_stages_send_over_the_link_between_them():
    """Four stages on two nodes of two: only the middle boundary leaves a node."""
    layers = find_network("vgg16").layers
    machine = Topology(None, 2, LinkRate("inside", 1e10), 2, LinkRate("between", 1e9))
    chosen = Settings(micro_batches=4)
    (row,) = rows("vgg16", [4], 64, topology=machine, strategy="pipeline-1f1b", scaling="strong", settings=chosen)
    step = job("vgg16").device_step(16)
    starts = partition_layers(step.layer_times_s, 4)
    sizes = [16 * 4 * prod(layers[start].inputs[0]) for start in starts[1:]]  # a chain: the input of each stage
    assert row.communication_s == pytest.approx(
        4 * 2 * sum(size / rate for size, rate in zip(sizes, (1e10, 1e9, 1e10)))
    )


@pytest.mark.parametrize("strategy", ["pipeline-gpipe", "pipeline-1f1b"])
def test_pipeline_overheads_add_up(strategy):
    """Without overheads, four devices take a quarter of the time of one; only small micro-batches take longer."""
    chosen = Settings(micro_batches=8)
    (row,) = rows("vgg16", [4], 64, strategy=strategy, scaling="strong", settings=chosen)
    whole_s, eighths_s = job("vgg16").device_step(64).compute_s, 8 * job("vgg16").device_step(8).compute_s
    assert sum(row.overheads_s.values()) == pytest.approx(row.compute_s - whole_s / 4)
    assert row.overheads_s["small micro-batches"] == pytest.approx((eighths_s - whole_s) / 4)
    assert min(row.overheads_s.values()) > 0


def test_the_devices_of_a_node_share_its_link():
    """Two levels by hand: ring in the node over 2 devices (D), ring between 4 nodes (2 * 3/4 D)."""
    machine = Topology(None, 2, LinkRate("inside", 1e10), 4, LinkRate("between", 1e9))
    (row,) = rows("vgg16", topology=machine, settings=Settings("hierarchical", overlap=False))
    assert row.exposed_s == pytest.approx(VGG16_BYTES * (1 / 1e10 + 1.5 / 1e9))
    assert row.limited_by == "communication over between"


def test_slowdown_and_interference():
    (plain,) = rows(settings=Settings("ring"))
    (slow,) = rows(settings=Settings("ring", slowdown=0.1))
    assert slow.compute_s == pytest.approx(1.1 * plain.compute_s)
    (disturbed,) = rows(settings=Settings("ring", interference=0.5))
    assert disturbed.compute_s == pytest.approx(plain.compute_s + 0.5 * plain.hidden_s)


def test_rows_that_do_not_fit_are_marked():
    (row,) = rows("vgg16", batch_size=4096)
    assert row.fits is False and "memory" in row.limited_by and row.memory_bytes > DEVICE.memory_bytes


def test_hours_and_cost_by_hand():
    budget = Budget(images=1.28e6, epochs=90, price_usd_per_h=0.9)
    (row,) = rows(budget=budget)
    assert row.hours == pytest.approx(1.28e6 * 90 / row.throughput_per_s / 3600)
    assert row.cost_usd == pytest.approx(row.hours * 8 * 0.9)
    (free,) = rows(budget=Budget(images=1.28e6))
    assert free.hours is not None and free.cost_usd is None  # absent, not 0


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"images": None, "epochs": 3.0}, "give `--samples 52k`"),
        ({"images": "1M", "epochs": 0.0}, "`--epochs` must be a number > 0"),
        ({"images": 0, "epochs": None}, "`--images` must be a number > 0"),
        ({"images": "1M", "epochs": None, "price": -1}, "`--price` must be > 0 USD/h"),
        ({"images": "3B tokens", "epochs": None}, "must be a number of samples, since this network reads no tokens"),
    ],
)
def test_invalid_budgets(asked, message):
    asked = dict(asked)
    with pytest.raises(BadValue, match=message):
        amount = Amount(images=asked.pop("images"), epochs=asked.pop("epochs"))
        make_budget(find_device("k40m"), amount, **asked)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": [0]}, r"must be an integer >= 1 \(got 0\)"),
        (
            {"workers": [3], "batch_size": 100, "scaling": "strong"},
            r"divisible by the 3 workers: give `--global-batch-size 99` or 102 \(got 100\)",
        ),
        (
            {"workers": [8], "batch_size": 4, "scaling": "strong"},
            r"the batch size must be >= 8, one sample per worker \(got 4\)",
        ),
        (
            {"workers": [3], "topology": Topology(None, 2, ETHERNET20, 4, ETHERNET20)},
            "must be a multiple of 2, the devices per node",
        ),
        ({"scaling": "sideways"}, "weak or strong"),
        ({"strategy": "zero-1", "settings": Settings("tree")}, r"use ring or hierarchical \(got tree\)"),
        ({"network": "squeezenet1_1", "strategy": "hybrid"}, "convolutions followed by fully connected layers"),
        ({"strategy": "pipeline-1f1b", "settings": Settings(micro_batches=7)}, "7 micro-batches"),
    ],
)
def test_impossible_requests(options, message):
    with pytest.raises(BadValue, match=message):
        rows(**options)


def test_unknown_names():
    for options in ({"strategy": "magic"}, {"settings": Settings("telepathy")}):
        with pytest.raises(UnknownName):
            rows(**options)


def test_advice_recommends_the_fastest_that_fits():
    found = advise(job("vgg16"), flat_topology(ETHERNET20, 8), 8, ScaledBatch(32))
    fitting = [row for row in found.rows if row.fits]
    best, second = found.rows[:2]
    assert [best, second] == fitting[:2]
    assert best.time_s <= 1.02 * min(row.time_s for row in fitting)
    assert best.strategy in found.why and second.strategy in found.why
    assert {row.strategy for row in found.rows} | set(found.refused) == set(STRATEGIES) - set(BOUNDS) - DIVIDES_BLOCKS
    for collective in ("ring", "double-tree"):  # the best collective is chosen, too
        (row,) = rows("vgg16", settings=Settings(collective), strategy="data")
        data = next(each for each in found.rows if each.strategy == "data")
        assert data.time_s <= row.time_s * (1 + 1e-9)


def test_advice_explains_how_much_slower_the_second_is():
    """SqueezeNet has no dense layers, ZeRO no tree, pipelines no accumulation: only two strategies are possible."""
    many = make_job("squeezenet1_1", TrainingOptions("momentum", accumulation=2))
    found = advise(many, flat_topology(LinkRate("fast", 1e10), 2), 2, ScaledBatch(8), collectives=["tree"])
    data, tensor = found.rows
    longer = (tensor.time_s - data.time_s) / data.time_s
    assert (data.strategy, tensor.strategy) == ("data", "tensor") and 0.5 < longer < 1
    assert found.why.endswith(f"; tensor takes {longer:.1%} longer, limited by communication over fast")


@pytest.mark.parametrize(
    ("times_s", "order"),
    [
        ({"pipeline-1f1b": 1.0, "zero-3": 1.015, "data": 1.019, "tensor": 1.03}, "data zero-3 pipeline-1f1b tensor"),
        ({"pipeline-1f1b": 1.0, "zero-3": 1.021, "data": 1.03}, "pipeline-1f1b zero-3 data"),
    ],
)
def test_the_simplest_of_strategies_within_two_percent_comes_first(times_s: dict[str, float], order: str) -> None:
    rows = [
        SimpleNamespace(strategy=name, time_s=time_s, throughput_per_s=1 / time_s, fits=True)
        for name, time_s in times_s.items()
    ]
    fast_but_large = SimpleNamespace(strategy="data", time_s=0.5, throughput_per_s=2.0, fits=False)
    ranked = _rank([fast_but_large, *rows])
    assert [row.strategy for row in ranked] == [*order.split(), "data"]
    assert ranked[-1] is fast_but_large


def test_advice_if_nothing_fits():
    found = advise(job("vgg16"), flat_topology(ETHERNET20, 2), 2, ScaledBatch(4096))
    assert not found.rows[0].fits and found.why.startswith("no strategy fits into the memory")


def test_documented_columns():
    row = rows()[0].to_dict()
    assert list(row)[:12] == list(COLUMNS)
    assert {"strategy", "collective", "limited_by", "interval", "notes"} <= set(row)


def test_gradients_of_every_layer_are_counted_once():
    network = find_network("resnet50")
    assert gradient_bytes(job("resnet50").workload).sum() == 4 * count(network.layers, "fp32").parameters.sum()


def test_slower_exchanges_lengthen_a_step_and_both_ends_of_its_interval() -> None:
    """Of ten seconds two are exposed: at three times the exchanges they are six, and the step 1.4 times as long."""
    step = Step(compute_s=8.0, communication_s=3.0, exposed_s=2.0, interval=(9.0, 12.0))
    slower = step.with_slower_exchanges(3.0)
    assert (slower.communication_s, slower.exposed_s, slower.time_s) == (9.0, 6.0, 14.0)
    assert slower.interval == pytest.approx((9.0 * 1.4, 12.0 * 1.4))


def test_speed_up_is_relative_to_a_feasible_worker() -> None:
    """One K80 die (12 GB) trains VGG16 with 512 images in as few micro-batches as fit: the baseline."""
    table = scaling("vgg16", gpu="k80-die", link="ethernet10", workers=[2], batch_size=512)
    (note,) = [note for note in table[0].notes if note.startswith(SMALLER_SINGLE_WORKER)]
    parts = int(re.search(r"its batch in (\d+) micro-batches, as 512 samples at once do not fit", note)[1])
    alone = {
        number: scaling(
            "vgg16",
            gpu="k80-die",
            workers=[1],
            batch_size=number * ceil(512 / number),
            training=TrainingOptions(accumulation=number),
        )
        for number in (parts - 1, parts)
    }
    assert [rows[0].fits for rows in alone.values()] == [False, True]
    assert table[0].single_worker_per_s == pytest.approx(alone[parts][0].throughput_per_s, rel=1e-3)


def test_without_a_feasible_worker_the_first_row_that_fits_is_the_baseline() -> None:
    """VGG16's parameters and gradients (1.1 GB) and the reserved 1 GB do not fit on a device with 1.5 GB."""
    small = job("vgg16")
    device = small.machine.device
    capacity = msgspec.structs.replace(device.memory.capacity, value="1.5 GB")
    memory = msgspec.structs.replace(device.memory, capacity=capacity)
    machine = msgspec.structs.replace(small.machine, device=msgspec.structs.replace(device, memory=memory))
    small = Job(small.workload, machine, small.model)
    rows = scale(small, flat_topology(ETHERNET20, 16), [8, 16], ScaledBatch(1), strategy="zero-3")
    first = next(row for row in rows if row.fits)
    assert first.efficiency == pytest.approx(1)
    assert all(any("the network fits on no single worker" in note for note in row.notes) for row in rows)
    advice = advise(small, flat_topology(ETHERNET20, 16), 16, ScaledBatch(16, "strong"))
    ranked = relative_to_first_row(advice.rows)
    assert ranked[0].efficiency == pytest.approx(1) and len({row.single_worker_per_s for row in ranked}) == 1


def test_rows_of_advice_have_the_single_worker_of_the_best_row_as_baseline() -> None:
    """Rows of other micro-batches and stacks have single workers of other speeds, or none that holds the network."""
    note = f"{SMALLER_SINGLE_WORKER} computes its batch in 8 micro-batches, as 8 samples at once do not fit"
    (row,) = rows("vgg16")
    slow = msgspec.structs.replace(row, single_worker_per_s=20.0, notes=("own", note))
    fast = msgspec.structs.replace(row, single_worker_per_s=25.0, notes=(note,))
    none = msgspec.structs.replace(row, baseline_workers=row.workers, notes=(f"{NO_SINGLE_WORKER} 8 workers",))
    found = relative_to_first_row([slow, fast, none])
    assert {(each.single_worker_per_s, each.baseline_workers) for each in found} == {(20.0, 1)}
    assert [each.notes for each in found] == [("own", note), (), ()]
    unfit = msgspec.structs.replace(none, single_worker_per_s=none.throughput_per_s / none.workers)
    alone = relative_to_first_row([unfit, msgspec.structs.replace(unfit, batch_size=unfit.batch_size // 2)])
    assert [each.efficiency for each in alone] == pytest.approx([1.0, 0.5])


@pytest.mark.parametrize(
    ("network", "asked", "says"),
    [
        ("vgg16", {"gpu": "v100-sxm2", "link": "nvlink2-x6", "ppp": 2.0}, "faster than the bound: the PPP of 2"),
    ],
)
def test_a_forecast_below_its_bound_says_so(network, asked, says) -> None:
    found = paleo_lite.train(network, workers=2, batch_size=32, **asked)
    assert found.rows[-1].time_s < found.rows[-1].bound_s
    assert next(note for note in found.notes if note.startswith("faster than the bound")).startswith(says)


def test_what_limits_data_parallel_adapters_is_the_host_and_not_a_division() -> None:
    """Eight devices divide no matrix of adapters that each has whole, and exchange 80 MB of gradients."""
    row = paleo_lite.train("llama-2-7b", gpu="h100-sxm", workers=8, precision="bf16", lora=16).rows[-1]
    assert row.exposed_s < 0.01 * row.time_s and row.limited_by == "the host of the framework"
    divided = paleo_lite.train("llama-2-7b", gpu="h100-sxm", workers=8, precision="bf16", tensor=8).rows[-1]
    assert divided.limited_by != "the host of the framework"

"""``--time-model paleo``: published results of the released PALEO for many workers."""

from __future__ import annotations

import json

import numpy as np
import pytest

import paleo_lite as pl
from asked import scaling
from measured import DATA
from paleo_lite.architectures import Network, find_network
from paleo_lite.counting import Layer
from paleo_lite.errors import BadValue, CountFailed, UnknownName
from paleo_lite.paleo import REVISIONS
from paleo_lite.paleo.scale import PLATFORMS, activations_ms, divide, paleo_scale, slowest_branches
from paleo_lite.paleo.simulator import make_simulator

pytestmark = pytest.mark.slow

TABLE = DATA / "paleo" / "precompute_subset.json"
ITERATIONS = 90 * 1.2e6 / 128  # of the hybrid case: 90 epochs of 1.2 M images in batches of 128


@pytest.fixture(scope="module")
def published():
    return json.loads(TABLE.read_text())


@pytest.mark.spread(1)
@pytest.mark.slow
@pytest.mark.needs_data
@pytest.mark.parametrize(
    ("network", "step"),
    [("alex_v2", 1), ("inception_v3", 7), pytest.param("inception_v3", 1, marks=pytest.mark.thorough)],
)
def test_every_entry_of_the_web_demo(published, network, step):
    """432 entries, three exchanges each, 1 to 128 workers: milliseconds to 1e-4, speed-ups to the printed digits."""
    entries = dict([item for item in published.items() if item[0].startswith(f"{network},")][::step])
    whole = find_network(f"paleo_{network}")
    for key, entry in entries.items():
        _, device, link, software, batch, scaling, cudnn = key.split(",")
        assert cudnn == "false"
        ppp, ppp_comm = PLATFORMS[software]
        simulator = make_simulator(device, link, ppp=ppp, ppp_comm=ppp_comm, revision="first")
        for collective, times, speedups in zip(("one-to-all", "tree", "butterfly"), entry["times"], entry["series"]):
            rows = paleo_scale(
                whole, simulator, workers=[int(label) for label in entry["labels"]], batch_size=int(batch),
                scaling=scaling, collective=collective,
            )  # fmt: skip
            assert [row.time_s * 1e3 for row in rows] == pytest.approx(times, rel=1e-4), (key, collective)
            assert [row.speedup for row in rows] == pytest.approx(speedups, abs=2e-3), (key, collective)
    assert len(entries) == -(-216 // step)


def test_firecaffe():
    """paleo.md: NiN on K20X over InfiniBand, (0.21, 0.56), strong, first release; speed-ups over one worker's images/s
    at a batch of 256."""
    simulator = make_simulator("K20X", "infiniband", ppp=0.21, ppp_comm=0.56, revision="first")
    (alone,) = paleo_scale("paleo_nin", simulator, workers=[1], batch_size=256, scaling="strong")
    assert alone.time_s * 1e3 == pytest.approx(1918.33, abs=0.005)
    for workers, batch, speedup in ((32, 256, 15.49), (32, 1024, 25.28), (128, 1024, 51.62)):
        (row,) = paleo_scale("paleo_nin", simulator, workers=[workers], batch_size=batch, scaling="strong")
        assert row.throughput_per_s / alone.throughput_per_s == pytest.approx(speedup, abs=0.005)


@pytest.mark.parametrize(
    "strategy, hours", [("hybrid", [96.31, 49.57, 25.42, 14.37]), ("data", [96.31, 55.90, 31.82, 17.85])]
)
def test_hybrid_alexnet(strategy, hours):
    """paleo.md: AlexNet on K20 over PCIe 2, (0.46, 0.75), a batch of 128 per GPU, first release."""
    simulator = make_simulator("K20", "pcie2", ppp=0.46, ppp_comm=0.75, revision="first")
    rows = paleo_scale("paleo_alex_v2_hybrid", simulator, workers=[1, 2, 4, 8], batch_size=128, strategy=strategy)
    assert [row.time_s * ITERATIONS / row.workers / 3600 for row in rows] == pytest.approx(hours, abs=0.005)
    assert [row.batch_size for row in rows] == [128, 256, 512, 1024]
    for row in rows:
        assert row.time_s == pytest.approx(row.compute_s + row.communication_s + row.update_s)
        assert row.exposed_s == row.communication_s  # PALEO hides nothing


def test_the_revisions_differ_a_little():
    """paleo.md: by 0.1 to 1%."""
    simulators = (make_simulator("K40", "pcie3", ppp=0.5, revision=revision) for revision in REVISIONS)
    first, last = (
        paleo_scale("paleo_inception_v3", simulator, workers=[1], batch_size=64)[0] for simulator in simulators
    )
    assert 0.001 < abs(last.time_s / first.time_s - 1) < 0.01


@pytest.mark.parametrize(
    "collective, steps", [("one-to-all", 14), ("tree", 6), ("butterfly", 3), ("butterfly-mixing", 1)]
)
def test_exchanges_by_hand(collective, steps):
    """50,303,912 parameters among 8 workers over 20 Gbit/s at a PPP of 0.5: steps times 201,215,648 B / 1.25 GB/s."""
    simulator = make_simulator("K20", "ethernet20", ppp_comm=0.5)
    (row,) = paleo_scale("paleo_alex_v2", simulator, workers=[8], batch_size=1, collective=collective)
    assert row.communication_s == pytest.approx(steps * 4 * 50_303_912 / (20e9 / 8) / 0.5, rel=1e-12)


def test_butterfly_mixing_costs_one_worker_as_much_as_many():
    """A defect of PALEO: the other three schemes have no cost for a single worker."""
    simulator = make_simulator("K20", "pcie3")
    one, many = paleo_scale("paleo_nin", simulator, workers=[1, 64], batch_size=8, collective="butterfly-mixing")
    assert one.communication_s == many.communication_s > 0


def test_strong_scaling_rounds_the_batch_up():
    """100 samples over 3 workers: each computes 34, as if it were one worker with 34."""
    simulator = make_simulator("K20", "pcie3")
    (strong,) = paleo_scale("paleo_nin", simulator, workers=[3], batch_size=100, scaling="strong")
    (weak,) = paleo_scale("paleo_nin", simulator, workers=[3], batch_size=34, scaling="weak")
    assert strong.time_s == weak.time_s
    assert (strong.batch_size, weak.batch_size) == (100, 102)


def step_of(network, strategy):
    (row,) = paleo_scale(network, make_simulator("K40", "pcie3"), workers=[1], batch_size=8, strategy=strategy)
    return row


def test_model_parallel_bounds():
    """A chain has one bound; Inception's lower one takes the slowest branch of every block."""
    lower, upper, data = (step_of("paleo_vgg16", strategy) for strategy in ("model-lower", "model-upper", "data"))
    assert lower.time_s == pytest.approx(upper.time_s) == pytest.approx(data.compute_s)
    assert lower.workers == 1
    lower, upper = (step_of("paleo_inception_v3", strategy) for strategy in ("model-lower", "model-upper"))
    assert lower.time_s < upper.time_s
    assert lower.workers == 6  # Mixed_7b and 7c: one branch forks into two, twice
    assert lower.speedup == pytest.approx(upper.time_s / lower.time_s)
    assert "for any number of workers" in lower.notes[0]


def test_branches_of_a_fork_in_a_fork():
    """a; (b; (c | d); e | f); g"""
    parents = [(), (0,), (1,), (1,), (2, 3), (0,), (4, 5)]
    shape = (1, 1)
    layers = tuple(Layer(str(n), "relu", (shape,) * len(mine), (shape,), (), mine) for n, mine in enumerate(parents))
    network = Network("fork", (shape,), layers, 0)
    times = np.array([[1, 2, 30, 4, 5, 6, 7], [1, 2, 3, 4, 5, 60, 7]])  # the slowest branch is c, or e
    bound, width = slowest_branches(network, times)
    assert bound.tolist() == [1 + (2 + 30 + 5) + 7, 1 + 60 + 7]
    assert width == 3


def test_hybrid_fetches_by_hand():
    """Two workers, AlexNet, batch 1, without PPP, over 8 GB/s: fetch pool5 (25 * 256 floats), the other half of fc6's
    output, and both halves of fc7's on worker 0, in both directions; the hidden fetch counts elements, not bytes."""

    def fetched(workers):
        _, split = divide(find_network("paleo_alex_v2_hybrid"), workers)
        return activations_ms(make_simulator("K20", "pcie2"), split, workers, 1)

    rate = 2**30 * 8 / 1e3  # bytes per ms, as PALEO has them
    once, hidden = 4 * (6400 + 2048) / rate, 6400 / rate
    assert fetched(1) == 0
    assert fetched(2) == pytest.approx(2 * (2 * (once - hidden) + hidden + 2 * 4 * 2048 / rate), rel=1e-9)
    # 8 workers: from behind the switch the link loses half with every fetch, and does not recover.
    part = 4 * 512 / rate
    concat = part * (2 + 4 + 8 + 16 + 3 * 16)  # of workers 4 to 7: four across, then three near at a sixteenth
    gather = part * (4 + 2 + 4 + 8 + 16)
    expected = 2 * (8 * (4 * 6400 / rate + concat - 7 * hidden) + 7 * hidden + gather)
    assert fetched(8) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"collective": "ring"}, UnknownName, "no collective of PALEO is called 'ring'"),
        ({"strategy": "pipeline"}, UnknownName, "no strategy of PALEO is called 'pipeline'"),
        ({"scaling": "sideways"}, UnknownName, "no scaling of PALEO is called 'sideways'"),
        ({"workers": [0]}, BadValue, "must be an integer >= 1 (got [0])"),
        ({"batch_size": 0}, BadValue, "the batch size must be an integer >= 1"),
        ({"network": "resnext50_32x4d"}, CountFailed, "PALEO has no rule for this conv2d: {'groups': 32}"),
        ({"network": "alexnet", "revision": "last"}, CountFailed, "PALEO (last revision) fails here"),
        ({"network": "paleo_nin", "strategy": "hybrid"}, BadValue, "no layer to split"),
        ({"strategy": "hybrid", "workers": [3]}, BadValue, "the 4096 channels of fc6 are not divisible by 3"),
        ({"strategy": "hybrid", "scaling": "strong"}, BadValue, "the hybrid strategy of PALEO requires weak scaling"),
        ({"strategy": "hybrid", "concurrent": True}, BadValue, "without `concurrent`"),
        (
            {"network": "densenet121", "strategy": "model-lower"},
            BadValue,
            "PALEO reaches 18 of 431 layers of the graph",
        ),
    ],
)
def test_invalid_combinations_are_an_error(change, error, message):
    options = {"network": "paleo_alex_v2", "workers": [2], "batch_size": 8, **change}
    own = {name: options.pop(name) for name in ("revision", "concurrent") if name in options}
    with pytest.raises(error) as caught:
        paleo_scale(simulator=make_simulator("K20", "pcie2", **own), **options)
    assert message in str(caught.value)


def test_the_command_line():
    """The hybrid case on the command line: the documented JSON, which includes hours."""
    from click.testing import CliRunner

    from paleo_lite.cli import main

    command = (
        "train paleo_alex_v2_hybrid --time-model paleo --gpu K20 --link pcie2 --workers 1,2,4,8 --strategy hybrid "
        "--batch-size 128 --ppp 0.46 --samples 1.2M --epochs 90 --communication ppp=0.75 --format json"
    )
    result = CliRunner().invoke(main, command.split())
    assert result.exit_code == 0, result.output
    hours = [row["hours"] for row in json.loads(result.stdout)["rows"]]
    assert hours == pytest.approx([96.31, 49.57, 25.42, 14.37], abs=0.005)


def test_compute_and_memory_time_overlap():
    """The larger of both counts with PALEO's option `use_pipeline`, which the time model ppp-overlap has, too."""
    simulator = make_simulator("K80", "ethernet20", concurrent=True)
    rows = paleo_scale("paleo_vgg16", simulator, workers=[1, 4], batch_size=64)
    table = pl.train("paleo_vgg16", gpu="K80", link="ethernet20", workers="1,4", batch_size=64, time_model="paleo")
    assert rows[0].time_s < table[0].time_s
    with pytest.raises(BadValue, match="needs a PPP, the fraction of peak"):
        scaling("vgg16", gpu="k80-die", link="ethernet20", workers=[2], time_model="ppp-overlap")

"""Time per iteration by kind of layer, compared with values derived from the same files by other code."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pyarrow as pa
import pytest

from counted import MOST_WHEN_DOUBLED, counted, elements_of
from measured import DATA
from paleo_lite.errors import BadProfile
from paleo_lite.profile_analysis import pass_times
from paleo_lite.profile_analysis.pass_times import measure_passes
from paleo_lite.profiles.detect import Profile
from paleo_lite.profiles.pyprof import PyprofParquet
from paleo_lite.profiles.table import batch_of

SURFBOARD = DATA / "surfboard"
FILES = [
    "run_0_config_8_2_ib_nvprof_2_resnet50_dali-gpu_32_fp16_fp32_ret_0_0.gzip",
    "run_0_config_1_2_ib_nvprof_8_resnet50_dali-cpu-to-gpu_64_fp32_fp32_ret_0_0.gzip",
]


class InMemory:
    name, what = "in-memory", "rows of a test"

    def __init__(self, rows):
        self._rows = rows

    def recognises(self, path, head):
        return False

    def batches(self, path, columns):
        yield batch_of(self._rows, len(self._rows["kernel"]), columns)


@pytest.mark.needs_data
@pytest.mark.parametrize("name", FILES)
def test_real_iterations(name):
    path = SURFBOARD / "pyprof_kernels" / name
    with (SURFBOARD / "derived" / "k40m_resnet50_totals.csv").open() as file:
        (derived,) = [row for row in csv.DictReader(file) if row["file"] == name]
    found = measure_passes(Profile(path, "pyprof", PyprofParquet()))
    assert found.phase == "training" and found.iterations_found == int(derived["n_fwd_iters"])
    assert found.iterations <= int(derived["n_bprop_iters"])
    assert found.seconds["convolution", "forward"] == pytest.approx(float(derived["fwd_conv_ms"]) * 1e-3, rel=0.01)
    assert found.seconds["convolution", "backward"] == pytest.approx(float(derived["bwd_conv_ms"]) * 1e-3, rel=0.01)
    # ResNet-50 has 53 convolutions and 53 batch norms, each with a forward and a backward pass.
    for kind in ("convolution", "batch_norm"):
        assert len(found.layers[kind, "forward"]) == len(found.layers[kind, "backward"]) == 53
    # The first layer has no gradient with respect to the image, so its backward pass, the last, is short.
    assert found.layers["convolution", "backward"][-1] < 0.02


def test_the_first_iteration_is_left_out_and_the_update_follows_the_backward_pass():
    kernels, ops, directions, threads, durations = [], [], [], [], []
    for iteration in range(4):
        slow = 10.0 if iteration == 0 else 1.0  # autotuning
        steps = [
            ("conv2d", "fprop", 1, 5.0), ("relu", "fprop", 1, 1.0), ("linear", "fprop", 1, 2.0),
            ("linear", "bprop", 2, 4.0), ("add", "fprop", 2, 3.0), ("conv2d", "bprop", 2, 10.0),
            ("add_", "fprop", 1, 7.0),
        ]  # fmt: skip
        for op, direction, thread, duration in steps:
            kernels.append(f"kernel_of_{op}")
            ops.append(op)
            directions.append(direction)
            threads.append(thread)
            durations.append(slow * duration * 1e6)
    rows = {"kernel": kernels, "op": ops, "direction": directions, "thread": threads, "duration_ns": durations}
    found = measure_passes(Profile(Path("run"), "in-memory", InMemory(rows)))
    assert found.iterations_found == 4 and found.iterations == 3 and found.phase == "training"
    assert found.seconds == pytest.approx(
        {
            ("convolution", "forward"): 5e-3,
            ("elementwise", "forward"): 1e-3,
            ("linear", "forward"): 2e-3,
            ("linear", "backward"): 4e-3,
            ("elementwise", "backward"): 3e-3,  # a sum of gradients: on the backward thread, though labelled fprop
            ("convolution", "backward"): 10e-3,
            ("elementwise", "update"): 7e-3,
        }
    )


def test_without_a_backward_pass_it_is_inference():
    rows = {"kernel": ["sgemm", "relu"] * 4, "op": ["conv2d", "relu"] * 4, "direction": ["fprop"] * 8}
    found = measure_passes(Profile(Path("run"), "in-memory", InMemory({**rows, "duration_ns": [5e6, 1e6] * 4})))
    assert found.phase == "inference"
    assert found.seconds == pytest.approx({("convolution", "forward"): 5e-3, ("elementwise", "forward"): 1e-3})


def test_profiles_without_iterations_or_kernels_are_refused():
    with pytest.raises(BadProfile, match="no iterations were found"):
        measure_passes(Profile(Path("run"), "in-memory", InMemory({"kernel": ["a", "b"], "duration_ns": [1.0, 2.0]})))
    with pytest.raises(BadProfile, match="kernels"):
        measure_passes(Profile(Path("run"), "in-memory", InMemory({"kernel": [], "duration_ns": []})))


def measured(steps, **columns):
    """Measure rows of (operation, direction, thread, milliseconds); further columns are given by name."""
    operations, directions, threads, durations_ms = zip(*steps)
    rows = {
        "kernel": [f"kernel_of_{operation}" for operation in operations],
        "op": operations,
        "direction": directions,
        "thread": threads,
        "duration_ns": [duration_ms * 1e6 for duration_ms in durations_ms],
        **columns,
    }
    return measure_passes(Profile(Path("run"), "in-memory", InMemory(rows)))


FORWARD = [("conv2d", "fprop", 1, 5.0), ("conv1d", "fprop", 1, 2.0), ("relu", "fprop", 1, 1.0)]
BACKWARD = [("conv1d", "bprop", 2, 6.0), ("conv2d", "bprop", 2, 3.0)]


def test_times_of_single_layers_are_in_the_order_of_execution():
    found = measured([*FORWARD, *BACKWARD] * 4)
    assert found.layers["convolution", "forward"] == pytest.approx((5e-3, 2e-3))
    assert found.layers["convolution", "backward"] == pytest.approx((6e-3, 3e-3))
    assert found.layers["elementwise", "forward"] == pytest.approx((1e-3,))


def test_iterations_without_labels_of_the_backward_pass_are_left_out():
    """A profiler that labels every second backward pass: of seven iterations, the second, fourth and sixth count."""
    unlabelled = [(operation, "fprop", thread, 1.0) for operation, _, thread, _ in BACKWARD]
    found = measured([*[*FORWARD, *unlabelled, *FORWARD, *BACKWARD] * 3, *FORWARD])
    assert (found.iterations_found, found.iterations) == (7, 3)
    assert found.seconds["convolution", "backward"] == pytest.approx(9e-3)


@pytest.mark.parametrize(("iterations", "milliseconds"), [(1, None), (2, 7.0), (3, 2.0), (4, 2.0)])
def test_the_first_of_three_iterations_tunes_and_is_left_out(iterations, milliseconds):
    """The first takes 12 ms, the others 2 ms; of two both count."""
    steps = [("conv2d", "fprop", 1, 12.0), ("relu", "fprop", 1, 1.0)]
    steps += [("conv2d", "fprop", 1, 2.0), ("relu", "fprop", 1, 1.0)] * (iterations - 1)
    if milliseconds is None:
        with pytest.raises(BadProfile, match="no iterations were found"):
            measured(steps)
        return
    found = measured(steps)
    assert (found.iterations_found, found.iterations) == (iterations, iterations - (iterations > 2))
    assert found.seconds["convolution", "forward"] == pytest.approx(milliseconds * 1e-3)


def test_an_update_that_is_labelled_is_one_wherever_it_runs():
    found = measured([*FORWARD, *BACKWARD, ("add_", "update", 2, 4.0)] * 4)
    assert found.seconds["elementwise", "update"] == pytest.approx(4e-3)
    assert found.seconds["convolution", "backward"] == pytest.approx(9e-3)


def test_an_operation_that_most_iterations_lack_takes_no_time():
    """The median over eleven iterations, one of which gathers statistics for 0.1 ms on another thread."""
    statistics = ("softmax", "fprop", 3, 0.1)
    found = measured([*FORWARD * 6, statistics, *FORWARD * 6])
    assert found.iterations == 11
    assert found.seconds == pytest.approx({("convolution", "forward"): 7e-3, ("elementwise", "forward"): 1e-3})
    assert ("softmax", "forward") not in found.layers


def test_gaps_between_kernels():
    """The first kernel of 5 ms ends 1 ms before the second begins; the third follows at once."""
    starts_ms = [iteration * 10 + offset for iteration in range(4) for offset in (0, 6, 8)]
    found = measured(FORWARD * 4, start_ns=[int(start_ms * 1e6) for start_ms in starts_ms])
    assert found.gap_s == pytest.approx(1e-3)
    assert measured(FORWARD * 4).gap_s is None


def test_kernels_without_operations_are_classified_by_their_names():
    names = ["implicit_convolve_sgemm", "cudnn::bn_fw_tr_1C11_kernel_NCHW", "relu_elementwise_kernel"]
    rows = {"kernel": names * 4, "duration_ns": [3e6, 2e6, 1e6] * 4}
    found = measure_passes(Profile(Path("run"), "in-memory", InMemory(rows)))
    assert not found.has_ops
    assert found.seconds["convolution", "forward"] == pytest.approx(3e-3)
    assert found.seconds["batch_norm", "forward"] == pytest.approx(2e-3)
    assert found.seconds["elementwise", "forward"] == pytest.approx(1e-3)


def test_many_iterations_are_read_in_proportion(monkeypatch):
    found = pass_times.find_iterations

    def find(runs):
        iterations = found(runs)
        return msgspec.structs.replace(iterations, number=counted(iterations.number))

    def read(steps):
        rows = {
            "category": pa.array(["kernel"] * 2 * steps).dictionary_encode(),
            "kernel": pa.array(["k", "b"] * steps).dictionary_encode(),
            "op": pa.array(["aten::mm", "MmBackward0"] * steps).dictionary_encode(),
            "direction": pa.array(["fprop", "bprop"] * steps).dictionary_encode(),
            "step": pa.array([f"step {number // 2}" for number in range(2 * steps)]).dictionary_encode(),
            "start_ns": pa.array(range(0, 20 * steps, 10)),
            "duration_ns": pa.array([5.0] * 2 * steps),
        }
        batch = pa.RecordBatch.from_pydict(rows)
        profile = SimpleNamespace(batches=lambda columns: [batch], path=Path("many"), format="made")
        return elements_of(lambda: pass_times.measure_passes(profile))

    monkeypatch.setattr(pass_times, "find_iterations", find)
    assert read(400) < MOST_WHEN_DOUBLED * read(200)

"""Time slices of a profile, compared with the definition: the overlap of each kernel with each slice."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import kernels

pytest.importorskip("pyarrow")

from counted import MOST_WHEN_DOUBLED, counted, elements_of
from measured import DATA
from paleo_lite.errors import BadProfile, BadValue
from paleo_lite.machines import find_device
from paleo_lite.profile_analysis import timeline
from paleo_lite.profile_analysis.kernels import report_kernels
from paleo_lite.profile_analysis.timeline import read_timeline
from paleo_lite.profiles.detect import Profile, open_profile
from paleo_lite.profiles.table import batch_of, float_column

PROFILES = DATA / "profiles"
TRACE = PROFILES / "torch_chrome_trace_resnet50" / "resnet50_num_workers_0__worker0.1623143089861.pt.trace.json.gz"

NAMES = {"volta_sgemm_128x64_nn": "gemm", "cudnn::bn_fw_tr_1C11_kernel_NCHW": "batch_norm"}
SINCE_1970_NS = 1_623_143_089_000_000_000
"""More than a float64 tells apart by nanoseconds."""


class Rows:
    """A reader of kernels that lie in memory, in batches of a size."""

    def __init__(self, kernels, size=7):
        self.kernels, self.size = kernels, size

    def batches(self, path, columns):
        for place in range(0, len(self.kernels), self.size):
            start, duration, kernel = zip(*self.kernels[place : place + self.size])
            cells = {"kernel": kernel, "start_ns": start, "duration_ns": duration, "category": ["kernel"] * len(kernel)}
            yield batch_of(cells, len(kernel), columns)


def sliced(kernels, slices, size=7):
    return read_timeline(Profile(Path("run"), "test", Rows(kernels, size)), slices)


class OnDevices(Rows):
    """With a device as the fourth of each."""

    def batches(self, path, columns):
        start, duration, kernel, device = zip(*self.kernels)
        cells = {"kernel": kernel, "start_ns": start, "duration_ns": duration, "device": device}
        yield batch_of(cells | {"category": ["kernel"] * len(kernel)}, len(kernel), columns)


def test_each_device_by_itself():
    rows = [(0, 100.0, "sgemm", 0), (0, 50.0, "sgemm", 1), (100, 100.0, "my_kernel", 1)]
    timeline = read_timeline(Profile(Path("run"), "test", OnDevices(rows)), 2)
    assert timeline.classes == ("gemm", "other")
    assert timeline.by_device[0] * 1e9 == pytest.approx(np.array([[100, 0], [0, 0]]))
    assert timeline.by_device[1] * 1e9 == pytest.approx(np.array([[50, 0], [0, 100]]))
    assert timeline.busy_s == pytest.approx(timeline.by_device[0] + timeline.by_device[1])
    assert timeline.to_dict()["devices"]["1"]["other"] == pytest.approx([0, 100e-9])


@given(
    kernels(st.sampled_from(list(NAMES))), st.integers(1, 40), st.integers(1, 7), st.sampled_from([0, SINCE_1970_NS])
)
def test_slices_contain_the_overlapping_kernel_time(kernels, slices, size, origin):
    timeline = sliced([(origin + start, length, name) for start, length, name in kernels], slices, size)
    first, last = min(start for start, *_ in kernels), max(start + length for start, length, _ in kernels)
    edges = np.linspace(first, max(last, first + 1), slices + 1)
    assert timeline.kernels == len(kernels)
    assert timeline.slice_s == pytest.approx((edges[1] - edges[0]) * 1e-9)
    assert set(timeline.classes) == {NAMES[name] for *_, name in kernels}
    for label, busy_s in zip(timeline.classes, timeline.busy_s):
        expected = [
            sum(max(0, min(end, s + n) - max(begin, s)) for s, n, name in kernels if NAMES[name] == label)
            for begin, end in itertools.pairwise(edges)
        ]
        assert busy_s * 1e9 == pytest.approx(expected, abs=1e-3)


def test_classes_are_in_the_order_of_their_time():
    timeline = sliced([(0, 10, "volta_sgemm_128x64_nn"), (5, 30, "cudnn::bn_fw_tr_1C11_kernel_NCHW")], 5)
    assert timeline.classes == ("batch_norm", "gemm")
    assert timeline.busy_s.sum(axis=1) == pytest.approx([30e-9, 10e-9])


def test_rows_without_a_start_are_not_counted():
    timeline = sliced([(None, 10, "volta_sgemm_128x64_nn"), (4, 2, "volta_sgemm_128x64_nn")], 3, size=1)
    assert timeline.kernels == 1
    assert timeline.busy_s.sum() == pytest.approx(2e-9)


def test_profile_without_timeline_is_an_error():
    with pytest.raises(BadProfile, match="without start times has no timeline"):
        sliced([(None, 10, "volta_sgemm_128x64_nn")], 3)
    with pytest.raises(BadValue, match="1 slice or more, not 0"):
        sliced([(0, 10, "volta_sgemm_128x64_nn")], 0)


@pytest.mark.needs_data
def test_a_real_trace_adds_up_to_its_kernels():
    profile = open_profile(TRACE, None)
    timeline = read_timeline(profile, 200)
    report = report_kernels(profile, find_device("v100-sxm2"), "fp32")
    by_class = {row["class"]: row["time_s"] for row in report.by_class()}
    assert timeline.kernels == sum(row.calls for row in report.kernels)
    assert dict(zip(timeline.classes, timeline.busy_s.sum(axis=1))) == pytest.approx(by_class, rel=1e-9)
    assert math.isclose(timeline.busy_s.sum(), report.time_s, rel_tol=1e-9)
    assert timeline.busy_s.min() >= -1e-12


def test_many_devices_are_read_in_proportion(monkeypatch):
    def read(devices):
        rows = {
            "category": pa.array(["kernel"] * devices).dictionary_encode(),
            "kernel": pa.array(["k"] * devices).dictionary_encode(),
            "start_ns": pa.array(range(0, 10 * devices, 10)),
            "duration_ns": pa.array([5.0] * devices),
            "device": pa.array(range(devices)),
        }
        batch = pa.RecordBatch.from_pydict(rows)
        profile = SimpleNamespace(batches=lambda columns: [batch], path=Path("many"), format="made")
        return elements_of(lambda: timeline.read_timeline(profile, slices=2))

    monkeypatch.setattr(timeline, "float_column", lambda *arguments: counted(float_column(*arguments)))
    assert read(400) < MOST_WHEN_DOUBLED * read(200)

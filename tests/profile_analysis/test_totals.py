"""Sums per kernel, against pandas over the same rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

import pandas

from paleo_lite.errors import BadProfile, BadValue
from paleo_lite.profile_analysis.totals import SUMS, total_kernels
from paleo_lite.profiles.detect import Profile
from paleo_lite.profiles.table import batch_of, device_rows, float_column


class Rows:
    """A profile of given rows, some at a time."""

    name = "rows"

    def __init__(self, frame, at_a_time: int = 10**6) -> None:
        self.frame, self.at_a_time = frame, at_a_time

    def batches(self, path, columns):
        for start in range(0, len(self.frame), self.at_a_time):
            part = self.frame.iloc[start : start + self.at_a_time]
            values = {
                name: [None if pandas.isna(value) else value for value in part[name].tolist()] for name in part.columns
            }
            yield batch_of(values, len(part), columns)


def profile(frame, at_a_time: int = 10**6) -> Profile:
    return Profile(Path("made"), "rows", Rows(frame, at_a_time))


@pytest.fixture(scope="module")
def frame():
    random, size = np.random.default_rng(0), 400

    def some(values):
        return np.where(random.random(size) < 0.3, np.nan, values)

    start = np.arange(size) * 10
    return pandas.DataFrame(
        {
            "category": random.choice(["kernel", "memcpy", "api", "marker", "communication"], size),
            "kernel": random.choice(["gemm", "copy", "relu"], size),
            "direction": random.choice(["fprop", "bprop", None], size),
            "start_ns": start,
            "duration_ns": some(random.integers(0, 9, size)),
            "calls": some(random.integers(1, 5, size)),
            "flops": some(random.integers(0, 1000, size)),
            "bytes": some(random.integers(0, 1000, size)),
            "metric.occupancy": some(random.random(size)),
            "op": random.choice(["linear", "relu", None], size),
        }
    )


@pytest.mark.spread(2)
@pytest.mark.slow
@pytest.mark.parametrize("at_a_time", [1, 7, 10**6])
@pytest.mark.parametrize("direction", ["all", "bprop"])
def test_sums_equal_pandas(frame, at_a_time, direction) -> None:
    totals, busy = total_kernels(profile(frame, at_a_time), direction)
    there = frame[~frame["category"].isin(["api", "marker"]) & frame["duration_ns"].notna()]
    if direction != "all":
        there = there[there["direction"] == direction]
    both = there["flops"].notna() & there["bytes"].notna()
    rows = there.assign(
        calls=there["calls"].fillna(1),
        flops_rows=there["flops"].notna(), flops_ns=there["duration_ns"].where(there["flops"].notna(), 0),
        bytes_rows=there["bytes"].notna(), both_flops=there["flops"].where(both, 0),
        both_bytes=there["bytes"].where(both, 0), both_ns=there["duration_ns"].where(both, 0), tensor_core_rows=0,
    )  # fmt: skip
    expected = rows.groupby(["kernel", "category"])[list(SUMS)].sum()
    assert set(totals.sums) == set(expected.index)
    for key, values in totals.sums.items():
        assert values == pytest.approx(expected.loc[key].to_numpy(float))
    assert totals.rows == len(there)
    assert totals.duration_ns == there["duration_ns"].sum()
    assert totals.no_op_ns == there["duration_ns"][there["op"].isna()].sum()
    assert busy == {-1: pytest.approx(there["duration_ns"].sum() * 1e-9)}  # none overlap
    weighed = there.dropna(subset="metric.occupancy")
    for key, group in weighed.groupby(["kernel", "category"]):
        value, weight = totals.metrics[key]["occupancy"]
        assert value == pytest.approx(np.dot(group["metric.occupancy"], group["duration_ns"]))
        assert weight == group["duration_ns"].sum()


@pytest.mark.slow
def test_merged_sums_of_two_halves_are_those_of_the_whole(frame) -> None:
    whole, _ = total_kernels(profile(frame))
    first, _ = total_kernels(profile(frame[:150]))
    second, _ = total_kernels(profile(frame[150:]))
    first.merge(second)
    assert first.sums == {label: pytest.approx(values) for label, values in whole.sums.items()}
    for label, metrics in whole.metrics.items():
        assert first.metrics[label] == {name: pytest.approx(pair) for name, pair in metrics.items()}
    assert (first.rows, first.untimed_rows) == (whole.rows, whole.untimed_rows)
    assert first.no_op_ns == whole.no_op_ns > 0
    assert first.has_durations and first.has_starts


def test_counters_without_any_duration_are_weighed_by_calls() -> None:
    rows = {"kernel": ["gemm"] * 3, "calls": [1, 3, None], "metric.ipc": [1.0, 2.0, 4.0]}
    totals, busy = total_kernels(profile(pandas.DataFrame(rows)))
    value, weight = totals.metrics["gemm", "kernel"]["ipc"]
    assert value / weight == (1 * 1 + 3 * 2 + 1 * 4) / 5
    assert busy is None and not totals.has_durations


def test_work_of_the_host_is_none_of_the_device_s() -> None:
    rows = {"category": ["kernel", "api", "cpu", "marker", "memcpy"], "duration_ns": [1.0, 2.0, 3.0, 4.0, 5.0]}
    assert float_column(device_rows(batch_of(rows, 5)), "duration_ns").tolist() == [1.0, 5.0]
    assert np.isnan(float_column(batch_of(rows, 5, ("category",)), "duration_ns")).all()


@pytest.mark.parametrize(
    ("rows", "direction", "message"),
    [
        ({"kernel": ["a"], "duration_ns": [1.0]}, "sideways", "no direction is called 'sideways'"),
        ({"kernel": ["a"], "duration_ns": [1.0]}, "bprop", "no kernel in this rows profile is labelled bprop"),
        ({"kernel": [], "duration_ns": []}, "all", "there are no rows"),
        ({"kernel": ["a"], "duration_ns": [None]}, "all", "no row of this rows profile has a duration"),
        (
            {"category": ["api"], "kernel": ["a"], "duration_ns": [1.0]},
            "all",
            "nothing in this rows profile ran on a device",
        ),
        ({"kernel": ["a"], "duration_ns": [-1.0]}, "all", "made: a duration is -1 ns"),
    ],
)
def test_missing_sums_are_reported(rows, direction, message) -> None:
    with pytest.raises((BadProfile, BadValue), match=message):
        total_kernels(profile(pandas.DataFrame(rows, dtype=object)), direction)

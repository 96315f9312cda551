"""Table of every reader: order of columns, null for missing values, and columns from the file name."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from paleo_lite.profiles.detect import Profile
from paleo_lite.profiles.table import SCHEMA, batch_of

COLUMNS = {
    "metric.dram_utilization": [0.5, None],
    "duration_ns": [3, 4],  # whole numbers become those that the schema has
    "kernel": ["gemm", None],
    "calls": pa.array([1, 2], pa.int32()),
    "op": pa.chunked_array([["linear"], ["linear"]]),
}


def test_batch_has_all_columns_and_missing_values_are_null() -> None:
    batch = batch_of(COLUMNS, 2)
    batch.validate(full=True)
    assert batch.schema.names == [*SCHEMA.names, "metric.dram_utilization"]
    assert [field for field in batch.schema if not field.name.startswith("metric.")] == list(SCHEMA)
    rows = batch.to_pylist()
    assert [row["kernel"] for row in rows] == ["gemm", None]
    assert [row["duration_ns"] for row in rows] == [3.0, 4.0]
    assert [(row["op"], row["calls"]) for row in rows] == [("linear", 1), ("linear", 2)]
    assert [row["flops"] for row in rows] == [None, None]  # unknown, which is not 0


def test_chosen_columns_keep_their_order_and_metrics_come_along() -> None:
    batch = batch_of(COLUMNS, 2, ("duration_ns", "kernel"))
    assert batch.schema.names == ["kernel", "duration_ns", "metric.dram_utilization"]


def test_value_of_wrong_type_is_an_error() -> None:
    with pytest.raises(pa.ArrowInvalid):
        batch_of({"calls": ["many"]}, 1)


class Two:
    """A reader of two batches."""

    name = "two"

    def batches(self, path, columns):
        yield from (batch_of({"kernel": [text], "duration_ns": [1.0]}, 1, columns) for text in ("a", "b"))


class Nothing(Two):
    def batches(self, path, columns):
        return iter(())


def test_a_profile_in_memory_has_its_configuration_as_columns() -> None:
    pytest.importorskip("pandas")
    table = Profile(Path("run_1"), "two", Two(), {"batch_size": 32}).read()
    frame = table.to_frame()
    assert len(table) == 2
    assert frame["kernel"].tolist() == ["a", "b"]
    assert frame["batch_size"].tolist() == [32, 32]
    assert frame["flops"].isna().all()


def test_columns_reach_the_reader_and_an_empty_profile_has_the_schema() -> None:
    (first, _) = Profile(Path("run_1"), "two", Two()).batches(["kernel"])
    assert first.schema.names == ["kernel"]
    empty = Profile(Path("run_1"), "nothing", Nothing()).read()
    assert len(empty) == 0 and empty.table.schema == SCHEMA

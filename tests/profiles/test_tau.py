"""TAU's tables in parquet: real tables compared with pandas, and damaged tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from paleo_lite.errors import BadProfile
from paleo_lite.profiles.tau import TauParquet, category_of

INTERVALS = ["batch1_5runs_interval.gzip", "lisa/lisa_interval.gzip"]
CONFIGURATION = ["repetition", "nodes", "gpus_per_node", "fabric", "profiler", "workers", "network", "data_loader"]
CONFIGURATION += ["batch_size", "gradient_precision", "compute_precision"]


def read(path, columns=None):
    return pa.Table.from_batches(TauParquet().batches(path, columns))


def table(**changes):
    columns = {
        "run": [0, 0],
        "nodes": [2, 2],
        "data_loader": ["dali-gpu", "dali-gpu"],
        "gpu": [0, 1],
        "thread": [0, 3],
        "function": ["mpi_allreduce", ".tau application"],
        "calls": [10, 1],
        "inc_time": [2500, 5_000_000],
        "exc_time": [2500, -1000],
    }
    return pa.table({name: values for name, values in (columns | changes).items() if values is not None})


@pytest.fixture
def written(tmp_path):
    def write(**changes):
        path = tmp_path / "mpi.gzip"
        pq.write_table(table(**changes), path)
        return path

    return write


@pytest.mark.spread(1)
@pytest.mark.needs_data
@pytest.mark.parametrize("name", INTERVALS)
def test_real_timers_agree_with_pandas(data_folder, name):
    path = data_folder / "surfboard" / "mpi" / name
    assert TauParquet().recognises(path, path.read_bytes()[:100])
    ours, theirs = read(path), pd.read_parquet(path)
    assert ours.num_rows == len(theirs)
    inclusive = theirs["inc_time"].astype(float).where(theirs["inc_time"] >= 0)
    np.testing.assert_array_equal(ours["duration_ns"].to_numpy(), inclusive * 1e3)
    np.testing.assert_array_equal(ours["metric.exclusive_ns"].to_numpy(), theirs["exc_time"] * 1e3)
    assert ours["duration_ns"].null_count == (theirs["inc_time"] < 0).sum()
    assert pc.sum(ours["calls"]).as_py() == theirs["calls"].sum()
    communication = ours.filter(pc.equal(ours["category"].cast(pa.string()), "message"))
    assert communication.num_rows == theirs["function"].str.startswith("mpi_").sum()
    for column, theirs_ in (
        ("batch_size", "batch_size_per_gpu"),
        ("nodes", "nodes"),
        ("repetition", "run"),
        ("device", "gpu"),
    ):
        np.testing.assert_array_equal(ours[column].to_numpy(), theirs[theirs_])
    assert ours["data_loader"].to_pandas().astype(str).tolist() == theirs["data_loader"].tolist()
    assert ours["gradient_precision"].to_pandas().astype(str).tolist() == theirs["grad_precision"].tolist()


@pytest.mark.thorough
@pytest.mark.needs_data
def test_real_message_sizes_are_the_parameters_of_resnet50(data_folder):
    path = data_folder / "surfboard" / "mpi" / "lisa" / "lisa_atomic.gzip"
    theirs = pd.read_parquet(path)
    ours = read(path)
    assert ours["duration_ns"].null_count == ours.num_rows
    np.testing.assert_allclose(ours["bytes"].to_numpy(), theirs["num_samples"] * theirs["mean"], atol=0.5)
    assert set(ours["category"].to_pandas()) == {"message"}
    none = (theirs["num_samples"] == 0).sum()
    assert ours["metric.message_max_bytes"].null_count == none > 0
    # SOURCES.md: 25.557 M parameters of 4 or 2 bytes an iteration, so the ratio of the precisions is 2
    frame = ours.to_pandas()
    frame = frame[(frame["kernel"] == "Message size for all-reduce") & (frame["bytes"] > 1e9)]
    by_precision = frame.groupby(frame["gradient_precision"].astype(str))["bytes"].median()
    assert by_precision["fp32"] / by_precision["fp16"] == pytest.approx(2, rel=0.01)


@pytest.mark.needs_data
def test_initialisation_times_are_no_profile(data_folder):
    path = data_folder / "surfboard" / "mpi" / "init_times_mpi.gzip"
    assert not TauParquet().recognises(path, path.read_bytes()[:100])


def test_units_configuration_and_order_of_columns(written):
    found = read(written())
    assert found["duration_ns"].to_pylist() == [2.5e6, 5e9]
    assert found["metric.exclusive_ns"].to_pylist() == [2.5e6, -1e6]
    assert found["category"].to_pylist() == ["message", "cpu"]
    assert found.column_names[-4:] == ["repetition", "nodes", "data_loader", "metric.exclusive_ns"]
    assert read(written(), ("duration_ns",)).column_names == ["duration_ns", *found.column_names[-4:]]


def test_a_negative_inclusive_time_is_no_duration(written):
    assert read(written(inc_time=[-182, 5]))["duration_ns"].to_pylist() == [None, 5e3]


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("MPI_Allreduce()", True), ("mpi_bcast", True), ("Message size for gather", True), ("pthread_join", False)],
)
def test_communication(name, is_one):
    assert (category_of(name) == "message") is is_one


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inc_time": [float("nan"), 1.0]}, r"row 0: inc_time is nan"),
        ({"inc_time": [1.0, None]}, r"row 1: inc_time is nan"),
        ({"exc_time": [1.0, float("inf")]}, r"row 1: exc_time is inf"),
        ({"calls": [1, -1]}, r"row 1: calls is -1"),
        ({"calls": None}, r"no column 'calls'"),
        ({"exc_time": None}, r"no column 'exc_time'"),
        ({"function": None}, r"no column 'function'"),
        ({"inc_time": ["soon", "late"]}, r"row 0 and after cannot be read"),
        ({"gpu": ["a", "b"]}, r"row 0 and after cannot be read"),
    ],
)
def test_bad_tables_name_the_row(written, changes, message):
    with pytest.raises(BadProfile, match=message):
        read(written(**changes))


def test_cut_parquet_is_an_error(tmp_path, written):
    raw = written().read_bytes()
    path = tmp_path / "cut"
    path.write_bytes(raw[: len(raw) // 2])
    for act in (lambda: TauParquet().recognises(path, raw[:100]), lambda: read(path)):
        with pytest.raises(BadProfile, match="parquet that is truncated or corrupted"):
            act()

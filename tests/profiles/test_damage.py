"""Whatever happened to a file, a reader answers with a table or one of our errors: soon, and in little memory.

Tests: profiles/nvprof_csv.py, profiles/nvprof_sqlite.py, profiles/nvprof_text.py, profiles/tau.py, profiles/tau_xml.py,
profiles/torch_table.py, profiles/vtune.py.
"""

from __future__ import annotations

import gzip
import math
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paleo_lite.errors import BadProfile, UnknownFormat
from paleo_lite.profiles.detect import load_reader, open_profile
from paleo_lite.profiles.table import SCHEMA

READERS = {
    "nvprof_text.SummaryText": "profiles/nvprof_summary_text/k80_tf2_mnist.txt",
    "nvprof_csv.GpuTraceCsv": "profiles/nvprof_gpu_trace_csv/convolutionFFT2D_trace.csv",
    "nvprof_csv.MetricsCsv": "profiles/nvprof_metrics_csv/reduction_metrics.csv",
    "nvprof_sqlite.NvprofSqlite": None,
    "tau.TauParquet": "surfboard/mpi/init_times_mpi.gzip",
    "tau_xml.TauXml": "surfboard/tau_xml/run_7_config_1_1_IB_tau_1_resnet50_dali-cpu-to-gpu_16_fp16_fp32_ret_0.xml",
    "vtune.HotspotsCsv": None,
    "vtune.ApsSummary": None,
    "torch_table.TorchTable": None,
}
"""Every reader here, and a real file of its own or a near kind."""

WORDS = [
    b"nan",
    b"-1",
    b"1e999",
    b"inf",
    b"0x1",
    b"",
    b" ",
    b"\0",
    b'"',
    b",",
    b"\t",
    b"\n",
    b"\r",
    b"==7== ",
    b"<",
    b"&a;",
]
WORDS += [b"9" * 40, b"\xff\xfe", b"\xef\xbb\xbf", "µs".encode(), b"%", b"- ", b"---  ---", b"Name", b"</profile_xml>"]

CHANGE = st.tuples(
    st.sampled_from(["cut", "drop", "repeat", "insert", "flip", "swap", "splice"]),
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from(WORDS),
)


def damaged(raw: bytes, other: bytes, changes: list[tuple[str, float, float, bytes]]) -> bytes:
    """A file after some accidents; places are fractions of its length."""
    for how, first, second, word in changes:
        begin, end = sorted((int(first * len(raw)), int(second * len(raw))))
        near = min(end, begin + 40)
        if how == "cut":
            raw = raw[:begin]
        elif how == "drop":
            raw = raw[:begin] + raw[near:]
        elif how == "repeat":
            raw = raw[:near] + raw[begin:]
        elif how == "insert":
            raw = raw[:begin] + word + raw[begin:]
        elif how == "flip" and raw:
            place = min(begin, len(raw) - 1)
            raw = raw[:place] + bytes([raw[place] ^ (1 << int(second * 7))]) + raw[place + 1 :]
        elif how == "swap":
            raw = raw[:begin] + word + raw[begin + len(word) :]
        elif how == "splice":
            raw = raw[:begin] + other[int(second * len(other)) :]
    return raw


def check(path, key):
    """Read a file by one reader and by recognition; both may refuse it, neither may fail otherwise."""
    module, name = key.split(".")
    reader = load_reader(module, name)
    for read in (
        lambda: list(reader.batches(path, None)),
        lambda: list(open_profile(path).batches(("kernel", "duration_ns"))),
    ):
        try:
            batches = read()
        except (BadProfile, UnknownFormat) as error:
            assert str(error).startswith(str(path)) and len(str(error)) < 2000 and "\n" not in str(error)
            continue
        assert len({str(batch.schema) for batch in batches}) <= 1
        for batch in batches:
            batch.validate(full=True)
            known = [
                field for field in batch.schema if not field.name.startswith("metric.") and field.name in SCHEMA.names
            ]
            assert all(field.type == SCHEMA.field(field.name).type for field in known)
            durations = batch.column("duration_ns").drop_null().to_pylist()
            assert all(duration >= 0 and math.isfinite(duration) for duration in durations)


class Files(dict):
    """Bytes by reader, not shown when a test fails."""

    def __repr__(self):
        return "files"


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("damage")


@pytest.fixture(scope="session")
def whole(samples, nvprof_file, tmp_path_factory):
    """An undamaged file of every reader's format."""
    path = tmp_path_factory.mktemp("tau") / "mpi.gzip"
    rows = {"function": ["mpi_bcast", ".tau application"] * 50, "calls": [3, 1] * 50, "inc_time": [20, 3000] * 50}
    pq.write_table(
        pa.table(rows | {"exc_time": [20, -7] * 50, "nodes": [2, 2] * 50, "data_loader": ["a", "b"] * 50}), path
    )
    return Files(
        {**samples, "nvprof_sqlite.NvprofSqlite": nvprof_file.read_bytes(), "tau.TauParquet": path.read_bytes()}
    )


@pytest.mark.parametrize("key", READERS)
@settings(max_examples=60, deadline=5000)
@given(changes=st.lists(CHANGE, min_size=1, max_size=6), zipped=st.booleans(), data=st.data())
def test_damaged_small_files(folder, whole, key, changes, zipped, data):
    other = whole[data.draw(st.sampled_from(sorted(whole)))]
    raw = damaged(whole[key], other, changes)
    path = folder / "profile"
    path.write_bytes(gzip.compress(raw, 1) if zipped else raw)
    check(path, key)


@pytest.mark.needs_data
@pytest.mark.parametrize("key", [key for key, real in READERS.items() if real])
def test_damaged_real_files(tmp_path, data_folder, key):
    raw = (data_folder / READERS[key]).read_bytes()
    fate = random.Random(key)
    path = tmp_path / "profile"
    for _ in range(12):
        changes = []
        for _ in range(fate.randint(1, 4)):
            how = fate.choice(["drop", "repeat", "insert", "flip", "swap", "cut"])
            changes.append((how, fate.random(), fate.random(), fate.choice(WORDS)))
        path.write_bytes(damaged(raw, raw, changes))
        check(path, key)


@pytest.mark.parametrize("key", READERS)
def test_every_cut_of_a_small_file(tmp_path, whole, key):
    raw, path = whole[key], tmp_path / "profile"
    for length in range(1, len(raw), max(1, len(raw) // 60)):
        path.write_bytes(raw[:length])
        check(path, key)


@pytest.mark.parametrize("key", [key for key in READERS if "Sqlite" not in key and "Parquet" not in key])
@pytest.mark.parametrize("filler", [b"a", b" ", b"\n", b"1,", b'"', b"<a>", b"- "])
def test_gzip_that_swells(tmp_path, whole, key, filler):
    raw = whole[key]
    middle = raw.index(b"\n", len(raw) // 2) + 1
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(raw[:middle] + filler * (2**23 // len(filler)), 1))
    check(path, key)

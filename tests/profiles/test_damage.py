"""For any damaged file, a reader returns a table or raises one of our errors, quickly and in bounded memory.

Tests: profiles/nvprof_csv.py, profiles/nvprof_sqlite.py, profiles/nvprof_text.py, profiles/tau.py,
profiles/tau_xml.py, profiles/torch_table.py, profiles/vtune.py.
"""

from __future__ import annotations

import gzip
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paleo_lite.profiles import detect
from paleo_lite.profiles.lines import LONGEST_LINE
from strategies import ACCIDENTS, costly, damaged

pytestmark = pytest.mark.slow

DAMAGE_THEIR_OWN = ("pyprof", "nsys_sqlite", "chrome", "ncu", "nsys_stats")  # a small file in the tests of each
READERS = [f"{module}.{name}" for module, name in detect.READERS if module not in DAMAGE_THEIR_OWN]
TEXTS = [key for key in READERS if "Sqlite" not in key and "Parquet" not in key]

REAL = {
    "nvprof_text.SummaryText": "profiles/nvprof_summary_text/k80_tf2_mnist.txt",
    "nvprof_csv.GpuTraceCsv": "profiles/nvprof_gpu_trace_csv/convolutionFFT2D_trace.csv",
    "nvprof_csv.MetricsCsv": "profiles/nvprof_metrics_csv/reduction_metrics.csv",
    "tau.TauParquet": "surfboard/mpi/init_times_mpi.gzip",
    "tau_xml.TauXml": "surfboard/tau_xml/run_7_config_1_1_IB_tau_1_resnet50_dali-cpu-to-gpu_16_fp16_fp32_ret_0.xml",
    "ncu.NcuCsv": "profiles/ncu_csv/gemm_naive.csv",
    "nsys_sqlite.NsysSqlite": "profiles/nsys_sqlite/h100_2gpu_1s.sqlite",
    "chrome.ChromeTrace": "profiles/torch_chrome_trace/triton_example__triton_example.json.gz",
    "pyprof.PyprofParquet": "surfboard/pyprof_kernels/"
    "run_0_config_8_2_ib_nvprof_2_resnet50_dali-gpu_32_fp16_fp32_ret_0_0.gzip",
}


class Files(dict):
    """Bytes by reader, not shown when a test fails."""

    def __repr__(self):
        return "files"


@pytest.fixture(scope="session")
def whole(samples, nvprof_file, rocpd_file, tmp_path_factory):
    """An undamaged file of the format of each of `READERS`."""
    path = tmp_path_factory.mktemp("tau") / "mpi.gzip"
    rows = {"function": ["mpi_bcast", ".tau application"] * 50, "calls": [3, 1] * 50, "inc_time": [20, 3000] * 50}
    pq.write_table(
        pa.table(rows | {"exc_time": [20, -7] * 50, "nodes": [2, 2] * 50, "data_loader": ["a", "b"] * 50}), path
    )
    return Files(
        {
            **samples,
            "nvprof_sqlite.NvprofSqlite": nvprof_file.read_bytes(),
            "tau.TauParquet": path.read_bytes(),
            "rocprof.RocpdSqlite": rocpd_file.read_bytes(),
        }
    )


@pytest.mark.spread(4)
@pytest.mark.parametrize("key", READERS)
@given(ACCIDENTS, st.sampled_from(READERS), st.booleans())
def test_damaged_small_files(tmp_path, whole, table_or_our_error, key, happened, other, zipped):
    assert key in whole, f"no small file of {key} to damage: add one to SAMPLES in tests/profiles/conftest.py"
    raw = damaged(whole[key], happened, whole[other])
    path = tmp_path / "profile"
    path.write_bytes(gzip.compress(raw, 1) if zipped else raw)
    table_or_our_error(path, detect.load_reader(*key.split(".")))


@pytest.mark.spread(3)
@pytest.mark.needs_data
@pytest.mark.parametrize("key", REAL)
@costly
@given(ACCIDENTS, st.booleans())
def test_damaged_real_files(tmp_path, data_folder, table_or_our_error, key, happened, unzipped):
    raw = (data_folder / REAL[key]).read_bytes()
    if unzipped and raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    path = tmp_path / "profile"
    path.write_bytes(damaged(raw, happened))
    table_or_our_error(path, detect.load_reader(*key.split(".")))


@pytest.mark.spread(7)
@pytest.mark.parametrize("key", READERS)
def test_every_cut_of_a_small_file(tmp_path, whole, table_or_our_error, key):
    raw, path = whole[key], tmp_path / "profile"
    for length in range(1, len(raw), max(1, len(raw) // 60)):
        path.write_bytes(raw[:length])
        table_or_our_error(path, detect.load_reader(*key.split(".")))


@pytest.mark.spread(11)
@pytest.mark.parametrize("key", TEXTS)
@pytest.mark.parametrize("number", [b"1e308", b"9" * 400, b"-1", b"1..5"])
def test_every_number_of_a_small_file(tmp_path, whole, table_or_our_error, key, number):
    raw, path = whole[key], tmp_path / "profile"
    for match in re.finditer(rb"\d+(\.\d+)?", raw):
        path.write_bytes(raw[: match.start()] + number + raw[match.end() :])
        table_or_our_error(path, detect.load_reader(*key.split(".")))


FILLERS = {b"a": "", b"\n": "", b'"': "Csv", b"1,": "Csv", b"<a>": "Xml", b" ": "Text", b"- ": "Text"}
"""What fills a long line or many lines, and the word in the names of readers that treat it in a way of their own."""
SWOLLEN = [
    pytest.param(key, filler, marks=() if word in key else pytest.mark.thorough)
    for filler, word in FILLERS.items()
    for key in TEXTS
]


@pytest.mark.spread(8)
@pytest.mark.parametrize(("key", "filler"), SWOLLEN)
def test_gzip_that_swells(tmp_path, whole, table_or_our_error, key, filler):
    raw = whole[key]
    middle = raw.index(b"\n", len(raw) // 2) + 1
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(raw[:middle] + filler * (2 * LONGEST_LINE // len(filler)), 1))
    table_or_our_error(path, detect.load_reader(*key.split(".")))

"""Profiles are recognised by content, not by file name."""

from __future__ import annotations

import gzip
import importlib
import pickle
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

from paleo_lite.cli import main
from paleo_lite.errors import BadProfile, UnknownFormat
from paleo_lite.profiles import detect
from paleo_lite.profiles.detect import READERS, load_reader, open_profile, read_head

# Pattern below the folder of data, format (None: no profile), least number of files.
REAL = [
    ("surfboard/pyprof_kernels/*.gzip", "pyprof", 64),
    ("surfboard/mpi/*interval.gzip", "tau-parquet", 1),
    ("surfboard/mpi/*/*.gzip", "tau-parquet", 3),
    ("surfboard/tau_xml/*.xml", "tau-xml", 2),
    ("profiles/nvprof_summary_text/*.txt", "nvprof-summary", 1),
    ("profiles/nvprof_gpu_trace_csv/*.csv", "nvprof-trace", 3),
    ("profiles/nvprof_metrics_csv/*.csv", "nvprof-metrics", 2),
    ("profiles/nsys_sqlite/*.sqlite", "nsys-sqlite", 1),
    ("profiles/ncu_csv/gemm*.csv", "ncu", 2),
    ("profiles/ncu_csv/saxpy.csv", "ncu", 1),
    ("profiles/ncu_csv/transpose*.csv", "ncu", 1),
    ("profiles/torch_chrome_trace_resnet50/*", "chrome-trace", 1),
    ("profiles/torch_chrome_trace/c*", "chrome-trace", 3),
    ("profiles/torch_chrome_trace/[nt]*", "chrome-trace", 5),
    ("profiles/tracelens/*", "chrome-trace", 1),
    # tables, notes and archives in the same folder as profiles
    ("surfboard/mpi/init_times*", None, 1),
    ("surfboard/*.csv", None, 1),
    ("surfboard/derived/*", None, 5),
    ("profiles/ncu_csv/environment.txt", None, 1),
    ("profiles/ncu_csv/timing*.csv", None, 1),
    ("profiles/chakra_et/*", None, 2),
    ("measured/*.csv", None, 5),
    ("SOURCES.md", None, 1),
]

SMALL = {
    "ascend.AscendCsv": "ascend",
    "ascend.AscendTrace": "ascend-trace",
    "onnxruntime.OnnxRuntimeJson": "onnxruntime",
    "unitrace.UnitraceText": "unitrace",
    "unitrace.UnitraceTrace": "unitrace-trace",
    "rocprof.RocprofSummary": "rocprof-summary",
    "nvprof_text.SummaryText": "nvprof-summary",
    "nvprof_csv.GpuTraceCsv": "nvprof-trace",
    "nvprof_csv.MetricsCsv": "nvprof-metrics",
    "tau_xml.TauXml": "tau-xml",
    "tau.TauProfile": "tau-profile",
    "xla.XlaTrace": "xla-trace",
    "vtune.HotspotsCsv": "vtune-hotspots",
    "vtune.ApsSummary": "vtune-aps",
    "torch_table.TorchTable": "torch-table",
    "rocprof.RocprofCsv": "rocprof",
    "rocprof_json.RocprofJson": "rocprof-json",
}


@pytest.mark.needs_data
@pytest.mark.parametrize(("pattern", "name", "least"), REAL)
def test_real_files_under_any_name(data_folder, tmp_path, pattern, name, least):
    paths = sorted(data_folder.glob(pattern))
    assert len(paths) >= least
    for number, path in enumerate(paths):
        link = tmp_path / f"{number}.profile"
        link.symlink_to(path)
        if name is None:
            with pytest.raises(UnknownFormat):
                open_profile(link)
        else:
            assert open_profile(link).format == name, path.name


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("key", SMALL)
def test_small_texts_under_a_wrong_name(tmp_path, samples, key, zipped):
    path = tmp_path / "profile.parquet"
    path.write_bytes(gzip.compress(samples[key]) if zipped else samples[key])
    profile = open_profile(path)
    assert profile.format == SMALL[key]
    assert len(profile.read()) > 0


def test_nvprof_sqlite(nvprof_file):
    assert open_profile(nvprof_file).format == "nvprof-sqlite"


def test_small_texts_match_the_tests(samples):
    assert set(SMALL) == set(samples)


def test_each_small_text_is_of_one_format_only(tmp_path, samples, nvprof_file, rocpd_file):
    path = tmp_path / "x"
    databases = {"nvprof_sqlite.NvprofSqlite": nvprof_file, "rocprof.RocpdSqlite": rocpd_file}
    for key, raw in [*samples.items(), *((key, file.read_bytes()) for key, file in databases.items())]:
        path.write_bytes(raw)
        found = [
            f"{module}.{name}" for module, name in READERS if load_reader(module, name).recognises(path, raw[: 2**16])
        ]
        assert found == [key]


def test_every_reader_has_a_description():
    readers = [load_reader(module, name) for module, name in READERS]
    for attribute in ("name", "description"):
        texts = [getattr(reader, attribute) for reader in readers]
        assert all(texts) and len(set(texts)) == len(texts)
    for module, name in READERS:
        assert hasattr(importlib.import_module(f"paleo_lite.profiles.{module}"), name)


@pytest.mark.parametrize(
    "raw",
    [
        b"hello",
        b"Name,Age\nA,3\n",
        b"{}",
        b"[1, 2]",
        b"<html></html>",
        b"\0" * 100,
        bytes(range(256)),
        b"\xff\xfea\0b\0",
    ],
)
def test_unknown_content_lists_three_formats(tmp_path, raw):
    path = tmp_path / "trace.json"
    path.write_bytes(raw)
    with pytest.raises(UnknownFormat, match="not a profile that paleo-lite reads") as caught:
        open_profile(path)
    descriptions = [load_reader(module, name).description for module, name in READERS]
    assert sum(description in str(caught.value) for description in descriptions) == 3


def test_configuration_comes_from_the_file_name(tmp_path, samples):
    path = tmp_path / "run_7_config_1_2_IB_tau_1_resnet50_dali-gpu_16_fp16_fp32_ret_0.xml"
    path.write_bytes(samples["tau_xml.TauXml"])
    configuration = open_profile(path).configuration
    assert (configuration["repetition"], configuration["gpus_per_node"], configuration["batch_size"]) == (7, 2, 16)
    assert configuration["data_loader"] == "dali-gpu"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "the file is empty"),
        (b"\x1f\x8b\x08\x00garbage that is not a deflate stream", "gzip at byte 0 cannot be decompressed"),
        (b"PAR1 and then nothing", "parquet that is truncated or corrupted"),
        (b"SQLite format 3\0 and then nothing", "not SQLite, or cut within its header"),
    ],
)
def test_messages_for_damaged_files(tmp_path, raw, message):
    path = tmp_path / "x"
    path.write_bytes(raw)
    with pytest.raises(BadProfile, match=message):
        open_profile(path)


def test_absent_file_and_folder(tmp_path):
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(BadProfile, match="cannot be read"):
            open_profile(path)


def test_message_for_other_sqlite_files_lists_the_expected_tables(tmp_path):
    path = tmp_path / "films.sqlite"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE films(title TEXT)")
    database.close()
    with pytest.raises((BadProfile, UnknownFormat), match=r"without the tables|reads:"):
        open_profile(path).read()


def test_the_head_of_a_gzip_bomb_is_small(tmp_path):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"\0" * 2**26))
    assert len(read_head(path)) <= 2**16


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("run.nsys-rep", b"NVIDIA Tegra Profiler Report", "`nsys export --type sqlite -o run.sqlite run.nsys-rep`"),
        ("run.ncu-rep", b"NVR", "`ncu --import run.ncu-rep --csv > run.csv`"),
        ("host.xplane.pb", b"\n\x10", r"`\*\.trace\.json\.gz`"),
        (
            "snapshot",
            pickle.dumps({"segments": [], "device_traces": []}),
            "a pickle .* https://pytorch.org/memory_viz",
        ),
        ("runs.tar.gz", gzip.compress(b"runs/a.json"), "an archive, which is not read: unpack it"),
        ("x.json", b'{\n  "schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []}', r"execution trace \(Chakra\)"),
        ("x.json", b'{\n  "workload_graph": [\n    {"Id": 216, "runtime": 318}]}', r"execution trace \(Chakra\)"),
        ("x", b'{"traceEvents": [{"ph": "X", "args": {"BeginNs": "1"}}]}', r"use the `\*\.csv` from the same folder"),
    ],
)
def test_proprietary_formats_must_be_exported(tmp_path, name, raw, message):
    path = tmp_path / name
    path.write_bytes(raw)
    with pytest.raises(UnknownFormat, match=message):
        open_profile(path)


@pytest.mark.parametrize("command", ["kernels", "efficiency"])
def test_a_path_that_is_too_long_is_no_file(command: str) -> None:
    """Not an output that cannot be written: the operating system refuses the name before it looks for the file."""
    result = CliRunner().invoke(main, [command, "x" * 300, "--gpu", "k40m"])
    assert result.exit_code in (1, 2)
    assert "output" not in result.stderr
    assert "no such file" in result.stderr or "cannot be read" in result.stderr


def test_a_refusal_names_the_three_nearest_formats_in_one_sentence(tmp_path):
    path = tmp_path / "table.txt"
    path.write_text("PyTorch profiler's table\nop  time\nconv  3\n")
    with pytest.raises(UnknownFormat) as error:
        open_profile(path)
    sentence = str(error.value).removeprefix(str(path))
    assert f"the nearest of {len(READERS)} formats: PyTorch profiler's printed table; " in sentence
    assert sentence.count(";") == 2 and len(sentence) < 320


def test_a_dozen_readers_of_text_share_the_lines_of_a_head(tmp_path, monkeypatch):
    """Each of them looks for its heading in all lines."""
    cleaned = []

    def clean(lines):
        cleaned.append(len(lines))

    monkeypatch.setattr("paleo_lite.profiles.lines.cleaner_of", clean)
    path = tmp_path / "notes.txt"
    path.write_text("nothing of a profile\n" * 50)
    with pytest.raises(UnknownFormat):
        open_profile(path)
    assert len(cleaned) == 1


def test_every_reader_is_in_the_list() -> None:
    forgotten = []
    for path in sorted(Path(detect.__file__).parent.glob("*.py")):
        module = importlib.import_module(f"{detect.__package__}.{path.stem}")
        forgotten += [
            (path.stem, name)
            for name, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module.__name__ and is_reader(value)
            if (path.stem, name) not in READERS
        ]
    assert not forgotten, f"add {forgotten[0]} to READERS in paleo_lite/profiles/detect.py"


def is_reader(candidate: type) -> bool:
    """Return whether a class has the members of a reader, and is not their interface."""
    has_members = all(hasattr(candidate, member) for member in ("name", "description", "recognises", "batches"))
    return has_members and candidate is not detect.Reader

"""rocprofv3's JSON, with the fields that ROCprofiler-SDK's ``generateJSON.cpp`` and its record types write.

Tests: profiles/rocprof_json.py.
"""

from __future__ import annotations

import gzip
import json

import pytest

pytest.importorskip("pyarrow")

from paleo_lite.errors import BadProfile
from paleo_lite.machines import find_device
from paleo_lite.profile_analysis.recorded_device import identify_device, recorded_gpus
from paleo_lite.profiles import json_stream
from paleo_lite.profiles.detect import open_profile

SYMBOL = {
    "size": 216,
    "kernel_id": 7,
    "code_object_id": 0,
    "kernel_name": "_Z15dispatch_vectorPfi.kd",
    "formatted_kernel_name": "dispatch_vector(float*, int)",
    "demangled_kernel_name": "dispatch_vector(float*, int) [clone .kd]",
    "truncated_kernel_name": "dispatch_vector",
}


def dispatch(start: int, end: int, **changes: object) -> dict[str, object]:
    """Return a record of a kernel dispatch of 4,096 work items."""
    info = {
        "size": 72,
        "agent_id": {"handle": 222},
        "queue_id": {"handle": 2},
        "kernel_id": 7,
        "dispatch_id": 3,
        "workgroup_size": {"x": 256, "y": 1, "z": 1},
        "grid_size": {"x": 4000, "y": 2, "z": 1},
    }
    return {
        "size": 168,
        "kind": 11,
        "operation": 1,
        "thread_id": 44,
        "correlation_id": {"internal": 9, "external": 0},
        "start_timestamp": start,
        "end_timestamp": end,
        "dispatch_info": {**info, **changes},
        "stream_id": {"handle": 5},
    }


def process(dispatches: list[object], copies: list[object]) -> dict[str, object]:
    """Return one process of the document, with the keys in the order in which rocprofv3 writes them."""
    return {
        "metadata": {"pid": 100, "command": ["./app", '{"kernel_dispatch": ["no array, but text"]}']},
        "agents": [
            {"id": {"handle": 111}, "type": 1, "node_id": 0, "product_name": "AMD EPYC 9654 96-Core Processor"},
            {"id": {"handle": 222}, "type": 2, "node_id": 4, "name": "gfx942", "product_name": "AMD Instinct MI300X"},
        ],
        "counters": [],
        "strings": {"buffer_records": [{"kind": "KERNEL_DISPATCH", "operations": ["NONE", "COMPLETE"]}]},
        "code_objects": [],
        "kernel_symbols": [SYMBOL],
        "host_functions": [],
        "callback_records": {"counter_collection": []},
        "buffer_records": {
            "kernel_dispatch": dispatches,
            "hip_api": [{"kind": 3, "operation": 1, "start_timestamp": 1, "end_timestamp": 2}],
            "memory_copy": copies,
        },
    }


COPY = {
    "size": 64,
    "kind": 10,
    "operation": 2,
    "thread_id": 44,
    "start_timestamp": 500,
    "end_timestamp": 900,
    "dst_agent_id": {"handle": 222},
    "src_agent_id": {"handle": 111},
    "bytes": 65536,
}


def write(path, *processes):
    path.write_text(json.dumps({"rocprofiler-sdk-tool": list(processes)}, indent=1))
    return path


def test_kernels_and_copies(tmp_path):
    path = write(tmp_path / "run_results.json", process([dispatch(1000, 1800), dispatch(2000, 2500)], [COPY]))
    profile = open_profile(path)
    assert profile.format == "rocprof-json"
    first, second, copy = profile.read().table.to_pylist()
    assert (first["kernel"], first["category"]) == ("dispatch_vector(float*, int)", "kernel")
    assert (first["start_ns"], first["duration_ns"], second["start_ns"]) == (1000, 800.0, 2000)
    assert (first["block"], first["grid"]) == ("256,1,1", "16,2,1")  # 4,000 work items need 16 groups of 256
    assert (first["device"], first["stream"], first["thread"]) == (4, 5, 44)
    assert (copy["category"], copy["kernel"], copy["bytes"]) == ("memcpy", "[memcpy HOST_TO_DEVICE]", 65536.0)
    assert (copy["duration_ns"], copy["device"], copy["stream"]) == (400.0, 4, None)


def test_the_gpu_is_identified_and_the_processor_ignored(tmp_path):
    profile = open_profile(write(tmp_path / "out.json", process([dispatch(1, 2)], [])))
    assert [gpu.name for gpu in recorded_gpus(profile)] == ["AMD Instinct MI300X"]
    assert identify_device(profile) == find_device("mi300x")


def test_small_pieces_gzip_and_processes_give_the_same_rows(tmp_path, monkeypatch):
    processes = [process([dispatch(n, n + 10) for n in range(50)], [COPY]) for _ in range(3)]
    path = write(tmp_path / "out.json", *processes)
    packed = tmp_path / "out.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    rows = open_profile(path).read().table
    assert rows.num_rows == 3 * 51
    monkeypatch.setattr(json_stream, "PIECE", 4099)
    assert open_profile(packed).read().table.equals(rows)


def test_queue_is_the_stream_of_versions_without_streams(tmp_path):
    record = dispatch(1, 2)
    del record["stream_id"]
    (row,) = open_profile(write(tmp_path / "out.json", process([record], []))).read().table.to_pylist()
    assert row["stream"] == 2


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (dispatch(10, 5), "begins at 10 and ends at 5 ns"),
        (dispatch(-5, 5), "begins at -5"),
        (dispatch(1, 2, kernel_id=8), "kernel_id 8, which is not in kernel_symbols"),
        (dispatch(1, 2, kernel_id="x"), "not JSON"),
    ],
)
def test_the_error_of_a_damaged_record_names_the_damage(tmp_path, record, message):
    with pytest.raises(BadProfile, match=message):
        open_profile(write(tmp_path / "out.json", process([record], []))).read()


def test_a_cut_file_is_an_error(tmp_path):
    text = json.dumps({"rocprofiler-sdk-tool": [process([dispatch(1, 2)], [COPY])]})
    path = tmp_path / "out.json"
    for length in range(len('{"rocprofiler-sdk-tool":') + 1, len(text) - 1, 7):
        path.write_text(text[:length])
        with pytest.raises(BadProfile, match=r"out\.json"):
            open_profile(path).read()

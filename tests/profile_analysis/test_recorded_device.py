"""The device of a profile, from real traces and tables and from the names that drivers report.

Tests: profile_analysis/recorded_device.py.
"""

from __future__ import annotations

import gzip
import json
import sqlite3

import pytest

pytest.importorskip("pyarrow")

from measured import DATA
from paleo_lite import compare, efficiency, kernels
from paleo_lite.errors import BadValue
from paleo_lite.profile_analysis.recorded_device import (
    RecordedGpu,
    candidate_devices,
    describe_missing_device,
    identify_device,
    recorded_gpus,
)
from paleo_lite.profiles.detect import open_profile

PROFILES = DATA / "profiles"
QWEN = PROFILES / "tracelens_models" / "h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"


@pytest.mark.needs_data
@pytest.mark.parametrize(
    ("file", "gpu", "device"),
    [
        ("tracelens_models/mi300__resnet_act_checkpoint.json.gz", "AMD Instinct MI300X", "mi300x"),
        ("tracelens_models/h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", "NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("tracelens/b200_eager_trace.json.gz", "NVIDIA B200", "b200"),
        ("hta/trace_diff__test__test.json.gz", "Tesla V100-SXM2-16GB", "v100-sxm2"),
        ("param/resnet_kineto.json.gz", "NVIDIA GeForce RTX 2080 Ti", "rtx2080ti"),
        ("nvprof_gpu_trace_csv/matrixMul_trace.csv", "GeForce GTX 1080 Ti", "gtx1080ti"),
        ("nvprof_summary_text/k80_tf2_mnist.txt", "Tesla K80", "k80-die"),
    ],
)
def test_the_device_of_real_profiles(file, gpu, device):
    profile = open_profile(PROFILES / file)
    assert {recorded.name for recorded in recorded_gpus(profile)} == {gpu}
    assert identify_device(profile).id == device


@pytest.mark.parametrize(
    ("name", "memory_gib", "expected"),
    [
        ("Tesla K80", 11.2, ["k80-die"]),  # a program sees one of the two GPUs
        ("AMD Instinct MI250X", 64.0, ["mi250x-gcd"]),
        ("NVIDIA GeForce RTX 4060 Ti", 16.0, ["rtx4060ti-16gb"]),
        ("NVIDIA A100-PCIE-40GB", 39.4, ["a100-pcie-40gb"]),
        ("NVIDIA A100-SXM4-80GB", 79.2, ["a100-sxm-80gb"]),
        ("NVIDIA A100-PG509-200", 39.4, ["a100-pcie-40gb", "a100-sxm-40gb"]),  # an unreleased board
        ("NVIDIA H100 NVL", None, ["h100-nvl"]),
        ("NVIDIA TITAN RTX", None, ["titan-rtx"]),
        ("NVIDIA A10G", None, ["a10g"]),
        ("NVIDIA H800", None, ["h800-sxm"]),
        ("NVIDIA H20", None, ["h20"]),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", None, ["rtx3060-laptop"]),
        ("NVIDIA B300A", None, []),
    ],
)
def test_names_of_drivers(name, memory_gib, expected):
    memory = None if memory_gib is None else int(memory_gib * 2**30)
    assert [device.id for device in candidate_devices(RecordedGpu(name, memory))] == expected


def test_the_databases_of_nsys_and_rocprofv3(tmp_path):
    nsys, rocpd = tmp_path / "nsys.sqlite", tmp_path / "rocpd.db"
    with sqlite3.connect(nsys) as connection:
        connection.executescript(
            """
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
            CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, totalMemory INTEGER);
            INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA A100-SXM4-40GB', 42297524224);
            """
        )
    with sqlite3.connect(rocpd) as connection:
        connection.executescript(
            """
            CREATE TABLE rocpd_kernel_dispatch_00 (start INTEGER);
            CREATE TABLE rocpd_info_agent_00 (id INTEGER, type TEXT, product_name TEXT);
            INSERT INTO rocpd_info_agent_00 VALUES (0, 'CPU', 'AMD EPYC 7A53'), (1, 'GPU', 'AMD Instinct MI250X');
            """
        )
    assert identify_device(open_profile(nsys)).id == "a100-sxm-40gb"
    for name, device in (("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"), ("Tesla T4", None)):
        with sqlite3.connect(nsys) as connection:
            connection.execute("INSERT INTO TARGET_INFO_GPU VALUES (1, ?, 42297524224)", [name])
        identified = identify_device(open_profile(nsys))
        assert (identified and identified.id) == device
    assert identify_device(open_profile(rocpd)).id == "mi250x-gcd"


@pytest.mark.needs_data
def test_no_device_is_guessed():
    ambiguous = next((PROFILES / "torch_chrome_trace_resnet50").glob("*.gz"))
    unknown = PROFILES / "hta" / "timeline_analysis__sampled_rank-0.json.gz"
    assert (
        "Tesla V100-DGXS-32GB, which can be v100-pcie-32gb, v100-sxm2-32gb"
        in describe_missing_device(open_profile(ambiguous)).request
    )
    assert (
        kernels(unknown).notes[0].endswith("does not record its device: shares of peak and bounds need `--gpu DEVICE`")
    )
    with pytest.raises(BadValue, match="does not record its device: use `--gpu DEVICE`"):
        efficiency(unknown, method="notebook", jobs=1)


@pytest.mark.needs_data
def test_a_device_that_the_registry_lacks(tmp_path):
    """Everything that needs no peak is answered as on a known device; one line says what cannot be."""
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.decompress(QWEN.read_bytes()).replace(b"NVIDIA H100 80GB HBM3", b"NVIDIA H199 80GB HBM3"))
    known, unknown = efficiency(QWEN, jobs=1), efficiency(path, jobs=1)
    assert unknown.device.name == "NVIDIA H199 80GB HBM3" and unknown.peak is None
    (row,), (expected,) = unknown.rows, known.rows
    for name in (
        "busy_share",
        "idle_s",
        "gaps",
        "communication_s",
        "critical_path",
        "kernel_s",
        "flops_per_s",
        "steps",
    ):
        assert row[name] == expected[name]
    assert row["mfu"] is row["flops_efficiency"] is row["bandwidth_efficiency"] is row["peak_flops_per_s"] is None
    assert all(operator["of_peak"] is operator["bound"] is None for operator in row["operators"])
    note = "trace.json was taken on NVIDIA H199 80GB HBM3, which is not in the registry: shares of peak and bounds need"
    document = unknown.document()
    assert [text for text in document.notes if "H199" in text] == [f"{note} `--gpu DEVICE`"]
    assert "H199 80GB HBM3, which is not in the registry: no share of peak, busy" in document.title
    assert unknown.to_dict()["device"] is None

    report, reference = kernels(path), kernels(QWEN)
    assert [(row.name, row.label, row.time_s) for row in report.kernels] == [
        (row.name, row.label, row.time_s) for row in reference.kernels
    ]
    assert report.by_class() == reference.by_class() and report.busy_s == reference.busy_s
    assert all(row.flops_efficiency is row.bound is None for row in report.kernels)
    assert report.notes[0] == f"{note} `--gpu DEVICE`" and "no share of peak" in report.document().title
    with pytest.raises(BadValue, match="H199 80GB HBM3, which is not in the registry: use `--gpu DEVICE`"):
        compare(path, predict="alexnet", batch_size=1)


@pytest.mark.thorough
@pytest.mark.needs_data
def test_gpu_is_optional_and_overrides():
    """The trace was recorded on an H100: for a T4, the headline states this, and there is no share of peak."""
    recorded = efficiency(QWEN, jobs=1)
    assert recorded.device.id == "h100-sxm" and not recorded.device_conflict
    assert recorded.rows == efficiency(QWEN, gpu="h100-sxm", jobs=1).rows
    wrong = efficiency(QWEN, gpu="t4", jobs=1)
    title = wrong.document().title
    assert "was taken on NVIDIA H100 80GB HBM3, not on Tesla T4; no share of peak" in title and "MFU" not in title
    (row,) = wrong.rows
    assert row["mfu"] is row["flops_efficiency"] is row["bandwidth_efficiency"] is None
    assert all(operator["of_peak"] is operator["of_roofline"] is None for operator in row["operators"])
    assert row["busy_share"] == recorded.rows[0]["busy_share"]


@pytest.mark.needs_data
def test_kernels_of_the_recorded_device():
    assert kernels(QWEN).device.id == "h100-sxm"
    wrong = kernels(QWEN, gpu="t4")
    assert "not on Tesla T4, no share of peak" in wrong.document().title
    assert all(row.flops_efficiency is None for row in wrong.kernels)


@pytest.mark.needs_data
def test_devices_with_equal_rates_are_equivalent_and_noted():
    """The A100 PCIe and SXM4 of 40 GB differ in their base clock only, to which no share of peak refers."""
    path = next((PROFILES / "torch_chrome_trace").glob("triton_example*.gz"))
    result = efficiency(path, jobs=1)
    assert result.device.id == "a100-pcie-40gb"
    (note,) = [note for note in result.notes if "A100-PG509-200" in note]
    assert "does not determine the device: the peaks are those of A100 PCIe 40GB" in note


def test_properties_of_the_profiler_of_2021(tmp_path):
    """Kineto's own test trace of that year has ``computeProperties``."""
    properties = [{"id": number, "name": "Tesla V100-DGXS-32GB", "totalGlobalMem": 34087305216} for number in range(4)]
    kernel = {"ph": "X", "cat": "Kernel", "name": "k", "pid": 0, "tid": "stream 7", "ts": 1, "dur": 2, "args": {}}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "computeProperties": properties, "traceEvents": [kernel]}))
    assert recorded_gpus(open_profile(path)) == (RecordedGpu("Tesla V100-DGXS-32GB", 34087305216),)


def test_exchange_of_experts_is_overlapped_communication(tmp_path):
    """Kernels of one layer of DeepSeek's published prefill on H800, with the times of the trace in milliseconds."""
    kernels_ms = [
        ("void dpsk::ep::internode::notify_dispatch<false, 4>(int const*)", 183.402, 1.924, 16),
        ("void dpsk::gemm::fp8_gemm_kernel<4096u, 7168u, (dpsk::gemm::GemmType)1>(float*)", 183.402, 3.718, 7),
        ("void dpsk::ep::internode::dispatch<false, 4, false, 4>(int4*)", 185.384, 4.584, 16),
        ("void dpsk::gemm::fp8_gemm_kernel<7168u, 2048u, (dpsk::gemm::GemmType)1>(float*)", 187.775, 2.519, 7),
    ]
    events = []
    for number, (name, start_ms, time_ms, stream) in enumerate(kernels_ms):
        arguments = {"device": 0, "context": 1, "stream": stream, "correlation": number}
        times = {"ts": round(start_ms * 1000), "dur": round(time_ms * 1000)}
        events.append({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "args": arguments, **times})
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"deviceProperties": [{"name": "NVIDIA H899"}], "traceEvents": events}))
    (row,) = efficiency(path, jobs=1).rows
    assert row["communication_s"] == pytest.approx(1.924e-3 + 4.584e-3)
    # Without a product in parallel: from 187.12 to 187.775.
    assert row["exposed_communication_s"] == pytest.approx(0.655e-3)
    assert [entry["collective"] for entry in row["collectives"]] == ["dispatch", "notify_dispatch"]


@pytest.mark.parametrize("memory", ["85031780352", "85031780352.0", "8.5e10", '"79.2 GiB"', "null"])
def test_memory_in_any_notation(memory, tmp_path):
    """Names of the 40 GB and 80 GB card agree but for their memory."""
    path = tmp_path / "trace.json"
    properties = f'[{{"id": 0, "name": "NVIDIA A100-SXM4", "totalGlobalMem": {memory}}}]'
    path.write_text(f'{{"deviceProperties": {properties}, "traceEvents": []}}')
    (gpu,) = recorded_gpus(open_profile(path))
    assert gpu.name == "NVIDIA A100-SXM4"
    is_number = memory[0] == "8"
    assert gpu.memory_bytes == (round(float(memory)) if is_number else None)
    assert {device.memory_bytes for device in candidate_devices(gpu)} == (
        {80 * 10**9} if is_number else {40 * 10**9, 80 * 10**9}
    )

"""Profiles of ONNX Runtime: events as version 1.32 writes them, and kernels as its CUDA profiler records them."""

from __future__ import annotations

import json

import pytest

from paleo_lite.errors import BadProfile
from paleo_lite.profiles.detect import open_profile


def node(name: str, operator: str, inputs: list, outputs: list, start_us: int = 100, **args) -> dict:
    typed = {"input_type_shape": [{"float": shape} for shape in inputs]}
    typed["output_type_shape"] = [{"float": shape} for shape in outputs]
    sizes = {"parameter_size": "0", "activation_size": "4", "output_size": "4"}
    args = {"op_name": operator, "provider": "CPUExecutionProvider", **sizes, **typed, **args}
    return {"cat": "Node", "pid": 1, "tid": 7, "dur": 40, "ts": start_us, "ph": "X", "name": name, "args": args}


def session(name: str) -> dict:
    return {"cat": "Session", "pid": 1, "tid": 7, "dur": 500, "ts": 23, "ph": "X", "name": name, "args": {}}


def read(tmp_path, events: list[dict]) -> list[dict]:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(events))
    profile = open_profile(path)
    assert profile.format == "onnxruntime"
    return profile.read().table.to_pylist()


def test_nodes_of_the_cpu_are_kernels_with_shapes_and_bytes(tmp_path):
    sizes = {"parameter_size": "3584", "activation_size": "49152", "output_size": "131072"}
    convolution = [[1, 3, 64, 64], [32, 3, 3, 3], [32]], [[1, 32, 32, 32]]
    conv = node("relu_nchwc_kernel_time", "Conv", *convolution, start_us=178261, **sizes)
    (row,) = read(tmp_path, [session("model_loading_uri"), conv, session("model_run")])
    assert (row["category"], row["kernel"], row["op"], row["layer"]) == ("kernel", "Conv", "Conv", "relu_nchwc")
    assert (row["start_ns"], row["duration_ns"]) == (178_261_000, 40_000.0)
    assert row["bytes"] == 4 * (32 * 27 + 32 + 3 * 64 * 64 + 32 * 32 * 32)  # what each tensor has in fp32
    assert row["flops"] == 2 * 32 * 32 * 32 * 27
    assert row["params"] == "1,3,64,64;32,3,3,3;32 float;float;float"


@pytest.mark.parametrize(
    ("operator", "inputs", "output", "flops"),
    [
        ("Gemm", [[256, 64], [256]], [256, 256], 2 * 256 * 64 * 256),  # its weight is packed
        ("Gemm", [[64, 256], [64, 10]], [256, 10], 2 * 256 * 64 * 10),  # transposed
        ("FusedMatMul", [[256, 1, 4, 64], [256, 1, 4, 64]], [1, 4, 256, 256], 2 * 4 * 256 * 64 * 256),
        ("MatMul", [[32, 64], [8, 64, 16]], [8, 32, 16], None),  # one operand for all batches
        ("Conv", [[1, 3, 64, 64], [32]], [1, 32, 32, 32], None),  # a packed weight is not among the inputs
        ("QLinearConv", [[1, 8, 5, 5], [], [], [4, 8, 1, 1]], [1, 4, 5, 5], 2 * 4 * 25 * 8),
        ("Relu", [[1, 8]], [1, 8], None),
    ],
)
def test_flops_of_products(tmp_path, operator, inputs, output, flops):
    events = [session("model_loading_uri"), node("a_kernel_time", operator, inputs, [output])]
    (row,) = read(tmp_path, events)
    assert row["flops"] == flops


def test_bytes_of_a_packed_weight_are_unknown(tmp_path):
    packed = node("a_kernel_time", "Gemm", [[256, 64], [256]], [[256, 256]])
    (row,) = read(tmp_path, [session("model_loading_uri"), packed])
    assert row["bytes"] is None


def test_runs_are_steps(tmp_path):
    relu = node("a_kernel_time", "Relu", [[1]], [[1]])
    rows = read(tmp_path, [session("model_loading_uri"), relu, session("model_run"), relu, session("model_run")])
    assert [row["step"] for row in rows] == ["run 0", "run 1"]


def test_kernels_of_a_gpu_belong_to_the_node_before_them(tmp_path):
    launch = node("fc_kernel_time", "Gemm", [[4, 8], [8, 2]], [[4, 2]], provider="CUDAExecutionProvider")
    extents = {"grid_x": "2", "grid_y": "1", "grid_z": "1", "block_x": "128", "block_y": "1", "block_z": "1"}
    kernel = {"cat": "Kernel", "pid": -1, "tid": -1, "dur": 12, "ts": 130, "ph": "X", "name": "sgemm_128x64"}
    kernel["args"] = {"op_name": "", "stream": "7", **extents}
    rows = read(tmp_path, [session("model_loading_uri"), launch, kernel])
    assert [row["category"] for row in rows] == ["cpu", "kernel"]
    assert [rows[1][name] for name in ("op", "layer", "grid", "block", "stream")] == [
        "Gemm",
        "fc",
        "2,1,1",
        "128,1,1",
        7,
    ]


def test_providers_say_where_kernels_ran(tmp_path):
    on_cpu = node("a_kernel_time", "Shape", [[4, 8]], [[2]])
    launch = node("fc_kernel_time", "Gemm", [[4, 8], [8, 2]], [[4, 2]], provider="CUDAExecutionProvider")
    kernel = {"cat": "Kernel", "pid": -1, "tid": -1, "dur": 12, "ts": 130, "ph": "X", "name": "sgemm_128x64"}
    path = tmp_path / "profile.json"
    said = {}
    for name, events in {
        "processor": [on_cpu],
        "both": [on_cpu, launch],
        "launches": [launch],
        "kernels": [launch, kernel | {"args": {}}],
        "mixed": [on_cpu, launch, kernel | {"args": {}}],
    }.items():
        path.write_text(json.dumps([session("model_loading_uri"), *events]))
        profile = open_profile(path)
        said[name] = (profile.on_processor, *(doubt.partition(",")[0] for doubt in profile.doubts))
    assert said == {
        "processor": ("CPUExecutionProvider",),
        "both": ("CPUExecutionProvider", "the kernels of CUDAExecutionProvider are not recorded"),
        "launches": ("", "the kernels of CUDAExecutionProvider are not recorded"),
        "kernels": ("",),
        "mixed": ("", "calls of CPUExecutionProvider ran on the processor and are among the kernels of the GPU"),
    }


def test_bytes_of_0_are_not_recorded(tmp_path):
    sizes = dict.fromkeys(("parameter_size", "activation_size", "output_size"), "0")
    (row,) = read(tmp_path, [session("model_loading_uri"), node("a_kernel_time", "Relu", [[1]], [[1]], **sizes)])
    assert row["bytes"] is None


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([session("model_loading_uri")], "no call of an operator"),
        ([node("a_kernel_time", "Relu", [[1]], [[1]], start_us=-5)], "no start and duration"),
        ([node("a_kernel_time", "Relu", [[1]], [[1]], output_size="many")], "'many', expected bytes"),
    ],
)
def test_damaged_profiles_get_one_sentence(tmp_path, events, problem):
    with pytest.raises(BadProfile, match=problem):
        read(tmp_path, events)

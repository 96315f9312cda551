"""In which of a program's ranges operations ran.

Tests: profiles/launches.py.
"""

from __future__ import annotations

import json

import pytest

from measured import DATA
from paleo_lite.profiles.detect import open_profile


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args) -> dict:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def launched(op_start: float, correlation: int, tid: int = 1, **args) -> list[dict]:
    """An operation with its launch and kernel."""
    return [
        event("cpu_op", "aten::mm", op_start, 8, tid, **{"External id": correlation, **args}),
        event("cuda_runtime", "cudaLaunchKernel", op_start + 1, 2, tid, correlation=correlation),
        event("kernel", f"kernel_{correlation}", op_start + 50, 5, 7, correlation=correlation, device=0,
              **{"External id": correlation}),
    ]  # fmt: skip


@pytest.fixture
def layers(tmp_path):
    """The `layer` of each kernel of a trace with some events."""

    def read(*events: dict) -> dict[str, str | None]:
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"traceEvents": list(events)}))
        frame = open_profile(path).read().to_frame()
        kernels = frame[frame["category"] == "kernel"]
        return dict(zip(kernels["kernel"], kernels["layer"].astype(object).where(kernels["layer"].notna(), None)))

    return read


def test_modules_and_ranges_nest_and_their_path_is_the_place(layers):
    found = layers(
        event("user_annotation", "ProfilerStep#3", 0, 1000),
        event("user_annotation", "encode", 5, 200),
        event("python_function", "nn.Module: Net_0", 10, 100),
        event("python_function", "nn.Module: Linear_0", 15, 20),
        event("python_function", "net.py(7): forward", 16, 18),  # no module
        *launched(20, 1),
        *launched(60, 2),
        *launched(300, 3),
    )
    assert found == {"kernel_1": "encode/Net_0/Linear_0", "kernel_2": "encode/Net_0", "kernel_3": None}


def test_a_backward_operation_belongs_where_its_forward_one_ran(layers):
    found = layers(
        event("python_function", "nn.Module: Linear_0", 15, 20),
        *launched(20, 1, **{"Sequence number": 9}),
        event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 495, 30, 2,
              **{"Sequence number": 9, "Fwd thread id": 1, "External id": 77}),
        *launched(500, 2, 2),
    )  # fmt: skip
    assert found == {"kernel_1": "Linear_0", "kernel_2": "Linear_0"}


@pytest.mark.needs_data
def test_a_real_network_with_checkpointing():
    frame = open_profile(DATA / "profiles/tracelens_models/mi300__resnet_act_checkpoint.json.gz").read().to_frame()
    kernels = frame[(frame["category"] == "kernel") & frame["layer"].notna()]
    placed = kernels[kernels["layer"].str.endswith("ResNet_0/BatchNorm2d_0")]
    assert {"fprop", "bprop"} <= set(placed["direction"])
    assert placed["op"].str.contains("batch_norm").any()

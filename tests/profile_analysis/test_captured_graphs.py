"""Tests of captured graphs: traces of a capture and a replay, made from real eager traces and by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import paleo_lite as paleo
from measured import DATA
from paleo_lite.cli import main
from paleo_lite.errors import BadProfile, BadValue
from paleo_lite.profile_analysis.captured_graphs import (
    _TEXT_COLUMNS,
    CapturedGraphs,
    GraphNode,
    _Replacements,
    _WithOperations,
    add_captured_operations,
    match_nodes,
)
from paleo_lite.profiles.detect import open_profile
from paleo_lite.profiles.table import batch_of

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
HOST_CATEGORIES = ("cuda_runtime", "cuda_driver")
OPERATION_COLUMNS = ("op", "params", "direction", "layer")
TRACES = ("mi300__resnet_act_checkpoint", "perf_model__normalization__normalization_layer_test")


def write_trace(path: Path, events: list[dict[str, Any]], **others: Any) -> Path:
    path.write_bytes(gzip.compress(json.dumps({**others, "traceEvents": events}).encode()))
    return path


def make_pair(eager: Path, folder: Path) -> tuple[Path, Path]:
    """Split a real eager trace into a capture (host events only) and a replay (kernels of one graph launch)."""
    others = json.loads(gzip.decompress(eager.read_bytes()))
    events = others.pop("traceEvents")
    launches = {event["args"].get("correlation"): event for event in events if event.get("cat") in HOST_CATEGORIES}
    host = [event for event in events if event.get("cat") not in (*ON_DEVICE, "gpu_user_annotation")]
    kernels = [
        event for event in events if event.get("cat") in ON_DEVICE and event["args"].get("correlation") in launches
    ]
    first = min(launches[kernel["args"]["correlation"]]["ts"] for kernel in kernels)
    replay = [runtime_call("hipGraphLaunch", first - 10, correlation=7)]
    for kernel in kernels:
        args = {key: value for key, value in kernel["args"].items() if key != "External id"}
        replay.append({**kernel, "args": {**args, "correlation": 7}})
    capture = write_trace(folder / "capture.json.gz", host, **others)
    return capture, write_trace(folder / "replay.json.gz", replay, **others)


def runtime_call(name: str, start_us: float, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": 1, "ts": start_us, "dur": 1, "args": args,
    }  # fmt: skip


def operation(name: str, start_us: float, shape: list[int]) -> dict[str, Any]:
    args = {"Input Dims": [shape], "Input type": ["float"]}
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": start_us, "dur": 8, "args": args}


def kernel(name: str, start_us: float, correlation: int, category: str = "kernel", **args: Any) -> dict[str, Any]:
    args = {"stream": 7, "device": 0, "correlation": correlation, **args}
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 7, "ts": start_us, "dur": 2, "args": args}


def capture_events(
    launches: list[tuple[str, str | None, list[int]]], start_us: float = 100.0, marked: bool = True
) -> list[dict[str, Any]]:
    """Return a capture of operations with one launch each: operation, name of the kernel, shape.

    A name of None is a launch as CUDA's profiler records it. ``memcpy`` and ``memset`` are a copy and a fill.
    """
    events: list[dict[str, Any]] = []
    if marked:
        events.append(runtime_call("hipStreamBeginCapture", start_us - 5))
    for index, (op, name, shape) in enumerate(launches):
        time_us = start_us + 10 * index
        events.append(operation(op, time_us, shape))
        ids = {"correlation": int(time_us)}
        if name == "memcpy":
            events.append(runtime_call("hipMemcpyAsync", time_us + 1, **ids))
        elif name == "memset":
            events.append(runtime_call("hipMemsetAsync", time_us + 1, **ids))
        elif name is None:
            events.append(runtime_call("cudaLaunchKernel", time_us + 1, **ids))
        else:
            events.append(runtime_call("hipLaunchKernel", time_us + 1, kernel=name, grid=[shape[0], 1, 1], **ids))
    if marked:
        events.append(runtime_call("hipStreamEndCapture", start_us + 10 * len(launches)))
    return events


def replay_events(
    names: list[str], start_us: float = 5000.0, correlation: int = 1, grid: int | None = None
) -> list[dict[str, Any]]:
    """Return a graph launch and its kernels."""
    events = [runtime_call("cudaGraphLaunch", start_us, correlation=correlation)]
    for index, name in enumerate(names):
        category = {"memcpy": "gpu_memcpy", "memset": "gpu_memset"}.get(name, "kernel")
        args = {} if grid is None else {"grid": [grid, 1, 1]}
        events.append(kernel(name, start_us + 10 + 5 * index, correlation, category, **args))
    return events


def annotation(name: str, start_us: float, length_us: float) -> dict[str, Any]:
    return {
        "ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": start_us, "dur": length_us,
        "args": {},
    }  # fmt: skip


def module(name: str, start_us: float, length_us: float) -> dict[str, Any]:
    return {**annotation(f"nn.Module: {name}", start_us, length_us), "cat": "python_function"}


def merge(folder: Path, replay: list[dict[str, Any]], *captures: Path) -> tuple[list[dict[str, Any]], CapturedGraphs]:
    """Return the rows on the device, in order of time, and the summary."""
    path = write_trace(folder / "replay.json.gz", replay)
    profile, summary = add_captured_operations(open_profile(path), captures)
    rows = [row for row in profile.read().table.to_pylist() if row["category"] in ("kernel", "memcpy", "memset")]
    return sorted(rows, key=lambda row: row["start_ns"]), summary


@pytest.mark.spread(1)
@pytest.mark.needs_data
@pytest.mark.parametrize("name", TRACES)
def test_replay_of_a_real_trace_gets_the_operations_of_the_eager_run(name: str, tmp_path: Path) -> None:
    (eager,) = DATA.glob(f"profiles/*/{name}.json.gz")
    capture, replay = make_pair(eager, tmp_path)
    profile, summary = add_captured_operations(open_profile(replay), [capture])
    expected = {}
    for row in open_profile(eager).read().table.to_pylist():
        expected[row["kernel"], row["start_ns"]] = [row[column] for column in OPERATION_COLUMNS]
    rows = [row for row in profile.read().table.to_pylist() if row["category"] != "api"]
    assert len(rows) == summary.kernels == summary.matched_kernels > 100
    assert sum(row["op"] is not None for row in rows) > 100
    for row in rows:
        assert [row[column] for column in OPERATION_COLUMNS] == expected[row["kernel"], row["start_ns"]]


@pytest.mark.needs_data
def test_efficiency_counts_the_operations_of_a_replay(tmp_path: Path) -> None:
    (eager,) = DATA.glob(f"profiles/*/{TRACES[1]}.json.gz")
    capture, replay = make_pair(eager, tmp_path)
    arguments = ["efficiency", str(replay), "--gpu", "mi300x", "--format", "json"]
    without = json.loads(CliRunner().invoke(main, arguments).stdout)["rows"][0]
    answer = CliRunner().invoke(main, [*arguments, "--capture-trace", str(capture)])
    row = json.loads(answer.stdout)["rows"][0]
    assert row["captured_graphs"]["matched_launches"] == row["captured_graphs"]["launches"] == 1
    assert not any(operator["op"].startswith("aten::") for operator in without["operators"])
    assert any(operator["op"] == "aten::native_layer_norm" for operator in row["operators"])


def test_launches_and_kernels_in_the_same_order_match_exactly(tmp_path: Path) -> None:
    launches = [("aten::mm", "gemm", [8, 4]), ("aten::copy_", "memcpy", [8]), ("aten::add", "add", [8])]
    capture = write_trace(tmp_path / "capture.json.gz", capture_events(launches))
    rows, summary = merge(tmp_path, replay_events(["gemm", "memcpy", "add"]), capture)
    assert [(row["op"], row["params"]) for row in rows] == [
        ("aten::mm", '[[8,4]] ["float"]'), ("aten::copy_", '[[8]] ["float"]'), ("aten::add", '[[8]] ["float"]'),
    ]  # fmt: skip
    assert summary.ways == {"exact": 1}
    assert "3 of 3 kernels in 1 graph launches" in summary.describe()


def test_launches_of_a_warm_up_are_skipped(tmp_path: Path) -> None:
    launches = [("warm_up", "fill", [1]), ("aten::mm", "gemm", [8]), ("other", "sort", [1]), ("aten::add", "add", [8])]
    capture = write_trace(tmp_path / "capture.json.gz", capture_events(launches, marked=False))
    rows, summary = merge(tmp_path, replay_events(["gemm", "add"]), capture)
    assert [row["op"] for row in rows] == ["aten::mm", "aten::add"]
    assert summary.ways == {"subsequence": 1}


def test_launches_outside_of_the_capture_are_not_part_of_the_graph(tmp_path: Path) -> None:
    eager = capture_events([("eager", "gemm", [1])], start_us=10.0, marked=False)
    captured = capture_events([("captured", "gemm", [2])])
    capture = write_trace(tmp_path / "capture.json.gz", eager + captured)
    rows, summary = merge(tmp_path, replay_events(["gemm"]), capture)
    assert [row["op"] for row in rows] == ["captured"]
    assert summary.ways == {"exact": 1}


def test_kernels_of_parallel_branches_match_by_name(tmp_path: Path) -> None:
    launches = [("left", "a", [1]), ("left", "a", [2]), ("right", "b", [3])]
    capture = write_trace(tmp_path / "capture.json.gz", capture_events(launches))
    rows, summary = merge(tmp_path, replay_events(["b", "a", "a"]), capture)
    assert [row["params"] for row in rows] == ['[[3]] ["float"]', '[[1]] ["float"]', '[[2]] ["float"]']
    assert summary.ways == {"by name": 1}


def test_cuda_launches_without_names_match_by_number_and_kind(tmp_path: Path) -> None:
    launches = [("aten::mm", None, [8]), ("aten::zero_", "memset", [8]), ("aten::add", None, [8])]
    capture = write_trace(tmp_path / "capture.json.gz", capture_events(launches))
    rows, summary = merge(tmp_path, replay_events(["gemm", "memset", "add"]), capture)
    assert [row["op"] for row in rows] == ["aten::mm", "aten::zero_", "aten::add"]
    assert summary.ways == {"exact": 1}
    with pytest.raises(BadProfile, match="the first replays 2 kernels and copies, the captures have 3 launches"):
        merge(tmp_path, replay_events(["gemm", "add"]), capture)
    with pytest.raises(BadProfile, match="none of its 1 graph launches"):
        merge(tmp_path, replay_events(["memset", "gemm", "add"]), capture)


def test_the_grid_selects_between_graphs_with_the_same_kernels(tmp_path: Path) -> None:
    events = []
    for size in (1, 2, 4):
        events += capture_events([("aten::add", "add", [size])], start_us=100.0 * size)
    capture = write_trace(tmp_path / "capture.json.gz", events)
    rows, summary = merge(tmp_path, replay_events(["add"], grid=2), capture)
    assert [row["params"] for row in rows] == ['[[2]] ["float"]']
    assert (summary.captures, summary.ambiguous_launches) == (3, 0)


@pytest.mark.parametrize(("requests", "captured_size"), [(1, 1), (3, 4), (4, 4), (5, 8)])
def test_the_batch_is_padded_to_a_captured_size(requests: int, captured_size: int, tmp_path: Path) -> None:
    folder = tmp_path / "captures"
    folder.mkdir()
    for size in (1, 4, 8):  # SGLang writes one file per size
        write_trace(folder / f"bs_{size}_rank0.json.gz", capture_events([("aten::add", None, [size])]))
    step = annotation(f"step[DECODE bs={requests}]", 4990.0, 100.0)
    rows, _ = merge(tmp_path, [step, *replay_events(["add"])], folder)
    assert [row["params"] for row in rows] == [f'[[{captured_size}]] ["float"]']


def test_annotations_of_vllm_give_the_batch_size_of_a_capture(tmp_path: Path) -> None:
    events = []
    for size in (2, 16):
        start_us = 1000.0 * size
        events.append(annotation(f"execute_context_0(0)_generation_{size}({size})", start_us - 10, 100.0))
        events += capture_events([("aten::add", None, [size])], start_us=start_us)
    capture = write_trace(tmp_path / "capture.json.gz", events)
    step = annotation("execute_context_0(0)_generation_12(12)", 4990.0, 100.0)
    rows, _ = merge(tmp_path, [step, *replay_events(["add"])], capture)
    assert [row["params"] for row in rows] == ['[[16]] ["float"]']


def test_a_launch_that_fits_several_shapes_is_left_alone(tmp_path: Path) -> None:
    events = []
    for size in (1, 2):
        events += capture_events([("aten::add", None, [size])], start_us=100.0 * size)
    capture = write_trace(tmp_path / "capture.json.gz", events)
    rows, summary = merge(tmp_path, replay_events(["add"]), capture)
    assert [row["op"] for row in rows] == [None]
    assert (summary.matched_launches, summary.ambiguous_launches) == (0, 1)
    assert "give only the trace of the graph that ran" in summary.describe()


def test_graphs_of_equal_layers_are_used_in_the_order_of_their_capture(tmp_path: Path) -> None:
    captured: list[dict[str, Any]] = []
    replayed: list[dict[str, Any]] = []
    for index in range(3):
        captured.append(module(f"Layer_{index}", 100.0 * (index + 1) - 10, 60.0))
        captured += capture_events([("aten::add", "add", [4])], start_us=100.0 * (index + 1))
    for index in range(6):  # the second iteration begins with the fourth launch
        replayed += replay_events(["add"], start_us=5000.0 + 100 * index, correlation=index + 1)
    rows, summary = merge(tmp_path, replayed, write_trace(tmp_path / "capture.json.gz", captured))
    assert [row["layer"] for row in rows] == ["Layer_0", "Layer_1", "Layer_2"] * 2
    assert summary.matched_launches == 6
    assert len({row["execution"] for row in rows}) == 6


def test_kernels_of_one_operation_are_one_execution(tmp_path: Path) -> None:
    events = [
        runtime_call("hipStreamBeginCapture", 95.0),
        operation("aten::mm", 100.0, [8]),
        runtime_call("hipModuleLaunchKernel", 101.0, correlation=1, kernel="gemm"),
        runtime_call("hipExtModuleLaunchKernel", 103.0, correlation=2, kernel="reduce"),
        runtime_call("hipStreamEndCapture", 120.0),
    ]
    capture = write_trace(tmp_path / "capture.json.gz", events)
    rows, _ = merge(tmp_path, replay_events(["gemm", "reduce"]), capture)
    assert rows[0]["execution"] == rows[1]["execution"] is not None


def test_kernels_outside_of_graphs_keep_their_operations(tmp_path: Path) -> None:
    eager = [
        operation("aten::argmax", 6000.0, [4]),
        runtime_call("hipLaunchKernel", 6001.0, correlation=9),
        kernel("argmax", 6010.0, 9),
    ]
    capture = write_trace(tmp_path / "capture.json.gz", capture_events([("aten::add", "add", [4])]))
    rows, summary = merge(tmp_path, replay_events(["add"]) + eager, capture)
    assert [row["op"] for row in rows] == ["aten::add", "aten::argmax"]
    assert summary.kernels == 1


def test_only_replayed_rows_are_replaced() -> None:
    """Of two batches of three rows, the third and the fourth; executions have numbers from 0, and -1 is absent."""

    class Rows:
        name = description = "rows"

        def batches(self, path, columns):
            yield batch_of({"kernel": ["a", "b", "c"], "op": ["x", None, "y"], "execution": [0, 1, None]}, 3, columns)
            yield batch_of({"kernel": ["d", "e", "f"], "op": [None, "x", "z"], "execution": [2, 3, 4]}, 3, columns)

    columns = ("kernel", "op", "execution")
    texts = {name: ["new"] if name == "op" else [] for name in _TEXT_COLUMNS}
    codes = {name: np.array([0, -1]) if name == "op" else np.array([-1, -1]) for name in _TEXT_COLUMNS}
    replacements = _Replacements(np.array([2, 3]), codes, texts, np.array([70, -1]))
    batches = list(_WithOperations(Rows(), replacements).batches(Path("made"), columns))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["op"] for row in rows] == ["x", None, "new", None, "x", "z"]
    assert [row["execution"] for row in rows] == [0, 1, 70, None, 3, 4]
    assert [row["kernel"] for row in rows] == ["a", "b", "c", "d", "e", "f"]


def test_wrong_files_are_refused_with_a_sentence(tmp_path: Path) -> None:
    capture = write_trace(tmp_path / "capture.json.gz", capture_events([("aten::add", "add", [4])]))
    replay = write_trace(tmp_path / "replay.json.gz", replay_events(["add"]))
    with pytest.raises(BadProfile, match="has no kernels of a graph launch"):
        add_captured_operations(open_profile(capture), [capture])
    with pytest.raises(BadProfile, match="has no kernel launches of a capture"):
        add_captured_operations(open_profile(replay), [replay])
    with pytest.raises(BadValue, match="--capture-trace names operations"):
        paleo.efficiency(replay, gpu="a100-sxm-80gb", method="notebook", capture_traces=capture)
    with pytest.raises(BadValue, match="`--capture-trace` can be used only with `--predict`"):
        paleo.compare(replay, replay, capture_traces=capture)


def test_predictions_are_compared_with_the_operations_of_a_replay(tmp_path: Path) -> None:
    product = {"Input Dims": [[4, 3072], [3072, 768]], "Input type": ["float", "float"]}
    events = capture_events([("aten::mm", "ampere_sgemm_128x64_tn", [4])])
    events[1]["args"] = product
    capture = write_trace(tmp_path / "capture.json.gz", events)
    replayed: list[dict[str, Any]] = []
    for index in range(4):
        start_us = 5000.0 + 100 * index
        replayed.append(annotation(f"ProfilerStep#{index}", start_us - 5, 90.0))
        replayed += replay_events(["ampere_sgemm_128x64_tn"], start_us, correlation=index + 1)
    replay = write_trace(tmp_path / "replay.json.gz", replayed)
    comparison = paleo.compare(
        replay, predict="gpt2", gpu="a100-sxm-80gb", batch_size=4, context=16, phase="decode", capture_traces=capture
    )
    row = next(row for row in comparison.to_dict()["operations"] if row["operation"] == "c_fc, c_proj")  # of gpt2
    assert row["measured_s"] == pytest.approx(2e-6)


NAMES = st.sampled_from(["a", "b", "c"])


@given(st.lists(NAMES, min_size=1, max_size=8), st.data())
def test_a_match_pairs_equal_names_and_uses_no_launch_twice(captured: list[str], data: st.DataObject) -> None:
    replayed = data.draw(st.lists(NAMES, min_size=1, max_size=8) | st.permutations(captured))
    nodes = [[GraphNode("kernel", name) for name in names] for names in (captured, replayed)]
    found = match_nodes(*nodes)
    if sorted(captured) == sorted(replayed):
        assert found is not None
    if found is not None:
        _, launches = found
        assert [captured[launch] for launch in launches] == list(replayed)
        assert len(set(launches)) == len(launches)

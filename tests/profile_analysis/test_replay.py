"""Scripts that run recorded operators again."""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import paleo_lite as pl
from measured import DATA
from paleo_lite.cli import main
from paleo_lite.errors import BadProfile, BadValue, UnknownName


def trace(path: Path, *operators: dict[str, Any]) -> Path:
    """Write a trace in which each operator launches one kernel of the given microseconds."""
    events: list[dict[str, Any]] = []
    for number, operator in enumerate(operators, 1):
        own = {"External id": number, "Ev Idx": number, **operator["args"]}
        start = 100 * number
        events += [
            {"ph": "X", "cat": "cpu_op", "name": operator["name"], "pid": 1, "tid": 1, "ts": start, "dur": 20,
             "args": own},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": start + 5,
             "dur": 2, "args": {"correlation": number, "External id": number}},
            {"ph": "X", "cat": "kernel", "name": f"kernel_{number}", "pid": 0, "tid": 7, "ts": start + 10,
             "dur": operator["us"],
             "args": {"device": 0, "stream": 7, "correlation": number, "External id": number}},
        ]  # fmt: skip
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def arguments(dims: list[Any], types: list[str], numbers: list[str] | None = None) -> dict[str, Any]:
    concrete = {} if numbers is None else {"Concrete Inputs": numbers}
    return {"Input Dims": dims, "Input type": types, **concrete}


MM = {"name": "aten::mm", "us": 30, "args": arguments([[4, 8], [8, 2]], ["float", "c10::BFloat16"])}
LONG_MM = {"name": "aten::mm", "us": 90, "args": arguments([[40, 80], [80, 20]], ["float", "float"])}
SUM = {
    "name": "aten::sum",
    "us": 50,
    "args": arguments([[3, 5], [], [], []], ["float", "ScalarList", "Scalar", ""], ["", "[0, 1]", "True", ""]),
}
WITHOUT_VALUES = {"name": "aten::topk", "us": 500, "args": arguments([[3, 5], []], ["float", "Scalar"])}


def test_the_call_with_most_time_is_run_with_its_shapes(tmp_path: Path) -> None:
    path = trace(tmp_path / "trace.json", MM, LONG_MM, LONG_MM, SUM)
    script = pl.replay_operator(path, "aten::mm")
    assert "numbers(torch.float32, 40, 80)" in script and "numbers(torch.float32, 80, 20)" in script
    assert "recorded 2 times: 90.0 us" in script and "torch.ops.aten.mm" in script
    assert pl.replay_operator(path, "mm") == script
    ast.parse(script)


def test_numbers_are_as_recorded(tmp_path: Path) -> None:
    script = pl.replay_operator(trace(tmp_path / "trace.json", SUM))
    for line in ("numbers(torch.float32, 3, 5),", "    [0, 1],", "    True,", "    None,"):
        assert line in script


def test_without_a_name_it_is_the_longest_that_can_be_run(tmp_path: Path) -> None:
    path = trace(tmp_path / "trace.json", WITHOUT_VALUES, MM)
    assert "torch.ops.aten.mm" in pl.replay_operator(path)
    with pytest.raises(BadValue, match=r"aten::topk: argument of type 'Scalar' has no recorded value"):
        pl.replay_operator(path, "aten::topk")


def test_operators_without_calls_or_shapes_are_not_replayed(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="no operator is called 'aten::bmm'"):
        pl.replay_operator(trace(tmp_path / "a.json", MM), "aten::bmm")
    bare = {**MM, "args": {}}
    with pytest.raises(BadProfile, match="record_shapes=True"):
        pl.replay_operator(trace(tmp_path / "b.json", bare))


@pytest.mark.parametrize(
    "hostile",
    [
        {"name": "aten::mm'''; import os", "us": 1, "args": MM["args"]},
        {"name": "aten::mm", "us": 1, "args": arguments([[2]], ["float\nimport os"])},
        {"name": "aten::sum", "us": 1, "args": arguments([[2], []], ["float", "Scalar"], ["", "__import__('os')"])},
        {"name": "aten::sum", "us": 1, "args": arguments([[2], []], ["float", "ScalarList"], ["", "[0, os.system]"])},
    ],
)
def test_text_of_a_trace_is_no_code(tmp_path: Path, hostile: dict[str, Any]) -> None:
    with pytest.raises((BadValue, BadProfile)):
        pl.replay_operator(trace(tmp_path / "trace.json", hostile))


def test_names_of_files_are_no_code(tmp_path: Path) -> None:
    script = pl.replay_operator(trace(tmp_path / 'a"""+exit(1)+""".json', MM))
    assert ast.get_docstring(ast.parse(script)) is not None and "exit" not in {
        node.id for node in ast.walk(ast.parse(script)) if isinstance(node, ast.Name)
    }


@pytest.mark.slow
def test_the_printed_script_runs(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = trace(tmp_path / "trace.json", LONG_MM)
    said = CliRunner().invoke(main, ["kernels", str(path), "--replay", "first"])
    assert said.exit_code == 0, said.output
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(said.stdout, "replay.py", "exec"), {"__name__": "__main__"})
    assert printed.getvalue().endswith("recorded 90.0 us\n")


@pytest.mark.needs_data
def test_operators_of_a_real_trace() -> None:
    path = DATA / "profiles/hta/timeline_analysis__sampled_rank-0.json.gz"
    assert "torch.ops.aten.mm" in pl.replay_operator(path, "aten::mm")

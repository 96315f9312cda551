"""Traces read by several processes: the same rows, and the same errors, as by one process.

Tests: profiles/chrome.py.
"""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest

from paleo_lite import executor
from paleo_lite.errors import BadProfile
from paleo_lite.profiles import chrome, json_stream
from paleo_lite.profiles.chrome import ChromeTrace


@pytest.fixture(scope="module")
def workers():
    """Two processes that have imported the reader, for all tests: starting them takes seconds."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("forkserver")) as pool:
        yield pool


@pytest.fixture
def shared_workers(workers, monkeypatch):
    monkeypatch.setattr(executor, "_open_pool", lambda jobs, work: nullcontext(workers))


SEAM_IN_A_STRING = 'aten::"}, {"ph": "X"}, {\\'
"""A name with braces, escaped quotes and a backslash, which looks like the end of an event and the start of another."""


def events(count: int) -> list[dict]:
    """Return operations in nested modules and steps, each with its launch and kernel, on changing threads."""
    rows: list[dict] = []
    for index in range(count):
        start, thread = 100 * index, index % 3
        common = {"ph": "X", "pid": 7, "tid": thread}
        name = SEAM_IN_A_STRING if index % 4 == 0 else f"aten::conv{index % 5}"
        dims = {"External id": index, "Input Dims": [[index % 6, 3], []], "nested": {"a": [{}, {"b": "}]"}]}}
        rows += [
            {**common, "cat": "user_annotation", "name": f"ProfilerStep#{index}", "ts": start, "dur": 90},
            {**common, "cat": "python_function", "name": f"nn.Module: Block_{index % 2}", "ts": start, "dur": 80},
            {**common, "cat": "cpu_op", "name": name, "ts": start + 1, "dur": 70.125, "args": dims},
            {**common, "cat": "cuda_runtime", "name": "launch", "ts": start + 2, "dur": 1,
             "args": {"correlation": index}},
            {"ph": "f", "name": "arrow", "ts": start},
            {"ph": "X", "cat": "kernel", "name": f"k{index % 7}", "pid": 0, "tid": 7, "ts": start + 5, "dur": 3.5,
             "args": {"External id": index, "correlation": index, "grid": [index % 3, 1, 1], "bytes": 64}},
        ]  # fmt: skip
    return rows


def read(path: Path, monkeypatch: pytest.MonkeyPatch, processes: int) -> list[pa.RecordBatch] | str:
    """Return the batches, or the message of the error."""
    monkeypatch.setattr(chrome, "_processes_for", lambda path: processes)
    try:
        return list(ChromeTrace().batches(path, None))
    except BadProfile as error:
        return str(error)


@pytest.fixture
def write(tmp_path):
    def write(text: bytes, zipped: bool) -> Path:
        path = tmp_path / ("trace.json.gz" if zipped else "trace.json")
        path.write_bytes(gzip.compress(text) if zipped else text)
        return path

    return write


@pytest.fixture
def merged(monkeypatch):
    """Return the batches that came from other processes."""
    batches = []
    merge = chrome._Rows.merge

    def recorded(self, other, batch):
        batches.append(batch)
        return merge(self, other, batch)

    monkeypatch.setattr(chrome._Rows, "merge", recorded)
    return batches


@pytest.mark.spread(2)
@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(("piece", "least"), [(300, 0), (700, 5), (4000, 5)])
def test_the_rows_are_those_of_one_process(write, shared_workers, monkeypatch, merged, piece, least, zipped):
    """With pieces of 300 bytes the first cut is within a string, with 700 a later one."""
    monkeypatch.setattr(json_stream, "PIECE", piece)
    monkeypatch.setattr(json_stream, "SPAN", piece)
    after = {"baseTimeNanoseconds": 10**15, "other": [{"ph": "X", "cat": "kernel"}, {"ph": "X"}] * 200}
    text = json.dumps({"schemaVersion": 1, "traceEvents": events(40), **after}).encode()
    path = write(text, zipped)
    one, two = read(path, monkeypatch, 1), read(path, monkeypatch, 2)
    assert not isinstance(one, str)
    assert len(merged) >= least
    assert [batch.to_pylist() for batch in two] == [batch.to_pylist() for batch in one]
    table = pa.Table.from_batches(two).to_pylist()
    assert len(table) == 5 * 40
    assert [row["op"] for row in table if row["category"] == "kernel"] == [
        event["name"] for event in events(40) if event.get("cat") == "cpu_op"
    ]


@pytest.mark.parametrize(("window", "least"), [(20, 0), (1000, 5)])
def test_only_the_ends_of_spans_of_a_plain_trace_are_searched(
    write, shared_workers, monkeypatch, merged, window, least
):
    """Windows of 20 bytes have no cut: one process reads the whole trace."""
    monkeypatch.setattr(json_stream, "PIECE", 4000)
    monkeypatch.setattr(json_stream, "SPAN", 4000)
    monkeypatch.setattr(json_stream, "_WINDOW", window)
    path = write(json.dumps({"traceEvents": events(40), "baseTimeNanoseconds": 10**15}).encode(), False)
    one, two = read(path, monkeypatch, 1), read(path, monkeypatch, 2)
    assert not isinstance(one, str)
    assert len(merged) >= least
    assert [batch.to_pylist() for batch in two] == [batch.to_pylist() for batch in one]


BROKEN = {
    "an event that is not JSON": (b'"name": "k3"', b'"name": k3'),
    "an element that is not an event": (b'{"ph": "f", ', b'17, {"ph": "f", '),
    "a field of another type": (b'"dur": 3.5', b'"dur": "long"'),
    "a negative duration": (b'"dur": 3.5', b'"dur": -3.5'),
    "a negative size": (b'"bytes": 64', b'"bytes": -64'),
    "a comma too many": (b', {"ph": "f"', b',, {"ph": "f"'),
    "a text that is not UTF-8": (b'"name": "k3"', b'"name": "k\xff"'),
    "a bracket too many": (b'"name": "arrow"', b'"name": "arrow"}'),
    "an end within an event": (b'"name": "arrow"', b""),
}


@pytest.mark.spread(6)
@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("broken", BROKEN)
def test_the_error_is_that_of_one_process(write, shared_workers, monkeypatch, broken, zipped):
    monkeypatch.setattr(json_stream, "PIECE", 500)
    monkeypatch.setattr(json_stream, "SPAN", 500)
    text = json.dumps({"traceEvents": events(30)}).encode()
    old, new = BROKEN[broken]
    at = text.index(old, 2 * len(text) // 3)
    text = text[:at] + new + text[at + len(old) :] if new else text[:at]
    path = write(text, zipped)
    one, two = read(path, monkeypatch, 1), read(path, monkeypatch, 2)
    assert two == one
    assert isinstance(one, str)
    assert f"{path}: at byte " in one


def test_text_after_the_document_is_the_same_error(write, monkeypatch):
    monkeypatch.setattr(json_stream, "PIECE", 500)
    monkeypatch.setattr(json_stream, "SPAN", 500)
    path = write(json.dumps({"traceEvents": events(30)}).encode() + b' {"more": [{}, {}, {}]}', False)
    message = read(path, monkeypatch, 1)
    assert isinstance(message, str)
    assert read(path, monkeypatch, 2) == message


def test_a_cut_gzip_is_the_same_error_after_its_last_whole_event(write, monkeypatch):
    monkeypatch.setattr(json_stream, "PIECE", 500)
    monkeypatch.setattr(json_stream, "SPAN", 500)
    path = write(json.dumps({"traceEvents": events(200)}).encode(), True)
    path.write_bytes(path.read_bytes()[:-40])
    message = read(path, monkeypatch, 1)
    assert isinstance(message, str)
    assert "cannot be read further" in message and "cut off or damaged: copy it again" in message
    assert read(path, monkeypatch, 2) == message


def test_the_rest_is_read_by_this_process_if_a_worker_dies(write, monkeypatch):
    monkeypatch.setattr(json_stream, "PIECE", 500)
    monkeypatch.setattr(json_stream, "SPAN", 500)
    path = write(json.dumps({"traceEvents": events(40)}).encode(), False)
    rows = read(path, monkeypatch, 1)
    monkeypatch.setattr(chrome, "_convert", _die)
    assert read(path, monkeypatch, 2) == rows


def _die(*_args, **_kwargs) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.skipif(int(pa.__version__.partition(".")[0]) < 26, reason="older pyarrow imports pandas by itself")
def test_pandas_is_not_imported(write):
    """pyarrow imports pandas to convert lists and arrays, which takes a third of a second in each process."""
    program = (
        "import sys; from pathlib import Path; from paleo_lite.profiles.chrome import ChromeTrace; "
        "rows = sum(batch.num_rows for batch in ChromeTrace().batches(Path(sys.argv[1]), None)); "
        "print(rows > 0, 'pandas' in sys.modules)"
    )
    trace = write(json.dumps({"traceEvents": events(20)}).encode(), zipped=False)
    printed = subprocess.run([sys.executable, "-c", program, str(trace)], check=True, capture_output=True, text=True)
    assert printed.stdout.split() == ["True", "False"]

"""Traces of JAX and TensorFlow, built from XProf's documentation."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from paleo_lite.errors import BadProfile
from paleo_lite.profiles import xla
from paleo_lite.profiles.detect import open_profile


@pytest.fixture
def rows(tmp_path, samples):
    """The rows of the sample, or of a changed one."""

    def read(old: str = "", new: str = ""):
        path = tmp_path / "host.trace.json"
        path.write_text(samples["xla.XlaTrace"].decode().replace(old, new))
        return open_profile(path).read().table.to_pylist()

    return read


def test_operations_on_streams_are_counted_once(rows):
    first, second, copy = rows()
    assert {name: first[name] for name in ("kernel", "category", "op", "layer", "start_ns", "duration_ns")} == {
        "kernel": "ampere_sgemm_128x64_nn", "category": "kernel", "op": "dot.3",
        "layer": "jit(f)/jit(main)/dot_general", "start_ns": 10_500, "duration_ns": 4250.0,
    }  # fmt: skip
    assert [first[name] for name in ("grid", "block", "stream", "device")] == ["8,4,1", "128,1,1", 13, 0]
    assert (second["op"], second["layer"]) == ("fusion.1", None)
    assert [copy[name] for name in ("kernel", "category", "bytes", "stream")] == ["MemcpyD2H", "memcpy", 4096, 14]


def test_a_device_without_streams_is_its_operations(rows):
    """The activity of a TPU is its line of operations."""
    (row,) = rows("Stream #", "Line ")
    assert (row["kernel"], row["stream"]) == ("dot.3", 0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"ts": 10.5', '"ts": "soon"', r"Expected `float`, got `str` - at `\$\[7\]\.ts`"),
        ('"ts": 15.0', '"ts": -15.0', "begins at -15 and lasts 2 us"),
        ("{}\n]}", "{}\n", "ends at byte|cut|JSON"),
    ],
)
def test_the_error_of_a_damaged_trace_names_the_damage(rows, old, new, message):
    with pytest.raises(BadProfile, match=message):
        rows(old, new)


def test_many_threads_are_matched_once_each(tmp_path, monkeypatch):
    """Each event once searched the names of all threads: 20,000 threads took minutes."""
    matched = []
    pattern = SimpleNamespace(match=matched.append)

    def read(threads):
        events = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:TPU:0"}}]
        for thread in range(threads):
            events.append({"ph": "M", "pid": 1, "tid": thread, "name": "thread_name", "args": {"name": "XLA Ops"}})
        for thread in range(threads):
            events.append({"ph": "X", "pid": 1, "tid": thread, "name": "fusion", "ts": thread, "dur": 1})
        path = tmp_path / "many.json"
        path.write_text(json.dumps({"traceEvents": events}))
        matched.clear()
        assert sum(batch.num_rows for batch in xla.XlaTrace().batches(path, None)) == threads
        return len(matched)

    monkeypatch.setattr(xla, "_STREAM", pattern)
    assert read(200) <= 2 * read(100)

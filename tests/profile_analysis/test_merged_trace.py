"""One trace of several ranks: places of the events, and counters by hand.

Tests: profile_analysis/merged_trace.py.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import paleo_lite as pl
from paleo_lite.cli import main
from paleo_lite.errors import BadValue

DATA = Path(os.environ.get("PALEO_LITE_DATA", ""))


def trace(path: Path, rank: int, base_us: int = 0) -> Path:
    """Write a trace of two kernels and a copy on one stream, launched one after another."""
    events: list[dict[str, Any]] = []
    for number, (launched, start, duration) in enumerate([(0, 10, 20), (5, 30, 10), (8, 40, 5)]):
        name = "Memcpy HtoD (Pageable -> Device)" if number == 2 else f"kernel_{number}"
        call = "cudaMemcpyAsync" if number == 2 else "cudaLaunchKernel"
        events.append({"ph": "X", "cat": "cuda_runtime", "name": call, "pid": 1, "tid": 1, "ts": base_us + launched,
                       "dur": 2, "args": {"correlation": number + 1, "External id": number + 1}})  # fmt: skip
        args = {"device": 0, "stream": 7, "correlation": number + 1, "External id": number + 1}
        if number == 2:
            args["bytes"] = 50_000
        category = "gpu_memcpy" if number == 2 else "kernel"
        events.append({"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 7, "ts": base_us + start,
                       "dur": duration, "args": args})  # fmt: skip
    path.write_text(json.dumps({"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    events: list[dict[str, Any]] = json.loads(data)["traceEvents"]
    return events


@pytest.mark.parametrize("name", ["job.json", "job.json.gz"])
def test_ranks_are_processes_on_one_axis_of_time(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    trace(folder / "b.json", rank=0)
    trace(folder / "a.json", rank=1, base_us=100)
    written = pl.merge_traces(folder, tmp_path / name)
    assert [(rank.rank, rank.file, rank.events) for rank in written.ranks] == [(0, "b.json", 3), (1, "a.json", 3)]
    events = read(tmp_path / name)
    kernels = [event for event in events if event["ph"] == "X"]
    assert [(event["pid"], event["ts"], event["dur"]) for event in kernels] == [
        (0, 10, 20), (0, 30, 10), (0, 40, 5), (1, 110, 20), (1, 130, 10), (1, 140, 5)
    ]  # fmt: skip
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {0: "rank 0: b.json", 1: "rank 1: a.json"}


def test_queue_and_rate_of_copies(tmp_path: Path) -> None:
    """Launched at 0, 5 and 8 us and started at 10, 30 and 40; the copy moves 50 kB in 5 us."""
    pl.merge_traces(trace(tmp_path / "a.json", rank=0), tmp_path / "job.json")
    events = read(tmp_path / "job.json")
    queue = [(event["ts"], event["args"]["value"]) for event in events if event["name"] == "queue of stream 7"]
    assert queue == [(0, 1), (5, 2), (8, 3), (10, 2), (30, 1), (40, 0)]
    copies = "copies on stream 7 (GB/s)"
    rates = [(event["ts"], event["args"]["value"]) for event in events if event["name"] == copies]
    assert rates == [(40, 10.0), (45, 0.0)]


def test_profiles_without_different_ranks_are_numbered(tmp_path: Path) -> None:
    paths = [trace(tmp_path / name, rank=3) for name in ("x.json", "y.json")]
    assert [rank.rank for rank in pl.merge_traces(paths, tmp_path / "job.json").ranks] == [0, 1]


@pytest.mark.parametrize(("name", "sentence"), [("job.txt", "must end in .json"), ("a.json", "exists")])
def test_a_file_that_cannot_be_written(tmp_path: Path, name: str, sentence: str) -> None:
    path = trace(tmp_path / "a.json", rank=0)
    before = path.read_bytes()
    with pytest.raises(BadValue, match=sentence):
        pl.merge_traces(path, tmp_path / name)
    assert path.read_bytes() == before


def test_the_command_writes_it_beside_its_table(tmp_path: Path) -> None:
    path = trace(tmp_path / "a.json", rank=0)
    said = CliRunner().invoke(main, ["kernels", str(path), "--gpu", "t4", "--trace", str(tmp_path / "job.json")])
    assert said.exit_code == 0, said.output
    assert "the activity of 1 rank" in said.stderr and "kernel_0" in said.stdout
    assert len(read(tmp_path / "job.json")) > 3


@pytest.mark.needs_data
def test_a_real_trace_keeps_all_its_activity(tmp_path: Path) -> None:
    """The trace's own events on the device: those of its GPU categories, counted in the file."""
    path = DATA / "profiles/hta/timeline_analysis__sampled_rank-0.json.gz"
    categories = {"kernel", "gpu_memcpy", "gpu_memset"}
    own = [event for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
           if str(event.get("cat", "")).lower() in categories and event.get("ph") == "X"]  # fmt: skip
    (rank,) = pl.merge_traces(path, tmp_path / "job.json.gz").ranks
    assert rank.events == len(own)
    lengths = [event["args"]["value"] for event in read(tmp_path / "job.json.gz") if event["name"].startswith("queue")]
    assert min(lengths) >= 0 and lengths[-1] == 0

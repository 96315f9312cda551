"""Time and memory to read a large PyTorch trace, compared with json.load and HolisticTraceAnalysis.

A real trace is repeated in a temporary folder with later timestamps and unique ids, as in a longer run. Each reader
runs in its own process. Its memory is the peak of this process plus, for each core, that of the largest child process:
an upper bound, because pages shared with the parent are counted again. HolisticTraceAnalysis is
skipped if it is not installed.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .turns import Turns

TRACE = "profiles/torch_chrome_trace_resnet50/resnet50_num_workers_0__worker0.1623143089861.pt.trace.json.gz"
"""In the folder of published measurements: pytorch/kineto."""
TIMES = 10
"""The trace so many times over; json.load holds 5 bytes of memory for one of the file."""

READERS = {
    "paleo-lite": """
from paleo_lite.profiles.chrome import ChromeTrace
from pathlib import Path
rows = sum(batch.num_rows for batch in ChromeTrace().batches(Path(path), None))
""",
    "json.load": """
import json
rows = len(json.load(open(path, "rb"))["traceEvents"])
""",
    "HTA, parsing alone": """
from hta.common.trace_parser import parse_trace_dataframe
from hta.configs.parser_config import ParserConfig
rows = len(parse_trace_dataframe(path, ParserConfig.get_default_cfg())[1])
""",
    "HTA, TraceAnalysis": """
from hta.trace_analysis import TraceAnalysis
rows = len(TraceAnalysis(trace_files={0: path}, trace_dir="").t.get_trace(0))
""",
}
MEASURE = """
import os, resource, sys, time
path, start = sys.argv[1], time.perf_counter()
{body}
taken_s = time.perf_counter() - start
own, of_child = (resource.getrusage(of).ru_maxrss for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(taken_s, (own + os.cpu_count() * of_child) * 1024, rows)
"""
IDS = ("External id", "external id", "correlation")


def repeat(trace: Path, times: int, target: Path) -> int:
    """Write the repeated trace, and return its number of events."""
    is_gzip = trace.read_bytes()[:2] == b"\x1f\x8b"
    with gzip.open(trace) if is_gzip else trace.open("rb") as file:
        document: dict[str, Any] = json.load(file)
    events = document.pop("traceEvents")
    timed = [event for event in events if "ts" in event]
    length = 1 + max(event["ts"] + event.get("dur", 0) for event in timed) - min(event["ts"] for event in timed)
    ids = 1 + max(event["args"][key] for event in events for key in IDS if key in event.get("args", {}))
    with target.open("w") as out:
        out.write(json.dumps(document)[:-1] + ', "traceEvents": [')
        for time in range(times):
            for event in events if time else ():
                if "ts" in event:
                    event["ts"] += length
                if "id" in event:
                    event["id"] += ids
                for key in IDS:
                    if key in event.get("args", {}):
                        event["args"][key] += ids
            out.write(", " * (time > 0) + json.dumps(events)[1:-1])
        out.write("]}")
    return times * len(events)


def measure(repeats: int) -> list[Turns]:
    """Return a table, or none if the published trace is missing."""
    trace = Path(os.environ.get("PALEO_LITE_DATA", "")) / TRACE
    if not trace.is_file():
        print(f"no trace to read: PALEO_LITE_DATA names no folder with {TRACE}", file=sys.stderr)
        return []
    has_hta = importlib.util.find_spec("hta") is not None
    readers = {name: body for name, body in READERS.items() if has_hta or not name.startswith("HTA")}
    seconds: dict[str, list[float]] = {name: [] for name in readers}
    memory: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "trace.json"
        events = repeat(trace, TIMES, target)
        size = target.stat().st_size
        for _ in range(repeats):
            for name, body in readers.items():
                command = [sys.executable, "-c", MEASURE.format(body=body), str(target)]
                printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                taken_s, peak_bytes, _rows = printed.split()[-3:]
                seconds[name].append(float(taken_s))
                memory[name] = max(memory.get(name, 0.0), float(peak_bytes))
    what = f"reading a PyTorch trace of {size / 1e9:.2f} GB, {events / 1e6:.2f} M events"
    remarks = {name: f"{peak_bytes / 1e6:.0f} MB of memory" for name, peak_bytes in memory.items()}
    return [Turns(what, seconds, remarks=remarks, wanted={"json.load": 4.0, "HTA, TraceAnalysis": 8.0})]

"""How fast a large Chrome trace is read, and in how much memory, beside json.load and HolisticTraceAnalysis.

Run it with a real trace: ``python benchmarks/chrome_trace.py path/to/trace.json.gz --repeat 40``. The trace is
repeated in a temporary folder, each time with later timestamps and with ids of its own, as a longer run would have
them. Each reader works in a process of its own; HolisticTraceAnalysis is left out where it is not installed. Exits
with 1 if ours is not faster than json.load, not 8 times faster than HolisticTraceAnalysis, or above 500 MB.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

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
WANTED = {"json.load": 1.0, "HTA, TraceAnalysis": 8.0}
MEASURE = """
import resource, sys, time
path, start = sys.argv[1], time.perf_counter()
{body}
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, rows)
"""
IDS = ("External id", "external id", "correlation")


def repeat(trace: Path, times: int, target: Path) -> int:
    """Write the trace so many times over; returns the number of events."""
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--repeat", type=int, default=40)
    chosen = parser.parse_args()
    readers = dict(READERS)
    if importlib.util.find_spec("hta") is None:
        readers = {name: body for name, body in readers.items() if not name.startswith("HTA")}
    seconds: dict[str, float] = {}
    memory: dict[str, float] = {}
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "trace.json"
        events = repeat(chosen.trace, chosen.repeat, target)
        print(f"{target.stat().st_size / 1e9:.2f} GB, {events / 1e6:.2f} M events", flush=True)
        print(f"{'reader':24}{'seconds':>10}{'peak MB':>10}{'rows':>12}{'ours is faster by':>20}")
        for name, body in readers.items():
            command = [sys.executable, "-c", MEASURE.format(body=body), str(target)]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode:
                print(f"{name:24}failed: {done.stderr.strip().splitlines()[-1]}", flush=True)
                failed.append(name)
                continue
            figures = done.stdout.strip().split("\n")[-1].split()
            seconds[name], memory[name] = float(figures[0]), float(figures[1])
            ratio = seconds[name] / seconds["paleo-lite"]
            print(f"{name:24}{seconds[name]:10.1f}{memory[name] / 1e6:10.0f}{figures[2]:>12}{ratio:19.1f}x", flush=True)
    missed = [name for name, ratio in WANTED.items() if seconds.get(name, 1e9) < ratio * seconds["paleo-lite"]] + failed
    missed += ["500 MB"] if memory["paleo-lite"] > 500e6 else []
    print(f"missed: {', '.join(missed)}" if missed else "met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

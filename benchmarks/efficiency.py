"""How fast `paleo-lite efficiency` reads a folder of pyprof files, beside the notebook's own pandas method.

    python benchmarks/efficiency.py [FOLDER] [--repeats 3] [--jobs N]

FOLDER defaults to ``surfboard/pyprof_kernels`` in the folder that ``PALEO_LITE_DATA`` names. Each contestant is a
process of its own, from its start to its last line, run in turn; the best of the repeats counts. Memory is the peak of
each process, added up over those that a contestant starts (forked pages that they share count more than once).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

NOTEBOOK = """
import sys
from pathlib import Path
import pandas as pd

def compute_efficiency(df_csv):
    df_forward = df_csv[["Kernel", "Sil(ns)", "FLOPs"]]
    d = df_forward.groupby("Kernel").sum()
    duration_kernels = d.sort_values(by="Sil(ns)", ascending=False)
    no_compute = duration_kernels[duration_kernels["FLOPs"] == 0].sum()["Sil(ns)"]
    compute = duration_kernels[duration_kernels["FLOPs"] != 0].sum()["Sil(ns)"]
    return compute / (no_compute + compute) * 100

def flops_per_sec(df_csv):
    total_duration = df_csv["Sil(ns)"].sum() * 1e-9
    return df_csv["FLOPs"].sum() / total_duration * 1e-12

def bandwidth(df_csv):
    df_csv["bandwidth"] = 1e9 * df_csv["Bytes"] / df_csv["Sil(ns)"]
    total_duration = df_csv["Sil(ns)"].sum()
    df_csv["weight"] = df_csv["Sil(ns)"] / total_duration
    df_csv["bandwidth_weighted"] = df_csv["bandwidth"] * df_csv["weight"]
    return df_csv["bandwidth_weighted"].sum() * 1e-9

rows = []
for file in sorted(Path(sys.argv[1]).iterdir()):
    parts = file.name.split("_")
    df = pd.read_parquet(file)
    rows.append([int(parts[10]), int(parts[3]), compute_efficiency(df), flops_per_sec(df), bandwidth(df)])
columns = ["batch_size", "nodes", "compute_efficiency (%)", "TFLOPs per sec", "bandwidth(GB/s)"]
frame = pd.DataFrame(rows, columns=columns)
frame["bandwidth_efficiency (%)"] = frame["bandwidth(GB/s)"] / 288 * 100
frame["FLOPS_efficiency (%)"] = frame["TFLOPs per sec"] / 4.29 * 100
print(frame.groupby(["batch_size", "nodes"]).mean())
"""
"""The notebook's cells as they are, for pandas of today."""


def tree_peak_bytes(root: int, peaks: dict[int, int]) -> None:
    """Note the peak memory of a process and its descendants, from /proc."""
    waiting = [root]
    while waiting:
        process = waiting.pop()
        folder = Path(f"/proc/{process}")
        try:
            status = (folder / "status").read_text()
            for task in (folder / "task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except (OSError, ValueError):
            continue  # it has ended
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                peaks[process] = max(peaks.get(process, 0), int(line.split()[1]) * 1024)


def run(command: list[str]) -> tuple[float, int]:
    """Wall seconds and peak bytes of a command with all that it starts."""
    peaks: dict[int, int] = {}
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            tree_peak_bytes(process.pid, peaks)

    watcher = threading.Thread(target=watch)
    watcher.start()
    output, errors = process.communicate()
    seconds = time.perf_counter() - begin
    done.set()
    watcher.join()
    if process.returncode:
        sys.exit(f"{' '.join(command[:4])} ... failed:\n{errors or output}")
    return seconds, sum(peaks.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    data = Path(os.environ.get("PALEO_LITE_DATA", ""))
    parser.add_argument("folder", nargs="?", default=str(data / "surfboard" / "pyprof_kernels"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--jobs", type=int)
    chosen = parser.parse_args()
    if not Path(chosen.folder).is_dir():
        sys.exit(f"{chosen.folder}: no such folder; name a folder of profiles, or set PALEO_LITE_DATA")
    ours = [sys.executable, "-m", "paleo_lite", "efficiency", chosen.folder, "--gpu", "k40m"]
    ours += ["--group-by", "batch_size,nodes"]
    if chosen.jobs:
        ours += ["--jobs", str(chosen.jobs)]
    commands = {
        "notebook's pandas": [sys.executable, "-c", NOTEBOOK, chosen.folder],
        "efficiency --method notebook": [*ours, "--method", "notebook"],
        "efficiency --method steady": [*ours, "--method", "steady"],
    }
    best: dict[str, tuple[float, int]] = {}
    for _ in range(chosen.repeats):
        for name, command in commands.items():
            seconds, peak = run(command)
            before = best.get(name, (float("inf"), 0))
            best[name] = min(seconds, before[0]), max(peak, before[1])
    base = best["notebook's pandas"][0]
    files = sum(1 for _ in Path(chosen.folder).iterdir())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"{files} files, {cores} cores, best of {chosen.repeats}")
    print(f"{'':30s}{'wall':>9s}{'ratio':>8s}{'peak memory':>14s}")
    for name, (seconds, peak) in best.items():
        print(f"{name:30s}{seconds:8.2f}s{base / seconds:7.1f}x{peak / 2**20:10.0f} MiB")


if __name__ == "__main__":
    main()

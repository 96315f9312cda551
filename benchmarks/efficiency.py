"""Time of `paleo-lite efficiency` on a folder of pyprof files, compared with the pandas code of the published notebook.

Each contestant is timed as a separate process, from start to exit.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from .turns import Turns, run, take_turns

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


def measure(repeats: int) -> list[Turns]:
    """Return a table, or none if the published profiles are missing."""
    folder = Path(os.environ.get("PALEO_LITE_DATA", "")) / "surfboard" / "pyprof_kernels"
    if not folder.is_dir():
        print("no profiles to read: PALEO_LITE_DATA names no folder with surfboard/pyprof_kernels", file=sys.stderr)
        return []
    ours = [sys.executable, "-m", "paleo_lite", "efficiency", str(folder), "--gpu", "k40m"]
    ours += ["--group-by", "batch_size,nodes"]
    contestants = {
        "paleo-lite": run(ours),
        "paleo-lite --method notebook": run([*ours, "--method", "notebook"]),
        "the notebook's pandas": run([sys.executable, "-c", NOTEBOOK, str(folder)]),
    }
    files = sum(1 for _ in folder.iterdir())
    return [Turns(f"efficiency of {files} pyprof files", take_turns(contestants, max(repeats // 2, 1)))]

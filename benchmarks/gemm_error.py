"""Error of predicted matrix products on each device, compared with DeepBench and aiconfigurator.

    python benchmarks/gemm_error.py DATA

DATA is a folder of published measurements (docs/accuracy-tables.md); the default is ``PALEO_LITE_DATA``.

The calibrations are fitted to whole networks and do not use these measurements. The Markdown table for docs/gemm.md
contains the median of predicted over measured time, the median absolute error, and the fraction within a factor of two.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from paleo_lite.calibration.choose import choose_model
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing import TimeModel, find_model
from paleo_lite.timing.gemm import time_gemms

DEVICES = {
    "GTX TITAN X (Maxwell)": "titanx-maxwell", "M40": "m40", "TITAN X (Pascal)": "titanx-pascal",
    "TITAN Xp": "titan-xp", "GTX 1080 Ti": "gtx1080ti", "V100": "v100-sxm2", "T4": "t4", "Vega FE": "vega-fe",
    "NVIDIA A100-SXM4-80GB": "a100-sxm-80gb", "NVIDIA H100 80GB HBM3": "h100-sxm", "NVIDIA H200": "h200-sxm",
    "NVIDIA L40S": "l40s", "NVIDIA B200": "b200",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000",
}  # fmt: skip


def measured(folder: Path) -> pd.DataFrame:
    """Read measured products with one time each: device, precision, M, N, K, time_s."""
    frames = [
        pd.read_csv(folder / "deepbench_gemm.csv.gz").query("mode == 'train'"),
        pd.read_csv(folder / "gemm_modern.csv").query("op == 'gemm' and precision == 'bfloat16'"),
    ]
    rows = pd.concat(frames).query("unit == 'ms'")
    fp16 = rows["precision"].str.startswith("fp16")
    precision = rows["precision"].where(~fp16, "fp16").replace("bfloat16", "bf16")
    rows = rows.assign(device=rows["gpu"].map(DEVICES), precision=precision, time_s=rows["value"] / 1e3)
    rows = rows.dropna(subset=["device", "time_s"])
    return rows.groupby(["source", "device", "precision", "M", "N", "K"], as_index=False)["time_s"].median()


def ratios(rows: pd.DataFrame, model: TimeModel) -> np.ndarray:
    """Return predicted over measured time."""
    device = find_device(rows["device"].iloc[0])
    predicted = [
        time_gemms(int(m), int(n), int(k), precision, model, machine=Machine(device)).variants[0].time_s
        for m, n, k, precision in zip(rows["M"], rows["N"], rows["K"], rows["precision"])
    ]
    return np.array(predicted) / rows["time_s"].to_numpy()


def summary(ratio: np.ndarray) -> str:
    """Return the median ratio, the median absolute error, and the fraction within a factor of two."""
    error = np.median(np.abs(ratio - 1))
    return f"{np.median(ratio):.2f} | {error:.0%} | {np.mean(np.abs(np.log2(ratio)) <= 1):.0%}"


def main(folder: Path) -> None:
    """Print the table."""
    print("| device | precision | source | products | model | ratio | error | within 2x", end=" | ")
    print("roofline: ratio | error | within 2x |")
    print("| :-- | :-- | :-- | --: | :-- | --: | --: | --: | --: | --: | --: |")
    for (source, name, precision), rows in measured(folder).groupby(["source", "device", "precision"]):
        model = choose_model(find_device(name), precision)
        label = getattr(model, "label", model.name)
        own, plain = ratios(rows, model), ratios(rows, find_model("roofline"))
        print(f"| {name} | {precision} | {source} | {len(rows)} | {label} | {summary(own)} | {summary(plain)} |")


if __name__ == "__main__":
    data = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("PALEO_LITE_DATA")
    if not data:
        sys.exit("usage: python benchmarks/gemm_error.py DATA, or set PALEO_LITE_DATA")
    main(Path(data) / "measured")

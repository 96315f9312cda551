"""Error of predicted matrix products on each device, compared with DeepBench and aiconfigurator.

    python benchmarks/gemm_error.py DATA

DATA is a folder of published measurements (docs/accuracy-tables.md); the default is ``PALEO_LITE_DATA``.

Calibrations of devices are fitted to whole networks and do not use these measurements; the kernels of engines are
fitted to tables of the same source (`python -m validation accuracy --split kernels` holds devices and engines out).
The Markdown table for docs/gemm.md contains the median of predicted over measured time, the median absolute error, the
fraction within a factor of two, and for the forecast the fraction inside the 90% interval and its median width. Another
table has the products that `gemm` times by kernels as layers of PyTorch, which `predict` and `train` are made of.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

import paleo_lite as pl

DEVICES = {
    "GTX TITAN X (Maxwell)": "titanx-maxwell", "M40": "m40", "TITAN X (Pascal)": "titanx-pascal",
    "TITAN Xp": "titan-xp", "GTX 1080 Ti": "gtx1080ti", "V100": "v100-sxm2", "T4": "t4", "Vega FE": "vega-fe",
    "NVIDIA A100-SXM4-80GB": "a100-sxm-80gb", "NVIDIA H100 80GB HBM3": "h100-sxm", "NVIDIA H200": "h200-sxm",
    "NVIDIA L40S": "l40s", "NVIDIA B200": "b200",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000",
}  # fmt: skip


LARGE_S = 2e-4
"""Seconds at the peak from which a product counts as large."""


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


class Forecast(NamedTuple):
    """Predicted over measured times, and the ends of the intervals over measured times; NaN without intervals."""

    ratio: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, rows: pd.DataFrame, **options: str) -> Forecast:
        """Predict the products of a device in a precision."""
        gpu, precision = rows["device"].iloc[0], rows["precision"].iloc[0]
        times_s = []
        for m, n, k in zip(rows["M"], rows["N"], rows["K"]):
            (product,) = pl.gemm(int(m), int(n), int(k), gpu=gpu, precision=precision, **options).variants
            times_s.append((product.time_s, *(product.interval or (np.nan, np.nan))))
        return cls(*(np.array(times_s).T / rows["time_s"].to_numpy()))

    def describe(self) -> str:
        """Return the median ratio, the median absolute error, and the fraction within a factor of two."""
        error = np.median(np.abs(self.ratio - 1))
        return f"{np.median(self.ratio):.2f} | {error:.0%} | {np.mean(np.abs(np.log2(self.ratio)) <= 1):.0%}"

    def describe_interval(self) -> str:
        """Return the fraction of measurements inside the interval, and the median ratio of its ends."""
        inside = np.mean((self.low <= 1) & (self.high >= 1))
        return f"{inside:.0%} | {np.median(self.high / self.low):.1f}"


def main(folder: Path) -> None:
    """Print the table."""
    print("| device | precision | source | products | model | ratio | error | within 2x", end=" | ")
    print("inside 90% | width | roofline: ratio | error | within 2x |")
    print("| :-- | :-- | :-- | --: | :-- | --: | --: | --: | --: | --: | --: | --: | --: |")
    for (source, gpu, precision), rows in measured(folder).groupby(["source", "device", "precision"]):
        label = pl.gemm(1, 1, 1, gpu=gpu, precision=precision).label
        calibrated, bound = Forecast.of(rows), Forecast.of(rows, time_model="roofline")
        figures = f"{calibrated.describe()} | {calibrated.describe_interval()} | {bound.describe()}"
        print(f"| {gpu} | {precision} | {source} | {len(rows)} | {label} | {figures} |")
    print_layers(measured(folder).query("precision == 'bf16'"))


def print_layers(rows: pd.DataFrame) -> None:
    """Print a table of products in 16 bits as kernels and as layers of a network, all and those of much arithmetic."""
    print("| device | large | as kernels: ratio | error | within 2x | inside 90% | width", end=" | ")
    print("as layers: ratio | error | within 2x | inside 90% | width |")
    print("| :-- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |")
    for gpu, of_device in rows.groupby("device"):
        peak_per_s = pl.gemm(1, 1, 1, gpu=gpu, precision="bf16").peak_per_s
        is_large = 2.0 * of_device["M"] * of_device["N"] * of_device["K"] / peak_per_s > LARGE_S
        for name, chosen in (("no", of_device[~is_large]), ("yes", of_device[is_large])):
            ways = (Forecast.of(chosen), Forecast.of(chosen, time_model="calibrated"))
            figures = " | ".join(f"{way.describe()} | {way.describe_interval()}" for way in ways)
            print(f"| {gpu} | {name} | {figures} |")


if __name__ == "__main__":
    data = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("PALEO_LITE_DATA")
    if not data:
        sys.exit("usage: python benchmarks/gemm_error.py DATA, or set PALEO_LITE_DATA")
    main(Path(data) / "measured")

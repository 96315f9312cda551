"""Predicted and measured speedup of compilation; measured by the author of timm on an RTX 4090.

``python benchmarks/compiled_speedup.py DATA`` reads ``DATA/measured/timm_rtx3090_rtx4090.csv.gz``
(pytorch-image-models, Apache-2.0: inference, automatic mixed precision, NCHW). The calibration uses eager runs only.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import paleo_lite as pl
from paleo_lite.architectures import find_network
from paleo_lite.calibration.validate import family_of
from validation.steps.timm import TORCHVISION_NAMES
from validation.tables import rows_of


def main() -> None:
    """Read the measurements, predict the speedups and print a table."""
    if len(sys.argv) != 2:
        sys.exit("usage: python benchmarks/compiled_speedup.py DATA")
    times: dict[tuple[str, ...], dict[str, float]] = {}
    for row in rows_of(Path(sys.argv[1]) / "measured" / "timm_rtx3090_rtx4090.csv.gz"):
        if row["gpu"] == "RTX 4090" and row["layout"] == "nchw" and row["network"] in TORCHVISION_NAMES:
            key = (TORCHVISION_NAMES[row["network"]], row["batch_size"], row["image_size"], row["framework_version"])
            times.setdefault(key, {})[row["compile"]] = float(row["step_time_ms"])
    by_family: dict[str, list[tuple[float, float]]] = {}
    for (network, batch_size, image_size, _), measured in sorted(times.items()):
        if not {"eager", "dynamo"} <= measured.keys() or int(image_size) != find_network(network).inputs[0][-1]:
            continue
        eager, compiled = (
            pl.predict(network, gpu="rtx4090", precision="fp16", batch_size=int(batch_size), execution=name).time_s
            for name in ("autocast", "compiled")
        )
        gains = (eager / compiled, measured["eager"] / measured["dynamo"])
        by_family.setdefault(family_of(network), []).append(gains)
    print("| family | points | predicted | measured | error | error of saying 1 |")
    print("| :-- | --: | --: | --: | --: | --: |")
    every = [pair for rows in by_family.values() for pair in rows]
    for family, rows in [*sorted(by_family.items()), ("all", every)]:
        predicted, gained = np.array(rows).T
        error, nothing = (np.abs(gain / gained - 1).mean() for gain in (predicted, 1))
        shown = f"{np.median(predicted):.2f} | {np.median(gained):.2f} | {error:.0%} | {nothing:.0%}"
        print(f"| {family} | {len(rows)} | {shown} |")


if __name__ == "__main__":
    main()

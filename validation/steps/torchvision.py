"""Reader of ``torchvision_fp16_fp32_fp64.csv``: networks of torchvision on four GPUs in three precisions."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from paleo_lite.architectures import network_names
from paleo_lite.calibration.measurements import Measurement, merge_repeated_runs

from ..tables import device_of, rows_of
from .dataset import MeasuredSteps

_PHASES = {"inference": "inference", "forward+backward": "forward+backward"}


def torchvision_benchmark(folder: Path) -> MeasuredSteps:
    """Read ryujaehun/pytorch-gpu-benchmark (MIT): 32 networks, batch size 12, including the copy from the host.

    Raises
    ------
    BadFile
        If the folder does not contain ``torchvision_fp16_fp32_fp64.csv``.
    """
    shipped = set(network_names())
    left_out = Counter[str]()
    measurements = []
    for row in rows_of(folder / "torchvision_fp16_fp32_fp64.csv"):
        if row["n_gpus"] != "1":
            left_out["several GPUs"] += 1
        elif row["network"] not in shipped:
            left_out["unknown network"] += 1
        elif row["phase"] not in _PHASES:
            left_out["unknown phase"] += 1
        else:
            name, _, run = row["gpu"].partition("(")
            source = f"pytorch-gpu-benchmark {row['framework_version']}" + (f" run {run.rstrip(')')}" if run else "")
            measurements.append(
                Measurement(
                    gpu=device_of(name),
                    network=row["network"],
                    batch_size=int(row["batch_size"]),
                    phase=_PHASES[row["phase"]],
                    precision=row["precision"],
                    time_s=float(row["value"]) / 1e3,
                    image_size=int(float(row["image_size"])),
                    framework=f"pytorch {row['framework_version']}",
                    source=source,
                )
            )
    return MeasuredSteps(sorted(merge_repeated_runs(measurements)), dict(left_out))

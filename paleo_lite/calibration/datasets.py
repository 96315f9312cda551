"""Measurements that other people published, read from a folder of their files into `Measurement`.

The files are described where they are kept, not here; the repository holds none of them, only what is learnt from them.
Rows whose device or network nobody here knows, or that time several devices, are left out and counted.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..errors import BadFile, UsageProblem
from ..hardware import find_device
from ..networks import network_names
from .measurements import Measurement

_PHASES = {"inference": "inference", "forward+backward": "forward+backward"}
_DICE = {"K80": "k80-die"}
"""Sources that say K80 time one of its two devices."""


class Dataset(msgspec.Struct, frozen=True):
    """Published measurements, and what of a file was left out and why: reason to number of rows."""

    measurements: list[Measurement]
    left_out: dict[str, int]


def torchvision_benchmark(folder: Path) -> Dataset:
    """ryujaehun/pytorch-gpu-benchmark (MIT): 32 torchvision networks, batch 12, three precisions, host copy included.

    Raises
    ------
    BadFile
        If the folder does not hold ``torchvision_fp16_fp32_fp64.csv``.
    """
    path = folder / "torchvision_fp16_fp32_fp64.csv"
    known, left_out, found = set(network_names()), Counter[str](), []
    for row in _rows(path):
        if row["n_gpus"] != "1":
            left_out["several GPUs"] += 1
        elif row["network"] not in known:
            left_out["unknown network"] += 1
        elif row["phase"] not in _PHASES:
            left_out["unknown phase"] += 1
        else:
            name, _, run = row["gpu"].partition("(")
            source = f"pytorch-gpu-benchmark {row['framework_version']}" + (f" run {run.rstrip(')')}" if run else "")
            found.append(
                Measurement(
                    gpu=_device(name),
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
    return Dataset(_medians(found), dict(left_out))


def _device(name: str) -> str:
    try:
        return find_device(_DICE.get(name, name)).id
    except UsageProblem as error:
        raise BadFile(f"a published measurement names a GPU that has no file: {error}") from None


def _rows(path: Path) -> Iterator[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            yield from csv.DictReader(file)
    except OSError as error:
        raise BadFile(f"{path}: cannot be read ({error.strerror})") from None


def _medians(measurements: list[Measurement]) -> list[Measurement]:
    """Repeated rows of one source become their median."""
    groups: dict[Measurement, list[float]] = {}
    for each in measurements:
        groups.setdefault(msgspec.structs.replace(each, time_s=0.0), []).append(each.time_s)
    merged = []
    for each, times in groups.items():
        ordered, half = sorted(times), len(times) // 2
        middle = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
        merged.append(msgspec.structs.replace(each, time_s=middle))
    return sorted(merged)

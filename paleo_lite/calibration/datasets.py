"""Measurements that other people published, read from a folder of their files into `Measurement`.

The files are described where they are kept, not here; the repository holds none of them, only what is learnt from them.
Rows whose device or network is unknown here, or that time several devices, are left out and counted.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

from ..errors import BadFile, UsageProblem
from ..hardware import find_device
from ..networks import network_names
from .measurements import Measurement

_PHASES = {"inference": "inference", "forward+backward": "forward+backward"}
_DEVICES = {
    "K80": "k80-die",
    # What these sources ran on: a DGX-1, and Amazon's p3 instances.
    "P100": "p100-sxm2",
    "P100-SXM2 (DGX-1)": "p100-sxm2",
    "V100": "v100-sxm2",
    "M60 (1 of 2 GPUs)": "m60-die",
    "GTX TITAN X (Maxwell)": "titanx-maxwell",
    "TITAN X (Pascal)": "titanx-pascal",
}
"""What sources call a device that is another here: those that say K80 time one of its two devices."""


class Dataset(msgspec.Struct, frozen=True):
    """Published measurements, and what of a file was left out and why: reason to number of rows."""

    measurements: list[Measurement]
    left_out: dict[str, int]


def published(folder: Path) -> Dataset:
    """All published measurements in a folder.

    Raises
    ------
    BadFile
        If a file is missing or names a GPU that has no file.
    """
    from .published_networks import published_networks
    from .published_timm import published_timm

    parts = [read(folder) for read in (torchvision_benchmark, published_networks, published_timm)]
    left_out = Counter[str]()
    for part in parts:
        left_out.update(part.left_out)
    return Dataset(sorted(each for part in parts for each in part.measurements), dict(left_out))


def torchvision_benchmark(folder: Path) -> Dataset:
    """ryujaehun/pytorch-gpu-benchmark (MIT): 32 torchvision networks, batch 12, three precisions, host copy included.

    Raises
    ------
    BadFile
        If the folder does not hold ``torchvision_fp16_fp32_fp64.csv``.
    """
    known, left_out, found = set(network_names()), Counter[str](), []
    for row in rows_of(folder / "torchvision_fp16_fp32_fp64.csv"):
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
    return Dataset(medians(found), dict(left_out))


@cache
def device_of(name: str) -> str:
    """The id of the device that a source means by a name."""
    try:
        return find_device(_DEVICES.get(name, name)).id
    except UsageProblem as error:
        raise BadFile(f"a published measurement is of a GPU without a hardware file: {error}") from None


def rows_of(path: Path) -> Iterator[dict[str, str]]:
    """Rows of a CSV, gzipped where its name says so."""
    try:
        with (
            gzip.open(path, "rt", newline="", encoding="utf-8")
            if path.suffix == ".gz"
            else path.open(newline="", encoding="utf-8") as file
        ):
            yield from csv.DictReader(file)
    except OSError as error:
        raise BadFile(f"{path}: cannot be read ({error.strerror or error})") from None
    except (EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise BadFile(f"{path}: damaged, or not a CSV file: {error}") from None


def medians(measurements: list[Measurement]) -> list[Measurement]:
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

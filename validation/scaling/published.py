"""Published times of training on several GPUs: TensorFlow's benchmarks page and SURFBoard's cluster."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from paleo_lite.errors import BadFile

from ..tables import device_of, rows_of


class ScaledStep(msgspec.Struct, frozen=True, order=True):
    """A measured step of several GPUs."""

    # Who measured it, and on which computer.
    source: str
    platform: str
    gpu: str
    network: str
    batch_size: int  # batch size per GPU
    workers: int
    nodes: int
    gradient_precision: str
    time_s: float
    alone_s: float | None  # seconds of the step on one GPU; None if not measured
    how: str  # method of the gradient exchange and origin of the input, in the source's words


_NETWORKS = {
    # tf_cnn_benchmarks of 2017 strides in the first 1x1 convolution of ResNet50. Its ResNet152 and AlexNet differ from
    # the shipped ones (stride; channels of the first layers) with a negligible effect on the number of parameters.
    "resnet50": "resnet50-caffe",
    "resnet152": "resnet152",
    "inception_v3": "inception_v3",
    "vgg16": "vgg16",
    "alexnet": "alexnet",
}


def tensorflow_scaling(folder: Path, data: str = "synthetic") -> list[ScaledStep]:
    """Read steps in TensorFlow 1.1 on 2 to 8 K80 (EC2) and P100 (DGX-1).

    Parameters
    ----------
    folder : Path
        Folder with ``networks.csv``.
    data : {"synthetic", "real"}
        Real images are read and decoded concurrently, which slows the faster networks.

    Raises
    ------
    BadFile
        If the file is missing.
    """
    rows = []
    for row in rows_of(folder / "networks.csv"):
        extra = row["extra"]
        match = re.fullmatch(r"data=(\w+); platform=([^;]*); variable_update=(.*)", extra)
        # Distributed rows run one process per node; 8 GPUs are again a single node.
        if row["source"] == "tensorflow-docs-benchmarks" and match and match[1] == data and "distributed" not in extra:
            rows.append((row, match[2], match[3]))
    keys = ("gpu", "network", "batch_size", "extra")
    alone = {tuple(row[key] for key in keys): _seconds(row) for row, _, _ in rows if row["n_gpus"] == "1"}
    return sorted(
        ScaledStep(
            "tensorflow-docs 1.1", platform, device_of(row["gpu"]), _NETWORKS[row["network"]],
            int(float(row["batch_size"])), int(row["n_gpus"]), 1, "fp32", _seconds(row),
            alone[tuple(row[key] for key in keys)], f"{how.strip()}, {data} data",
        )
        for row, platform, how in rows
        if row["n_gpus"] != "1" and row["network"] in _NETWORKS
    )  # fmt: skip


def _seconds(row: dict[str, str]) -> float:
    return float(row["ms_per_iter"]) / 1e3


def surfboard_scaling(path: Path) -> list[ScaledStep]:
    """Read steps of ResNet50 on 8 to 32 nodes with two K40m: column ``t_min_oldnb`` of the recovered batch durations.

    Times on one node are omitted: they are longer than those on eight nodes with the same kernels, and twice as long
    when images are decoded on the CPU.

    Raises
    ------
    BadFile
        If the file cannot be read or lacks a column.
    """
    steps = []
    for row in rows_of(path):
        try:
            nodes, time_s = int(row["nodes"]), float(row["t_min_oldnb"])
            if nodes > 1:
                how = f"Horovod, Open MPI ring, {row['loader']}, {row['workers']} loading threads"
                steps.append(
                    ScaledStep("surfboard", "Cartesius", "k40m", "resnet50", int(row["bs"]), 2 * nodes, nodes,
                           row["grad"], time_s, None, how)
                )  # fmt: skip
        except (KeyError, ValueError) as error:
            raise BadFile(f"{path}: not the recovered batch durations: {error}") from None
    return sorted(steps)

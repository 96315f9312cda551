"""Published times of training on several GPUs: TensorFlow's benchmarks page and SURFBoard's cluster."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from paleo_lite.errors import BadFile

from ..tables import device_of, rows_of


class ScaledStep(msgspec.Struct, frozen=True, order=True):
    """A measured step of several GPUs.

    Attributes
    ----------
    source, platform : str
        Who measured, and on what computer.
    gpu, network : str
    batch_size : int
        Per GPU.
    workers, nodes : int
    gradient_precision : str
    time_s : float
    alone_s : float or None
        The same on one GPU; None where that was not measured.
    how : str
        What was exchanged how, and where the input came from, in the source's words.
    """

    source: str
    platform: str
    gpu: str
    network: str
    batch_size: int
    workers: int
    nodes: int
    gradient_precision: str
    time_s: float
    alone_s: float | None
    how: str


_NETWORKS = {
    # tf_cnn_benchmarks of 2017 strides in the first 1x1 convolution of ResNet50; what its ResNet152 and AlexNet differ
    # by from the shipped ones (stride; channels of the first layers) moves no parameters worth the name.
    "resnet50": "resnet50-caffe",
    "resnet152": "resnet152",
    "inception_v3": "inception_v3",
    "vgg16": "vgg16",
    "alexnet": "alexnet",
}


def tensorflow_scaling(folder: Path, data: str = "synthetic") -> list[ScaledStep]:
    """1 to 8 K80 (EC2) and P100 (DGX-1), TensorFlow 1.1.

    Parameters
    ----------
    folder : Path
        With ``networks.csv``.
    data : {"synthetic", "real"}
        Real images were read and decoded beside, which slows the faster networks.

    Raises
    ------
    BadFile
        If there is no such file.
    """
    rows = []
    for row in rows_of(folder / "networks.csv"):
        extra = row["extra"]
        found = re.fullmatch(r"data=(\w+); platform=([^;]*); variable_update=(.*)", extra)
        # The distributed rows run one process per node over the network, 8 GPUs being one node again.
        if row["source"] == "tensorflow-docs-benchmarks" and found and found[1] == data and "distributed" not in extra:
            rows.append((row, found[2], found[3]))
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
    """ResNet50 on 8 to 32 nodes of two K40m: ``cartesius_batch_durations_recovered.csv``, its ``t_min_oldnb``.

    One node's times are left out: they are longer than those of eight, with the same kernels, and with the images
    decoded on the CPU twice as long.

    Raises
    ------
    BadFile
        If it cannot be read or lacks a column.
    """
    found = []
    for row in rows_of(path):
        try:
            nodes, time_s = int(row["nodes"]), float(row["t_min_oldnb"])
            if nodes > 1:
                how = f"Horovod, Open MPI ring, {row['loader']}, {row['workers']} loading threads"
                found.append(
                    ScaledStep("surfboard", "Cartesius", "k40m", "resnet50", int(row["bs"]), 2 * nodes, nodes,
                           row["grad"], time_s, None, how)
                )  # fmt: skip
        except (KeyError, ValueError) as error:
            raise BadFile(f"{path}: not the recovered batch durations: {error}") from None
    return sorted(found)

"""Reader of ``networks.csv``: whole networks timed by the authors of MXNet, TensorFlow and cnn-benchmarks.

A network is read only if a shipped descriptor performs the same computation: the original AlexNet has 96 channels and
grouped convolutions, and implementations of ResNet from 2016 differ in which convolution has the stride.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from paleo_lite.calibration.measurements import Measurement, merge_repeated_runs

from ..tables import device_of, rows_of
from .dataset import MeasuredSteps

_NETWORKS = {
    # Pre-activation ResNets with the stride in the 3x3 convolution: the convolutions of torchvision's.
    "mxnet-docs-perf": {
        "resnet50": "resnet50",
        "resnet152": "resnet152",
        "inception_v3": "inception_v3",
        "vgg11": "vgg11",
        "vgg16": "vgg16",
    },
    # tf_cnn_benchmarks of 2017 strides in the first 1x1 convolution.
    "tensorflow-docs-benchmarks": {
        "resnet50": "resnet50-caffe",
        "inception_v3": "inception_v3",
        "vgg16": "vgg16",
    },
    # Facebook's ResNets for Torch, VGG and GoogLeNet from Caffe.
    "cnn-benchmarks": {
        "resnet-18": "resnet18",
        "resnet-34": "resnet34",
        "resnet-50": "resnet50",
        "resnet-101": "resnet101",
        "resnet-152": "resnet152",
        "vgg16": "vgg16",
        "vgg19": "vgg19",
        "googlenet-v1": "googlenet-caffe",
    },
}
"""Shipped networks that perform the same computation as those of each source."""

_PHASES = {"inference": "inference", "train": "training", "forward": "forward", "backward": "backward"}


def published_networks(folder: Path) -> MeasuredSteps:
    """Read steps on one GPU with MXNet (Apache-2.0), TensorFlow (Apache-2.0) and cnn-benchmarks (MIT).

    Raises
    ------
    BadFile
        If the folder does not contain ``networks.csv``.
    """
    left_out = Counter[str]()
    measurements = []
    for row in rows_of(folder / "networks.csv"):
        networks = _NETWORKS.get(row["source"])
        if networks is None:
            left_out["the source is read from another file, or its networks are not shipped"] += 1
        elif row["n_gpus"] != "1" or " distributed;" in row["extra"]:
            left_out["several GPUs"] += 1
        elif row["network"] not in networks:
            left_out["differs from the shipped network of that name"] += 1
        elif row["phase"] not in _PHASES:
            left_out["sum of other rows"] += 1
        elif "cudnn=none" in row["extra"]:
            left_out["without cuDNN"] += 1
        else:
            version = row["framework_version"].split(" (")[0]
            cudnn = f" {row['extra']}" if row["source"] == "cnn-benchmarks" else ""
            measurements.append(
                Measurement(
                    gpu=device_of(row["gpu"]),
                    network=networks[row["network"]],
                    batch_size=int(float(row["batch_size"])),
                    phase=_PHASES[row["phase"]],
                    precision=row["precision"],
                    time_s=float(row["ms_per_iter"]) / 1e3,
                    image_size=int(float(row["image_size"])),
                    framework=f"{row['framework']} {version}",
                    source=f"{row['source']} {version}{cudnn}",
                )
            )
    return MeasuredSteps(sorted(merge_repeated_runs(measurements)), dict(left_out))

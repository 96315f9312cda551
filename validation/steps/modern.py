"""Readers of ``modern/networks_pytorch.csv`` and ``cnn_more_gpus.csv``: PyTorch and TensorRT on recent devices."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from paleo_lite.architectures import network_names
from paleo_lite.calibration.measurements import Measurement, merge_repeated_runs
from paleo_lite.counting.work import AUTOCAST, CHANNELS_LAST

from ..tables import device_of, rows_of
from .dataset import MeasuredSteps

MODERN = Path("..") / "modern"
"""Folder of the newer tables, relative to that of the older ones."""

_ENGINES = {
    "AlexNet": "alexnet",
    "DenseNet121": "densenet121", "DenseNet161": "densenet161", "DenseNet169": "densenet169",
    "DenseNet201": "densenet201",
    "EfficientNetB0": "efficientnet_b0", "EfficientNetB1": "efficientnet_b1", "EfficientNetB2": "efficientnet_b2",
    "EfficientNetB3": "efficientnet_b3", "EfficientNetB4": "efficientnet_b4", "EfficientNetB5": "efficientnet_b5",
    "EfficientNetB6": "efficientnet_b6", "EfficientNetB7": "efficientnet_b7",
    "MobileNetV2": "mobilenet_v2", "MobileNetV3_large_x1_0": "mobilenet_v3_large",
    "MobileNetV3_small_x1_0": "mobilenet_v3_small",
    "ResNeXt50_32x4d": "resnext50_32x4d", "ResNeXt101_32x8d_wsl": "resnext101_32x8d",
    "ResNeXt101_64x4d": "resnext101_64x4d",
    "ResNet18": "resnet18", "ResNet34": "resnet34", "ResNet50": "resnet50", "ResNet101": "resnet101",
    "ResNet152": "resnet152",
    "ShuffleNetV2_x0_5": "shufflenet_v2_x0_5", "ShuffleNetV2": "shufflenet_v2_x1_0",
    "ShuffleNetV2_x1_5": "shufflenet_v2_x1_5", "ShuffleNetV2_x2_0": "shufflenet_v2_x2_0",
    "SqueezeNet1_0": "squeezenet1_0", "SqueezeNet1_1": "squeezenet1_1",
    "VGG11": "vgg11", "VGG13": "vgg13", "VGG16": "vgg16", "VGG19": "vgg19",
    "SwinTransformer_tiny_patch4_window7_224": "swin_t", "SwinTransformer_small_patch4_window7_224": "swin_s",
    "SwinTransformer_base_patch4_window7_224": "swin_b",
    "ViT_base_patch16_224": "vit_b_16", "ViT_large_patch16_224": "vit_l_16",
}  # fmt: skip
"""Torchvision's names of PaddleClas's networks. Its Inception and GoogLeNet differ from torchvision's."""

_BOARDS = {
    "V100 (form factor not given)": "v100-sxm2", "T4": "t4", "Jetson Nano": "jetson-nano",
    "Jetson AGX Xavier": "jetson-agx-xavier",
}  # fmt: skip
_TORCH2TRT = "TensorRT by torch2trt"


def modern_networks(folder: Path) -> MeasuredSteps:
    """Read pytorch-gpu-benchmark, NVIDIA's DeepLearningExamples and timm (eager mode, and compiled inference).

    Raises
    ------
    BadFile
        If ``../modern`` relative to `folder` does not contain ``networks_pytorch.csv``.
    """
    shipped = set(network_names())
    left_out = Counter[str]()
    measurements = []
    for row in rows_of(folder / MODERN / "networks_pytorch.csv"):
        if row["network"] not in shipped:
            left_out["the network is not among those shipped"] += 1
            continue
        version = row["software"].removeprefix("nvcr ").removeprefix("pt")
        measurements.append(
            Measurement(
                gpu=device_of(row["gpu"]),
                network=row["network"],
                batch_size=int(row["batch_size"]),
                phase=row["phase"],
                precision=row["precision"],
                time_s=float(row["ms_per_batch"]) / 1e3,
                image_size=int(float(row["image_size"])),
                framework=f"pytorch {version}{_LAYERS.get(row['source'], '')}" if version != "pytorch" else "pytorch",
                source=f"{_SOURCES[row['source']]} {version}".removesuffix(" pytorch"),
                execution=_execution(row),
            )
        )
    return MeasuredSteps(sorted(merge_repeated_runs(measurements)), dict(left_out))


_SOURCES = {
    "pytorch-gpu-benchmark": "pytorch-gpu-benchmark",
    "NVIDIA-DLE": "DeepLearningExamples",
    "timm amp": "pytorch-image-models",
}

_LAYERS = {"timm amp": " timm"}
"""Implementation of the layers, where it is not torchvision's."""


def _execution(row: dict[str, str]) -> str:
    """Return how a row was executed.

    Eager runs in mixed precision use autocast; those of timm do so regardless of the column ``mixed``. NVIDIA's use
    the channels-last layout: ``memory_format: nhwc`` of each AMP entry (DeepLearningExamples,
    PyTorch/Classification/ConvNets/configs.yml).
    """
    mixed = row["mixed"] == "True" or row["source"].endswith(" amp")
    if not mixed or row["execution"] != "eager":
        return row["execution"]
    return CHANNELS_LAST if row["source"] == "NVIDIA-DLE" else AUTOCAST


def published_engines(folder: Path) -> MeasuredSteps:
    """Read TensorRT runs with folded batch norms: PaddleClas on T4 and V100, torch2trt on Jetson.

    Raises
    ------
    BadFile
        If ``../modern`` relative to `folder` does not contain ``cnn_more_gpus.csv``.
    """
    shipped = set(network_names())
    left_out = Counter[str]()
    measurements = []
    for row in rows_of(folder / MODERN / "cnn_more_gpus.csv"):
        converted = row["software"] == _TORCH2TRT
        network = row["network"] if converted else _ENGINES.get(row["network"], "")
        if row["software"] == "PyTorch eager":
            left_out["eager execution with the processor of an embedded board"] += 1
        elif row["gpu"] not in _BOARDS or not (converted or row["precision"] == "fp32"):
            left_out["no hardware file for the device, or the precision is not given"] += 1
        elif network not in shipped or not row["image_size"]:
            left_out["the network is not among those shipped"] += 1
        else:
            measurements.append(_engine(row, network, "torch2trt" if converted else "PaddleClas TensorRT"))
    return MeasuredSteps(sorted(merge_repeated_runs(measurements)), dict(left_out))


def _engine(row: dict[str, str], network: str, source: str) -> Measurement:
    return Measurement(
        gpu=device_of(_BOARDS[row["gpu"]]),
        network=network,
        batch_size=int(row["batch_size"]),
        phase="inference",
        precision=row["precision"],
        time_s=float(row["ms_per_batch"]) / 1e3,
        image_size=int(float(row["image_size"])),
        framework="tensorrt",
        source=source,
        execution="folded",
    )

"""Reader of ``timm_rtx3090_rtx4090.csv.gz``: measurements by the author of timm in automatic mixed precision."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from paleo_lite.calibration.measurements import Measurement, merge_repeated_runs
from paleo_lite.counting.work import AUTOCAST, CHANNELS_LAST

from ..tables import device_of, rows_of
from .dataset import MeasuredSteps

TORCHVISION_NAMES = {
    **{
        name: name
        for name in (
            "densenet121", "densenet161", "densenet169", "densenet201", "resnet18", "resnet34", "resnet50",
            "resnet101", "resnet152", "resnext50_32x4d", "resnext101_32x8d", "resnext101_64x4d", "vgg11", "vgg11_bn",
            "vgg13", "vgg13_bn", "vgg16", "vgg16_bn", "vgg19", "vgg19_bn", "wide_resnet50_2", "wide_resnet101_2",
            "inception_v3", "convnext_tiny", "convnext_small", "convnext_base", "convnext_large", "efficientnet_b0",
            "efficientnet_b1", "efficientnet_b2", "efficientnet_b3", "efficientnet_b4",
        )
    },
    "mobilenetv2_100": "mobilenet_v2",
    "mobilenetv3_large_100": "mobilenet_v3_large",
    "mobilenetv3_small_100": "mobilenet_v3_small",
    "mnasnet_050": "mnasnet0_5",
    "mnasnet_100": "mnasnet1_0",
    "regnety_032": "regnet_y_3_2gf",
    "regnety_016": "regnet_y_1_6gf",
    "regnety_160": "regnet_y_16gf",
    "regnety_320": "regnet_y_32gf",
    "regnetx_016": "regnet_x_1_6gf",
    "regnetx_032": "regnet_x_3_2gf",
    "regnetx_080": "regnet_x_8gf",
    "regnetx_160": "regnet_x_16gf",
    "regnetx_320": "regnet_x_32gf",
    "swin_tiny_patch4_window7_224": "swin_t",
    "swin_small_patch4_window7_224": "swin_s",
    "swin_base_patch4_window7_224": "swin_b",
    "vit_base_patch16_224": "vit_b_16",
    "vit_base_patch32_224": "vit_b_32",
    "vit_large_patch16_224": "vit_l_16",
    "vit_large_patch32_224": "vit_l_32",
}  # fmt: skip
"""Torchvision's names of timm's networks; a test compares their numbers of parameters with those in the file."""

_VERSIONS = {"1.12": "1.12 and 1.13", "1.13": "1.12 and 1.13"}
"""Inference with 1.13 and training with 1.12 on one machine are a single source."""

_LAYOUTS = {"nchw": AUTOCAST, "nhwc": CHANNELS_LAST}


def published_timm(folder: Path) -> MeasuredSteps:
    """Read eager runs of pytorch-image-models (Apache-2.0) with autocast to fp16.

    Raises
    ------
    BadFile
        If the folder does not contain ``timm_rtx3090_rtx4090.csv.gz``.
    """
    rows = list(rows_of(folder / "timm_rtx3090_rtx4090.csv.gz"))
    vgg19 = {_run(row): float(row["step_time_ms"]) for row in rows if row["network"] == "vgg19"}
    left_out = Counter[str]()
    measurements = []
    for row in rows:
        if row["compile"] != "eager":
            left_out["compiled"] += 1
        elif row["network"] not in TORCHVISION_NAMES:
            left_out["unknown network"] += 1
        elif row["network"] == "vgg16" and float(row["step_time_ms"]) > vgg19.get(_run(row), float("inf")):
            left_out["VGG16 slower than VGG19, which contains it"] += 1
        else:
            version = _VERSIONS.get(row["framework_version"], row["framework_version"])
            measurements.append(
                Measurement(
                    gpu=device_of(row["gpu"]),
                    network=TORCHVISION_NAMES[row["network"]],
                    batch_size=int(row["batch_size"]),
                    phase={"train": "training"}.get(row["phase"], row["phase"]),
                    precision="fp16",
                    time_s=float(row["step_time_ms"]) / 1e3,
                    image_size=int(row["image_size"]),
                    framework=f"pytorch {row['framework_version']} timm",
                    source=f"pytorch-image-models {version}",
                    execution=_LAYOUTS[row["layout"]],
                )
            )
    return MeasuredSteps(sorted(merge_repeated_runs(measurements)), dict(left_out))


def _run(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in ("source_path", "phase", "batch_size", "image_size"))

"""Published times of pictures and videos: ML.ENERGY's benchmark, tables of projects, and what users measure.

The files are in ``engines/`` of the folder of the published data; its ``SOURCES.md`` says where each is from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from paleo_lite.errors import BadFile

from ..tables import device_of, rows_of

PIPELINES = {
    "Efficient-Large-Model/SANA1.5_1.6B_1024px_diffusers": "sana-1.5-1.6b",
    "Efficient-Large-Model/SANA1.5_4.8B_1024px_diffusers": "sana-1.5-4.8b",
    "PixArt-alpha/PixArt-Sigma-XL-2-1024-MS": "pixart-sigma",
    "Wan-AI/Wan2.1-T2V-1.3B-Diffusers": "wan-2.1-1.3b",
    "Wan-AI/Wan2.1-T2V-14B-Diffusers": "wan-2.1-14b",
    "black-forest-labs/FLUX.1-dev": "flux.1-dev",
    "black-forest-labs/FLUX.1-schnell": "flux.1-schnell",
    "hunyuanvideo-community/HunyuanVideo": "hunyuanvideo",
    "stabilityai/stable-diffusion-3-medium-diffusers": "sd-3-medium",
    "stabilityai/stable-diffusion-3.5-medium": "sd-3.5-medium",
    "stabilityai/stable-diffusion-3.5-large": "sd-3.5-large",
    "zai-org/CogVideoX-2b": "cogvideox-2b",
    "zai-org/CogVideoX-5b": "cogvideox-5b",
    "zai-org/CogVideoX1.5-5B": "cogvideox-1.5-5b",
}
"""Pipelines by the name of the publisher's repository."""

_DEVICES = {"H100": "h100-sxm", "B200": "b200"}

_EXECUTIONS = {
    "eager": ("eager", None),
    "compiled": ("compiled", None),
    "compiled, channels-last": ("compiled", None),
    "eager, attention unfused": ("eager", "eager"),
    "AITemplate": ("engine", None),
}
"""Execution and implementation of attention by their names in the tables."""

_AUTOCAST_SOURCE = "facebookincubator/AITemplate"
"""Source whose baseline runs under ``torch.autocast`` (examples/05_stable_diffusion/src/benchmark_pt.py)."""

MLENERGY, USERS = "ML.ENERGY", "users"


class PictureMeasurement(NamedTuple):
    """A measured time."""

    source: str  # who measured
    # What was measured, in the names of paleo-lite.
    pipeline: str
    gpu: str
    precision: str
    execution: str
    attention: str | None  # implementation of attention, if not the default one
    # Devices, and how they split the sequence.
    gpus: int
    ulysses: int
    ring: int
    # Size of the batch.
    images: int
    width: int
    height: int
    frames: int
    steps: int
    time_s: float  # seconds of the batch; of one step where `is_step`
    watts: float | None = None  # mean power of all devices
    is_step: bool = False  # whether the time is that of a step of the denoiser


def mlenergy_rows(folder: Path) -> Iterator[PictureMeasurement]:
    """Iterate over the batches of ML.ENERGY's benchmark, on one to eight devices."""
    for row in rows_of(folder / "engines" / "mlenergy_diffusion.csv"):
        pipeline = PIPELINES.get(row["model"])
        if pipeline is None:
            continue
        yield PictureMeasurement(
            source=MLENERGY,
            pipeline=pipeline,
            gpu=_DEVICES[row["gpu"]],
            precision="bf16",
            execution="eager",
            attention=None,
            gpus=int(row["gpus"]),
            ulysses=int(row["ulysses"]),
            ring=int(row["ring"]),
            images=int(row["batch"]),
            width=int(row["width"]),
            height=int(row["height"]),
            frames=int(row["frames"]),
            steps=int(row["steps"]),
            time_s=float(row["latency_s"]),
            watts=float(row["watts"]),
        )


def project_rows(folder: Path) -> Iterator[PictureMeasurement]:
    """Iterate over the tables of projects, on one device."""
    for row in rows_of(folder / "engines" / "diffusion_published.csv"):
        gpu = row["gpu"]
        execution, attention = _EXECUTIONS[row["execution"]]
        if row["source"].startswith(_AUTOCAST_SOURCE) and execution == "eager":
            execution = "autocast"
        width, height = (int(pixels) for pixels in row["size"].split("x"))
        precision = row["precision"]
        if precision == "fp32" and gpu.startswith("a100"):
            precision = "tf32"  # 7.36 s is faster than the vector units could be: the tutorial allows TF32
        yield PictureMeasurement(
            source=re.split(r"[,/ ]", row["source"])[0],
            pipeline=row["pipeline"],
            gpu="mi250x-gcd" if gpu.startswith("mi250") else gpu,  # 110 compute units in place of 104
            precision=precision,
            execution=execution,
            attention=attention,
            gpus=1,
            ulysses=1,
            ring=1,
            images=int(row["images"]),
            width=width,
            height=height,
            frames=int(row["frames"]),
            steps=int(row["steps"]),
            time_s=float(row["seconds"]),
            is_step="no decoder" in row["source"],
        )


USERS_STEPS = 20
"""Steps of most submissions of users."""


def user_rows(folder: Path) -> Iterator[tuple[PictureMeasurement, PictureMeasurement]]:
    """Iterate over what users of web interfaces measure: the upper fifth, and the median of the submissions.

    The published rate is pictures times steps per second, from prompt to saved picture. ZLUDA runs PyTorch for CUDA on
    AMD's cards, where FlashAttention's kernels, which are written for NVIDIA's matrix instructions, do not run.
    """
    for row in rows_of(folder / "engines" / "diffusion_users.csv"):
        name = row["device"].split(" [")[0].removeprefix("NVIDIA ").removeprefix("GeForce ").removeprefix("AMD ")
        try:
            gpu = device_of(name)
        except BadFile:  # a card without a hardware file
            continue
        for images in (1, 4):
            rows = tuple(
                PictureMeasurement(
                    source=USERS,
                    pipeline=row["pipeline"],
                    gpu=gpu,
                    precision="fp16",
                    execution="eager",
                    attention="eager" if "[ZLUDA]" in row["device"] else None,
                    gpus=1,
                    ulysses=1,
                    ring=1,
                    images=images,
                    width=512,
                    height=512,
                    frames=1,
                    steps=USERS_STEPS,
                    time_s=images * USERS_STEPS / float(row[f"batch{images}_{statistic}"]),
                )
                for statistic in ("p80", "median")
            )
            yield rows[0], rows[1]

"""Options of pipelines for pictures and videos."""

from __future__ import annotations

from ..questions.values import INTEGER
from .options import SharedOption

steps = SharedOption("--steps", type=INTEGER, metavar="N", help="Denoising steps of a pipeline. [default: its own]")
frames = SharedOption("--frames", type=INTEGER, metavar="N", help="Frames of each video. [default: the pipeline's]")
ulysses = SharedOption(
    "--ulysses",
    type=INTEGER,
    metavar="N",
    help="Devices that split the sequence of a pipeline's denoiser, exchanging tokens for heads. [default: 1]",
)
ring = SharedOption(
    "--ring",
    type=INTEGER,
    metavar="N",
    help="Groups of devices that split the sequence of a pipeline's denoiser around a ring. [default: 1]",
)

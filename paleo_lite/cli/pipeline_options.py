"""Options of pipelines for pictures and videos."""

from __future__ import annotations

from typing import Any

import click

from ..api.question import PictureOptions
from ..questions.values import INTEGER
from .options import Decorator, SharedOption, combine

steps = SharedOption("--steps", type=INTEGER, metavar="N", help="Denoising steps of a pipeline. [default: its own]")
frames = SharedOption("--frames", type=INTEGER, metavar="N", help="Frames of each video. [default: the pipeline's]")
images = SharedOption("--images", type=INTEGER, metavar="N", help="Pictures or videos in one batch. [default: 1]")
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

NAMES = ("steps", "guidance", "frames", "ulysses", "ring", "guidance_parallel", "tiled", "step_caching")
"""Arguments of a command with the options of `pipeline`."""


def pipeline() -> Decorator:
    """Add the options of a pipeline, except for the number of pictures."""
    return combine(
        steps(),
        click.option(
            "--guidance",
            type=click.FLOAT,
            metavar="SCALE",
            help="Scale of classifier-free guidance, none at 1 and below. [default: the pipeline's]",
        ),
        frames(),
        ulysses(),
        ring(),
        click.option(
            "--guidance-parallel",
            is_flag=True,
            help="Compute the two predictions of a pipeline's guidance on two groups of devices.",
        ),
        click.option(
            "--tiled", is_flag=True, help="Decode a pipeline's pictures in tiles that overlap, in less memory."
        ),
        click.option(
            "--step-caching",
            type=click.FLOAT,
            metavar="FACTOR",
            help="Steps per step that a pipeline's denoiser computes, with caching of its results. [default: 1]",
        ),
    )


def take_pictures(arguments: dict[str, Any]) -> PictureOptions:
    """Remove the options of `pipeline` from the arguments of a command, and return them."""
    return PictureOptions(**{name: arguments.pop(name) for name in NAMES})

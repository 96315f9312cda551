"""What is asked of a pipeline: steps, size, frames, guidance and number of pictures; and the networks of its parts."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

import msgspec

from ...errors import BadValue
from ...files import file_exists, shipped_folder
from ..catalog import normalize_name
from ..descriptor import COMPRESSED, decode_descriptor, read_bounded
from ..network import Network, SequenceOptions
from .records import Part, Pipeline, pipelines

_MAX_STEPS = 10**4
_MAX_IMAGES = 2**16
_MAX_FRAMES = 10**4
_MAX_PIXELS = 2**14


def find_pipeline(name: str) -> Pipeline | None:
    """Return the pipeline with a name, in any case, with or without punctuation; None if there is none."""
    if file_exists(shipped_folder("models") / f"{name}.json"):  # a network, without reading the list of pipelines
        return None
    records = pipelines()
    if name in records:
        return records[name]
    normalized = normalize_name(name)
    return next((record for record in records.values() if normalize_name(record.name) == normalized), None)


def parse_image_size(size: int | str) -> tuple[int, int]:
    """Return width and height in pixels: both ``1024``, or ``1024x768`` as width x height.

    Raises
    ------
    BadValue
        If the size is not of this form.
    """
    match = re.fullmatch(r"(\d{1,6})(?:[x×](\d{1,6}))?", str(size).strip().lower())
    if match is None or isinstance(size, bool):
        raise BadValue(f"--image-size must be pixels, as in 1024, or width x height, as in 1024x768 (got {size!r})")
    width = int(match[1])
    return width, int(match[2] or width)


class Sampling(msgspec.Struct, frozen=True):
    """What is asked of a pipeline.

    Attributes
    ----------
    steps : int
        Denoising steps.
    width, height : int
        Size of the pictures in pixels.
    frames : int
        Frames of each video; 1 for pictures.
    guidance : float
        Scale of classifier-free guidance; there is none at 1 and below.
    images : int
        Pictures or videos in one batch.
    """

    steps: int
    width: int
    height: int
    frames: int
    guidance: float
    images: int


def make_sampling(
    pipeline: Pipeline,
    *,
    steps: int | None = None,
    image_size: int | str | None = None,
    frames: int | None = None,
    guidance: float | None = None,
    images: int = 1,
) -> Sampling:
    """Return what is asked of a pipeline, with its defaults for what is not given.

    Raises
    ------
    BadValue
        If a number is out of its range, the size does not suit the pipeline's maps, or frames are asked of a pipeline
        for pictures.
    """
    steps = pipeline.steps if steps is None else steps
    _check_integer("--steps", steps, _MAX_STEPS)
    _check_integer("--images", images, _MAX_IMAGES)
    width, height = pipeline.size if image_size is None else parse_image_size(image_size)
    step = pipeline.size_step
    for name, pixels in (("width", width), ("height", height)):
        if pixels % step or not step <= pixels <= _MAX_PIXELS:
            raise BadValue(
                f"{pipeline.name} makes pictures whose {name} is a multiple of {step} from {step} to "
                f"{_MAX_PIXELS:,} pixels (got {pixels})"
            )
    if frames is not None and not pipeline.is_video:
        raise BadValue(f"{pipeline.name} makes pictures: remove --frames, or choose a pipeline for videos")
    frames = max(pipeline.frames, 1) if frames is None else frames
    _check_integer("--frames", frames, _MAX_FRAMES)
    if pipeline.is_video and (frames - 1) % pipeline.frames_per_latent:
        per_latent = pipeline.frames_per_latent
        nearest = (frames - 1) // per_latent * per_latent + 1
        raise BadValue(
            f"{pipeline.name} makes videos of 1 frame and {per_latent} for each further latent frame: --frames must "
            f"be a multiple of {per_latent} plus 1, such as {nearest} or {nearest + per_latent} (got {frames})"
        )
    guidance = pipeline.guidance if guidance is None else float(guidance)
    if not 0 <= guidance <= 1000:
        raise BadValue(f"--guidance must be a scale from 0 to 1000 (got {guidance:g})")
    return Sampling(steps, width, height, frames, guidance, images)


def _check_integer(name: str, value: object, largest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        raise BadValue(f"{name} must be an integer from 1 to {largest:,} (got {value!r})")


class PartRuns(NamedTuple):
    """A part with its network, how often it runs for a batch, and with how many samples each time."""

    part: Part
    network: Network
    runs: int
    samples: int


def part_runs(pipeline: Pipeline, sampling: Sampling) -> list[PartRuns]:
    """Return the parts of a pipeline in the order of execution.

    The text encoders run once for the prompts and, with classifier-free guidance, once for the negative prompts.
    """
    latent_frames = (sampling.frames - 1) // pipeline.frames_per_latent + 1
    is_guided = sampling.guidance > 1 and pipeline.guided != "none"
    numbers = {
        "once": 1,
        "step": sampling.steps,
        "later frame": latent_frames - 1,
        "later frame pair": max(latent_frames - 2, 0) // 2,
    }
    runs = []
    for part in pipeline.parts:
        number, samples = numbers[part.runs], sampling.images
        if is_guided and part.role == "text encoder":
            number *= 2
        if is_guided and part.role == "denoiser":
            if pipeline.guided == "batch":
                samples *= 2
            else:
                number *= 2
        sizes = {
            "h": sampling.height // part.grid,
            "w": sampling.width // part.grid,
            "f": -(-latent_frames // part.frame_step),
            "t": part.tokens,
        }
        network = read_part(part.descriptor, tuple(sizes.items()))
        if number:
            runs.append(PartRuns(part, network, number, samples))
    return runs


@lru_cache(64)
def read_part(name: str, sizes: tuple[tuple[str, int], ...]) -> Network:
    """Return the network of a part at some sizes: a descriptor in ``models/diffusion``, or a shipped language model."""
    folder = shipped_folder("models")
    path = folder / "diffusion" / f"{name}.json{COMPRESSED}"
    if file_exists(path):
        return decode_descriptor(read_bounded(path), path, dict(sizes))
    from ..catalog import find_network

    return find_network(name, options=SequenceOptions(dict(sizes)["t"]))

"""What is asked of a pipeline: steps, size, frames, guidance and number of pictures; and the networks of its parts."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

import msgspec

from ...errors import BadValue
from ...files import file_exists, shipped_folder
from ...units import check_integer
from ..descriptor import COMPRESSED, decode_descriptor, read_bounded
from ..network import Network, SequenceOptions
from .records import Part, Pipeline, pipelines, pipelines_by_spelling, spelling_of

_MAX_STEPS = 10**4
_MAX_IMAGES = 2**16
_MAX_FRAMES = 10**4
_MAX_PIXELS = 2**14


def find_pipeline(name: str) -> Pipeline | None:
    """Return the pipeline with a name, in any case, with or without punctuation, or of a folder; None if there is none.

    A name is one of `pipelines_by_spelling`, with or without the owner of its repository.

    Raise BadDescriptor if the pipeline of a folder is malformed or not known.
    """
    if file_exists(shipped_folder("models") / f"{name}.json"):  # a network, without reading the list of pipelines
        return None
    records = pipelines()
    if name in records:
        return records[name]
    from .folder import is_pipeline_folder, read_pipeline_folder

    if is_pipeline_folder(name):
        return read_pipeline_folder(name)
    return pipelines_by_spelling().get(spelling_of(name))


def parse_image_size(size: int | str) -> tuple[int, int]:
    """Return width and height in pixels: both ``1024``, or ``1024x768`` as width x height.

    Raise BadValue if the size is not of this form.
    """
    match = re.fullmatch(r"(\d{1,6})(?:[x×](\d{1,6}))?", str(size).strip().lower())
    if match is None or isinstance(size, bool):
        raise BadValue(f"--image-size must be pixels, as in 1024, or width x height, as in 1024x768 (got {size!r})")
    width = int(match[1])
    return width, int(match[2] or width)


class Sampling(msgspec.Struct, frozen=True):
    """What is asked of a pipeline."""

    steps: int  # denoising steps
    # Size of the pictures in pixels.
    width: int
    height: int
    frames: int  # frames of each video; 1 for pictures
    guidance: float  # scale of classifier-free guidance; there is none at 1 and below
    images: int  # pictures or videos in one batch
    tiled: bool = False  # whether the decoder computes tiles that overlap, one at a time
    step_caching: float = 1.0  # steps for each step that the denoiser computes; the others reuse its results

    @property
    def computed_steps(self) -> int:
        """Steps that the denoiser computes."""
        return max(1, round(self.steps / self.step_caching))


def make_sampling(
    pipeline: Pipeline,
    *,
    steps: int | None = None,
    image_size: int | str | None = None,
    frames: int | None = None,
    guidance: float | None = None,
    images: int = 1,
    tiled: bool = False,
    step_caching: float | None = None,
) -> Sampling:
    """Return what is asked of a pipeline, with its defaults for what is not given.

    Raise BadValue if a number is out of its range, the size does not suit the pipeline's maps, or frames are asked of a
    pipeline for pictures.
    """
    steps = pipeline.steps if steps is None else steps
    check_integer("--steps", steps, 1, _MAX_STEPS)
    check_integer("--batch-size", images, 1, _MAX_IMAGES)
    width, height = pipeline.size if image_size is None else parse_image_size(image_size)
    step = pipeline.size_step
    for name, pixels in (("width", width), ("height", height)):
        if pixels % step or not step <= pixels <= _MAX_PIXELS:
            below = min(max(pixels // step, 1), _MAX_PIXELS // step - 1) * step
            raise BadValue(
                f"{pipeline.name} makes {'videos' if pipeline.is_video else 'pictures'} whose {name} is a multiple of "
                f"{step} from {step} to {_MAX_PIXELS:,} pixels, such as {below} or {below + step} (got {pixels})"
            )
    if frames is not None and not pipeline.is_video:
        raise BadValue(f"{pipeline.name} makes pictures: remove --frames, or choose a pipeline for videos")
    frames = max(pipeline.frames, 1) if frames is None else frames
    check_integer("--frames", frames, 1, _MAX_FRAMES)
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
    if tiled and not any(part.tile for part in pipeline.decoders):
        raise BadValue(f"the decoder of {pipeline.name} has no tiles: remove --tiled")
    step_caching = 1.0 if step_caching is None else float(step_caching)
    if not 1 <= step_caching <= steps:
        raise BadValue(
            f"--step-caching must be a number of steps per computed step from 1 to the {steps} steps "
            f"(got {step_caching:g})"
        )
    return Sampling(steps, width, height, frames, guidance, images, tiled, step_caching)


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
        "step": sampling.computed_steps,
        "later frame": latent_frames - 1,
        "odd frames": latent_frames % 2,
        "frame pair": latent_frames // 2 - (latent_frames % 2 if latent_frames > 1 else 0),
    }
    runs: list[PartRuns] = []
    is_loaded = True  # whether the part that has the parameters of the next one runs
    for part in pipeline.parts:
        number, samples = numbers[part.runs], sampling.images
        if is_guided and part.role == "text encoder":
            number *= 2
        if is_guided and part.role == "denoiser":
            if pipeline.guided == "batch":
                samples *= 2
            else:
                number *= 2
        if not number:
            is_loaded = is_loaded and part.is_loaded_before
            continue
        for index, ((width, height), tiles) in enumerate(_tiles(part, sampling).items()):
            sizes = {
                "h": height // part.grid,
                "w": width // part.grid,
                "f": -(-latent_frames // part.frame_step),
                "t": part.tokens,
            }
            network = _network_of(part, tuple(sizes.items()))
            is_loaded_before = (part.is_loaded_before and is_loaded) or index > 0
            tiled = msgspec.structs.replace(part, is_loaded_before=is_loaded_before)
            runs.append(PartRuns(tiled, network, number * tiles, samples))
        is_loaded = True
    return runs


def _tiles(part: Part, sampling: Sampling) -> dict[tuple[int, int], int]:
    """Return the number of tiles that a part computes by their width and height; those at the edges are smaller."""
    size = (sampling.width, sampling.height)
    if not sampling.tiled or part.tile is None or part.tile_stride is None:
        return {size: 1}
    if all(pixels <= tile for pixels, tile in zip(size, part.tile)):
        return {size: 1}
    widths, heights = (
        [min(tile, pixels - start) for start in range(0, pixels, stride)]
        for pixels, tile, stride in zip(size, part.tile, part.tile_stride)
    )
    return Counter(product(widths, heights))


def _network_of(part: Part, sizes: tuple[tuple[str, int], ...]) -> Network:
    """Return the network of a part at some sizes."""
    if not part.config:
        return read_part(part.descriptor, sizes)
    from .folder import read_part_of_folder

    return read_part_of_folder(part, sizes)


def path_of_part(name: str) -> Path:
    """Return the file of a part: a descriptor in ``models/diffusion``, or a shipped language model."""
    folder = shipped_folder("models")
    path = folder / "diffusion" / f"{name}.json{COMPRESSED}"
    return path if file_exists(path) else folder / f"{name}.json"


@lru_cache(64)
def read_part(name: str, sizes: tuple[tuple[str, int], ...]) -> Network:
    """Return the network of a part at some sizes: a descriptor in ``models/diffusion``, or a shipped language model."""
    path = path_of_part(name)
    if path.name.endswith(COMPRESSED):
        return decode_descriptor(read_bounded(path), path, dict(sizes))
    from ..catalog import find_network

    return find_network(name, options=SequenceOptions(dict(sizes)["t"]))


def denoiser_network(pipeline: Pipeline, image_size: int | str | None, frames: int | None) -> Network:
    """Return the denoiser of a pipeline as a network, for a training step on samples that are encoded beforehand."""
    sampling = make_sampling(pipeline, image_size=image_size, frames=frames, guidance=1.0)
    network = next(runs.network for runs in part_runs(pipeline, sampling) if runs.part.role == "denoiser")
    note = (
        f"the denoiser of {pipeline.name} alone, at {sampling.width}x{sampling.height} pixels: text and pictures are "
        "encoded beforehand"
    )
    return network._replace(notes=(*network.notes, note))

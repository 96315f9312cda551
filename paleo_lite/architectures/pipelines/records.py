"""Pipelines: networks of parts with how often each runs, from the text of a prompt to the decoded picture or video.

The records are in ``models/diffusion/pipelines.toml``.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ...errors import BadDescriptor
from ...files import read_typed, shipped_folder

FILE = Path("diffusion") / "pipelines.toml"
_MAX_FILE_BYTES = 2**20

Role = Literal["text encoder", "image encoder", "denoiser", "decoder"]

Runs = Literal["once", "step", "later frame", "later frame pair"]
"""How often a part runs: once for a batch, once per step, once per latent frame or pair of latent frames after the
first."""

Guided = Literal["batch", "calls", "none"]
"""How classifier-free guidance computes the second, unconditional prediction: with twice the batch, in a second call,
or not at all, as the guidance is distilled into the network."""

Count = Annotated[int, Meta(ge=1)]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a pipeline.

    Attributes
    ----------
    descriptor : str
        Name of the descriptor in ``models/diffusion``, or of a shipped language model.
    role : str
        ``text encoder``, ``image encoder``, ``denoiser`` or ``decoder``.
    grid : int
        Pixels of height and width per unit of the descriptor's free sizes.
    runs : str
        How often the part runs.
    tokens : int
        Tokens of text that the part reads.
    copies : int
        Networks of this shape that are loaded, of which every run uses one.
    frame_step : int
        Latent frames per unit of the descriptor's free size ``f``.
    is_loaded_before : bool
        Whether the parameters are those of a part listed before.
    tile, tile_stride : tuple of int or None
        Width and height in pixels of the tiles of a tiled decoder, and from one tile to the next, as diffusers sets
        them; None for a decoder without tiles.
    component : str
        Name of an encoder in the folder of a pipeline.
    config, module : str
        Path of the config in a folder, and class of the module that it describes, one of
        `paleo_lite.architectures.pipelines.modules.MODULES`; empty for a shipped part, and the class for a language
        model.
    """

    descriptor: str
    role: Role = "text encoder"
    grid: Count = 1
    runs: Runs = "once"
    tokens: Count = 77
    copies: Count = 1
    frame_step: Count = 1
    is_loaded_before: bool = False
    tile: tuple[Count, Count] | None = None
    tile_stride: tuple[Count, Count] | None = None
    component: str = "text_encoder"
    config: str = ""
    module: str = ""


class Pipeline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A network of parts with how often each runs.

    Attributes
    ----------
    name : str
        Name of the pipeline.
    card : str
        Repository of the publisher.
    steps : int
        Denoising steps by default.
    size : tuple of int
        Width and height of the pictures by default, in pixels.
    guidance : float
        Scale of classifier-free guidance by default; at 1 and below there is none.
    encoders : tuple of Part
        Text encoders, and what encodes a given picture.
    denoiser : Part
        What runs once per step.
    decoders : tuple of Part
        What turns latents into pixels.
    guided : str
        How the second prediction of guidance is computed.
    frames : int
        Frames of a video by default; 0 for pictures.
    frames_per_latent : int
        Frames per latent frame after the first.
    decoder_precisions : dict of str to str
        Precision of the decoder where it is not that of the pipeline: SDXL's overflows in fp16.
    class_name : str
        Class of diffusers whose folders are read like this pipeline; empty for further pipelines of a class.
    """

    name: str
    card: str
    steps: Count
    size: tuple[Count, Count]
    guidance: float
    encoders: tuple[Part, ...]
    denoiser: Part
    decoders: tuple[Part, ...]
    guided: Guided = "batch"
    frames: Annotated[int, Meta(ge=0)] = 0
    frames_per_latent: Count = 4
    decoder_precisions: dict[str, str] = {}
    class_name: str = ""

    @property
    def parts(self) -> tuple[Part, ...]:
        """Parts in the order of execution."""
        return (*self.encoders, self.denoiser, *self.decoders)

    @property
    def is_video(self) -> bool:
        """Whether the pipeline makes videos."""
        return self.frames > 0

    @property
    def size_step(self) -> int:
        """Number of pixels that height and width must be divisible by."""
        return max(part.grid for part in self.parts)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file of the records, whose fields depend on the record that each is like."""

    pipelines: list[dict[str, Any]]


@cache
def pipelines() -> dict[str, Pipeline]:
    """Return the shipped pipelines by name."""
    return read_pipelines(shipped_folder("models") / FILE)


def read_pipelines(path: Path) -> dict[str, Pipeline]:
    """Read the records of pipelines.

    Raises
    ------
    BadDescriptor
        If a record is malformed, or like none before it.
    """
    fields: dict[str, dict[str, Any]] = {}
    found = {}
    for record in read_typed(path, _File, "list of pipelines", _MAX_FILE_BYTES, BadDescriptor).pipelines:
        name, like = record.get("name"), record.pop("like", None)
        if like is not None and like not in fields:
            raise BadDescriptor(f"{path}: {name} is like {like!r}, which is no pipeline before it")
        # A class is read like the one pipeline that names it.
        fields[str(name)] = {**fields.get(like, {}), "class_name": "", **record}
        try:
            pipeline = msgspec.convert(fields[str(name)], Pipeline)
        except msgspec.ValidationError as error:
            raise BadDescriptor(f"{path}: {name}: {error}") from None
        found[pipeline.name] = _with_roles(pipeline)
    return found


def _with_roles(pipeline: Pipeline) -> Pipeline:
    """Return a pipeline whose denoiser and decoders are named so; records leave this out."""
    replace = msgspec.structs.replace
    decoders = tuple(replace(part, role="decoder") for part in pipeline.decoders)
    return replace(pipeline, denoiser=replace(pipeline.denoiser, role="denoiser", runs="step"), decoders=decoders)

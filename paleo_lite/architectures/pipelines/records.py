"""Pipelines: networks of parts with how often each runs, from the text of a prompt to the decoded picture or video.

The records are in ``models/diffusion/pipelines.toml``.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ...errors import BadDescriptor
from ...files import read_typed, shipped_folder, typed
from ...text import letters_and_digits

FILE = Path("diffusion") / "pipelines.toml"
_MAX_FILE_BYTES = 2**20

Role = Literal["text encoder", "image encoder", "denoiser", "decoder"]

Runs = Literal["once", "step", "later frame", "odd frames", "frame pair"]
"""How often a part runs: once for a batch, once per step, once per latent frame after the first; once for the first
latent frames of an odd number of them, and once per other pair of latent frames."""

Guided = Literal["batch", "calls", "none"]
"""How classifier-free guidance computes the second, unconditional prediction: with twice the batch, in a second call,
or not at all, as the guidance is distilled into the network."""

Count = Annotated[int, Meta(ge=1)]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a pipeline."""

    descriptor: str  # name of the descriptor in ``models/diffusion``, or of a shipped language model
    role: Role = "text encoder"  # ``text encoder``, ``image encoder``, ``denoiser`` or ``decoder``
    grid: Count = 1  # pixels of height and width per unit of the descriptor's free sizes
    runs: Runs = "once"  # how often the part runs
    tokens: Count = 77  # tokens of text that the part reads
    copies: Count = 1  # networks of this shape that are loaded, of which every run uses one
    frame_step: Count = 1  # latent frames per unit of the descriptor's free size ``f``
    splits_sequence: bool = True  # whether devices can share its sequence: a U-Net's convolutions read all of a map
    is_loaded_before: bool = False  # whether the parameters are those of a part listed before
    # Width and height in pixels of the tiles of a tiled decoder, and from one tile to the next, as diffusers sets
    # them; None for a decoder without tiles.
    tile: tuple[Count, Count] | None = None
    tile_stride: tuple[Count, Count] | None = None
    component: str = "text_encoder"  # name of an encoder in the folder of a pipeline
    # Path of the config in a folder, and class of the module that it describes, one of
    # `paleo_lite.architectures.pipelines.modules.MODULES`; empty for a shipped part, and the class for a language
    # model.
    config: str = ""
    module: str = ""


class Pipeline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A network of parts with how often each runs."""

    name: str
    card: str  # repository of the publisher
    publisher: str  # company or group that published the weights
    year: int  # in which it did
    steps: Count  # denoising steps by default
    size: tuple[Count, Count]  # width and height of the pictures by default, in pixels
    guidance: float  # scale of classifier-free guidance by default; at 1 and below there is none
    encoders: tuple[Part, ...]  # text encoders, and what encodes a given picture
    denoiser: Part  # what runs once per step
    decoders: tuple[Part, ...]  # what turns latents into pixels
    guided: Guided = "batch"  # how the second prediction of guidance is computed
    frames: Annotated[int, Meta(ge=0)] = 0  # frames of a video by default; 0 for pictures
    frames_per_latent: Count = 4  # frames per latent frame after the first
    # Precision of the decoder where it is not that of the pipeline: SDXL's overflows in fp16.
    decoder_precisions: dict[str, str] = {}
    resizes: bool = False  # whether diffusers computes the nearest size of its training, and resizes the pictures
    # Class of diffusers whose folders are read like this pipeline; empty for further pipelines of a class.
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


class _RecordsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file of the records, whose fields depend on the record that each is like."""

    pipelines: list[dict[str, Any]]


@cache
def pipelines() -> dict[str, Pipeline]:
    """Return the shipped pipelines by name."""
    return read_pipelines(shipped_folder("models") / FILE)


@cache
def pipelines_by_spelling() -> dict[str, Pipeline]:
    """Return the shipped pipelines by all their names without case and punctuation.

    These are the name (``sd-1.5``), also with its abbreviation written out (``stable-diffusion-1.5``), and that of the
    publisher's repository (``stable-diffusion-v1-5``).
    """
    by_spelling = {}
    for name, pipeline in pipelines().items():
        repository = pipeline.card.rpartition("/")[2].lower().removesuffix("diffusers")
        for spelling in (repository, re.sub("^sd", "stable-diffusion", name), name):
            by_spelling[letters_and_digits(spelling)] = pipeline
    return by_spelling


def spelling_of(name: str) -> str:
    """Return the key of `pipelines_by_spelling` of a name, which may have the owner of a repository before it."""
    return letters_and_digits(name.rpartition("/")[2].lower().removesuffix("diffusers"))


def read_pipelines(path: Path) -> dict[str, Pipeline]:
    """Read the records of pipelines.

    Raise BadDescriptor if a record is malformed, or like none before it.
    """
    fields: dict[str, dict[str, Any]] = {}
    by_name = {}
    for record in read_typed(path, _RecordsFile, "list of pipelines", _MAX_FILE_BYTES, BadDescriptor).pipelines:
        name, like = record.get("name"), record.pop("like", None)
        if like is not None and like not in fields:
            raise BadDescriptor(f"{path}: {name} is like {like!r}, which is not a pipeline before it")
        # A class is read like the one pipeline that names it.
        fields[str(name)] = {**fields.get(like, {}), "class_name": "", **record}
        try:
            pipeline = msgspec.convert(fields[str(name)], typed(Pipeline))
        except msgspec.ValidationError as error:
            raise BadDescriptor(f"{path}: {name}: {error}") from None
        by_name[pipeline.name] = _with_roles(pipeline)
    return by_name


def _with_roles(pipeline: Pipeline) -> Pipeline:
    """Return a pipeline whose denoiser and decoders are named so; records leave this out."""
    replace = msgspec.structs.replace
    decoders = tuple(replace(part, role="decoder") for part in pipeline.decoders)
    return replace(pipeline, denoiser=replace(pipeline.denoiser, role="denoiser", runs="step"), decoders=decoders)

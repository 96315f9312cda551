"""Pipelines: networks of parts with how often each runs, from the text of a prompt to the decoded picture or video.

The defaults of steps, size, frames and guidance are those that the publisher states on the model card or in the
pipeline's documentation.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Runs = Literal["once", "step", "later frame", "later frame pair"]
"""How often a part runs: once for a batch, once per step, once per latent frame or pair of latent frames after the
first."""

Guided = Literal["batch", "calls", "none"]
"""How classifier-free guidance computes the second, unconditional prediction: with twice the batch, in a second call,
or not at all, as the guidance is distilled into the network."""


class Part(NamedTuple):
    """A part of a pipeline.

    Attributes
    ----------
    role : str
        ``text encoder``, ``denoiser`` or ``decoder``.
    descriptor : str
        Name of the descriptor in ``models/diffusion``.
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
    """

    role: str
    descriptor: str
    grid: int = 1
    runs: Runs = "once"
    tokens: int = 77
    copies: int = 1
    frame_step: int = 1
    is_loaded_before: bool = False


class Pipeline(NamedTuple):
    """A network of parts with how often each runs.

    Attributes
    ----------
    name : str
        Name of the pipeline.
    parts : tuple of Part
        Parts in the order of execution.
    card : str
        Repository of the publisher.
    steps : int
        Denoising steps by default.
    height, width : int
        Size of the pictures by default, in pixels.
    guidance : float
        Scale of classifier-free guidance by default; at 1 and below there is none.
    guided : str
        How the second prediction of guidance is computed.
    frames : int
        Frames of a video by default; 0 for pictures.
    frames_per_latent : int
        Frames per latent frame after the first.
    decoder_precisions : dict of str to str
        Precision of the decoder where it is not that of the pipeline: SDXL's overflows in fp16.
    """

    name: str
    parts: tuple[Part, ...]
    card: str
    steps: int
    height: int
    width: int
    guidance: float
    guided: Guided = "batch"
    frames: int = 0
    frames_per_latent: int = 4
    decoder_precisions: tuple[tuple[str, str], ...] = ()

    @property
    def is_video(self) -> bool:
        """Whether the pipeline makes videos."""
        return self.frames > 0

    @property
    def size_step(self) -> int:
        """Number of pixels that height and width must be divisible by."""
        return max(part.grid for part in self.parts)


CLIP_L = Part("text encoder", "clip-l")
OPENCLIP_BIGG = Part("text encoder", "openclip-bigg")
SD_DECODER = Part("decoder", "sd-vae", grid=8)
SD_3_DECODER = Part("decoder", "sd-3-vae", grid=8)
WAN_DECODER = (
    Part("decoder", "wan-2.1-vae-first", grid=8),
    Part("decoder", "wan-2.1-vae-later", grid=8, runs="later frame", is_loaded_before=True),
)
COGVIDEOX_DECODER = (
    Part("decoder", "cogvideox-vae-first", grid=8),
    Part("decoder", "cogvideox-vae-later", grid=8, runs="later frame pair", is_loaded_before=True),
)


def t5_xxl(tokens: int) -> Part:
    """Return the T5 encoder of a prompt that is padded to some tokens."""
    return Part("text encoder", "t5-xxl", tokens=tokens)


def denoiser(descriptor: str, grid: int, tokens: int = 77) -> Part:
    """Return the part that runs once per step."""
    return Part("denoiser", descriptor, grid, "step", tokens)


def sd_3(name: str, card: str, steps: int, guidance: float) -> Pipeline:
    """Return a pipeline of Stable Diffusion 3: two CLIP encoders and T5 with 256 tokens each."""
    parts = (CLIP_L, OPENCLIP_BIGG, t5_xxl(256), denoiser(f"{name}-transformer", 16, 333), SD_3_DECODER)
    return Pipeline(name, parts, card, steps, 1024, 1024, guidance)


SDXL = Pipeline(
    "sdxl",
    (CLIP_L, OPENCLIP_BIGG, denoiser("sdxl-unet", 64), SD_DECODER),
    "stabilityai/stable-diffusion-xl-base-1.0",
    50,
    1024,
    1024,
    5.0,
    decoder_precisions=(("fp16", "fp32"),),
)
SD_15 = Pipeline(
    "sd-1.5",
    (CLIP_L, denoiser("sd-1.5-unet", 64), SD_DECODER),
    "stable-diffusion-v1-5/stable-diffusion-v1-5",
    50,
    512,
    512,
    7.5,
)

RECORDS: tuple[Pipeline, ...] = (
    SD_15._replace(name="sd-1.4", card="CompVis/stable-diffusion-v1-4"),
    SD_15,
    Pipeline(
        "sd-2.1",
        (Part("text encoder", "openclip-h"), denoiser("sd-2.1-unet", 64), SD_DECODER),
        "stabilityai/stable-diffusion-2-1",
        50,
        768,
        768,
        7.5,
    ),
    SDXL,
    SDXL._replace(name="sdxl-turbo", card="stabilityai/sdxl-turbo", steps=1, height=512, width=512, guidance=0.0),
    SDXL._replace(name="sdxl-lcm", card="latent-consistency/lcm-sdxl", steps=4, guidance=8.0, guided="none"),
    Pipeline(
        "sdxl-refiner",
        (OPENCLIP_BIGG, denoiser("sdxl-refiner-unet", 64), SD_DECODER),
        "stabilityai/stable-diffusion-xl-refiner-1.0",
        50,
        1024,
        1024,
        5.0,
        decoder_precisions=(("fp16", "fp32"),),
    ),
    SDXL._replace(
        name="ssd-1b",
        parts=(CLIP_L, OPENCLIP_BIGG, denoiser("ssd-1b-unet", 64), SD_DECODER),
        card="segmind/SSD-1B",
        guidance=9.0,
    ),
    sd_3("sd-3-medium", "stabilityai/stable-diffusion-3-medium-diffusers", 28, 7.0),
    sd_3("sd-3.5-medium", "stabilityai/stable-diffusion-3.5-medium", 40, 4.5),
    sd_3("sd-3.5-large", "stabilityai/stable-diffusion-3.5-large", 28, 3.5),
    Pipeline(
        "flux.1-dev",
        (CLIP_L, t5_xxl(512), denoiser("flux.1-dev-transformer", 16, 512), SD_3_DECODER),
        "black-forest-labs/FLUX.1-dev",
        50,
        1024,
        1024,
        3.5,
        guided="none",
    ),
    Pipeline(
        "flux.1-schnell",
        (CLIP_L, t5_xxl(256), denoiser("flux.1-schnell-transformer", 16, 256), SD_3_DECODER),
        "black-forest-labs/FLUX.1-schnell",
        4,
        1024,
        1024,
        0.0,
        guided="none",
    ),
    Pipeline(
        "pixart-sigma",
        (t5_xxl(300), denoiser("pixart-sigma-transformer", 16, 300), SD_DECODER),
        "PixArt-alpha/PixArt-Sigma-XL-2-1024-MS",
        20,
        1024,
        1024,
        4.5,
    ),
    Pipeline(
        "sana-1.5-1.6b",
        (
            Part("text encoder", "gemma-2-2b", tokens=300),
            denoiser("sana-1.5-1.6b-transformer", 32, 300),
            Part("decoder", "dc-ae-f32c32", grid=32),
        ),
        "Efficient-Large-Model/SANA1.5_1.6B_1024px_diffusers",
        20,
        1024,
        1024,
        4.5,
    ),
    Pipeline(
        "sana-1.5-4.8b",
        (
            Part("text encoder", "gemma-2-2b", tokens=300),
            denoiser("sana-1.5-4.8b-transformer", 32, 300),
            Part("decoder", "dc-ae-f32c32", grid=32),
        ),
        "Efficient-Large-Model/SANA1.5_4.8B_1024px_diffusers",
        20,
        1024,
        1024,
        4.5,
    ),
    Pipeline(
        "hunyuan-dit-1.2",
        (
            Part("text encoder", "hunyuan-dit-bert"),
            Part("text encoder", "mt5-xl", tokens=256),
            denoiser("hunyuan-dit-1.2-transformer", 16),
            SD_DECODER,
        ),
        "Tencent-Hunyuan/HunyuanDiT-v1.2-Diffusers",
        50,
        1024,
        1024,
        5.0,
    ),
    Pipeline(
        "wan-2.1-1.3b",
        (
            Part("text encoder", "umt5-xxl", tokens=512),
            denoiser("wan-2.1-1.3b-transformer", 16, 512),
            *WAN_DECODER,
        ),
        "Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
        50,
        480,
        832,
        5.0,
        guided="calls",
        frames=81,
    ),
    Pipeline(
        "wan-2.1-14b",
        (
            Part("text encoder", "umt5-xxl", tokens=512),
            denoiser("wan-2.1-14b-transformer", 16, 512),
            *WAN_DECODER,
        ),
        "Wan-AI/Wan2.1-T2V-14B-Diffusers",
        50,
        720,
        1280,
        5.0,
        guided="calls",
        frames=81,
    ),
    Pipeline(
        "cogvideox-2b",
        (t5_xxl(226), denoiser("cogvideox-2b-transformer", 16), *COGVIDEOX_DECODER),
        "zai-org/CogVideoX-2b",
        50,
        480,
        720,
        6.0,
        frames=49,
    ),
    Pipeline(
        "cogvideox-5b",
        (t5_xxl(226), denoiser("cogvideox-5b-transformer", 16), *COGVIDEOX_DECODER),
        "zai-org/CogVideoX-5b",
        50,
        480,
        720,
        6.0,
        frames=49,
    ),
)

RECORDS += (
    Pipeline(
        "cogvideox-1.5-5b",
        (
            t5_xxl(226),
            denoiser("cogvideox-1.5-5b-transformer", 16)._replace(frame_step=2),
            *COGVIDEOX_DECODER,
        ),
        "zai-org/CogVideoX1.5-5B",
        50,
        768,
        1360,
        6.0,
        frames=81,
    ),
    Pipeline(
        "hunyuanvideo",
        (
            Part("text encoder", "llama-3-8b", tokens=351),
            CLIP_L,
            denoiser("hunyuanvideo-transformer", 16),
            Part("decoder", "hunyuanvideo-vae", grid=8),
        ),
        "hunyuanvideo-community/HunyuanVideo",
        50,
        720,
        1280,
        6.0,
        guided="none",
        frames=129,
    ),
    Pipeline(
        "wan-2.2-14b",
        (
            Part("text encoder", "umt5-xxl", tokens=512),
            denoiser("wan-2.1-14b-transformer", 16, 512)._replace(copies=2),
            *WAN_DECODER,
        ),
        "Wan-AI/Wan2.2-T2V-A14B-Diffusers",
        40,
        720,
        1280,
        4.0,
        guided="calls",
        frames=81,
    ),
    Pipeline(
        "wan-2.2-5b",
        (
            Part("text encoder", "umt5-xxl", tokens=512),
            denoiser("wan-2.2-5b-transformer", 32, 512),
            Part("decoder", "wan-2.2-vae-first", grid=16),
            Part("decoder", "wan-2.2-vae-later", grid=16, runs="later frame", is_loaded_before=True),
        ),
        "Wan-AI/Wan2.2-TI2V-5B-Diffusers",
        50,
        704,
        1280,
        5.0,
        guided="calls",
        frames=121,
    ),
    Pipeline(
        "ltx-video",
        (
            t5_xxl(128),
            denoiser("ltx-video-transformer", 32),
            Part("decoder", "ltx-video-vae", grid=32),
        ),
        "Lightricks/LTX-Video",
        50,
        480,
        704,
        3.0,
        frames=161,
        frames_per_latent=8,
    ),
    Pipeline(
        "qwen-image",
        (
            Part("text encoder", "qwen2.5-7b", tokens=64),
            denoiser("qwen-image-transformer", 16, 64),
            WAN_DECODER[0],
        ),
        "Qwen/Qwen-Image",
        50,
        1328,
        1328,
        4.0,
        guided="calls",
    ),
    Pipeline(
        "flux.2-dev",
        (
            Part("text encoder", "mistral-small-24b", tokens=512),
            denoiser("flux.2-dev-transformer", 16, 512),
            Part("decoder", "flux.2-vae", grid=8),
        ),
        "black-forest-labs/FLUX.2-dev",
        50,
        1024,
        1024,
        4.0,
        guided="none",
    ),
)

PIPELINES = {record.name: record for record in RECORDS}
"""Pipelines by name."""

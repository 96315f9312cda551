"""Modules of diffusers and transformers that parts of pipelines consist of: how each is built and called.

A module is built on the meta device from its configuration, without weights, and traced at a few sizes. Tensors are
given by their shapes, as `paleo_lite.architectures.trace` takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from ..free_sizes import Basis, all_monomials
from ..inputs import Values
from .prepared import (
    Decode,
    DecodeCogVideoX,
    DecodeFrames,
    DecodeMochi,
    DecodeWan,
    DecodeWanLater,
    DenoiseList,
    Encode,
    for_whole_batches,
    on_meta,
    with_plain_positions,
)

Sizes = Mapping[str, int]
Config = Mapping[str, Any]
Inputs = Callable[[Any, Config, Sizes], dict[str, Any]]
"""Function from a module, its configuration and free sizes to the arguments of ``forward``; ``""`` has further
positional ones."""


class ModuleCalls(NamedTuple):
    """How a class of modules is called."""

    library: str  # package of the class: ``diffusers`` or ``transformers``
    inputs: Inputs  # see `Inputs`
    basis: Basis  # values of the free sizes at which the module is traced
    # Function that replaces the built module, such as by its decoder (`prepared`).
    prepare: Callable[[nn.Module], nn.Module] | None = None


_PICTURE = {"h": (2, 4), "w": (2, 4)}
_VIDEO = {**_PICTURE, "f": (2, 4)}
_PROMPT = {"t": (64, 128)}
PICTURE, VIDEO, TEXT = all_monomials(_PICTURE), all_monomials(_VIDEO), all_monomials({"t": (16, 32, 64)})
PICTURE_AND_PROMPT, VIDEO_AND_PROMPT = all_monomials({**_PICTURE, **_PROMPT}), all_monomials({**_VIDEO, **_PROMPT})

LARGE_PICTURE_AND_PROMPT = all_monomials({"h": (32, 64), "w": (32, 64), **_PROMPT})
LARGE_VIDEO = all_monomials({"h": (32, 64), "w": (32, 64), "f": (16, 32)})
"""For modules whose tables of rotary embeddings are moved between devices in small pictures and videos."""

_U_NET_SIZES = (
    (16, 17), (17, 22), (18, 29), (20, 16), (21, 31), (22, 19), (23, 24), (25, 20), (27, 26), (28, 18), (30, 25),
    (31, 23), (29, 30), (32, 32),
)  # fmt: skip
U_NET = Basis(
    [{"h": height, "w": width} for height, width in _U_NET_SIZES],
    ["1", "h", "i", "j", "k", "w", "x", "y", "z", "hw", "ix", "jy", "kz"],
    {"i": ("h", 2), "j": ("h", 4), "k": ("h", 8), "x": ("w", 2), "y": ("w", 4), "z": ("w", 8)},
)
"""For U-Nets, whose maps have half the height and width of the one before, rounded up."""
VIDEO_U_NET = Basis(
    [{**sizes, "f": 2 + index % 3} for index, sizes in enumerate(U_NET.samples)],
    [*U_NET.monomials, "f"],
    U_NET.quotients,
)
_PADDED_SIZES = ((8, 8, 64), (8, 12, 128), (16, 10, 64), (12, 8, 128), (10, 16, 64), (16, 16, 128))
PADDED = Basis(
    [{"h": height, "w": width, "t": tokens} for height, width, tokens in _PADDED_SIZES],
    ["1", "h", "w", "t", "p"],
    {"p": ("hw", 32)},
)
"""For Z-Image, which pads the tokens of a picture to a multiple of 32; those of text must be one. The traced pictures
need no padding, which has layers of its own."""

STEP = (1,)


def _unet(module: Any, config: Config, sizes: Sizes) -> dict[str, Any]:
    inputs: dict[str, Any] = {
        "sample": (1, config.get("in_channels", 4), sizes["h"], sizes["w"]),
        "timestep": STEP,
        "encoder_hidden_states": (1, 77, config["cross_attention_dim"]),
    }
    if config.get("addition_embed_type") == "text_time":
        ids = 5 if config["projection_class_embeddings_input_dim"] == 2560 else 6
        text = config["projection_class_embeddings_input_dim"] - ids * config["addition_time_embed_dim"]
        inputs["added_cond_kwargs"] = {"text_embeds": (1, text), "time_ids": (1, ids)}
    return inputs


def _sd3(module: Any, config: Config, sizes: Sizes) -> dict[str, Any]:
    return {
        "hidden_states": (1, 16, 2 * sizes["h"], 2 * sizes["w"]),
        "encoder_hidden_states": (1, sizes["t"], 4096),
        "pooled_projections": (1, 2048),
        "timestep": STEP,
    }


def _flux(module: Any, config: Config, sizes: Sizes) -> dict[str, Any]:
    tokens = sizes["h"] * sizes["w"]
    inputs: dict[str, Any] = {
        "hidden_states": (1, tokens, 64),
        "encoder_hidden_states": (1, sizes["t"], 4096),
        "pooled_projections": (1, 768),
        "timestep": STEP,
        "img_ids": (tokens, 3),
        "txt_ids": (sizes["t"], 3),
    }
    if config.get("guidance_embeds"):
        inputs["guidance"] = STEP
    return inputs


def _pixart(module: Any, config: Config, sizes: Sizes) -> dict[str, Any]:
    return {
        "hidden_states": (1, 4, 2 * sizes["h"], 2 * sizes["w"]),
        "encoder_hidden_states": (1, sizes["t"], 4096),
        "encoder_attention_mask": (1, sizes["t"]),
        "timestep": STEP,
        "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
    }


def _sana(module: Any, config: Config, sizes: Sizes) -> dict[str, Any]:
    return {
        "hidden_states": (1, 32, sizes["h"], sizes["w"]),
        "encoder_hidden_states": (1, sizes["t"], 2304),
        "encoder_attention_mask": (1, sizes["t"]),
        "timestep": STEP,
    }


def _hunyuan_dit(module: Any, config: Config, sizes: Sizes) -> dict[str, Any]:
    tokens = sizes["h"] * sizes["w"]
    return {
        "hidden_states": (1, 4, 2 * sizes["h"], 2 * sizes["w"]),
        "timestep": STEP,
        "encoder_hidden_states": (1, 77, 1024),
        "text_embedding_mask": torch.ones(1, 77, dtype=torch.int64),
        "encoder_hidden_states_t5": (1, 256, 2048),
        "text_embedding_mask_t5": torch.ones(1, 256, dtype=torch.int64),
        "image_rotary_emb": ((tokens, 88), (tokens, 88)),
    }


def _wan(module: Any, config: Config, sizes: Sizes) -> dict[str, Any]:
    channels = config.get("in_channels", 16)
    return {
        "hidden_states": (1, channels, sizes["f"], 2 * sizes["h"], 2 * sizes["w"]),
        "timestep": STEP,
        "encoder_hidden_states": (1, sizes["t"], 4096),
    }


def _cogvideox(module: Any, config: Config, sizes: Sizes) -> dict[str, Any]:
    frames = sizes["f"]
    inputs: dict[str, Any] = {
        "hidden_states": (1, frames, 16, 2 * sizes["h"], 2 * sizes["w"]),
        "encoder_hidden_states": (1, config.get("max_text_seq_length", 226), 4096),
        "timestep": STEP,
    }
    if config.get("use_rotary_positional_embeddings"):
        tokens = frames // config.get("patch_size_t", 1) * sizes["h"] * sizes["w"]
        inputs["image_rotary_emb"] = ((tokens, 64), (tokens, 64))
    return inputs


def _cogvideox_1_5(module: Any, config: Config, sizes: Sizes) -> dict[str, Any]:
    return _cogvideox(module, config, {**sizes, "f": 2 * sizes["f"]})


def _all_tokens(tokens: int) -> Values:
    """Return a mask of text without padding."""
    return Values(torch.ones(1, tokens, dtype=torch.int64))


def _hunyuan_video(module: Any, config: Config, sizes: Sizes) -> dict[str, Any]:
    return {
        "hidden_states": (1, 16, sizes["f"], 2 * sizes["h"], 2 * sizes["w"]),
        "timestep": STEP,
        "encoder_hidden_states": (1, 256, 4096),
        "encoder_attention_mask": _all_tokens(256),
        "pooled_projections": (1, 768),
        "guidance": STEP,
    }


def _ltx_video(module: Any, config: Config, sizes: Sizes) -> dict[str, Any]:
    frames, height, width = sizes["f"], sizes["h"], sizes["w"]
    return {
        "hidden_states": (1, frames * height * width, 128),
        "encoder_hidden_states": (1, 128, 4096),
        "timestep": STEP,
        "encoder_attention_mask": torch.ones(1, 128, dtype=torch.int64),
        "num_frames": frames,
        "height": height,
        "width": width,
    }


class FrameSize:
    """Frames, height and width of a picture, which are no shape of a tensor."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes

    def __iter__(self) -> Iterator[int]:
        return iter(self.sizes)


def _qwen_image(module: Any, config: Config, sizes: Sizes) -> dict[str, Any]:
    return {
        "hidden_states": (1, sizes["h"] * sizes["w"], 64),
        "encoder_hidden_states": (1, sizes["t"], 3584),
        "encoder_hidden_states_mask": None,
        "timestep": STEP,
        "img_shapes": [[FrameSize(1, sizes["h"], sizes["w"])]],
    }


def _flux_2(module: Any, config: Config, sizes: Sizes) -> dict[str, Any]:
    tokens = sizes["h"] * sizes["w"]
    return {
        "hidden_states": (1, tokens, 128),
        "encoder_hidden_states": (1, sizes["t"], config.get("joint_attention_dim", 15360)),
        "timestep": STEP,
        "img_ids": (tokens, 4),
        "txt_ids": (sizes["t"], 4),
        "guidance": STEP,
    }


def _mochi(module: Any, config: Config, sizes: Sizes) -> dict[str, Any]:
    return {
        "hidden_states": (1, 12, sizes["f"], 2 * sizes["h"], 2 * sizes["w"]),
        "encoder_hidden_states": (1, sizes["t"], 4096),
        "timestep": STEP,
        "encoder_attention_mask": torch.ones(1, sizes["t"], dtype=torch.int64),
    }


def _z_image(module: Any, config: Config, sizes: Sizes) -> dict[str, Any]:
    return {
        "latents": (1, 16, 1, 2 * sizes["h"], 2 * sizes["w"]),
        "timestep": STEP,
        "text": (1, sizes["t"], config.get("cap_feat_dim", 2560)),
    }


def _stable_video(module: Any, config: Config, sizes: Sizes) -> dict[str, Any]:
    return {
        "sample": (1, sizes["f"], 8, sizes["h"], sizes["w"]),
        "timestep": STEP,
        "encoder_hidden_states": (1, 1, 1024),
        "added_time_ids": (1, 3),
    }


def _frames_of_latents(module: Any, config: Config, sizes: Sizes) -> dict[str, Any]:
    return {"latents": (1, sizes["f"], config["latent_channels"], sizes["h"], sizes["w"])}


def _picture(module: Any, config: Config, sizes: Sizes) -> dict[str, Any]:
    return {"picture": (1, 3, 8 * sizes["h"], 8 * sizes["w"])}


def _clip_picture(module: Any, config: Config, sizes: Sizes) -> dict[str, Any]:
    return {"pixel_values": (1, 3, config["image_size"], config["image_size"])}


def _video_latents(channels: int) -> Inputs:
    def inputs(module: Any, config: Config, sizes: Sizes) -> dict[str, Any]:
        return {"latents": (1, channels, sizes["f"], sizes["h"], sizes["w"])}

    return inputs


def _latents(module: Any, config: Config, sizes: Sizes) -> dict[str, Any]:
    return {"latents": (1, config.get("latent_channels", 4), sizes["h"], sizes["w"])}


def _wan_latents(module: Any, config: Config, sizes: Sizes) -> dict[str, Any]:
    return {"latents": (1, config.get("z_dim", 16), 1, sizes["h"], sizes["w"])}


def _wan_latents_later(module: Any, config: Config, sizes: Sizes) -> dict[str, Any]:
    latents = torch.empty(_wan_latents(module, config, sizes)["latents"], dtype=torch.bfloat16, device="meta")
    cache: list[Any] = [None] * module.convolutions
    hidden = module.post_quant_conv(latents)
    module.decoder(hidden, feat_cache=cache, feat_idx=[0], first_chunk=True)
    module.decoder(hidden, feat_cache=cache, feat_idx=[0])
    return {"latents": latents, "": cache}


def _cogvideox_latents(frames: int) -> Inputs:
    def inputs(module: Any, config: Config, sizes: Sizes) -> dict[str, Any]:
        return {"latents": (1, config.get("latent_channels", 16), frames, sizes["h"], sizes["w"])}

    return inputs


def _cogvideox_latents_later(module: Any, config: Config, sizes: Sizes) -> dict[str, Any]:
    latents = torch.empty(_cogvideox_latents(2)(module, config, sizes)["latents"], dtype=torch.bfloat16, device="meta")
    _, cache = module.decoder(latents)
    _, cache = module.decoder(latents, conv_cache=cache)
    return {"latents": latents, "conv_cache": cache}


def _text(module: Any, config: Config, sizes: Sizes) -> dict[str, Any]:
    return {"input_ids": torch.zeros(1, sizes.get("t", 77), dtype=torch.int64, device="meta")}


MODULES = {
    "UNet2DConditionModel": ModuleCalls("diffusers", _unet, U_NET),
    "SD3Transformer2DModel": ModuleCalls("diffusers", _sd3, PICTURE_AND_PROMPT),
    "FluxTransformer2DModel": ModuleCalls("diffusers", _flux, PICTURE_AND_PROMPT),
    "PixArtTransformer2DModel": ModuleCalls("diffusers", _pixart, PICTURE_AND_PROMPT),
    "SanaTransformer2DModel": ModuleCalls("diffusers", _sana, PICTURE_AND_PROMPT),
    "HunyuanDiT2DModel": ModuleCalls("diffusers", _hunyuan_dit, PICTURE),
    "WanTransformer3DModel": ModuleCalls("diffusers", _wan, VIDEO_AND_PROMPT),
    "CogVideoXTransformer3DModel": ModuleCalls("diffusers", _cogvideox, VIDEO),
    "CogVideoXTransformer3DModel:pairs": ModuleCalls("diffusers", _cogvideox_1_5, VIDEO),
    "HunyuanVideoTransformer3DModel": ModuleCalls("diffusers", _hunyuan_video, LARGE_VIDEO),
    "LTXVideoTransformer3DModel": ModuleCalls("diffusers", _ltx_video, VIDEO),
    "QwenImageTransformer2DModel": ModuleCalls(
        "diffusers", _qwen_image, LARGE_PICTURE_AND_PROMPT, with_plain_positions
    ),
    "Flux2Transformer2DModel": ModuleCalls("diffusers", _flux_2, PICTURE_AND_PROMPT),
    "MochiTransformer3DModel": ModuleCalls("diffusers", _mochi, VIDEO_AND_PROMPT, for_whole_batches),
    "ZImageTransformer2DModel": ModuleCalls("diffusers", _z_image, PADDED, DenoiseList),
    "UNetSpatioTemporalConditionModel": ModuleCalls("diffusers", _stable_video, VIDEO_U_NET, on_meta),
    "AutoencoderKLTemporalDecoder": ModuleCalls("diffusers", _frames_of_latents, VIDEO, DecodeFrames),
    "AutoencoderKLTemporalDecoder:encoder": ModuleCalls("diffusers", _picture, PICTURE, Encode),
    "AutoencoderKLMochi": ModuleCalls("diffusers", _video_latents(12), VIDEO, DecodeMochi),
    "AutoencoderKLFlux2": ModuleCalls("diffusers", _latents, PICTURE, Decode),
    "CLIPVisionModelWithProjection": ModuleCalls("transformers", _clip_picture, PICTURE),
    "AutoencoderKLHunyuanVideo": ModuleCalls("diffusers", _video_latents(16), VIDEO, Decode),
    "AutoencoderKLLTXVideo": ModuleCalls("diffusers", _video_latents(128), VIDEO, Decode),
    "AutoencoderKL": ModuleCalls("diffusers", _latents, PICTURE, Decode),
    # Its attention is linear from 64 latent pixels on.
    "AutoencoderDC": ModuleCalls("diffusers", _latents, all_monomials({"h": (8, 16), "w": (8, 16)}), Decode),
    "AutoencoderKLWan:first": ModuleCalls("diffusers", _wan_latents, PICTURE, DecodeWan),
    "AutoencoderKLWan:later": ModuleCalls("diffusers", _wan_latents_later, PICTURE, DecodeWanLater),
    "AutoencoderKLCogVideoX:first": ModuleCalls("diffusers", _cogvideox_latents(3), PICTURE, DecodeCogVideoX),
    "AutoencoderKLCogVideoX:later": ModuleCalls("diffusers", _cogvideox_latents_later, PICTURE, DecodeCogVideoX),
    "CLIPTextModel": ModuleCalls("transformers", _text, TEXT),
    "CLIPTextModelWithProjection": ModuleCalls("transformers", _text, TEXT),
    "T5EncoderModel": ModuleCalls("transformers", _text, TEXT),
    "BertModel": ModuleCalls("transformers", _text, TEXT),
    "MT5EncoderModel": ModuleCalls("transformers", _text, TEXT),
    "UMT5EncoderModel": ModuleCalls("transformers", _text, TEXT),
}
"""Modules by the name of their class; behind a colon one of several ways in which it is called."""

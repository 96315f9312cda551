"""Configs and inputs of the parts of pipelines, against the descriptors that diffusers and transformers were traced to.

A descriptor has the layers and weights of the module that a config made, and the inputs with which it ran, and its
parameters are those of the publisher's checkpoint (`test_pipelines.py`): each value of a config is found in it again.

Tests: architectures/pipelines/configs.py, architectures/pipelines/modules.py.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from math import prod
from typing import Any, NamedTuple

import pytest
import torch

from paleo_lite.architectures.descriptor import decode_descriptor, read_bounded
from paleo_lite.architectures.network import Network
from paleo_lite.architectures.pipelines.configs import CONFIGS
from paleo_lite.architectures.pipelines.modules import MODULES
from paleo_lite.files import shipped_folder

SIZES = {"h": 6, "w": 10, "f": 4, "t": 32}
"""Free sizes, in which height and width differ."""
PADDED_SIZES = {"h": 8, "w": 12, "f": 4, "t": 64}
"""Those of Z-Image, which pads the tokens of a picture to a multiple of 32."""


def sizes_of(name: str) -> dict[str, int]:
    return PADDED_SIZES if name.startswith("z-image") else SIZES


@cache
def shipped(name: str) -> Network:
    """The network of a descriptor at `sizes_of` it."""
    path = shipped_folder("models") / "diffusion" / f"{name}.json.gz"
    free = MODULES[CONFIGS[name][0]].basis.samples[0]
    return decode_descriptor(read_bounded(path), path, {size: sizes_of(name)[size] for size in free})


class Width(NamedTuple):
    """A dimension of a weight that is the product of values of the config and a number."""

    layer: str  # pattern of the layers' names; the first one is read
    axis: int  # of its first weight
    keys: str  # keys of the config, separated by spaces; `key[2]` is an entry of a list
    factor: float = 1


class Depth(NamedTuple):
    """A number of layers that is the sum of a value of the config and a number."""

    layer: str  # pattern of the layers' names, all of which are counted
    key: str
    added: int = 0


class Heads(NamedTuple):
    """The heads of an attention layer."""

    layer: str  # pattern of the attention layers' names; the first one is read
    key: str


FIRST = r"(transformer_)?blocks\.0\."
TEXT = r"(vision_model\.)?encoder\.layers"
_UNET = [
    Width(r"conv_in", 0, "block_out_channels[0]"),
    *(Width(rf"down_blocks\.{block}\.resnets\.1\.conv1", 0, f"block_out_channels[{block}]") for block in range(4)),
    Width(r"down_blocks\.1\.attentions\.0\.transformer_blocks\.0\.attn2\.to_k", 1, "cross_attention_dim"),
    Width(r"add_embedding\.linear_1", 1, "projection_class_embeddings_input_dim"),
    *(
        Depth(
            rf"down_blocks\.{block}\.attentions\.0\.transformer_blocks\.\d+\.attn1\.to_q",
            f"transformer_layers_per_block[{block}]",
        )
        for block in range(4)
    ),
    *(
        Heads(rf"down_blocks\.{block}\.attentions\.0\.transformer_blocks\.0\.attn1\..*", f"attention_head_dim[{block}]")
        for block in range(4)
    ),
]
_VAE = [
    Width(r"decoder\.conv_in", 1, "latent_channels"),
    *(
        Width(
            rf"decoder\.up_blocks\.{block}\.resnets\.1\.(spatial_res_block\.)?conv1",
            0,
            f"block_out_channels[{-1 - block}]",
        )
        for block in range(4)
    ),
    Depth(r"decoder\.up_blocks\.0\.resnets\.\d+\.(spatial_res_block\.)?conv1", "layers_per_block", 1),
]
_WAN_VAE = [
    Width(r"decoder\.conv_in", 0, "decoder_base_dim", 4),  # the first of the factors (1, 2, 4, 4) from the end
    Width(r"decoder\.conv_in", 1, "z_dim"),
    Width(r"decoder\.conv_out", 0, "out_channels"),
]
_CLIP = [
    Width(rf"{TEXT}\.0\.self_attn\.q_proj", 0, "hidden_size"),
    Width(rf"{TEXT}\.0\.mlp\.fc1", 0, "intermediate_size"),
    Depth(rf"{TEXT}\.\d+\.mlp\.fc1", "num_hidden_layers"),
    Heads(rf"{TEXT}\.0\.self_attn.*", "num_attention_heads"),
    Width(r"embeddings\.token_embedding", 0, "vocab_size"),
]
_T5 = [
    Width(r"encoder\.embed_tokens", 0, "vocab_size"),
    Width(r"encoder\.embed_tokens", 1, "d_model"),
    Width(r".*\.0\.layer\.1\.DenseReluDense\.wo", 1, "d_ff"),
    Width(r".*\.0\.layer\.0\.SelfAttention\.q", 0, "d_kv num_heads"),
    Width(r".*\.0\.layer\.0\.SelfAttention\.relative_attention_bias", 1, "num_heads"),
    Depth(r".*\.SelfAttention\.q", "num_layers"),
]
_DENOISER = [
    Width(rf"{FIRST}attn1?\.to_q", 0, "num_attention_heads attention_head_dim"),
    Depth(r"(transformer_)?blocks\.\d+\.attn1?\.to_q", "num_layers"),
    Width(rf"{FIRST}attn2\.to_k", 1, "cross_attention_dim"),
    Width(r"caption_projection\.linear_1", 1, "caption_channels"),
    Width(r"p(os|atch)_embed\.proj|patch_embedding", 1, "in_channels"),
]
RULES: dict[str, list[Width | Depth | Heads]] = {
    "UNet2DConditionModel": _UNET,
    "SD3Transformer2DModel": [
        *_DENOISER,
        Width(r"pos_embed\.proj", 2, "patch_size"),
        Width(r"context_embedder", 1, "joint_attention_dim"),
        Width(r"context_embedder", 0, "caption_projection_dim"),
        Width(r"time_text_embed\.text_embedder\.linear_1", 1, "pooled_projection_dim"),
        Width(r"proj_out", 0, "out_channels patch_size patch_size"),
    ],
    "PixArtTransformer2DModel": [*_DENOISER, Width(r"proj_out", 0, "out_channels", 2**2)],
    "SanaTransformer2DModel": [
        *_DENOISER,
        Width(r"patch_embed\.proj", 2, "patch_size"),
        Width(rf"{FIRST}attn2\.to_q", 0, "num_cross_attention_heads cross_attention_head_dim"),
        Width(rf"{FIRST}ff\.conv_point", 1, "num_attention_heads attention_head_dim mlp_ratio"),
        Width(r"proj_out", 0, "out_channels"),
    ],
    "HunyuanDiT2DModel": [
        *_DENOISER[:2],
        _DENOISER[-1],
        Width(r"pos_embed\.proj", 0, "hidden_size"),
        Width(r"pos_embed\.proj", 2, "patch_size"),
        Width(r"text_embedder\.linear_1", 1, "cross_attention_dim_t5"),
        Width(r"text_embedder\.linear_2", 0, "cross_attention_dim"),
        Width(r"time_extra_emb\.pooler\.c_proj", 0, "pooled_projection_dim"),
    ],
    "WanTransformer3DModel": [
        *_DENOISER[1:2],
        _DENOISER[-1],
        Width(rf"{FIRST}attn1\.to_q", 0, "num_attention_heads", 128),  # the default of attention_head_dim
        Width(rf"{FIRST}ffn\.net\.0\.proj", 0, "ffn_dim"),
        Width(r"proj_out", 0, "out_channels", 2**2),
    ],
    "CogVideoXTransformer3DModel": [
        _DENOISER[1], Width(rf"{FIRST}attn1\.to_q", 0, "num_attention_heads", 64),
        Width(r"patch_embed\.proj", 1, "patch_size_t", 16 * 2**2),
    ],
    "Flux2Transformer2DModel": [
        _DENOISER[1],
        Width(rf"{FIRST}attn\.to_q", 0, "num_attention_heads", 128),
        Width(r"context_embedder", 1, "joint_attention_dim"),
        Depth(r"single_transformer_blocks\.\d+\.attn\.to_qkv_mlp_proj", "num_single_layers"),
    ],
    "AutoencoderKL": _VAE,
    "AutoencoderKLFlux2": [Width(r"decoder\.conv_in", 1, "latent_channels")],
    "AutoencoderKLTemporalDecoder": _VAE,
    "AutoencoderKLWan": _WAN_VAE,
    "AutoencoderDC": [
        Width(r"decoder\.conv_in", 1, "latent_channels"),
        Width(r"decoder\.conv_in", 0, "decoder_block_out_channels[5]"),
        *(
            Depth(rf"decoder\.up_blocks\.{block}\.\d+\.(attn\.to_q|conv1)", f"decoder_layers_per_block[{block}]")
            for block in range(6)
        ),
        *(
            Width(rf"decoder\.up_blocks\.{block}\.\d+\.(attn\.to_q|conv1)", 1, f"decoder_block_out_channels[{block}]")
            for block in range(6)
        ),
    ],
    "CLIPTextModel": _CLIP,
    "CLIPVisionModelWithProjection": [
        *_CLIP[:4],
        Width(r"vision_model\.embeddings\.patch_embedding", 2, "patch_size"),
        Width(r"visual_projection", 0, "projection_dim"),
    ],
    "T5EncoderModel": _T5, "MT5EncoderModel": _T5, "UMT5EncoderModel": _T5,
    "BertModel": [
        Width(r"embeddings\.word_embeddings", 0, "vocab_size"),
        Width(r"embeddings\.word_embeddings", 1, "hidden_size"),
        Width(r"encoder\.layer\.0\.intermediate\.dense", 0, "intermediate_size"),
        Depth(r"encoder\.layer\.\d+\.output\.dense", "num_hidden_layers"),
        Heads(r"encoder\.layer\.0\.attention\.self.*", "num_attention_heads"),
    ],
}  # fmt: skip


OF_ATTENTION = ("transformer_layers_per_block", "attention_head_dim")
USUAL_BLOCKS = ("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",)
"""Values for blocks with attention, and the blocks of a U-Net whose config does not name them."""


def value_of(config: dict[str, Any], key: str) -> Any:
    """A value, or an entry of a list; None where the config leaves it out, or where its block has no attention."""
    name, _, place = key.removesuffix("]").partition("[")
    value = config.get(name)
    if isinstance(value, tuple):
        value = value[int(place)] if int(place) < len(value) else None
    if name in OF_ATTENTION and place:
        types = dict(enumerate(config.get("down_block_types", USUAL_BLOCKS)))
        value = value if types.get(int(place), "").startswith("CrossAttn") else None
    return value[0] if isinstance(value, tuple) else value  # the first attention of a block with several


def read(rule: Width | Depth | Heads, network: Network) -> float | None:
    """What a rule finds in a network; None where no layer has such a name."""
    named = [layer for layer in network.layers if re.fullmatch(rule.layer, layer.name)]
    if isinstance(rule, Width):
        weights = [layer.weights[0] for layer in named if layer.weights]
        return weights[0][rule.axis] if weights else None
    if isinstance(rule, Depth):
        return sum(bool(layer.weights) for layer in named)
    heads = [layer.inputs[0][1] for layer in named if layer.kind == "attention"]
    return heads[0] if heads else None


NAMED = [name for name, (kind, _) in CONFIGS.items() if kind.partition(":")[0] in RULES and kind[-8:] != ":encoder"]


@pytest.mark.parametrize("name", NAMED)
def test_each_value_of_a_config_is_found_in_the_traced_module(name: str) -> None:
    kind, config = CONFIGS[name]
    network, compared = shipped(name), 0
    for rule in RULES[kind.partition(":")[0]]:
        keys = rule.keys.split() if isinstance(rule, Width) else [rule.key]
        values = [value_of(config, key) for key in keys]
        found = read(rule, network)
        if None in values:
            continue
        expected = prod(values) * rule.factor if isinstance(rule, Width) else values[0]
        expected += rule.added if isinstance(rule, Depth) else 0
        assert found == pytest.approx(expected, abs=0.5), f"{name}: {rule}"
        compared += 1
    assert compared or not config


def shapes_in(value: Any) -> list[tuple[int, ...]]:
    """The shapes of all tensors of an argument."""
    if isinstance(value, torch.Tensor):
        return [tuple(value.shape)]
    if isinstance(value, (tuple, list)) and value and all(isinstance(size, int) for size in value):
        return [tuple(value)]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [shape for item in value for shape in shapes_in(item)]
    return [tuple(value.tensor.shape)] if hasattr(value, "tensor") else []


NOT_READ = {"hunyuanvideo-transformer": [(1, 256)]}
"""Inputs of whose values no layer depends on: the mask of text without padding."""

CACHED = ("wan-2.1-vae-later", "wan-2.2-vae-later", "cogvideox-vae-later")
"""Decoders whose further inputs come from the module itself, as it decodes the frame before."""


@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in CACHED])
def test_a_module_is_called_with_the_inputs_of_its_descriptor(name: str) -> None:
    kind, config = CONFIGS[name]
    arguments = MODULES[kind].inputs(None, config, sizes_of(name))
    called = Counter(shapes_in(arguments)) - Counter(NOT_READ.get(name, []))
    assert called == Counter(tuple(shape) for shape in shipped(name).inputs)

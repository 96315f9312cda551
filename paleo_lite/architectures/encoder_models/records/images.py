"""Encoders of images, and pairs of an encoder of text and one of images."""

from __future__ import annotations

from ...blocks.rules import BlockRules
from ...blocks.traits import Norms, Projections
from ...keys import Activation, Fields, Flag, Fraction, Integer, Record, record
from ..family import ATTENTION, FEED_FORWARD, BlocksOf, EncoderFamily, Labels, Nested
from ..traits import (
    Dense,
    EncoderModel,
    EncoderPair,
    FirstToken,
    ImageEmbedding,
    MarkedToken,
    Normalise,
    PoolByAttention,
    Stack,
    TextEmbedding,
)  # fmt: skip
from .text import bert_pooler

_IMAGE_SIZES: Fields = {
    "hidden_size": Integer("hidden_size"), "image_size": Integer("image_size", 224),
    "channels": Integer("num_channels", 3),
}  # fmt: skip
_IMAGES: Fields = {"positions": "image_size", "longest": None, "reads": "images"}

_VIT = EncoderFamily(
    name="ViT",
    root="vit",
    **_IMAGES,
    model=record(
        EncoderModel,
        embedding=record(
            ImageEmbedding, _IMAGE_SIZES, patch_size=Integer("patch_size", 16), adds_position_parameter=True,
            dropout=Fraction("hidden_dropout_prob"), projection="embeddings.patch_embeddings.projection",
            patches="embeddings.patch_embeddings", class_token="embeddings.cls_token",
            positions_name="embeddings.position_embeddings",
        ),
        blocks=record(
            Stack, name="layers", hidden_size=Integer("hidden_size"), final_norm="layernorm",
            blocks=BlocksOf(BlockRules(
                attention={
                    **ATTENTION, "bias": Flag("qkv_bias", True), "module": "attention",
                    "dropout": Fraction("attention_probs_dropout_prob"),
                },
                feed_forward={**FEED_FORWARD, "module": "mlp"},
                block={
                    "norm": "layer", "norms": Norms("layernorm_before", "", "layernorm_after"),
                    "dropout": Fraction("hidden_dropout_prob"),
                },
            )),
        ),
    ),
    heads={
        "ForImageClassification": (FirstToken(), record(Dense, name="classifier", outputs=Labels())),
        "Model": bert_pooler(""),
    },
)  # fmt: skip


def _stack(activation: Activation, final_norm: str = "", is_causal: bool = False) -> Record:
    """Return the blocks of CLIP's or SigLIP's encoders."""
    rules = BlockRules(
        attention={**ATTENTION, "projections": Projections(output="out_proj"), "is_causal": is_causal},
        feed_forward={**FEED_FORWARD, "module": "mlp", "activation": activation},
        block={"norm": "layer", "norms": Norms("layer_norm1", "", "layer_norm2")},
    )
    return record(
        Stack,
        name="encoder.layers",
        hidden_size=Integer("hidden_size"),
        final_norm=final_norm,
        blocks=BlocksOf(rules),
    )


_CLIP = Activation(default="quick_gelu")
_SIGLIP = Activation(default="gelu_pytorch_tanh")
_TEXT: Fields = {
    "vocabulary": Integer("vocab_size", 49408), "size": Integer("hidden_size"),
    "position_kind": "buffer", "positions": Integer("max_position_embeddings", 77), "norm_name": "",
    "is_reshaped": True, "words_name": "embeddings.token_embedding", "positions_name": "embeddings.position_embedding",
}  # fmt: skip
_CLIP_VISION = EncoderFamily(
    name="CLIPVision",
    **_IMAGES,
    model=record(
        EncoderModel,
        embedding=record(
            ImageEmbedding, _IMAGE_SIZES, patch_size=Integer("patch_size", 32), has_bias=False,
            class_token="embeddings.class_embedding", norm_name="pre_layrnorm",
        ),
        blocks=_stack(_CLIP),
    ),
    heads={"Model": (FirstToken(), Normalise(name="post_layernorm"))},
)  # fmt: skip
_SIGLIP_VISION = EncoderFamily(
    name="SiglipVision",
    **_IMAGES,
    model=record(
        EncoderModel,
        embedding=record(ImageEmbedding, _IMAGE_SIZES, patch_size=Integer("patch_size", 16)),
        blocks=_stack(_SIGLIP, "post_layernorm"),
    ),
    heads={
        "Model": (
            record(
                PoolByAttention, heads=Integer("num_attention_heads"), intermediate_size=Integer("intermediate_size"),
                activation=_SIGLIP, applies=Flag("vision_use_head", True),
            ),
        )
    },
)  # fmt: skip
_CLIP_TEXT = EncoderFamily(
    name="CLIPText",
    longest=77,
    model=record(
        EncoderModel,
        embedding=record(TextEmbedding, _TEXT),
        blocks=_stack(_CLIP, "final_layer_norm", is_causal=True),
    ),
    heads={"Model": (MarkedToken(),)},
)
_SIGLIP_TEXT = EncoderFamily(
    name="SiglipText",
    longest=64,
    model=record(
        EncoderModel,
        embedding=record(
            TextEmbedding, _TEXT, vocabulary=Integer("vocab_size", 32000),
            positions=Integer("max_position_embeddings", 64),
        ),
        blocks=_stack(_SIGLIP, "final_layer_norm"),
    ),
    heads={"Model": (FirstToken(), record(Dense, name="head", outputs=Integer("projection_size hidden_size")))},
)  # fmt: skip

FAMILIES: dict[str, EncoderFamily] = {
    "vit": _VIT,
    "siglip_vision_model": _SIGLIP_VISION,
    "siglip_text_model": _SIGLIP_TEXT,
    "siglip": EncoderFamily(
        name="Siglip",
        reads="text and images",
        inputs=2,
        model=record(
            EncoderPair, text=Nested("text_config", "siglip_text_model", _SIGLIP_TEXT),
            image=Nested("vision_config", "siglip_vision_model", _SIGLIP_VISION), has_bias=True,
        ),
        heads={"Model": ()},
    ),
    "clip_vision_model": _CLIP_VISION,
    "clip_text_model": _CLIP_TEXT,
    "clip": EncoderFamily(
        name="CLIP",
        reads="text and images",
        inputs=2,
        model=record(
            EncoderPair, text=Nested("text_config", "clip_text_model", _CLIP_TEXT),
            image=Nested("vision_config", "clip_vision_model", _CLIP_VISION),
            projection_size=Integer("projection_dim", 512),
        ),
        heads={"Model": ()},
    ),
}  # fmt: skip

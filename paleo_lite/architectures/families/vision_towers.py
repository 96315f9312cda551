"""Vision towers by the ``model_type`` of a vision config: one record of the fields of `VisionTower` for each.

The keys ``text_hidden_size`` and ``text_inner_size`` are those of the text config, with which a tower is read.
"""

from __future__ import annotations

from math import isqrt
from typing import Any, NamedTuple

from ..config import Config
from ..keys import (
    Activation,
    Fields,
    Flag,
    HeadSize,
    IfSet,
    Integer,
    Length,
    Multiple,
    Product,
    QuotientOf,
    Sum,
    read_fields,
)  # fmt: skip
from .tower import VisionTower


class SideOf(NamedTuple):
    """The patches along a side of an image: the image size by the patch size, or the root of the table's rows.

    Patches beyond the last whole one are left out where `is_cut`; otherwise the patch size must divide the image size.

    A config without both has a number of its own as default.
    """

    rows: str = ""
    default: int | None = None
    is_cut: bool = False

    def read(self, config: Config) -> int:
        """Return the number of patches."""
        patch_size = config.positive_integer("patch_size")
        image_size = config.optional_integer("image_size")
        if image_size is not None:
            if image_size % patch_size and not self.is_cut:
                raise config.fail(f"an image of {image_size} pixels is not a multiple of the patch size, {patch_size}")
            return image_size // patch_size
        rows = config.optional_integer(self.rows) if self.rows else None
        if rows is None and self.default is not None:
            return self.default
        return isqrt(rows or config.positive_integer(self.rows or "image_size"))


class PatchValues(NamedTuple):
    """The values of a patch: channels times pixels times frames."""

    frames: str = ""

    def read(self, config: Config) -> int:
        """Return the number of values."""
        channels = Integer("in_channels num_channels", 3).read(config) or 3
        frames = config.positive_integer(self.frames, 2) if self.frames else 1
        return channels * frames * config.positive_integer("patch_size") ** 2


class PatchesAndOne(NamedTuple):
    """The patches of an image and one class token."""

    def read(self, config: Config) -> int:
        """Return the number."""
        return SideOf().read(config) ** 2 + 1


class Patches(NamedTuple):
    """The patches of an image."""

    def read(self, config: Config) -> int:
        """Return the number."""
        return SideOf(is_cut=True).read(config) ** 2


class TilePositions(NamedTuple):
    """The rows of the position tables of Llama 3.2: the patches of a tile, and those of all arrangements of tiles."""

    def read(self, config: Config) -> int:
        """Return the number of rows."""
        listed = config.fields.get("supported_aspect_ratios", [[1, 1]] * 8)
        if not isinstance(listed, list):
            raise config.fail(f"$.supported_aspect_ratios must be a list (got {listed!r})")
        arrangements = len(listed) + 1
        return PatchesAndOne().read(config) * (1 + arrangements * config.positive_integer("max_num_tiles", 4))


class Square(NamedTuple):
    """The square of an integer."""

    key: str
    default: int

    def read(self, config: Config) -> int:
        """Return the square."""
        return config.positive_integer(self.key, self.default) ** 2


class WindowSide(NamedTuple):
    """The patches along a side of a window, whose pixels the config gives."""

    def read(self, config: Config) -> int:
        """Return the number of patches."""
        return max(config.positive_integer("window_size", 112) // config.positive_integer("patch_size"), 1)


class MergerSizes(NamedTuple):
    """The widths of Pixtral's projector, after a merger of the same width where the config merges patches."""

    def read(self, config: Config) -> tuple[int, ...]:
        """Return the widths."""
        text_size = config.positive_integer("text_hidden_size")
        is_merged = config.fields.get("spatial_merge_size") is not None
        return (config.positive_integer("hidden_size", 1024), text_size) if is_merged else (text_size,)


class Indices(NamedTuple):
    """A list of layers."""

    key: str
    default: tuple[int, ...]

    def read(self, config: Config) -> tuple[int, ...]:
        """Return the layers."""
        listed = config.fields.get(self.key, list(self.default))
        if not isinstance(listed, list) or not all(isinstance(index, int) for index in listed):
            raise config.fail(f"$.{self.key} must be a list of layers (got {listed!r})")
        return tuple(listed)


class Widths(NamedTuple):
    """The widths of the hidden layers of a merger, each an integer of the config."""

    keys: tuple[str, ...]

    def read(self, config: Config) -> tuple[int, ...]:
        """Return the widths."""
        return tuple(config.positive_integer(key) for key in self.keys)


_QWEN_VL: Fields = {
    "side": SideOf("num_position_embeddings", 48), "patch_values": PatchValues("temporal_patch_size"),
    "hidden_size": Integer("hidden_size", 1152), "depth": Integer("depth", 27), "heads": Integer("num_heads", 16),
    "head_size": QuotientOf(Integer("hidden_size", 1152), Integer("num_heads", 16)),
    "inner_size": Integer("intermediate_size", 4304), "text_size": Integer("out_hidden_size text_hidden_size"),
    "activation": Activation(("hidden_act",), "gelu_pytorch_tanh"),
    "positions": Integer("num_position_embeddings", 2304), "merged": Square("spatial_merge_size", 2),
    "deep_mergers": Length("deepstack_visual_indexes"),
}  # fmt: skip

_KIMI_HEADS = "vt_num_attention_heads num_attention_heads"
_KIMI_HIDDEN = "vt_hidden_size hidden_size"

_SIGLIP: Fields = {
    "side": SideOf(is_cut=True), "patch_values": PatchValues(), "hidden_size": Integer("hidden_size", 768),
    "depth": Integer("num_hidden_layers", 12), "heads": Integer("num_attention_heads", 12),
    "head_size": QuotientOf(Integer("hidden_size", 768), Integer("num_attention_heads", 12)),
    "inner_size": Integer("intermediate_size", 3072), "text_size": Integer("text_hidden_size"),
    "activation": Activation(("hidden_act",), "gelu_pytorch_tanh"), "has_packed_projection": False, "has_rotary": False,
    "has_final_norm": True, "positions": Patches(), "positions_per_patch": 1, "merged": 1, "merger_norm": "",
}  # fmt: skip
_SHUFFLED: Fields = {  # Idefics 3 and SmolVLM: squares of patches as one token
    **_SIGLIP, "merged": Square("scale_factor", 2), "merger_sizes": (), "merger_bias": False,
    "hidden_size": Integer("hidden_size", 1152), "heads": Integer("num_attention_heads", 16),
    "head_size": QuotientOf(Integer("hidden_size", 1152), Integer("num_attention_heads", 16)),
}  # fmt: skip
_CLIP: Fields = {
    **_SIGLIP, "patch_bias": False, "has_class_token": True, "has_first_norm": True,
    "positions": PatchesAndOne(), "activation": Activation(("hidden_act",), "quick_gelu"),
}  # fmt: skip
_GLM_VL: Fields = {
    **_QWEN_VL, "side": SideOf(default=24), "hidden_size": Integer("hidden_size", 1536), "depth": Integer("depth", 24),
    "heads": Integer("num_heads", 12), "head_size": QuotientOf(Integer("hidden_size", 1536), Integer("num_heads", 12)),
    "inner_size": Integer("out_hidden_size text_hidden_size"), "text_size": Integer("out_hidden_size text_hidden_size"),
    "activation": Activation(("hidden_act",), "silu"), "is_gated": True, "bias": Flag("attention_bias"), "norm": "rms",
    "positions": Patches(), "positions_per_patch": 16, "has_first_norm": True, "has_final_norm": True,
    "merger_norm": "", "merger_sizes": Widths(("out_hidden_size",)), "merger_inner_size": Integer("intermediate_size"),
    "deep_mergers": 0,
}  # fmt: skip
_INTERN: Fields = {
    **_SIGLIP, "activation": Activation(("hidden_act",), "gelu"), "has_class_token": True, "has_final_norm": False,
    "positions": PatchesAndOne(), "merged": 4, "merger_norm": "tokens", "merger_sizes": Widths(("text_hidden_size",)),
    "hidden_size": Integer("hidden_size", 1024), "depth": Integer("num_hidden_layers", 24),
    "heads": Integer("num_attention_heads", 16), "inner_size": Integer("intermediate_size", 4096),
    "head_size": QuotientOf(Integer("hidden_size", 1024), Integer("num_attention_heads", 16)),
}  # fmt: skip

TOWERS: dict[str, Fields] = {
    "internvl_vision": _INTERN,
    "glm4v_vision": _GLM_VL, "glm4v_moe_vision": _GLM_VL,
    "idefics3": _SHUFFLED, "idefics3_vision": _SHUFFLED, "smolvlm": _SHUFFLED, "smolvlm_vision": _SHUFFLED,
    "aya_vision": {
        **_SIGLIP, "merged": Square("downsample_factor", 2), "merger_norm": "tokens", "merger_sizes": (),
        "merger_projects": False, "merger_inner_bias": True,
        "merger_inner_size": QuotientOf(Integer("alignment_intermediate_size text_hidden_size"), Integer("", 2)),
    },
    "lfm2_vl": {
        **_SIGLIP, "side": SideOf("num_patches", 16), "positions": Integer("num_patches", 256),
        "positions_per_patch": 4,
        "merged": Square("downsample_factor", 2), "merger_norm": IfSet("projector_use_layernorm", "tokens", "", True),
        "merger_sizes": Widths(("projector_hidden_size",)), "merger_bias": Flag("projector_bias", True),
    },
    "phi3_v": {**_CLIP, "merged": 4, "merger_sizes": Widths(("text_hidden_size",))},
    "phi4mm": {**_SIGLIP, "pooled": 4, "merger_sizes": Widths(("text_hidden_size",))},
    "molmo": {  # the attention that pools patches is left out
        **_CLIP, "pooled": 4, "merger_sizes": (), "merger_projects": False,
        "merger_inner_size": QuotientOf(Integer("text_inner_size"), Integer("", 2)),
    },
    "step3_vl": {
        **_CLIP, "patch_bias": True, "has_first_norm": False, "merged": Square("understand_projector_stride", 2),
        "merger_sizes": Widths(("text_hidden_size",)),
    },
    "minicpmv": {  # slices of 448 pixels, which a resampler makes 64 tokens
        **_SIGLIP, "side": 32, "pooled": 16, "merger_sizes": Widths(("text_hidden_size",) * 5),
    },
    "mllama_vision_model": {
        **_CLIP, "hidden_size": Integer("hidden_size", 1280), "depth": Sum("num_hidden_layers", 32, 8),
        "heads": Integer("attention_heads", 16),
        "head_size": QuotientOf(Integer("hidden_size", 1280), Integer("attention_heads", 16)),
        "inner_size": Integer("intermediate_size", 5120), "activation": Activation(("hidden_act",), "gelu"),
        "positions": TilePositions(), "merger_sizes": Widths(("vision_output_dim",)),
    },
    "dots_ocr": {
        **_SIGLIP, "side": SideOf(default=48), "hidden_size": Integer("embed_dim"),
        "depth": Integer("num_hidden_layers"),
        "heads": Integer("num_attention_heads"), "inner_size": Integer("intermediate_size"),
        "activation": "silu", "is_gated": True, "bias": Flag("use_bias"),
        "has_packed_projection": True, "has_rotary": True, "norm": "rms", "positions": 0, "has_first_norm": True,
        "has_final_norm": Flag("post_norm", True), "merged": Square("spatial_merge_size", 2), "merger_norm": "patches",
        "head_size": QuotientOf(Integer("embed_dim"), Integer("num_attention_heads")),
        "text_size": Integer("hidden_size text_hidden_size"), "merger_sizes": (0,),
    },
    "ernie4_5_vl": {  # the layers that join frames of a video are left out
        **_QWEN_VL, "side": SideOf(default=48), "patch_values": PatchValues(), "depth": Integer("depth", 32),
        "hidden_size": Integer("hidden_size", 1280), "inner_size": Multiple("", Integer("mlp_ratio", 4), "hidden_size"),
        "head_size": QuotientOf(Integer("hidden_size", 1280), Integer("num_heads", 16)),
        "text_size": Integer("text_hidden_size"), "activation": Activation(("hidden_act",), "quick_gelu"),
        "patch_bias": False, "positions": 0, "deep_mergers": 0, "has_final_norm": True, "merger_norm": "",
        "merger_sizes": (0, 0, 0, 0),
    },
    "qwen3_vl": _QWEN_VL, "qwen3_vl_moe": _QWEN_VL, "qwen3_5": _QWEN_VL, "qwen3_5_moe": _QWEN_VL,
    "qwen3_omni_moe_vision_encoder": _QWEN_VL,
    "qwen2_vl": {
        **_QWEN_VL, "side": SideOf(default=48), "hidden_size": Integer("embed_dim", 1280),
        "depth": Integer("depth", 32), "heads": Integer("num_heads", 16),
        "head_size": QuotientOf(Integer("embed_dim", 1280), Integer("num_heads", 16)),
        "inner_size": Product(Integer("embed_dim", 1280), Integer("mlp_ratio", 4)),
        "text_size": Integer("hidden_size text_hidden_size"), "activation": Activation(("hidden_act",), "quick_gelu"),
        "patch_bias": False, "positions": 0, "deep_mergers": 0,
    },
    "qwen2_5_vl": {
        **_QWEN_VL, "side": SideOf(default=48), "depth": Integer("depth", 32),
        "hidden_size": Integer("hidden_size", 3584), "heads": Integer("num_heads", 16),
        "head_size": QuotientOf(Integer("hidden_size", 3584), Integer("num_heads", 16)),
        "inner_size": Integer("intermediate_size", 3420),
        "activation": Activation(("hidden_act",), "silu"), "is_gated": True, "norm": "rms", "patch_bias": False,
        "positions": 0, "deep_mergers": 0, "merger_norm_kind": "rms", "window_side": WindowSide(),
        "full_blocks": Indices("fullatt_block_indexes", (7, 15, 23, 31)),
    },
    "kimi_k25_vision": {
        "side": SideOf(default=64), "patch_values": PatchValues(), "hidden_size": Integer(_KIMI_HIDDEN),
        "depth": Integer("vt_num_hidden_layers num_hidden_layers", 27), "heads": Integer(_KIMI_HEADS),
        "head_size": HeadSize(key="", hidden=_KIMI_HIDDEN, heads=_KIMI_HEADS),
        "inner_size": Integer("vt_intermediate_size intermediate_size", 4304),
        "text_size": Integer("text_hidden_size"), "positions_per_patch": 16, "has_final_norm": True,
        "has_packed_projection": False,
        "positions": Multiple("", Integer("init_pos_emb_height pos_emb_height", 64),
                              "init_pos_emb_width pos_emb_width"),
    },
    "moonvit": {
        "side": SideOf(default=64), "patch_values": PatchValues(),
        "hidden_size": Integer("hidden_size"), "depth": Integer("num_hidden_layers"),
        "heads": Integer("num_attention_heads"), "head_size": HeadSize(key=""),
        "inner_size": Integer("intermediate_size"), "text_size": Integer("text_hidden_size"),
        "positions_per_patch": 16, "has_final_norm": True,
        "positions": Multiple("", Integer("init_pos_emb_height"), "init_pos_emb_width"),
    },
    "vision": {  # the SigLIP of DeepSeek-VL2, by the keys of timm
        "side": SideOf(default=27), "patch_values": PatchValues(), "hidden_size": Integer("width"),
        "depth": Integer("layers"), "heads": Integer("heads", 16),
        "head_size": QuotientOf(Integer("width"), Integer("heads", 16)),
        "inner_size": Multiple("", 3.7362, "width"), "text_size": Integer("text_hidden_size"),
        "has_rotary": False, "has_final_norm": True, "positions_per_patch": 1, "positions": 729, "merged": 1,
        "merger_norm": "", "merger_sizes": Widths(("text_hidden_size",)),
    },
    "pixtral": {
        "side": SideOf(default=64), "patch_values": PatchValues(), "hidden_size": Integer("hidden_size", 1024),
        "depth": Integer("num_hidden_layers", 24), "heads": Integer("num_attention_heads", 16),
        "head_size": Integer("head_dim", 64), "inner_size": Integer("intermediate_size", 4096),
        "text_size": Integer("text_hidden_size"), "activation": Activation(("hidden_act",), "gelu"),
        "is_gated": True, "bias": False, "patch_bias": False, "has_packed_projection": False, "norm": "rms",
        "has_first_norm": True,
        "merged": Square("spatial_merge_size", 1), "merger_norm": IfSet("spatial_merge_size", "patches", ""),
        "merger_norm_kind": "rms", "merger_sizes": MergerSizes(),
        "merger_bias": Flag("multimodal_projector_bias", True),
    },
    "intern_vit_6b": {
        "side": SideOf(), "patch_values": PatchValues(), "hidden_size": Integer("hidden_size"),
        "depth": Integer("num_hidden_layers"), "heads": Integer("num_attention_heads"),
        "head_size": HeadSize(key=""), "inner_size": Integer("intermediate_size"),
        "text_size": Integer("text_hidden_size"), "activation": Activation(("hidden_act",), "gelu"),
        "has_class_token": True, "has_rotary": False, "positions_per_patch": 1,
        "positions": PatchesAndOne(),
        "merged": 4, "merger_norm": "tokens", "merger_sizes": Widths(("text_hidden_size",)),
    },
    "llama4_vision_model": {
        "side": SideOf(), "patch_values": PatchValues(), "hidden_size": Integer("hidden_size"),
        "depth": Integer("num_hidden_layers"), "heads": Integer("num_attention_heads"),
        "head_size": HeadSize(key=""), "inner_size": Integer("intermediate_size"),
        "text_size": Integer("text_hidden_size"), "activation": Activation(("hidden_act",), "gelu"),
        "patch_bias": False, "has_packed_projection": False, "has_class_token": True, "has_first_norm": True,
        "has_final_norm": True, "merger_norm": "", "merger_bias": False, "positions_per_patch": 1,
        "positions": PatchesAndOne(), "merger_sizes": Widths(("projector_input_dim", "projector_output_dim")),
    },
    "gemma4_vision": {
        "side": SideOf(default=48), "patch_values": PatchValues(), "hidden_size": Integer("hidden_size"),
        "depth": Integer("num_hidden_layers"), "heads": Integer("num_attention_heads"), "head_size": HeadSize(),
        "inner_size": Integer("intermediate_size"), "text_size": Integer("text_hidden_size"),
        "activation": Activation(("hidden_activation",), "gelu_pytorch_tanh"), "is_gated": True, "bias": False,
        "patch_bias": False, "has_packed_projection": False, "norm": "rms", "has_sandwich_norms": True,
        "has_head_norms": True, "positions": Multiple("", 2, "position_embedding_size"), "positions_per_patch": 2,
        "pooled": Square("pooling_kernel_size", 3), "merged": 1, "merger_norm_kind": "rms", "merger_sizes": (),
        "merger_norm_has_weight": False,
        "merger_bias": False,
    },
}  # fmt: skip
"""Towers by the model type of the whole model, or by that of the tower."""
TOWERS["ovis2"] = TOWERS["ovis"] = {  # AIMv2 weighs visual words, whose embeddings are summed; a norm is left out
    **_SIGLIP, "hidden_size": Integer("hidden_size", 1024), "depth": Integer("num_hidden_layers", 24),
    "heads": Integer("num_attention_heads", 8), "inner_size": Integer("intermediate_size", 2816),
    "head_size": QuotientOf(Integer("hidden_size", 1024), Integer("num_attention_heads", 8)),
    "activation": Activation(("hidden_act",)), "is_gated": True, "bias": False, "norm": "rms",
    "has_first_norm": True, "merged": Square("hidden_stride", 1), "merger_sizes": Widths(("vocab_size",)),
    "merger_bias": False,
}  # fmt: skip
TOWERS["multi_modality"] = {**_SIGLIP, "merger_sizes": Widths(("text_hidden_size",))}
TOWERS["qwen2_5_omni_vision_encoder"] = TOWERS["qwen2_5_vl"]
for _whole in ("ernie4_5_moe_vl", "ernie4_5_vl_moe"):
    TOWERS[_whole] = TOWERS["ernie4_5_vl"]

_CLIP_LARGE = {  # openai/clip-vit-large-patch14-336
    "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096,
    "image_size": 336, "patch_size": 14,
}  # fmt: skip

NAMED_ONLY: dict[str, dict[str, Any]] = {
    "phi3_v": _CLIP_LARGE,
    "molmo": {**_CLIP_LARGE, "num_hidden_layers": 23},
    "phi4mm": {  # google/siglip-so400m-patch14, with images of 448 pixels
        "hidden_size": 1152, "num_hidden_layers": 27, "num_attention_heads": 16, "intermediate_size": 4304,
        "image_size": 448, "patch_size": 14,
    },
}  # fmt: skip
"""Sizes of the towers of models whose config names the tower but not its sizes, by the model type of the whole."""


NAMED_TOWERS: dict[str, dict[str, Any]] = {
    "siglip_large_patch16_384": {  # google/siglip-large-patch16-384
        "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096,
        "image_size": 384, "patch_size": 16,
    },
}  # fmt: skip
"""Sizes of the towers that a vision config names by its parameter ``model_name`` (Janus)."""


_ENCODERS = {
    "mobilenetv5_300m_enc": (294_126_912, 2048, 3),
    # SAM ViT-B, 89,670,912, with two convolutions from 256 to 512 and 1024 channels, and CLIP-L, 303,177,728
    # (DeepSeek-OCR, 2025, section 3.2), whose outputs are concatenated
    "deeplip_b_l": (398_746_880, 2048, 3),
}
"""Encoders that a config only names: parameters, width of their output, and vectors of the text model's width."""


def encoder_parameters(config: Config) -> int | None:
    """Return the parameters of an encoder that a config only names, with its projection; None where it is unknown."""
    name = str(config.fields.get("architecture", config.fields.get("model_name")))
    if name not in _ENCODERS:
        return None
    parameters, width, vectors = _ENCODERS[name]
    text_size = config.positive_integer("text_hidden_size")
    if name == "mobilenetv5_300m_enc":  # the projection has no bias, and there are embeddings of the modality
        width = config.positive_integer("hidden_size", width)
        return parameters + width * (config.positive_integer("vocab_size", 128) + 2 + text_size)
    return parameters + (width + vectors) * text_size


VQ_16 = 71_883_907
"""Parameters of the tokenizer of images that Janus writes, VQ-16 (LlamaGen, Sun et al. 2024, section 2.1)."""


def generator_parameters(fields: dict[str, Any], text_size: int) -> int:
    """Return the parameters of the parts with which Janus writes images: tokenizer, embedding, aligner and head."""
    head = fields.get("gen_head_config")
    sizes = head.get("params") if isinstance(head, dict) else None
    if not isinstance(sizes, dict):
        return 0
    config = Config(sizes, "gen_head_config")
    words, width, code = config.positive_integer("image_token_size"), config.positive_integer("image_token_embed"), 8
    aligner = (code + 1) * text_size + (text_size + 1) * text_size
    return VQ_16 + words * code + aligner + (text_size + 1) * width + (width + 1) * words


def describe_tower(
    config: Config,  # the vision config; where the image size has height and width, they must be equal
    whole_type: str = "",  # model type of the whole model, which decides before that of the tower
) -> VisionTower | None:
    """Return the record of the tower that a vision config describes; None if its type is unknown.

    Raise BadDescriptor if a key is missing or malformed.
    """
    model_type = str(config.fields.get("model_type"))
    names = (whole_type, model_type, model_type.removesuffix("_vision"))
    fields = next((TOWERS[name] for name in names if name in TOWERS), None)
    if fields is None or (model_type == "vision" and not isinstance(config.fields.get("width"), int)):
        return None  # DeepSeek's towers of other kinds have no width
    for key in ("image_size", "patch_size"):
        size = config.fields.get(key)
        if isinstance(size, list) and len(set(map(str, size))) == 1:
            config = Config({**config.fields, key: size[0]}, config.where)
    tower = VisionTower(**read_fields(fields, config))
    if tower.patches % (tower.pooled * tower.merged):
        raise config.fail(f"an image of {tower.side} x {tower.side} patches does not divide into tokens")
    return tower

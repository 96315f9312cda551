"""Vision towers by the ``model_type`` of a vision config: one record of the fields of `VisionTower` for each.

The key ``text_hidden_size`` is that of the text config, with which a tower is read.
"""

from __future__ import annotations

from math import isqrt
from typing import Any, NamedTuple

from ...config import Config
from ...keys import Activation, Fields, Flag, HeadSize, IfSet, Integer, Length, Multiple, Product
from ..vision import VisionTower


class SideOf(NamedTuple):
    """The patches along a side of an image: the image size by the patch size, or the root of the table's rows.

    A config without both has a number of its own as default.
    """

    rows: str = ""
    default: int | None = None

    def read(self, config: Config) -> int:
        """Return the number of patches."""
        patch_size = config.positive_integer("patch_size", 14)
        image_size = config.optional_integer("image_size")
        if image_size is not None:
            if image_size % patch_size:
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
        return channels * frames * config.positive_integer("patch_size", 14) ** 2


class PatchesAndOne(NamedTuple):
    """The patches of an image and one class token."""

    def read(self, config: Config) -> int:
        """Return the number."""
        return SideOf().read(config) ** 2 + 1


class Square(NamedTuple):
    """The square of an integer."""

    key: str
    default: int

    def read(self, config: Config) -> int:
        """Return the square."""
        return config.positive_integer(self.key, self.default) ** 2


class QuotientOf(NamedTuple):
    """An integer by another one, which must divide it."""

    whole: Integer
    part: Integer

    def read(self, config: Config) -> int:
        """Return the quotient."""
        whole, part = self.whole.read(config) or 0, self.part.read(config) or 1
        if whole % part:
            raise config.fail(f"$.{self.part.key} is {part}, which does not divide $.{self.whole.key}, {whole}")
        return whole // part


class WindowSide(NamedTuple):
    """The patches along a side of a window, of which the config gives the pixels."""

    def read(self, config: Config) -> int:
        """Return the number of patches."""
        return max(config.positive_integer("window_size", 112) // config.positive_integer("patch_size", 14), 1)


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

TOWERS: dict[str, Fields] = {
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
        "hidden_size": Integer("hidden_size", 1280), "heads": Integer("num_heads", 16),
        "head_size": QuotientOf(Integer("hidden_size", 1280), Integer("num_heads", 16)),
        "inner_size": Integer("intermediate_size", 3420),
        "activation": Activation(("hidden_act",), "silu"), "is_gated": True, "norm": "rms", "patch_bias": False,
        "positions": 0, "deep_mergers": 0, "merger_norm_kind": "rms", "window_side": WindowSide(),
        "full_blocks": Indices("fullatt_block_indexes", (7, 15, 23, 31)),
    },
    "kimi_k25_vision": {
        "side": SideOf(default=64), "patch_values": PatchValues(), "hidden_size": Integer(_KIMI_HIDDEN, 1152),
        "depth": Integer("vt_num_hidden_layers num_hidden_layers", 27), "heads": Integer(_KIMI_HEADS, 16),
        "head_size": HeadSize(key="", hidden=_KIMI_HIDDEN, heads=_KIMI_HEADS),
        "inner_size": Integer("vt_intermediate_size intermediate_size", 4304),
        "text_size": Integer("text_hidden_size"), "positions_per_patch": 16, "has_final_norm": True,
        "has_packed_projection": False,
        "positions": Multiple("", Integer("init_pos_emb_height pos_emb_height", 64),
                              "init_pos_emb_width pos_emb_width"),
    },
    "moonvit": {
        "side": SideOf(default=64), "patch_values": PatchValues(),
        "hidden_size": Integer("hidden_size", 1152), "depth": Integer("num_hidden_layers", 27),
        "heads": Integer("num_attention_heads", 16), "head_size": HeadSize(key=""),
        "inner_size": Integer("intermediate_size", 4304), "text_size": Integer("text_hidden_size"),
        "positions_per_patch": 16, "has_final_norm": True,
        "positions": Multiple("", Integer("init_pos_emb_height", 64), "init_pos_emb_width"),
    },
    "vision": {  # the SigLIP of DeepSeek-VL2, by the keys of timm
        "side": SideOf(default=27), "patch_values": PatchValues(), "hidden_size": Integer("width", 1152),
        "depth": Integer("layers", 27), "heads": Integer("heads", 16),
        "head_size": QuotientOf(Integer("width", 1152), Integer("heads", 16)),
        "inner_size": Multiple("", 3.7362, "width"), "text_size": Integer("text_hidden_size"),
        "has_rotary": False, "has_final_norm": True, "positions_per_patch": 1, "positions": 729, "merged": 1,
        "merger_norm": "", "merger_sizes": Widths(("text_hidden_size",)),
    },
    "pixtral": {
        "side": SideOf(default=64), "patch_values": PatchValues(), "hidden_size": Integer("hidden_size", 1024),
        "depth": Integer("num_hidden_layers", 24), "heads": Integer("num_attention_heads", 16),
        "head_size": Integer("head_dim", 64), "inner_size": Integer("intermediate_size", 4096),
        "text_size": Integer("text_hidden_size"), "activation": Activation(), "is_gated": True, "bias": False,
        "patch_bias": False, "has_packed_projection": False, "norm": "rms", "has_first_norm": True,
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
"""Towers by model type."""


def describe_tower(config: Config) -> VisionTower | None:
    """Return the record of the tower that a vision config describes; None if its type is unknown.

    Raises
    ------
    BadDescriptor
        If a key is missing or malformed.
    """
    model_type = str(config.fields.get("model_type"))
    fields = TOWERS.get(model_type, TOWERS.get(model_type.removesuffix("_vision")))
    if fields is None:
        return None
    values: dict[str, Any] = {}
    for name, value in fields.items():
        values[name] = value.read(config) if hasattr(value, "read") else value
    tower = VisionTower(**values)
    if tower.patches % (tower.pooled * tower.merged):
        raise config.fail(f"an image of {tower.side} x {tower.side} patches does not divide into tokens")
    return tower

"""The parts of a config: the fields of its text part, which multimodal models nest under keys of their own."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from ..errors import BadDescriptor
from ..text import with_article
from .config import Config
from .families.family import FAMILIES
from .families.guess import guess_family
from .families.vision_towers import NAMED_ONLY, NAMED_TOWERS

TEXT_PARTS = {
    "gemma3": "gemma3_text", "gemma4": "gemma4_text", "llama4": "llama4_text", "gemma3n": "gemma3n_text",
    "gemma4_unified": "gemma4_unified_text", "minimax_m3_vl": "minimax_m3_vl_text",
    "llava": "llama", "paligemma": "gemma",
    "qwen2_vl": "qwen2", "qwen2_5_vl": "qwen2", "qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2",
    "qwen3_vl": "qwen3_vl_text", "qwen3_vl_moe": "qwen3_vl_moe_text", "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text", "qwen3_omni_moe_thinker": "qwen3_omni_moe_text", "qwen2_5_omni_text": "qwen2",
    "qwen2_5_omni_thinker": "qwen2", "glm4v": "glm4", "glm4v_text": "glm4", "glm4v_moe": "glm4_moe",
    "glm4v_moe_text": "glm4_moe", "ernie4_5_moe_vl": "ernie4_5_vl_moe_text", "ernie4_5_vl_moe": "ernie4_5_vl_moe_text",
    "step3_vl": "step3_text", "phi3_v": "phi3", "phi4mm": "phi3",
    "molmo": "molmo_text", "deepseek_vl_v2": "deepseek_ocr_text",
}  # fmt: skip
"""Model types of vision-language models and of their text parts, where the nested config may not name its type."""

_PARTS = ("text_config", "llm_config", "language_config")
"""Keys of the nested config of the part that writes text."""

_INFINITY = re.compile(rb"(?<=[:,\[\s])(?:Infinity|NaN)(?=\s*[,\]}])")


def decode_fields(data: bytes, path: str) -> dict[str, Any]:
    """Return the fields of a config; Python writes ``Infinity``, which is no JSON, into some of them.

    Raise BadDescriptor if the file is not a JSON object.
    """
    try:
        fields = msgspec.json.decode(_INFINITY.sub(b"1e308", data))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadDescriptor(f"{path}: {error}") from None
    except RecursionError:
        raise BadDescriptor(f"{path}: the objects of a config are nested too deeply") from None
    if not isinstance(fields, dict):
        raise BadDescriptor(f"{path}: a config must be a JSON object")
    for name in ("model_type", *_PARTS, "vision_config", "thinker_config"):
        part = fields if name == "model_type" else fields.get(name)
        model_type = part.get("model_type", "") if isinstance(part, dict) else ""
        if not isinstance(model_type, (str, type(None))):
            where = "$.model_type" if part is fields else f"$.{name}.model_type"
            raise BadDescriptor(f"{path}: {where} must be text (got {model_type!r})")
    return fields


def thinker_part(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a model for every kind of input that reads and writes text (Qwen-Omni), or all fields."""
    thinker = fields.get("thinker_config")
    if not isinstance(thinker, dict):
        return fields
    return {"model_type": fields.get("model_type"), **thinker}


def named_parts(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with the configs of the parts that a config only names; other fields as they are."""
    model_type = str(fields.get("model_type"))
    tokenizer = fields.get("visual_tokenizer_config")
    if isinstance(tokenizer, dict) and isinstance(tokenizer.get("backbone_config"), dict):  # Ovis
        return {**fields, "vision_config": {**tokenizer, **tokenizer["backbone_config"]}}
    vision = fields.get("vision_config")
    named = vision.get("params") if isinstance(vision, dict) else None
    if isinstance(named, dict) and named.get("model_name") in NAMED_TOWERS:
        return {**fields, "vision_config": NAMED_TOWERS[str(named["model_name"])]}
    if model_type not in NAMED_ONLY or "vision_config" in fields:
        return fields
    completed = {**fields, "vision_config": NAMED_ONLY[model_type]}
    audio = fields.get("audio_processor")
    if isinstance(audio, dict) and isinstance(audio.get("config"), dict):
        completed["audio_config"] = {**audio["config"], "model_type": f"{model_type}_audio"}
    return completed


class TextPart(NamedTuple):
    """The config of the part that writes text; notes on the other parts, and on sizes that it leaves out."""

    fields: dict[str, Any]
    note: str = ""
    filled: str = ""


def text_part(fields: dict[str, Any], path: str) -> TextPart:
    """Return the config of the text part of a vision-language model; any other config as it is."""
    model_type = str(fields.get("model_type"))
    if model_type in FAMILIES:
        return TextPart(fields)
    nested = nested_text(fields)
    if nested is not None:
        text = dict(nested)
    elif isinstance(fields.get("vision_config"), dict):
        text = {key: value for key, value in fields.items() if key not in ("model_type", "vision_config")}
    else:
        return TextPart(fields)
    named = text.get("model_type", model_type)
    text["model_type"] = TEXT_PARTS.get(str(named), named)
    text, filled = _fill_nested(text) if nested is not None else (text, "")
    if FAMILIES.decoder(text["model_type"]) is None and guess_family(Config(text, path)) is None:
        return TextPart(fields)
    text.pop("architectures", None)
    if "tie_word_embeddings" in fields:  # transformers ties by the outer config
        text["tie_word_embeddings"] = fields["tie_word_embeddings"]
    for key in ("_attn_implementation", "attn_implementation"):
        if key in fields:
            text.setdefault(key, fields[key])
    return TextPart(text, f"the text part of {with_article(model_type)}; its vision encoder is not included", filled)


def _fill_nested(fields: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return a nested text config with the sizes that it leaves out, and a note that names them; empty for none."""
    family = FAMILIES.get(str(fields.get("model_type")))
    defaults = {} if family is None else family.nested_defaults
    missing = {name: value for name, value in defaults.items() if name not in fields}
    listed = ", ".join(f"{name} {value}" for name, value in missing.items())
    note = f"what the text config leaves out has the defaults of transformers: {listed}" if missing else ""
    return {**missing, **fields}, note


def nested_text(fields: dict[str, Any]) -> dict[str, Any] | None:
    """Return the nested config of the part that writes text; None if there is none."""
    return next((fields[key] for key in _PARTS if isinstance(fields.get(key), dict)), None)

"""Towers of multimodal models: the encoders of images and sound before the part that writes text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..counting import Layer
from ..counting.places import last_part
from ..errors import PaleoError
from ..text import with_article
from .config import Config
from .config_parts import nested_text, text_part
from .families.audio_towers import audio_parameters
from .families.family import FAMILIES
from .families.network import read_family
from .families.tower import resident_weights, tower_layers
from .families.vision_towers import describe_tower, encoder_parameters, generator_parameters
from .network import Network, SequenceOptions

VISION_PARTS = {
    "gemma3": "siglip_vision_model", "llava": "clip_vision_model", "paligemma": "siglip_vision_model",
    "qwen2_vl": "qwen2_vl", "qwen2_5_vl": "qwen2_5_vl", "kimi_k25": "kimi_k25_vision",
    "llama4": "llama4_vision_model", "gemma4": "gemma4_vision",
}  # fmt: skip
"""Model types of vision-language models and of their vision encoders, whose nested config may not name its type."""

_PROJECTOR_KEYS = (
    "spatial_merge_size", "multimodal_projector_bias", "downsample_ratio", "scale_factor", "downsample_factor",
    "alignment_intermediate_size", "projector_use_layernorm", "projector_hidden_size", "projector_bias",
)  # fmt: skip
"""Keys of a vision-language model that state how its vision encoder is joined to the text part."""

_ADAPTED = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
"""Projections that have adapters for images and sound."""


def add_towers(
    network: Network, fields: dict[str, Any], path: str, image_size: int | None, options: SequenceOptions, note: str
) -> tuple[Network, str]:
    """Put the vision encoder of a vision-language model before its text part, and the weights of one for sound.

    Return the network, and a note on its parts; a decode step has the weights alone, and blocks alone have neither.
    """
    model_type = str(fields.get("model_type"))
    if options.blocks is not None:
        return network, f"the text part of {with_article(model_type)}: the vision tower runs with the prompt"
    text_size = text_part(fields, path).fields.get("hidden_size")
    adapters = _adapter_parameters(network, fields)
    if isinstance(fields.get("vision_config"), dict):
        network, note = _add_vision(network, fields, path, image_size, options, text_size, note)
    generator = generator_parameters(fields, text_size) if text_size else 0
    if generator:
        network = _add_weights(network, generator, "generator")
        note = f"{note}; its parts that write images are held in memory, and not computed"
    if adapters:
        network = _add_weights(network, adapters, "adapters")
        note = f"{note}; its adapters for images and sound are held in memory, and not computed"
    audio = fields.get("audio_config")
    if not isinstance(audio, dict):
        return network, note
    parameters = audio_parameters({**audio, "text_hidden_size": text_size}, path)
    encoder = None if parameters else _trace_part(audio, path, None)
    parameters = encoder.parameters if encoder is not None else parameters
    if parameters is None:
        return network, f"{note}; its audio encoder is not included"
    return _add_weights(network, parameters, "audio"), f"{note}; of its audio encoder the weights alone"


def _adapter_parameters(network: Network, fields: dict[str, Any]) -> int:
    """Return the parameters of the low-rank adapters for images and sound beside the projections (Phi-4-multimodal)."""
    adapters = [fields[key] for key in ("vision_lora", "speech_lora") if isinstance(fields.get(key), dict)]
    ranks: int = sum(adapter["r"] for adapter in adapters if isinstance(adapter.get("r"), int))
    projections = (layer for layer in network.layers if last_part(layer.name) in _ADAPTED)
    return ranks * sum(sum(layer.weights[0]) for layer in projections)


def _add_vision(
    network: Network,
    fields: dict[str, Any],
    path: str,
    image_size: int | None,
    options: SequenceOptions,
    text_size: int | None,
    note: str,
) -> tuple[Network, str]:
    """Put the vision encoder before the text part: by its record, by `transformers`, or not at all."""
    vision, model_type = fields["vision_config"], str(fields.get("model_type"))
    vision_type = str(vision.get("model_type") or VISION_PARTS.get(model_type))
    projector_fields = {key: fields[key] for key in _PROJECTOR_KEYS if key in fields}
    text_inner = (nested_text(fields) or fields).get("intermediate_size")
    further_fields = {"text_hidden_size": text_size, "text_inner_size": text_inner, "model_type": vision_type}
    if image_size is not None:
        further_fields["image_size"] = image_size
    config = Config({**projector_fields, **vision, **further_fields}, path)
    tower = describe_tower(config, model_type)
    network = network._replace(notes=(*network.notes, *config.notes))
    is_decode = options.phase == "decode"
    if tower is not None:
        layers, shape = tower_layers(tower, network.name, options.fused_attention is not False)
        tower_network = Network("", (shape,), layers, sum(layer.parameters for layer in layers))
        image = f"one image of {tower.side} x {tower.side} patches, which becomes {tower.tokens} tokens of the sequence"
        named = with_article(model_type)
        note = f"{named} with its vision tower: {image}"
        if is_decode:
            note = f"{named}, whose vision tower runs with the prompt"
        return _add_encoder(network, tower_network, (shape,), "", is_decode), note
    parameters = encoder_parameters(Config({**vision, "text_hidden_size": text_size}, path))
    if parameters is not None:
        note = f"{with_article(model_type)}; of its vision encoder, which the config only names, the weights alone"
        return _add_weights(network, parameters, "visual"), note
    family = FAMILIES.get(vision_type)
    if family is not None and not family.is_decoder:
        config = Config({**vision, "model_type": vision_type}, path)
        encoder: Network | None = read_family(config, family, image_size, SequenceOptions())
    else:
        vision_type = f"{model_type}_vision" if vision_type == model_type else vision_type
        encoder = _trace_part({**vision, "model_type": vision_type}, path, image_size)
    if encoder is None:
        return network, note
    note = f"the text part of {with_article(model_type)} and its vision encoder"
    note += ", which runs with the prompt" if is_decode else ", one image per sequence"
    note += "; the projection between them is not included"
    return _add_encoder(network, encoder, encoder.inputs, "vision", is_decode), note


def _trace_part(fields: dict[str, Any], path: str, image_size: int | None) -> Network | None:
    """Return an encoder that the installed ``transformers`` traces on its own; None where it does not."""
    from .trace_process import trace_config, traceable_types

    model_type = fields.get("model_type")
    if model_type not in traceable_types() or FAMILIES.decoder(model_type) is not None:
        return None
    try:
        return trace_config(msgspec.json.encode({**fields, "architectures": None}), path, image_size)
    except PaleoError:  # the answer then says that the part is not included
        return None


def _add_weights(network: Network, parameters: int, part: str) -> Network:
    """Put the weights of a part before a network: they are held in memory, and not computed."""
    added = _put_before(network, [resident_weights(parameters, part)])
    return added._replace(tower_parameters=network.tower_parameters + parameters)


def _add_encoder(
    network: Network, encoder: Network, inputs: tuple[tuple[int, ...], ...], prefix: str, only_weights: bool
) -> Network:
    """Put the layers of an encoder before a network, or only its weights."""
    parameters = encoder.parameters
    if only_weights:
        layers: Sequence[Layer] = [resident_weights(parameters, prefix or "visual")]
    else:
        unused = parameters - sum(layer.parameters for layer in encoder.layers)
        layers = list(encoder.layers)
        if prefix:
            layers = [
                layer._replace(name=f"{prefix}.{layer.name}", place=layer.place.within(prefix)) for layer in layers
            ]
        layers = [*layers, *([resident_weights(unused, prefix)] if unused else [])]
        network = network._replace(inputs=(*inputs, *network.inputs))
    return _put_before(network, layers)._replace(tower_parameters=network.tower_parameters + parameters)


def _put_before(network: Network, layers: Sequence[Layer]) -> Network:
    """Return a network with further layers at its beginning."""
    offset = len(layers)
    own_layers = []
    for layer in network.layers:
        parents = tuple(parent + offset if parent >= 0 else parent for parent in layer.parents)
        own_layers.append(layer._replace(parents=parents))
    parameters = sum(layer.parameters for layer in layers)
    return network._replace(layers=(*layers, *own_layers), parameters=parameters + network.parameters)
